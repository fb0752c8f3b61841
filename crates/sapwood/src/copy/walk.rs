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

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use crate::vfs::FileKind;
use parking_lot::Mutex;

use super::Existing;
use super::error::{CopyCause, CopyError, Result};
use super::nodes::{Nodes, SourceDir, Step};
use super::one::refuse_same;
use super::report::{Item, Report};
use super::side::{Meta, New, Rules, Scratch, Shown, Sink, Source, SourceNode};

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

/// A copy from one side to the other.
pub(super) struct Copy<'a> {
    pub(super) recursive: bool,
    /// Keep hard links. A named symbolic link is copied as a link.
    pub(super) links: bool,
    pub(super) existing: Existing,
    /// Copying continues after a part of a file that cannot be read.
    pub(super) keep_going: bool,
    pub(super) rules: Rules,
    pub(super) report: &'a Report<'a>,
    /// One thread makes everything in the order of the walk, and properties of the host's file
    /// system are left out. The result is reproducible.
    pub(super) canonical: bool,
}

/// The target of a copy.
pub(super) enum Target<'d> {
    /// A name in a directory, which may exist.
    Name(Sink<'d>, Vec<u8>),
    /// This directory itself.
    Directory(Sink<'d>),
    /// The content of this file.
    Content(Sink<'d>),
}

/// A destination directory that is being filled.
struct Open<'a> {
    from: Source<'a>,
    to: Sink<'a>,
    /// The copy made it: nothing else is in it.
    fresh: bool,
    parent: Option<Arc<Open<'a>>>,
}

impl<'a> SourceDir<'a> for Arc<Open<'a>> {
    fn source(&self) -> &dyn SourceNode<'a> {
        &*self.from
    }
}

/// A regular file for a worker.
struct Job<'a> {
    from: Source<'a>,
    dir: Arc<Open<'a>>,
    name: Vec<u8>,
    /// It was made already, because further names of it follow.
    made: Option<Sink<'a>>,
}

struct Walk<'w, 'a> {
    /// The source is an image, and may contain anything.
    from_image: bool,
    send: &'w mut dyn FnMut(Vec<Job<'a>>) -> Result<()>,
    /// Files for the next batch.
    batch: Vec<Job<'a>>,
    /// Number of files that ends the batch; 0: each file is handed over at once.
    batch_files: usize,
    /// Bytes of the files in the batch.
    batch_bytes: u64,
    scratch: Scratch,
    /// Path from the top of the first name of an inode that has several.
    firsts: HashMap<(u64, u64), Vec<u8>>,
    top: Option<Arc<Open<'a>>>,
}

