//! Lists as JSON.
//!
//! # How it works
//! A command that lists something prints one array, with an object in each line. A list that
//! failed, even at one of several places, has no closing bracket: no parser takes it for a whole
//! one. A name or path is text; where it is not UTF-8, each wrong byte is U+FFFD in the text, and a
//! further field (`path_bytes`, `name_bytes`, `target_bytes`) has all bytes in base64.

use std::io;

use data_encoding::BASE64;
use serde::Serialize;
use serde_json::ser::Formatter;

use super::stream::line;
use crate::failure::{Failure, Result};

/// An array that is printed while its elements are found.
pub(crate) struct Array {
    /// The last element, which is printed when it is known whether a comma follows.
    last: Option<String>,
}

impl Array {
    /// Prints the beginning.
    pub(crate) fn begin() -> Result<Self> {
        line("[")?;
        Ok(Self { last: None })
    }

    /// Adds an element.
    pub(crate) fn push(&mut self, element: &impl Serialize) -> Result<()> {
        let text = compact(element)?;
        match self.last.replace(text) {
            Some(before) => line(format_args!("{before},")),
            None => Ok(()),
        }
    }

    /// Prints the last element, and the closing bracket if all was listed. Returns `listed`:
    /// whether it was.
    pub(crate) fn end(self, listed: Result<()>) -> Result<()> {
        if let Some(last) = self.last {
            line(last)?;
        }
        listed?;
        line("]")
    }

    /// Ends a list that may be printed in another form.
    pub(crate) fn end_if_any(array: Option<Self>, listed: Result<()>) -> Result<()> {
        match array {
            Some(array) => array.end(listed),
            None => listed,
        }
    }
}

/// Bytes as text, and in base64 if they are not UTF-8.
pub(crate) fn text(bytes: &[u8]) -> (String, Option<String>) {
    let base64 = std::str::from_utf8(bytes).is_err();
    (
        String::from_utf8_lossy(bytes).into_owned(),
        base64.then(|| BASE64.encode(bytes)),
    )
}

fn compact(value: &impl Serialize) -> Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    let written = value.serialize(&mut serializer);
    written.map_err(|error| Failure::on("json", error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One line, with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}
