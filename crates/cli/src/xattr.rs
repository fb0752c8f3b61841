//! `sapwood xattr`: extended attributes.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use sapwood::{ErrorKind, FileSystem};
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::files::{failed, for_each, shown_path};
use super::output::{self, Array};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List the attributes of files
    List {
        #[command(flatten)]
        place: Places,
        /// Show values too
        #[arg(short, long)]
        values: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the value of an attribute
    Get {
        /// Full name, as user.comment
        name: OsString,
        #[command(flatten)]
        place: Places,
        /// Form of the printed value
        #[arg(short, long, value_enum, default_value = "text")]
        encoding: Encoding,
    },
    /// Set an attribute
    Set {
        /// Full name, as user.comment
        name: OsString,
        /// Value; 0x begins a value in hex, 0s one in base64
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        #[command(flatten)]
        place: Places,
        /// Encoding of the value [default: text, or as the prefix 0x or 0s says]
        #[arg(short, long, value_enum)]
        encoding: Option<Encoding>,
    },
    /// Remove an attribute
    Remove {
        /// Full name, as user.comment
        name: OsString,
        #[command(flatten)]
        place: Places,
    },
}

/// The files that are meant.
#[derive(Debug, clap::Args)]
pub(super) struct Places {
    /// Files: IMAGE:PATH; a name may be a pattern
    #[arg(value_name = "PLACE", required = true)]
    pub(super) places: Vec<OsString>,
    /// Use a symbolic link itself, not its target
    #[arg(long)]
    no_dereference: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Encoding {
    /// Text, with escapes for unprintable bytes
    Text,
    /// Hexadecimal digits
    Hex,
    /// Base64
    Base64,
    /// The bytes as they are, without a line end
    Raw,
}

/// An attribute as lists show it.
#[derive(Serialize)]
pub(super) struct Attribute {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
    /// The value, if it is text.
    value: Option<String>,
    /// The value in base64.
    value_base64: String,
    #[serde(skip)]
    shown: String,
}

impl Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// All attributes of a file, of a symbolic link itself, sorted.
pub(super) fn all(fs: &FileSystem, path: &Path) -> Result<Vec<Attribute>> {
    let mut names = fs.xattrs(path).map_err(failed)?;
    names.sort();
    let mut all = Vec::new();
    for name in names {
        let value = fs.xattr(path, &name).map_err(failed)?.unwrap_or_default();
        let shown = format!(
            "{} = {}",
            output::name(name.as_bytes()),
            output::name(&value)
        );
        let (name, name_bytes) = output::json::text(name.as_bytes());
        all.push(Attribute {
            name,
            name_bytes,
            value: std::str::from_utf8(&value).ok().map(str::to_owned),
            value_base64: BASE64.encode(&value),
            shown,
        });
    }
    Ok(all)
}

impl Places {
    fn each(
        &self,
        read_only: bool,
        mut work: impl FnMut(&FileSystem, &Path, bool) -> Result<()>,
    ) -> Result<()> {
        for_each(
            &self.places,
            &self.choice,
            read_only,
            |fs, path, several| {
                let real: PathBuf = if self.no_dereference {
                    path.to_owned()
                } else {
                    fs.canonicalize(path).map_err(failed)?
                };
                work(fs, &real, several)
            },
        )
    }
}

impl Command {
    /// The files that are meant.
    pub(super) fn places(&mut self) -> &mut [OsString] {
        match self {
            Self::List { place, .. }
            | Self::Get { place, .. }
            | Self::Set { place, .. }
            | Self::Remove { place, .. } => &mut place.places,
        }
    }
}

/// A row of `xattr list --json`.
#[derive(Serialize)]
struct Row {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    #[serde(flatten)]
    attribute: Attribute,
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::List {
            place,
            values,
            json,
        } => list(place, *values, *json),
        Command::Get {
            name,
            place,
            encoding,
        } => place.each(true, |fs, path, _| {
            let value = fs.xattr(path, name).map_err(failed)?;
            let value = value.ok_or_else(|| none(path, name))?;
            match encoding {
                Encoding::Text => output::line(output::name(&value)),
                Encoding::Hex => output::line(format!("0x{}", HEXLOWER.encode(&value))),
                Encoding::Base64 => output::line(format!("0s{}", BASE64.encode(&value))),
                Encoding::Raw => output::bytes(&value),
            }
        }),
        Command::Set {
            name,
            value,
            place,
            encoding,
        } => {
            let value = decode(value, *encoding)?;
            place.each(false, |fs, path, _| {
                fs.set_xattr(path, name, &value)
                    .map_err(|error| on(path, name, error))
            })
        }
        Command::Remove { name, place } => place.each(false, |fs, path, _| {
            fs.remove_xattr(path, name)
                .map_err(|error| on(path, name, error))
        }),
    }
}

