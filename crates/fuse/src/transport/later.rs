//! What must wait for the kernel before it can be answered: the kernel in turn may be
//! waiting for the thread that would wait.
//!
//! The kernel cannot be interrupted while it writes back for us. Should the process be killed just
//! then, that thread keeps the connection, and all who wait for it, alive until a user writes to
//! `abort` below `/sys/fs/fuse/connections`.

use std::io;
use std::sync::{Arc, mpsc};

use super::HEADROOM;
use super::content::Slot;
use super::device::{Device, undelivered};
use super::server::{Command, Outcome, Server};
use crate::dispatch::Dispatcher;
use crate::node::NodeId;
use crate::request::Reply;
use crate::wire::abi::{LseekOut, WriteOut};
use crate::wire::{Opcode, notify, reply};

/// Nodes in one message that asks the kernel to forget them.
const PRUNE_AT_ONCE: usize = 1024;

/// A request to answer later.
#[derive(Debug)]
pub(super) enum Job {
    /// A seek for data or a hole, once the kernel has written back a range.
    Seek {
        node: NodeId,
        offset: i64,
        whence: i32,
        /// The range's start, and its length; 0: to the end of the file.
        range: (i64, i64),
    },
    /// The answer to a direct write, once the kernel has dropped its pages of the range.
    Written {
        node: NodeId,
        /// Start and length.
        range: (i64, i64),
        answer: WriteOut,
        /// Held while the kernel waits for the answer.
        _slot: Option<Slot>,
    },
    /// A change of flags: the kernel first writes back what it cached of the file, which may be
    /// immutable afterwards, and then asks for its attributes again.
    Flags(Command),
    /// A control command, once the kernel has written back all that it cached.
    Settled(Command),
    /// No answer: the kernel forgets nodes that it does not use, of very many.
    Prune,
    /// The answer to a control command, once the kernel has forgotten a name that it changed.
    Control {
        dir: NodeId,
        name: Vec<u8>,
        output: Vec<u8>,
    },
}

impl Job {
    fn opcode(&self) -> Opcode {
        match self {
            Self::Seek { .. } => Opcode::Lseek,
            Self::Written { .. } => Opcode::Write,
            Self::Prune => Opcode::BatchForget,
            Self::Settled(_) | Self::Flags(_) | Self::Control { .. } => Opcode::Ioctl,
        }
    }

    /// Tells the kernel, waits for it, and writes the answer into `out`.
    fn finish(&self, device: &Device, server: &Server, out: &mut [u8]) -> Reply<usize> {
        let dispatcher = server.dispatcher();
        match self {
            Self::Settled(command) => {
                for node in dispatcher.referenced()? {
                    if !sapwood_fault::planted(272) {
                        tell(device, &notify::inval_inode(node.0, 0, 0));
                    }
                }
                Self::command(command, device, server, out)
            }
            Self::Flags(command) => {
                let node = command.node().0;
                if !sapwood_fault::planted(266) && !sapwood_fault::planted(267) {
                    tell(device, &notify::inval_inode(node, 0, 0));
                }
                let answer = Self::command(command, device, server, out);
                if !sapwood_fault::planted(266) {
                    tell(device, &notify::inval_inode(node, -1, 0));
                }
                answer
            }
            Self::Written {
                node,
                range,
                answer,
                ..
            } => {
                tell(device, &notify::inval_inode(node.0, range.0, range.1));
                reply::put(out, answer)
            }
            Self::Prune => {
                prune(device, dispatcher);
                Ok(0)
            }
            Self::Seek {
                node,
                offset,
                whence,
                range,
            } => {
                // The kernel writes back what it drops.
                if !sapwood_fault::planted(271) {
                    tell(device, &notify::inval_inode(node.0, range.0, range.1));
                }
                found(out, dispatcher.settled_lseek(*node, *offset, *whence)?)
            }
            Self::Control { dir, name, output } => {
                if !sapwood_fault::planted(270) {
                    tell(device, &notify::inval_entry(dir.0, name));
                }
                // A negative offset: attributes only.
                tell(device, &notify::inval_inode(dir.0, -1, 0));
                reply::ioctl(out, output)
            }
        }
    }

