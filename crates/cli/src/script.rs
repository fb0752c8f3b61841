//! Lines of a script and of a shell: words and texts.
//!
//! A line has the words of a command, quoted as in a shell. If the last word is `<<END`, the lines
//! until `END` are the standard input of the command. A line that begins with `[` or `{` is JSON:
//! the words as an array, or an object with the words as `args` and the text as `input`. Empty
//! lines and lines that begin with `#` have no effect.

use serde::Deserialize;

/// Most bytes of a script.
pub(crate) const MOST: u64 = 64 << 20;
/// Most words of a line.
const MOST_WORDS: usize = 10_000;

/// A command of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Number of its first line.
    pub(crate) number: usize,
    /// The words of the command.
    pub(crate) words: Vec<String>,
    /// The standard input of the command.
    pub(crate) input: Option<Vec<u8>>,
}

/// A line that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    number: usize,
    why: String,
}

impl Wrong {
    pub(crate) fn new(number: usize, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { number, why }
    }
}

impl Wrong {
    /// The reason, without the number of the line.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.number, self.why)
    }
}

const HERE: &str = "<<WORD has to be the last word of a line";
const NO_COMMAND: &str = "<<WORD needs a command before it";
const QUOTE: &str = "a quotation mark has no pair";
const JSON: &str =
    "the JSON of a command is [\"COMMAND\", ...] or {\"args\": [...], \"input\": TEXT}";

fn too_many(number: usize) -> Wrong {
    Wrong::new(number, format!("more than {MOST_WORDS} words"))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Object {
    Words(Vec<String>),
    Command {
        args: Vec<String>,
        input: Option<String>,
    },
}

/// A command whose text may follow.
#[derive(Debug)]
pub(crate) struct Begun {
    /// The command, without a text that follows.
    pub(crate) line: Line,
    /// The line that ends the text.
    pub(crate) end: Option<String>,
}

/// The commands of a script.
pub(crate) fn parse(script: &str) -> Result<Vec<Line>, Wrong> {
    let mut commands = Vec::new();
    let mut lines = (1..).zip(script.lines());
    while let Some((number, line)) = lines.next() {
        let Some(Begun { mut line, end }) = begin(number, line)? else {
            continue;
        };
        if let Some(end) = end {
            line.input = Some(text(number, &end, &mut lines)?);
        }
        commands.push(line);
    }
    Ok(commands)
}

/// The command that a line has or begins; `None` for an empty line and a comment.
pub(crate) fn begin(number: usize, line: &str) -> Result<Option<Begun>, Wrong> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if line.starts_with(['[', '{']) {
        let line = json(number, line)?;
        return Ok(Some(Begun { line, end: None }));
    }
    let mut words = split(number, line)?;
    let mut end = None;
    let here = words
        .iter()
        .position(|word| !word.quoted && word.text.starts_with("<<"));
    if let Some(at) = here {
        let last = words.pop();
        let word = last.as_ref().and_then(|word| word.text.strip_prefix("<<"));
        let word = word.filter(|word| at == words.len() && !word.is_empty());
        let word = word.ok_or_else(|| Wrong::new(number, HERE))?;
        if words.is_empty() {
            return Err(Wrong::new(number, NO_COMMAND));
        }
        end = Some(word.to_owned());
    }
    let words = words.into_iter().map(|word| word.text).collect();
    let line = Line {
        number,
        words,
        input: None,
    };
    Ok(Some(Begun { line, end }))
}

/// The text until the line `word`.
fn text<'s>(
    number: usize,
    word: &str,
    lines: &mut impl Iterator<Item = (usize, &'s str)>,
) -> Result<Vec<u8>, Wrong> {
    let mut text = Vec::new();
    for (_, line) in lines {
        if line == word {
            return Ok(text);
        }
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
    Err(unended(number, word))
}

/// The error of a text that the line `word` does not end.
pub(crate) fn unended(number: usize, word: &str) -> Wrong {
    Wrong::new(number, format!("no line {word:?} ends its text"))
}

fn json(number: usize, line: &str) -> Result<Line, Wrong> {
    let (words, input) = match serde_json::from_str(line) {
        Ok(Object::Words(words)) => (words, None),
        Ok(Object::Command { args, input }) => (args, input),
        Err(_) => return Err(Wrong::new(number, JSON)),
    };
    if words.is_empty() {
        return Err(Wrong::new(number, JSON));
    }
    if words.len() > MOST_WORDS {
        return Err(too_many(number));
    }
    Ok(Line {
        number,
        words,
        input: input.map(String::into_bytes),
    })
}

/// A word of a line.
#[derive(Default)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Whether a part of it was quoted.
    quoted: bool,
}

