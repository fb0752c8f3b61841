//! Walking a source and making the same at the destination.
//!
//! # How it works
//! One thread walks the source, makes directories and everything that holds no data, and hands
//! regular files to workers, one for each processor, in batches: waking a worker costs more than
//! copying a small file. A directory gets its mode, owner and times when the last file in it is
//! done, because everything that is made in it changes them; then its descriptor is closed.
//!
//! A failure on one file is reported, and the copy goes on. A failure that would meet every further
//! file (no space) ends the copy at once.
//!
//! An image can contain a directory below itself, or twice. The walk refuses both: it enters a
//! directory of an image once, and no directory that it is in. It holds one batch of names for each
//! level, and the number of each directory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use crate::vfs::FileKind;
use parking_lot::Mutex;

use super::Existing;
use super::error::{CopyCause, CopyError, Result};
use super::one::refuse_same;
use super::report::{Item, Report};
use super::side::{Found, Meta, New, Node, Rules, Scratch, Shown};
use crate::shown;

/// Batches that wait for a worker.
const WAITING: usize = 4;
/// Files of the first batches. Later ones grow, so that workers are in different directories most
/// of the time: a directory is changed by one at a time.
const FIRST_FILES: usize = 16;
/// Most files of a batch.
const MOST_FILES: usize = 256;
/// Bytes of files that end a batch.
const BATCH_BYTES: u64 = 2 << 20;
const MOST_THREADS: usize = 8;
/// Levels of directories; cp(1) ends earlier, where a path gets too long.
pub(super) const MOST_LEVELS: usize = 4096;
/// Levels that keep a batch of names while a directory below them is walked.
const BATCHES: usize = 32;

/// A copy from one side to the other.
pub(super) struct Copy<'a> {
    pub(super) recursive: bool,
    /// Keep hard links, and copy a symbolic link that is named, not what it leads to.
    pub(super) links: bool,
    pub(super) existing: Existing,
    /// What follows a part of a file that cannot be read is copied too.
    pub(super) keep_going: bool,
    pub(super) rules: Rules,
    pub(super) report: &'a Report<'a>,
    /// One thread makes everything in the order of the walk, and what depends on the host's file
    /// system is left out: the result is reproducible.
    pub(super) canonical: bool,
}

/// Where a copy goes.
pub(super) enum Target<'d> {
    /// A name in a directory, which may exist.
    Name(Found<'d>, Vec<u8>),
    /// This directory itself.
    Directory(Found<'d>),
    /// The content of this file.
    Content(Found<'d>),
}

/// A destination directory that is being filled.
struct Open<'a> {
    from: Found<'a>,
    to: Found<'a>,
    /// The copy made it: nothing else is in it.
    fresh: bool,
    parent: Option<Arc<Open<'a>>>,
    /// Its name in the parent.
    name: Vec<u8>,
}

/// A regular file for a worker.
struct Job<'a> {
    from: Found<'a>,
    dir: Arc<Open<'a>>,
    name: Vec<u8>,
    /// It was made already, because further names of it follow.
    made: Option<Found<'a>>,
}

/// A directory whose names are being walked.
struct Level<'a> {
    dir: Arc<Open<'a>>,
    batch: std::vec::IntoIter<(Vec<u8>, u64)>,
    next: u64,
    /// A name was found in it.
    entered: bool,
}

struct Walk<'w, 'a> {
    /// The source is an image, and may contain anything.
    from_image: bool,
    send: &'w mut dyn FnMut(Vec<Job<'a>>) -> Result<()>,
    /// Files for the next batch.
    batch: Vec<Job<'a>>,
    /// How many of them end the batch; 0: each is handed over at once.
    batch_files: usize,
    /// Bytes of them.
    batch_bytes: u64,
    scratch: Scratch,
    /// Names, from the top, of the first name of an inode that has several.
    firsts: HashMap<(u64, u64), Vec<Vec<u8>>>,
    top: Option<Arc<Open<'a>>>,
    /// Directories of the source that the walk is in.
    inside: HashSet<(u64, u64)>,
    /// Directories of an image that the walk has entered, without empty ones.
    entered: HashSet<(u64, u64)>,
}

