//! ACLs as text, as the `SCHILY.acl.*` records of the pax format have them:
//! `user::rw-,user:lisa:rwx:502,group::r--,mask::rwx,other::---`.

use crate::vfs::acl::{Acl, AclEntry, Tag};

/// The result of parsing the text of an ACL.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The value of the attribute.
    Value(Vec<u8>),
    /// It has names of users or groups without their numbers. Names of this machine do not identify
    /// accounts of the archive.
    Names,
    /// It makes no sense.
    Nonsense,
}

/// Reads a list. An entry may have a number after its permissions, which goes before the name.
pub(super) fn parse(text: &[u8], default: bool) -> Parsed {
    let Ok(text) = std::str::from_utf8(text) else {
        return Parsed::Nonsense;
    };
    let mut entries = Vec::new();
    let mut names = false;
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let line = if default {
            line.strip_prefix("default:").unwrap_or(line)
        } else {
            line
        };
        match entry(line) {
            _ if line.is_empty() => {}
            Some(Some(entry)) => entries.push(entry),
            Some(None) => names = true,
            None => return Parsed::Nonsense,
        }
    }
    entries.sort_by_key(|entry| order(entry.tag));
    match Acl::new(entries) {
        _ if names => Parsed::Names,
        Ok(acl) => Parsed::Value(acl.to_bytes()),
        Err(_) => Parsed::Nonsense,
    }
}

/// An entry; `Some(None)` if it has a name without a number.
fn entry(line: &str) -> Option<Option<AclEntry>> {
    let mut fields = line.split(':').map(str::trim);
    let (tag, mut name) = (fields.next()?, fields.next()?);
    // Solaris and old versions of star write `other:r--` and `mask:r--`.
    let perm = match fields.next() {
        Some(perm) => perm,
        None => std::mem::take(&mut name),
    };
    let id: Option<u32> = match fields.next() {
        Some(number) if !number.is_empty() => Some(number.parse().ok()?),
        _ => name.parse().ok(),
    };
    let tag = match (tag, name.is_empty()) {
        ("user" | "u", true) => Some(Tag::UserObj),
        ("user" | "u", false) => id.map(Tag::User),
        ("group" | "g", true) => Some(Tag::GroupObj),
        ("group" | "g", false) => id.map(Tag::Group),
        ("mask" | "m", true) => Some(Tag::Mask),
        ("other" | "o", true) => Some(Tag::Other),
        _ => return None,
    };
    let perm = perm.chars().try_fold(0, |perm, letter| {
        Some(match letter {
            'r' => perm | 4,
            'w' => perm | 2,
            'x' => perm | 1,
            '-' => perm,
            _ => return None,
        })
    })?;
    Some(tag.map(|tag| AclEntry { tag, perm }))
}

/// The place of an entry in a list.
fn order(tag: Tag) -> (u8, u32) {
    match tag {
        Tag::UserObj => (0, 0),
        Tag::User(id) => (1, id),
        Tag::GroupObj => (2, 0),
        Tag::Group(id) => (3, id),
        Tag::Mask => (4, 0),
        Tag::Other => (5, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_names_ids_and_comments() {
        let entries = |text: &str, default| match parse(text.as_bytes(), default) {
            Parsed::Value(value) => Acl::parse(&value).unwrap().unwrap().entries().to_vec(),
            other => panic!("{text}: {other:?}"),
        };
        let of = |tag, perm| AclEntry { tag, perm };
        let list = [
            of(Tag::UserObj, 6),
            of(Tag::User(502), 7),
            of(Tag::GroupObj, 4),
            of(Tag::Mask, 7),
            of(Tag::Other, 0),
        ];
        let gnu = "user::rw-,user:lisa:rwx:502,group::r--,mask::rwx,other::---";
        assert_eq!(entries(gnu, false), list);
        let lines = "user::rw-\ngroup::r--\nother::---\nuser:502:rwx #effective:rwx\nmask::rwx\n";
        assert_eq!(entries(lines, false), list);
        let default = "default:user::rw-,user:502:rwx,group::r--,mask::rwx,other::---";
        assert_eq!(entries(default, true), list);
        assert_eq!(entries("user::rw-,group::r--,other:---", false).len(), 3);
    }

    #[test]
    fn nonsense_and_names_are_no_lists() {
        for text in ["", "user::rw-", "friend::r--", "user::rwz", "user:a:rwx:b"] {
            assert_eq!(parse(text.as_bytes(), false), Parsed::Nonsense, "{text}");
        }
        assert_eq!(parse(b"\xff", false), Parsed::Nonsense);
        let text = b"user::rw-,user:lisa:rwx,group::r--,mask::rwx,other::---";
        assert_eq!(parse(text, false), Parsed::Names);
    }
}
