//! BSD mtree: a file a line, with `keyword=value` words.
//!
//! A name with a slash is a path from the root. A name without a slash is in the directory that was
//! named last; `..` leaves that. `/set` gives defaults, and a backslash at its end continues a
//! line. An attribute is `xattr.NAME=BASE64`. Keywords that describe the content are not verified.

use std::collections::HashMap;

use super::{Above, Item, ItemKind, LONG, PATH_MAX, Wrong, digits, id, unescaped};
use crate::archive::{base64, components, device, time};
use crate::vfs::{FileKind, device_number};

/// Most keywords with a default. Every item has them.
const DEFAULTS_MAX: usize = 64;

type Words<'t> = HashMap<&'t [u8], &'t [u8]>;

pub(super) fn parse(text: &[u8]) -> Result<Vec<Item>, Wrong> {
    let mut items = Vec::new();
    let mut defaults = Words::new();
    // The directory that was entered last and the directories above it, with the lengths of their
    // paths.
    let mut inside: Vec<(Above, usize)> = Vec::new();
    for (line, text) in lines(text) {
        let wrong = |what| Wrong { line, what };
        let mut words = text
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty() && *word != b"\\");
        match words.next() {
            None => {}
            Some(comment) if comment.starts_with(b"#") => {}
            Some(b"/set") => {
                defaults.extend(words.map(pair));
                if defaults.len() > DEFAULTS_MAX {
                    return Err(wrong("a default for more than 64 keywords"));
                }
            }
            Some(b"/unset") => words.for_each(|word| match word {
                b"all" => defaults.clear(),
                word => drop(defaults.remove(word)),
            }),
            Some(b"..") => drop(inside.pop()),
            Some(name) => {
                let mut given = defaults.clone();
                given.extend(words.map(pair));
                let name = plain(name).ok_or_else(|| wrong("the name"))?;
                let parts = components(&name).map_err(|_| wrong("the name"))?;
                let full = name.contains(&b'/') || name == b".";
                let above = inside.last().copied().filter(|_| !full);
                let path = parts.join(&b'/');
                let length = path.len() + above.map_or(0, |(_, length)| length + 1);
                if length > PATH_MAX {
                    return Err(wrong(LONG));
                }
                let mut item = item(path, &given).map_err(wrong)?;
                item.above = above.map(|(above, _)| above);
                if item.kind == Some(ItemKind::Directory) && (!full || name == b".") {
                    if full {
                        inside.clear();
                    } else {
                        let (item, depth) = (items.len(), inside.len());
                        inside.push((Above { item, depth }, length));
                    }
                }
                items.push(item);
            }
        }
    }
    Ok(items)
}

/// Lines joined with their continuations, each with the number of its first line.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = text;
    let mut number = 1;
    std::iter::from_fn(move || {
        let first = number;
        let mut end = 0;
        let all = rest;
        loop {
            if rest.is_empty() {
                return (end > 0).then_some((first, all));
            }
            let length = rest.iter().position(|byte| *byte == b'\n');
            let length = length.unwrap_or(rest.len());
            number += 1;
            let continues = rest.get(..length).is_some_and(|line| line.ends_with(b"\\"));
            end += length + 1;
            rest = rest.get(length + 1..).unwrap_or_default();
            if !continues {
                return Some((first, all.get(..end).unwrap_or(all)));
            }
        }
    })
}

/// A keyword and its value.
fn pair(word: &[u8]) -> (&[u8], &[u8]) {
    match word.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let (key, value) = word.split_at(at);
            (key, value.get(1..).unwrap_or_default())
        }
        None => (word, b""),
    }
}

fn plain(text: &[u8]) -> Option<Vec<u8>> {
    unescaped(text, |letter| match letter {
        b's' => b' ',
        b't' => b'\t',
        b'n' => b'\n',
        b'r' => b'\r',
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'v' => 11,
        other => other,
    })
}

fn item(path: Vec<u8>, words: &Words<'_>) -> Result<Item, &'static str> {
    let word = |key: &str| words.get(key.as_bytes()).copied();
    let of = |key, parse: fn(&[u8]) -> Option<u32>, what| match word(key) {
        Some(value) => parse(value).map(Some).ok_or(what),
        None => Ok(None),
    };
    let size = match word("size") {
        Some(size) => Some(digits(size, 10).ok_or("the size")?),
        None => None,
    };
    let target = || word("link").and_then(plain).ok_or("the target of a link");
    let special = |kind| -> Result<ItemKind, &'static str> {
        let number = word("device").and_then(number).ok_or("the device number")?;
        Ok(ItemKind::Special(kind, number))
    };
    let kind = match word("type") {
        None => None,
        Some(b"file") => Some(ItemKind::Regular),
        Some(b"dir") => Some(ItemKind::Directory),
        Some(b"link") => Some(ItemKind::Symlink(target()?)),
        Some(b"char") => Some(special(FileKind::CharDevice)?),
        Some(b"block") => Some(special(FileKind::BlockDevice)?),
        Some(b"fifo") => Some(ItemKind::Special(FileKind::Fifo, 0)),
        Some(b"socket") => Some(ItemKind::Special(FileKind::Socket, 0)),
        Some(_) => return Err("the type"),
    };
    let empty = kind == Some(ItemKind::Regular) && size == Some(0);
    let mode = |text: &[u8]| {
        u32::try_from(digits(text, 8)?)
            .ok()
            .filter(|mode| *mode <= 0o7777)
    };
    let mut xattrs = Vec::new();
    for (key, value) in words {
        if let Some(name) = key.strip_prefix(b"xattr.") {
            let name = plain(name).ok_or("an attribute")?;
            xattrs.push((name, base64(value).ok_or("an attribute")?));
        }
    }
    xattrs.sort();
    Ok(Item {
        path,
        kind,
        perm: of("mode", mode, "the mode")?,
        uid: of("uid", id, "the owner")?,
        gid: of("gid", id, "the group")?,
        mtime: match word("time") {
            Some(value) => Some(time(value).ok_or("the time")?),
            None => None,
        },
        xattrs,
        content: empty.then(Vec::new),
        optional: word("optional").is_some(),
        above: None,
    })
}

