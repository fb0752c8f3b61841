//! Short writes that are adjacent, coalesced into long ones for the device below.
//!
//! # How it works
//! For each write the host searches a page of the file and locks it, which costs more than the copy
//! of a few KB. [`Coalesced`] keeps short writes in memory, in *streams*: a
//! write that begins where a stream ends is appended to it. A thread writes a stream back when the
//! stream has [`STREAM`] bytes, when a new stream needs its place, and before any request that
//! overlaps it.
//!
//! Trouble cases:
//! - A request overlaps a stream that another thread is writing back: it waits for that thread
//!   (`a_read_waits_for_the_stream_that_is_written_back`).
//! - The device refuses a stream: the stream stays, and a later flush writes it again and returns
//!   the error (`a_stream_that_is_refused_stays`).

use parking_lot::{Condvar, Mutex};
use sapwood_block::{Device, Result};

/// Bytes of a complete stream. The host can use large pages for one write of this size.
const STREAM: usize = 512 << 10;
/// Bytes from which a write is not short.
pub(crate) const SHORT: usize = 64 << 10;
/// Most streams: one of each worker, which writes in a block group of its own, and some of the file
/// system's metadata.
const MOST: usize = 8;

/// Streams of short writes.
#[derive(Debug, Default)]
pub(crate) struct Coalesced {
    streams: Mutex<Streams>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Streams {
    /// The one that was appended to last comes last.
    open: Vec<Stream>,
    /// Ranges that threads are writing back.
    in_flight: Vec<(u64, u64)>,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Stream {
    start: u64,
    bytes: Vec<u8>,
}

impl Stream {
    fn range(&self) -> (u64, u64) {
        (
            self.start,
            self.start.saturating_add(self.bytes.len() as u64),
        )
    }
}

impl Streams {
    /// Appends to the stream that ends at `offset`, or to a new one. Returns a stream that has to
    /// be written back.
    fn append(&mut self, offset: u64, bufs: &[&[u8]]) -> Option<Stream> {
        let at = self.open.iter().position(|open| open.range().1 == offset);
        let mut stream = match at {
            Some(at) => self.open.remove(at),
            None => Stream {
                start: offset,
                bytes: self.spare.pop().unwrap_or_default(),
            },
        };
        for buf in bufs {
            stream.bytes.extend_from_slice(buf);
        }
        if stream.bytes.len() >= STREAM {
            return Some(stream);
        }
        self.open.push(stream);
        (self.open.len() > MOST).then(|| self.open.remove(0))
    }

    /// Takes a stream that overlaps a range.
    fn take(&mut self, range: (u64, u64)) -> Option<Stream> {
        let at = self
            .open
            .iter()
            .position(|open| overlap(open.range(), range));
        at.map(|at| self.open.remove(at))
    }

    fn is_in_flight(&self, range: (u64, u64)) -> bool {
        self.in_flight
            .iter()
            .any(|&in_flight| overlap(in_flight, range))
    }
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

impl Coalesced {
    /// Takes a short write. A stream that has to be written back for it goes to `below`.
    ///
    /// # Errors
    /// The errors of `below`: a stream was not written back, and stays.
    pub(crate) fn write(&self, below: &dyn Device, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.write_back(below, offset, len)?;
        let mut streams = self.streams.lock();
        match streams.append(offset, bufs) {
            Some(full) => self.write_stream(&mut streams, below, full),
            None => Ok(()),
        }
    }

    /// Writes back all streams that overlap a range of the device.
    ///
    /// # Errors
    /// The errors of `below`: a stream was not written back, and stays.
    pub(crate) fn write_back(&self, below: &dyn Device, offset: u64, len: u64) -> Result<()> {
        let range = (offset, offset.saturating_add(len));
        let mut streams = self.streams.lock();
        loop {
            if let Some(stream) = streams.take(range) {
                self.write_stream(&mut streams, below, stream)?;
            } else if streams.is_in_flight(range) {
                self.written.wait(&mut streams);
            } else {
                return Ok(());
            }
        }
    }

    /// Writes a stream back without the lock.
    fn write_stream(
        &self,
        streams: &mut parking_lot::MutexGuard<'_, Streams>,
        below: &dyn Device,
        stream: Stream,
    ) -> Result<()> {
        let range = stream.range();
        streams.in_flight.push(range);
        let written =
            parking_lot::MutexGuard::unlocked(streams, || below.write_at(range.0, &stream.bytes));
        streams.in_flight.retain(|&in_flight| in_flight != range);
        match &written {
            Ok(()) if streams.spare.len() < MOST => {
                let mut bytes = stream.bytes;
                bytes.clear();
                streams.spare.push(bytes);
            }
            Ok(()) => {}
            Err(_) => streams.open.push(stream),
        }
        self.written.notify_all();
        written
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sapwood_block::MemoryDevice;
    use sapwood_testing::{CountDevice, FaultDevice, GateDevice, RequestKind, RequestKinds};

    use super::*;

    const BLOCK: usize = 4096;

    fn read(device: &dyn Device, at: u64) -> u8 {
        let mut found = [0];
        device.read_at(at, &mut found).unwrap();
        found[0]
    }

    #[test]
    fn adjacent_writes_are_one_and_others_are_streams_of_their_own() {
        let device = CountDevice::new(MemoryDevice::new(8 << 20));
        let coalesced = Coalesced::default();
        let blocks = (STREAM / BLOCK) as u64;
        for block in 0..blocks {
            for stream in 0..3 {
                let at = (stream << 21) + block * BLOCK as u64;
                let half = [stream as u8 + 1; BLOCK / 2];
                coalesced.write(&device, at, &[&half, &half]).unwrap();
            }
        }
        assert_eq!(device.counts().writes, 3);
        assert_eq!(read(&device, (2 << 20) + STREAM as u64 - 1), 2);

        // One more than there may be: the oldest is written back.
        for stream in 0..=MOST as u64 {
            let at = (6 << 20) + stream * 2 * BLOCK as u64;
            coalesced.write(&device, at, &[&[9; BLOCK]]).unwrap();
        }
        assert_eq!(device.counts().writes, 4);
        assert_eq!(
            (read(&device, 6 << 20), read(&device, (6 << 20) + 8192)),
            (9, 0)
        );
    }

    #[test]
    fn a_range_is_written_back_with_all_that_overlaps_it() {
        let device = CountDevice::new(MemoryDevice::new(1 << 20));
        let coalesced = Coalesced::default();
        for (at, byte) in [(0, 1), (4096, 2), (65536, 3)] {
            coalesced.write(&device, at, &[&[byte; BLOCK]]).unwrap();
        }
        coalesced.write_back(&device, 8192, 4096).unwrap();
        assert_eq!(device.counts().writes, 0);
        coalesced.write_back(&device, 8191, 1).unwrap();
        assert_eq!((read(&device, 0), read(&device, 4096)), (1, 2));
        assert_eq!(read(&device, 65536), 0);
        // A write over a waiting one is executed after it.
        coalesced.write(&device, 65536, &[&[4; BLOCK]]).unwrap();
        coalesced.write_back(&device, 0, u64::MAX).unwrap();
        assert_eq!(read(&device, 65536), 4);
    }

    #[test]
    fn a_read_waits_for_the_stream_that_is_written_back() {
        let gate = Arc::new(GateDevice::new(MemoryDevice::new(4 << 20)));
        let coalesced = Arc::new(Coalesced::default());
        gate.hold_if(|request| request.kind == RequestKind::Write);
        let (device, streams) = (Arc::clone(&gate), Arc::clone(&coalesced));
        let writer = std::thread::spawn(move || {
            for at in (0..STREAM).step_by(BLOCK) {
                streams.write(&*device, at as u64, &[&[6; BLOCK]]).unwrap();
            }
        });
        gate.wait_held(1);
        // Others are not held up.
        coalesced.write(&*gate, 2 << 20, &[&[7; BLOCK]]).unwrap();
        coalesced.write_back(&*gate, 3 << 20, 1).unwrap();
        let (device, streams) = (Arc::clone(&gate), Arc::clone(&coalesced));
        let (begun, begins) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            begun.send(()).unwrap();
            streams.write_back(&*device, 0, 1).unwrap();
            read(&*device, 0)
        });
        begins.recv().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!reader.is_finished());
        gate.release_all();
        assert_eq!(reader.join().unwrap(), 6);
        writer.join().unwrap();
    }

    #[test]
    fn a_stream_that_is_refused_stays() {
        let device = FaultDevice::new(MemoryDevice::new(1 << 20));
        let coalesced = Coalesced::default();
        coalesced.write(&device, 4096, &[&[5; BLOCK]]).unwrap();
        device.fail_all(RequestKinds::WRITE);
        assert!(coalesced.write_back(&device, 0, u64::MAX).is_err());
        assert!(coalesced.write(&device, 4096, &[&[6; BLOCK]]).is_err());
        device.clear();
        coalesced.write_back(&device, 0, u64::MAX).unwrap();
        assert_eq!(read(&device, 4096), 5);
    }
}
