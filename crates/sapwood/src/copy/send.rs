//! Copies into a mounted image that the daemon of the mount makes (`bulk`).
//!
//! The source is walked and read here, with the rights of this process, and sent to the daemon,
//! which makes the files with the rights of this process. A thread takes the daemon's messages, so
//! that neither side waits for the other to read.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::mpsc::channel;
use std::thread;

use super::Existing;
use super::error::{CopyCause, CopyError, Result};
use super::nodes::{Nodes, Step, attributes_of, entry_of};
use super::report::{Item, Report};
use super::side::{Handle, Rules, Scratch, Shown, Sink, SinkNode, Source, SourceNode};
use super::unpack::{UntarError, refuse_whiteout};
use super::walk::{Copy, Target};
use crate::archive::{ArchiveError, Entries, Entry, EntryKind, PIECE, tar_entries};
use crate::bulk::{self, Content, Message, Reason, Receiver, Sender, Work};
use crate::damage::Damage;
use crate::shown;
use crate::vfs::FileKind;

/// Has a daemon extract an archive into the directory `dir`. Gives the archive back if no daemon
/// does.
pub(super) fn archive<R: Read + Send + 'static>(
    dir: &dyn SinkNode<'_>,
    archive: R,
    umask: u32,
    report: &Report<'_>,
) -> std::result::Result<std::result::Result<(), UntarError>, R> {
    let connected = match dir.handle() {
        Ok(Handle::Fd(fd)) => bulk::connect(fd, Work::Extract, umask),
        _ => None,
    };
    let Some((mut sender, receiver)) = connected else {
        return Err(archive);
    };
    let (done, sent) = channel();
    let name = "bulk-send".to_owned();
    let thread = thread::Builder::new().name(name).spawn(move || {
        let sent = send_archive(archive, &mut sender);
        // The receiver is gone if the caller failed. The error is in the channel before the drop of
        // the sender makes the daemon fail.
        let _ = done.send(sent);
    });
    if let Err(error) = thread {
        return Ok(Err(CopyError::on(dir.shown(), error).into()));
    }
    Ok(receive(receiver, &dir.shown(), report).map_err(|failure| {
        // If the archive could not be read, that is why the daemon failed.
        match sent.try_recv() {
            Ok(Err(error)) => error.into(),
            _ => failure.into(),
        }
    }))
}

fn send_archive(
    archive: impl Read + Send,
    sender: &mut Sender,
) -> std::result::Result<(), ArchiveError> {
    tar_entries(archive, |entries| send_entries(entries, sender))
}

fn send_entries(
    entries: &mut dyn Entries,
    sender: &mut Sender,
) -> std::result::Result<(), ArchiveError> {
    let mut piece = vec![0; PIECE];
    while let Some(entry) = entries.next()? {
        refuse_whiteout(&entry.path)?;
        let mut sent = sender.entry(&entry);
        if entry.size > 0 {
            loop {
                let (at, count) = entries.read(&mut piece)?;
                if count == 0 || sent.is_err() {
                    break;
                }
                sent = sender.content(at, piece.get(..count).unwrap_or_default());
            }
            sent = sent.and_then(|()| sender.end_content(Content::Complete));
        }
        match sent {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error.into()),
            // The daemon has failed, and sends the reason.
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
    }
    // The daemon may have failed; then it sends the reason.
    let _ = sender.end();
    Ok(())
}

/// Takes the daemon's messages until the work ends.
fn receive(mut receiver: Receiver, to: &str, report: &Report<'_>) -> Result<()> {
    loop {
        match receiver.next() {
            Ok(Message::Done(done)) => report.until(done),
            Ok(Message::LeftOut(reason)) => report.failed(failure(to, reason)),
            Ok(Message::End(done)) => {
                report.until(done);
                return Ok(());
            }
            Ok(Message::Failed(reason)) => return Err(failure(to, reason).that_ends()),
            Err(_) => return Err(CopyError::on(to, CopyCause::DaemonEnded).that_ends()),
        }
    }
}

