//! [`FaultDevice`]: a medium that fails, tears, drops or corrupts chosen requests.
//!
//! A test arms rules. Each rule counts the requests that it matches, from the time when it was
//! armed (all kinds together; one rule per kind counts them separately), and acts on the n-th. If
//! several rules match one request, the one that was armed first acts.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

use super::request::{Request, RequestKind, RequestKinds};
use crate::device::Torn;
use sapwood_block::{Device, Error, Result};

/// The effect on the chosen request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`; nothing is read or written.
    Fail,
    /// `ENOSPC`, as from a sparse image on a full host; nothing is read or written.
    NoSpace,
    /// Nothing is read or written, but success is reported. A dropped read returns zeros.
    Drop,
    /// Only these sectors of a write or discard take effect. Other requests fail.
    Tear {
        /// The sectors that take effect.
        torn: Torn,
        /// Report `EIO` or success.
        fail: bool,
    },
    /// The byte at this index of the request's data is inverted: in the reader's buffer, or on the
    /// medium after a write. Success is reported. An index past the end has no effect.
    Corrupt(usize),
}

/// The condition for a [`Fault`].
#[derive(Debug, Clone)]
pub struct FaultRule {
    kinds: RequestKinds,
    range: Option<Range<u64>>,
    nth: u64,
    from_then_on: bool,
    /// A condition on the bytes of a write.
    bytes: Option<fn(&[u8]) -> bool>,
    fault: Fault,
}

impl FaultRule {
    /// `fault` on the `nth` request of `kinds` from now; 1 is the next one.
    #[must_use]
    pub fn new(kinds: RequestKinds, nth: u64, fault: Fault) -> Self {
        Self {
            kinds,
            range: None,
            nth,
            from_then_on: false,
            bytes: None,
            fault,
        }
    }

    /// Acts on every matching request after the n-th too.
    #[must_use]
    pub fn from_then_on(mut self) -> Self {
        self.from_then_on = true;
        self
    }

    /// Matches only writes whose bytes `is_meant` accepts.
    #[must_use]
    pub fn of_bytes(mut self, is_meant: fn(&[u8]) -> bool) -> Self {
        self.bytes = Some(is_meant);
        self
    }

    /// Matches only requests that touch these bytes of the device (so never a flush).
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        self.kinds.contains(request.kind.set())
            && self.range.as_ref().is_none_or(|r| request.touches(r))
            && self
                .bytes
                .is_none_or(|is_meant| request.bytes.is_some_and(is_meant))
    }
}

#[derive(Debug)]
struct Armed {
    rule: FaultRule,
    matched: u64,
}

/// A device whose requests fail on command. See the module.
#[derive(Debug)]
pub struct FaultDevice<D> {
    inner: D,
    armed: Mutex<Vec<Armed>>,
    enabled: AtomicBool,
    seen: [AtomicU64; RequestKind::COUNT],
    fired: AtomicU64,
}

