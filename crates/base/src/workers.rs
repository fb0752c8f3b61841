//! Worker threads that run jobs from queues, and an alarm for periodic threads.
//!
//! # How it works
//! [`Workers`] has a few queues. Each has its own threads, so a job of one queue may wait for a job
//! of another. A job that waits for one of its own queue may wait for ever.
//!
//! States:
//!
//! - new: no thread runs
//! - started
//! - stopping: queued jobs are still run; `push` returns new jobs to its caller
//! - stopped
//!
//! Threads refer only to the queues, and jobs own their data. So one of the threads may drop the
//! last reference to the owner; `stop` then does not wait for that thread
//! (`a_worker_may_drop_the_owner`).
//!
//! Waking a thread often costs more than the job itself. So a queue may *batch* its jobs: a thread
//! that has run all jobs looks again after a delay before it sleeps, and a job that is queued
//! meanwhile wakes no thread, until there are many jobs or a thread waits for them
//! ([`Workers::hurry`]; `batching_wakes_a_thread_only_for_many_jobs_or_a_hurry`). A queue without
//! jobs has no thread that looks.
//!
//! Trouble case: the system cannot start a thread. A queue without threads returns its jobs to the
//! caller (`a_queue_without_threads_returns_jobs`), and the thread that starts the workers runs the
//! jobs that were queued before (`jobs_of_threads_that_do_not_start_are_not_lost`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// The threads of a queue.
#[derive(Clone, Copy, Debug)]
pub struct WorkerGroup<'a> {
    /// Name of a thread, to which its index is added.
    pub name: &'a str,
    /// Number of threads.
    pub threads: usize,
    /// Batching of its jobs.
    pub batching: Option<Batching>,
}

/// Batching of the jobs of a queue, instead of waking a thread for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Longest delay of a job.
    pub time: Duration,
    /// Number of jobs that ends the delay.
    pub jobs: usize,
}

#[derive(Debug)]
struct JobQueue<J> {
    jobs: VecDeque<J>,
    /// Threads that serve it.
    threads: usize,
    held: bool,
    batching: Option<Batching>,
    /// A thread will look for jobs after a delay.
    delayed: bool,
}

impl<J> JobQueue<J> {
    /// Whether its jobs are being delayed.
    fn is_delayed(&self) -> bool {
        let few = |batching: Batching| self.jobs.len() < batching.jobs;
        self.delayed && self.batching.is_some_and(few)
    }
}

#[derive(Debug)]
struct State<J> {
    queues: Vec<JobQueue<J>>,
    stopping: bool,
}

#[derive(Debug)]
struct Queues<R: Rank, J> {
    state: RankedMutex<R, State<J>>,
    /// One for each queue.
    signals: Vec<Condvar>,
}

impl<R: Rank, J> Queues<R, J> {
    /// The next job of a queue; `None` once there is none and will be none.
    fn next(&self, queue: usize) -> Option<J> {
        let signal = self.signals.get(queue)?;
        let mut state = self.state.lock();
        let mut lingered = false;
        loop {
            let stopping = state.stopping;
            let at = state.queues.get_mut(queue)?;
            if (stopping || !at.held)
                && let Some(job) = at.jobs.pop_front()
            {
                return Some(job);
            }
            if stopping {
                return None;
            }
            match at.batching.filter(|_| !lingered && !at.delayed) {
                Some(batching) => {
                    at.delayed = true;
                    state.wait_for(signal, batching.time);
                    state.queues.get_mut(queue)?.delayed = false;
                    lingered = true;
                }
                None => state.wait(signal),
            }
        }
    }

    /// Records that a thread of a queue did not start. Returns the jobs that no other thread will
    /// run.
    fn missing(&self, queue: usize) -> VecDeque<J> {
        let mut state = self.state.lock();
        let Some(at) = state.queues.get_mut(queue) else {
            return VecDeque::new();
        };
        at.threads = at.threads.saturating_sub(1);
        match at.threads {
            0 => std::mem::take(&mut at.jobs),
            _ => VecDeque::new(),
        }
    }

    fn signal_stop(&self) {
        self.state.lock().stopping = true;
        for signal in &self.signals {
            signal.notify_all();
        }
    }
}

