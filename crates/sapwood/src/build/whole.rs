//! The whole image file: the file system, encrypted, with its hash tree, and in its format.

use std::path::Path;
use std::time::SystemTime;

use super::{BuildError, BuiltImage, ImageBuilder};
use crate::luks::{self, HEADER_SIZE};
use crate::new_file::{NewFile, NewFileError};
use crate::output::{Identity, OutputFormat, convert};
use crate::progress::OnProgress;
use crate::verity;

impl ImageBuilder {
    /// Makes the image, and gives it its name. `strict`: every name is copied.
    pub(super) fn make(
        &self,
        path: &Path,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        let new = NewFile::create(path, self.replace)?;
        let mut hashes = None;
        if let Some((path, _)) = &self.verity {
            if path == new.path() {
                return Err(NewFileError::Exists(path.clone()).into());
            }
            hashes = Some(NewFile::create(path, self.replace)?);
        }
        let fixed = self.fixed(&new)?;
        let raw = match self.format {
            OutputFormat::Raw => None,
            _ => Some(new.scratch()?),
        };
        let mut built = fixed.make_whole(raw.as_ref().unwrap_or(&new), strict, progress)?;
        if let (Some(hashes), Some((_, params))) = (&hashes, &self.verity) {
            let data = raw.as_ref().unwrap_or(&new).device()?;
            let tree = verity::build(path, &*data, &*hashes.device()?, params, None, progress)?;
            built.root_hash = Some(tree.root);
        }
        if let Some(raw) = raw {
            let identity = Identity {
                uuid: built.report.uuid(),
                time: fixed.options.time().unwrap_or_else(SystemTime::now),
            };
            convert(&raw, &new, self.format, identity, progress)?;
        }
        if let Some(hashes) = hashes {
            hashes.finish()?;
        }
        new.finish()?;
        Ok(built)
    }

    /// Makes the raw image, encrypted if it is to be.
    fn make_whole(
        &self,
        new: &NewFile,
        strict: bool,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltImage, BuildError> {
        let Some((key, options)) = &self.encryption else {
            return self.make_fixed(new, strict, progress);
        };
        if self.reproducible {
            return Err(BuildError::Encrypted(
                "differs each time, so it is not reproducible",
            ));
        }
        if self.verity.is_some() {
            return Err(BuildError::Encrypted("has no hash tree here"));
        }
        let mut inner = self.clone();
        if let Some(size) = self.options.size() {
            inner.options.set_size(size.saturating_sub(HEADER_SIZE));
        }
        let plain = new.scratch()?;
        let mut built = inner.make_fixed(&plain, strict, progress)?;
        let (file, size) = (plain.file(), built.size);
        luks::encrypt(file, size, new.path(), new, (key, options), progress)?;
        built.size = size.saturating_add(HEADER_SIZE);
        Ok(built)
    }
}
