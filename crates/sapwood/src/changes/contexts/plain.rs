//! Expressions without alternatives and groups, which most rules of a policy are.
//!
//! Such an expression takes a few bytes, where a compiled one takes some thousands.

/// The condition for one byte of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Atom {
    Byte(u8),
    /// `.`
    Any,
    /// `[^/]`
    NotSlash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Once,
    /// `?`
    Optional,
    /// `*`
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    atom: Atom,
    repeat: Repeat,
}

/// Most parts after the literal start: each is a bit of a word, and the end is one more.
const PARTS_MAX: usize = 63;

/// An expression after its literal start.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    parts: Box<[Part]>,
    /// `(/.*)?` is its end.
    below: bool,
}

impl Plain {
    /// Parses an expression into its literal start and the rest. `None` if it has anything but
    /// literals, `.`, `[^/]`, the repetitions of one of them, and `(/.*)?` at its end.
    pub(super) fn parse(pattern: &str) -> Option<(Vec<u8>, Self)> {
        let (text, below) = match pattern.strip_suffix("(/.*)?") {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let mut parts = parts(text.as_bytes())?;
        let literal = |part: &Part| match part {
            Part {
                atom: Atom::Byte(byte),
                repeat: Repeat::Once,
            } => Some(*byte),
            _ => None,
        };
        let start: Vec<u8> = parts.iter().map_while(literal).collect();
        parts.drain(..start.len());
        let parts: Box<[Part]> = parts.into();
        (parts.len() <= PARTS_MAX).then_some((start, Self { parts, below }))
    }

    /// Whether this is the whole expression: its literal start alone.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty() && !self.below
    }

    /// Whether it matches the rest of a path after the literal start.
    pub(super) fn matches(&self, rest: &[u8]) -> bool {
        let end = 1 << self.parts.len();
        // Bit N: the parts before the part N have matched.
        let mut reached = self.skip_optional(1);
        for byte in rest {
            if self.below && reached & end != 0 && *byte == b'/' {
                return true;
            }
            let mut next = 0;
            for (at, part) in self.parts.iter().enumerate() {
                if reached & 1 << at != 0 && part.atom.is(*byte) {
                    next |= match part.repeat {
                        Repeat::Any => 1 << at,
                        _ => 1 << (at + 1),
                    };
                }
            }
            reached = self.skip_optional(next);
            if reached == 0 {
                return false;
            }
        }
        reached & end != 0
    }

    /// Adds the states after parts that may match nothing.
    fn skip_optional(&self, reached: u64) -> u64 {
        let mut all = reached;
        for (at, part) in self.parts.iter().enumerate() {
            if all & 1 << at != 0 && part.repeat != Repeat::Once {
                all |= 1 << (at + 1);
            }
        }
        all
    }
}

impl Atom {
    fn is(self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => byte == wanted,
            Self::Any => true,
            Self::NotSlash => byte != b'/',
        }
    }
}

fn parts(text: &[u8]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((byte, mut after)) = rest.split_first() {
        let atom = match byte {
            b'.' => Atom::Any,
            b'[' => {
                after = after.strip_prefix(b"^/]")?;
                Atom::NotSlash
            }
            b'\\' => {
                let (escaped, behind) = after.split_first()?;
                after = behind;
                let literal = escaped.is_ascii() && !escaped.is_ascii_alphanumeric();
                Atom::Byte(literal.then_some(*escaped)?)
            }
            b'(' | b')' | b'|' | b'^' | b'$' | b'?' | b'*' | b'+' | b'{' => return None,
            byte => Atom::Byte(*byte),
        };
        let repeat = after.first().copied();
        // A character of several bytes is repeated as a whole.
        let of_one = !matches!(atom, Atom::Byte(0x80..));
        let mut push = |repeat| parts.push(Part { atom, repeat });
        match repeat.filter(|byte| matches!(byte, b'?' | b'*' | b'+' | b'{')) {
            None => push(Repeat::Once),
            Some(b'?') if of_one => push(Repeat::Optional),
            Some(b'*') if of_one => push(Repeat::Any),
            Some(b'+') if of_one => {
                push(Repeat::Once);
                push(Repeat::Any);
            }
            _ => return None,
        }
        rest = match repeat {
            Some(b'?' | b'*' | b'+') => after.get(1..).unwrap_or_default(),
            _ => after,
        };
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::*;

    #[test]
    fn it_matches_what_the_regular_expression_does() {
        const ATOMS: [&str; 8] = ["a", "b", "/", "\\.", ".", "[^/]", "\u{e9}", "-"];
        let mut random = fastrand::Rng::with_seed(7);
        let mut matched = 0;
        for _ in 0..3000 {
            let mut pattern = String::from("/");
            for _ in 0..random.usize(..6) {
                pattern += ATOMS[random.usize(..ATOMS.len())];
                if !pattern.ends_with('\u{e9}') {
                    pattern += ["", "", "", "?", "*", "+"][random.usize(..6)];
                }
            }
            pattern += ["", "", "(/.*)?"][random.usize(..3)];
            let regex = compile(&pattern).unwrap();
            let (start, plain) = Plain::parse(&pattern).unwrap();
            for _ in 0..40 {
                let length = random.usize(..7);
                let path: Vec<u8> = (0..length)
                    .map(|_| *random.choice(b"ab/.-\xc3\xa9").unwrap())
                    .collect();
                let path = [b"/", &*path].concat();
                let rest = path.strip_prefix(start.as_slice());
                let found = rest.is_some_and(|rest| plain.matches(rest));
                assert_eq!(
                    found,
                    regex.is_match(&path),
                    "{pattern} {}",
                    path.escape_ascii()
                );
                matched += u32::from(found);
            }
        }
        assert!(matched > 3000, "{matched}");
    }

    #[test]
    fn other_expressions_are_left_to_the_automaton() {
        for pattern in [
            "/a|b", "/(a)?", "/[ab]", "/a{2}", "/\\d", "/a*?", "^/a", "/a$", "/\u{e9}?", "/a(",
        ] {
            assert!(Plain::parse(pattern).is_none(), "{pattern}");
        }
        let long = format!("/.{}", "a".repeat(PARTS_MAX));
        assert!(Plain::parse(&long).is_none());
    }
}