/// Queues of jobs, and their threads.
#[derive(Debug)]
pub struct Workers<R: Rank, J> {
    shared: Arc<Queues<R, J>>,
    /// Set under the lock of the queues.
    started: AtomicBool,
    threads: RankedMutex<R, Vec<JoinHandle<()>>>,
}

impl<R: Rank, J: Send + 'static> Workers<R, J> {
    /// Queues 0 to `queues - 1`, without threads yet. `rank` is the rank of the lock, under which
    /// no other lock is taken.
    pub fn new(rank: R, queues: usize) -> Self {
        let new = |_| JobQueue {
            jobs: VecDeque::new(),
            threads: 0,
            held: false,
            batching: None,
            delayed: false,
        };
        let state = State {
            queues: (0..queues).map(new).collect(),
            stopping: false,
        };
        Self {
            shared: Arc::new(Queues {
                state: RankedMutex::new(rank, state),
                signals: (0..queues).map(|_| Condvar::new()).collect(),
            }),
            started: AtomicBool::new(false),
            threads: RankedMutex::new(rank, Vec::new()),
        }
    }

    /// Whether the threads were started.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Starts the threads of all queues, in the order of `groups`; they run jobs with `run`. Only
    /// the first call has an effect, and returns true. A thread inherits the CPU affinity of its
    /// creator, and a request thread may be bound to a CPU: so call this when a mount begins.
    pub fn start(
        &self,
        groups: &[WorkerGroup<'_>],
        run: impl Fn(J) + Clone + Send + 'static,
    ) -> bool {
        if self.is_started() {
            return false;
        }
        {
            let mut state = self.shared.state.lock();
            if self.started.swap(true, Ordering::Relaxed) {
                return false;
            }
            // A concurrent `push` relies on the threads that are being started.
            for (queue, group) in state.queues.iter_mut().zip(groups) {
                queue.threads = group.threads;
                queue.batching = group.batching;
            }
        }
        for (queue, group) in groups.iter().enumerate() {
            for nth in 0..group.threads {
                let (shared, body) = (Arc::clone(&self.shared), run.clone());
                let serve = move || {
                    while let Some(job) = shared.next(queue) {
                        body(job);
                    }
                };
                if !self.spawn(&format!("{}-{nth}", group.name), serve) {
                    self.shared.missing(queue).into_iter().for_each(&run);
                }
            }
        }
        true
    }

    /// Starts one more thread, which [`stop`](Self::stop) waits for. The thread must detect the end
    /// itself. Returns false, with a warning in the log, if the system cannot start it.
    pub fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> bool {
        match thread::Builder::new().name(name.to_owned()).spawn(body) {
            Ok(thread) => {
                self.threads.lock().push(thread);
                true
            }
            Err(error) => {
                log::warn!("cannot start thread {name}: {error}");
                false
            }
        }
    }

    /// Queues a job.
    ///
    /// # Errors
    /// The job, if no thread serves the queue: the caller must run it.
    pub fn push(&self, queue: usize, job: J) -> Result<(), J> {
        let mut state = self.shared.state.lock();
        let stopping = state.stopping;
        match (state.queues.get_mut(queue), self.shared.signals.get(queue)) {
            (Some(at), Some(signal)) if !stopping && at.threads > 0 => {
                at.jobs.push_back(job);
                let is_delayed = at.is_delayed();
                // The woken thread needs the lock at once.
                drop(state);
                if !is_delayed {
                    signal.notify_one();
                }
                Ok(())
            }
            _ => Err(job),
        }
    }

    /// Ends the delay of a queue's jobs, because a thread waits for them.
    pub fn hurry(&self, queue: usize) {
        let state = self.shared.state.lock();
        let (Some(at), Some(signal)) = (state.queues.get(queue), self.shared.signals.get(queue))
        else {
            return;
        };
        let wake = at.delayed && !at.jobs.is_empty();
        drop(state);
        if wake {
            signal.notify_all();
        }
    }

    /// Holds the jobs of a queue back, or releases them. For tests of code that must not wait for
    /// them. `stop` releases them, too.
    pub fn hold(&self, queue: usize, hold: bool) {
        if let Some(at) = self.shared.state.lock().queues.get_mut(queue) {
            at.held = hold;
        }
        if let Some(signal) = self.shared.signals.get(queue) {
            signal.notify_all();
        }
    }

    /// Ends the threads once their queues are empty, and waits for all except the calling one.
    pub fn stop(&self) {
        self.shared.signal_stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        for thread in threads
            .into_iter()
            .filter(|thread| thread.thread().id() != me)
        {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                log::error!("thread {name} panicked");
            }
        }
    }
}

