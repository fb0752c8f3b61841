//! SELinux labels by path: the rules of a `file_contexts` file.
//!
//! A rule with a literal path takes precedence over one with an expression. Of several rules the
//! last one counts.
//!
//! # How it works
//! A policy has thousands of rules, of which few concern one path. Literal paths are found by their
//! hash. Most expressions are [`Plain`]: they are found by the hash of their literal start. All
//! others together make one automaton. The memory of all rules is bounded.

mod plain;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::ChangeError;
use crate::vfs::FileKind;
use plain::Plain;

/// Most bytes of all files.
const TEXT_MAX: usize = 16 << 20;
/// Most bytes of the automaton, and of the states of it that are kept while it runs.
const AUTOMATON_MAX: usize = 64 << 20;
const STATES_MAX: usize = 16 << 20;

/// Rules in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Contexts {
    literal: HashMap<Vec<u8>, Vec<Rule>>,
    /// Expressions by their literal start.
    plain: HashMap<Vec<u8>, Vec<(Plain, Rule)>>,
    /// Lengths of these starts.
    starts: BTreeSet<usize>,
    /// All other expressions, and their rules.
    others: Vec<String>,
    other_rules: Vec<Rule>,
    automaton: RegexSet,
    labels: HashSet<Arc<[u8]>>,
    /// Number of rules.
    count: usize,
    /// Bytes of the files.
    text: usize,
}

#[derive(Debug, Clone)]
struct Rule {
    /// Its place among all rules.
    order: usize,
    kind: Option<FileKind>,
    /// `None`: no label.
    label: Option<Arc<[u8]>>,
}

impl Rule {
    fn fits(&self, kind: FileKind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
    }
}

impl Contexts {
    /// Adds the rules of a file.
    ///
    /// # Errors
    /// [`ChangeError::Context`], [`ChangeError::Expression`], [`ChangeError::Contexts`].
    pub(super) fn add(&mut self, text: &str) -> Result<(), ChangeError> {
        self.text = self.text.saturating_add(text.len());
        if self.text > TEXT_MAX {
            let (what, limit) = ("the rules", TEXT_MAX);
            return Err(ChangeError::Contexts { what, limit });
        }
        // Lines of the expressions of this file that are not plain.
        let mut lines = Vec::new();
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
                label if label.matches(':').count() >= 2 => Some(self.label(label.as_bytes())),
                _ => return Err(wrong()),
            };
            let order = self.count;
            self.count += 1;
            let rule = Rule { order, kind, label };
            match Plain::parse(pattern) {
                Some((path, plain)) if plain.is_empty() => {
                    self.literal.entry(path).or_default().push(rule);
                }
                Some((start, plain)) => {
                    self.starts.insert(start.len());
                    self.plain.entry(start).or_default().push((plain, rule));
                }
                None => {
                    lines.push(line);
                    self.others.push(anchored(pattern));
                    self.other_rules.push(rule);
                }
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        let set = RegexSetBuilder::new(&self.others)
            .unicode(false)
            .dot_matches_new_line(true)
            .size_limit(AUTOMATON_MAX)
            .dfa_size_limit(STATES_MAX)
            .build();
        self.automaton = set.map_err(|_| self.refused(&lines))?;
        Ok(())
    }

    /// The only copy of a label.
    fn label(&mut self, label: &[u8]) -> Arc<[u8]> {
        if let Some(known) = self.labels.get(label) {
            return Arc::clone(known);
        }
        let new: Arc<[u8]> = label.into();
        self.labels.insert(Arc::clone(&new));
        new
    }

    /// The reason why there is no automaton of all expressions; the last ones are in `lines`.
    fn refused(&self, lines: &[usize]) -> ChangeError {
        let first = self.others.len().saturating_sub(lines.len());
        let added = self.others.iter().skip(first).zip(lines);
        for (expression, line) in added {
            if let Err(source) = compile_anchored(expression) {
                let (line, source) = (*line, Box::new(source));
                return ChangeError::Expression { line, source };
            }
        }
        let (what, limit) = ("the expressions of the rules", AUTOMATON_MAX);
        ChangeError::Contexts { what, limit }
    }