fn failure(to: &str, reason: Reason) -> CopyError {
    let place = match reason.path.as_slice() {
        b"" | b"." => to.to_owned(),
        path => shown_below(to, path),
    };
    match reason.errno {
        Some(errno) => CopyError::on(place, io::Error::from_raw_os_error(errno)),
        None => CopyError::on(place, CopyCause::Daemon(reason.text)),
    }
}

fn shown_below(to: &str, path: &[u8]) -> String {
    let slash = if to.ends_with('/') { "" } else { "/" };
    format!("{to}{slash}{}", shown::name(path))
}

/// Has a daemon make a copy of a directory. Gives the operands back if no daemon does, or if it
/// does not know the rules of this copy.
pub(super) fn tree<'a>(
    copy: &Copy<'_>,
    from: Source<'a>,
    from_image: bool,
    place: Target<'a>,
) -> std::result::Result<Result<()>, (Source<'a>, Target<'a>)> {
    let Some((sender, receiver)) = connect(copy, &from, from_image, &place) else {
        return Err((from, place));
    };
    let (dir, name) = match place {
        Target::Name(dir, name) => (dir, name),
        Target::Directory(dir) => (dir, Vec::new()),
        Target::Content(_) => return Err((from, place)),
    };
    let to = dir.shown();
    let result = thread::scope(|scope| {
        let answers = scope.spawn(|| receive(receiver, &to, copy.report));
        let mut walk = Walk {
            copy,
            sender,
            to: &to,
            dir: &dir,
            name,
            scratch: Scratch::default(),
            firsts: HashMap::new(),
        };
        let walked = walk.run(from);
        drop(walk);
        let answered = answers.join();
        let answered = answered.unwrap_or_else(|_| Err(lost(&to)));
        match walked {
            // This failure made the sender stop. The daemon's own error would only report the end
            // of the entries.
            Err(failure) if !matches!(failure.cause(), CopyCause::DaemonEnded) => Err(failure),
            _ => answered,
        }
    });
    Ok(result)
}

/// Connects to the daemon that can make a copy.
fn connect<'a>(
    copy: &Copy<'_>,
    from: &Source<'a>,
    from_image: bool,
    place: &Target<'a>,
) -> Option<(Sender, Receiver)> {
    let Rules {
        archive,
        owner,
        mode,
        ..
    } = copy.rules;
    let plain = copy.links && archive && owner.is_none() && mode.is_none();
    if from_image || !plain || copy.existing != Existing::Replace {
        return None;
    }
    let (dir, top) = match place {
        Target::Name(dir, name) => (dir, dir.existing(name).ok()?),
        Target::Directory(dir) => (dir, None),
        Target::Content(_) => return None,
    };
    // Within a mount a file could be copied onto itself.
    let elsewhere = from.meta().id.0 != dir.meta().id.0;
    let fits = top.is_none_or(|top| top.meta().kind == FileKind::Directory);
    match dir.handle() {
        Ok(Handle::Fd(fd)) if elsewhere && fits => bulk::connect(fd, Work::Copy, 0),
        _ => None,
    }
}

fn lost(to: &str) -> CopyError {
    CopyError::on(to, CopyCause::DaemonEnded).that_ends()
}

struct Walk<'w, 'c, 'a> {
    copy: &'w Copy<'c>,
    sender: Sender,
    /// The directory of the destination, as people know it.
    to: &'w str,
    dir: &'w Sink<'a>,
    /// Name of the copy in it; empty for the directory itself.
    name: Vec<u8>,
    scratch: Scratch,
    /// Paths of the first name of an inode that has several.
    firsts: HashMap<(u64, u64), Vec<u8>>,
}

/// A directory of the destination, as text.
struct Place<'p>(&'p str, &'p [u8]);

impl Shown for Place<'_> {
    fn shown(&self) -> String {
        match self.1 {
            b"" => self.0.to_owned(),
            path => shown_below(self.0, path),
        }
    }
}