/// The words of a line. A `#` that begins a word begins a comment.
pub(crate) fn split(number: usize, line: &str) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '\t' => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                word.quoted = true;
                let end = quoted(char, &mut chars, &mut word.text);
                end.ok_or_else(|| Wrong::new(number, QUOTE))?;
            }
            '\\' => {
                let word = word.get_or_insert_default();
                word.quoted = true;
                let next = chars.next();
                let next =
                    next.ok_or_else(|| Wrong::new(number, "nothing follows the backslash"))?;
                word.text.push(next);
            }
            char => word.get_or_insert_default().text.push(char),
        }
        if words.len() > MOST_WORDS {
            return Err(too_many(number));
        }
    }
    words.extend(word);
    if words.len() > MOST_WORDS {
        return Err(too_many(number));
    }
    Ok(words)
}

/// Adds the text until the closing mark. In double quotes a backslash protects `"` and `\`.
fn quoted(mark: char, chars: &mut std::str::Chars<'_>, text: &mut String) -> Option<()> {
    loop {
        match chars.next()? {
            char if char == mark => return Some(()),
            '\\' if mark == '"' => match chars.next()? {
                char @ ('"' | '\\') => text.push(char),
                char => text.extend(['\\', char]),
            },
            char => text.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(script: &str) -> Vec<Vec<String>> {
        let lines = parse(script).unwrap();
        lines.into_iter().map(|line| line.words).collect()
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        assert_eq!(words("rm  a\tb # c\n\n # d\n"), [["rm", "a", "b"]]);
        assert_eq!(
            words(r#"rm 'a "b' "c 'd\" \\ \n" e\ f ''"#),
            [["rm", "a \"b", "c 'd\" \\ \\n", "e f", ""]]
        );
        assert_eq!(words("rm a#b '#'"), [["rm", "a#b", "#"]]);
        let wrong = |script: &str| parse(script).unwrap_err().to_string();
        assert_eq!(wrong("rm 'a"), "line 1: a quotation mark has no pair");
        assert_eq!(wrong("\nrm \\"), "line 2: nothing follows the backslash");
    }

    #[test]
    fn a_text_follows_its_line() {
        let lines = parse("write :/a <<END\n one\n#two\nEND\nrm '<<x'\n").unwrap();
        assert_eq!(lines[0].input.as_deref(), Some(&b" one\n#two\n"[..]));
        assert_eq!(lines[0].words, ["write", ":/a"]);
        assert_eq!((lines[1].number, lines[1].words[1].as_str()), (5, "<<x"));
        for script in ["write <<E :/a\nE\n", "write :/a <<\n"] {
            assert_eq!(parse(script).unwrap_err(), Wrong::new(1, HERE));
        }
        let unended = parse("write :/a <<E\nEE\n").unwrap_err().to_string();
        assert_eq!(unended, "line 1: no line \"E\" ends its text");
    }

    #[test]
    fn json_lines_have_words_or_words_and_a_text() {
        let lines =
            parse("[\"rm\", \"a b\"]\n{\"args\": [\"write\", \":/x\"], \"input\": \"y\"}\n");
        let lines = lines.unwrap();
        assert_eq!(lines[0].words, ["rm", "a b"]);
        assert_eq!(lines[1].input.as_deref(), Some(&b"y"[..]));
        assert_eq!(parse(" <<END\nEND").unwrap_err(), Wrong::new(1, NO_COMMAND));
        for wrong in ["[1]", "{\"args\": 1}", "[]", "{", "[\"rm\"] x"] {
            assert_eq!(parse(wrong).unwrap_err(), Wrong::new(1, JSON), "{wrong}");
        }
    }
}
