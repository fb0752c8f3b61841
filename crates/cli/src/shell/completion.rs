//! Completion of a line: commands, options, paths in the image and of this machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use sapwood::FileSystem;

use super::{COMMANDS, OWN};
use crate::{complete, output, session};

/// Candidates at most; with more of them nothing is completed.
const MOST: usize = 5000;

/// A command, for the completion of its words.
struct Known {
    name: String,
    options: Vec<String>,
    /// The commands below it.
    below: Vec<Known>,
}

impl Known {
    fn new(command: &clap::Command) -> Self {
        let options = command.get_arguments();
        let options = options.filter(|arg| !arg.is_hide_set() && !arg.is_global_set());
        let options = options.filter_map(|arg| arg.get_long());
        Self {
            name: command.get_name().to_owned(),
            options: options.map(|long| format!("--{long}")).collect(),
            below: command.get_subcommands().map(Self::new).collect(),
        }
    }
}

/// The completions of a shell.
pub(super) struct Completion {
    fs: FileSystem,
    known: Vec<Known>,
    /// Whether the line is a command, not a text.
    pub(super) active: bool,
}

impl Completion {
    /// The completions of a shell in `fs`, with the commands of the command line.
    pub(super) fn new(fs: FileSystem, command_line: &clap::Command) -> Self {
        let commands = COMMANDS.iter();
        let found = commands.filter_map(|name| command_line.find_subcommand(name));
        Self {
            fs,
            known: found.map(Known::new).collect(),
            active: true,
        }
    }

    fn candidates(&self, words: &Words) -> Vec<Pair> {
        let word = words.last.as_str();
        let Some(first) = words.before.first() else {
            let own = OWN.iter().map(|(name, ..)| *name);
            return fixed(word, own.chain(COMMANDS));
        };
        match first.as_str() {
            "help" => return fixed(word, COMMANDS.into_iter()),
            "cd" => return self.in_image(word, true),
            "lcd" => return of_machine(word, true),
            _ => {}
        }
        let Some(known) = self.known.iter().find(|known| known.name == *first) else {
            return Vec::new();
        };
        let second = words.before.get(1);
        let below = second.and_then(|name| known.below.iter().find(|one| one.name == *name));
        if !known.below.is_empty() && second.is_none() {
            return fixed(word, known.below.iter().map(|one| one.name.as_str()));
        }
        if word.starts_with('-') {
            let options = &below.unwrap_or(known).options;
            return fixed(word, options.iter().map(String::as_str));
        }
        let operands = words.before.iter().skip(1);
        let is_first = operands.filter(|word| !word.starts_with('-')).count() == 0;
        let of_host = match first.as_str() {
            "cp" => true,
            "untar" => is_first,
            _ => false,
        };
        if of_host && !word.starts_with(':') {
            of_machine(word, false)
        } else {
            self.in_image(word, false)
        }
    }

    /// The paths in the image that continue a word.
    fn in_image(&self, word: &str, only_dirs: bool) -> Vec<Pair> {
        let colon = usize::from(word.starts_with(':'));
        let (head, begin) = split_path(word, colon);
        let dir = head.get(colon..).unwrap_or_default();
        let Some(dir) = session::path(OsStr::new(dir)) else {
            return Vec::new();
        };
        let dir = Path::new("/").join(OsStr::from_bytes(&dir));
        let names = complete::names(&self.fs, &dir, begin.as_bytes());
        let names = names.into_iter().flatten().take(MOST + 1);
        let names = names.map(|(name, kind)| {
            let path = dir.join(OsStr::from_bytes(&name));
            let is_dir = if kind.is_symlink() {
                self.fs.metadata(path).is_ok_and(|found| found.is_dir())
            } else {
                kind.is_dir()
            };
            (name, is_dir)
        });
        pairs(
            word,
            head,
            names.filter(|(_, is_dir)| *is_dir || !only_dirs),
        )
    }
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let words = line.get(..pos).filter(|_| self.active).map(Words::of);
        Ok(match words {
            Some(words) => (words.start, self.candidates(&words)),
            None => (pos, Vec::new()),
        })
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

/// The names of a list that begin with a word.
fn fixed<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Vec<Pair> {
    let fitting = names.filter(|name| name.starts_with(word));
    let mut fitting: Vec<&str> = fitting.collect();
    fitting.sort_unstable();
    fitting.dedup();
    let pair = |name: &str| Pair {
        display: name.to_owned(),
        replacement: format!("{name} "),
    };
    fitting.into_iter().map(pair).collect()
}

/// The paths of this machine that continue a word.
fn of_machine(word: &str, only_dirs: bool) -> Vec<Pair> {
    let (head, begin) = split_path(word, 0);
    let dir = if head.is_empty() { "." } else { head };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let fitting = entries.filter_map(|entry| {
        let name = entry.file_name().as_bytes().to_vec();
        let fits = complete::fits(&name, begin.as_bytes());
        let is_dir = || entry.path().is_dir();
        fits.then(|| (name, is_dir()))
    });
    let fitting = fitting.filter(|(_, is_dir)| *is_dir || !only_dirs);
    pairs(word, head, fitting.take(MOST + 1))
}

/// The directories of a path and the begin of its last name, from a byte on.
fn split_path(word: &str, from: usize) -> (&str, &str) {
    let slash = word.rfind('/').map_or(from, |at| at + 1);
    word.split_at(slash)
}

/// The candidates of names in the directory that `head` names. A name that cannot be typed is only
/// shown: it leaves the word as it is.
fn pairs(word: &str, head: &str, names: impl Iterator<Item = (Vec<u8>, bool)>) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (name, is_dir) in names {
        if pairs.len() == MOST {
            return Vec::new();
        }
        let end = if is_dir { '/' } else { ' ' };
        let typed = std::str::from_utf8(&name).ok();
        let typed = typed.filter(|name| !name.contains(char::is_control));
        let replacement = match typed {
            Some(name) => {
                // Without a directory the name would be an option or, with a colon, in the image.
                let here = head.is_empty() && name.starts_with(['-', ':']);
                let here = if here { "./" } else { "" };
                format!("{}{end}", quoted(&format!("{here}{head}{name}")))
            }
            None => quoted(word),
        };
        let display = format!("{}{}", output::name(&name), if is_dir { "/" } else { "" });
        pairs.push(Pair {
            display,
            replacement,
        });
    }
    pairs.sort_by(|one, other| one.display.cmp(&other.display));
    pairs
}