    /// Whether there are no rules.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The label of the file at a path relative to the root.
    pub(super) fn find(&self, path: &[u8], kind: FileKind) -> Option<&[u8]> {
        if self.is_empty() {
            return None;
        }
        let path = [b"/", path].concat();
        let mut rules = self.literal.get(&path).into_iter().flatten().rev();
        let literal = rules.find(|rule| rule.fits(kind));
        let rule = literal.or_else(|| {
            let last = [self.find_plain(&path, kind), self.find_other(&path, kind)];
            last.into_iter().flatten().max_by_key(|rule| rule.order)
        });
        rule?.label.as_deref()
    }

    fn find_plain(&self, path: &[u8], kind: FileKind) -> Option<&Rule> {
        let starts = self.starts.range(..=path.len());
        let found = starts.filter_map(|length| {
            let (start, rest) = path.split_at_checked(*length)?;
            let mut last = self.plain.get(start)?.iter().rev();
            let found = last.find(|(plain, rule)| rule.fits(kind) && plain.matches(rest))?;
            Some(&found.1)
        });
        found.max_by_key(|rule| rule.order)
    }

    fn find_other(&self, path: &[u8], kind: FileKind) -> Option<&Rule> {
        if self.others.is_empty() {
            return None;
        }
        let matched = self.automaton.matches(path);
        let rules = matched.iter().filter_map(|at| self.other_rules.get(at));
        rules
            .filter(|rule| rule.fits(kind))
            .max_by_key(|rule| rule.order)
    }
}

fn anchored(text: &str) -> String {
    format!("^(?:{text})$")
}

fn compile_anchored(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(AUTOMATON_MAX)
        .build()
}

#[cfg(test)]
fn compile(text: &str) -> Result<Regex, regex::Error> {
    compile_anchored(&anchored(text))
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

    #[test]
    fn many_rules_take_little_each() {
        const RULES: usize = 200_000;
        let label = "system_u:object_r:lib_t:s0";
        let rules = (0..RULES).map(|nth| format!("/usr/lib/f{nth}.so(/.*)? {label}\n"));
        let rules: String = rules.collect();
        let mut contexts = Contexts::default();
        contexts.add(&rules).unwrap();
        contexts.add("/usr/lib/f17.so -d a:b:last\n").unwrap();
        // None is compiled, and the label is stored once.
        assert_eq!((contexts.others.len(), contexts.plain.len()), (0, RULES));
        assert_eq!(contexts.labels.len(), 2);
        let find = |path: &str, kind| contexts.find(path.as_bytes(), kind);
        let label = Some(label.as_bytes());
        assert_eq!(find("usr/lib/f0Xso/a", FileKind::Regular), label);
        assert_eq!(find("usr/lib/f199999.so", FileKind::Regular), label);
        assert_eq!(find("usr/lib/f200000.so", FileKind::Regular), None);
        assert_eq!(find("usr/lib/f17.so", FileKind::Regular), label);
        assert_eq!(
            find("usr/lib/f17.so", FileKind::Directory),
            Some(&b"a:b:last"[..])
        );
    }

    #[test]
    fn what_all_rules_take_is_bounded() {
        let refused = |rules: &[String]| {
            let mut contexts = Contexts::default();
            let added = rules.iter().try_for_each(|rules| contexts.add(rules));
            added.unwrap_err().to_string()
        };
        let text = "# a comment\n".repeat(TEXT_MAX / 24);
        let error = refused(&[text.clone(), text.clone(), text]);
        assert_eq!(
            error,
            "the rules of file contexts take more than 16777216 bytes"
        );
        let rules = (0..4000).map(|nth| format!("/{nth}([ab]x){{1000}} u:o:t:s0\n"));
        let error = refused(&[rules.collect()]);
        let expected = "the expressions of the rules of file contexts take more than";
        assert!(error.starts_with(expected), "{error}");
        // One that is too large alone is named.
        let error = refused(&["/a u:o:t:s0\n/([ab]x){1000}{1000}{100} u:o:t:s0\n".to_owned()]);
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
