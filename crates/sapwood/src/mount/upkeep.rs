//! The daemon of a mount scrubs, balances and resizes the file system, and changes its devices, for
//! its owner and root, while it stays in use.
//!
//! # How it works
//! A client requests the work over a connection of its own ([`upkeep`](crate::bulk::upkeep)), so
//! the kernel's requests continue meanwhile. The mount does one such work at a time.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sapwood_block::{Device, FileDevice};
use sapwood_btrfs::membership::{MountedDevice, add_mounted, remove_mounted};
use sapwood_btrfs::replacement::replace_mounted;
use sapwood_btrfs::resize::{DeviceSize, resize_mounted};
use sapwood_btrfs::{Btrfs, balance, quota_groups};
use sapwood_ext4::resize::{MountedSize, grow_mounted};
use sapwood_fuse::bulk::{Admitted, Service, Work};

use super::writing::Engines;
use crate::bulk::upkeep::{Answer, Change, Removal, Reporter, Request, WantedSize};
use crate::devices::{
    BalanceFilter, BalanceReport, BalanceState, balanced, engine_options, replaced,
};
use crate::image::Mounted;
use crate::progress::Progress;
use crate::quota::Quotas;
use crate::resize::ResizeReport;
use crate::scrub::{self, ScrubOptions, ScrubReport};

/// See the module.
pub(super) struct Upkeep {
    engines: Arc<Engines>,
    devices: Vec<Arc<dyn Device>>,
    /// The devices are decrypted.
    encrypted: bool,
    /// Held during the work.
    one: Mutex<()>,
    /// The balance that runs.
    balance: Mutex<Option<Arc<Running>>>,
}

/// Takes the progress of the work: bytes that are done, and all bytes.
type Steps<'s> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 's;

/// A balance that runs.
#[derive(Default)]
struct Running {
    done: AtomicU64,
    total: AtomicU64,
    ends: AtomicBool,
}

