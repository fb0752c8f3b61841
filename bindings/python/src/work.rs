//! Work that takes long: progress, interruption, streams of Python.
//!
//! # How it works
//! A thread of its own does the work. The thread of the caller waits without the interpreter's lock
//! and wakes ten times a second: it runs the handlers of signals, and calls the callback with the
//! latest state. So the callback runs in the caller's thread, and its exceptions, like
//! `KeyboardInterrupt`, end the work at its next step and are raised here.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sapwood::{OnProgress, Progress, Stop};

use crate::error::exception;

/// Time between two calls of the callback.
const INTERVAL: Duration = Duration::from_millis(100);

/// The latest state of the work.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    phase: &'static str,
    done: u64,
    total: u64,
    bytes: u64,
}

impl State {
    fn record(&mut self, step: &Progress<'_>) {
        match step {
            Progress::Done { phase, done } => (self.phase, self.done) = (phase, *done),
            Progress::Total(total) => (self.total, self.done) = (*total, 0),
            Progress::Bytes(bytes) => self.bytes = *bytes,
            _ => {}
        }
    }
}

/// A callable that gets phase, done, total and bytes; or `None`.
pub(crate) type Callback = Option<Py<PyAny>>;

fn report(py: Python<'_>, callback: &Callback, state: &Mutex<State>) -> PyResult<()> {
    py.check_signals()?;
    let Some(callback) = callback else {
        return Ok(());
    };
    let State {
        phase,
        done,
        total,
        bytes,
    } = *state.lock();
    callback.call1(py, (phase, done, total, bytes)).map(drop)
}

/// Does `work` in a thread of its own. `stop` ends it early.
pub(crate) fn long<T: Send>(
    py: Python<'_>,
    callback: &Callback,
    stop: &Stop,
    work: impl FnOnce(&mut OnProgress<'_>) -> sapwood::Result<T> + Send,
) -> PyResult<T> {
    let state = Mutex::new(State::default());
    let state = &state;
    py.detach(|| {
        thread::scope(|scope| {
            let (ends, ended) = mpsc::channel::<()>();
            let worker = scope.spawn(move || {
                let _ends = ends;
                work(&mut |step| state.lock().record(&step))
            });
            let mut raised = None;
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if raised.is_none() {
                    raised = Python::attach(|py| report(py, callback, state)).err();
                    if raised.is_some() {
                        stop.stop();
                    }
                }
            }
            // A panic, which is a defect of the library, becomes a `PanicException`.
            let result = match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            if let Some(raised) = raised {
                return Err(raised);
            }
            let value = result.map_err(|error| exception(&error))?;
            Python::attach(|py| report(py, callback, state))?;
            Ok(value)
        })
    })
}

/// A binary file object of Python, read by the thread of the work.
pub(crate) struct Stream {
    object: Py<PyAny>,
    stop: Stop,
    raised: Raised,
}

/// The exception that ended the reading of a [`Stream`] or the writing of a [`Sink`].
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Keeps an exception, and returns the error of a reader or writer for it.
    fn keep(&self, error: PyErr) -> io::Error {
        let text = error.to_string();
        *self.0.lock() = Some(error);
        io::Error::other(text)
    }

    /// The exception in place of the error of the library that it led to.
    pub(crate) fn or<T>(&self, result: PyResult<T>) -> PyResult<T> {
        result.map_err(|error| self.0.lock().take().unwrap_or(error))
    }
}

impl Stream {
    pub(crate) fn new(object: Py<PyAny>, stop: &Stop, raised: &Raised) -> Self {
        Self {
            object,
            stop: stop.clone(),
            raised: raised.clone(),
        }
    }
}

/// A binary file object of Python, written by the thread of the work.
pub(crate) struct Sink(Stream);

impl Sink {
    pub(crate) fn new(object: Py<PyAny>, stop: &Stop, raised: &Raised) -> Self {
        Self(Stream::new(object, stop, raised))
    }
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Stream {
            object,
            stop,
            raised,
        } = &self.0;
        if stop.is_stopped() {
            return Err(io::Error::other("interrupted"));
        }
        let written = Python::attach(|py| {
            let data = PyBytes::new(py, buf);
            let count = object.call_method1(py, "write", (data,))?;
            // A raw file may take a part of it.
            let count = count.extract::<Option<usize>>(py)?.unwrap_or(0);
            if count == 0 || count > buf.len() {
                return Err(crate::error::invalid("write() took none of the bytes"));
            }
            PyResult::Ok(count)
        });
        written.map_err(|error| raised.keep(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_stopped() {
            return Err(io::Error::other("interrupted"));
        }
        let read = Python::attach(|py| {
            let data = self.object.call_method1(py, "read", (buf.len(),))?;
            let data = data.bind(py).cast::<PyBytes>()?.as_bytes();
            let wrong = || crate::error::invalid("read() returned more bytes than asked for");
            let room = buf.get_mut(..data.len()).ok_or_else(wrong)?;
            room.copy_from_slice(data);
            PyResult::Ok(data.len())
        });
        read.map_err(|error| self.raised.keep(error))
    }
}
