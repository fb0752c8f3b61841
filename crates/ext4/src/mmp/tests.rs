//! Several machines and one file system, with a clock that a test steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use sapwood_block::{Device, MemoryDevice, OVERLAY_PAGE, OverlayDevice};
use sapwood_ext4_format::{Geometry, MMP_SEQ_CLEAN, MMP_SEQ_FSCK, MmpBlock, SUPER_OFFSET};
use sapwood_testing::{GateDevice, RequestKind};
use sapwood_vfs::FileSystem;

use crate::mkfs::{MkfsOptions, mkfs};
use crate::oracles::{MIB, TOOLS, clean, file, left_out};
use crate::{Clock, Error, Ext4, Options, Protection, SharedClock, mount};

/// Runs during a wait.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A clock on which only waits, and the test, let time pass.
#[derive(Default)]
struct Steps {
    now: Mutex<Duration>,
    waits: Mutex<Vec<u64>>,
    during: Mutex<VecDeque<Meanwhile>>,
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steps")
    }
}

impl Clock for Steps {
    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn sleep(&self, time: Duration) {
        let meanwhile = self.during.lock().pop_front();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.waits.lock().push(time.as_secs());
        *self.now.lock() += time;
    }
}

impl Steps {
    fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn pass(&self, seconds: u64) {
        *self.now.lock() += Duration::from_secs(seconds);
    }

    fn meanwhile(&self, step: impl FnOnce() + Send + 'static) {
        self.during.lock().push_back(Box::new(step));
    }

    fn options(self: &Arc<Self>) -> Options {
        Options {
            background: false,
            clock: SharedClock::new(Arc::clone(self) as Arc<dyn Clock>),
            ..Options::default()
        }
    }
}

fn made() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(16 * MIB);
    let options = MkfsOptions {
        features: vec![("mmp".to_owned(), true)],
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).unwrap();
    Arc::new(device)
}

/// Byte of the block.
fn place(device: &dyn Device) -> u64 {
    let sb = mount::read_super(device).unwrap();
    let geometry = Geometry::new(&sb).unwrap();
    geometry.block_offset(sb.mmp_block.get()).unwrap()
}

fn block(device: &dyn Device) -> MmpBlock {
    let mut bytes = vec![0; MmpBlock::SIZE];
    device.read_at(place(device), &mut bytes).unwrap();
    let sb = mount::read_super(device).unwrap();
    let seed = Geometry::new(&sb).unwrap().csum_seed();
    MmpBlock::parse(&bytes, Some(seed)).unwrap()
}

fn store(device: &dyn Device, mut block: MmpBlock) {
    let sb = mount::read_super(device).unwrap();
    block.set_checksum(Geometry::new(&sb).unwrap().csum_seed());
    device.write_at(place(device), block.bytes()).unwrap();
}

/// A machine of this name takes over: it writes a sequence of its own.
fn take_over(device: &dyn Device, node: &[u8], sequence: u32) {
    let mut block = block(device);
    block.nodename = [0; 64];
    block.nodename[..node.len()].copy_from_slice(node);
    block.seq = sequence.into();
    store(device, block);
}

fn open(device: &Arc<dyn Device>, clock: &Arc<Steps>) -> crate::Result<Ext4> {
    Ext4::open(Arc::clone(device), clock.options())
}

fn refusal(opened: crate::Result<Ext4>) -> Error {
    opened.map(|_| ()).unwrap_err()
}

#[test]
fn a_clean_image_is_opened_after_one_wait_and_is_clean_again() {
    let memory = made();
    let device: Arc<dyn Device> = memory.clone();
    let clock = Steps::new();
    let fs = open(&device, &clock).unwrap();
    assert_eq!(*clock.waits.lock(), [11]);
    let held = block(&*device);
    assert!(held.seq.get() != MMP_SEQ_CLEAN && held.check_interval.get() == 10);
    assert_eq!(held.nodename[63], 0);
    file(&fs, "file");
    fs.unmount().unwrap();
    let released = block(&*device);
    assert_eq!(released.seq.get(), MMP_SEQ_CLEAN);
    assert_eq!(released.check_interval.get(), 5);
    if !left_out(TOOLS) {
        clean(&memory, "mmp");
    }
}