impl<D: Device> FaultDevice<D> {
    /// Wraps `inner`, without rules.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            armed: Mutex::new(Vec::new()),
            enabled: AtomicBool::new(true),
            seen: Default::default(),
            fired: AtomicU64::new(0),
        }
    }

    /// Adds a rule, which starts counting now.
    pub fn arm(&self, rule: FaultRule) {
        self.armed.lock().push(Armed { rule, matched: 0 });
    }

    /// From now on fails every request of `kinds`.
    pub fn fail_all(&self, kinds: RequestKinds) {
        self.arm(FaultRule::new(kinds, 1, Fault::Fail).from_then_on());
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.armed.lock().clear();
    }

    /// Switches all rules off, or on again. A rule that is off does not count.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, SeqCst);
    }

    /// Number of requests of `kinds`, with or without a fault.
    #[must_use]
    pub fn seen(&self, kinds: RequestKinds) -> u64 {
        let all = [
            RequestKind::Read,
            RequestKind::Write,
            RequestKind::Fua,
            RequestKind::Flush,
            RequestKind::Discard,
        ];
        let chosen = all.iter().filter(|k| kinds.contains(k.set()));
        chosen.map(|&k| self.seen[k as usize].load(SeqCst)).sum()
    }

    /// Number of faults that happened.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.fired.load(SeqCst)
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Counts the request and returns the fault that hits it.
    fn fault_for(&self, request: &Request<'_>) -> Option<Fault> {
        self.seen[request.kind as usize].fetch_add(1, SeqCst);
        if !self.enabled.load(SeqCst) {
            return None;
        }
        let mut hit = None;
        for armed in self.armed.lock().iter_mut() {
            if !armed.rule.matches(request) {
                continue;
            }
            armed.matched += 1;
            let (n, nth) = (armed.matched, armed.rule.nth);
            if hit.is_none() && (n == nth || n > nth && armed.rule.from_then_on) {
                hit = Some(armed.rule.fault.clone());
            }
        }
        if hit.is_some() {
            self.fired.fetch_add(1, SeqCst);
        }
        hit
    }

    /// A write of either kind.
    fn write(&self, request: &Request<'_>, bytes: &[u8]) -> Result<()> {
        let offset = request.offset;
        let put = |at: u64, part: &[u8]| match request.kind {
            RequestKind::Fua => self.inner.write_fua(at, part),
            _ => self.inner.write_at(at, part),
        };
        match self.fault_for(request) {
            None => put(offset, bytes),
            Some(Fault::Fail) => Err(request.failure(self.name())),
            Some(Fault::NoSpace) => Err(self.no_space(request)),
            Some(Fault::Drop) => Ok(()),
            Some(Fault::Tear { torn, fail }) => {
                for part in torn.parts(offset, request.len) {
                    put(
                        offset + part.start,
                        &bytes[part.start as usize..part.end as usize],
                    )?;
                }
                self.torn_outcome(request, fail)
            }
            Some(Fault::Corrupt(at)) => {
                let mut bytes = bytes.to_vec();
                invert(&mut bytes, at);
                put(offset, &bytes)
            }
        }
    }

    fn no_space(&self, request: &Request<'_>) -> Error {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        Error::io(self.name(), "write", request.offset, request.len, full)
    }

    fn torn_outcome(&self, request: &Request<'_>, fail: bool) -> Result<()> {
        if fail {
            return Err(request.failure(self.name()));
        }
        Ok(())
    }
}

fn invert(bytes: &mut [u8], at: usize) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = !*byte;
    }
}

