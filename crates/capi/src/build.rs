//! New images with files from archives, container images and directories.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int};

use sapwood::{FreeRoom, ImageBuilder, Kind, OutputFormat, Sources};

use crate::call::{self, Failure, Result, done, known};
use crate::image::SAPWOOD_REPLACE;

/// The description of a new image. One thread at a time may use it.
pub struct Builder {
    kind: Kind,
    /// Options of `sapwood mkfs`, each of which was accepted.
    options: Vec<(String, Option<String>)>,
    free: FreeRoom,
    free_inodes: u64,
    format: OutputFormat,
    reproducible: bool,
    /// `None` once an image was made: a source may be read only once.
    sources: Option<Sources>,
}

impl Builder {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            options: Vec::new(),
            free: FreeRoom::default(),
            free_inodes: 0,
            format: OutputFormat::default(),
            reproducible: false,
            sources: Some(Sources::default()),
        }
    }

    fn sources(&mut self) -> Result<&mut Sources> {
        let sources = self.sources.as_mut();
        sources.ok_or_else(|| Failure::invalid("the image was made"))
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let needed =
            || value.ok_or_else(|| Failure::invalid(format!("the option {name} needs a value")));
        match name {
            "free" => self.free = needed()?.parse()?,
            "free-inodes" => {
                let number = needed()?.parse();
                self.free_inodes = number
                    .map_err(|_| Failure::invalid(format!("the option {name} needs a number")))?;
            }
            "output-format" => self.format = needed()?.parse()?,
            "reproducible" => self.reproducible = true,
            "all-root" => self.sources()?.changes_mut().all_root(),
            "exclude" => {
                let pattern = needed()?;
                self.sources()?.changes_mut().exclude(pattern)?;
            }
            _ => {
                drop(ImageBuilder::new(self.kind).option(name, value)?);
                self.options
                    .push((name.to_owned(), value.map(str::to_owned)));
            }
        }
        Ok(())
    }

    fn image(&mut self, size: u64, replace: bool) -> Result<ImageBuilder> {
        self.sources()?;
        let sources = self.sources.take().unwrap_or_default();
        if size == 0 && sources.is_empty() {
            return Err(Failure::invalid("the image needs a size, or files"));
        }
        let mut image = ImageBuilder::new(self.kind)
            .free(self.free)
            .free_inodes(self.free_inodes)
            .format(self.format)
            .replace(replace)
            .sources(sources);
        if size > 0 {
            image = image.size(size);
        }
        if self.reproducible {
            image = image.reproducible();
        }
        for (name, value) in &self.options {
            image = image.option(name, value.as_deref())?;
        }
        Ok(image)
    }
}

/// Begins the description of an image of `type`, `"btrfs"` or `"ext4"`. `sapwood_builder_free`
/// releases it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_new(
    r#type: *const c_char,
    builder: *mut *mut Builder,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("builder", builder, || {
            let kind = call::required("type", r#type)?;
            Ok(Builder::new(kind.parse()?))
        })
    }
}

/// Adds files. Sources are applied in their order: a later file replaces an earlier one of the same
/// name. `kind` is one of
///
/// - `"dir"`: the contents of a directory, with owners, modes, times, attributes and links;
/// - `"tar"`, `"cpio"`: an archive, plain or compressed with gzip, zstd, xz or bzip2;
/// - `"oci"`: a container image, as an OCI layout or an archive of `docker save`;
/// - `"layer"`, `"overlay"`: a layer of a container image or of overlayfs, applied to the sources
///   before it.
///
/// The source is read by `sapwood_builder_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_add(
    builder: *mut Builder,
    kind: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let kind = call::required("kind", kind)?;
        let path = call::path("path", path)?;
        let sources = call::handle_mut("builder", builder)?.sources()?;
        match kind {
            "dir" => sources.dir(path),
            "tar" => sources.tar(path),
            "cpio" => sources.cpio(path),
            "oci" => sources.oci(path),
            "layer" => sources.layer(path),
            "overlay" => sources.overlay(path),
            other => return Err(Failure::invalid(format!("no source is a {other:?}"))),
        }
        Ok(())
    })
}

/// Puts the files of later sources below this directory of the image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_at(
    builder: *mut Builder,
    directory: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let directory = call::path("directory", directory)?;
        let sources = call::handle_mut("builder", builder)?.sources()?;
        Ok(sources.at(directory)?)
    })
}

/// Sets an option; `value` is `NULL` for one without a value. Its names are
///
/// - `"free"`: space that stays available to users, in bytes, with a unit (`"64M"`), or of the
///   smallest size (`"10%"`);
/// - `"free-inodes"`: inodes that stay unused (ext4);
/// - `"output-format"`: `"raw"`, `"qcow2"` or another one of `sapwood mkfs --output-format`;
/// - `"reproducible"`: the same sources give the same bytes;
/// - `"all-root"`: everything belongs to root;
/// - `"exclude"`: leaves out the matches of a pattern, with everything below them;
/// - the options of `sapwood_mkfs`, such as `"label"`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_set(
    builder: *mut Builder,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let name = call::required("name", name)?;
        let value = call::optional("value", value)?;
        call::handle_mut("builder", builder)?.set(name, value)
    })
}

/// Makes the image, which gets its name when it is complete and durable. With `size` 0 it is as
/// small as its files allow. The description is used up; only `sapwood_builder_free` may follow.
///
/// Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EINVAL`, `ENOSPC`, and the errors of a
/// source.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_write(
    builder: *mut Builder,
    image: *const c_char,
    size: u64,
    flags: u32,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let path = call::path("image", image)?;
        known(flags, SAPWOOD_REPLACE)?;
        let builder = call::handle_mut("builder", builder)?;
        let image = builder.image(size, flags & SAPWOOD_REPLACE != 0)?;
        Ok(image.write_to(path)?)
    })
}

/// Releases a description. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_builder_free(builder: *mut Builder) {
    // SAFETY: the promise of the crate: it came from `sapwood_builder_new`.
    drop(unsafe { call::take(builder) });
}
