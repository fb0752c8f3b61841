//! Reading a stream ahead of the execution of its commands.
//!
//! A [`Feeder`] reads and verifies commands in a thread of its own. [`Ahead`] takes them over, as
//! many as there are, so that the two seldom meet. A command is there for [`Ahead`] as soon as it
//! was read, however long the next one takes.

use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};
use sapwood_vfs::SharedBytes;

use super::error::{ReceiveError, Result};
use super::reader::{CommandSource, Commands, OneCommand, RawCommand};
use crate::seal::{Seal, Verified};

/// Bytes that are read ahead at most, and one command more.
const MOST_BYTES: usize = 1 << 20;
/// Commands that are read ahead at most.
const MOST_COMMANDS: usize = 4096;
/// Bytes of attributes that have a buffer of their own, which the file system may keep.
const LONG: usize = 8 << 10;
/// Zeros after such attributes, so that data that end inside a sector are kept, too.
const ZEROS: usize = 4 << 10;

/// The attributes of a command.
enum Attributes {
    /// A number of bytes, after the short attributes of earlier commands of the batch.
    Short(usize),
    Long(SharedBytes),
}

/// Commands with their attributes.
#[derive(Default)]
struct Batch {
    commands: Vec<(RawCommand, Attributes)>,
    /// The short attributes, one behind the other.
    short: Vec<u8>,
    /// Bytes of the long ones.
    long: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.short.len() + self.long >= MOST_BYTES || self.commands.len() >= MOST_COMMANDS
    }

    /// Adds a command: with long attributes, or else the ones in `short`.
    fn push(&mut self, command: RawCommand, short: &[u8], long: Option<SharedBytes>) {
        let kept = if let Some(long) = long {
            self.long += long.len();
            Attributes::Long(long)
        } else {
            self.short.extend_from_slice(short);
            Attributes::Short(short.len())
        };
        self.commands.push((command, kept));
    }

    fn clear(&mut self) {
        self.commands.clear();
        self.short.clear();
        self.long = 0;
    }
}

#[derive(Default)]
struct State {
    read: Batch,
    /// The result of the feeder, which has ended.
    ended: Option<Result<()>>,
    /// No command is wanted any more.
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a command, or the end.
    arrived: Condvar,
    /// The batch was taken, or nothing is wanted any more.
    taken: Condvar,
}

/// Reads commands for [`Ahead`].
struct Feeder(Arc<Shared>);

/// The commands that a [`Feeder`] reads.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// The commands that are executed now.
    batch: Batch,
    /// The next one, and the offset of its attributes among the short ones.
    next: usize,
    offset: usize,
}

/// Both ends.
fn ahead() -> (Feeder, Ahead) {
    let shared = Arc::<Shared>::default();
    let ahead = Ahead {
        shared: Arc::clone(&shared),
        batch: Batch::default(),
        next: 0,
        offset: 0,
    };
    (Feeder(shared), ahead)
}

fn new_thread() -> thread::Builder {
    thread::Builder::new().name("receive-ahead".to_owned())
}

/// Runs `work` with the commands of a stream that a thread reads ahead. `interrupt` ends a read that
/// waits for more of the stream; it is called when `work` is done.
///
/// # Errors
/// The error of `work`; [`ReceiveError::Read`] if no thread can be started.
#[cfg(any(feature = "fuse", test))]
pub(super) fn with_ahead<T>(
    reader: impl Read + Send,
    interrupt: impl FnOnce(),
    work: impl FnOnce(&mut Ahead) -> Result<T>,
) -> Result<T> {
    let (feeder, mut commands) = ahead();
    thread::scope(|scope| {
        let read = move || feeder.run(reader, None);
        let started = new_thread().spawn_scoped(scope, read);
        started.map_err(ReceiveError::Read)?;
        let done = work(&mut commands);
        // The thread may wait for room, or for the stream.
        drop(commands);
        interrupt();
        done
    })
}

