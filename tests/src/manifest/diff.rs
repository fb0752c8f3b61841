//! What two listings differ in.

use std::fmt::Debug;

use sapwood_vfs::Timestamp;

use super::entry::in_pages;
use super::{Content, Entry, Manifest};

/// How strictly listings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Two views of one image: everything.
    SameImage,
    /// As that, but the first one was taken before everything was written out.
    Live,
    /// Two images filled alike: all but what depends on when and where (inode numbers, times
    /// that were not set, allocation).
    AlikeFill,
    /// As that, for file systems whose directories are as large as a seed and their history have
    /// it.
    AlikeTree,
}

/// btrfs shows a subvolume that is not in a snapshot as an empty directory with this number.
const PLACEHOLDER: u64 = 2;

/// Flag of a file that was found not to compress (`m`).
const NO_COMPRESS: u32 = 0x400;

/// Flags by which ext4 tells how it stores a file (index, huge, extents, inline); two images may
/// differ in that.
const LAYOUT: u32 = 0x1000 | 0x4_0000 | 0x8_0000 | 0x1000_0000;

/// Paths below which times are as they came.
const OWN_TIMES: [&[u8]; 2] = [b"now", b"sub"];

/// Compares two listings.
///
/// # Errors
/// What they differ in, one line for each difference, up to 40.
pub fn compare(expected: &Manifest, found: &Manifest, how: Compare) -> Result<(), String> {
    let mut lines = Vec::new();
    for (path, entry) in &expected.entries {
        let shown = Manifest::shown(path);
        match found.entries.get(path) {
            None => lines.push(format!("{shown}: missing")),
            Some(other) => {
                for difference in differences(path, entry, other, how) {
                    lines.push(format!("{shown}: {difference}"));
                }
            }
        }
    }
    for path in found
        .entries
        .keys()
        .filter(|path| !expected.entries.contains_key(*path))
    {
        lines.push(format!("{}: should not be there", Manifest::shown(path)));
    }
    if lines.is_empty() {
        return Ok(());
    }
    let all = lines.len();
    lines.truncate(40);
    let text = lines.join("\n");
    Err(format!("{all} differences (expected -> found):\n{text}"))
}

fn differences(path: &[u8], expected: &Entry, found: &Entry, how: Compare) -> Vec<String> {
    let mut out = Vec::new();
    let mut check = |what: &str, left: &dyn Debug, right: &dyn Debug| {
        let (left, right) = (format!("{left:x?}"), format!("{right:x?}"));
        if left != right {
            out.push(format!("{what} {left} -> {right}"));
        }
    };
    check(
        "mode",
        &format_args!("{:o}", expected.mode),
        &format_args!("{:o}", found.mode),
    );
    check("nlink", &expected.nlink, &found.nlink);
    check(
        "owner",
        &(expected.uid, expected.gid),
        &(found.uid, found.gid),
    );
    let directory = expected.mode & libc::S_IFMT == libc::S_IFDIR;
    if !(directory && how == Compare::AlikeTree) {
        check("size", &expected.size, &found.size);
    }
    check("rdev", &expected.rdev, &found.rdev);
    // Whether a file does not compress shows only when it is written out, and not each time.
    let left_out = match how {
        Compare::SameImage => 0,
        _ => LAYOUT | NO_COMPRESS,
    };
    let flags = |entry: &Entry| entry.flags.map(|flags| flags & !left_out);
    let link = |entry: &Entry| entry.same_as.as_deref().map(Manifest::shown);
    check("same inode as", &link(expected), &link(found));
    if !path.is_empty() && expected.ino == PLACEHOLDER && found.ino == PLACEHOLDER {
        return out;
    }
    check("flags", &flags(expected), &flags(found));
    if !matches!(how, Compare::AlikeFill | Compare::AlikeTree) {
        check("ino", &expected.ino, &found.ino);
        let cut = |left: Timestamp, right: Timestamp| how == Compare::Live && is_cut(left, right);
        if !cut(expected.mtime, found.mtime) {
            check("mtime", &expected.mtime, &found.mtime);
        }
        // What is not written out yet may be counted beside what it replaces.
        if how == Compare::SameImage {
            check("blocks", &expected.blocks, &found.blocks);
        }
        // FUSE's cache does not hear of the change of time that a change of flags brings.
        if how == Compare::SameImage || !(in_flags(path) || cut(expected.ctime, found.ctime)) {
            check("ctime", &expected.ctime, &found.ctime);
        }
        // Not every way to look at a file shows it.
        if expected.btime.is_some() && found.btime.is_some() {
            check("btime", &expected.btime, &found.btime);
        }
    } else if !OWN_TIMES.iter().any(|own| path.starts_with(own)) && !path.is_empty() {
        check("mtime", &expected.mtime, &found.mtime);
    }
    out.extend(content(&paged(expected, how), &paged(found, how)));
    out.extend(xattrs(expected, found));
    out
}

/// True if `found` is what ext4 keeps of a time: 34 bits of seconds, or 32 without nanoseconds.
/// FUSE's cache shows what was asked for until it forgets the inode, and has no limits that could
/// be told to it.
fn is_cut(asked: Timestamp, found: Timestamp) -> bool {
    let earliest = i64::from(i32::MIN);
    let short = asked.sec.clamp(earliest, i32::MAX.into());
    let long = asked.sec.clamp(earliest, i64::from(i32::MAX) + (3 << 32));
    found.nsec == 0 && (found.sec == short || (found.sec == long && long != asked.sec))
}

/// True if it is made by the part of the filling that sets flags.
fn in_flags(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|name| name == b"flags")
}

/// What is in an entry. Of two images that were filled alike, one through FUSE, data is compared by
/// pages.
fn paged(entry: &Entry, how: Compare) -> Content {
    match (&entry.content, how) {
        (Content::File { sha256, data }, Compare::AlikeTree) => Content::File {
            sha256: *sha256,
            data: in_pages(entry.size, data),
        },
        (content, _) => content.clone(),
    }
}

fn content(expected: &Content, found: &Content) -> Option<String> {
    match (expected, found) {
        (
            Content::File {
                sha256: left,
                data: left_map,
            },
            Content::File {
                sha256: right,
                data: right_map,
            },
        ) => {
            if left != right {
                return Some(format!(
                    "other bytes; data at {left_map:?} -> {right_map:?}"
                ));
            }
            (left_map != right_map).then(|| format!("data at {left_map:?} -> {right_map:?}"))
        }
        (Content::Link(left), Content::Link(right)) if left != right => {
            let (left, right) = (Manifest::shown(left), Manifest::shown(right));
            Some(format!("leads to {left} -> {right}"))
        }
        _ => (expected != found).then(|| format!("{expected:?} -> {found:?}")),
    }
}

fn xattrs(expected: &Entry, found: &Entry) -> Vec<String> {
    let mut out = Vec::new();
    for (name, value) in &expected.xattrs {
        let (shown, value_shown) = (Manifest::shown(name), Manifest::shown(value));
        match found.xattrs.get(name) {
            None => out.push(format!("attribute {shown} is missing")),
            Some(other) if other != value => {
                out.push(format!(
                    "attribute {shown} {value_shown} -> {}",
                    Manifest::shown(other)
                ));
            }
            Some(_) => {}
        }
    }
    let new = found
        .xattrs
        .keys()
        .filter(|name| !expected.xattrs.contains_key(*name));
    out.extend(new.map(|name| format!("attribute {} is new", Manifest::shown(name))));
    out
}