/// A word as it is typed.
fn quoted(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for (at, char) in word.char_indices() {
        let special = matches!(char, ' ' | '\t' | '\'' | '"' | '\\')
            || (at == 0 && matches!(char, '#' | '<'));
        if special {
            text.push('\\');
        }
        text.push(char);
    }
    text
}

/// The words of a line until the cursor.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    /// The complete words.
    before: Vec<String>,
    /// The word at the cursor, without quotation marks.
    last: String,
    /// Its first byte.
    start: usize,
}

impl Words {
    fn of(line: &str) -> Self {
        let mut words = Self {
            before: Vec::new(),
            last: String::new(),
            start: line.len(),
        };
        let (mut quote, mut escaped, mut inside) = (None, false, false);
        for (at, char) in line.char_indices() {
            let blank = matches!(char, ' ' | '\t') && quote.is_none() && !escaped;
            if blank {
                if inside {
                    words.before.push(std::mem::take(&mut words.last));
                }
                inside = false;
                continue;
            }
            if !inside {
                (inside, words.start) = (true, at);
            }
            match (char, quote) {
                (_, _) if escaped => {
                    words.last.push(char);
                    escaped = false;
                }
                ('\\', None | Some('"')) => escaped = true,
                ('\'' | '"', None) => quote = Some(char),
                (mark, Some(open)) if mark == open => quote = None,
                _ => words.last.push(char),
            }
        }
        if !inside {
            words.start = line.len();
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_at_the_cursor_may_be_quoted() {
        for (line, before, last, start) in [
            ("", &[][..], "", 0),
            ("ls", &[], "ls", 0),
            ("ls ", &["ls"], "", 3),
            ("cp  a\\ b :c", &["cp", "a b"], ":c", 9),
            ("cat 'a b/c", &["cat"], "a b/c", 4),
            ("cat \"a \\\" b\" x\\ ", &["cat", "a \" b"], "x ", 13),
        ] {
            let before = before.iter().map(|word| (*word).to_owned()).collect();
            let last = last.to_owned();
            let wanted = Words {
                before,
                last,
                start,
            };
            assert_eq!(Words::of(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_typed_is_only_shown() {
        let names = [
            (b"a\x1b[2Jb".to_vec(), false),
            (b"a\xff".to_vec(), true),
            (b"a b".to_vec(), false),
        ];
        let found = pairs("d/a", "d/", names.into_iter());
        let found: Vec<_> = found
            .iter()
            .map(|pair| (pair.display.as_str(), pair.replacement.as_str()))
            .collect();
        let wanted = [
            ("a b", "d/a\\ b "),
            ("a\\u{1b}[2Jb", "d/a"),
            ("a\\xff/", "d/a"),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_completed_name_is_no_option_and_no_path_of_the_other_side() {
        for (head, name, wanted) in [
            ("", "-r", "./-r "),
            ("", ":a", "./:a "),
            ("d/", "-r", "d/-r "),
            (":", "-r", ":-r "),
            ("", "a", "a "),
        ] {
            let names = [(name.as_bytes().to_vec(), false)];
            let found = pairs("", head, names.into_iter());
            assert_eq!(found[0].replacement, wanted);
        }
    }

    #[test]
    fn a_typed_word_is_read_as_it_was() {
        for word in ["a b", "#x", "<<E", "it's", "a\\b", "\"", "\u{e9}*[?"] {
            let line = format!("cat {}", quoted(word));
            let begun = crate::script::begin(1, &line).unwrap().unwrap();
            assert_eq!(begun.line.words, ["cat", word]);
            assert_eq!(Words::of(&line).last, word);
        }
    }
}
