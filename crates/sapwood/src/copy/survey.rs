//! Lists a directory of this machine in the form in which a copy puts it into an image.

use std::path::Path;

use super::canonical::Canonical;
use super::changed::Changed;
use super::error::{CopyCause, CopyError, Result};
use super::local_side::LocalSide;
use super::nodes::{Nodes, Step, entry_of};
use super::side::{Scratch, Side, Source, SourceNode};
use crate::archive::{ArchiveError, Entries, Entry};
use crate::changes::Changes;
use crate::damage::Salvage;
use crate::progress::Stop;
use crate::vfs::FileKind;

/// Receives what is in a directory.
pub(crate) trait Surveyor {
    /// A node, as an image gets it.
    fn entry(&mut self, entry: &Entry);
    /// A piece of the content of the last node: its offset and bytes.
    fn content(&mut self, at: u64, data: &[u8]);
}

/// Walks everything in a directory, in the order of a copy into the directory `at` of an image, with
/// changes. Files that cannot be read are left out, because the copy reports them.
///
/// # Errors
/// The directory itself cannot be read.
pub(crate) fn survey(
    source: &Path,
    at: &[u8],
    changes: &Changes,
    stop: &Stop,
    to: &mut dyn Surveyor,
) -> Result<()> {
    let side = LocalSide::new(source.to_owned());
    let top: Source<'_> = Box::new(Changed::new(top(&side)?, at.to_vec(), false, changes));
    let mut scratch = Scratch::default();
    let mut canonical = Canonical::new();
    let mut nodes = Nodes::new(Vec::new(), false);
    report(&*top, b"", &mut scratch, &mut canonical, to);
    nodes.enter(top);
    while let Some(step) = nodes.next() {
        if stop.is_stopped() {
            return Err(CopyError::on("", CopyCause::Interrupted).that_ends());
        }
        let node = match step {
            Step::Node(node) => node,
            Step::Failed(failure) if nodes.path().is_empty() => return Err(failure),
            Step::Failed(_) | Step::Left(_) => continue,
        };
        report(&*node, nodes.path(), &mut scratch, &mut canonical, to);
        if node.meta().kind == FileKind::Directory {
            nodes.enter(node);
        }
    }
    Ok(())
}

fn top(side: &LocalSide) -> Result<Source<'_>> {
    let gone = || CopyError::on(side.shown(b""), CopyCause::Missing);
    side.source(b"", true)?.ok_or_else(gone)
}

fn report(
    node: &dyn SourceNode<'_>,
    path: &[u8],
    scratch: &mut Scratch,
    canonical: &mut Canonical,
    to: &mut dyn Surveyor,
) {
    let regular = node.meta().kind == FileKind::Regular;
    if regular && node.open().is_err() {
        log::debug!("{}: cannot be read", node.shown());
        return;
    }
    let xattrs = node.xattrs(scratch).unwrap_or_default();
    let Ok(entry) = entry_of(node, path.to_vec(), xattrs) else {
        return;
    };
    to.entry(&entry);
    if entry.has_content() {
        let mut salvage = Salvage::default();
        let mut hand_over = |at, data: &[u8]| {
            to.content(at, data);
            Ok(())
        };
        let mut add = |at, data: &[u8]| canonical.add(at, data, &mut hand_over);
        let read = node.read(scratch, &mut salvage, &mut add);
        // The copy meets the same error, and reports it.
        let _ = read.and_then(|()| canonical.end(salvage.length(entry.size), &mut hand_over));
    }
}

/// Entries without the content of files.
struct Listing<'s> {
    /// The directory itself, until it was returned.
    top: Option<Source<'s>>,
    nodes: Nodes<Source<'s>>,
    scratch: Scratch,
}

/// Hands everything in a directory to `work`, directories before what is in them, without the
/// content of files.
///
/// # Errors
/// Something cannot be read, or `work` fails.
pub(crate) fn list<T>(
    source: &Path,
    work: impl FnOnce(&mut dyn Entries) -> std::result::Result<T, ArchiveError>,
) -> std::result::Result<T, ArchiveError> {
    let side = LocalSide::new(source.to_owned());
    work(&mut Listing {
        top: Some(top(&side).map_err(failed)?),
        nodes: Nodes::new(Vec::new(), false),
        scratch: Scratch::default(),
    })
}

fn failed(error: CopyError) -> ArchiveError {
    ArchiveError::Read(error.into())
}

impl Listing<'_> {
    fn step(&mut self) -> Result<Option<Entry>> {
        let node = match self.top.take() {
            Some(top) => top,
            None => loop {
                match self.nodes.next() {
                    None => return Ok(None),
                    Some(Step::Node(node)) => break node,
                    Some(Step::Failed(failure)) => return Err(failure),
                    Some(Step::Left(_)) => {}
                }
            },
        };
        let xattrs = node.xattrs(&mut self.scratch)?;
        let entry = entry_of(&*node, self.nodes.path().to_vec(), xattrs)?;
        if node.meta().kind == FileKind::Directory {
            self.nodes.enter(node);
        }
        Ok(Some(entry))
    }
}

impl Entries for Listing<'_> {
    fn next(&mut self) -> std::result::Result<Option<Entry>, ArchiveError> {
        self.step().map_err(failed)
    }

    fn read(&mut self, _: &mut [u8]) -> std::result::Result<(u64, usize), ArchiveError> {
        Ok((0, 0))
    }
}
