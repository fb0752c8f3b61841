//! The daemon of a mount sends and receives snapshots for its owner and root.
//!
//! # How it works
//! The client has the snapshot, or the directory that receives, open. It requests the work over a
//! connection of its own ([`frames`](crate::bulk::frames)), so the kernel's requests continue
//! meanwhile. A sent snapshot is read-only, and a received one is reported to the kernel's caches.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sapwood_fuse::bulk::{Admitted, Caches, Service, Work};
use sapwood_vfs::FileSystem;

use super::writing::Engines;
use crate::bulk::frames::{Frame, MOST, Received, Request, Sent, Top, send_piece};
use crate::image::Mounted;
use crate::progress::Progress;
use crate::receive::{ReceiveOptions, Receiving, Touched, receive_mounted};
use crate::send::{MountedSnapshot, SendOptions, send_mounted};
use crate::tree::HeldInode;
use crate::write_behind::WriteBehind;

/// Interval between reports of progress.
const INTERVAL: Duration = Duration::from_millis(100);
/// Pieces of a received stream between two looks at the flags of the mount.
const LOOK: u32 = 64;

/// See the module.
pub(super) struct Streams {
    engines: Arc<Engines>,
    receiving: Receiving,
}

impl Service for Streams {
    fn run(&self, work: Work) {
        let answer = match self.serve(&work) {
            Ok(answer) => answer,
            Err(why) => Frame::Failed(why),
        };
        if let Err(error) = answer.send(&mut &work.socket) {
            log::info!("a process that sends or receives snapshots is gone: {error}");
        }
        // The client may still be sending.
        let _ = work.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Streams {
    pub(super) fn new(engines: Arc<Engines>) -> Self {
        Self {
            engines,
            receiving: Receiving::default(),
        }
    }

    /// Serves a client. Returns the last frame, or the reason of the failure.
    fn serve(&self, work: &Work) -> Result<Frame, String> {
        let failed = |error: io::Error| error.to_string();
        let admitted = work.identify().map_err(failed)?;
        let frame = Frame::receive(&mut &work.socket).map_err(failed)?;
        let Frame::Request(request) = frame else {
            return Err("the client requests nothing".to_owned());
        };
        // The engine stays meanwhile.
        let _in_use = self.engines.in_use.read();
        let image = self.engines.current().clone();
        match request {
            Request::Send {
                top,
                name,
                version,
                compressed,
                data,
                parent,
                clone_sources,
            } => {
                use std::os::unix::ffi::OsStringExt;

                // The kernel keeps the inode of the command.
                let top = Top {
                    ino: work.dir.0,
                    ..top
                };
                let wanted = MountedSnapshot {
                    top,
                    parent,
                    clone_sources,
                };
                let options = SendOptions {
                    name: Some(std::ffi::OsString::from_vec(name)),
                    version,
                    compressed,
                    data,
                    ..SendOptions::default()
                };
                send(&image, &wanted, &work.socket, &options).map(Frame::Sent)
            }
            Request::Receive {
                resume,
                checkpoint,
                expand,
            } => {
                if !matches!(image, Mounted::Btrfs(_)) {
                    return Err("a mount of ext4 receives by system calls".to_owned());
                }
                admitted.check_writable().map_err(failed)?;
                let options = ReceiveOptions {
                    resume,
                    checkpoint,
                    expand,
                    ..ReceiveOptions::default()
                };
                self.receive(&image, work, &admitted, &options)
            }
        }
    }

    /// Receives the stream of the client in its directory. Returns the last frame.
    fn receive(
        &self,
        image: &Mounted,
        work: &Work,
        admitted: &Admitted,
        options: &ReceiveOptions,
    ) -> Result<Frame, String> {
        let failed = |error: crate::vfs::Error| error.to_string();
        let fs: &dyn FileSystem = &**image;
        let dir = HeldInode::held(fs, work.dir).map_err(failed)?;
        let noticed = |touched: Touched<'_>| report(&work.caches, touched);
        let stream = ReceivedStream {
            socket: &work.socket,
            admitted,
            piece: io::Cursor::default(),
            pieces: 0,
            ended: false,
        };
        let stream = (&work.socket, stream);
        let report = receive_mounted(image, dir, stream, options, &self.receiving, &noticed);
        if work.synchronous {
            fs.sync().map_err(failed)?;
        }
        let report = report.map_err(|error| error.to_string())?;
        for name in report.subvolumes {
            // A client that has closed the connection does not read the result.
            let _ = Frame::Subvolume(name).send(&mut &work.socket);
        }
        Ok(Frame::Received(Received {
            commands: report.commands,
            content: report.content,
        }))
    }
}

/// Sends a snapshot to the client.
fn send(
    image: &Mounted,
    wanted: &MountedSnapshot,
    socket: &UnixStream,
    options: &SendOptions,
) -> Result<Sent, String> {
    let fs = match image {
        Mounted::Btrfs(fs) => fs,
        Mounted::Ext4(_) => return Err("an ext4 image is sent while it is not mounted".to_owned()),
        Mounted::Rescued(..) => return Err("only a sound image can be sent".to_owned()),
    };
    // A frame is not divided by another one.
    let whole = Arc::<Mutex<()>>::default();
    let pieces = Pieces {
        socket: socket.try_clone().map_err(|error| error.to_string())?,
        whole: Arc::clone(&whole),
    };
    let mut last = Instant::now();
    let mut progress = |step: Progress<'_>| {
        // The clock is read for few inodes only.
        if let Progress::Done { done, .. } = step
            && done % 16 == 0
            && last.elapsed() >= INTERVAL
        {
            last = Instant::now();
            let _whole = whole.lock();
            if Frame::Progress(done).send(&mut &*socket).is_err() {
                options.stop.stop();
            }
        }
    };
    let mut out = WriteBehind::new(pieces).map_err(|error| error.to_string())?;
    let sent = send_mounted(fs, wanted, &mut out, options, &mut progress);
    let sent = sent.map_err(|error| error.to_string())?;
    out.flush().map_err(|error| error.to_string())?;
    Ok(sent)
}

/// Writes a stream as frames.
struct Pieces {
    socket: UnixStream,
    /// Held while a frame is sent.
    whole: Arc<Mutex<()>>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..MOST).unwrap_or(bytes);
        let _whole = self.whole.lock();
        send_piece(&mut self.socket, piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn report(caches: &Caches, touched: Touched<'_>) {
    match touched {
        Touched::Name(dir, name) => caches.name_changed(dir, name),
        Touched::Inode(ino) => caches.content_changed(ino),
    }
}

/// The stream that a client sends.
struct ReceivedStream<'s> {
    socket: &'s UnixStream,
    admitted: &'s Admitted,
    piece: io::Cursor<Vec<u8>>,
    pieces: u32,
    ended: bool,
}

impl Read for ReceivedStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.piece.read(buf)?;
            if count > 0 || buf.is_empty() || self.ended {
                return Ok(count);
            }
            if self.pieces.is_multiple_of(LOOK) {
                self.admitted.check_writable()?;
            }
            self.pieces = self.pieces.wrapping_add(1);
            match Frame::receive(&mut self.socket)? {
                Frame::Stream(piece) => self.piece = io::Cursor::new(piece),
                Frame::End => self.ended = true,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}
