//! Records of the pax format: what extended headers say of an entry.

use super::acl;
use super::entry::{Xattrs, time};
use super::error::{ArchiveError, Result, path};
use crate::shown;
use crate::vfs::{Timestamp, acl as names};

/// Keys and values, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Reads the content of an extended header, which belongs to the entry `named` in errors.
    ///
    /// # Errors
    /// [`ArchiveError::Field`].
    pub(super) fn parse(content: &[u8], named: &[u8]) -> Result<Self> {
        let mut records = Vec::new();
        let mut rest = content;
        while !rest.is_empty() {
            let record = first(rest).ok_or_else(|| ArchiveError::Field {
                path: path(named),
                field: "a record of the extended header",
            })?;
            records.push((record.key.to_vec(), record.value.to_vec()));
            rest = record.rest;
        }
        Ok(Self(records))
    }

    /// Adds the records of another header, which take precedence.
    pub(super) fn extend(&mut self, later: Self) {
        // Keys that one header repeats have a meaning in sparse maps.
        let known = |(key, _): &(Vec<u8>, Vec<u8>)| later.0.iter().any(|(other, _)| other == key);
        self.0.retain(|record| !known(record));
        self.0.extend(later.0);
    }

    /// The last value of a key; an empty one counts as none.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        let mut found = self.0.iter().rev();
        let found = found.find(|(name, _)| name == key.as_bytes())?;
        Some(found.1.as_slice()).filter(|value| !value.is_empty())
    }

    /// The number that a key has.
    ///
    /// # Errors
    /// The value is no number: [`ArchiveError::Field`], with `field`.
    pub(super) fn number(
        &self,
        key: &str,
        named: &[u8],
        field: &'static str,
    ) -> Result<Option<u64>> {
        self.get(key)
            .map(|value| number(value).ok_or_else(|| wrong(named, field)))
            .transpose()
    }

    /// The time of the last change.
    pub(super) fn mtime(&self, named: &[u8]) -> Result<Option<Timestamp>> {
        self.get("mtime")
            .map(|value| time(value).ok_or_else(|| wrong(named, "the time")))
            .transpose()
    }

    /// Values of keys that are repeated, as in the sparse format 0.0.
    pub(super) fn all<'r>(&'r self, key: &'r str) -> impl Iterator<Item = &'r [u8]> {
        let all = self
            .0
            .iter()
            .filter(move |(name, _)| name == key.as_bytes());
        all.map(|(_, value)| value.as_slice())
    }

    fn has_xattr(&self, name: &[u8]) -> bool {
        let has = |key: &[u8]| key.strip_prefix(b"SCHILY.xattr.") == Some(name);
        self.0.iter().any(|(key, _)| has(key))
    }

    /// The extended attributes, with ACLs and the SELinux label.
    pub(super) fn xattrs(&self, named: &[u8]) -> Result<Xattrs> {
        let mut xattrs = Xattrs::new();
        let mut set = |name: &[u8], value: Vec<u8>| {
            xattrs.retain(|(other, _)| other != name);
            xattrs.push((name.to_vec(), value));
        };
        // libarchive writes both forms. The one that needs no decoding wins.
        for (key, value) in &self.0 {
            if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let field = "an extended attribute";
                let decoded = base64(value).ok_or_else(|| wrong(named, field))?;
                set(&unescaped(name), decoded);
            }
        }
        for (key, value) in &self.0 {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                set(name, value.clone());
            } else if key == b"RHT.security.selinux" {
                let mut label = value.clone();
                if label.last() != Some(&0) {
                    label.push(0);
                }
                set(b"security.selinux", label);
            } else if key == b"SCHILY.acl.access" || key == b"SCHILY.acl.default" {
                let default = key.ends_with(b"default");
                let name = match default {
                    true => names::DEFAULT,
                    false => names::ACCESS,
                };
                match acl::parse(value, default) {
                    // GNU tar writes an empty list of a directory that has only the other one.
                    _ if value.is_empty() => {}
                    // GNU tar stores the attribute as well, if it stores any.
                    _ if self.has_xattr(name) => {}
                    acl::Parsed::Value(list) => set(name, list),
                    acl::Parsed::Names => log::warn!(
                        "{}: the ACL has names without numbers, and is left out",
                        shown::name(named)
                    ),
                    acl::Parsed::Nonsense => return Err(wrong(named, "the ACL")),
                }
            }
        }
        Ok(xattrs)
    }
}

struct Record<'r> {
    key: &'r [u8],
    value: &'r [u8],
    rest: &'r [u8],
}

/// The first record: `LENGTH KEY=VALUE` and a line feed; the length counts all of it.
fn first(content: &[u8]) -> Option<Record<'_>> {
    let space = content.iter().take(20).position(|byte| *byte == b' ')?;
    let length = number(content.get(..space)?)?;
    let (record, rest) = content.split_at_checked(usize::try_from(length).ok()?)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (body.get(..equals)?, body.get(equals + 1..)?);
    (!key.is_empty()).then_some(Record { key, value, rest })
}

/// A decimal number without a sign.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

fn wrong(named: &[u8], field: &'static str) -> ArchiveError {
    ArchiveError::Field {
        path: path(named),
        field,
    }
}

/// A name with `%41` for special characters.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *byte == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        plain.push(escaped.unwrap_or(*byte));
        rest = match escaped {
            Some(_) => after.get(2..).unwrap_or_default(),
            None => after,
        };
    }
    plain
}

/// Decodes base64, with or without `=` at its end.
pub(crate) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=');
    let text = text.get(..end.map_or(0, |end| end + 1))?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    (text.len() % 4 != 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_full_or_not_at_all() {
        let read = |content: &[u8]| Records::parse(content, b"f");
        let records = read(b"12 path=a=b\n14 a=\0\n\xff12345\n").unwrap();
        assert_eq!(records.get("path"), Some(&b"a=b"[..]));
        assert_eq!(records.get("a"), Some(&b"\0\n\xff12345"[..]));
        for bad in [
            &b"12 path=a=b"[..],
            b"99999999999999999999 a=b\n",
            b"0 a=b\n",
            b"-5 a=b\n",
            b"5 a=\n3 \n",
            b"6 ab=\nx",
            b"5 =b\n",
            b"6 abc\n",
        ] {
            assert!(read(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn later_headers_take_precedence_and_empty_values_remove() {
        let mut records = Records::parse(b"6 a=1\n6 b=2\n", b"f").unwrap();
        records.extend(Records::parse(b"6 a=3\n5 b=\n", b"f").unwrap());
        assert_eq!(records.get("a"), Some(&b"3"[..]));
        assert_eq!(records.get("b"), None);
    }

    #[test]
    fn an_empty_acl_is_none() {
        let records = Records::parse(b"23 SCHILY.acl.default=\n", b"d").unwrap();
        assert_eq!(records.xattrs(b"d").unwrap(), []);
    }

    #[test]
    fn attributes_of_libarchive_are_decoded() {
        let text = b"39 LIBARCHIVE.xattr.user.a%3Db=aGVsbG8\n";
        assert_eq!(text.len(), 39);
        let records = Records::parse(text, b"f").unwrap();
        let expected = (b"user.a=b".to_vec(), b"hello".to_vec());
        assert_eq!(records.xattrs(b"f").unwrap(), [expected]);
        assert_eq!(base64(b"aGVsbA==").unwrap(), b"hell");
        assert_eq!(base64(b"a"), None);
        assert_eq!(base64(b"a*bc"), None);
    }
}
