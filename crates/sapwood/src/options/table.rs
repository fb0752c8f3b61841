//! Mount options, each declared once: its names, the form of its value, the formats that have it,
//! its effect or the reason for refusing it, and the function that applies it.
//!
//! Parsing, the help of `sapwood mount`, `sapwood mount-options`, `docs/mount-options.md` and the
//! error for an option of the other file system follow from these declarations. The tables name
//! every option of `btrfs(5)`, `ext4(5)` and the independent ones of `mount(8)`.

use std::fmt::Write;

use super::{OptionError, Options, bad, btrfs, ext4, generic};
use crate::Kind;

/// A mount option.
#[derive(Debug)]
pub struct MountOption {
    /// The name and its aliases. A trailing `*` matches any suffix.
    pub names: &'static [&'static str],
    /// The form of the value.
    pub form: Form,
    /// The only format with this option; `None`: both have it.
    pub of: Option<Kind>,
    /// Served, accepted or refused.
    pub effect: Effect,
    /// The effect, or the reason for having none or for refusing it.
    pub text: &'static str,
    /// The behaviour without the option.
    pub default: Option<&'static str>,
}

/// The form of an option's value. The text is a placeholder in capitals, or the possible words
/// separated by `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing.
    Alone,
    /// `=` and a value.
    Value(&'static str),
    /// Nothing, or `=` and a value.
    Optional(&'static str),
}

/// Applies an option with its name and value.
pub type Take = fn(&mut Options, &str, Option<&str>) -> Result<(), OptionError>;

/// The effect of an option.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// The option takes effect.
    Served(Take),
    /// The option has no effect, for the reason in its text.
    Accepted,
    /// The option is an error, for the reason in its text.
    Refused,
}

/// All options; common ones first.
pub fn all() -> impl Iterator<Item = &'static MountOption> {
    generic::OPTIONS
        .iter()
        .chain(btrfs::OPTIONS)
        .chain(ext4::OPTIONS)
}

/// The option with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static MountOption> {
    let matches = |declared: &str| match declared.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == declared,
    };
    all().find(|option| option.names.iter().any(|declared| matches(declared)))
}

impl MountOption {
    pub(super) const fn new(
        names: &'static [&'static str],
        form: Form,
        effect: Effect,
        text: &'static str,
    ) -> Self {
        Self {
            names,
            form,
            of: None,
            effect,
            text,
            default: None,
        }
    }

    pub(super) const fn served(
        names: &'static [&'static str],
        form: Form,
        take: Take,
        text: &'static str,
    ) -> Self {
        Self::new(names, form, Effect::Served(take), text)
    }

    pub(super) const fn accepted(
        names: &'static [&'static str],
        form: Form,
        text: &'static str,
    ) -> Self {
        Self::new(names, form, Effect::Accepted, text)
    }

    pub(super) const fn refused(
        names: &'static [&'static str],
        form: Form,
        text: &'static str,
    ) -> Self {
        Self::new(names, form, Effect::Refused, text)
    }

    /// The same option, for one kind of file system only.
    pub(super) const fn of(self, kind: Kind) -> Self {
        Self {
            of: Some(kind),
            ..self
        }
    }

    /// Adds the behaviour without the option.
    pub(super) const fn default(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    /// Takes it into `options`.
    ///
    /// # Errors
    /// The value does not fit, or the option is refused.
    pub(super) fn take(
        &self,
        options: &mut Options,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), OptionError> {
        match (self.form, value) {
            (Form::Alone, Some(_)) | (Form::Value(_), None) => return Err(bad(name, value)),
            _ => {}
        }
        match self.effect {
            Effect::Served(take) => take(options, name, value),
            Effect::Accepted => Ok(()),
            Effect::Refused => Err(unsupported(name, value, self.text)),
        }
    }

    /// Its first name with its value, as it is given.
    #[must_use]
    pub fn usage(&self) -> String {
        let name = self.names.first().copied().unwrap_or_default();
        match self.form {
            Form::Alone => name.to_owned(),
            Form::Value(value) => format!("{name}={value}"),
            Form::Optional(value) => format!("{name}[={value}]"),
        }
    }

    /// The explanation in one line.
    fn explained(&self) -> String {
        let mut text = match self.effect {
            Effect::Served(_) => self.text.to_owned(),
            Effect::Accepted => format!("no effect: {}", self.text),
            Effect::Refused => format!("refused: {}", self.text),
        };
        if let Some(default) = self.default {
            // Writing to a string cannot fail.
            let _ = write!(text, " [default: {default}]");
        }
        if let [_, others @ ..] = self.names
            && !others.is_empty()
        {
            let _ = write!(text, "; also {}", others.join(", "));
        }
        text
    }
}