#[test]
fn a_reader_neither_waits_nor_writes() {
    let memory = made();
    let device: Arc<dyn Device> = memory.clone();
    let clock = Steps::new();
    let fs = open(&device, &clock).unwrap();
    let before = memory.snapshot();
    let reading = Options {
        read_only: true,
        ..clock.options()
    };
    // The first has the image open, so its superblock asks for a recovery, in memory.
    let reader = Ext4::open(Arc::clone(&device), reading).unwrap();
    reader.unmount().unwrap();
    assert_eq!(memory.first_difference(&before), None);
    assert_eq!(clock.waits.lock().len(), 1);
    fs.unmount().unwrap();
}

#[test]
fn an_image_of_a_machine_that_crashed_is_opened_after_two_waits() {
    let device: Arc<dyn Device> = made();
    take_over(&*device, b"crashed", 77);
    let clock = Steps::new();
    open(&device, &clock).unwrap().unmount().unwrap();
    assert_eq!(*clock.waits.lock(), [11, 11]);
    // A holder publishes a longer interval.
    let mut late = block(&*device);
    late.seq = 78.into();
    late.check_interval = 100.into();
    store(&*device, late);
    let clock = Steps::new();
    open(&device, &clock).unwrap().unmount().unwrap();
    assert_eq!(*clock.waits.lock(), [160, 160]);
}

#[test]
fn an_image_that_another_machine_has_is_refused_by_its_name() {
    let device: Arc<dyn Device> = made();
    take_over(&*device, b"alpha\x1b[31m", 77);
    let clock = Steps::new();
    let other = Arc::clone(&device);
    clock.meanwhile(move || take_over(&*other, b"alpha\x1b[31m", 78));
    let before = block(&*device);
    let error = refusal(open(&device, &clock));
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("alpha[31m") && !text.contains('\x1b'),
        "{text}"
    );
    let after = block(&*device);
    assert_eq!((after.seq.get(), before.seq.get()), (78, 77));
}

#[test]
fn a_check_and_an_unknown_sequence_are_refused_at_once() {
    for (sequence, what) in [
        (MMP_SEQ_FSCK, "being checked on \"beta\""),
        (MMP_SEQ_FSCK + 1, "unknown sequence 0xe24d4d51"),
    ] {
        let device: Arc<dyn Device> = made();
        take_over(&*device, b"beta", sequence);
        let clock = Steps::new();
        let error = refusal(open(&device, &clock)).to_string();
        assert!(error.contains(what), "{error}");
        assert!(error.contains("tune2fs -f -E clear_mmp"), "{error}");
        assert!(clock.waits.lock().is_empty());
        assert_eq!(block(&*device).seq.get(), sequence);
    }
}

#[test]
fn a_damaged_block_refuses_a_writer_only() {
    let device: Arc<dyn Device> = made();
    device.write_at(place(&*device) + 8, &[0xff]).unwrap();
    let clock = Steps::new();
    let error = refusal(open(&device, &clock)).to_string();
    assert!(error.contains("mmp block: checksum"), "{error}");
    let reading = Options {
        read_only: true,
        ..clock.options()
    };
    Ext4::open(device, reading).unwrap();
}

/// The second begins while the first is still waiting.
#[test]
fn of_two_that_begin_together_one_is_refused() {
    let device: Arc<dyn Device> = made();
    let (first, second) = (Steps::new(), Steps::new());
    let won = Arc::new(Mutex::new(None));
    let (other, clock, result) = (Arc::clone(&device), second.clone(), won.clone());
    first.meanwhile(move || *result.lock() = Some(open(&other, &clock)));
    let error = refusal(open(&device, &first));
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    let winner = won.lock().take().unwrap().unwrap();
    file(&winner, "file");
    winner.unmount().unwrap();
    assert_eq!(block(&*device).seq.get(), MMP_SEQ_CLEAN);
}

