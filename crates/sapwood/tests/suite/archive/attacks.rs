//! Archives that attack the reader: each ends in an error that names the entry, and no image.

use std::io::Write;

use sapwood::ImageBuilder;
use tar::{Builder, EntryType, Header};

use super::{add, header, link, refused};

/// Blocks of a tar archive, put together by hand.
#[derive(Default)]
pub(super) struct Blocks(Vec<u8>);

impl Blocks {
    /// A header whose fields `edit` changes, and content up to the next block.
    pub(super) fn entry(
        mut self,
        name: &str,
        kind: u8,
        content: &[u8],
        edit: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = header(EntryType::new(kind), 0o644, content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        edit(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        let whole = self.0.len().next_multiple_of(512);
        self.0.resize(whole, 0);
        self
    }

    pub(super) fn file(self, name: &str) -> Self {
        self.entry(name, b'0', b"x", |_| {})
    }

    pub(super) fn pax(self, key: &str, value: &[u8]) -> Self {
        let record = record(key, value);
        self.entry("header", b'x', &record, |_| {})
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

pub(super) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

pub(super) fn none(_: &mut Header) {}

pub(super) fn new() -> Blocks {
    Blocks::default()
}

/// Attacks by names and links.
fn names() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let mut loops = Builder::new(Vec::new());
    link(&mut loops, "a", EntryType::Symlink, "b");
    link(&mut loops, "b", EntryType::Symlink, "a");
    add(
        &mut loops,
        "a/f",
        header(EntryType::Regular, 0o600, 1),
        b"x",
    );
    let link =
        |name: &'static str| move |header: &mut Header| header.set_link_name_literal(name).unwrap();
    vec![
        (
            "a name with ..",
            new().file("a/../../etc/f").end(),
            "a/../../etc/f: the name leads out",
        ),
        ("only ..", new().file("..").end(), "..: the name leads out"),
        (
            "a loop of links",
            loops.into_inner().unwrap(),
            "a/f: too many",
        ),
        (
            "a hard link out",
            new().entry("l", b'1', b"", link("../../etc/shadow")).end(),
            "../../etc/shadow: the name leads out",
        ),
        (
            "a hard link to nothing",
            new().entry("l", b'1', b"", link("gone")).end(),
            "l: is a hard link to gone, which is not there",
        ),
        (
            "a hard link to a directory",
            new()
                .entry("d", b'5', b"", none)
                .entry("l", b'1', b"", link("d"))
                .end(),
            "l: ",
        ),
        (
            "a hard link without a target",
            new().entry("l", b'1', b"", none).end(),
            "l: the target",
        ),
        (
            "a link without a target",
            new().entry("l", b'2', b"", none).end(),
            "l: the target",
        ),
        (
            "a NUL in a name",
            new().pax("path", b"a\0b").file("f").end(),
            "a\\u{0}b: the name contains",
        ),
        (
            "a NUL in a link",
            new()
                .pax("linkpath", b"a\0b")
                .entry("l", b'2', b"", none)
                .end(),
            "l: the target of a link",
        ),
        (
            "a long component",
            new().pax("path", &[b'n'; 256]).file("f").end(),
            "nnn",
        ),
        (
            "a root that is a file",
            new().file("./").entry(".", b'0', b"x", none).end(),
            ".: the root",
        ),
        (
            "a root that is a link",
            new().entry("/", b'2', b"", link("x")).end(),
            "/: the root",
        ),
        (
            "a file in a file",
            new().file("f").file("f/g").end(),
            "f/g: not a directory",
        ),
        (
            "a file over a directory that is filled",
            new().file("d/f").file("d").end(),
            "d: directory not empty",
        ),
    ]
}

/// Attacks by numbers.
fn numbers() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let device = |major: &'static [u8; 8]| {
        move |header: &mut Header| header.as_ustar_mut().unwrap().dev_major = *major
    };
    let size = |size: [u8; 12]| move |header: &mut Header| header.as_old_mut().size = size;
    let mut negative = [0xff; 12];
    negative[11] = 0xf0;
    let mut huge = [0xff; 12];
    huge[0] = 0x80;
    let mut owner = [0xff; 8];
    owner[0] = 0x80;
    vec![
        (
            "a huge device",
            new().entry("dev", b'3', b"", device(b"7777777\0")).end(),
            "dev: the device",
        ),
        (
            "no device",
            new().entry("dev", b'4', b"", device(b"zzzzzzz\0")).end(),
            "dev: the device",
        ),
        (
            "a negative size",
            new().entry("f", b'0', b"", size(negative)).end(),
            "f: the size",
        ),
        (
            "a huge size",
            new().entry("f", b'0', b"", size(huge)).end(),
            "f: the size",
        ),
        (
            "a size of 8 EiB",
            new().pax("size", b"9223372036854775807").file("f").end(),
            "f: the archive ends within",
        ),
        (
            "a size of words",
            new().pax("size", b"many").file("f").end(),
            "f: the size",
        ),
        (
            "a huge owner",
            new()
                .entry("f", b'0', b"", |header| header.as_old_mut().uid = owner)
                .end(),
            "f: the owner",
        ),
        (
            "an owner that means none",
            new().pax("gid", b"4294967295").file("f").end(),
            "f: the group",
        ),
        (
            "a time of words",
            new().pax("mtime", b"soon").file("f").end(),
            "f: the time",
        ),
        (
            "a mode of words",
            new()
                .entry("f", b'0', b"", |header| {
                    header.as_old_mut().mode = *b"rwxrwxr\0"
                })
                .end(),
            "f: the mode",
        ),
        (
            "an unknown type",
            new().entry("f", b'M', b"", none).end(),
            "f: unknown type 0x4d",
        ),
    ]
}

/// Attacks by headers and attributes.
fn headers() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let gigabyte = |header: &mut Header| header.set_size(1 << 30);
    let mut wrong_sum = new().file("f").end();
    wrong_sum[0] = b'g';
    let sparse = |map: &'static [u8], size: &[u8]| {
        let records = [
            record("GNU.sparse.map", map),
            record("GNU.sparse.size", size),
        ]
        .concat();
        new().entry("header", b'x', &records, none).file("f").end()
    };
    let version = [
        record("GNU.sparse.major", b"1"),
        record("GNU.sparse.realsize", b"9"),
    ]
    .concat();
    let in_content = |content: &[u8]| {
        let block = [content, &vec![0; 512 - content.len()]].concat();
        new()
            .entry("header", b'x', &version, none)
            .entry("f", b'0', &block, none)
            .end()
    };
    vec![
        ("a wrong checksum", wrong_sum, "no tar header at byte 0"),
        (
            "a damaged second header",
            [new().file("f").0, vec![7; 1024]].concat(),
            "no tar header at byte 1024, after f",
        ),
        (
            "a pax header of 1 GiB",
            new().entry("f.pax", b'x', b"", gigabyte).end(),
            "f.pax: an extended header of 1073741824 bytes; at most",
        ),
        (
            "a global header of 1 GiB",
            new().entry("g.pax", b'g', b"", gigabyte).end(),
            "g.pax: an extended header",
        ),
        (
            "a name of 1 GiB",
            new().entry("name", b'L', b"", gigabyte).end(),
            "name: an extended header",
        ),
        (
            "a record that lies about its length",
            new()
                .entry("f.pax", b'x', b"99 path=a\n", none)
                .file("f")
                .end(),
            "f.pax: a record of the extended header",
        ),
        (
            "a header of nothing",
            new().pax("path", b"a").end(),
            "end mark, after header",
        ),
        (
            "an attribute that is too large",
            new()
                .pax("SCHILY.xattr.user.big", &vec![b'v'; 70_000])
                .file("f")
                .end(),
            "f: ",
        ),
        (
            "an attribute without a name",
            new().pax("SCHILY.xattr.user.", b"v").file("f").end(),
            "f: ",
        ),
        (
            "an ACL of nonsense",
            new().pax("SCHILY.acl.access", b"friend::r").file("f").end(),
            "f: the ACL",
        ),
        (
            "an attribute that is no base64",
            new().pax("LIBARCHIVE.xattr.user.a", b"*").file("f").end(),
            "f: an extended attribute",
        ),
        (
            "a sparse map backwards",
            sparse(b"4,1,0,0,2,1", b"9"),
            "f: the map of the sparse file is not in order",
        ),
        (
            "a sparse map beyond the end",
            sparse(b"4,1", b"2"),
            "f: the map of the sparse file reaches",
        ),
        (
            "a sparse map that overflows",
            sparse(b"18446744073709551615,1", b"2"),
            "f: the map",
        ),
        (
            "a sparse map without the content",
            sparse(b"0,1,4,1", b"9"),
            "f: the map of the sparse file has another",
        ),
        (
            "a sparse map of letters",
            sparse(b"0,x", b"9"),
            "f: the map of the sparse file has what is no",
        ),
        (
            "a sparse map of a million",
            in_content(b"1000000\n"),
            "f: the map",
        ),
        (
            "a sparse map that does not end",
            in_content(&[b'7'; 512]),
            "f: the map",
        ),
    ]
}