impl Feeder {
    /// Reads until the end of the stream, the first error, or the end of [`Ahead`].
    fn run(self, reader: impl Read, seal: Option<&Seal>) {
        let ended = match seal {
            Some(seal) => self.feed(Verified::new(seal, reader)),
            None => self.feed(reader),
        };
        self.0.state.lock().ended = Some(ended);
    }

    fn feed(&self, reader: impl Read) -> Result<()> {
        let mut commands = Commands::new(reader);
        let mut short = Vec::new();
        while let Some(command) = commands.header()? {
            short.clear();
            let len = command.header.len;
            let long = if len < LONG {
                commands.attributes(&command, &mut short)?;
                None
            } else {
                let padded = SharedBytes::filled(len + ZEROS, |buffer| {
                    commands.attributes(&command, buffer)?;
                    buffer.resize(len + ZEROS, 0);
                    Ok::<_, ReceiveError>(())
                })?;
                Some(padded.first(len))
            };
            let mut state = self.0.state.lock();
            let waits = |state: &mut State| state.read.is_full() && !state.closed;
            self.0.taken.wait_while(&mut state, waits);
            if state.closed {
                return Ok(());
            }
            state.read.push(command, &short, long);
            drop(state);
            self.0.arrived.notify_one();
        }
        Ok(())
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let panicked = || Err(ReceiveError::Read(io::Error::other("the reader panicked")));
        state.ended.get_or_insert_with(panicked);
        drop(state);
        self.0.arrived.notify_one();
    }
}

impl Ahead {
    /// The commands of a stream that a thread reads. After the end of `Ahead`, the thread ends with
    /// the next bytes of the stream.
    ///
    /// # Errors
    /// [`ReceiveError::Read`] if no thread can be started.
    pub(super) fn of(reader: impl Read + Send + 'static, seal: Option<Seal>) -> Result<Self> {
        let (feeder, commands) = ahead();
        let started = new_thread().spawn(move || feeder.run(reader, seal.as_ref()));
        started.map_err(ReceiveError::Read)?;
        Ok(commands)
    }

    /// Takes over what was read meanwhile, and waits for it if there is nothing. Returns false at
    /// the end.
    fn take(&mut self) -> Result<bool> {
        (self.next, self.offset) = (0, 0);
        self.batch.clear();
        let mut state = self.shared.state.lock();
        let waits = |state: &mut State| state.read.commands.is_empty() && state.ended.is_none();
        self.shared.arrived.wait_while(&mut state, waits);
        std::mem::swap(&mut self.batch, &mut state.read);
        if !self.batch.commands.is_empty() {
            drop(state);
            self.shared.taken.notify_one();
            return Ok(true);
        }
        // An error is returned once.
        state
            .ended
            .replace(Ok(()))
            .unwrap_or(Ok(()))
            .map(|()| false)
    }
}

impl CommandSource for Ahead {
    fn next(&mut self) -> Result<Option<OneCommand<'_>>> {
        if self.next == self.batch.commands.len() && !self.take()? {
            return Ok(None);
        }
        let Some((command, attributes)) = self.batch.commands.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        let attributes = match attributes {
            Attributes::Long(bytes) => {
                let mut one = command.parse(bytes)?;
                one.owner = Some(bytes);
                return Ok(Some(one));
            }
            Attributes::Short(len) => {
                let start = self.offset;
                self.offset = start.saturating_add(*len);
                let bytes = self.batch.short.get(start..self.offset);
                bytes.unwrap_or_default()
            }
        };
        command.parse(attributes).map(Some)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.taken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use sapwood_btrfs_format::stream::{self, Writer, attribute, command};

    use super::*;

    /// A stream with `count` writes of up to 48 KiB.
    fn stream(count: u64) -> Vec<u8> {
        let mut bytes = stream::header(1).to_vec();
        let mut writer = Writer::new(1);
        for at in 0..count {
            let data = vec![at as u8; (at * 7919 % 48_000) as usize];
            writer.begin(command::WRITE);
            writer.put(attribute::PATH, b"file");
            writer.put(attribute::FILE_OFFSET, &at.to_le_bytes());
            writer.put(attribute::DATA, &data);
            bytes.extend_from_slice(writer.finish());
        }
        bytes.extend_from_slice(writer.begin(command::END).finish());
        bytes
    }

