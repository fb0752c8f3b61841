//! SELinux labels by path: the rules of a `file_contexts` file.
//!
//! A rule with a literal path takes precedence over one with an expression. Of several rules the
//! last one counts. An expression is tried only on paths that begin with its literal start, as few
//! of the thousands of rules of a policy concern one path.

use std::collections::HashMap;

use regex::bytes::{Regex, RegexBuilder};

use super::ChangeError;
use crate::vfs::FileKind;

/// Rules in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Contexts {
    literal: HashMap<Vec<u8>, Vec<Rule>>,
    expressions: Vec<Expression>,
}

#[derive(Debug, Clone)]
struct Rule {
    kind: Option<FileKind>,
    /// `None`: no label.
    label: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Expression {
    rule: Rule,
    /// What every path that it matches begins with.
    start: Vec<u8>,
    compiled: Regex,
}

impl Contexts {
    /// Adds the rules of a file.
    ///
    /// # Errors
    /// [`ChangeError::Context`], [`ChangeError::Expression`].
    pub(super) fn add(&mut self, text: &str) -> Result<(), ChangeError> {
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let wrong = || ChangeError::Context {
                line,
                text: text.to_owned(),
            };
            let words: Vec<&str> = text.split_whitespace().collect();
            let (pattern, kind, label) = match words.as_slice() {
                [pattern, label] => (*pattern, None, *label),
                [pattern, kind, label] => {
                    (*pattern, Some(kind_of(kind).ok_or_else(wrong)?), *label)
                }
                _ => return Err(wrong()),
            };
            let label = match label {
                "<<none>>" => None,
                label if label.matches(':').count() >= 2 => Some(label.as_bytes().to_vec()),
                _ => return Err(wrong()),
            };
            let rule = Rule { kind, label };
            match literal(pattern) {
                (start, true) => self.literal.entry(start).or_default().push(rule),
                (start, false) => {
                    let compiled = compile(pattern).map_err(|source| ChangeError::Expression {
                        line,
                        source: Box::new(source),
                    })?;
                    self.expressions.push(Expression {
                        rule,
                        start,
                        compiled,
                    });
                }
            }
        }
        Ok(())
    }

    /// The label of the file at a path relative to the root.
    pub(super) fn find(&self, path: &[u8], kind: FileKind) -> Option<&[u8]> {
        if self.literal.is_empty() && self.expressions.is_empty() {
            return None;
        }
        let path = [b"/", path].concat();
        let fits = |rule: &&Rule| rule.kind.is_none_or(|wanted| wanted == kind);
        let rules = self.literal.get(&path);
        let literal = rules.and_then(|rules| rules.iter().rev().find(fits));
        let rule = literal.or_else(|| {
            let mut last = self.expressions.iter().rev();
            let found = last.find(|one| fits(&&one.rule) && one.matches(&path))?;
            Some(&found.rule)
        });
        rule?.label.as_deref()
    }
}

impl Expression {
    fn matches(&self, path: &[u8]) -> bool {
        path.starts_with(&self.start) && self.compiled.is_match(path)
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&format!("^(?:{text})$"))
        .unicode(false)
        .dot_matches_new_line(true)
        .build()
}

fn kind_of(word: &str) -> Option<FileKind> {
    Some(match word {
        "--" => FileKind::Regular,
        "-d" => FileKind::Directory,
        "-l" => FileKind::Symlink,
        "-c" => FileKind::CharDevice,
        "-b" => FileKind::BlockDevice,
        "-p" => FileKind::Fifo,
        "-s" => FileKind::Socket,
        _ => return None,
    })
}

/// The literal start of an expression, and whether that is all of it.
fn literal(pattern: &str) -> (Vec<u8>, bool) {
    let mut start = Vec::new();
    let mut rest = pattern.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => match rest.next() {
                Some(byte) if !byte.is_ascii_alphanumeric() => start.push(byte),
                _ => return (start, false),
            },
            // Nothing before an alternative is common to all.
            b'|' => return (Vec::new(), false),
            // The character before these may be missing.
            b'?' | b'*' | b'{' => {
                start.pop();
                return (at_top(pattern, start), false);
            }
            b'.' | b'^' | b'$' | b'+' | b'[' | b'(' => return (at_top(pattern, start), false),
            byte => start.push(byte),
        }
    }
    (start, true)
}

/// The start, unless an alternative at the top level of the expression has another one.
fn at_top(pattern: &str, start: Vec<u8>) -> Vec<u8> {
    let mut depth = 0_u32;
    let mut escaped = false;
    for byte in pattern.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => return Vec::new(),
            _ => {}
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_counts_and_literal_paths_take_precedence() {
        let mut contexts = Contexts::default();
        let text = "# comment\n\
            /.*                   system_u:object_r:default_t:s0\n\
            /usr/bin/passwd  --   system_u:object_r:passwd_exec_t:s0\n\
            /usr(/.*)?            system_u:object_r:usr_t:s0\n\
            /usr/lib(64)?/.*\\.so  --  system_u:object_r:lib_t:s0\n\
            /home/[^/]+      -d   system_u:object_r:user_home_dir_t:s0\n\
            /proc                 <<none>>\n\
            /a/x|/b/y             system_u:object_r:ab_t:s0\n";
        contexts.add(text).unwrap();
        let label = |path: &str, kind| {
            let label = contexts.find(path.as_bytes(), kind)?;
            let label = std::str::from_utf8(label).unwrap();
            label.split(':').nth(2)
        };
        use FileKind::{Directory, Regular};
        assert_eq!(label("", Directory), Some("default_t"));
        assert_eq!(label("usr/bin/passwd", Regular), Some("passwd_exec_t"));
        assert_eq!(label("usr/bin/passwd", Directory), Some("usr_t"));
        assert_eq!(label("usr", Directory), Some("usr_t"));
        assert_eq!(label("usr/lib64/a.so", Regular), Some("lib_t"));
        assert_eq!(label("usr/lib/aXso", Regular), Some("usr_t"));
        assert_eq!(label("home/lisa", Directory), Some("user_home_dir_t"));
        assert_eq!(label("home/lisa", Regular), Some("default_t"));
        assert_eq!(label("proc", Directory), None);
        assert_eq!(label("a/x", Regular), Some("ab_t"));
        assert_eq!(label("b/y", Regular), Some("ab_t"));
    }

    #[test]
    fn lines_that_are_no_rules_are_named() {
        let refused = |text: &str| Contexts::default().add(text).unwrap_err().to_string();
        assert!(refused("\n/a").starts_with("line 2: "));
        assert!(refused("/a -x u:o:t").starts_with("line 1: "));
        assert!(refused("/a label").starts_with("line 1: "));
        assert!(refused("/a( u:o:t:s0").contains("unclosed group"));
    }
}
