//! [`KernelQueue`]: a thread in which the kernel checks sampled crash images while other threads
//! run workloads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use sapwood_block::MemoryDevice;
use sapwood_testing::CrashPlan;

use crate::cut::Cut;
use crate::explore::Found;
use crate::judge::{Failure, recover_in_place};
use crate::kernel::Kernel;
use crate::subject::Subject;

/// Capacity of the queue; a sender that finds it full can wait or skip its image.
const QUEUE: usize = 16;

/// A crash image for the kernel.
#[derive(Debug)]
pub struct Sample {
    /// The workload.
    pub subject: Subject,
    /// Its crash.
    pub plan: CrashPlan,
    /// The image that the crash left.
    pub image: MemoryDevice,
}

/// The results of the kernel's checks.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    /// Number of images.
    pub images: u64,
    /// Number of images with a log to replay.
    pub with_log: u64,
    /// Number of runs of the tool that checks such images.
    pub checks: u64,
    /// Number of images by the operations of their workloads.
    pub by_operation: BTreeMap<&'static str, u64>,
    /// Images on which the kernel disagrees.
    pub failures: Vec<Found>,
}

/// The thread and its queue.
#[derive(Debug)]
pub struct KernelQueue {
    sender: SyncSender<Sample>,
    verdicts: Arc<Mutex<Verdicts>>,
    thread: JoinHandle<()>,
}

impl KernelQueue {
    /// Starts the thread.
    #[must_use]
    pub fn open(kernel: Kernel) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        let verdicts = Arc::new(Mutex::new(Verdicts::default()));
        let shared = verdicts.clone();
        let thread = std::thread::spawn(move || work(&kernel, &receiver, &shared));
        Self {
            sender,
            verdicts,
            thread,
        }
    }

    /// Queues an image; waits while the queue is full.
    pub fn send(&self, sample: Sample) {
        // The receiver lives as long as the thread, which ends only after `close`.
        let _ = self.sender.send(sample);
    }

    /// Queues an image unless the queue is full.
    pub fn try_send(&self, sample: Sample) {
        let _ = self.sender.try_send(sample);
    }

    /// The results so far.
    #[must_use]
    pub fn so_far(&self) -> Verdicts {
        self.verdicts.lock().clone()
    }

    /// Waits until the kernel has checked all queued images.
    #[must_use]
    pub fn close(self) -> Verdicts {
        let Self {
            sender,
            verdicts,
            thread,
        } = self;
        drop(sender);
        let panicked = thread.join().is_err();
        let mut verdicts = verdicts.lock().clone();
        if panicked {
            verdicts.images = 0;
        }
        verdicts
    }
}

fn work(kernel: &Kernel, receiver: &Receiver<Sample>, verdicts: &Mutex<Verdicts>) {
    for sample in receiver {
        let judged = judge(kernel, &sample.image);
        let mut verdicts = verdicts.lock();
        verdicts.images += 1;
        verdicts.with_log += u64::from(kernel.engine().has_log(&sample.image));
        verdicts.checks += 2;
        for op in sample.subject.ops() {
            *verdicts.by_operation.entry(op.verb()).or_default() += 1;
        }
        if let Err(why) = judged {
            verdicts.failures.push(Found {
                subject: sample.subject,
                failure: Box::new(Failure {
                    cut: Some(Cut(sample.plan)),
                    wrong: vec![why],
                    image: Some(Arc::new(sample.image)),
                }),
            });
        }
    }
}

/// Compares the kernel's recovery of an image with ours: both trees must be equal, and the engine's
/// tool must accept both results. If the tool can recover an image too, its tree must be equal as
/// well.
///
/// # Errors
/// The difference or the tool's finding.
pub fn judge(kernel: &Kernel, image: &MemoryDevice) -> Result<(), String> {
    let theirs = kernel
        .recover(image)
        .map_err(|why| format!("kernel: {why}"))?;
    let checked = kernel.check_recovered();
    checked.map_err(|why| format!("after the kernel's recovery: {why}"))?;
    let ours = image.snapshot();
    let (ours, outcome) = recover_in_place(kernel.engine(), ours);
    let tree = outcome?.tree;
    let checked = kernel.check(&ours);
    checked.map_err(|why| format!("after our recovery: {why}"))?;
    if let Some(why) = tree.difference(&theirs) {
        return Err(format!("ours (first) and the kernel's (second): {why}"));
    }
    let tools = kernel.recover_by_tool(image);
    let Some(tools) = tools.map_err(|why| format!("the tool's recovery: {why}"))? else {
        return Ok(());
    };
    let Some(why) = tree.difference(&tools) else {
        return Ok(());
    };
    if kernel.engine().tool_leaves_out_the_log(image) {
        return Ok(());
    }
    if let Some(image) = kernel.engine().as_the_tool_reads_it(image) {
        let (_, outcome) = recover_in_place(kernel.engine(), image);
        if outcome?.tree.difference(&tools).is_none() {
            return Ok(());
        }
    }
    Err(format!("ours (first) and the tool's (second): {why}"))
}
