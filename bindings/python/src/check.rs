//! Images that are not open: check, information, size.

use pyo3::prelude::*;
use sapwood::internal::options;
use sapwood::{CheckOptions, NewSize, Stop};

use crate::error::{exception, invalid};
use crate::image::path;
use crate::work::{Callback, long};

/// A finding: its code, whether it is a warning, and its text.
type Finding = (&'static str, bool, String);

/// Checks an image. Returns whether it is clean, the findings, and the number of further ones.
#[pyfunction]
pub(crate) fn check(
    py: Python<'_>,
    image: &[u8],
    data: bool,
    progress: Callback,
) -> PyResult<(bool, Vec<Finding>, u64)> {
    let options = CheckOptions {
        data,
        ..CheckOptions::default()
    };
    let report = long(py, &progress, &Stop::new(), |progress| {
        sapwood::check(path(image), &options, progress)
    })?;
    let findings = report.findings.into_iter();
    let findings = findings.map(|found| (found.code, found.warning, found.text));
    Ok((report.clean, findings.collect(), report.suppressed))
}

/// Label, UUID, size, used bytes, free bytes and features of an image.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a tuple of Python")]
pub(crate) fn info(
    py: Python<'_>,
    image: &[u8],
) -> PyResult<(String, [u8; 16], u64, u64, u64, Vec<String>)> {
    let found = py.detach(|| sapwood::info(path(image)));
    let it = found.map_err(|error| exception(&error))?;
    Ok((it.label, it.uuid, it.size, it.used, it.free, it.features))
}

/// Changes the size of an image: `min`, or a size, with a sign a change. Returns the sizes before
/// and after.
#[pyfunction]
pub(crate) fn resize(
    py: Python<'_>,
    image: &[u8],
    size: &str,
    progress: Callback,
) -> PyResult<(u64, u64)> {
    let size: NewSize = size.parse().map_err(|error| exception(&error))?;
    long(py, &progress, &Stop::new(), |progress| {
        let report = sapwood::resize(path(image), size, progress)?;
        Ok((report.before, report.after))
    })
}

/// Bytes of a size with a unit, as `64M`.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    let size = options::parse_size(text);
    size.ok_or_else(|| invalid(format!("{text:?} is not a size: bytes, or with k, M, G, T")))
}
