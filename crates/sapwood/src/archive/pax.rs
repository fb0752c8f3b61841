//! Records of the pax format: the fields of an entry that are in extended headers.

use std::collections::BTreeMap;

use super::acl;
use super::entry::{Xattrs, time};
use super::error::{ArchiveError, Result, path};
use crate::shown;
use crate::vfs::{Timestamp, acl as names};

/// Most records of an extended header. Records of a sparse map do not count.
const RECORDS_MAX: usize = 1 << 16;
/// Most records of all global headers, and most bytes. Every entry after them has them.
const GLOBAL_RECORDS_MAX: usize = 1 << 10;
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Most bytes of the names of an inode's extended attributes, each with a NUL: Linux lists no more.
const XATTR_NAMES_MAX: usize = 64 << 10;

const XATTR: &[u8] = b"SCHILY.xattr.";

/// The records of an extended header, or of all global headers.
#[derive(Debug, Clone, Default)]
pub(super) struct Extended {
    /// The last value of each key.
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Offsets and lengths of the sparse format 0.0, which repeats these keys.
    offsets: Vec<Vec<u8>>,
    lengths: Vec<Vec<u8>>,
}

impl Extended {
    /// Reads the content of an extended header, which belongs to the entry `named` in errors.
    ///
    /// # Errors
    /// [`ArchiveError::Field`], [`ArchiveError::TooMany`].
    pub(super) fn parse(content: &[u8], named: &[u8]) -> Result<Self> {
        let mut header = Self::default();
        let mut count = 0;
        let mut rest = content;
        while !rest.is_empty() {
            let record =
                first(rest).ok_or_else(|| wrong(named, "a record of the extended header"))?;
            match record.key {
                b"GNU.sparse.offset" => header.offsets.push(record.value.to_vec()),
                b"GNU.sparse.numbytes" => header.lengths.push(record.value.to_vec()),
                key => {
                    count += 1;
                    check_count(named, "records in an extended header", count, RECORDS_MAX)?;
                    header.values.insert(key.to_vec(), record.value.to_vec());
                }
            }
            rest = record.rest;
        }
        Ok(header)
    }

    /// Adds the records of a later global header, which take precedence.
    ///
    /// # Errors
    /// [`ArchiveError::TooMany`], which names the entry `named`.
    pub(super) fn extend(&mut self, later: Self, named: &[u8]) -> Result<()> {
        self.values.extend(later.values);
        let count = self.values.len();
        check_count(
            named,
            "records in global headers",
            count,
            GLOBAL_RECORDS_MAX,
        )?;
        let bytes = self
            .values
            .iter()
            .map(|(key, value)| key.len() + value.len());
        let what = "bytes of records in global headers";
        check_count(named, what, bytes.sum(), GLOBAL_BYTES_MAX)
    }
}

/// The records that concern an entry: its own, and records of global headers before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records<'r> {
    own: &'r Extended,
    global: &'r Extended,
}

impl<'r> Records<'r> {
    pub(super) fn new(own: &'r Extended, global: &'r Extended) -> Self {
        Self { own, global }
    }

