//! The declarations of all options of mkfs, and texts made from them.

use std::fmt::Write;

use super::{MkfsOptionError, MkfsOptions, btrfs, ext4, generic};
use crate::Kind;
use crate::options::table::Part;

/// An option of mkfs.
#[derive(Debug)]
pub struct MkfsOption {
    /// Letter: `-L`.
    pub short: Option<char>,
    /// Word: `--label`.
    pub long: Option<&'static str>,
    /// A further letter.
    pub short_alias: Option<char>,
    /// A further word.
    pub alias: Option<&'static str>,
    /// The form of the value.
    pub form: Form,
    /// The meaning for each format with this option.
    pub meanings: &'static [Meaning],
}

/// The form of an option's value. The text is a placeholder, or the values separated by `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing.
    Alone,
    /// A value.
    Value(&'static str),
    /// Values, separated by commas.
    List(&'static str),
}

/// Applies an option with its value. The name is for errors.
pub(super) type Take = fn(&mut MkfsOptions, &str, &str) -> Result<(), MkfsOptionError>;

/// The meaning of an option.
#[derive(Debug)]
pub struct Meaning {
    /// The format; `None`: every format.
    pub of: Option<Kind>,
    /// The explanation in the help.
    pub text: &'static str,
    /// The behaviour without the option.
    pub default: Option<&'static str>,
    take: Take,
}

impl Meaning {
    pub(super) const fn of(kind: Kind, text: &'static str, take: Take) -> Self {
        Self {
            of: Some(kind),
            ..Self::all(text, take)
        }
    }

    pub(super) const fn all(text: &'static str, take: Take) -> Self {
        Self {
            of: None,
            text,
            default: None,
            take,
        }
    }

    pub(super) const fn default(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    /// Text and default.
    fn explained(&self) -> String {
        match self.default {
            Some(default) => format!("{} [default: {default}]", self.text),
            None => self.text.to_owned(),
        }
    }
}

/// All options; common ones first.
pub fn all() -> impl Iterator<Item = &'static MkfsOption> {
    generic::OPTIONS
        .iter()
        .chain(btrfs::OPTIONS)
        .chain(ext4::OPTIONS)
}

/// The option with this name, long or short, without dashes.
#[must_use]
pub fn find(name: &str) -> Option<&'static MkfsOption> {
    let mut chars = name.chars();
    let letter = chars.next().filter(|_| chars.next().is_none());
    all().find(|option| {
        let words = [option.long, option.alias];
        let letters = [option.short, option.short_alias];
        words.contains(&Some(name)) || (letter.is_some() && letters.contains(&letter))
    })
}

impl MkfsOption {
    pub(super) const fn new(
        short: Option<char>,
        long: Option<&'static str>,
        form: Form,
        meanings: &'static [Meaning],
    ) -> Self {
        Self {
            short,
            long,
            short_alias: None,
            alias: None,
            form,
            meanings,
        }
    }

    /// The meaning for a format.
    #[must_use]
    pub fn meaning(&self, kind: Kind) -> Option<&'static Meaning> {
        let means = |meaning: &&Meaning| meaning.of.is_none_or(|of| of == kind);
        self.meanings.iter().find(means)
    }

    /// The name with dashes for errors, as the tools of the format write it.
    #[must_use]
    pub fn name(&self) -> String {
        let letter = self.short.map(|letter| format!("-{letter}"));
        let word = self.long.map(|word| format!("--{word}"));
        let of_ext4 = matches!(
            self.meanings,
            [Meaning {
                of: Some(Kind::Ext4),
                ..
            }]
        );
        let several = self.meanings.len() > 1;
        if of_ext4 || several {
            letter.or(word)
        } else {
            word.or(letter)
        }
        .unwrap_or_default()
    }

    /// Its names and value, as a manual page shows them.
    #[must_use]
    pub fn usage(&self) -> String {
        let letters = [self.short, self.short_alias].into_iter().flatten();
        let words = [self.long, self.alias].into_iter().flatten();
        let names: Vec<String> = letters
            .map(|letter| format!("-{letter}"))
            .chain(words.map(|word| format!("--{word}")))
            .collect();
        match self.form {
            Form::Alone => names.join(", "),
            Form::Value(value) | Form::List(value) => format!("{} {value}", names.join(", ")),
        }
    }

    /// The explanation in the help.
    #[must_use]
    pub fn help(&self) -> String {
        let explained = self.meanings.iter().map(|meaning| match meaning.of {
            Some(kind) => format!("{kind}: {}", meaning.explained()),
            None => capitalized(&meaning.explained()),
        });
        explained.collect::<Vec<_>>().join("; ")
    }

    /// Takes it into `options`.
    ///
    /// # Errors
    /// The format lacks it, or the value makes no sense.
    pub fn take(
        &self,
        options: &mut MkfsOptions,
        value: Option<&str>,
    ) -> Result<(), MkfsOptionError> {
        let name = self.name();
        let Some(meaning) = self.meaning(options.kind) else {
            return Err(MkfsOptionError::Foreign {
                option: name,
                kind: options.kind,
            });
        };
        match (self.form, value) {
            (Form::Alone, None) => (meaning.take)(options, &name, ""),
            (Form::Value(_), Some(value)) => (meaning.take)(options, &name, value),
            (Form::List(_), Some(values)) => values
                .split(',')
                .try_for_each(|value| (meaning.take)(options, &name, value)),
            (_, None) => Err(MkfsOptionError::NoValue(name)),
            (Form::Alone, Some(value)) => Err(bad(&name, value)),
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase());
    first.into_iter().flatten().chain(chars).collect()
}