impl<'a> Copy<'_> {
    /// Copies a source, which may be in an image, with everything below it.
    pub(super) fn tree(&self, from: Found<'a>, from_image: bool, place: Target<'a>) -> Result<()> {
        if from.meta().kind != FileKind::Directory {
            return self.single(&*from, place);
        }
        if self.canonical {
            return self.tree_in_order(from, from_image, place);
        }
        #[cfg(feature = "fuse")]
        let (from, place) = match super::send::tree(self, from, from_image, place) {
            Ok(done) => return done,
            Err(operands) => operands,
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let (ended, last) = (AtomicBool::new(false), Mutex::new(None));
        let end = |failure| {
            last.lock().get_or_insert(failure);
            ended.store(true, Ordering::Relaxed);
        };
        let (sender, jobs) = sync_channel(WAITING);
        // The receiver goes with the last worker, so that a send fails once no worker is left.
        let jobs = Arc::new(Mutex::new(jobs));
        thread::scope(|scope| {
            for _ in 0..threads.min(MOST_THREADS) {
                let (jobs, ended, end) = (Arc::clone(&jobs), &ended, &end);
                scope.spawn(move || self.serve(&jobs, ended, end));
            }
            drop(jobs);
            let sender = sender;
            let mut send = |batch: Vec<Job<'a>>| {
                let sent = !ended.load(Ordering::Relaxed) && sender.send(batch).is_ok();
                // The worker that failed has left the reason.
                sent.then_some(())
                    .ok_or_else(|| CopyError::on("", CopyCause::Ended).that_ends())
            };
            let mut walk = Walk::new(from_image, &mut send);
            let walked = self.walk(from, place, &mut walk);
            if let Err(failure) = walked.and_then(|()| walk.hand_over()) {
                end(failure);
            }
            let Walk {
                top, mut scratch, ..
            } = walk;
            self.release(top, &mut scratch).unwrap_or_else(&end);
        });
        last.into_inner().map_or(Ok(()), Err)
    }

