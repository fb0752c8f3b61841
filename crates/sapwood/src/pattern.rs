//! Patterns of file names, with the syntax of a shell.
//!
//! `*` is any text, `?` one character, `[a-z]` one of a set, `[!a-z]` one outside of it, and a
//! backslash takes the next character literally. A bracket that is never closed is literal. Names
//! are bytes: each byte that is not UTF-8 counts as a character of its own.
//!
//! The crates for globs match text only, or let `?` match a byte; names in an image are neither.

/// A character, or a byte that is not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Unit(u32);

/// Bytes that are not UTF-8 follow the last character.
const BYTES: u32 = 0x11_0000;

#[derive(Debug, Clone)]
enum Part {
    /// `*`
    Any,
    /// `?`
    One,
    Literal(Unit),
    Set {
        outside: bool,
        ranges: Vec<(Unit, Unit)>,
    },
}

/// A pattern of one file name.
#[derive(Debug, Clone)]
pub struct Pattern {
    parts: Vec<Part>,
    ignore_case: bool,
}

impl Pattern {
    /// Reads a pattern. Every text is one.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        Self::read(text, false)
    }

    /// Like [`new`](Self::new), ignoring case.
    #[must_use]
    pub fn ignoring_case(text: &[u8]) -> Self {
        Self::read(text, true)
    }

    /// Whether a text contains a character that has a meaning in a pattern.
    #[must_use]
    pub fn is_in(text: &[u8]) -> bool {
        text.iter()
            .any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
    }

    fn read(text: &[u8], ignore_case: bool) -> Self {
        let units = units(text, ignore_case);
        let mut parts = Vec::new();
        let mut rest = units.as_slice();
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            parts.push(match char::from_u32(first.0) {
                Some('*') => Part::Any,
                Some('?') => Part::One,
                Some('[') => match set(after) {
                    Some((set, after)) => {
                        rest = after;
                        set
                    }
                    None => Part::Literal(*first),
                },
                Some('\\') => match after.split_first() {
                    Some((next, after)) => {
                        rest = after;
                        Part::Literal(*next)
                    }
                    None => Part::Literal(*first),
                },
                _ => Part::Literal(*first),
            });
        }
        Self { parts, ignore_case }
    }

    /// Whether the whole name matches.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let name = units(name, self.ignore_case);
        let (mut part, mut at) = (0, 0);
        // The last `*`, and the place in the name after the part that it matched.
        let mut retry: Option<(usize, usize)> = None;
        while at < name.len() || part < self.parts.len() {
            match (self.parts.get(part), name.get(at)) {
                (Some(Part::Any), _) => {
                    retry = Some((part, at));
                    part += 1;
                    continue;
                }
                (Some(one), Some(unit)) if one.takes(*unit) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            let Some((any, taken)) = retry.filter(|(_, taken)| *taken < name.len()) else {
                return false;
            };
            retry = Some((any, taken + 1));
            (part, at) = (any + 1, taken + 1);
        }
        true
    }

    /// Whether the first character is a literal dot: when a path is expanded, only such a pattern
    /// matches a hidden name.
    #[must_use]
    pub fn begins_with_dot(&self) -> bool {
        matches!(self.parts.first(), Some(Part::Literal(Unit(first))) if *first == u32::from('.'))
    }
}

impl Part {
    fn takes(&self, unit: Unit) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Literal(literal) => *literal == unit,
            Self::Set { outside, ranges } => {
                let inside = ranges
                    .iter()
                    .any(|(low, high)| (low..=high).contains(&&unit));
                inside != *outside
            }
        }
    }
}

/// The set after an opening bracket, and the rest of the pattern.
fn set(text: &[Unit]) -> Option<(Part, &[Unit])> {
    let is = |unit: Option<&Unit>, wanted: char| unit == Some(&Unit(u32::from(wanted)));
    let outside = is(text.first(), '!') || is(text.first(), '^');
    let mut at = usize::from(outside);
    let (start, mut ranges) = (at, Vec::new());
    loop {
        // A bracket that comes first is a member.
        if is(text.get(at), ']') && at > start {
            return Some((Part::Set { outside, ranges }, text.get(at + 1..)?));
        }
        if is(text.get(at), '\\') {
            at += 1;
        }
        let low = *text.get(at)?;
        at += 1;
        let range = is(text.get(at), '-') && !is(text.get(at + 1), ']');
        let high = if range { *text.get(at + 1)? } else { low };
        at += if range { 2 } else { 0 };
        ranges.push((low, high));
    }
}

fn units(text: &[u8], ignore_case: bool) -> Vec<Unit> {
    let fold = |char: char| {
        if ignore_case {
            char.to_lowercase().next().unwrap_or(char)
        } else {
            char
        }
    };
    let mut units = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        units.extend(
            chunk
                .valid()
                .chars()
                .map(|char| Unit(u32::from(fold(char)))),
        );
        let bytes = chunk.invalid().iter();
        units.extend(bytes.map(|byte| Unit(BYTES + u32::from(*byte))));
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &[u8]) -> bool {
        Pattern::new(pattern.as_bytes()).matches(name)
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, yes, no) in [
            (
                "*.conf",
                &["a.conf", ".conf", "a.b.conf"][..],
                &["a.conf2", "conf"][..],
            ),
            ("a?c", &["abc", "a\u{e9}c"], &["ac", "abbc"]),
            ("[a-cx]*", &["a", "b1", "x"], &["d", "", "A"]),
            ("[!a-c]", &["d", "\u{e9}"], &["a", "dd", ""]),
            ("[]x]", &["]", "x"], &["", "[]x]"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[ab", &["[ab"], &["a"]),
            ("a\\*b", &["a*b"], &["axb", "a\\*b"]),
            ("a**b*", &["ab", "axxbyy"], &["ax"]),
            ("*a*b*c", &["abc", "xaybzc", "abcabc"], &["abcd", "acb"]),
            ("", &[""], &["a"]),
            ("\\", &["\\"], &[""]),
        ] {
            for name in yes {
                assert!(matches(pattern, name.as_bytes()), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name.as_bytes()), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_no_text_is_a_character() {
        assert!(matches("a?b", b"a\xffb"));
        assert!(!matches("a?b", b"a\xff\xfeb"));
        assert!(Pattern::new(b"\xff*").matches(b"\xffx"));
        assert!(!Pattern::new(b"\xff*").matches("\u{ff}x".as_bytes()));
    }

    #[test]
    fn case_is_ignored_where_asked() {
        let pattern = Pattern::ignoring_case("READ*\u{c9}".as_bytes());
        assert!(pattern.matches("readme\u{e9}".as_bytes()));
        assert!(!Pattern::new(b"READ*").matches(b"readme"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(40) + "b";
        assert!(!matches(&pattern, &[b'a'; 4000]));
    }
}
