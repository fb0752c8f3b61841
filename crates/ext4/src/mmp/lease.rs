//! [`Lease`]: the right to write to a file system for a limited time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use sapwood_block::{Device, Error as DeviceError};
use sapwood_ext4_format::{
    Geometry, MMP_MAX_CHECK_INTERVAL, MMP_MIN_CHECK_INTERVAL, MMP_SEQ_CLEAN, MMP_SEQ_FSCK,
    MMP_SEQ_MAX, MmpBlock, SuperBlock,
};

use crate::clock::SharedClock;
use crate::{Error, Options, Result};

/// The right to write. See the [module](super).
#[derive(Debug)]
pub(super) struct Lease {
    device: Arc<dyn Device>,
    /// Byte of the block on the device.
    offset: u64,
    /// Seed of the block's checksum, if it has one.
    seed: Option<u32>,
    clock: SharedClock,
    /// Time that the block records, if it is fixed.
    fixed_time: Option<u64>,
    /// Time between two renewals.
    pub(super) interval: Duration,
    /// Milliseconds on the clock until which writes need no renewal.
    valid_until: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// The block as it was last written.
    block: MmpBlock,
    /// Sequence of a write that failed, and may have reached the device.
    attempted: Option<u32>,
    /// Why the lease ended: it was lost, or released.
    ended: Option<Arc<str>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("seq", &self.block.seq.get())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Time that an opener waits for a holder to renew its lease, and for another opener to appear.
fn wait_of(check_interval: u16) -> Duration {
    let interval = u64::from(check_interval);
    Duration::from_secs((2 * interval + 1).min(interval + 60))
}

/// The text of a field that is padded with zeros. A hostile image cannot control a terminal with
/// it.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let shown = String::from_utf8_lossy(bytes);
    shown.chars().filter(|char| !char.is_control()).collect()
}

/// Stores a text, cut so that a zero byte follows it.
fn store(text: &str, to: &mut [u8]) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    for (to, from) in to.iter_mut().take(room).zip(text.bytes()) {
        *to = from;
    }
}

/// A random sequence, different from `old`.
fn new_sequence(old: u32) -> u32 {
    loop {
        let sequence = fastrand::u32(1..MMP_SEQ_MAX);
        if sequence != old {
            return sequence;
        }
    }
}

/// The holder that a block names.
fn in_use(block: &MmpBlock) -> Error {
    Error::InUse {
        node: text(&block.nodename),
        device: text(&block.bdevname),
    }
}

impl Lease {
    /// Acquires the lease: waits until it is certain that no other machine holds or takes it.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::CheckRunning`], [`Error::Format`]; errors of the device.
    pub(super) fn acquire(
        device: &Arc<dyn Device>,
        sb: &SuperBlock,
        geometry: &Geometry,
        options: &Options,
    ) -> Result<Self> {
        let update = sb.mmp_interval.get().clamp(1, MMP_MAX_CHECK_INTERVAL);
        let offset = geometry.block_offset(sb.mmp_block.get())?;
        let seed = geometry.features().metadata_csum();
        let seed = seed.then(|| geometry.csum_seed());
        let found = read(&**device, offset, seed)?;
        let lease = Self {
            device: Arc::clone(device),
            offset,
            seed,
            clock: options.clock.clone(),
            fixed_time: options.fixed_time.map(|time| time.since_epoch().as_secs()),
            interval: Duration::from_secs(update.into()),
            valid_until: AtomicU64::new(0),
            state: Mutex::new(State {
                block: found.clone(),
                attempted: None,
                ended: None,
            }),
        };
        lease.wait_for_others(&found, update)?;
        Ok(lease)
    }

    fn wait_for_others(&self, found: &MmpBlock, update: u16) -> Result<()> {
        let least = update.clamp(MMP_MIN_CHECK_INTERVAL, MMP_MAX_CHECK_INTERVAL);
        let wait = wait_of(found.check_interval.get().max(least));
        let name = self.device.name();
        match found.seq.get() {
            MMP_SEQ_CLEAN => {}
            MMP_SEQ_FSCK => {
                let node = text(&found.nodename);
                return Err(Error::CheckRunning { node });
            }
            sequence if sequence > MMP_SEQ_MAX => {
                return Err(Error::UnknownMmpSequence { sequence });
            }
            sequence => {
                log::warn!(
                    "{name}: waiting {} s: another machine may be using it",
                    wait.as_secs()
                );
                self.clock.sleep(wait);
                let now = self.read()?;
                if now.seq.get() != sequence {
                    return Err(in_use(&now));
                }
            }
        }
        let mut mine = found.clone();
        self.name(&mut mine);
        mine.seq = new_sequence(found.seq.get()).into();
        let published = update.saturating_mul(2);
        let published = published.clamp(MMP_MIN_CHECK_INTERVAL, MMP_MAX_CHECK_INTERVAL);
        mine.check_interval = published.into();
        self.write(&mut mine)?;
        // A warning, because the user waits.
        log::warn!(
            "{name}: waiting {} s for a sign of other machines (multiple mount protection)",
            wait.as_secs()
        );
        self.clock.sleep(wait);
        let mut state = self.state.lock();
        state.block = mine;
        // Only now others see that this machine is alive.
        let renewed = self.renew_locked(&mut state);
        renewed.map_err(|error| match self.read() {
            Ok(now) if matches!(error, DeviceError::TakenOver { .. }) => in_use(&now),
            _ => error.into(),
        })
    }