    fn all(source: &mut dyn CommandSource) -> (Vec<(u16, Vec<u8>)>, Result<()>) {
        let mut found = Vec::new();
        loop {
            match source.next() {
                Ok(Some(OneCommand { command, .. })) => {
                    let data = command.find(attribute::DATA).unwrap_or_default();
                    found.push((command.number, data.to_vec()));
                }
                Ok(None) => return (found, Ok(())),
                Err(error) => return (found, Err(error)),
            }
        }
    }

    /// The commands and the error of a stream that is read ahead.
    fn read_ahead(bytes: &[u8]) -> (Vec<(u16, Vec<u8>)>, Result<()>) {
        let (feeder, mut ahead) = ahead();
        thread::scope(|scope| {
            scope.spawn(|| feeder.run(bytes, None));
            all(&mut ahead)
        })
    }

    #[test]
    fn the_commands_and_errors_are_those_of_the_plain_reader() {
        let whole = stream(200);
        for len in [0, 5, 17, 30, 5000, 1_000_000, whole.len() - 1, whole.len()] {
            let mut bytes = whole[..len].to_vec();
            for damage in [None, Some(len * 2 / 3)] {
                if let Some(byte) = damage.and_then(|at| bytes.get_mut(at)) {
                    *byte ^= 1;
                }
                let (found, ended) = read_ahead(&bytes);
                let (expected, plain) = all(&mut Commands::new(&*bytes));
                assert!(found == expected, "{len}, {damage:?}");
                assert_eq!(format!("{ended:?}"), format!("{plain:?}"));
            }
        }
    }

    /// Bytes that come when the other end sends them.
    struct Slow(mpsc::Receiver<Vec<u8>>, io::Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            loop {
                match self.1.read(buf)? {
                    0 => match self.0.recv() {
                        Ok(piece) => self.1 = io::Cursor::new(piece),
                        Err(_) => return Ok(0),
                    },
                    count => return Ok(count),
                }
            }
        }
    }

    #[test]
    fn a_command_arrives_before_the_next_one_is_sent() {
        let bytes = stream(3);
        let (sender, receiver) = mpsc::channel();
        let (feeder, mut ahead) = ahead();
        thread::scope(|scope| {
            scope.spawn(|| feeder.run(Slow(receiver, io::Cursor::default()), None));
            let mut rest = &bytes[stream::HEADER..];
            sender.send(bytes[..stream::HEADER].to_vec()).unwrap();
            while let Some((len, _)) = rest.split_first_chunk::<4>() {
                let len = stream::COMMAND_HEADER + u32::from_le_bytes(*len) as usize;
                sender.send(rest[..len].to_vec()).unwrap();
                assert!(ahead.next().unwrap().is_some());
                rest = &rest[len..];
            }
            drop(sender);
            assert!(ahead.next().unwrap().is_none());
        });
    }

    #[test]
    fn a_failed_command_ends_a_reader_that_waits() {
        let bytes = stream(200);
        assert!(bytes.len() > 3 * MOST_BYTES);
        let (sender, ended) = mpsc::channel();
        // A thread of its own, so that a reader that never ends fails the test.
        thread::spawn(move || {
            let done = with_ahead(
                &*bytes,
                || {},
                |commands| {
                    assert!(commands.next()?.is_some());
                    // The reader waits for room.
                    while !commands.shared.state.lock().read.is_full() {
                        thread::yield_now();
                    }
                    Err::<(), _>(ReceiveError::Stopped)
                },
            );
            let _ = sender.send(done);
        });
        let done = ended.recv_timeout(Duration::from_secs(20));
        assert!(matches!(done, Ok(Err(ReceiveError::Stopped))), "{done:?}");
    }

    #[test]
    fn a_feeder_ends_when_nothing_more_is_wanted() {
        let bytes = stream(200);
        let (feeder, mut ahead) = ahead();
        thread::scope(|scope| {
            scope.spawn(|| feeder.run(&*bytes, None));
            assert!(ahead.next().unwrap().is_some());
            drop(ahead);
        });
    }
}