fn list(place: &Places, values: bool, json: bool) -> Result<()> {
    let mut array = json.then(Array::begin).transpose()?;
    let several = place.places.len() > 1;
    let listed = place.each(true, |fs, path, more| {
        for attribute in all(fs, path)? {
            let head = if several || more {
                format!("{}: ", shown_path(path))
            } else {
                String::new()
            };
            match (&mut array, values) {
                (Some(array), _) => {
                    let shown = super::files::absolute(path);
                    let (path, path_bytes) = output::json::text(shown.as_os_str().as_bytes());
                    array.push(&Row {
                        path,
                        path_bytes,
                        attribute,
                    })?;
                }
                (None, true) => output::line(format!("{head}{attribute}"))?,
                (None, false) => {
                    let name = attribute.shown.split(" = ").next().unwrap_or_default();
                    output::line(format!("{head}{name}"))?;
                }
            }
        }
        Ok(())
    });
    Array::end_if_any(array, listed)
}

fn none(path: &Path, name: &OsStr) -> Failure {
    let name = output::name(name.as_bytes());
    let why = format_args!("no attribute {name}; `sapwood xattr list` shows all");
    Failure::on(shown_path(path), why)
}

fn on(path: &Path, name: &OsStr, error: sapwood::Error) -> Failure {
    match error.kind() {
        ErrorKind::NoAttribute => none(path, name),
        ErrorKind::Unsupported => {
            let name = output::name(name.as_bytes());
            let why = format_args!(
                "{name} cannot be set; a name begins with user., trusted., security. or system."
            );
            Failure::on(shown_path(path), why)
        }
        _ => failed(error),
    }
}

/// The bytes of a value on the command line.
fn decode(value: &OsStr, encoding: Option<Encoding>) -> Result<Vec<u8>> {
    let bytes = value.as_bytes();
    let lower = bytes.get(..2).map(<[u8]>::to_ascii_lowercase);
    let (encoding, rest) = match (encoding, lower.as_deref()) {
        (None | Some(Encoding::Hex), Some(b"0x")) => (Encoding::Hex, bytes.get(2..)),
        (None | Some(Encoding::Base64), Some(b"0s")) => (Encoding::Base64, bytes.get(2..)),
        (given, _) => (given.unwrap_or(Encoding::Text), Some(bytes)),
    };
    let rest = rest.unwrap_or_default();
    let wrong = |what: &str, error: data_encoding::DecodeError| {
        let line = format!("{} is no {what}: {error}", output::name(rest));
        Failure::new(USAGE, line)
    };
    match encoding {
        Encoding::Text | Encoding::Raw => Ok(rest.to_vec()),
        Encoding::Hex => {
            let decoded = HEXLOWER_PERMISSIVE.decode(rest);
            decoded.map_err(|error| wrong("hexadecimal value", error))
        }
        Encoding::Base64 => {
            let decoded = BASE64.decode(rest);
            decoded.map_err(|error| wrong("base64", error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        let decoded = |text: &str, encoding| decode(OsStr::new(text), encoding).ok();
        assert_eq!(decoded("text", None), Some(b"text".to_vec()));
        assert_eq!(decoded("0x00fF", None), Some(vec![0, 255]));
        assert_eq!(decoded("0sAP8=", None), Some(vec![0, 255]));
        assert_eq!(decoded("00ff", Some(Encoding::Hex)), Some(vec![0, 255]));
        assert_eq!(
            decoded("0x00", Some(Encoding::Text)),
            Some(b"0x00".to_vec())
        );
        assert_eq!(decoded("", None), Some(vec![]));
        assert_eq!(decoded("0xf", None), None);
        assert_eq!(decoded("0s!", None), None);
    }
}