/// The first one's mark reaches the medium after the second began to write.
#[test]
fn a_mark_that_was_held_up_ends_the_other_lease_before_its_own_begins() {
    let memory = made();
    let gate = Arc::new(GateDevice::new(Arc::clone(&memory)));
    let slow: Arc<dyn Device> = gate.clone();
    let fast: Arc<dyn Device> = memory.clone();
    let at = place(&*memory);
    gate.hold_if(move |request| request.kind == RequestKind::Fua && request.offset == at);
    let (ours, theirs) = (Steps::new(), Steps::new());
    let clock = ours.clone();
    let opening = thread::spawn(move || open(&slow, &clock));
    let held = gate.wait_held(1);
    let second = open(&fast, &theirs).unwrap();
    file(&second, "second");
    second.sync().unwrap();
    let wrote = Arc::new(AtomicUsize::new(0));
    // The mark lands, and the second learns of it before the first one's wait is over.
    let (clock, fast_clock, count) = (ours.clone(), theirs.clone(), wrote.clone());
    let (seen, fs) = (Arc::new(Mutex::new(None)), Arc::new(second));
    let (result, mount) = (seen.clone(), fs.clone());
    clock.meanwhile(move || {
        fast_clock.pass(10);
        let who = sapwood_vfs::Credentials::ROOT;
        let made = mount.create(
            &who,
            mount.root(),
            b"late",
            sapwood_vfs::NewInode::Regular,
            0o644,
        );
        let synced = made.map(|_| ()).and_then(|()| mount.sync());
        *result.lock() = Some(synced.map_err(|error| error.to_string()));
        count.fetch_add(1, Ordering::Relaxed);
    });
    gate.open();
    assert_eq!(held.len(), 1);
    let first = opening.join().unwrap().unwrap();
    assert_eq!(wrote.load(Ordering::Relaxed), 1);
    let seen = seen.lock().take().unwrap();
    assert!(seen.is_err_and(|error| error.contains("ead-only")));
    let _ = fs.unmount();
    drop(fs);
    // The first recovers what the second made durable, and goes on.
    assert!(first.lookup(first.root(), b"second").is_ok());
    assert!(first.lookup(first.root(), b"late").is_err());
    first.unmount().unwrap();
    if !left_out(TOOLS) {
        clean(&memory, "mmp");
    }
}

#[test]
fn a_machine_that_slept_goes_on_if_no_other_came() {
    let device: Arc<dyn Device> = made();
    let clock = Steps::new();
    let fs = open(&device, &clock).unwrap();
    let before = block(&*device).seq.get();
    clock.pass(7200);
    file(&fs, "file");
    fs.sync().unwrap();
    assert_eq!(block(&*device).seq.get(), before + 1);
    fs.unmount().unwrap();
}

#[test]
fn a_machine_that_slept_writes_nothing_if_another_came() {
    let memory = made();
    let device: Arc<dyn Device> = memory.clone();
    let clock = Steps::new();
    let fs = open(&device, &clock).unwrap();
    file(&fs, "file");
    clock.pass(7200);
    take_over(&*device, b"gamma", 99);
    let before = memory.snapshot();
    let error = fs.sync().unwrap_err();
    assert_eq!(
        error.errno(),
        sapwood_vfs::Error::ReadOnly.errno(),
        "{error}"
    );
    assert!(fs.unmount().is_err());
    drop(fs);
    assert_eq!(memory.first_difference(&before), None);
}

/// The write of a renewal hangs; meanwhile another machine comes, and its mark is overwritten.
#[test]
fn a_renewal_that_hung_ends_the_lease() {
    let memory = made();
    let gate = Arc::new(GateDevice::new(Arc::clone(&memory)));
    let device: Arc<dyn Device> = gate.clone();
    let clock = Steps::new();
    let fs = open(&device, &clock).unwrap();
    file(&fs, "file");
    let at = place(&*memory);
    gate.hold_if(move |request| request.kind == RequestKind::Fua && request.offset == at);
    clock.pass(10);
    let fs = Arc::new(fs);
    let writer = Arc::clone(&fs);
    let writing = thread::spawn(move || writer.sync());
    gate.wait_held(1);
    take_over(&*memory, b"delta", 99);
    clock.pass(20);
    let before = memory.snapshot();
    gate.open();
    assert!(writing.join().unwrap().is_err());
    assert!(fs.unmount().is_err());
    drop(fs);
    // Only the renewal itself reached the medium.
    let changed = block(&*memory);
    assert_ne!(changed.seq.get(), 99);
    let mut old = vec![0; MmpBlock::SIZE];
    before.read_at(at, &mut old).unwrap();
    memory.write_at(at, &old).unwrap();
    assert_eq!(memory.first_difference(&before), None);
}