/// A device: `FORMAT,MAJOR,MINOR`, or the number of Linux.
fn number(text: &[u8]) -> Option<u64> {
    let parts: Vec<&[u8]> = text.split(|byte| *byte == b',').collect();
    let of = |text: &[u8]| match text.strip_prefix(b"0x") {
        Some(text) => digits(text, 16),
        None => digits(text, 10),
    };
    match parts.as_slice() {
        [number] => {
            let number = of(number)?;
            let (major, minor) = (device_number::major(number), device_number::minor(number));
            device(major.into(), minor.into())
        }
        [_, major, minor] => device(of(major)?, of(minor)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::whole_path;
    use super::*;

    #[test]
    fn names_are_relative_to_directories_or_full() {
        let text = b"#mtree\n\
            /set type=file uid=0 gid=0 mode=0644\n\
            .               type=dir mode=0755\n\
            \x20   etc         type=dir mode=0755 \\\n\
            \x20               time=5.250000000\n\
            \x20       motd\\040x  uid=7 xattr.user.a=aGVsbG8=\n\
            \x20   ..\n\
            \x20   null        type=char device=native,1,3\n\
            /unset uid\n\
            ./usr/bin/sh    mode=4755 optional\n\
            ./l type=link link=usr/bin/sh\n";
        let items = parse(text).unwrap();
        let paths = items.iter().map(|item| whole_path(&items, item));
        let expected: [&[u8]; 6] = [b"", b"etc", b"etc/motd x", b"null", b"usr/bin/sh", b"l"];
        assert!(paths.eq(expected));
        assert_eq!(
            items[1].mtime.map(|time| (time.sec, time.nsec)),
            Some((5, 250_000_000))
        );
        assert_eq!((items[2].uid, items[2].perm), (Some(7), Some(0o644)));
        assert_eq!(items[2].xattrs, [(b"user.a".to_vec(), b"hello".to_vec())]);
        let null = device_number::make(1, 3);
        assert_eq!(
            items[3].kind,
            Some(ItemKind::Special(FileKind::CharDevice, null))
        );
        assert_eq!(
            (items[4].uid, items[4].gid, items[4].optional),
            (None, Some(0), true)
        );
        assert_eq!(
            items[5].kind,
            Some(ItemKind::Symlink(b"usr/bin/sh".to_vec()))
        );
    }

    /// A list of directories, each in the one before it.
    fn deep(depth: usize) -> String {
        "#mtree\n".to_owned() + &"a type=dir\n".repeat(depth)
    }

    #[test]
    fn a_deep_list_takes_a_name_for_each_line() {
        let text = deep(2047) + &"b type=dir\n..\n".repeat(2);
        let items = parse(text.as_bytes()).unwrap();
        assert!(items.iter().all(|item| item.path.len() == 1));
        let last = items.last().unwrap();
        assert_eq!(
            (last.above.unwrap().item, last.above.unwrap().depth),
            (2046, 2046)
        );
        assert_eq!(whole_path(&items, last).len(), 4095);
    }

    #[test]
    fn the_bytes_of_a_path_and_the_defaults_are_bounded() {
        let refused = |text: String| parse(text.as_bytes()).err();
        assert_eq!(
            refused(deep(40_000)),
            Some(Wrong {
                line: 2050,
                what: LONG
            })
        );
        let long = format!("#mtree\n./{} type=file\n", "a/".repeat(2049));
        assert_eq!(
            refused(long),
            Some(Wrong {
                line: 2,
                what: LONG
            })
        );
        let words = (0..65).map(|nth| format!(" xattr.user.a{nth}=aGVsbG8="));
        let what = "a default for more than 64 keywords";
        assert_eq!(
            refused(format!("/set{}\n", words.collect::<String>())),
            Some(Wrong { line: 1, what })
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        for (line, what) in [
            ("../a type=file", "the name"),
            ("a\\4 type=file", "the name"),
            ("a type=door", "the type"),
            ("a mode=u+x", "the mode"),
            ("a mode=17777", "the mode"),
            ("a uid=root", "the owner"),
            ("a gid=4294967295", "the group"),
            ("a time=soon", "the time"),
            ("a type=link", "the target of a link"),
            ("a type=char", "the device number"),
            ("a type=char device=native,4096,0", "the device number"),
            ("a xattr.user.a=*", "an attribute"),
        ] {
            let found = parse(format!("#mtree\n{line}\n").as_bytes());
            assert_eq!(found, Err(Wrong { line: 2, what }), "{line}");
        }
    }
}