    fn command(
        command: &Command,
        device: &Device,
        server: &Server,
        out: &mut [u8],
    ) -> Reply<usize> {
        match server.command(command, out) {
            Outcome::Answer(answer) | Outcome::Beside(answer, _) => answer,
            Outcome::Later(job) => job.finish(device, server, out),
            Outcome::Silent => Ok(0),
        }
    }
}

/// What the kernel does not know, it need not write back or forget.
fn tell(device: &Device, message: &[u8]) {
    match device.send(message) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
            log::warn!("telling the kernel to drop what it cached: {error}");
        }
        _ => {}
    }
}

/// Has the kernel forget those nodes that the engine wants to be rid of.
fn prune(device: &Device, dispatcher: &Dispatcher) {
    let nodes = dispatcher.crowd();
    for some in nodes.chunks(PRUNE_AT_ONCE) {
        if let Err(error) = device.send(&notify::prune(some)) {
            log::info!("the kernel does not forget what it does not use: {error}");
            dispatcher.set_prunes(false);
            break;
        }
    }
}

struct Handed {
    job: Job,
    to: Asker,
}

/// Where an answer goes.
enum Asker {
    /// To the request of this number, which came from there.
    Device(Arc<Device>, u64),
    /// Nowhere: the request was answered.
    Nobody,
    /// To the thread that waits for it.
    Thread(mpsc::Sender<Reply<Vec<u8>>>),
}

impl Asker {
    fn answer(self, opcode: Opcode, answer: Reply<&[u8]>) {
        let (device, unique) = match self {
            Self::Device(device, unique) => (device, unique),
            Self::Nobody => return,
            Self::Thread(waiting) => {
                // It waits as long as there is a connection.
                let _ = waiting.send(answer.map(<[u8]>::to_vec));
                return;
            }
        };
        let sent = match answer {
            Ok(payload) => device.answer(unique, payload),
            Err(errno) => device.refuse(unique, errno),
        };
        if let Err(error) = sent {
            undelivered(opcode as u32, &error);
        }
    }
}

/// A thread that answers jobs. It ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(super) struct Helper(mpsc::Sender<Handed>);

impl Helper {
    /// # Errors
    /// The thread could not be started.
    pub(super) fn start(device: &Arc<Device>, server: &Arc<Server>) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let (device, server) = (Arc::clone(device), Arc::clone(server));
        std::thread::Builder::new()
            .name("fuse-helper".to_owned())
            .spawn(move || run(&jobs, &device, &server))?;
        Ok(Self(sender))
    }

    /// Answers the request `unique`, which came from `device`, when the job is done.
    pub(super) fn hand_over(&self, device: &Arc<Device>, unique: u64, job: Job) {
        self.send(Handed {
            job,
            to: Asker::Device(Arc::clone(device), unique),
        });
    }

    /// Has the job done.
    pub(super) fn post(&self, job: Job) {
        self.send(Handed {
            job,
            to: Asker::Nobody,
        });
    }

    /// Has the job done; the payload of its answer will come.
    pub(super) fn ask(&self, job: Job) -> mpsc::Receiver<Reply<Vec<u8>>> {
        let (sender, answer) = mpsc::channel();
        self.send(Handed {
            job,
            to: Asker::Thread(sender),
        });
        answer
    }

    fn send(&self, handed: Handed) {
        if let Err(mpsc::SendError(Handed { job, to })) = self.0.send(handed) {
            to.answer(job.opcode(), Err(libc::EIO));
        }
    }
}

fn run(jobs: &mpsc::Receiver<Handed>, notifier: &Device, server: &Server) {
    let mut out = vec![0; 8 * HEADROOM];
    for Handed { job, to } in jobs {
        let done = job.finish(notifier, server, &mut out);
        to.answer(
            job.opcode(),
            done.and_then(|len| out.get(..len).ok_or(libc::EIO)),
        );
    }
}

/// The answer to a seek.
pub(super) fn found(out: &mut [u8], offset: i64) -> Reply<usize> {
    let offset = u64::try_from(offset).map_err(|_| libc::EIO)?;
    reply::put(out, &LseekOut { offset })
}
