//! Receiving into a mount of a btrfs by Sapwood: its daemon executes the commands in process, which
//! takes no system calls. The client reads the stream.

use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use super::super::ahead::with_ahead;
use super::super::error::{ReceiveError, Result};
use super::super::image::ImageSink;
use super::super::noticed::{NoticedSink, Receiving, Touched};
use super::super::reader::failed;
use super::super::run::receive_commands;
use super::super::{ReceiveOptions, ReceiveReport};
use super::mounted;
use crate::bulk::frames::{Frame, MOST, Request, send_piece};
use crate::image::Mounted;
use crate::progress::{OnProgress, Progress};
use crate::seal::Verified;
use crate::tree::HeldInode;

/// Bytes of the stream that are sent at once.
const PIECE: usize = MOST / 4;

/// A connection to the daemon of the mount that the directory is in. `None` if it is in none, or if
/// the daemon does not receive for this process: then system calls do it.
pub(super) fn connect(dir: &Path) -> Option<UnixStream> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir: OwnedFd = rustix::fs::openat(CWD, dir, flags, Mode::empty()).ok()?;
    if !mounted::has_subvolumes(&dir) {
        return None;
    }
    sapwood_fuse::bulk::connect_for_streams(dir.as_fd())
        .inspect_err(|error| log::debug!("without the daemon's help: {error}"))
        .ok()
}

/// Has the daemon receive a stream.
pub(super) fn receive(
    socket: &UnixStream,
    reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let sent = match &options.seal {
        Some(seal) => send(socket, Verified::new(seal, reader), options, progress),
        None => send(socket, reader, options, progress),
    };
    // Without the mark of the end the daemon keeps what it has, and records the position.
    let _ = socket.shutdown(Shutdown::Write);
    let answer = answer(socket);
    match (sent, answer) {
        // The daemon's reason is the cause of a broken connection.
        (Err(ReceiveError::Daemon(_)) | Ok(()), answer) => answer,
        (Err(error), _) => Err(error),
    }
}

/// Sends the request and the stream.
fn send(
    socket: &UnixStream,
    mut reader: impl Read,
    options: &ReceiveOptions,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let lost = |error: io::Error| ReceiveError::Daemon(error.to_string());
    let mut out = BufWriter::with_capacity(PIECE, socket);
    let request = Request::Receive {
        resume: options.resume,
        checkpoint: options.checkpoint,
        expand: options.expand,
    };
    Frame::Request(request).send(&mut out).map_err(lost)?;
    let (mut buffer, mut done) = (vec![0; PIECE], 0_u64);
    loop {
        if options.stop.is_stopped() {
            return Err(ReceiveError::Stopped);
        }
        let len = match reader.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        if len == 0 {
            break;
        }
        let piece = buffer.get(..len).unwrap_or_default();
        send_piece(&mut out, piece).map_err(lost)?;
        done = done.saturating_add(len as u64);
        progress(Progress::Bytes(done));
    }
    Frame::End.send(&mut out).map_err(lost)?;
    out.flush().map_err(lost)
}

/// The daemon's result.
fn answer(mut socket: &UnixStream) -> Result<ReceiveReport> {
    let mut subvolumes = Vec::new();
    loop {
        match Frame::receive(&mut socket) {
            Ok(Frame::Subvolume(name)) => subvolumes.push(name),
            Ok(Frame::Received(received)) => {
                return Ok(ReceiveReport {
                    subvolumes,
                    commands: received.commands,
                    content: received.content,
                    left_out: Vec::new(),
                });
            }
            Ok(Frame::Failed(why)) => return Err(ReceiveError::Daemon(why)),
            Ok(_) => return Err(ReceiveError::Daemon("it sends no result".to_owned())),
            Err(error) => return Err(ReceiveError::Daemon(error.to_string())),
        }
    }
}

/// Creates the subvolumes of the stream that comes from a socket in a directory of a mounted image,
/// and reports each change. A thread reads the stream ahead.
///
/// # Errors
/// The errors of [`FileSystem::receive`](crate::FileSystem::receive).
pub(crate) fn receive_mounted(
    image: &Mounted,
    dir: HeldInode<'_>,
    (socket, reader): (&UnixStream, impl Read + Send),
    options: &ReceiveOptions,
    receiving: &Receiving,
    noticed: &dyn Fn(Touched<'_>),
) -> Result<ReceiveReport> {
    let ino = dir.ino();
    let inner = ImageSink::in_directory(image, dir, options);
    let mut sink = NoticedSink::new(inner, ino, receiving, noticed);
    let progress = &mut crate::progress::ignore;
    // After an error the thread may still wait for the client.
    let interrupt = || drop(socket.shutdown(Shutdown::Read));
    with_ahead(reader, interrupt, |commands| {
        receive_commands(&mut sink, commands, options, progress)
    })
}
