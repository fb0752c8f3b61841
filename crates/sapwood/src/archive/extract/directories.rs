//! Directories. They get their attributes at the end, because every new name in one changes its
//! times.

use std::collections::{HashMap, HashSet};

use super::super::entry::Attributes;
use super::super::error::Result;
use super::super::gate::Change;
use super::{Extracted, Extraction, failed};
use crate::path_table::{PathId, PathTable, Step};
use crate::progress::OnProgress;
use crate::vfs::{Ino, SetAttr, SetTime, Timestamp};

/// Bytes of attributes of directories that a client may have kept until the end.
pub(super) const MOST_KEPT: usize = 64 << 20;
/// Bytes that a directory takes without its name and its extended attributes.
const PER_DIRECTORY: usize = size_of::<Directory>() + 256;

/// A directory that gets its attributes at the end.
struct Directory {
    ino: Ino,
    /// It was there before.
    found: bool,
    attributes: Attributes,
}

/// Times of a directory that is not in the archive.
pub(super) struct Passed {
    place: PathId,
    atime: Timestamp,
    mtime: Timestamp,
}

/// The directories that get attributes at the end.
#[derive(Default)]
pub(super) struct Remembered {
    /// Their names. A directory that was removed is not in it.
    table: PathTable,
    listed: HashMap<PathId, Directory>,
    /// Directories that get times at the end, because new names in them change the times.
    pub(super) passed: HashMap<Ino, Passed>,
    /// The directories in both.
    pub(super) settled: HashSet<Ino>,
    /// Bytes of them, if a client sent them.
    pub(super) kept: usize,
}

impl Extraction<'_> {
    /// Remembers the attributes of the top directory.
    pub(super) fn keep_for_the_end(&mut self, (ino, found): (Ino, bool), attributes: Attributes) {
        let Remembered {
            table,
            listed,
            kept,
            ..
        } = &mut self.remembered;
        if self.into.client.is_some() {
            let xattrs = attributes.xattrs.iter();
            let bytes =
                xattrs.map(|(name, value)| name.len() + value.len() + size_of::<Attributes>());
            let name = self.held.path().rsplit(|byte| *byte == b'/').next();
            *kept += name.map_or(0, <[u8]>::len) + PER_DIRECTORY + bytes.sum::<usize>();
        }
        let place = self.held.place(table);
        let again = listed.get(&place);
        let found = again
            .filter(|before| before.ino == ino)
            .map_or(found, |before| before.found);
        let directory = Directory {
            ino,
            found,
            attributes,
        };
        listed.insert(place, directory);
    }

    /// Remembers the times of the top directory, which are about to change.
    pub(super) fn pass(&mut self) {
        let attr = *self.top().attr();
        if self.into.building.is_none() || !self.remembered.settled.insert(attr.ino) {
            return;
        }
        let passed = Passed {
            place: self.held.place(&mut self.remembered.table),
            atime: attr.atime,
            mtime: attr.mtime,
        };
        self.remembered.passed.insert(attr.ino, passed);
    }

    /// A directory in the top one is gone: it gets no attributes.
    pub(super) fn forget_below(&mut self, name: &[u8]) {
        let table = &mut self.remembered.table;
        let place = self.held.place(table);
        table.remove(place, name);
    }

    /// Gives all directories their attributes, those inside first: the mode of one may forbid to
    /// look names up in it.
    pub(super) fn finish_directories(
        &mut self,
        extracted: &mut Extracted,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let Remembered {
            table,
            mut listed,
            passed,
            ..
        } = self.remembered.take();
        let mut finished = HashSet::new();
        let passed = passed
            .into_iter()
            .map(|(ino, passed)| (passed.place, (ino, passed)));
        let mut passed: HashMap<PathId, (Ino, Passed)> = passed.collect();
        self.held.leave(0);
        let mut walk = table.walk();
        while let Some(step) = walk.next() {
            let place = match step {
                Step::Enter(name) => {
                    let entered = self.enter(name, None, false);
                    if !matches!(entered, Ok(true)) {
                        walk.turn_back();
                    }
                    self.settle(entered.map(drop), extracted, progress)?;
                    continue;
                }
                Step::Leave(place) => place,
            };
            let passed = passed.remove(&place);
            if let Some(directory) = listed.remove(&place) {
                let done = self.finish_directory(&directory);
                if let Ok(true) = done {
                    finished.insert(directory.ino);
                }
                self.settle(done.map(drop), extracted, progress)?;
            }
            if let Some((ino, passed)) = passed.filter(|(ino, _)| !finished.contains(ino)) {
                self.finish_passed(ino, &passed)?;
            }
            self.held.leave_last();
        }
        Ok(())
    }

    /// Gives the top directory its attributes. False if another one has its name.
    fn finish_directory(&mut self, directory: &Directory) -> Result<bool> {
        let Directory {
            ino,
            found,
            ref attributes,
        } = *directory;
        if self.top().ino() != ino {
            return Ok(false);
        }
        let named = self.held.path();
        let finished = self.finish(self.top(), attributes, named, found);
        self.gate.changed(Change::Attributes(ino));
        finished.map_err(failed(named)).map(|()| true)
    }

    /// Gives the top directory its times back, if no other one has its name.
    fn finish_passed(&self, ino: Ino, passed: &Passed) -> Result<()> {
        let times = SetAttr {
            atime: Some(SetTime::To(passed.atime)),
            mtime: Some(SetTime::To(passed.mtime)),
            ..SetAttr::default()
        };
        if self.top().ino() == ino {
            let set = self.into.fs.setattr(ino, &times);
            set.map(drop).map_err(failed(self.held.path()))
        } else {
            Ok(())
        }
    }
}

impl Remembered {
    /// Takes everything but which directories are settled.
    fn take(&mut self) -> Self {
        let settled = std::mem::take(&mut self.settled);
        let taken = std::mem::take(self);
        self.settled = settled;
        taken
    }
}