    /// Names this machine and the device in the block.
    fn name(&self, block: &mut MmpBlock) {
        let node = match self.fixed_time {
            Some(_) => "sapwood".to_owned(),
            None => sapwood_base::machine::node_name(),
        };
        store(&node, &mut block.nodename);
        let device = self.device.name();
        let device = device.rsplit('/').next().unwrap_or(device);
        store(device, &mut block.bdevname);
    }

    /// The bytes of the block on the device.
    pub(super) fn place(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(MmpBlock::SIZE as u64)
    }

    fn read(&self) -> Result<MmpBlock> {
        read(&*self.device, self.offset, self.seed)
    }

    /// Writes a block durably, with the time and a checksum.
    fn write(&self, block: &mut MmpBlock) -> Result<(), DeviceError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        block.time = self.fixed_time.unwrap_or(now).into();
        if let Some(seed) = self.seed {
            block.set_checksum(seed);
        }
        self.device.write_fua(self.offset, block.bytes())
    }

    /// Fails if another machine may have taken the file system over. Renews an expired lease.
    ///
    /// # Errors
    /// [`DeviceError::TakenOver`]; errors of the device.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        if self.millis() < self.valid_until.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut state = self.state.lock();
        if self.millis() < self.valid_until.load(Ordering::Acquire) && state.ended.is_none() {
            return Ok(());
        }
        self.renew_locked(&mut state)
    }

    /// Renews the lease before it expires.
    ///
    /// # Errors
    /// [`DeviceError::TakenOver`]; errors of the device.
    pub(super) fn renew(&self) -> Result<(), DeviceError> {
        self.renew_locked(&mut self.state.lock())
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn renew_locked(&self, state: &mut State) -> Result<(), DeviceError> {
        if let Some(reason) = &state.ended {
            return Err(self.taken_over(reason));
        }
        let start = self.clock.now();
        let found = match self.read() {
            Ok(found) => found,
            Err(Error::Device(error)) => return Err(error),
            Err(error) => return Err(self.lose(state, &error.to_string())),
        };
        let sequence = found.seq.get();
        let ours = sequence == state.block.seq.get() || state.attempted == Some(sequence);
        if !ours || found.nodename != state.block.nodename {
            let by = in_use(&found).to_string();
            return Err(self.lose(state, &by));
        }
        let mut next = state.block.clone();
        next.seq = match sequence {
            sequence if sequence < MMP_SEQ_MAX => (sequence + 1).into(),
            _ => 1.into(),
        };
        let written = self.write(&mut next);
        // A machine that saw no renewal since the read above may write after this time. The write
        // may have destroyed its mark.
        let published = next.check_interval.get();
        if self.clock.now().saturating_sub(start) >= Duration::from_secs(2 * u64::from(published)) {
            let late = "the renewal of its multiple mount protection took too long";
            return Err(self.lose(state, late));
        }
        if let Err(error) = written {
            state.attempted = Some(next.seq.get());
            return Err(error);
        }
        state.attempted = None;
        state.block = next;
        let until = start + Duration::from_secs(published.into());
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.valid_until.store(until, Ordering::Release);
        Ok(())
    }

    fn taken_over(&self, reason: &Arc<str>) -> DeviceError {
        DeviceError::TakenOver {
            device: self.device.name().to_owned(),
            reason: Arc::clone(reason),
        }
    }

    /// Ends the lease without a write.
    fn lose(&self, state: &mut State, reason: &str) -> DeviceError {
        let reason: Arc<str> = reason.into();
        self.valid_until.store(0, Ordering::Release);
        let error = self.taken_over(&reason);
        state.ended = Some(reason);
        error
    }

    /// Marks the file system as not in use, unless another machine uses it, and ends the lease.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn release(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return Ok(());
        }
        self.renew_locked(&mut state)?;
        let mut clean = state.block.clone();
        clean.seq = MMP_SEQ_CLEAN.into();
        let update = u16::try_from(self.interval.as_secs()).unwrap_or(u16::MAX);
        let update = update.clamp(MMP_MIN_CHECK_INTERVAL, MMP_MAX_CHECK_INTERVAL);
        clean.check_interval = update.into();
        self.valid_until.store(0, Ordering::Release);
        state.ended = Some("the file system was closed".into());
        self.write(&mut clean)
    }
}

/// Reads the block from the medium.
fn read(device: &dyn Device, offset: u64, seed: Option<u32>) -> Result<MmpBlock> {
    let mut bytes = vec![0; MmpBlock::SIZE];
    device.drop_cached(offset, bytes.len() as u64);
    device.read_at(offset, &mut bytes)?;
    Ok(MmpBlock::parse(&bytes, seed)?)
}
