//! Directories, which get attributes at the end, because what is made in them changes them.

use std::collections::HashSet;

use super::super::entry::Attributes;
use super::super::error::Result;
use super::super::gate::Change;
use super::{Extracted, Extraction, components, failed};
use crate::progress::OnProgress;
use crate::vfs::{Ino, SetAttr, SetTime, Timestamp};

/// Bytes of attributes of directories that a client may have kept until the end.
pub(super) const MOST_KEPT: usize = 64 << 20;

/// A directory that gets its attributes at the end.
pub(super) struct Directory {
    pub(super) ino: Ino,
    /// It was there before.
    pub(super) found: bool,
    attributes: Attributes,
}

/// Times of a directory that is not in the archive.
pub(super) struct Passed {
    path: Vec<u8>,
    atime: Timestamp,
    mtime: Timestamp,
}

impl Extraction<'_> {
    /// Remembers the attributes of a directory.
    pub(super) fn keep_for_the_end(
        &mut self,
        path: Vec<u8>,
        (ino, found): (Ino, bool),
        attributes: Attributes,
    ) {
        if self.into.client.is_some() {
            let xattrs = attributes.xattrs.iter();
            let bytes =
                xattrs.map(|(name, value)| name.len() + value.len() + size_of::<Attributes>());
            self.kept += path.len() + size_of::<Attributes>() + bytes.sum::<usize>();
        }
        let again = self.directories.get(&path);
        let found = again
            .filter(|before| before.ino == ino)
            .map_or(found, |before| before.found);
        let directory = Directory {
            ino,
            found,
            attributes,
        };
        self.directories.insert(path, directory);
    }

    /// Remembers the times of the top directory, which are about to change.
    pub(super) fn pass(&mut self) {
        let attr = *self.top().attr();
        if self.into.building.is_none() || !self.settled.insert(attr.ino) {
            return;
        }
        let passed = Passed {
            path: self.top_path(),
            atime: attr.atime,
            mtime: attr.mtime,
        };
        self.passed.insert(attr.ino, passed);
    }

    /// A directory in the top one is gone: it gets no attributes.
    pub(super) fn forget_below(&mut self, name: &[u8]) {
        let mut gone = self.top_path();
        if !gone.is_empty() {
            gone.push(b'/');
        }
        gone.extend_from_slice(name);
        let below = [&gone, &b"/"[..]].concat();
        self.directories
            .retain(|path, _| *path != gone && !path.starts_with(&below));
    }

    /// Gives all directories their attributes.
    pub(super) fn finish_directories(
        &mut self,
        extracted: &mut Extracted,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        self.kept = 0;
        let mut listed = HashSet::new();
        // Those inside first: the mode of one may forbid to look names up in it.
        for (named, directory) in std::mem::take(&mut self.directories).into_iter().rev() {
            let finished = self.finish_directory(&named, &directory);
            if let Ok(true) = finished {
                listed.insert(directory.ino);
            }
            self.settle(finished.map(drop), extracted, progress)?;
        }
        self.finish_passed(&listed)
    }

    /// Gives a directory its attributes. False if another one has its name.
    fn finish_directory(&mut self, named: &[u8], directory: &Directory) -> Result<bool> {
        let Directory {
            ino,
            found,
            ref attributes,
        } = *directory;
        let parts: Vec<&[u8]> = components(named)?;
        if !self.reach(&parts, named, false)? || self.top().ino() != ino {
            return Ok(false);
        }
        let finished = self.finish(self.top(), attributes, named, found);
        self.gate.changed(Change::Attributes(ino));
        finished.map_err(failed(named)).map(|()| true)
    }

    fn finish_passed(&mut self, listed: &HashSet<Ino>) -> Result<()> {
        for (ino, passed) in std::mem::take(&mut self.passed) {
            let parts = components(&passed.path)?;
            if listed.contains(&ino) || !self.reach(&parts, &passed.path, false)? {
                continue;
            }
            let times = SetAttr {
                atime: Some(SetTime::To(passed.atime)),
                mtime: Some(SetTime::To(passed.mtime)),
                ..SetAttr::default()
            };
            if self.top().ino() == ino {
                let set = self.into.fs.setattr(ino, &times);
                set.map_err(failed(&passed.path))?;
            }
        }
        Ok(())
    }
}