/// An option whose value makes no sense.
pub(super) fn bad(option: &str, value: &str) -> MkfsOptionError {
    MkfsOptionError::BadValue {
        option: option.to_owned(),
        value: value.to_owned(),
    }
}

/// The parts of the table with their titles.
fn parts() -> [(&'static str, &'static [MkfsOption]); 3] {
    [
        ("every format", generic::OPTIONS),
        ("btrfs", btrfs::OPTIONS),
        ("ext4", ext4::OPTIONS),
    ]
}

/// All options as lists of usage and explanation, by format.
#[must_use]
pub fn as_list() -> Vec<Part> {
    let row = |option: &MkfsOption| {
        let explained = option.meanings.iter().map(|meaning| {
            let of = meaning.of.filter(|_| option.meanings.len() > 1);
            let of = of.map_or_else(String::new, |kind| format!("{kind}: "));
            format!("{of}{}", meaning.explained())
        });
        (option.usage(), explained.collect())
    };
    let part = |(of, options): (&str, &[MkfsOption])| Part {
        of: format!("Options of {of}"),
        options: options.iter().map(row).collect(),
    };
    parts().into_iter().map(part).collect()
}

/// The output of `sapwood mkfs-options`.
#[must_use]
pub fn as_text() -> String {
    Part::as_text(&as_list())
}

/// The page `docs/mkfs-options.md`.
#[must_use]
pub fn as_markdown() -> String {
    let mut text = String::from(
        "# Options of mkfs\n\n    sapwood mkfs -t ext4 --size 10G -L data disk.img\n\n\
         `ImageBuilder::option` takes the same names. [images.md](images.md) fills an image.\n\n\
         Generated by `sapwood mkfs-options --markdown` from `crates/sapwood/src/mkfs`.\n",
    );
    let escaped = |text: &str| text.replace('|', "\\|");
    for (of, options) in parts() {
        let _ = write!(
            text,
            "\n## Of {of}\n\n| option | | default |\n|---|---|---|\n"
        );
        for option in options {
            for meaning in option.meanings {
                let of = meaning.of.filter(|_| option.meanings.len() > 1);
                let of = of.map_or_else(String::new, |kind| format!("{kind}: "));
                let _ = writeln!(
                    text,
                    "| `{}` | {of}{} | {} |",
                    escaped(&option.usage()),
                    escaped(meaning.text),
                    meaning.default.unwrap_or_default()
                );
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_declarations() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mkfs-options.md");
        assert_eq!(
            std::fs::read_to_string(page).unwrap_or_default(),
            as_markdown(),
            "run `sapwood mkfs-options --markdown >docs/mkfs-options.md`"
        );
    }

    #[test]
    fn no_name_is_declared_twice() {
        let mut names = Vec::new();
        for option in all() {
            let letters = [option.short, option.short_alias].into_iter().flatten();
            names.extend(letters.map(String::from));
            let words = [option.long, option.alias].into_iter().flatten();
            names.extend(words.map(str::to_owned));
        }
        for name in &names {
            assert!(find(name).is_some(), "{name}");
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
