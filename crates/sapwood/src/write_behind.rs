//! A writer whose bytes are written by a thread.
//!
//! A composer of a stream continues while its bytes go to a file or a socket. The thread gets
//! buffers through a bounded channel, and returns them. Its first error ends it, and the next call
//! returns that error.

use std::io::{self, Write};
use std::mem;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

/// Bytes of a buffer.
const BUFFER: usize = 256 << 10;
/// Full buffers that wait for the thread.
const WAITING: usize = 4;

enum Step {
    Write(Vec<u8>),
    /// Flush, and report it.
    Flush(SyncSender<()>),
}

/// See the module. What was not flushed is written when it is dropped, which waits for the thread
/// and hides an error.
#[derive(Debug)]
pub struct WriteBehind {
    buffer: Vec<u8>,
    /// `None` once it is dropped.
    steps: Option<SyncSender<Step>>,
    /// Written buffers.
    spare: Receiver<Vec<u8>>,
    /// Ends with its error. `None` once it has ended.
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl WriteBehind {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (steps, next) = sync_channel(WAITING);
        let (written, spare) = channel();
        let write = move || run(out, &next, &written);
        let thread = thread::Builder::new().name("write-behind".to_owned());
        Ok(Self {
            buffer: Vec::with_capacity(BUFFER),
            steps: Some(steps),
            spare,
            thread: Some(thread.spawn(write)?),
        })
    }

    /// The error that ended the thread.
    fn failure(&mut self) -> io::Error {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(error))) => error,
            _ => io::ErrorKind::BrokenPipe.into(),
        }
    }

    fn step(&mut self, step: Step) -> io::Result<()> {
        let sent = self.steps.as_ref().map(|steps| steps.send(step));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Hands the buffer to the thread.
    fn pass(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let mut next = self.spare.try_recv().unwrap_or_default();
        next.clear();
        next.reserve(BUFFER);
        let full = mem::replace(&mut self.buffer, next);
        self.step(Step::Write(full))
    }
}

/// Writes until the composer is gone, or something cannot be written.
fn run(mut out: impl Write, steps: &Receiver<Step>, written: &Sender<Vec<u8>>) -> io::Result<()> {
    for step in steps {
        match step {
            Step::Write(buffer) => {
                out.write_all(&buffer)?;
                // A composer that is gone needs no buffers.
                drop(written.send(buffer));
            }
            Step::Flush(done) => {
                out.flush()?;
                let _ = done.send(());
            }
        }
    }
    Ok(())
}

impl Write for WriteBehind {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BUFFER.saturating_sub(self.buffer.len());
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() >= BUFFER {
            self.pass()?;
        }
        Ok(taken.len())
    }

    /// Waits until everything is written and flushed.
    fn flush(&mut self) -> io::Result<()> {
        self.pass()?;
        let (done, wait) = sync_channel(1);
        self.step(Step::Flush(done))?;
        wait.recv().map_err(|_| self.failure())
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        drop(self.pass());
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Keeps bytes, and fails after some of them.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>, Option<usize>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut kept = self.0.lock();
            if self.1.is_some_and(|most| kept.len() >= most) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // Short writes are continued.
            let some = &bytes[..bytes.len().min(100_000)];
            kept.extend_from_slice(some);
            Ok(some.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 / 7) as u8).collect()
    }

    #[test]
    fn bytes_come_in_their_order() {
        let kept = Kept::default();
        let mut out = WriteBehind::new(kept.clone()).unwrap();
        let expected = bytes(3_000_000);
        let mut rest = &expected[..];
        for len in (1..).map(|round| round * round * 97) {
            let (piece, next) = rest.split_at(rest.len().min(len));
            out.write_all(piece).unwrap();
            rest = next;
            if rest.is_empty() {
                break;
            }
        }
        out.flush().unwrap();
        assert!(*kept.0.lock() == expected);
        out.write_all(b"more").unwrap();
        drop(out);
        assert!(kept.0.lock().ends_with(b"more"));
    }

    #[test]
    fn an_error_ends_the_composer() {
        for most in [0, 1, 1_000_000] {
            let kept = Kept(Arc::default(), Some(most));
            let mut out = WriteBehind::new(kept.clone()).unwrap();
            let whole = bytes(8_000_000);
            let written = whole
                .chunks(4096)
                .try_for_each(|piece| out.write_all(piece));
            let flushed = written.and_then(|()| out.flush());
            assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert!(out.flush().is_err());
            drop(out);
            assert!(whole.starts_with(&kept.0.lock()));
        }
    }
}