impl Running {
    /// Records a step. Breaks if the balance is to end.
    fn step(&self, done: u64, total: u64) -> ControlFlow<()> {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        if self.ends.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Service for Upkeep {
    fn run(&self, work: Work) {
        if let Err(why) = self.serve(&work)
            && let Err(error) = Answer::<()>::Failed(why).send(&work.socket)
        {
            log::info!("a process that requested upkeep of the file system is gone: {error}");
        }
        let _ = work.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Upkeep {
    pub(super) fn new(
        engines: Arc<Engines>,
        devices: Vec<Arc<dyn Device>>,
        encrypted: bool,
    ) -> Self {
        Self {
            engines,
            devices,
            encrypted,
            one: Mutex::default(),
            balance: Mutex::default(),
        }
    }

    /// Ends the balance that runs, and waits for that. False if there is none.
    fn end_balance(&self) -> bool {
        let running = self.balance.lock().clone();
        let Some(running) = running else {
            return false;
        };
        running.ends.store(true, Ordering::Relaxed);
        drop(self.one.lock());
        true
    }

    fn balance_state(&self) -> Result<BalanceState, String> {
        if let Some(running) = &*self.balance.lock() {
            return Ok(BalanceState::Running {
                done: running.done.load(Ordering::Relaxed),
                total: running.total.load(Ordering::Relaxed),
            });
        }
        let image = self.engines.current().clone();
        let Mounted::Btrfs(fs) = &image else {
            return Ok(BalanceState::None);
        };
        Ok(if balance::is_paused(fs).map_err(text)? {
            BalanceState::Paused
        } else {
            BalanceState::None
        })
    }

    fn quotas(&self) -> Result<Option<Quotas>, String> {
        let image = self.engines.current().clone();
        let Mounted::Btrfs(fs) = &image else {
            return Err("only btrfs has quota groups".to_owned());
        };
        Ok(quota_groups::show(fs).map_err(text)?.map(Quotas::of))
    }

    /// Runs a balance that [`end_balance`](Self::end_balance) can end.
    fn balanced<E>(
        &self,
        step: &mut Steps<'_>,
        work: impl FnOnce(&mut Steps<'_>) -> Result<balance::BalanceReport, E>,
    ) -> Result<BalanceReport, String>
    where
        E: ToString,
    {
        let running = Arc::new(Running::default());
        *self.balance.lock() = Some(Arc::clone(&running));
        let done = work(&mut |done, total| {
            running.step(done, total)?;
            step(done, total)
        });
        *self.balance.lock() = None;
        done.map(balanced).map_err(text)
    }

    /// Serves a client. The error is a reason that people read.
    fn serve(&self, work: &Work) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let admitted = work.identify().map_err(failed)?;
        let request = Request::receive(&work.socket).map_err(failed)?;
        match &request {
            Request::BalanceState => {
                let state = self.balance_state()?;
                return Answer::Done(state).send(&work.socket).map_err(failed);
            }
            Request::Quotas => {
                let found = self.quotas()?;
                return Answer::Done(found).send(&work.socket).map_err(failed);
            }
            Request::PauseBalance => {
                let ended = self.end_balance();
                return Answer::Done(ended).send(&work.socket).map_err(failed);
            }
            Request::Change(Change::CancelBalance) => drop(self.end_balance()),
            Request::Change(_) | Request::Scrub { .. } | Request::Resize { .. } => {}
        }
        let Some(_one) = self.one.try_lock() else {
            let why = "the mount is being scrubbed, balanced or resized, or its devices change";
            return Err(why.to_owned());
        };
        // The engine stays meanwhile.
        let _in_use = self.engines.in_use.read();
        let image = self.engines.current().clone();
        let read_only = image.read_only() || admitted.check_writable().is_err();
        let mut reporter = Reporter::new(&work.socket);
        match request {
            Request::BalanceState | Request::PauseBalance | Request::Quotas => return Ok(()),
            Request::Scrub {
                read_only: only,
                limit,
            } => {
                let repairs = matches!(image, Mounted::Btrfs(_)) && !only;
                if read_only && repairs {
                    let why = "the mount is read-only; --read-only scrubs without repairs";
                    return Err(why.to_owned());
                }
                let report = self.scrub(&image, only, limit, &mut reporter)?;
                return Answer::Done(report).send(&work.socket).map_err(failed);
            }
            Request::Change(_) | Request::Resize { .. } => {}
        }
        if read_only {
            return Err("the mount is read-only".to_owned());
        }
        // A mount that becomes read-only meanwhile is not changed any more.
        let mut step = |done, total| {
            if admitted.check_writable().is_err() {
                return ControlFlow::Break(());
            }
            reporter.step(done, total)
        };
        match (request, &image) {
            (Request::Change(change), Mounted::Btrfs(fs)) => {
                self.change(fs, change, (work, &admitted), &mut step)
            }
            (Request::Resize { devid, size }, _) => {
                let report = resize(&image, devid, size, &mut step)?;
                Answer::Done(report).send(&work.socket).map_err(failed)
            }
            _ => Err("only btrfs has block groups, quota groups and several devices".to_owned()),
        }
    }

    fn scrub(
        &self,
        image: &Mounted,
        read_only: bool,
        limit: Option<u64>,
        reporter: &mut Reporter<'_>,
    ) -> Result<ScrubReport, String> {
        let fs = match image {
            Mounted::Btrfs(fs) => return scrub_btrfs(fs, read_only, limit, reporter),
            Mounted::Ext4(fs) => fs,
            Mounted::Rescued(..) => return Err("only a sound image can be scrubbed".to_owned()),
        };
        let device = self.devices.first().ok_or("the mount has no device")?;
        let options = ScrubOptions {
            limit,
            ..ScrubOptions::default()
        };
        let stop = options.stop.clone();
        let mut total = 0;
        let report = scrub::mounted_ext4(fs, &**device, &options, &mut |step| {
            if let Progress::Total(all) = step {
                total = all;
            }
            if let Progress::Done { done, .. } = step
                && reporter.step(done, total).is_break()
            {
                stop.stop();
            }
        });
        report.map_err(text)
    }

    /// Changes block groups or devices.
    fn change(
        &self,
        fs: &Btrfs,
        change: Change,
        (work, admitted): (&Work, &Admitted),
        step: &mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send),
    ) -> Result<(), String> {
        let socket = &work.socket;
        let sent = match change {
            Change::Balance {
                data,
                metadata,
                system,
                force,
            } => {
                let [data, metadata, system] = [data, metadata, system].map(parsed);
                let filters = [data?, metadata?, system?];
                let options = engine_options(filters.each_ref().map(Option::as_ref), force);
                let work = |step: &mut Steps<'_>| balance::balance_mounted(fs, &options, step);
                Answer::Done(self.balanced(step, work)?).send(socket)
            }
            Change::ResumeBalance => {
                let work = |step: &mut Steps<'_>| balance::resume_mounted(fs, step);
                Answer::Done(self.balanced(step, work)?).send(socket)
            }
            Change::CancelBalance => {
                balance::cancel_mounted(fs).map_err(text)?;
                Answer::Done(()).send(socket)
            }
            Change::Quota(change) => {
                quota_groups::change(fs, change.engine()).map_err(text)?;
                Answer::Done(()).send(socket)
            }
            Change::AddDevice { name, force } => {
                let device = self.new_device(work, admitted, name)?;
                let devid = add_mounted(fs, &device, force).map_err(text)?;
                self.engines.added.lock().push(device);
                Answer::Done(devid).send(socket)
            }
            Change::RemoveDevice(removal) => {
                let removed = remove_mounted(fs, named(&removal), step).map_err(text)?;
                Answer::Done(removed).send(socket)
            }
            Change::ReplaceDevice { old, name, force } => {
                let device = self.new_device(work, admitted, name)?;
                let done = replace_mounted(fs, named(&old), &device, force, step).map_err(text)?;
                if !done.interrupted {
                    self.engines.added.lock().push(device);
                }
                Answer::Done(replaced(done)).send(socket)
            }
        };
        sent.map_err(text)
    }

    /// The device that the client passes.
    fn new_device(
        &self,
        work: &Work,
        admitted: &Admitted,
        name: String,
    ) -> Result<Arc<dyn Device>, String> {
        if self.encrypted {
            let why = "the image is encrypted: change its devices while it is not mounted";
            return Err(why.to_owned());
        }
        let file = work.receive_file().map_err(text)?;
        if admitted.is_in_mount(&file).map_err(text)? {
            return Err(format!("{name}: it lies in the mount"));
        }
        Ok(Arc::new(
            FileDevice::adopt(file.into(), name).map_err(text)?,
        ))
    }
}

fn named(device: &Removal) -> MountedDevice<'_> {
    match device {
        Removal::Devid(devid) => MountedDevice::Devid(*devid),
        Removal::Name(name) => MountedDevice::Name(name),
        Removal::Missing => MountedDevice::Missing,
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn parsed(filter: Option<String>) -> Result<Option<BalanceFilter>, String> {
    filter.map(|text| text.parse()).transpose().map_err(text)
}

fn resize(
    image: &Mounted,
    devid: Option<u64>,
    size: WantedSize,
    step: &mut Steps<'_>,
) -> Result<ResizeReport, String> {
    match image {
        Mounted::Btrfs(fs) => {
            let size = match size {
                WantedSize::Exactly(bytes) => DeviceSize::Exactly(bytes),
                WantedSize::More(bytes) => DeviceSize::More(bytes),
                WantedSize::Less(bytes) => DeviceSize::Less(bytes),
                WantedSize::Max => DeviceSize::Max,
            };
            let resized = resize_mounted(fs, devid, size, step).map_err(text)?;
            Ok(ResizeReport {
                before: resized.before,
                after: resized.after,
            })
        }
        Mounted::Ext4(_) if devid.is_some() => Err("an ext4 has no device ids".to_owned()),
        Mounted::Ext4(fs) => {
            let size = match size {
                WantedSize::Exactly(bytes) => MountedSize::Exactly(bytes),
                WantedSize::More(bytes) => MountedSize::More(bytes),
                WantedSize::Less(_) => {
                    return Err("a mounted ext4 only grows: unmount it first".to_owned());
                }
                WantedSize::Max => MountedSize::Max,
            };
            let grown = grow_mounted(fs, size, step).map_err(text)?;
            Ok(ResizeReport {
                before: grown.before,
                after: grown.after,
            })
        }
        Mounted::Rescued(..) => Err("only a sound image can be resized".to_owned()),
    }
}

fn scrub_btrfs(
    fs: &Btrfs,
    read_only: bool,
    limit: Option<u64>,
    reporter: &mut Reporter<'_>,
) -> Result<ScrubReport, String> {
    let options = sapwood_btrfs::scrub::ScrubOptions {
        read_only,
        limit,
        ..sapwood_btrfs::scrub::ScrubOptions::default()
    };
    let report = sapwood_btrfs::scrub::scrub_mounted(fs, &options, &mut |step| {
        reporter.step(step.done, step.total)
    });
    report.map(scrub::shown).map_err(text)
}
