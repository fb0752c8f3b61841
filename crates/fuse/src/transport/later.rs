//! Jobs that must wait for the kernel before they are answered. They run in a helper thread,
//! because the kernel may in turn wait for the request thread.
//!
//! The kernel's write-back for such a job cannot be interrupted. If the process is killed
//! meanwhile, the helper thread keeps the connection, and all callers that wait for it, alive until
//! a user writes to `abort` below `/sys/fs/fuse/connections`.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, mpsc};

use super::device::{Device, HEADROOM, undelivered};
use super::pages::Slot;
use crate::bulk::Notify;
use crate::dispatch::Dispatcher;
use crate::node::NodeId;
use crate::request::{Caller, ControlAnswer, Reply};
use crate::wire::abi::{IoctlOut, WriteOut};
use crate::wire::{Opcode, notify, reply};

/// Most nodes in one message that asks the kernel to forget them.
const PRUNE_AT_ONCE: usize = 1024;

/// The next step for a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Answer it, with this number of bytes or an errno.
    Answer(Reply<usize>),
    /// Send no answer: the kernel expects none.
    Silent,
    /// Complete the job first, outside the request threads, then answer.
    Later(Job),
    /// Answer it now, and run the job some time.
    AnswerThen(Reply<usize>, Job),
}

impl From<Reply<usize>> for Outcome {
    fn from(reply: Reply<usize>) -> Self {
        Self::Answer(reply)
    }
}

/// A request to answer later.
#[derive(Debug)]
pub(super) enum Job {
    /// A seek for data or a hole, after the kernel has written back a range.
    Seek {
        node: NodeId,
        offset: i64,
        whence: i32,
        /// The range's start and length; a length of 0 means to the end of the file.
        range: (i64, i64),
    },
    /// The answer to a direct write, after the kernel has dropped its pages of the range.
    Written {
        node: NodeId,
        /// Start and length.
        range: (i64, i64),
        answer: WriteOut,
        /// Held until the kernel has dropped the pages.
        _slot: Option<Slot>,
    },
    /// A change of flags: the kernel first writes back the dirty pages of the file, which may be
    /// immutable afterwards, and asks for its attributes again later.
    Flags(Command),
    /// A control command, after the kernel has written back all dirty pages.
    Settled(Command),
    /// Asks the kernel to forget unused nodes. Has no answer.
    Prune,
    /// The answer to a control command, after the kernel has dropped a name that the command
    /// changed.
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

    /// Sends the notification, waits for the kernel to handle it, and writes the answer into `out`.
    fn finish(
        &self,
        device: &Device,
        dispatcher: &Arc<Dispatcher>,
        out: &mut [u8],
    ) -> Reply<usize> {
        match self {
            Self::Settled(command) => {
                for node in dispatcher.perhaps_dirty()? {
                    notify_kernel(device, &notify::inval_inode(node.0, 0, 0));
                }
                Self::command(command, device, dispatcher, out)
            }
            Self::Flags(command) => {
                let node = command.node.0;
                notify_kernel(device, &notify::inval_inode(node, 0, 0));
                let answer = Self::command(command, device, dispatcher, out);
                notify_kernel(device, &notify::inval_inode(node, -1, 0));
                answer
            }
            Self::Written {
                node,
                range,
                answer,
                ..
            } => {
                notify_kernel(device, &notify::inval_inode(node.0, range.0, range.1));
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
                // The kernel writes dirty pages back before it drops them.
                notify_kernel(device, &notify::inval_inode(node.0, range.0, range.1));
                reply::offset(out, dispatcher.settled_lseek(*node, *offset, *whence)?)
            }
            Self::Control { dir, name, output } => {
                notify_kernel(device, &notify::inval_entry(dir.0, name));
                // A negative offset drops only the attributes.
                notify_kernel(device, &notify::inval_inode(dir.0, -1, 0));
                reply::ioctl(out, output)
            }
        }
    }

    fn command(
        command: &Command,
        device: &Device,
        dispatcher: &Arc<Dispatcher>,
        out: &mut [u8],
    ) -> Reply<usize> {
        match guarded(dispatcher, || command.run(dispatcher, out)) {
            Outcome::Answer(answer) | Outcome::AnswerThen(answer, _) => answer,
            Outcome::Later(job) => job.finish(device, dispatcher, out),
            Outcome::Silent => Ok(0),
        }
    }
}

/// A control command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) who: Caller,
    pub(super) node: NodeId,
    pub(super) number: u32,
    pub(super) input: Vec<u8>,
    /// Bytes that fit into the caller's buffer.
    pub(super) out_size: usize,
}

impl Command {
    /// Runs it. The answer goes to the start of `out`.
    pub(super) fn run(&self, to: &Dispatcher, out: &mut [u8]) -> Outcome {
        let room = out.len().saturating_sub(size_of::<IoctlOut>());
        let most = self.out_size.min(room);
        match to.ioctl(self.who, self.node, self.number, &self.input, most) {
            Ok(ControlAnswer {
                output,
                changed_name: None,
            }) => reply::ioctl(out, &output).into(),
            Ok(ControlAnswer {
                output,
                changed_name: Some(name),
            }) => Outcome::Later(Job::Control {
                dir: self.node,
                name,
                output,
            }),
            Err(errno) => Err(errno).into(),
        }
    }
}

