//! What is in a directory of this machine, as a copy of it into an image would read it.

use std::path::Path;

use super::canonical::Canonical;
use super::changed::Changed;
use super::error::{CopyCause, CopyError, Result};
use super::local_side::LocalSide;
use super::side::{Found, Meta, Node, Scratch, Side};
use crate::changes::Changes;
use crate::damage::Salvage;
use crate::vfs::{FileKind, Timestamp};

/// A node of the directory: what an image gets of it.
pub(crate) struct Surveyed<'a> {
    /// Its path below the directory.
    pub(crate) path: &'a [u8],
    pub(crate) kind: FileKind,
    pub(crate) perm: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) rdev: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    /// Target of a symbolic link.
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// Is told of what is in a directory.
pub(crate) trait Surveyor {
    /// A node.
    fn node(&mut self, node: &Surveyed<'_>);
    /// A piece of the content of the last node: its offset and bytes.
    fn content(&mut self, at: u64, data: &[u8]);
}

/// Walks everything in a directory, in the order of a copy, with changes. What cannot be read is
/// left out, as the copy reports it.
///
/// # Errors
/// The directory itself cannot be read.
pub(crate) fn survey(source: &Path, changes: &Changes, to: &mut dyn Surveyor) -> Result<()> {
    let side = LocalSide::new(source.to_owned());
    let gone = || CopyError::on(source.display(), CopyCause::Missing);
    let top = side.find(b"", true)?.ok_or_else(gone)?;
    let top: Found<'_> = Box::new(Changed::new(top, Vec::new(), false, changes));
    let mut scratch = Scratch::default();
    let mut canonical = Canonical::new();
    let names = top.names(0)?.into_iter();
    report(&*top, b"", &mut scratch, &mut canonical, to);
    let mut levels = vec![(top, Vec::new(), names)];
    while let Some((dir, path, names)) = levels.last_mut() {
        let Some((name, _)) = names.next() else {
            levels.pop();
            continue;
        };
        let Ok(Some(node)) = dir.child(&name) else {
            continue;
        };
        let path = super::side::join(path, &name);
        report(&*node, &path, &mut scratch, &mut canonical, to);
        if node.meta().kind == FileKind::Directory
            && let Ok(names) = node.names(0)
        {
            levels.push((node, path, names.into_iter()));
        }
    }
    Ok(())
}

fn report<'a>(
    node: &dyn Node<'a>,
    path: &[u8],
    scratch: &mut Scratch,
    canonical: &mut Canonical,
    to: &mut dyn Surveyor,
) {
    let Meta {
        kind,
        perm,
        uid,
        gid,
        rdev,
        size,
        mtime,
        ..
    } = *node.meta();
    let regular = kind == FileKind::Regular;
    if regular && node.open().is_err() {
        log::debug!("{}: cannot be read", node.shown());
        return;
    }
    let xattrs = node.xattrs(scratch).unwrap_or_default();
    let target = match kind {
        FileKind::Symlink => node.read_link().unwrap_or_default(),
        _ => Vec::new(),
    };
    to.node(&Surveyed {
        path,
        kind,
        perm,
        owner: (uid, gid),
        rdev: match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            _ => 0,
        },
        size: if regular { size } else { 0 },
        mtime,
        target,
        xattrs: &xattrs,
    });
    if regular && size > 0 {
        let mut salvage = Salvage::default();
        let mut sink = |at, data: &[u8]| {
            to.content(at, data);
            Ok(())
        };
        let mut add = |at, data: &[u8]| canonical.add(at, data, &mut sink);
        let read = node.read(scratch, &mut salvage, &mut add);
        // The copy meets the same error, and reports it.
        let _ = read.and_then(|()| canonical.end(salvage.length(size), &mut sink));
    }
}
