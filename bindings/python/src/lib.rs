//! The extension module `sapwood._sapwood`, on which the Python package `sapwood` builds.
//!
//! Paths are bytes here; `python/sapwood` has the interface for people. Every call releases the
//! interpreter's lock while the library works.

mod builder;
mod check;
mod error;
mod file;
mod image;
mod metadata;
mod snapshots;
mod work;

/// The extension module.
#[pyo3::pymodule(name = "_sapwood")]
mod native {
    #[pymodule_export]
    use crate::builder::build;
    #[pymodule_export]
    use crate::check::{check, info, parse_size, resize};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::image::Image;
    #[pymodule_export]
    use crate::snapshots::{diff, export, receive, send};

    /// The version of the library.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