impl<R: Rank, J> Drop for Workers<R, J> {
    fn drop(&mut self) {
        // A worker may drop the last reference, so this does not wait.
        self.shared.signal_stop();
    }
}

#[derive(Debug, Default)]
struct AlarmState {
    rung: bool,
    stopping: bool,
    /// The sleeping thread will wake after a timeout.
    timed: bool,
}

/// Wakes a thread that has work from time to time.
#[derive(Debug)]
pub struct Alarm<R: Rank> {
    state: RankedMutex<R, AlarmState>,
    signal: Condvar,
}

impl<R: Rank> Alarm<R> {
    /// An alarm. `rank` is the rank of its lock, under which no other lock is taken.
    pub fn new(rank: R) -> Self {
        Self {
            state: RankedMutex::new(rank, AlarmState::default()),
            signal: Condvar::new(),
        }
    }

    /// Wakes the sleeping thread, or the next one to sleep, unless it sleeps with a timeout.
    pub fn ring(&self) {
        let mut state = self.state.lock();
        if state.timed {
            return;
        }
        state.rung = true;
        drop(state);
        self.signal.notify_all();
    }

    /// Ends all sleep.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.signal.notify_all();
    }

    /// Sleeps until the alarm rings, or for `timeout` if there is one; during a timeout, ringing
    /// has no effect. Returns false at the end.
    pub fn sleep(&self, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.stopping {
            match timeout {
                None => state.wait(&self.signal),
                // Waking early is harmless: the sleeper checks again.
                Some(timeout) => {
                    state.timed = true;
                    state.wait_for(&self.signal, timeout);
                    state.timed = false;
                    break;
                }
            }
        }
        state.rung = false;
        !state.stopping
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct TestRank;

    impl Rank for TestRank {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    type Job = Box<dyn FnOnce() + Send>;

    fn group(threads: usize) -> WorkerGroup<'static> {
        WorkerGroup {
            name: "test",
            threads,
            batching: None,
        }
    }

    fn run(job: Job) {
        job();
    }

    #[test]
    fn jobs_of_one_queue_may_wait_for_the_other() {
        let workers = Workers::<_, Job>::new(TestRank, 2);
        assert!(workers.start(&[group(1), group(1)], run));
        assert!(!workers.start(&[group(1), group(1)], run));
        let (inner, wait) = mpsc::channel();
        let (outer, done) = mpsc::channel();
        let waits = move || outer.send(wait.recv().unwrap()).unwrap();
        assert!(workers.push(0, Box::new(waits)).is_ok());
        let answers = move || inner.send(7).unwrap();
        assert!(workers.push(1, Box::new(answers)).is_ok());
        assert_eq!(done.recv(), Ok(7));
        workers.stop();
    }

    #[test]
    fn stop_runs_queued_jobs_and_refuses_new_ones() {
        let workers = Workers::<_, Job>::new(TestRank, 1);
        workers.start(&[group(2)], run);
        workers.hold(0, true);
        let (sender, done) = mpsc::channel();
        for nth in 0..100 {
            let sender = sender.clone();
            let job = Box::new(move || sender.send(nth).unwrap());
            assert!(workers.push(0, job).is_ok());
        }
        assert!(done.try_recv().is_err());
        workers.stop();
        let mut all: Vec<i32> = done.try_iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(workers.push(0, Box::new(|| ())).is_err());
    }

    #[test]
    fn held_jobs_run_when_released() {
        let workers = Workers::<_, Job>::new(TestRank, 1);
        workers.start(&[group(1)], run);
        workers.hold(0, true);
        let (sender, done) = mpsc::channel();
        let job = Box::new(move || sender.send(()).unwrap());
        assert!(workers.push(0, job).is_ok());
        workers.hold(0, false);
        assert_eq!(done.recv(), Ok(()));
        workers.stop();
    }

    #[test]
    fn a_queue_without_threads_returns_jobs() {
        let workers = Workers::<_, Job>::new(TestRank, 2);
        assert!(workers.push(0, Box::new(|| ())).is_err());
        workers.start(&[group(1)], run);
        assert!(workers.push(0, Box::new(|| ())).is_ok());
        assert!(workers.push(1, Box::new(|| ())).is_err());
        assert!(workers.push(2, Box::new(|| ())).is_err());
        workers.stop();
    }

    #[test]
    fn jobs_of_threads_that_do_not_start_are_not_lost() {
        let workers = Workers::<_, u32>::new(TestRank, 1);
        workers.shared.state.lock().queues[0].threads = 2;
        assert_eq!(workers.push(0, 7), Ok(()));
        assert!(workers.shared.missing(0).is_empty());
        assert_eq!(workers.shared.missing(0), [7]);
        assert_eq!(workers.push(0, 8), Err(8));
    }

    #[test]
    fn a_worker_may_drop_the_owner() {
        let workers = Arc::new(Workers::<_, Job>::new(TestRank, 1));
        workers.start(&[group(1)], run);
        let (sender, done) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let held = Arc::clone(&workers);
        let job = move || {
            let _ = wait.recv();
            held.stop();
            drop(held);
            sender.send(()).unwrap();
        };
        assert!(workers.push(0, Box::new(job)).is_ok());
        drop(workers);
        drop(go);
        assert_eq!(done.recv(), Ok(()));
    }

    #[test]
    fn batching_wakes_a_thread_only_for_many_jobs_or_a_hurry() {
        let workers = Workers::<_, Job>::new(TestRank, 1);
        let batching = Batching {
            time: Duration::from_secs(3600),
            jobs: 3,
        };
        let group = WorkerGroup {
            batching: Some(batching),
            ..group(1)
        };
        workers.start(&[group], run);
        let delayed = || workers.shared.state.lock().queues[0].delayed;
        let queued = || workers.shared.state.lock().queues[0].jobs.len();
        let (sender, done) = mpsc::channel();
        let push = |nth: u32| {
            let sender = sender.clone();
            let job = Box::new(move || sender.send(nth).unwrap());
            assert!(workers.push(0, job).is_ok());
        };
        let settle = || {
            while !delayed() {
                thread::yield_now();
            }
        };
        settle();
        push(0);
        push(1);
        assert!(delayed());
        assert_eq!(queued(), 2);
        workers.hurry(0);
        assert_eq!((done.recv(), done.recv()), (Ok(0), Ok(1)));
        settle();
        (2..5).for_each(push);
        let all: Vec<_> = done.iter().take(3).collect();
        assert_eq!(all, [2, 3, 4]);
        settle();
        push(5);
        workers.stop();
        assert_eq!(done.try_recv(), Ok(5));
    }

    #[test]
    fn an_alarm_wakes_only_a_sleeper_without_timeout() {
        let alarm = Arc::new(Alarm::new(TestRank));
        let sleeper = {
            let alarm = Arc::clone(&alarm);
            thread::spawn(move || alarm.sleep(Some(Duration::from_secs(3600))))
        };
        while !alarm.state.lock().timed {
            thread::yield_now();
        }
        alarm.ring();
        assert!(!alarm.state.lock().rung);
        alarm.stop();
        assert!(!sleeper.join().unwrap());
    }

    #[test]
    fn a_ring_before_the_sleep_is_not_missed() {
        let alarm = Arc::new(Alarm::new(TestRank));
        alarm.ring();
        assert!(alarm.sleep(None));
        assert!(alarm.sleep(Some(Duration::ZERO)));
        let sleeper = {
            let alarm = Arc::clone(&alarm);
            thread::spawn(move || alarm.sleep(None))
        };
        alarm.stop();
        assert!(!sleeper.join().unwrap());
        assert!(!alarm.sleep(None));
    }
}
