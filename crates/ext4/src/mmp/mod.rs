//! Multiple mount protection: at most one machine writes to a file system that several can reach.
//!
//! # How it works
//! The superblock names a block with a sequence number. The machine that writes, the *holder*,
//! changes the number every few seconds, and publishes an interval. An opener
//! 1. reads the block. "Clean" continues at 3; "fsck" is refused.
//! 2. waits for twice the interval and a second. A changed number means a live holder: refused.
//! 3. writes a random number, and waits as long again. If the number is another one then, another
//!    opener was faster: refused.
//!
//! The holder has a *lease*, which each renewal extends by the published interval. A renewal reads
//! the block first: another machine's number ends the lease. A write that finds the lease expired
//! renews it before it reaches the device, so a machine that was suspended, or whose device hung,
//! writes nothing after another machine took over. Another machine writes at the earliest twice the
//! interval after the last renewal began; a renewal that takes longer may have overwritten the
//! other's number, and ends the lease, too.
//!
//! Closing writes "clean". A machine that lost the lease writes nothing.
//!
//! Reading needs no lease. A device in memory over an image needs none either
//! ([`Options::unprotected`]).
//!
//! Source: kernel documentation, `filesystems/ext4/mmp.rst`; `tune2fs(8)`.

mod fence;
mod lease;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sapwood_block::{Device, Error as DeviceError};
use sapwood_ext4_format::{Geometry, Incompat, SuperBlock};

use fence::FencedDevice;
use lease::Lease;

use crate::journal_device::JournalDevice;
use crate::{Options, Result};

/// Pause after a renewal that failed, before the next attempt.
const RETRY: Duration = Duration::from_secs(1);

/// Called once when the lease is lost.
type OnLost = Box<dyn Fn(&DeviceError) + Send>;

/// The right to write to a file system with multiple mount protection. Dropping it marks the file
/// system as not in use.
#[derive(Debug)]
pub struct Protection {
    lease: Arc<Lease>,
    thread: Mutex<Option<Renewal>>,
}

/// The thread that renews the lease.
#[derive(Debug)]
struct Renewal {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Protection {
    /// Takes the protection of the file system on a device, if it has one and the options do not
    /// leave it out. Returns the device to write to. May wait for some seconds, or, after a crash,
    /// up to minutes.
    ///
    /// # Errors
    /// [`Error::InUse`](crate::Error::InUse),
    /// [`Error::CheckRunning`](crate::Error::CheckRunning): another machine has it. The block is
    /// damaged; errors of the device.
    pub fn take(
        device: &Arc<dyn Device>,
        sb: &SuperBlock,
        options: &Options,
    ) -> Result<(Arc<dyn Device>, Option<Self>)> {
        let elsewhere = options.unprotected || options.in_place;
        if elsewhere || !sb.features().has_incompat(Incompat::MMP) {
            return Ok((Arc::clone(device), None));
        }
        let geometry = Geometry::new(sb)?;
        let lease = Arc::new(Lease::acquire(device, sb, &geometry, options)?);
        // Another machine may take over while this one waits for a new connection to the device.
        let place = lease.place();
        device.watch(place.start, place.end - place.start)?;
        // This machine may have cached blocks that another one changed since.
        device.drop_cached(0, device.size());
        let fenced = FencedDevice::new(Arc::clone(device), Arc::clone(&lease));
        let protection = Self {
            lease,
            thread: Mutex::new(None),
        };
        Ok((Arc::new(fenced), Some(protection)))
    }

    /// The bytes of the file system that record its use. Only this writes them.
    #[must_use]
    pub fn place(&self) -> Range<u64> {
        self.lease.place()
    }

    /// A journal on another device that is written only with this protection.
    #[must_use]
    pub(crate) fn fence(&self, journal: &JournalDevice) -> JournalDevice {
        let device = journal.device();
        device.drop_cached(0, device.size());
        let fenced = FencedDevice::other(Arc::clone(device), Arc::clone(&self.lease));
        JournalDevice::new(Arc::new(fenced))
    }

    /// Starts the thread that renews the lease, until the release. Without it, writes renew an
    /// expired lease, but another machine may take over an idle file system.
    pub fn keep(&self, on_lost: OnLost) {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (lease, stopped) = (Arc::clone(&self.lease), Arc::clone(&stop));
        let spawned = std::thread::Builder::new()
            .name("ext4-mmp".into())
            .spawn(move || renew_until(&lease, &stopped, &on_lost));
        match spawned {
            Ok(thread) => *self.thread.lock() = Some(Renewal { stop, thread }),
            Err(error) => log::warn!("no thread for multiple mount protection: {error}"),
        }
    }

    /// Ends the lease and marks the file system as not in use, unless another machine took it over.
    ///
    /// # Errors
    /// Errors of the device: other machines will wait before they open it.
    pub fn release(&self) -> Result<()> {
        if let Some(renewal) = self.thread.lock().take() {
            *renewal.stop.0.lock() = true;
            renewal.stop.1.notify_all();
            // That thread itself may drop the last reference to a mount.
            let own = renewal.thread.thread().id() == std::thread::current().id();
            if !own && renewal.thread.join().is_err() {
                log::error!("the thread of multiple mount protection panicked");
            }
        }
        Ok(self.lease.release()?)
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            log::warn!("multiple mount protection is still marked as in use: {error}");
        }
    }
}

fn renew_until(lease: &Lease, stop: &(Mutex<bool>, Condvar), on_lost: &OnLost) {
    let (stopped, changed) = stop;
    let mut pause = lease.interval;
    loop {
        let next = Instant::now() + pause;
        let mut stopped = stopped.lock();
        while !*stopped && !changed.wait_until(&mut stopped, next).timed_out() {}
        if *stopped {
            return;
        }
        drop(stopped);
        pause = match lease.renew() {
            Ok(()) => lease.interval,
            Err(error @ DeviceError::TakenOver { .. }) => {
                on_lost(&error);
                return;
            }
            Err(error) => {
                log::warn!("multiple mount protection was not renewed: {error}");
                RETRY
            }
        };
    }
}