#[test]
fn hostile_archives_are_refused_by_the_name_of_the_entry() {
    let mut attacks = names();
    attacks.extend(numbers());
    attacks.extend(headers());
    assert!(attacks.len() > 40);
    for (attack, archive, expected) in attacks {
        let error = refused(&archive).to_string();
        assert!(
            error.starts_with(expected) || error.contains(expected),
            "{attack}: {error}"
        );
        assert!(
            !error.contains('\0') && error.len() < 1000,
            "{attack}: {error}"
        );
    }
}

#[test]
fn an_archive_that_is_cut_at_any_block_is_refused() {
    let mut tar = Builder::new(Vec::new());
    add(&mut tar, "d/", header(EntryType::Directory, 0o755, 0), b"");
    let long = format!("d/{}", "n".repeat(150));
    add(
        &mut tar,
        &long,
        header(EntryType::Regular, 0o644, 700),
        &[1; 700],
    );
    link(&mut tar, "l", EntryType::Link, &long);
    let whole = tar.into_inner().unwrap();
    let end = whole.len() - 1024;
    for cut in (0..=end).step_by(512).chain([1, 511, 513, end - 1]) {
        let error = refused(&whole[..cut]).to_string();
        let named = cut < 512 || ["d/", "l", "n"].iter().any(|name| error.contains(name));
        assert!(error.contains("archive ends") && named, "{cut}: {error}");
    }
}

