//! Names in a FAT directory: each has a short one (8.3), and most have a long one next to it.

use std::collections::{HashMap, HashSet};

use super::geometry::ENTRY;

/// UTF-16 units of a long name in a directory entry, and where they are in it.
const UNITS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
/// Most UTF-16 units of a long name.
const LONGEST: usize = 255;
/// Attribute of an entry with a part of a long name.
const LONG: u8 = 0x0f;
/// Flag of the last part of a long name, which comes first.
const LAST: u8 = 0x40;

/// A name as a directory stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredName {
    /// Base and extension, filled up with spaces.
    pub(super) short: [u8; 11],
    /// UTF-16 units; empty if the short name is the name.
    long: Vec<u16>,
}

/// The short names of a directory so far.
#[derive(Debug, Default)]
pub(super) struct ShortNames {
    taken: HashSet<[u8; 11]>,
    /// The number that the next name with this start gets.
    next: HashMap<[u8; 11], u32>,
}

/// Why a name cannot be stored; `None` if it can.
pub(super) fn flaw(name: &str) -> Option<&'static str> {
    let forbidden = |char: char| char.is_control() || "\"*/:<>?\\|".contains(char);
    if name.contains(forbidden) {
        Some("FAT has no names with a control character or one of \" * / : < > ? \\ |")
    } else if name.ends_with(['.', ' ']) {
        Some("FAT has no names with a dot or a space at the end")
    } else if name.encode_utf16().count() > LONGEST {
        Some("FAT has no names of more than 255 characters")
    } else {
        None
    }
}

impl ShortNames {
    /// Chooses the short name of a name.
    pub(super) fn store(&mut self, name: &str) -> StoredName {
        let (plain, exact) = shortened(name);
        let fits = exact && self.taken.insert(plain);
        let short = if fits { plain } else { self.numbered(plain) };
        let same = fits && shown(&short) == name;
        StoredName {
            short,
            long: if same {
                Vec::new()
            } else {
                name.encode_utf16().collect()
            },
        }
    }

    /// The short name with `~` and a number at the end of its base.
    fn numbered(&mut self, plain: [u8; 11]) -> [u8; 11] {
        // Names that begin alike share one count, so the search is short.
        let mut start = plain;
        start[2..8].fill(b' ');
        let next = self.next.entry(start).or_insert(1);
        loop {
            let tail = format!("~{next}");
            *next = next.saturating_add(1);
            let mut short = plain;
            let base = &plain[..8];
            let len = base.iter().position(|byte| *byte == b' ').unwrap_or(8);
            let at = len.min(8_usize.saturating_sub(tail.len()));
            short[at..8].fill(b' ');
            for (to, from) in short[at..8].iter_mut().zip(tail.bytes()) {
                *to = from;
            }
            if self.taken.insert(short) {
                return short;
            }
        }
    }
}

/// The name with at most 8 and 3 characters of the short set, and whether that loses nothing but
/// the case.
fn shortened(name: &str) -> ([u8; 11], bool) {
    let stripped = name.trim_start_matches(['.', ' ']);
    let (base, extension) = match stripped.rsplit_once('.') {
        Some((base, extension)) => (base, extension),
        None => (stripped, ""),
    };
    let mut short = [b' '; 11];
    let mut exact = stripped == name && !base.is_empty();
    for (part, range) in [(base, 0..8), (extension, 8..11)] {
        let mut places = short[range].iter_mut();
        for char in part.chars() {
            if matches!(char, ' ' | '.') {
                exact = false;
                continue;
            }
            let allowed = char.is_ascii_alphanumeric() || "!#$%&'()-@^_`{}~".contains(char);
            exact &= allowed;
            let byte = if allowed {
                (char as u8).to_ascii_uppercase()
            } else {
                b'_'
            };
            match places.next() {
                Some(place) => *place = byte,
                None => exact = false,
            }
        }
    }
    (short, exact)
}

/// A short name as it is read.
fn shown(short: &[u8; 11]) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (base, extension) = (part(&short[..8]), part(&short[8..]));
    if extension.is_empty() {
        base
    } else {
        format!("{base}.{extension}")
    }
}

impl StoredName {
    /// Directory entries that it takes, with the one of the file.
    pub(super) fn entries(&self) -> u64 {
        1 + self.long.len().div_ceil(UNITS.len()) as u64
    }

    /// The entries of the long name, which precede the one of the file.
    pub(super) fn long_entries(&self) -> Vec<[u8; ENTRY as usize]> {
        let sum = self.checksum();
        let parts = self.long.chunks(UNITS.len());
        let count = parts.len() as u8;
        let parts = parts.zip(1..=count);
        let entries = parts.rev().map(|(part, number)| {
            let mut entry = [0xff; ENTRY as usize];
            entry[0] = if number == count {
                number | LAST
            } else {
                number
            };
            entry[11] = LONG;
            entry[12] = 0;
            entry[13] = sum;
            entry[26..28].fill(0);
            // A name that ends before its part does has a zero after it.
            let units = part.iter().copied().chain([0]);
            for (at, unit) in UNITS.into_iter().zip(units) {
                entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
            }
            entry
        });
        entries.collect()
    }

    /// The checksum that ties a long name to its short name.
    fn checksum(&self) -> u8 {
        self.short
            .iter()
            .fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(names: &[&str]) -> Vec<String> {
        let mut all = ShortNames::default();
        let stored = names.iter().map(|name| shown(&all.store(name).short));
        stored.collect()
    }

    #[test]
    fn short_names_are_different() {
        assert_eq!(
            short(&[
                "BOOTX64.EFI",
                "loader.conf",
                "A very long name.txt",
                "A very long word.txt"
            ]),
            [
                "BOOTX64.EFI",
                "LOADER~1.CON",
                "AVERYL~1.TXT",
                "AVERYL~2.TXT"
            ]
        );
        assert_eq!(short(&["kernel", "ü.x"]), ["KERNEL", "_~1.X"]);
        assert_eq!(
            short(&[".hidden", "a.b.c", "x+y"]),
            ["HIDDEN~1", "AB~1.C", "X_Y~1"]
        );
        let many: Vec<String> = (0..3000).map(|at| format!("same start {at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let unique: HashSet<String> = short(&many).into_iter().collect();
        assert_eq!(unique.len(), 3000);
    }

    #[test]
    fn only_a_name_of_capitals_has_no_long_one() {
        let mut all = ShortNames::default();
        assert_eq!(all.store("EFI").entries(), 1);
        assert_eq!(all.store("efi2").entries(), 2);
        assert_eq!(all.store(&"x".repeat(13)).entries(), 2);
        assert_eq!(all.store(&"x".repeat(14)).entries(), 3);
        assert_eq!(all.store(&"x".repeat(255)).long_entries().len(), 20);
    }

    #[test]
    fn names_that_fat_has_not_are_found() {
        for name in ["a:b", "a?", "a.", "a ", "a\n", "\u{7f}"] {
            assert!(flaw(name).is_some(), "{name:?}");
        }
        assert!(flaw(&"x".repeat(256)).is_some());
        for name in ["a b", "ünïcode", ".a", "a+b;c"] {
            assert_eq!(flaw(name), None, "{name:?}");
        }
    }
}
