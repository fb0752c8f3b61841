//! A container image that is a source, which is opened once.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::oci::{OciError, OciImage};

/// See the module.
#[derive(Clone)]
pub(super) struct Container {
    path: PathBuf,
    image: Arc<OnceLock<OciImage>>,
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.fmt(f)
    }
}

impl Container {
    pub(super) fn new(path: PathBuf) -> Self {
        let image = Arc::default();
        Self { path, image }
    }

    /// The image.
    pub(super) fn open(&self) -> Result<&OciImage, OciError> {
        if let Some(image) = self.image.get() {
            return Ok(image);
        }
        let image = OciImage::open(&self.path)?;
        Ok(self.image.get_or_init(|| image))
    }
}
