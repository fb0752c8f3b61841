//! Going through a tree.
//!
//! # How it works
//! One thread goes through the source, makes directories and whatever holds no data, and hands regular files to others, as
//! many as there are processors. What depends on that comes when they are done: further names of a file; then mode, owner and
//! times of directories, which all that is made in them changes. The first error ends the copy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use sapwood_vfs::FileKind;

use super::super::failure::{Failure, Result};
use super::{Meta, Scratch, Side, join};

/// Files that wait for a thread.
const WAITING: usize = 256;
const MOST_THREADS: usize = 8;

/// A copy from one side to the other.
pub(super) struct Copy<'a> {
    pub(super) from: &'a dyn Side,
    pub(super) to: &'a dyn Side,
    pub(super) recursive: bool,
    pub(super) archive: bool,
    pub(super) bar: &'a ProgressBar,
}

/// A file or directory to copy: where it is, where it goes, what is known of it.
struct Item {
    from: Vec<u8>,
    to: Vec<u8>,
    meta: Meta,
}

/// A directory whose content is being copied.
struct Open {
    from: Vec<u8>,
    to: Vec<u8>,
    /// It was made just now: nothing is in it.
    fresh: bool,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// What comes last, and who is told of files.
struct Walk<'w> {
    send: &'w mut dyn FnMut(Item) -> Result<()>,
    scratch: Scratch,
    /// Where the first name of an inode with several goes.
    firsts: HashMap<(u64, u64), Vec<u8>>,
    /// Further names: of what, and where.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    /// Directories, each before those in it.
    dirs: Vec<Item>,
}