    /// As [`tree`](Self::tree), in this thread: every file when the walk comes to it.
    fn tree_in_order(&self, from: Found<'a>, from_image: bool, place: Target<'a>) -> Result<()> {
        let mut scratch = Scratch::default();
        let mut send = |batch: Vec<Job<'a>>| {
            let mut jobs = batch.into_iter();
            jobs.try_for_each(|job| self.job(job, &mut scratch))
        };
        let mut walk = Walk::new(from_image, &mut send);
        walk.batch_files = 0;
        let walked = self.walk(from, place, &mut walk);
        let Walk {
            top, mut scratch, ..
        } = walk;
        walked.and(self.release(top, &mut scratch))
    }

    /// Whether a file that exists stays; counts it then.
    pub(super) fn keeps(&self, from: &Meta, there: &Meta) -> bool {
        let replaceable = from.kind != FileKind::Directory && there.kind != FileKind::Directory;
        let keeps = match self.existing {
            Existing::Replace => false,
            Existing::Keep => replaceable,
            Existing::KeepNewer => replaceable && there.mtime >= from.mtime,
        };
        if keeps {
            self.report.kept();
        }
        keeps
    }

    /// Reports a failure, unless it ends the copy.
    pub(super) fn go_on(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(failure) if !failure.ends() => {
                self.report.failed(failure);
                Ok(())
            }
            other => other,
        }
    }

    /// Copies files until there are none.
    fn serve(
        &self,
        batches: &Mutex<Receiver<Vec<Job<'a>>>>,
        ended: &AtomicBool,
        end: &dyn Fn(CopyError),
    ) {
        let mut scratch = Scratch::default();
        loop {
            let next = batches.lock().recv();
            let Ok(batch) = next else { return };
            for job in batch {
                // The rest is taken, so that the walk does not wait for room.
                if !ended.load(Ordering::Relaxed) {
                    self.job(job, &mut scratch).unwrap_or_else(end);
                }
            }
        }
    }

    fn job(&self, job: Job<'a>, scratch: &mut Scratch) -> Result<()> {
        let Job {
            from,
            dir,
            name,
            made,
        } = job;
        let copied = match made {
            Some(made) => self.content(&*from, &*made, true, scratch),
            None => self.file(&*from, &*dir.to, &name, scratch),
        };
        drop(from);
        self.go_on(copied)?;
        self.release(Some(dir), scratch)
    }

    /// Gives a directory back; the last holder finishes it, and its parents alike.
    fn release(&self, dir: Option<Arc<Open<'a>>>, scratch: &mut Scratch) -> Result<()> {
        let mut next = dir;
        while let Some(open) = next.and_then(Arc::into_inner) {
            let Open {
                from,
                to,
                fresh,
                parent,
                ..
            } = open;
            self.go_on(self.finish(&*from, &*to, fresh, scratch))?;
            next = parent;
        }
        Ok(())
    }

    fn walk(&self, from: Found<'a>, place: Target<'a>, walk: &mut Walk<'_, 'a>) -> Result<()> {
        let (to, fresh) = self.top(&*from, place)?;
        let (top_id, name) = (to.meta().id, Vec::new());
        let top = Arc::new(Open {
            from,
            to,
            fresh,
            parent: None,
            name,
        });
        walk.top = Some(Arc::clone(&top));
        walk.inside.insert(top.from.meta().id);
        let mut levels = vec![Level::new(top)];
        while let Some(level) = levels.last_mut() {
            self.report.check_stop()?;
            let name = self
                .next_name(level, walk)
                .or_else(|failure| self.go_on(Err(failure)).map(|()| None))?;
            let Some(name) = name else {
                if let Some(Level { dir, .. }) = levels.pop() {
                    walk.inside.remove(&dir.from.meta().id);
                    self.release(Some(dir), &mut walk.scratch)?;
                }
                continue;
            };
            let dir = Arc::clone(&level.dir);
            let below = match self.one(&dir, name, top_id, walk) {
                Ok(Some(below)) if levels.len() >= MOST_LEVELS => {
                    walk.inside.remove(&below.from.meta().id);
                    Err(CopyError::on(below.from.shown(), CopyCause::TooDeep))
                }
                other => other,
            };
            match below {
                Ok(None) => {}
                Err(failure) => self.go_on(Err(failure))?,
                Ok(Some(below)) => {
                    // Names of an image can be read again from where the walk was.
                    let sheds = walk.from_image && levels.len() > BATCHES;
                    if let Some(level) = levels.last_mut().filter(|_| sheds) {
                        level.batch = Vec::new().into_iter();
                    }
                    levels.push(Level::new(below));
                }
            }
            self.release(Some(dir), &mut walk.scratch)?;
        }
        Ok(())
    }

    /// The next name of a directory. An image can give a directory two names; its content is copied
    /// for the first.
    fn next_name(&self, level: &mut Level<'a>, walk: &mut Walk<'_, 'a>) -> Result<Option<Vec<u8>>> {
        let name = level.next_name()?;
        if name.is_some() && !level.entered {
            level.entered = true;
            let from = &level.dir.from;
            if walk.from_image && !walk.entered.insert(from.meta().id) {
                return Err(CopyError::on(from.shown(), CopyCause::SecondName));
            }
        }
        Ok(name)
    }

    /// The directory that a tree goes to; whether it was made for that.
    fn top(&self, from: &dyn Node<'a>, place: Target<'a>) -> Result<(Found<'a>, bool)> {
        let (dir, name) = match place {
            Target::Name(dir, name) => (dir, name),
            Target::Directory(dir) => {
                refuse_same(from, &*dir)?;
                return Ok((dir, false));
            }
            Target::Content(file) => {
                return Err(CopyError::on(
                    file.shown(),
                    CopyCause::DestinationNotDirectory,
                ));
            }
        };
        match dir.child(&name)? {
            Some(there) if there.meta().kind != FileKind::Directory => Err(CopyError::on(
                there.shown(),
                CopyCause::NotReplacedByDirectory,
            )),
            Some(there) => {
                refuse_same(from, &*there)?;
                Ok((there, false))
            }
            None => {
                let new = New {
                    meta: from.meta(),
                    target: b"",
                };
                Ok((dir.create(&name, &self.rules, &new)?, true))
            }
        }
    }

    /// Copies what a name in a directory is, or hands it to a worker; a directory is returned to be
    /// walked.
    fn one(
        &self,
        dir: &Arc<Open<'a>>,
        name: Vec<u8>,
        top: (u64, u64),
        walk: &mut Walk<'_, 'a>,
    ) -> Result<Option<Arc<Open<'a>>>> {
        let gone = || CopyError::on(dir.from.shown(), CopyCause::EntryGone(shown::name(&name)));
        let from = dir.from.child(&name)?.ok_or_else(gone)?;
        let there = if dir.fresh {
            None
        } else {
            dir.to.child(&name)?
        };
        let meta = from.meta().clone();
        if let Some(there) = &there
            && self.keeps(&meta, there.meta())
        {
            return Ok(None);
        }
        self.report.one(&Item {
            from: &from,
            to: &dir.to,
            name: &name,
        });
        if meta.kind == FileKind::Directory {
            return self.directory(dir, name, from, there, top, walk).map(Some);
        }
        if let Some(there) = there {
            refuse_same(&*from, &*there)?;
            if there.meta().kind == FileKind::Directory {
                return Err(CopyError::on(there.shown(), CopyCause::Directory));
            }
            dir.to.remove(&name)?;
        }
        let several = self.links && meta.nlink > 1;
        if several && let Some(first) = walk.firsts.get(&meta.id) {
            match self.link(dir, &name, first, walk.top.as_deref()) {
                // In another subvolume, where no link leads: a file of its own.
                Err(error) if error.crosses_subvolumes() => {}
                linked => return linked.map(|()| None),
            }
        }
        let mut made = None;
        if meta.kind != FileKind::Regular {
            self.special(&*from, &*dir.to, &name, &mut walk.scratch)?;
        } else if several {
            from.open()?;
            let new = New {
                meta: &meta,
                target: b"",
            };
            made = Some(dir.to.create(&name, &self.rules, &new)?);
        }
        if several {
            walk.firsts.insert(meta.id, dir.path_of(&name));
        }
        if meta.kind == FileKind::Regular {
            let dir = Arc::clone(dir);
            walk.add(Job {
                from,
                dir,
                name,
                made,
            })?;
        }
        Ok(None)
    }

    fn directory(
        &self,
        dir: &Arc<Open<'a>>,
        name: Vec<u8>,
        from: Found<'a>,
        there: Option<Found<'a>>,
        top: (u64, u64),
        walk: &mut Walk<'_, 'a>,
    ) -> Result<Arc<Open<'a>>> {
        let id = from.meta().id;
        if id == top {
            return Err(CopyError::on(from.shown(), CopyCause::IntoItself));
        }
        if walk.inside.contains(&id) {
            return Err(CopyError::on(from.shown(), CopyCause::Loop));
        }
        let (to, fresh) = match there {
            None => {
                let new = New {
                    meta: from.meta(),
                    target: b"",
                };
                (dir.to.create(&name, &self.rules, &new)?, true)
            }
            Some(there) if there.meta().kind == FileKind::Directory => (there, false),
            Some(there) => {
                return Err(CopyError::on(
                    there.shown(),
                    CopyCause::NotReplacedByDirectory,
                ));
            }
        };
        walk.inside.insert(id);
        let parent = Some(Arc::clone(dir));
        Ok(Arc::new(Open {
            from,
            to,
            fresh,
            parent,
            name,
        }))
    }

    /// Makes a further name of a file that was copied. The way to it is walked from the top, and
    /// follows no link.
    fn link(
        &self,
        dir: &Open<'a>,
        name: &[u8],
        first: &[Vec<u8>],
        top: Option<&Open<'a>>,
    ) -> Result<()> {
        let (Some(top), Some((old, above))) = (top, first.split_last()) else {
            return Ok(());
        };
        let mut at: Option<Found<'a>> = None;
        for part in above {
            let from = at.as_ref().map_or(&top.to, |at| at);
            let gone = || CopyError::on(from.shown(), CopyCause::Changed);
            let below = from
                .child(part)?
                .filter(|node| node.meta().kind == FileKind::Directory);
            at = Some(below.ok_or_else(gone)?);
        }
        let old_dir = at.as_ref().map_or(&top.to, |at| at);
        dir.to.link(name, &**old_dir, old)
    }
}

