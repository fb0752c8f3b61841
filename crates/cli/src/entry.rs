//! A file or directory of an image as lists show it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sapwood::vfs::{FileKind, device_number};
use sapwood::{FileSystem, Metadata};
use serde::Serialize;

use super::failure::Result;
use super::files::failed;
use super::{output, times};

/// The fields of a file in every list with `--json`.
#[derive(Serialize)]
pub(super) struct ListedFile {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    kind: &'static str,
    mode: String,
    ino: u64,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_bytes: Option<String>,
}

impl ListedFile {
    /// The entry of the file at `path`, under the name `shown`.
    pub(super) fn new(
        fs: &FileSystem,
        path: &Path,
        shown: &Path,
        found: &Metadata,
    ) -> Result<Self> {
        let (name, path_bytes) = output::json::text(shown.as_os_str().as_bytes());
        let target = if found.is_symlink() {
            Some(fs.read_link(path).map_err(failed)?)
        } else {
            None
        };
        let target = target.map(|target| output::json::text(target.as_os_str().as_bytes()));
        let (target, target_bytes) = target.unzip();
        Ok(Self {
            path: name,
            path_bytes,
            kind: output::kind(found.file_type().kind()),
            mode: format!("{:04o}", found.mode()),
            ino: found.ino(),
            links: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size: found.len(),
            allocated: found.allocated(),
            mtime: times::json(found.attr().mtime),
            target,
            target_bytes: target_bytes.flatten(),
        })
    }
}

/// Major and minor number of a device node; otherwise `None`.
pub(super) fn device(found: &Metadata) -> Option<String> {
    let kind = found.file_type().kind();
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice).then(|| {
        let (major, minor) = (
            device_number::major(found.rdev()),
            device_number::minor(found.rdev()),
        );
        format!("{major}, {minor}")
    })
}

/// The target of a symbolic link as text, after ` -> `; empty for anything else.
pub(super) fn arrow(fs: &FileSystem, path: &Path, found: &Metadata) -> Result<String> {
    if !found.is_symlink() {
        return Ok(String::new());
    }
    let target = fs.read_link(path).map_err(failed)?;
    Ok(format!(
        " -> {}",
        output::name(target.as_os_str().as_bytes())
    ))
}
