//! A copy's side on this machine: resolves the paths that the user names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::vfs::FileKind;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::error::{CopyCause, CopyError, Result};
use super::local_node::{LocalNode, failure};
use super::side::{Node, Side, Sink, Source};
use crate::shown;
use crate::tree::join;

/// This machine; paths start at `top`, or at the current directory if it is empty.
pub(super) struct LocalSide {
    top: PathBuf,
}

impl LocalSide {
    pub(super) fn new(top: PathBuf) -> Self {
        Self { top }
    }

    fn path(&self, path: &[u8]) -> Vec<u8> {
        let top = self.top.as_os_str().as_bytes();
        match (path.is_empty(), top.is_empty()) {
            (true, true) => b".".to_vec(),
            (true, false) => top.to_vec(),
            (false, _) => join(top, path),
        }
    }

    /// Standard input as a source, or standard output as a destination.
    pub(super) fn standard(output: bool) -> Result<LocalNode> {
        let shown = if output {
            "standard output"
        } else {
            "standard input"
        };
        let fail = |error: Errno| failure(shown, error);
        let fd = if output {
            rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)
        } else {
            rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        };
        LocalNode::stream(fd.map_err(fail)?, shown)
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<LocalNode>> {
        let path = self.path(path);
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let stat = match rustix::fs::statat(CWD, OsStr::from_bytes(&path), flags) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failure(&shown::name(&path), error)),
        };
        LocalNode::named(path, follow, &stat).map(Some)
    }
}

impl Side for LocalSide {
    fn source(&self, path: &[u8], follow: bool) -> Result<Option<Source<'_>>> {
        let found = self.find(path, follow)?;
        Ok(found.map(|node| Box::new(node) as Source<'_>))
    }

    fn sink(&self, path: &[u8], follow: bool) -> Result<Option<Sink<'_>>> {
        let found = self.find(path, follow)?;
        Ok(found.map(|node| Box::new(node) as Sink<'_>))
    }

    fn sink_parent(&self, path: &[u8]) -> Result<(Sink<'_>, Vec<u8>)> {
        let path = self.path(path);
        let named = Path::new(OsStr::from_bytes(&path));
        let name = named.file_name().unwrap_or_default().as_bytes().to_vec();
        let parent = match named.parent().map(|parent| parent.as_os_str().as_bytes()) {
            None | Some(b"") => b".",
            Some(parent) => parent,
        };
        let shown = shown::name(parent);
        let stat =
            rustix::fs::stat(OsStr::from_bytes(parent)).map_err(|error| failure(&shown, error))?;
        let dir = LocalNode::named(parent.to_vec(), true, &stat)?;
        if dir.meta().kind != FileKind::Directory {
            return Err(CopyError::on(shown, CopyCause::NotDirectory));
        }
        Ok((Box::new(dir), name))
    }

    fn shown(&self, path: &[u8]) -> String {
        shown::name(&self.path(path))
    }

    fn is_image(&self) -> bool {
        false
    }
}
