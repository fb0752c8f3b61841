//! Bounds for archives and lists: names, records, layers.

use std::path::Path;
use std::sync::Mutex;

use sapwood::internal::{ArchiveError, BuildError};
use sapwood::{ImageBuilder, Sources};
use tar::Header;

use super::attacks::{new, none, record};
use super::{each, refused};

/// A path of this many names.
fn deep(names: usize) -> String {
    let mut path = "a/".repeat(names - 1);
    path.push('f');
    path
}

#[test]
fn the_longest_path_is_made_and_a_longer_one_is_refused() {
    // 4,095 bytes: the limit of a system call.
    let longest = deep(2048);
    let archive = new().pax("path", longest.as_bytes()).file("f").end();
    each(&archive, |fs, _| {
        assert_eq!(fs.read(&longest).unwrap(), b"x");
        // Directories that are not in the archive have one time.
        let above = Path::new(&longest).parent().unwrap();
        let time = |path: &Path| fs.metadata(path).unwrap().modified();
        assert_eq!(time(above), time(Path::new("a")));
        assert_eq!(
            fs.walk("a").unwrap().filter(|one| one.is_ok()).count(),
            2047
        );
    });
    let long = |size: usize, archive: Vec<u8>, field: &str| {
        let error = refused(&archive);
        let text = error.to_string();
        assert!(
            text.ends_with(&format!("{field} of {size} bytes; at most 4095 are read")),
            "{text}"
        );
        let BuildError::Archive(ArchiveError::TooLong { path, .. }) = error else {
            panic!("{text}");
        };
        path
    };
    for names in [2049, 40_000] {
        let path = deep(names);
        let pax = new().pax("path", path.as_bytes()).file("f").end();
        assert_eq!(long(path.len(), pax, "the name"), Path::new(&path));
    }
    let path = deep(30_000);
    let name = [path.as_bytes(), b"\0"].concat();
    let gnu = new()
        .entry("././@LongLink", b'L', &name, none)
        .file("f")
        .end();
    assert_eq!(long(path.len(), gnu, "the name"), Path::new(&path));
    let link = |header: &mut Header| header.set_link_name_literal("x").unwrap();
    let hard = new()
        .pax("linkpath", path.as_bytes())
        .entry("l", b'1', b"", link)
        .end();
    let named = long(path.len(), hard, "the name that it is a link to");
    assert_eq!(named, Path::new("l"));
}

#[test]
fn extended_headers_without_end_are_refused_by_the_name_of_the_entry() {
    let attributes = |count: usize| {
        let record = |nth| record(&format!("SCHILY.xattr.user.{nth}"), b"v");
        (0..count).flat_map(record).collect::<Vec<u8>>()
    };
    for (attack, archive, expected) in [
        (
            "records",
            new()
                .entry("f.pax", b'x', &attributes(100_000), none)
                .file("f")
                .end(),
            "f.pax: has 65537 records in an extended header; at most 65536 are read",
        ),
        (
            "names of attributes",
            new()
                .entry("f.pax", b'x', &attributes(10_000), none)
                .file("f")
                .end(),
            "f: has 98890 bytes of names of extended attributes; at most 65536 are read",
        ),
        (
            "a global header of records",
            new()
                .entry("g.pax", b'g', &attributes(50_000), none)
                .file("f")
                .end(),
            "g.pax: an extended header of 1438890 bytes; at most 65536 are read",
        ),
        (
            "global headers without end",
            (0..20)
                .fold(new(), |blocks, nth| {
                    let record = record(&format!("comment.{nth}"), &[b'c'; 4000]);
                    blocks.entry("g.pax", b'g', &record, none)
                })
                .file("f")
                .end(),
            "g.pax: has 68160 bytes of records in global headers; at most 65536 are read",
        ),
    ] {
        let error = refused(&archive).to_string();
        assert_eq!(error, expected, "{attack}");
    }
}

#[test]
fn a_list_of_nested_directories_is_applied_and_a_deeper_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let built = |text: &str, image: &str| {
        std::fs::write(&list, text).unwrap();
        let mut sources = Sources::default();
        sources.manifest(&list);
        // Names that a list has for itself are owners as well.
        let _ = sources.owners_from(&list);
        let path = dir.path().join(image);
        ImageBuilder::btrfs()
            .sources(sources)
            .write_to(&path)
            .map(|_| path)
    };
    let nested = |depth: usize| {
        let lines = (0..depth).map(|nth| format!("a type=dir mode=0700 uid={nth} gid=1\n"));
        format!("#mtree\n{}", lines.collect::<String>())
    };
    // Two names in the last directory but one, and one from the root between them.
    let text = nested(2000) + "..\nb type=dir uid=7\n..\n./c type=dir\nd type=dir uid=8\n";
    let image = built(&text, "disk.img").unwrap();
    let fs = super::opened(&image);
    let at = |names: usize, last: &str| fs.metadata("a/".repeat(names) + last).unwrap();
    assert_eq!((at(0, "a").uid(), at(1999, "a").uid()), (0, 1999));
    assert_eq!((at(1999, "b").uid(), at(1999, "d").uid()), (7, 8));
    assert_eq!(at(1998, "a").mode() & 0o7777, 0o700);
    assert!(fs.metadata("c").unwrap().is_dir());
    fs.close().unwrap();
    let error = built(&nested(40_000), "other.img").unwrap_err().to_string();
    let expected = "list: line 2050: a path of more than 4095 bytes makes no sense";
    assert!(error.ends_with(expected), "{error}");
    assert!(!dir.path().join("other.img").exists());
}

/// Keeps the log of this process.
struct Logged(Mutex<Vec<String>>);

static LOGGED: Logged = Logged(Mutex::new(Vec::new()));

impl log::Log for Logged {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[test]
fn an_end_mark_of_one_block_is_warned_about() {
    log::set_logger(&LOGGED).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    // Other tests log as well: the offset distinguishes this one.
    let name = "n".repeat(90);
    let files = (0..11).fold(new(), |blocks, _| blocks.file(&name));
    let mark = format!("at byte {}", 1024 * 11);
    let warnings = |mark: &str| {
        let logged = LOGGED.0.lock().unwrap();
        let found = logged.iter().filter(|text| text.contains(mark));
        found.cloned().collect::<Vec<_>>()
    };
    let whole = files.end();
    each(&whole, |fs, _| assert_eq!(fs.read(&name).unwrap(), b"x"));
    assert_eq!(warnings(&mark), [""; 0]);
    let lone = &whole[..whole.len() - 512];
    each(lone, |fs, _| assert_eq!(fs.read(&name).unwrap(), b"x"));
    let expected = format!(
        "the archive ends with one zero block instead of two, {}",
        mark
    );
    let found = warnings(&mark);
    assert!(
        !found.is_empty() && found.iter().all(|text| *text == expected),
        "{found:?}"
    );
    let more = [lone, &new().file("ignored").end()].concat();
    each(&more, |fs, _| assert!(!fs.exists("ignored").unwrap()));
    let expected = format!("{expected}; 2048 bytes after it are ignored");
    assert!(warnings(&mark).contains(&expected));
}