impl Copy<'_> {
    /// Copies what is at `from`, with all below it, to `to`.
    pub(super) fn tree(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let (failed, first) = (AtomicBool::new(false), Mutex::new(None));
        let fail = |failure| {
            first.lock().get_or_insert(failure);
            failed.store(true, Ordering::Relaxed);
        };
        let (sender, jobs) = sync_channel(WAITING);
        // It goes with the last of the threads, so that nobody sends to none.
        let jobs = Arc::new(Mutex::new(jobs));
        let (links, dirs, mut scratch) = thread::scope(|scope| {
            for _ in 0..threads.min(MOST_THREADS) {
                let (jobs, failed, fail) = (Arc::clone(&jobs), &failed, &fail);
                scope.spawn(move || self.serve(&jobs, failed, fail));
            }
            drop(jobs);
            let sender = sender;
            let mut send = |item| {
                // Who failed has said why.
                let sent = !failed.load(Ordering::Relaxed) && sender.send(item).is_ok();
                sent.then_some(())
                    .ok_or_else(|| Failure::on(self.to.shown(to), "not copied"))
            };
            let mut walk = Walk {
                send: &mut send,
                scratch: Scratch::default(),
                firsts: HashMap::new(),
                links: Vec::new(),
                dirs: Vec::new(),
            };
            if let Err(failure) = self.walk(from, to, &mut walk) {
                fail(failure);
            }
            let Walk {
                links,
                dirs,
                scratch,
                ..
            } = walk;
            drop(sender);
            (links, dirs, scratch)
        });
        if let Some(failure) = first.into_inner() {
            return Err(failure);
        }
        for (first, to) in links {
            self.to.link(&first, &to)?;
        }
        for dir in dirs.iter().rev() {
            self.finish(dir, &mut scratch)?;
        }
        Ok(())
    }

    /// Copies files until there are none.
    fn serve(&self, jobs: &Mutex<Receiver<Item>>, failed: &AtomicBool, fail: &dyn Fn(Failure)) {
        let mut scratch = Scratch::default();
        loop {
            let next = jobs.lock().recv();
            let Ok(item) = next else { return };
            // The others are taken, so that nobody waits for room.
            if failed.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(failure) = self.file(&item, &mut scratch) {
                fail(failure);
            }
        }
    }

    fn walk(&self, from: &[u8], to: &[u8], walk: &mut Walk<'_>) -> Result<()> {
        let mut open: Vec<Open> = self.one(from, to, None, walk)?.into_iter().collect();
        while let Some(dir) = open.last_mut() {
            let Some(name) = dir.names.next() else {
                open.pop();
                continue;
            };
            let (from, to) = (join(&dir.from, &name), join(&dir.to, &name));
            let fresh = dir.fresh;
            if let Some(below) = self.one(&from, &to, Some(fresh), walk)? {
                open.push(below);
            }
        }
        Ok(())
    }

    /// Copies one thing, or hands it on; a directory is returned to be gone through. `fresh`: whether the directory that it
    /// goes to was made just now; nothing for the top.
    fn one(
        &self,
        from: &[u8],
        to: &[u8],
        fresh: Option<bool>,
        walk: &mut Walk<'_>,
    ) -> Result<Option<Open>> {
        let meta = match self.archive || fresh.is_some() {
            true => self.from.meta(from)?,
            false => self.from.meta_followed(from)?,
        };
        let meta =
            meta.ok_or_else(|| Failure::on(self.from.shown(from), "no such file or directory"))?;
        self.bar.inc(1);
        let there = match fresh {
            Some(true) => None,
            _ => self.to.meta(to)?,
        };
        let item = Item {
            from: from.to_vec(),
            to: to.to_vec(),
            meta,
        };
        if item.meta.kind == FileKind::Directory {
            return self.directory(item, there.is_none(), walk).map(Some);
        }
        if let Some(there) = there {
            if there.kind == FileKind::Directory {
                return Err(Failure::on(self.to.shown(to), "is a directory"));
            }
            self.to.remove(to)?;
        }
        if self.archive && item.meta.nlink > 1 {
            if let Some(first) = walk.firsts.get(&item.meta.id) {
                walk.links.push((first.clone(), item.to));
                return Ok(None);
            }
            walk.firsts.insert(item.meta.id, item.to.clone());
        }
        if item.meta.kind == FileKind::Regular {
            (walk.send)(item)?;
        } else {
            self.special(&item, &mut walk.scratch)?;
        }
        Ok(None)
    }

    fn directory(&self, item: Item, fresh: bool, walk: &mut Walk<'_>) -> Result<Open> {
        if !self.recursive {
            return Err(Failure::on(
                self.from.shown(&item.from),
                "is a directory; -r copies it",
            ));
        }
        if fresh {
            self.to.make(&item.to, &item.meta, b"")?;
        }
        let open = Open {
            from: item.from.clone(),
            to: item.to.clone(),
            fresh,
            names: self.from.list(&item.from)?.into_iter(),
        };
        walk.dirs.push(item);
        Ok(open)
    }

    fn special(&self, item: &Item, scratch: &mut Scratch) -> Result<()> {
        let target = match item.meta.kind {
            FileKind::Symlink => self.from.read_link(&item.from)?,
            _ => Vec::new(),
        };
        self.to.make(&item.to, &item.meta, &target)?;
        self.finish(item, scratch)
    }

    fn file(&self, item: &Item, scratch: &mut Scratch) -> Result<()> {
        self.to.make(&item.to, &item.meta, b"")?;
        if item.meta.size > 0 {
            let source = self.from;
            let mut fill = |sink: &mut super::Sink<'_>| source.read(&item.from, scratch, sink);
            self.to.write(&item.to, item.meta.size, &mut fill)?;
        }
        self.finish(item, scratch)
    }

    fn finish(&self, item: &Item, scratch: &mut Scratch) -> Result<()> {
        if !self.archive {
            return Ok(());
        }
        let xattrs = self.from.xattrs(&item.from, scratch)?;
        if !xattrs.is_empty() {
            self.to.set_xattrs(&item.to, &xattrs)?;
        }
        self.to.set_meta(&item.to, &item.meta)
    }
}