impl<'w, 'a> Walk<'w, 'a> {
    fn new(from_image: bool, send: &'w mut dyn FnMut(Vec<Job<'a>>) -> Result<()>) -> Self {
        Self {
            from_image,
            send,
            batch: Vec::new(),
            batch_files: FIRST_FILES,
            batch_bytes: 0,
            scratch: Scratch::default(),
            firsts: HashMap::new(),
            top: None,
            inside: HashSet::new(),
            entered: HashSet::new(),
        }
    }

    /// Adds a file to the batch, which goes to a worker when it is full.
    fn add(&mut self, job: Job<'a>) -> Result<()> {
        let size = job.from.meta().size;
        self.batch_bytes = self.batch_bytes.saturating_add(size);
        self.batch.push(job);
        if self.batch.len() >= self.batch_files || self.batch_bytes >= BATCH_BYTES {
            if self.batch_files > 0 {
                self.batch_files = (self.batch_files + FIRST_FILES / 4).min(MOST_FILES);
            }
            self.hand_over()
        } else {
            Ok(())
        }
    }

    /// Hands the files of the batch to a worker.
    fn hand_over(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        match std::mem::take(&mut self.batch) {
            batch if batch.is_empty() => Ok(()),
            batch => (self.send)(batch),
        }
    }
}

impl Open<'_> {
    /// The names from the top to a name in this directory.
    fn path_of(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let mut path = vec![name.to_vec()];
        let mut at = self;
        while let Some(parent) = &at.parent {
            path.push(at.name.clone());
            at = parent;
        }
        path.reverse();
        path
    }
}

impl<'a> Level<'a> {
    fn new(dir: Arc<Open<'a>>) -> Self {
        let batch = Vec::new().into_iter();
        Self {
            dir,
            batch,
            next: 0,
            entered: false,
        }
    }

    fn next_name(&mut self) -> Result<Option<Vec<u8>>> {
        if self.batch.len() == 0 {
            self.batch = self.dir.from.names(self.next)?.into_iter();
        }
        Ok(self.batch.next().map(|(name, next)| {
            self.next = next;
            name
        }))
    }
}