    /// The value of a key; an empty one counts as none.
    pub(super) fn get(&self, key: &str) -> Option<&'r [u8]> {
        self.find(key.as_bytes()).filter(|value| !value.is_empty())
    }

    fn find(&self, key: &[u8]) -> Option<&'r [u8]> {
        let own = self.own.values.get(key);
        own.or_else(|| self.global.values.get(key))
            .map(Vec::as_slice)
    }

    fn all(&self) -> impl Iterator<Item = (&'r [u8], &'r [u8])> {
        let own = &self.own.values;
        let global = self.global.values.iter();
        let global = global.filter(|(key, _)| !own.contains_key(*key));
        let all = global.chain(own);
        all.map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// Offsets and lengths of the pieces that the sparse format 0.0 has.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&'r [u8], &'r [u8])> {
        let pieces = self.own.offsets.iter().zip(&self.own.lengths);
        pieces.map(|(at, length)| (at.as_slice(), length.as_slice()))
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

    /// The extended attributes in the order of their names, with ACLs and the SELinux label.
    ///
    /// # Errors
    /// [`ArchiveError::Field`], [`ArchiveError::TooMany`].
    pub(super) fn xattrs(&self, named: &[u8]) -> Result<Xattrs> {
        let mut xattrs = BTreeMap::new();
        // libarchive writes both forms. The one that needs no decoding wins.
        for (key, value) in self.all() {
            if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                let field = "an extended attribute";
                let decoded = base64(value).ok_or_else(|| wrong(named, field))?;
                xattrs.insert(unescaped(name), decoded);
            }
        }
        for (key, value) in self.all() {
            match key {
                b"RHT.security.selinux" => {
                    let mut label = value.to_vec();
                    if label.last() != Some(&0) {
                        label.push(0);
                    }
                    xattrs.insert(b"security.selinux".to_vec(), label);
                }
                b"SCHILY.acl.access" | b"SCHILY.acl.default" => {
                    if let Some((name, list)) = self.acl(key, value, named)? {
                        xattrs.insert(name, list);
                    }
                }
                _ => {}
            }
        }
        for (key, value) in self.all() {
            if let Some(name) = key.strip_prefix(XATTR) {
                xattrs.insert(name.to_vec(), value.to_vec());
            }
        }
        let bytes = xattrs.keys().map(|name| name.len() + 1).sum();
        let what = "bytes of names of extended attributes";
        check_count(named, what, bytes, XATTR_NAMES_MAX)?;
        Ok(xattrs.into_iter().collect())
    }

    /// The attribute of an ACL; `None` if there is none, or if its names have no numbers.
    fn acl(&self, key: &[u8], value: &[u8], named: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let default = key.ends_with(b"default");
        let name = if default {
            names::DEFAULT
        } else {
            names::ACCESS
        };
        // GNU tar writes an empty list for a directory that has only the other one. If it stores
        // attributes, it stores the list there as well.
        if value.is_empty() || self.find(&[XATTR, name].concat()).is_some() {
            return Ok(None);
        }
        match acl::parse(value, default) {
            acl::Parsed::Value(list) => Ok(Some((name.to_vec(), list))),
            acl::Parsed::Names => {
                log::warn!(
                    "{}: the ACL has names without numbers, and is left out",
                    shown::name(named)
                );
                Ok(None)
            }
            acl::Parsed::Nonsense => Err(wrong(named, "the ACL")),
        }
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

fn check_count(named: &[u8], what: &'static str, count: usize, limit: usize) -> Result<()> {
    if count > limit {
        Err(ArchiveError::TooMany {
            path: path(named),
            what,
            count: count as u64,
            limit: limit as u64,
        })
    } else {
        Ok(())
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

    fn with<T>(content: &[u8], test: impl FnOnce(Records<'_>) -> T) -> T {
        let own = Extended::parse(content, b"f").unwrap();
        test(Records::new(&own, &Extended::default()))
    }

    #[test]
    fn records_are_read_in_full_or_not_at_all() {
        with(b"12 path=a=b\n14 a=\0\n\xff12345\n", |records| {
            assert_eq!(records.get("path"), Some(&b"a=b"[..]));
            assert_eq!(records.get("a"), Some(&b"\0\n\xff12345"[..]));
        });
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
            let read = Extended::parse(bad, b"f");
            assert!(read.is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn later_headers_take_precedence_and_empty_values_remove() {
        let parse = |content: &[u8]| Extended::parse(content, b"f").unwrap();
        let mut global = parse(b"6 a=1\n6 b=2\n6 c=1\n6 d=5\n");
        global.extend(parse(b"6 a=3\n5 b=\n"), b"f").unwrap();
        let own = parse(b"6 c=2\n6 c=4\n5 d=\n");
        let records = Records::new(&own, &global);
        let found = ["a", "b", "c", "d"].map(|key| records.get(key));
        assert_eq!(found, [Some(&b"3"[..]), None, Some(b"4"), None]);
    }

    /// The content of a header with `count` records: each has a key with a number, and a value.
    fn many(count: usize, key: &str, value: &str) -> Vec<u8> {
        let record = |nth: usize| {
            let rest = format!(" {key}{nth:06}={value}\n");
            let length =
                (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length);
            format!("{}{rest}", length.unwrap())
        };
        (0..count)
            .flat_map(|nth| record(nth).into_bytes())
            .collect()
    }

    #[test]
    fn the_records_of_a_header_are_bounded() {
        let most = Extended::parse(&many(RECORDS_MAX, "k", "v"), b"f").unwrap();
        assert_eq!(most.values.len(), RECORDS_MAX);
        let error = Extended::parse(&many(RECORDS_MAX + 1, "k", "v"), b"f").unwrap_err();
        let text = error.to_string();
        assert_eq!(
            text,
            "f: has 65537 records in an extended header; at most 65536 are read"
        );
    }

    #[test]
    fn the_records_of_all_global_headers_are_bounded() {
        let parse = |content: &[u8]| Extended::parse(content, b"g").unwrap();
        let mut global = parse(&many(GLOBAL_RECORDS_MAX, "k", "v"));
        // The same keys again are no more records.
        global
            .extend(parse(&many(GLOBAL_RECORDS_MAX, "k", "w")), b"g")
            .unwrap();
        let error = global.extend(parse(b"6 a=1\n"), b"g").unwrap_err();
        assert!(
            matches!(error, ArchiveError::TooMany { count: 1025, .. }),
            "{error}"
        );
        let mut global = Extended::default();
        let error = global
            .extend(parse(&many(100, "k", &"v".repeat(1000))), b"g")
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("g: has 100700 bytes of records"),
            "{error}"
        );
    }

    #[test]
    fn the_names_of_attributes_are_bounded_as_in_linux() {
        // Each name is `user.` with six digits and a NUL: 12 bytes.
        let xattrs = |count| {
            with(&many(count, "SCHILY.xattr.user.", "v"), |records| {
                records.xattrs(b"f").map(|xattrs| xattrs.len())
            })
        };
        assert_eq!(xattrs(5461).unwrap(), 5461);
        let error = xattrs(5462).unwrap_err();
        assert!(
            matches!(error, ArchiveError::TooMany { count: 65_544, .. }),
            "{error}"
        );
    }

    #[test]
    fn an_empty_acl_is_none() {
        let xattrs = with(b"23 SCHILY.acl.default=\n", |records| records.xattrs(b"d"));
        assert_eq!(xattrs.unwrap(), []);
    }

    #[test]
    fn attributes_of_libarchive_are_decoded() {
        let text = b"39 LIBARCHIVE.xattr.user.a%3Db=aGVsbG8\n";
        assert_eq!(text.len(), 39);
        let expected = (b"user.a=b".to_vec(), b"hello".to_vec());
        let xattrs = with(text, |records| records.xattrs(b"f"));
        assert_eq!(xattrs.unwrap(), [expected]);
        assert_eq!(base64(b"aGVsbA==").unwrap(), b"hell");
        assert_eq!(base64(b"a"), None);
        assert_eq!(base64(b"a*bc"), None);
    }
}