impl<'a> Copy<'_> {
    /// Copies a source, which may be in an image, with everything below it.
    pub(super) fn tree(&self, from: Source<'a>, from_image: bool, place: Target<'a>) -> Result<()> {
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
        // The last worker drops the receiver, so a send fails once no worker is left.
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
                // The worker that failed has recorded the reason.
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

    /// Copies a source with everything below it in this thread, each file when the walk reaches it.
    fn tree_in_order(&self, from: Source<'a>, from_image: bool, place: Target<'a>) -> Result<()> {
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
                // The rest of the queue is taken, so that the walk does not block.
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

    /// Drops a reference to a directory. The last holder finishes the directory, and then releases
    /// its parent in the same way.
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

    fn walk(&self, from: Source<'a>, place: Target<'a>, walk: &mut Walk<'_, 'a>) -> Result<()> {
        let (to, fresh) = self.top(&*from, place)?;
        let top_id = to.meta().id;
        let top = Arc::new(Open {
            from,
            to,
            fresh,
            parent: None,
        });
        walk.top = Some(Arc::clone(&top));
        let mut nodes = Nodes::new(Vec::new(), walk.from_image);
        nodes.enter(top);
        while let Some(step) = nodes.next() {
            self.report.check_stop()?;
            match step {
                Step::Node(from) => match self.one(from, &nodes, top_id, walk) {
                    Ok(Some(below)) => nodes.enter(below),
                    other => self.go_on(other.map(drop))?,
                },
                Step::Failed(failure) => self.go_on(Err(failure))?,
                Step::Left(dir) => self.release(Some(dir), &mut walk.scratch)?,
            }
        }
        Ok(())
    }

    /// The directory that receives a tree, and whether the copy made it.
    fn top(&self, from: &dyn SourceNode<'a>, place: Target<'a>) -> Result<(Sink<'a>, bool)> {
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
        match dir.existing(&name)? {
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

    /// Copies the last node of a walk, or hands it to a worker; a directory is returned to be
    /// walked.
    fn one(
        &self,
        from: Source<'a>,
        nodes: &Nodes<Arc<Open<'a>>>,
        top: (u64, u64),
        walk: &mut Walk<'_, 'a>,
    ) -> Result<Option<Arc<Open<'a>>>> {
        let Some(dir) = nodes.dir() else {
            return Ok(None);
        };
        let (_, name) = nodes.place();
        let there = if dir.fresh {
            None
        } else {
            dir.to.existing(name)?
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
            name,
        });
        if meta.kind == FileKind::Directory {
            return self.directory(dir, from, there, nodes, top).map(Some);
        }
        if let Some(there) = there {
            refuse_same(&*from, &*there)?;
            if there.meta().kind == FileKind::Directory {
                return Err(CopyError::on(there.shown(), CopyCause::Directory));
            }
            dir.to.remove(name)?;
        }
        let several = self.links && meta.nlink > 1;
        if several && let Some(first) = walk.firsts.get(&meta.id) {
            match self.link(dir, name, first, walk.top.as_deref()) {
                // In another subvolume, where no link leads: a file of its own.
                Err(error) if error.crosses_subvolumes() => {}
                linked => return linked.map(|()| None),
            }
        }
        let mut made = None;
        if meta.kind != FileKind::Regular {
            self.special(&*from, &*dir.to, name, &mut walk.scratch)?;
        } else if several {
            from.open()?;
            let new = New {
                meta: &meta,
                target: b"",
            };
            made = Some(dir.to.create(name, &self.rules, &new)?);
        }
        if several {
            walk.firsts.insert(meta.id, nodes.path().to_vec());
        }
        if meta.kind == FileKind::Regular {
            walk.add(Job {
                from,
                dir: Arc::clone(dir),
                name: name.to_vec(),
                made,
            })?;
        }
        Ok(None)
    }

    /// Makes or finds the directory of the destination for the last node, which is a directory.
    fn directory(
        &self,
        dir: &Arc<Open<'a>>,
        from: Source<'a>,
        there: Option<Sink<'a>>,
        nodes: &Nodes<Arc<Open<'a>>>,
        top: (u64, u64),
    ) -> Result<Arc<Open<'a>>> {
        if from.meta().id == top {
            return Err(CopyError::on(from.shown(), CopyCause::IntoItself));
        }
        nodes.check(&*from)?;
        let (to, fresh) = match there {
            None => {
                let new = New {
                    meta: from.meta(),
                    target: b"",
                };
                let (_, name) = nodes.place();
                (dir.to.create(name, &self.rules, &new)?, true)
            }
            Some(there) if there.meta().kind == FileKind::Directory => (there, false),
            Some(there) => {
                return Err(CopyError::on(
                    there.shown(),
                    CopyCause::NotReplacedByDirectory,
                ));
            }
        };
        let parent = Some(Arc::clone(dir));
        Ok(Arc::new(Open {
            from,
            to,
            fresh,
            parent,
        }))
    }

    /// Makes a hard link to a file that was copied. The path of the file is resolved from the top
    /// of the destination, without following links.
    fn link(
        &self,
        dir: &Open<'a>,
        name: &[u8],
        first: &[u8],
        top: Option<&Open<'a>>,
    ) -> Result<()> {
        let Some(top) = top else { return Ok(()) };
        let mut at: Option<Sink<'a>> = None;
        let mut parts = first.split(|byte| *byte == b'/');
        let old = parts.next_back().unwrap_or(first);
        for part in parts {
            let from = at.as_ref().map_or(&top.to, |at| at);
            let gone = || CopyError::on(from.shown(), CopyCause::Changed);
            let below = from
                .existing(part)?
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
