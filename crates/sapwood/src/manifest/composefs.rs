//! The dump format of composefs: a file a line, with eleven fields and the attributes.
//!
//! `PATH SIZE MODE NLINK UID GID RDEV MTIME PAYLOAD CONTENT DIGEST [NAME=VALUE ...]`. `-` is an
//! empty field. The mode of a hard link begins with `@`, and its payload is the first name. The
//! payload of a symbolic link is its target. The payload of a regular file is the name of an
//! object; a source must have the file at the path.

use super::{Item, ItemKind, LONG, PATH_MAX, Wrong, digits, id, unescaped};
use crate::archive::{components, device, time};
use crate::vfs::{FileKind, device_number};

pub(super) fn parse(text: &[u8]) -> Result<Vec<Item>, Wrong> {
    let mut items = Vec::new();
    for (line, text) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        if !text.is_empty() {
            items.push(item(text).map_err(|what| Wrong { line, what })?);
        }
    }
    Ok(items)
}

fn plain(field: &[u8]) -> Option<Vec<u8>> {
    unescaped(field, |letter| match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    })
}

fn item(line: &[u8]) -> Result<Item, &'static str> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let Some((
        [
            path,
            size,
            mode,
            _,
            uid,
            gid,
            rdev,
            mtime,
            payload,
            content,
            _,
        ],
        xattrs,
    )) = fields.split_first_chunk()
    else {
        return Err("the number of fields");
    };
    let path = plain(path).ok_or("the path")?;
    let path = components(&path).map_err(|_| "the path")?.join(&b'/');
    if path.len() > PATH_MAX {
        return Err(LONG);
    }
    let given = |field: &[u8]| match field {
        b"-" => Some(None),
        field => plain(field).map(Some),
    };
    let payload = given(payload).ok_or("the payload")?;
    let content = given(content).ok_or("the content")?;
    let size = digits(size, 10).ok_or("the size")?;
    if let Some(first) = mode.strip_prefix(b"@") {
        digits(first, 8).ok_or("the mode")?;
        let first = payload.ok_or("the payload")?;
        let first = components(&first).map_err(|_| "the payload")?.join(&b'/');
        if first.len() > PATH_MAX {
            return Err(LONG);
        }
        let kind = Some(ItemKind::Link(first));
        return Ok(Item {
            path,
            kind,
            ..Item::default()
        });
    }
    let mode = digits(mode, 8)
        .and_then(|mode| u32::try_from(mode).ok())
        .ok_or("the mode")?;
    let kind = kind(mode, rdev, payload)?;
    let content = match (&kind, content) {
        (ItemKind::Regular, None) if size == 0 => Some(Vec::new()),
        (ItemKind::Regular, content) => content,
        _ => None,
    };
    let xattr = |field: &&[u8]| {
        let equals = field.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (field.get(..equals)?, field.get(equals + 1..)?);
        Some((plain(name)?, plain(value)?))
    };
    let xattrs = xattrs.iter().map(xattr).collect::<Option<_>>();
    Ok(Item {
        path,
        kind: Some(kind),
        perm: Some(mode & 0o7777),
        uid: Some(id(uid).ok_or("the owner")?),
        gid: Some(id(gid).ok_or("the group")?),
        mtime: Some(time(mtime).ok_or("the time")?),
        xattrs: xattrs.ok_or("an attribute")?,
        content,
        optional: false,
        above: None,
    })
}

fn kind(mode: u32, rdev: &[u8], payload: Option<Vec<u8>>) -> Result<ItemKind, &'static str> {
    Ok(match FileKind::from_mode(mode).ok_or("the mode")? {
        FileKind::Regular => ItemKind::Regular,
        FileKind::Directory => ItemKind::Directory,
        FileKind::Symlink => ItemKind::Symlink(payload.ok_or("the payload")?),
        kind @ (FileKind::Fifo | FileKind::Socket) => ItemKind::Special(kind, 0),
        kind => {
            let number = digits(rdev, 10).ok_or("the device number")?;
            let (major, minor) = (device_number::major(number), device_number::minor(number));
            let number = device(major.into(), minor.into()).ok_or("the device number")?;
            ItemKind::Special(kind, number)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read() {
        let text = b"/ 4096 40755 2 0 0 0 10.5 - - -\n\
            /a\\x20b 3 104755 1 7 8 0 1.0 - x\\ny - security.capability=\\x01\\x00 user.a=\n\
            /l 1 120777 1 0 0 0 1.0 a\\x20b - -\n\
            /h 3 @104755 1 0 0 0 1.0 /a\\x20b - -\n\
            /null 0 20666 1 0 0 259 1.0 - - -\n";
        let items = parse(text).unwrap();
        assert_eq!(items[0].path, b"");
        assert_eq!(
            items[0].mtime.map(|time| (time.sec, time.nsec)),
            Some((10, 500_000_000))
        );
        assert_eq!(items[1].path, b"a b");
        assert_eq!(
            (items[1].perm, items[1].uid, items[1].gid),
            (Some(0o4755), Some(7), Some(8))
        );
        assert_eq!(items[1].content.as_deref(), Some(&b"x\ny"[..]));
        assert_eq!(
            items[1].xattrs[0],
            (b"security.capability".to_vec(), vec![1, 0])
        );
        assert_eq!(items[1].xattrs[1], (b"user.a".to_vec(), vec![]));
        assert_eq!(items[2].kind, Some(ItemKind::Symlink(b"a b".to_vec())));
        assert_eq!(items[3].kind, Some(ItemKind::Link(b"a b".to_vec())));
        let null = device_number::make(1, 3);
        assert_eq!(
            items[4].kind,
            Some(ItemKind::Special(FileKind::CharDevice, null))
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_named() {
        let wrong = |line: &str| parse(format!("/ 0 40755 2 0 0 0 1.0 - - -\n{line}").as_bytes());
        for (line, what) in [
            ("/a 1", "the number of fields"),
            ("/../a 1 100644 1 0 0 0 1.0 - - -", "the path"),
            ("/a\\x4 1 100644 1 0 0 0 1.0 - - -", "the path"),
            (
                &format!("{} 1 100644 1 0 0 0 1.0 - - -", "/a".repeat(2049)),
                LONG,
            ),
            (
                &format!("/a 1 @100644 1 0 0 0 1.0 {} - -", "/a".repeat(2049)),
                LONG,
            ),
            ("/a -1 100644 1 0 0 0 1.0 - - -", "the size"),
            ("/a 1 644 1 0 0 0 1.0 - - -", "the mode"),
            ("/a 1 100644 1 -1 0 0 1.0 - - -", "the owner"),
            ("/a 1 100644 1 0 4294967295 0 1.0 - - -", "the group"),
            ("/a 1 100644 1 0 0 0 soon - - -", "the time"),
            ("/a 1 120777 1 0 0 0 1.0 - - -", "the payload"),
            ("/a 1 100644 1 0 0 0 1.0 - - - user.a", "an attribute"),
        ] {
            assert_eq!(wrong(line), Err(Wrong { line: 2, what }), "{line}");
        }
    }
}