#[test]
fn a_compressed_archive_is_verified_to_its_last_byte() {
    let plain = new().file("f").end();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let mut archive = gzip.finish().unwrap();
    let checksum = archive.len() - 6;
    archive[checksum] ^= 1;
    let error = refused(&archive).to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

/// A file of this many bytes, each `byte`, in a compressed archive.
fn bomb(byte: u8, size: u64) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut header = header(EntryType::Regular, 0o644, size);
    header.set_path("bomb").unwrap();
    header.set_cksum();
    gzip.write_all(header.as_bytes()).unwrap();
    let content = std::io::Read::take(std::io::repeat(byte), size);
    std::io::copy(&mut { content }, &mut gzip).unwrap();
    gzip.write_all(&[0; 1024]).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_small_archive_cannot_fill_more_than_the_image() {
    let archive = bomb(1, 256 << 20);
    assert!(archive.len() < 1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let builder = ImageBuilder::ext4()
        .size(32 << 20)
        .from_tar(archive.as_slice());
    let error = builder.unwrap().write_to(&path).unwrap_err();
    assert_eq!(error.to_string(), "bomb: no space left on device");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn cpio(name: &[u8], mode: u32, edit: impl FnOnce(&mut [u32; 13]), content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(name.len() + 1).unwrap();
    let size = u32::try_from(content.len()).unwrap();
    let mut numbers = [7, mode, 0, 0, 1, 0, size, 0, 1, 0, 0, length, 0];
    edit(&mut numbers);
    let mut bytes = b"070701".to_vec();
    for number in numbers {
        bytes.extend_from_slice(format!("{number:08x}").as_bytes());
    }
    bytes.extend_from_slice(name);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn hostile_cpio_archives_are_refused_by_the_name_of_the_entry() {
    let trailer = cpio(b"TRAILER!!!", 0, |_| {}, b"");
    let one = |name: &[u8], mode, edit: fn(&mut [u32; 13]), content: &[u8]| {
        [cpio(name, mode, edit, content), trailer.clone()].concat()
    };
    let file = 0o100_644;
    let attacks = [
        (
            "..",
            one(b"../f", file, |_| {}, b"x"),
            "../f: the name leads out",
        ),
        (
            "NUL",
            one(b"a\0b", file, |_| {}, b"x"),
            "a\\u{0}b: the name contains a NUL",
        ),
        ("no kind", one(b"f", 0o644, |_| {}, b"x"), "f: the mode"),
        (
            "a name of 4 GiB",
            one(b"f", file, |n| n[11] = u32::MAX, b""),
            "the name after this entry",
        ),
        (
            "no name",
            one(b"", file, |_| {}, b""),
            "the name after this entry",
        ),
        (
            "a huge device",
            one(b"d", 0o020_644, |n| n[9] = 4096, b""),
            "d: the device number",
        ),
        (
            "a link of 4 GiB",
            one(b"l", 0o120_777, |n| n[6] = u32::MAX, b"x"),
            "l: the target of a link",
        ),
        (
            "a file of 4 GiB",
            one(b"f", file, |n| n[6] = u32::MAX, b"x"),
            "f: the archive ends within",
        ),
        (
            "no owner",
            one(b"f", file, |n| n[2] = u32::MAX, b"x"),
            "f: the owner",
        ),
        (
            "no trailer",
            cpio(b"f", file, |_| {}, b"x"),
            "without its end mark, after f",
        ),
        (
            "no archive",
            vec![b'n'; 400],
            "no cpio (newc) header at byte 0",
        ),
        (
            "a damaged header",
            [cpio(b"f", file, |_| {}, b"x"), vec![b'0'; 200]].concat(),
            "no cpio (newc) header at byte 116, after f",
        ),
    ];
    for (attack, archive, expected) in attacks {
        let dir = tempfile::tempdir().unwrap();
        let builder = ImageBuilder::ext4().from_cpio(archive.as_slice());
        let built = builder.unwrap().write_to(dir.path().join("disk.img"));
        let error = built.unwrap_err().to_string();
        assert!(error.contains(expected), "{attack}: {error}");
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "{attack}"
        );
    }
}
