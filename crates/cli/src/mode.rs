//! Modes as chmod(1) takes them: octal, or symbolic as `u+rwX,go-w`.

/// A change of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModeChange {
    /// Exactly these bits.
    Exact {
        bits: u32,
        /// A directory loses set-id bits that are not among them: five digits were given.
        all: bool,
    },
    /// Changes one after another.
    Symbolic(Vec<Clause>),
}

/// One operator with its classes and bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clause {
    /// The bits of the named classes, `u`, `g` and `o`: the set-id bit of a class, and the sticky
    /// bit for `o`. All bits if none is named.
    who: u32,
    /// No class is named: the umask limits the bits that are set or cleared.
    unnamed: bool,
    operator: char,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// Letters of `rwxXst`.
    Letters(Vec<char>),
    /// The current bits of a class, given as the shift to them.
    CopyOf(u32),
}

const ALL: u32 = 0o7777;
const SET_ID: u32 = 0o6000;

impl std::str::FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text} is not a mode: octal such as 644, or symbolic such as u+rwX,go-w");
        if text.starts_with(|char: char| char.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).map_err(|_| wrong())?;
            let all = text.len() > 4;
            return if bits <= ALL {
                Ok(Self::Exact { bits, all })
            } else {
                Err(wrong())
            };
        }
        let mut clauses = Vec::new();
        for part in text.split(',') {
            clauses.extend(clauses_of(part).ok_or_else(wrong)?);
        }
        Ok(Self::Symbolic(clauses))
    }
}

/// Reads an octal mode.
///
/// # Errors
/// It is something else.
pub(super) fn octal(text: &str) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let bits = u32::from_str_radix(text, 8).ok();
    bits.filter(|bits| digits && *bits <= ALL)
        .ok_or_else(|| format!("{text} is not an octal mode, such as 644"))
}

fn clauses_of(part: &str) -> Option<Vec<Clause>> {
    let mut chars = part.chars().peekable();
    let (mut who, mut unnamed) = (0, true);
    while let Some(letter) = chars.next_if(|char| "ugoa".contains(*char)) {
        unnamed = false;
        who |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            _ => ALL,
        };
    }
    if unnamed {
        who = ALL;
    }
    let mut clauses = Vec::new();
    while let Some(operator) = chars.next() {
        if !"+-=".contains(operator) {
            return None;
        }
        let copied = chars.next_if(|char| "ugo".contains(*char));
        let what = match copied {
            Some('u') => What::CopyOf(6),
            Some('g') => What::CopyOf(3),
            Some(_) => What::CopyOf(0),
            None => {
                let mut letters = Vec::new();
                while let Some(letter) = chars.next_if(|char| "rwxXst".contains(*char)) {
                    letters.push(letter);
                }
                What::Letters(letters)
            }
        };
        clauses.push(Clause {
            who,
            unnamed,
            operator,
            what,
        });
    }
    (!clauses.is_empty()).then_some(clauses)
}

impl ModeChange {
    /// The mode that `mode` becomes.
    pub(super) fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        match self {
            Self::Exact { bits, all } => {
                if is_dir && !all {
                    bits | (mode & SET_ID)
                } else {
                    *bits
                }
            }
            Self::Symbolic(clauses) => clauses
                .iter()
                .fold(mode, |mode, clause| clause.apply(mode, is_dir, umask)),
        }
    }
}

impl Clause {
    fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let bits = match &self.what {
            What::CopyOf(shift) => (mode >> shift & 7) * 0o111,
            What::Letters(letters) => letters.iter().fold(0, |bits, letter| {
                bits | match letter {
                    'r' => 0o444,
                    'w' => 0o222,
                    'x' => 0o111,
                    'X' if is_dir || mode & 0o111 != 0 => 0o111,
                    's' => SET_ID,
                    't' => 0o1000,
                    _ => 0,
                }
            }),
        };
        let allowed = if self.unnamed { !umask } else { ALL };
        let bits = bits & self.who & allowed;
        match self.operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            _ => {
                // A directory keeps set-id bits that are not named.
                let kept = if is_dir { SET_ID & !bits } else { 0 };
                (mode & !(self.who & !kept)) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, mode: u32, is_dir: bool) -> u32 {
        text.parse::<ModeChange>()
            .unwrap()
            .apply(mode, is_dir, 0o022)
    }

    #[test]
    fn modes_change_as_with_chmod() {
        for (text, before, after) in [
            ("644", 0o4755, 0o644),
            ("u+x", 0o644, 0o744),
            ("+x", 0o644, 0o755),
            ("+w", 0o444, 0o644),
            ("a+w", 0o444, 0o666),
            ("go-rwx", 0o755, 0o700),
            ("u=rw,go=r", 0o777, 0o644),
            ("g=u", 0o740, 0o770),
            ("a+X", 0o644, 0o644),
            ("a+X", 0o744, 0o755),
            ("u+s,g+s", 0o755, 0o6755),
            ("+t", 0o755, 0o1755),
            ("o+t", 0o755, 0o1755),
            ("u+r-w", 0o200, 0o400),
            ("a=", 0o6755, 0),
            ("=r", 0o777, 0o444),
        ] {
            let found = changed(text, before, false);
            assert_eq!(found, after, "{text}: {found:o}");
        }
    }

    #[test]
    fn directories_keep_set_id_bits() {
        assert_eq!(changed("755", 0o2700, true), 0o2755);
        assert_eq!(changed("00755", 0o2700, true), 0o755);
        assert_eq!(changed("g-s", 0o2755, true), 0o755);
        assert_eq!(changed("a+X", 0o600, true), 0o711);
        assert_eq!(changed("g=rx", 0o2777, true), 0o2757);
    }

    #[test]
    fn invalid_modes_are_refused() {
        for text in ["", "8", "77777", "u", "u+q", "u+x,", "x+u", "u+ur"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }
}