impl<D: Device> sapwood_block::Layer for FaultDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let request = Request::new(RequestKind::Read, offset, buf.len() as u64);
        match self.fault_for(&request) {
            None => self.inner.read_at(offset, buf),
            Some(Fault::NoSpace) => Err(self.no_space(&request)),
            Some(Fault::Fail | Fault::Tear { .. }) => Err(request.failure(Device::name(self))),
            Some(Fault::Drop) => {
                buf.fill(0);
                Ok(())
            }
            Some(Fault::Corrupt(at)) => {
                self.inner.read_at(offset, buf)?;
                invert(buf, at);
                Ok(())
            }
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(&Request::write(RequestKind::Write, offset, buf), buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        Device::write_at(self, offset, &bufs.concat())
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(&Request::write(RequestKind::Fua, offset, buf), buf)
    }

    fn flush(&self) -> Result<()> {
        let request = Request::new(RequestKind::Flush, 0, 0);
        match self.fault_for(&request) {
            None | Some(Fault::Corrupt(_)) => self.inner.flush(),
            Some(Fault::NoSpace) => Err(self.no_space(&request)),
            Some(Fault::Fail | Fault::Tear { .. }) => Err(request.failure(Device::name(self))),
            Some(Fault::Drop) => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let request = Request::new(RequestKind::Discard, offset, len);
        match self.fault_for(&request) {
            None | Some(Fault::Corrupt(_)) => self.inner.discard(offset, len),
            Some(Fault::NoSpace) => Err(self.no_space(&request)),
            Some(Fault::Fail) => Err(request.failure(Device::name(self))),
            Some(Fault::Drop) => Ok(()),
            Some(Fault::Tear { torn, fail }) => {
                for part in torn.parts(offset, len) {
                    self.inner
                        .discard(offset + part.start, part.end - part.start)?;
                }
                self.torn_outcome(&request, fail)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_block::MemoryDevice;

    fn device() -> FaultDevice<MemoryDevice> {
        FaultDevice::new(MemoryDevice::from_bytes(&[1; 8192]))
    }

    fn content(device: &FaultDevice<MemoryDevice>, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        device.inner().read_at(offset, &mut buf).unwrap();
        buf
    }

    fn is_eio(result: Result<()>) -> bool {
        match result {
            Err(Error::Io { source, .. }) => source.raw_os_error() == Some(5),
            _ => false,
        }
    }

    #[test]
    fn fails_the_nth_once_or_from_then_on() {
        let device = device();
        device.arm(FaultRule::new(RequestKinds::WRITE, 2, Fault::Fail));
        device.write_at(0, &[2]).unwrap();
        device.write_fua(1, &[2]).unwrap();
        assert!(is_eio(device.write_at(2, &[2])));
        device.write_at(3, &[2]).unwrap();
        assert_eq!(content(&device, 0, 5), [2, 2, 1, 2, 1]);
        device.arm(FaultRule::new(RequestKinds::FLUSH, 2, Fault::Fail).from_then_on());
        device.flush().unwrap();
        assert!(is_eio(device.flush()) && is_eio(device.flush()));
        device.set_enabled(false);
        device.flush().unwrap();
        device.set_enabled(true);
        assert!(is_eio(device.flush()));
        device.clear();
        device.flush().unwrap();
        assert_eq!(device.seen(RequestKinds::FLUSH), 6);
        assert_eq!(device.seen(RequestKinds::ANY_WRITE), 4);
        assert_eq!(device.fired(), 4);
    }

    #[test]
    fn kinds_are_counted_together_in_one_rule() {
        let device = device();
        device.arm(FaultRule::new(RequestKinds::ANY_CHANGE, 3, Fault::Fail));
        device.write_at(0, &[2]).unwrap();
        device.read_at(0, &mut [0]).unwrap();
        device.flush().unwrap();
        assert!(is_eio(device.write_fua(0, &[3])));
        device.discard(0, 1).unwrap();
    }

    #[test]
    fn a_range_chooses_requests_by_place() {
        let device = device();
        device.arm(FaultRule::new(RequestKinds::all(), 1, Fault::Fail).within(4096..4100));
        device.flush().unwrap();
        device.write_at(4090, &[2; 6]).unwrap();
        device.write_at(4100, &[2]).unwrap();
        assert!(is_eio(device.read_at(4000, &mut [0; 97])));
    }

    #[test]
    fn drops_tears_and_corrupts() {
        let device = device();
        device.arm(FaultRule::new(RequestKinds::WRITE, 1, Fault::Drop));
        device.write_vectored_at(0, &[&[2; 10], &[2; 10]]).unwrap();
        assert_eq!(content(&device, 0, 20), [1; 20]);
        for fail in [true, false] {
            let torn = Torn::Sectors(vec![1]);
            device.arm(FaultRule::new(
                RequestKinds::FUA,
                1,
                Fault::Tear { torn, fail },
            ));
            assert_eq!(is_eio(device.write_fua(0, &[3; 2048])), fail);
            let mut model = [1; 2048];
            model[512..1024].fill(3);
            assert_eq!(content(&device, 0, 2048), model);
            device.write_at(0, &[1; 2048]).unwrap();
        }
        device.arm(FaultRule::new(RequestKinds::READ, 1, Fault::Corrupt(2)));
        let mut buf = [0; 4];
        device.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, [1, 1, 0xfe, 1]);
        device.arm(FaultRule::new(RequestKinds::WRITE, 1, Fault::Corrupt(1)));
        device.write_at(0, &[0; 3]).unwrap();
        assert_eq!(content(&device, 0, 4), [0, 0xff, 0, 1]);
    }
}
