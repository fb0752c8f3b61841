//! Making images.

use std::path::PathBuf;

use pyo3::prelude::*;
use sapwood::{FreeRoom, ImageBuilder, Kind, OutputFormat, Sources, Stop};

use crate::error::{exception, invalid};
use crate::image::path;
use crate::metadata::time;
use crate::work::{Callback, Raised, Stream, long};

/// A source of the files of an image: its kind, and a path as bytes or a binary file object.
type Source = (String, Py<PyAny>);

/// The image to make.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Build {
    format: String,
    output: String,
    size: Option<u64>,
    free: Option<String>,
    free_inodes: u64,
    label: Option<String>,
    uuid: Option<[u8; 16]>,
    time: Option<i64>,
    reproducible: bool,
    owner: Option<(u32, u32)>,
    all_root: bool,
    exclude: Vec<String>,
    options: Vec<(String, Option<String>)>,
    sources: Vec<Source>,
    replace: bool,
    progress: Callback,
}

impl Build {
    fn builder(&self, sources: Sources) -> sapwood::Result<ImageBuilder> {
        let mut builder = ImageBuilder::new(self.format.parse::<Kind>()?)
            .format(self.output.parse::<OutputFormat>()?)
            .replace(self.replace)
            .free_inodes(self.free_inodes)
            .sources(sources);
        if let Some(size) = self.size {
            builder = builder.size(size);
        }
        if let Some(free) = &self.free {
            builder = builder.free(free.parse::<FreeRoom>()?);
        }
        if let Some(label) = &self.label {
            builder = builder.label(label.as_str());
        }
        if let Some(uuid) = self.uuid {
            builder = builder.uuid(uuid);
        }
        if self.reproducible {
            builder = builder.reproducible();
        }
        if let Some((uid, gid)) = self.owner {
            builder = builder.owner(uid, gid);
        }
        for (name, value) in &self.options {
            builder = builder.option(name, value.as_deref())?;
        }
        Ok(builder)
    }

    fn sources(&self, py: Python<'_>, stop: &Stop, raised: &Raised) -> PyResult<Sources> {
        let mut sources = Sources::default();
        for (kind, from) in &self.sources {
            let place = || {
                let bytes: &[u8] = from.extract(py)?;
                PyResult::Ok(PathBuf::from(path(bytes)))
            };
            let stream = || Stream::new(from.clone_ref(py), stop, raised);
            match &**kind {
                "tree" => sources.dir(place()?),
                "tar" => sources.tar(place()?),
                "tar-stream" => sources.tar_stream(stream()),
                "layer" => sources.layer(place()?),
                "layer-stream" => sources.layer_stream(stream()),
                "oci" => sources.oci(place()?),
                other => return Err(invalid(format!("no source is a {other}"))),
            }
        }
        let changes = sources.changes_mut();
        if self.all_root {
            changes.all_root();
        }
        for pattern in &self.exclude {
            let excluded = changes.exclude(pattern);
            excluded.map_err(|error| exception(&error))?;
        }
        Ok(sources)
    }
}

/// Makes an image, and returns its size in bytes.
#[pyfunction]
pub(crate) fn build(py: Python<'_>, image: &[u8], what: Build) -> PyResult<u64> {
    let (stop, raised) = (Stop::new(), Raised::default());
    let sources = what.sources(py, &stop, &raised)?;
    let builder = what.builder(sources);
    let mut builder = builder
        .map_err(|error| exception(&error))?
        .stop(stop.clone());
    if let Some(nanoseconds) = what.time {
        let time = time(nanoseconds).ok_or_else(|| invalid("no such time"))?;
        builder = builder.time(time);
    }
    let built = long(py, &what.progress, &stop, |progress| {
        builder.write_with_progress(path(image), progress)
    });
    raised.or(built)?;
    let size = std::fs::metadata(path(image))?.len();
    Ok(size)
}