impl<'a> Walk<'_, '_, 'a> {
    fn run(&mut self, from: Source<'a>) -> Result<()> {
        let mut nodes = Nodes::new(self.name.clone(), false);
        self.enter(from, &mut nodes)?;
        while let Some(step) = nodes.next() {
            self.copy.report.check_stop()?;
            let from = match step {
                Step::Node(from) => from,
                Step::Failed(failure) => {
                    self.copy.go_on(Err(failure))?;
                    continue;
                }
                Step::Left(_) => continue,
            };
            let (dir, name) = nodes.place();
            self.copy.report.one(&Item {
                from: &from,
                to: &Place(self.to, dir),
                name,
            });
            if from.meta().kind != FileKind::Directory {
                let sent = self.one(&*from, nodes.path());
                self.copy.go_on(sent)?;
                continue;
            }
            match nodes.check(&*from).and_then(|()| self.refuse(&*from)) {
                Ok(()) => self.enter(from, &mut nodes)?,
                refused => self.copy.go_on(refused)?,
            }
        }
        self.sender.end().map_err(|_| lost(self.to))
    }

    /// Refuses the directory that the copy goes to.
    fn refuse(&self, from: &dyn SourceNode<'a>) -> Result<()> {
        let id = from.meta().id;
        if id.0 != self.dir.meta().id.0 {
            return Ok(());
        }
        let top = if self.name.is_empty() {
            Some(self.dir.meta().id)
        } else {
            self.dir.existing(&self.name)?.map(|top| top.meta().id)
        };
        if top == Some(id) {
            Err(CopyError::on(from.shown(), CopyCause::IntoItself))
        } else {
            Ok(())
        }
    }

    /// Sends the directory that is the last node, and enters it.
    fn enter(&mut self, dir: Source<'a>, nodes: &mut Nodes<Source<'a>>) -> Result<()> {
        let sent = self.node(&*dir, nodes.path());
        nodes.enter(dir);
        self.copy.go_on(sent)
    }

    /// Sends what is no directory.
    fn one(&mut self, from: &dyn SourceNode<'a>, path: &[u8]) -> Result<()> {
        let meta = from.meta();
        let several = meta.nlink > 1;
        if several && let Some(first) = self.firsts.get(&meta.id) {
            let entry = Entry {
                path: path.to_vec(),
                kind: EntryKind::Link(first.clone()),
                attributes: attributes_of(meta, Vec::new()),
                size: 0,
            };
            return self.send(from, &entry);
        }
        let damage = if meta.kind == FileKind::Regular {
            self.file(from, path)?
        } else {
            self.node(from, path).map(|()| None)?
        };
        if several {
            self.firsts.insert(meta.id, path.to_vec());
        }
        match damage {
            None => Ok(()),
            Some(damage) => Err(CopyError::on(from.shown(), CopyCause::Damaged(damage))),
        }
    }

    /// Sends a file; returns its unreadable parts.
    fn file(&mut self, from: &dyn SourceNode<'a>, path: &[u8]) -> Result<Option<Damage>> {
        from.open()?;
        let size = from.meta().size;
        self.node(from, path)?;
        if size == 0 {
            return Ok(None);
        }
        let mut salvage = self.copy.salvage();
        let Self {
            copy,
            sender,
            to,
            scratch,
            ..
        } = self;
        let read = from.read(scratch, &mut salvage, &mut |at, data| {
            copy.report.check_stop()?;
            sender.content(at, data).map_err(|_| lost(to))?;
            copy.report.bytes(data.len() as u64);
            Ok(())
        });
        let read = read.and_then(|()| copy.report.check_stop());
        let ended = sender.end_content(match (&read, salvage.length(size)) {
            (Err(_), _) => Content::Incomplete,
            (Ok(()), length) if length < size => Content::Cut(length),
            (Ok(()), _) => Content::Complete,
        });
        read.and(ended.map_err(|_| lost(to)))?;
        Ok(salvage.found())
    }

    /// Sends a node. Its content follows.
    fn node(&mut self, from: &dyn SourceNode<'a>, path: &[u8]) -> Result<()> {
        let xattrs = from.xattrs(&mut self.scratch)?;
        let entry = entry_of(from, path.to_vec(), xattrs)?;
        self.send(from, &entry)
    }

    fn send(&mut self, from: &dyn SourceNode<'a>, entry: &Entry) -> Result<()> {
        let sent = self.sender.entry(entry);
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => CopyError::on(from.shown(), error),
            _ => lost(self.to),
        })
    }
}
