//! Snapshots and directories as streams, and their differences.

use std::io::{BufReader, BufWriter};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sapwood::{
    DiffKind, DiffOptions, ExportCompression, ExportOptions, ReceiveOptions, SendOptions, Stop,
};

use crate::error::invalid;
use crate::image::{Image, name, path};
use crate::work::{Callback, Raised, Sink, Stream, long};

/// Bytes that a file object reads or writes at once.
const BUFFER: usize = 1 << 20;

/// How a directory is exported.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Export {
    since: Option<(Py<Image>, Vec<u8>)>,
    layer: bool,
    compression: String,
    progress: Callback,
}

/// How a snapshot is sent.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Sending {
    parent: Option<Vec<u8>>,
    clone_sources: Vec<Vec<u8>>,
    version: u32,
    data: bool,
    progress: Callback,
}

/// The numbers of entries, of sockets that were left out and of damaged files, the bytes, and both
/// digests of a layer.
type Exported = (u64, u64, u64, u64, [u8; 32], [u8; 32]);

/// Writes a directory to a file object as a tar archive.
#[pyfunction]
pub(crate) fn export(
    py: Python<'_>,
    image: &Image,
    dir: &[u8],
    file: Py<PyAny>,
    how: Export,
) -> PyResult<Exported> {
    let (fs, stop, raised) = (image.get()?, Stop::new(), Raised::default());
    let mut options = ExportOptions::default();
    options.layer = how.layer;
    options.compression = match &*how.compression {
        "" => ExportCompression::None,
        "gzip" => ExportCompression::Gzip(6),
        "zstd" => ExportCompression::Zstd(3),
        other => {
            return Err(invalid(format!(
                "compression={other:?}: gzip, zstd or none"
            )));
        }
    };
    if let Some((other, dir)) = &how.since {
        options.since = Some((other.get().get()?, path(dir).to_owned()));
    }
    let sink = BufWriter::with_capacity(BUFFER, Sink::new(file, &stop, &raised));
    let written = long(py, &how.progress, &stop, |progress| {
        fs.export_tar(path(dir), sink, &options, progress)
    });
    let report = raised.or(written)?;
    Ok((
        report.entries,
        report.left_out,
        report.damaged,
        report.size,
        report.diff_id,
        report.digest,
    ))
}

/// Writes a snapshot to a file object as a stream.
#[pyfunction]
pub(crate) fn send(
    py: Python<'_>,
    image: &Image,
    snapshot: &[u8],
    file: Py<PyAny>,
    how: Sending,
) -> PyResult<()> {
    let (fs, stop, raised) = (image.get()?, Stop::new(), Raised::default());
    let mut options = SendOptions::default();
    options.parent = how.parent.as_deref().map(|parent| path(parent).to_owned());
    let sources = how.clone_sources.iter();
    options.clone_sources = sources.map(|source| path(source).to_owned()).collect();
    options.version = how.version;
    options.data = how.data;
    options.stop = stop.clone();
    let sink = BufWriter::with_capacity(BUFFER, Sink::new(file, &stop, &raised));
    let sent = long(py, &how.progress, &stop, |progress| {
        fs.send(path(snapshot), sink, &options, progress)
    });
    raised.or(sent).map(drop)
}

/// Makes the subvolumes of a stream in a directory. Returns their names.
#[pyfunction]
pub(crate) fn receive(
    py: Python<'_>,
    image: &Image,
    dir: &[u8],
    file: Py<PyAny>,
    resume: bool,
    progress: Callback,
) -> PyResult<Vec<Py<PyBytes>>> {
    let (fs, stop, raised) = (image.get()?, Stop::new(), Raised::default());
    let mut options = ReceiveOptions::default();
    options.resume = resume;
    options.stop = stop.clone();
    let stream = BufReader::with_capacity(BUFFER, Stream::new(file, &stop, &raised));
    let received = long(py, &progress, &stop, |progress| {
        fs.receive(path(dir), stream, &options, progress)
    });
    let report = raised.or(received)?;
    let names = report.subvolumes.iter();
    Ok(names.map(|name| PyBytes::new(py, name).unbind()).collect())
}

/// A difference: its kind, the path, the old path of a renamed file, the type as in `st_mode`, and
/// the names of the parts that differ.
type Difference = (
    &'static str,
    Py<PyBytes>,
    Option<Py<PyBytes>>,
    u32,
    Vec<&'static str>,
);

/// The differences of two directories, sorted by path.
#[pyfunction]
pub(crate) fn diff(
    py: Python<'_>,
    old: (Py<Image>, Vec<u8>),
    new: (Py<Image>, Vec<u8>),
    content: bool,
) -> PyResult<Vec<Difference>> {
    let (old_fs, new_fs) = (old.0.get().get()?, new.0.get().get()?);
    let stop = Stop::new();
    let mut options = DiffOptions::default();
    options.content = content;
    options.stop = stop.clone();
    let mut found = long(py, &None, &stop, |_| {
        let mut found = Vec::new();
        let (old, new) = ((&old_fs, path(&old.1)), (&new_fs, path(&new.1)));
        sapwood::diff(old, new, &options, &mut |entry| found.push(entry))?;
        Ok(found)
    })?;
    found.sort_by(|one, other| one.path.cmp(&other.path).then(one.kind.cmp(&other.kind)));
    let found = found.into_iter().map(|entry| {
        let kind = match entry.kind {
            DiffKind::Removed => "removed",
            DiffKind::Renamed => "renamed",
            DiffKind::Added => "added",
            DiffKind::Changed => "changed",
        };
        let parts = [
            ("content", entry.parts.content),
            ("size", entry.parts.size),
            ("mtime", entry.parts.mtime),
            ("mode", entry.parts.mode),
            ("uid", entry.parts.uid),
            ("gid", entry.parts.gid),
            ("xattrs", entry.parts.xattrs),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs);
        let from = entry.from.as_ref().map(|from| name(py, from.as_os_str()));
        (
            kind,
            name(py, entry.path.as_os_str()),
            from,
            entry.file.mode_bits(),
            parts.map(|(part, _)| part).collect(),
        )
    });
    Ok(found.collect())
}