#[test]
fn the_thread_of_a_mount_renews_and_notices_a_loss() {
    let memory = MemoryDevice::new(16 * MIB);
    let options = MkfsOptions {
        features: vec![("mmp".to_owned(), true)],
        mmp_update_interval: Some(1),
        ..MkfsOptions::default()
    };
    mkfs(&memory, &options).unwrap();
    let device: Arc<dyn Device> = Arc::new(memory);
    let options = Options {
        background: true,
        ..Steps::new().options()
    };
    let fs = Ext4::open(Arc::clone(&device), options).unwrap();
    let begun = block(&*device).seq.get();
    let within = std::time::Instant::now() + Duration::from_secs(30);
    while block(&*device).seq.get() == begun && std::time::Instant::now() < within {
        thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(block(&*device).seq.get(), begun);
    take_over(&*device, b"epsilon", 5);
    while !fs.engine.read_only() && std::time::Instant::now() < within {
        thread::sleep(Duration::from_millis(20));
    }
    let error = fs.engine.check().unwrap_err().to_string();
    assert!(error.contains("in use by \"epsilon\""), "{error}");
}

#[test]
fn work_without_a_mount_takes_the_protection() {
    let device: Arc<dyn Device> = made();
    take_over(&*device, b"zeta", MMP_SEQ_FSCK);
    let wanted = |error: &dyn std::fmt::Display| assert!(error.to_string().contains("\"zeta\""));
    wanted(&crate::Staging::begin(&device, None).unwrap_err());
    wanted(&crate::resize::resize(&device, 8 * MIB, None, &mut |_| ()).unwrap_err());
    wanted(&crate::resize::shrink_to_fit(&device, 0, None, &mut |_| ()).unwrap_err());
    wanted(&crate::protect(&device, None).unwrap_err());
}

/// Layers above keep pages of 4 KiB, which have several blocks of 1 KiB.
#[test]
fn a_page_that_is_written_back_leaves_the_mark_as_it_is() {
    let memory = MemoryDevice::new(16 * MIB);
    let options = MkfsOptions {
        features: vec![("mmp".to_owned(), true)],
        block_size: Some(1024),
        ..MkfsOptions::default()
    };
    mkfs(&memory, &options).unwrap();
    let device: Arc<dyn Device> = Arc::new(memory);
    let clock = Steps::new();
    let sb = mount::read_super(&*device).unwrap();
    let (fenced, protection) = Protection::take(&device, &sb, &clock.options()).unwrap();
    let protection = protection.unwrap();
    let overlay = OverlayDevice::new(Arc::clone(&fenced));
    let at = place(&*device);
    let page = at - at % OVERLAY_PAGE;
    let mut all = vec![0; OVERLAY_PAGE as usize];
    device.read_at(page, &mut all).unwrap();
    overlay.write_at(page, &all).unwrap();
    let begun = block(&*device).seq.get();
    clock.pass(10);
    protection.lease.renew().unwrap();
    let renewed = block(&*device).seq.get();
    assert_eq!(renewed, begun + 1);
    overlay.write_home().unwrap();
    fenced.write_fua(page, &all).unwrap();
    let (one, two) = all.split_at(500);
    fenced.write_vectored_at(page, &[one, two]).unwrap();
    assert_eq!(block(&*device).seq.get(), renewed);
    // Its neighbours are written.
    all.fill(7);
    fenced.write_at(page, &all).unwrap();
    assert_eq!(block(&*device).seq.get(), renewed);
    let mut found = vec![0; OVERLAY_PAGE as usize];
    device.read_at(page, &mut found).unwrap();
    let sevens = found.iter().filter(|byte| **byte == 7).count();
    assert!(sevens >= 3 * 1024, "{sevens}");
    clock.pass(10);
    fenced.write_at(page, &all).unwrap();
}

/// A device with a cached superblock.
#[derive(Debug)]
struct Cached {
    inner: Arc<MemoryDevice>,
    cache: Mutex<Option<Vec<u8>>>,
}

impl sapwood_block::Layer for Cached {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> sapwood_block::Result<()> {
        match &*self.cache.lock() {
            Some(bytes) if offset == SUPER_OFFSET => {
                buf.copy_from_slice(&bytes[..buf.len()]);
                Ok(())
            }
            _ => Device::read_at(&*self.inner, offset, buf),
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if (offset..offset + len).contains(&SUPER_OFFSET) {
            *self.cache.lock() = None;
        }
    }
}

#[test]
fn nothing_cached_before_the_lease_is_used() {
    let inner = made();
    let mut bytes = vec![0; 1024];
    inner.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    let cached: Arc<dyn Device> = Arc::new(Cached {
        inner: inner.clone(),
        cache: Mutex::new(Some(bytes)),
    });
    // Another machine changes the image.
    let other: Arc<dyn Device> = inner;
    let fs = open(&other, &Steps::new()).unwrap();
    fs.unmount().unwrap();
    let fs = open(&cached, &Steps::new()).unwrap();
    assert_eq!(fs.engine.super_block.lock().mnt_count.get(), 2);
    fs.unmount().unwrap();
}