/// Runs a call of the engine. If it panics, ends all service with `EIO`.
pub(super) fn guarded(dispatcher: &Arc<Dispatcher>, call: impl FnOnce() -> Outcome) -> Outcome {
    // The engine's state may be inconsistent, but no later call uses it.
    std::panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        log::error!("the engine panicked: the mount answers EIO to every request from now on");
        let dispatcher = Arc::clone(dispatcher);
        // Closing waits for calls in progress, perhaps for ever.
        let closing = std::thread::Builder::new().name("fuse-close".to_owned());
        if let Err(error) = closing.spawn(move || dispatcher.close()) {
            log::error!("the dispatcher cannot be closed: {error}");
        }
        Outcome::Answer(Err(libc::EIO))
    })
}

/// Sends the notifications of [bulk work](crate::bulk).
pub(super) struct Notifier(pub(super) Arc<Device>);

impl Notify for Notifier {
    fn expire_name(&self, dir: NodeId, name: &[u8]) {
        notify_kernel(&self.0, &notify::expire_entry(dir.0, name));
        // For a name that the kernel has not looked up the first one does nothing, but the kernel
        // may have the list of names.
        notify_kernel(&self.0, &notify::inval_inode(dir.0, 0, 0));
    }

    fn drop_attributes(&self, node: NodeId) {
        // A negative offset drops only the attributes.
        notify_kernel(&self.0, &notify::inval_inode(node.0, -1, 0));
    }

    fn drop_content(&self, node: NodeId) {
        notify_kernel(&self.0, &notify::inval_inode(node.0, 0, 0));
    }

    fn drop_all(&self, nodes: &[NodeId]) {
        notify_kernel(&self.0, &notify::expire_all());
        for node in nodes {
            notify_kernel(&self.0, &notify::inval_inode(node.0, 0, 0));
        }
    }
}

/// Sends a notification. An error for a node or name that the kernel does not have is ignored.
fn notify_kernel(device: &Device, message: &[u8]) {
    match device.send(message) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
            log::warn!("the kernel did not drop its caches: {error}");
        }
        _ => {}
    }
}

/// Asks the kernel to forget the nodes that the engine wants to evict.
fn prune(device: &Device, dispatcher: &Dispatcher) {
    let nodes = dispatcher.nodes_to_prune();
    for some in nodes.chunks(PRUNE_AT_ONCE) {
        if let Err(error) = device.send(&notify::prune(some)) {
            log::info!("the kernel did not forget unused nodes: {error}");
            dispatcher.set_prunes(false);
            break;
        }
    }
}

struct QueuedJob {
    job: Job,
    to: Recipient,
}

/// Destination of an answer.
enum Recipient {
    /// The request with this number, which came from this device.
    Device(Arc<Device>, u64),
    /// None: the request was answered already.
    None,
    /// A thread that waits for it.
    Thread(mpsc::Sender<Reply<Vec<u8>>>),
}

impl Recipient {
    fn answer(self, opcode: Opcode, answer: Reply<&[u8]>) {
        let (device, unique) = match self {
            Self::Device(device, unique) => (device, unique),
            Self::None => return,
            Self::Thread(waiting) => {
                // The thread waits as long as the connection exists.
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

/// Handle of the thread that runs jobs. The thread ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(super) struct Helper(mpsc::Sender<QueuedJob>);

impl Helper {
    /// # Errors
    /// The thread could not be started.
    pub(super) fn start(device: &Arc<Device>, dispatcher: &Arc<Dispatcher>) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let (device, dispatcher) = (Arc::clone(device), Arc::clone(dispatcher));
        std::thread::Builder::new()
            .name("fuse-helper".to_owned())
            .spawn(move || run(&jobs, &device, &dispatcher))?;
        Ok(Self(sender))
    }

    /// Runs the job, then answers the request `unique`, which came from `device`.
    pub(super) fn answer_later(&self, device: &Arc<Device>, unique: u64, job: Job) {
        self.send(QueuedJob {
            job,
            to: Recipient::Device(Arc::clone(device), unique),
        });
    }

    /// Runs the job, without an answer.
    pub(super) fn post(&self, job: Job) {
        self.send(QueuedJob {
            job,
            to: Recipient::None,
        });
    }

    /// Runs the job. The receiver gets the payload of its answer.
    pub(super) fn ask(&self, job: Job) -> mpsc::Receiver<Reply<Vec<u8>>> {
        let (sender, answer) = mpsc::channel();
        self.send(QueuedJob {
            job,
            to: Recipient::Thread(sender),
        });
        answer
    }

    fn send(&self, handed: QueuedJob) {
        if let Err(mpsc::SendError(QueuedJob { job, to })) = self.0.send(handed) {
            to.answer(job.opcode(), Err(libc::EIO));
        }
    }
}

fn run(jobs: &mpsc::Receiver<QueuedJob>, notifier: &Device, dispatcher: &Arc<Dispatcher>) {
    let mut out = vec![0; 8 * HEADROOM];
    for QueuedJob { job, to } in jobs {
        let done = job.finish(notifier, dispatcher, &mut out);
        to.answer(
            job.opcode(),
            done.and_then(|len| out.get(..len).ok_or(libc::EIO)),
        );
    }
}