/// An option that is refused.
pub(super) fn unsupported(name: &str, value: Option<&str>, why: &'static str) -> OptionError {
    OptionError::Unsupported {
        option: match value {
            Some(value) => format!("{name}={value}"),
            None => name.to_owned(),
        },
        why,
    }
}

/// The three parts of the table with their titles.
fn parts() -> [(&'static str, &'static [MountOption]); 3] {
    [
        ("every file system", generic::OPTIONS),
        ("btrfs", btrfs::OPTIONS),
        ("ext2, ext3, ext4", ext4::OPTIONS),
    ]
}

/// The options with an effect, as a help text: a paragraph for each part of the table.
#[must_use]
pub fn summary() -> String {
    let mut text =
        String::from("Options, separated by commas; `sapwood mount-options` explains each");
    for (of, options) in parts() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{of}:");
        let mut before = Form::Alone;
        let served = |option: &&MountOption| matches!(option.effect, Effect::Served(_));
        for option in options.iter().filter(served) {
            // Refers to values that were just listed.
            let usage = match option.form {
                Form::Optional(_) if option.form == before => {
                    format!(
                        "{}[=...]",
                        option.names.first().copied().unwrap_or_default()
                    )
                }
                _ => option.usage(),
            };
            before = option.form;
            let _ = write!(text, " {usage}");
        }
    }
    text
}

/// All options as lists of usage and explanation, by file system.
#[must_use]
pub fn as_list() -> Vec<Part> {
    let row = |option: &MountOption| (option.usage(), vec![option.explained()]);
    let part = |(of, options): (&str, &[MountOption])| Part {
        of: format!("Options of {of}"),
        options: options.iter().map(row).collect(),
    };
    parts().into_iter().map(part).collect()
}

/// A part of a list of options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Title: the owner of the options.
    pub of: String,
    /// Usage of each option, and its explanation in paragraphs.
    pub options: Vec<(String, Vec<String>)>,
}

impl Part {
    /// Parts as one text.
    pub(crate) fn as_text(parts: &[Self]) -> String {
        let mut text = String::new();
        for part in parts {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}:", part.of);
            for (option, paragraphs) in &part.options {
                let _ = writeln!(text, "  {option}");
                for paragraph in paragraphs {
                    let _ = writeln!(text, "        {paragraph}");
                }
            }
        }
        text
    }
}

/// The output of `sapwood mount-options`.
#[must_use]
pub fn as_text() -> String {
    Part::as_text(&as_list())
}

/// The page `docs/mount-options.md`.
#[must_use]
pub fn as_markdown() -> String {
    let mut text = String::from(
        "# Mount options\n\n    sapwood mount -o compress=zstd,noatime disk.img mnt\n\n\
         *Served*: the option takes effect. *Accepted*: no effect. *Refused*: an error.\n\n\
         Generated by `sapwood mount-options --markdown` from `crates/sapwood/src/options`.\n",
    );
    for (of, options) in parts() {
        let _ = write!(text, "\n## Of {of}\n\n| option | | |\n|---|---|---|\n");
        for option in options {
            let effect = match option.effect {
                Effect::Served(_) => "served",
                Effect::Accepted => "accepted",
                Effect::Refused => "refused",
            };
            let others = option.names.iter().skip(1);
            let names: Vec<String> = std::iter::once(option.usage())
                .chain(others.map(|name| (*name).to_owned()))
                .map(|name| format!("`{}`", name.replace('|', "\\|")))
                .collect();
            let default = option
                .default
                .map_or_else(String::new, |default| format!(" Default: {default}."));
            let _ = writeln!(
                text,
                "| {} | {effect} | {}.{default} |",
                names.join(", "),
                option.text.replace('|', "\\|")
            );
        }
    }
    text
}
