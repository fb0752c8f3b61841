//! Copies and archives: files that enter and leave an image.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use sapwood::internal::NewFile;
use sapwood::{CopyOptions, Existing, ExportCompression, ExportOptions, Place, Progress};

use crate::call::{self, Failure, Result, done, known};
use crate::file_system::Fs;
use crate::image::SAPWOOD_REPLACE;

/// For `sapwood_copy`: directories are copied with everything below them.
pub const SAPWOOD_COPY_RECURSIVE: u32 = 1;

/// For `sapwood_copy`: as `SAPWOOD_COPY_RECURSIVE`, and owner, mode, times, extended attributes,
/// hard links and special files are kept, as with `cp -a`.
pub const SAPWOOD_COPY_ARCHIVE: u32 = 2;

/// For `sapwood_copy`: a file that exists stays, and its copy is left out without an error.
pub const SAPWOOD_COPY_KEEP: u32 = 4;

/// For `sapwood_export`: a layer of an OCI image, with whiteouts for names that `since` has and
/// `fs` has not.
pub const SAPWOOD_EXPORT_LAYER: u32 = 2;

/// For `sapwood_export`: what cannot be read becomes zeros, and is counted as damaged.
pub const SAPWOOD_EXPORT_KEEP_GOING: u32 = 4;

/// Bytes of an archive that are written at once.
const BUFFER: usize = 1 << 20;

/// A side of a copy: this machine for `NULL`.
///
/// # Safety
/// The promise of the crate.
unsafe fn side<'p>(fs: *const Fs, path: &'p Path) -> Place<'p> {
    // SAFETY: the caller's promise.
    match unsafe { fs.as_ref() } {
        Some(fs) => Place::image(fs.get(), path),
        None => Place::host(path),
    }
}

/// Copies as cp(1): from this machine into an image, out of one, within one or between two. `NULL`
/// for an image is this machine. If `to` is a directory, the copy gets the name of `from` in it.
///
/// Everything is tried; the first name that cannot be copied is the error. A copy in an image
/// belongs to the effective user of the process unless it is an archive copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_copy(
    from_fs: *const Fs,
    from: *const c_char,
    to_fs: *const Fs,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        known(
            flags,
            SAPWOOD_COPY_RECURSIVE | SAPWOOD_COPY_ARCHIVE | SAPWOOD_COPY_KEEP,
        )?;
        if from_fs.is_null() && to_fs.is_null() {
            return Err(Failure::invalid("neither side is an image"));
        }
        let from = side(from_fs, call::path("from", from)?);
        let to = side(to_fs, call::path("to", to)?);
        let mut options = CopyOptions::default();
        options.recursive = flags & (SAPWOOD_COPY_RECURSIVE | SAPWOOD_COPY_ARCHIVE) != 0;
        options.archive = flags & SAPWOOD_COPY_ARCHIVE != 0;
        if flags & SAPWOOD_COPY_KEEP != 0 {
            options.existing = Existing::Keep;
        }
        sapwood::copy(&[from], &to, &options, &mut |_| {})?.complete()?;
        Ok(())
    })
}

/// Extracts a tar archive into a directory that exists. The archive is plain or compressed with
/// gzip, zstd, xz or bzip2. What was extracted before an error stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_untar(
    fs: *const Fs,
    archive: *const c_char,
    directory: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let path = call::path("archive", archive)?;
        let directory = call::path("directory", directory)?;
        let archive = File::open(path).map_err(|error| of_host(path, &error))?;
        Ok(fs.extract_tar_into(directory, archive, &mut |_| {})?)
    })
}

fn of_host(path: &Path, error: &std::io::Error) -> Failure {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Failure::new(errno, format!("{}: {error}", path.display()))
}

/// The archive that `sapwood_export` made.
#[repr(C)]
#[derive(Debug)]
pub struct Exported {
    /// Entries, whiteouts among them.
    pub entries: u64,
    /// Sockets, which an archive cannot have.
    pub left_out: u64,
    /// Files and directories that could not be read, or only in part.
    pub damaged: u64,
    /// Bytes of the archive.
    pub size: u64,
    /// SHA-256 of the archive before compression: the `diff_id` of a layer.
    pub diff_id: [u8; 32],
    /// SHA-256 of the file: the digest of a layer.
    pub digest: [u8; 32],
}

/// Writes a directory of an image as a tar archive, which gets its name when it is complete and
/// durable. If `since` is not `NULL`, only the changes since the directory `since_path` of that
/// image. It may be the same image. `compression` is `NULL`, `"gzip"` or `"zstd"`. `result` may be
/// `NULL`.
///
/// Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EIO` (a file cannot be read; without
/// `SAPWOOD_EXPORT_KEEP_GOING` in `flags` no archive is made then).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_export(
    fs: *const Fs,
    path: *const c_char,
    archive: *const c_char,
    compression: *const c_char,
    since: *const Fs,
    since_path: *const c_char,
    flags: u32,
    result: *mut Exported,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        known(
            flags,
            SAPWOOD_REPLACE | SAPWOOD_EXPORT_LAYER | SAPWOOD_EXPORT_KEEP_GOING,
        )?;
        let fs = call::handle("fs", fs)?.get();
        let path = call::path("path", path)?;
        let mut options = ExportOptions::default();
        options.layer = flags & SAPWOOD_EXPORT_LAYER != 0;
        options.keep_going = flags & SAPWOOD_EXPORT_KEEP_GOING != 0;
        options.compression = algorithm(call::optional("compression", compression)?)?;
        if let Some(since) = since.as_ref() {
            let path = call::path("since_path", since_path)?;
            options.since = Some((since.get().clone(), path.to_owned()));
        }
        let replace = flags & SAPWOOD_REPLACE != 0;
        let new = NewFile::create(call::path("archive", archive)?, replace);
        let new = new.map_err(sapwood::Error::from)?;
        let mut writer = BufWriter::with_capacity(BUFFER, new.file());
        let mut unread = None;
        let report = fs.export_tar(path, &mut writer, &options, &mut |progress| {
            if let Progress::Failed(error) = progress {
                unread.get_or_insert_with(|| error.to_string());
            }
        })?;
        if let (Some(text), false) = (unread, options.keep_going) {
            return Err(Failure::new(libc::EIO, text));
        }
        let written = writer.flush();
        written.map_err(|error| of_host(new.path(), &error))?;
        drop(writer);
        new.finish().map_err(sapwood::Error::from)?;
        if let Some(result) = result.as_mut() {
            *result = Exported {
                entries: report.entries,
                left_out: report.left_out,
                damaged: report.damaged,
                size: report.size,
                diff_id: report.diff_id,
                digest: report.digest,
            };
        }
        Ok(())
    })
}

fn algorithm(name: Option<&str>) -> Result<ExportCompression> {
    match name {
        None => Ok(ExportCompression::None),
        Some("gzip") => Ok(ExportCompression::Gzip(6)),
        Some("zstd") => Ok(ExportCompression::Zstd(3)),
        Some(other) => Err(Failure::invalid(format!(
            "compression {other:?}: gzip or zstd"
        ))),
    }
}
