//! Threads that do jobs from queues, and one that wakes up from time to time.
//!
//! # How it works
//! [`Workers`] has a few *lanes*: queues with threads of their own, so that a job of one lane may
//! wait for a job of another. A job that waits for one of its own lane may wait for ever.
//!
//! States: new (nothing runs), started, stopping (jobs that are queued are still done, new ones are
//! handed back to a thread that brings them), stopped. Threads hold the queues only, and jobs bring
//! what they need: so the last reference to the owner may go in one of the threads, which then does
//! not wait for itself (`the_owner_may_go_in_a_thread`).
//!
//! Waking a thread often costs more than the job itself. So in a lane that may *linger* a thread
//! that has done its jobs looks once more after a while before it sleeps, and a thread that brings
//! a job meanwhile wakes no thread, until there are many or a thread needs them done
//! ([`Workers::hurry`]; `a_thread_that_lingers_is_not_woken_but_for_many_jobs_or_in_a_hurry`). A
//! lane without jobs has no thread that looks.
//!
//! The trouble case: the system starts no thread. Then a lane that has none hands its jobs back too
//! (`a_lane_without_threads_hands_back`), and a thread that starts the threads does what was queued
//! before that was known (`jobs_of_threads_that_do_not_start_are_not_lost`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// The threads of a lane.
#[derive(Clone, Copy, Debug)]
pub struct Crew<'a> {
    /// Name of a thread, to which its place is added.
    pub name: &'a str,
    /// How many.
    pub threads: usize,
    /// How its jobs may gather.
    pub linger: Option<Linger>,
}

/// How the jobs of a lane gather, instead of waking a thread each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linger {
    /// For how long at most.
    pub time: Duration,
    /// Up to how many.
    pub jobs: usize,
}

#[derive(Debug)]
struct Lane<J> {
    jobs: VecDeque<J>,
    /// Threads that serve it.
    threads: usize,
    held: bool,
    linger: Option<Linger>,
    /// A thread looks for jobs by itself in a while.
    lingers: bool,
}

impl<J> Lane<J> {
    /// Whether jobs wait for more.
    fn gathers(&self) -> bool {
        let few = |linger: Linger| self.jobs.len() < linger.jobs;
        self.lingers && self.linger.is_some_and(few)
    }
}

#[derive(Debug)]
struct State<J> {
    lanes: Vec<Lane<J>>,
    stopping: bool,
}

#[derive(Debug)]
struct Queue<R: Rank, J> {
    state: RankedMutex<R, State<J>>,
    /// One for each lane.
    signals: Vec<Condvar>,
}

impl<R: Rank, J> Queue<R, J> {
    /// The next job of a lane; `None` once there is none and will be none.
    fn next(&self, lane: usize) -> Option<J> {
        let signal = self.signals.get(lane)?;
        let mut state = self.state.lock();
        let mut lingered = false;
        loop {
            let stopping = state.stopping;
            let at = state.lanes.get_mut(lane)?;
            if (stopping || !at.held)
                && let Some(job) = at.jobs.pop_front()
            {
                return Some(job);
            }
            if stopping {
                return None;
            }
            match at.linger.filter(|_| !lingered && !at.lingers) {
                Some(linger) => {
                    at.lingers = true;
                    state.wait_for(signal, linger.time);
                    state.lanes.get_mut(lane)?.lingers = false;
                    lingered = true;
                }
                None => state.wait(signal),
            }
        }
    }

    /// A thread of a lane did not start. Returns the jobs that no other thread will do.
    fn missing(&self, lane: usize) -> VecDeque<J> {
        let mut state = self.state.lock();
        let Some(at) = state.lanes.get_mut(lane) else {
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

/// Lanes of jobs, and their threads.
#[derive(Debug)]
pub struct Workers<R: Rank, J> {
    queue: Arc<Queue<R, J>>,
    /// Set under the lock of the queue.
    started: AtomicBool,
    threads: RankedMutex<R, Vec<JoinHandle<()>>>,
}

impl<R: Rank, J: Send + 'static> Workers<R, J> {
    /// Lanes 0 to `lanes - 1`, without threads yet. `rank` is that of the locks, under which no
    /// other is taken.
    pub fn new(rank: R, lanes: usize) -> Self {
        let new = |_| Lane {
            jobs: VecDeque::new(),
            threads: 0,
            held: false,
            linger: None,
            lingers: false,
        };
        let state = State {
            lanes: (0..lanes).map(new).collect(),
            stopping: false,
        };
        Self {
            queue: Arc::new(Queue {
                state: RankedMutex::new(rank, state),
                signals: (0..lanes).map(|_| Condvar::new()).collect(),
            }),
            started: AtomicBool::new(false),
            threads: RankedMutex::new(rank, Vec::new()),
        }
    }

    /// Starts the threads of all lanes, in the order of `crews`; they do jobs with `run`. Only the
    /// first call does anything, and returns true. A thread may run only where the one that started
    /// it may, and a request's may be bound to a CPU: call it when a mount begins.
    pub fn start(&self, crews: &[Crew<'_>], run: impl Fn(J) + Clone + Send + 'static) -> bool {
        if self.started.load(Ordering::Relaxed) {
            return false;
        }
        {
            let mut state = self.queue.state.lock();
            if self.started.swap(true, Ordering::Relaxed) {
                return false;
            }
            // Who brings a job while threads are being started finds them.
            for (lane, crew) in state.lanes.iter_mut().zip(crews) {
                lane.threads = crew.threads;
                lane.linger = crew.linger;
            }
        }
        for (lane, crew) in crews.iter().enumerate() {
            for nth in 0..crew.threads {
                let (queue, body) = (Arc::clone(&self.queue), run.clone());
                let serve = move || {
                    while let Some(job) = queue.next(lane) {
                        body(job);
                    }
                };
                if !self.spawn(&format!("{}-{nth}", crew.name), serve) {
                    self.queue.missing(lane).into_iter().for_each(&run);
                }
            }
        }
        true
    }

    /// Starts one more thread, which [`stop`](Self::stop) waits for: it has to learn of the end by
    /// itself. False, and a warning in the log, if the system does not start it.
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
    /// The job, if no thread serves that lane: the caller has to do it.
    pub fn push(&self, lane: usize, job: J) -> Result<(), J> {
        let mut state = self.queue.state.lock();
        let stopping = state.stopping;
        match (state.lanes.get_mut(lane), self.queue.signals.get(lane)) {
            (Some(at), Some(signal)) if !stopping && at.threads > 0 => {
                at.jobs.push_back(job);
                let gathers = at.gathers();
                // A thread that is woken wants the lock at once.
                drop(state);
                if !gathers {
                    signal.notify_one();
                }
                Ok(())
            }
            _ => Err(job),
        }
    }

    /// A thread waits for the jobs of a lane: they gather no longer.
    pub fn hurry(&self, lane: usize) {
        let state = self.queue.state.lock();
        let (Some(at), Some(signal)) = (state.lanes.get(lane), self.queue.signals.get(lane)) else {
            return;
        };
        let wake = at.lingers && !at.jobs.is_empty();
        drop(state);
        if wake {
            signal.notify_all();
        }
    }

    /// Holds the jobs of a lane back, or lets them go; for tests of what must not wait for them. The
    /// end lets them go too.
    pub fn hold(&self, lane: usize, hold: bool) {
        if let Some(at) = self.queue.state.lock().lanes.get_mut(lane) {
            at.held = hold;
        }
        if let Some(signal) = self.queue.signals.get(lane) {
            signal.notify_all();
        }
    }

    /// Ends the threads once their lanes are empty, and waits for them, but for the caller's own.
    pub fn stop(&self) {
        self.queue.signal_stop();
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
        // The last reference may go in one of the threads: no thread waits here.
        self.queue.signal_stop();
    }
}

#[derive(Debug, Default)]
struct Rung {
    rung: bool,
    stopping: bool,
    /// A thread sleeps that wakes after a time.
    timed: bool,
}

/// What a thread sleeps on that has something to do from time to time.
#[derive(Debug)]
pub struct Alarm<R: Rank> {
    state: RankedMutex<R, Rung>,
    signal: Condvar,
}

impl<R: Rank> Alarm<R> {
    /// An alarm; `rank` is that of its lock, under which no other is taken.
    pub fn new(rank: R) -> Self {
        Self {
            state: RankedMutex::new(rank, Rung::default()),
            signal: Condvar::new(),
        }
    }

    /// Wakes the sleeper, or a thread that sleeps next; but not one that wakes by itself after a
    /// time.
    pub fn ring(&self) {
        let mut state = self.state.lock();
        if state.timed {
            return;
        }
        state.rung = true;
        drop(state);
        self.signal.notify_all();
    }

    /// No thread sleeps here any more.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.signal.notify_all();
    }

    /// Sleeps until a thread rings, or for `timeout` if there is one, a thread that rings
    /// meanwhile; false at the end.
    pub fn sleep(&self, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.stopping {
            match timeout {
                None => state.wait(&self.signal),
                // Waking early does no harm: the sleeper looks again.
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
    struct Place;

    impl Rank for Place {
        type Order = Self;

        fn place(self) -> u16 {
            0
        }
    }

    type Job = Box<dyn FnOnce() + Send>;

    fn crew(threads: usize) -> Crew<'static> {
        Crew {
            name: "test",
            threads,
            linger: None,
        }
    }

    fn run(job: Job) {
        job();
    }

    #[test]
    fn jobs_of_one_lane_may_wait_for_the_other() {
        let workers = Workers::<_, Job>::new(Place, 2);
        assert!(workers.start(&[crew(1), crew(1)], run));
        assert!(!workers.start(&[crew(1), crew(1)], run));
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
    fn stopping_does_what_is_queued_and_takes_no_more() {
        let workers = Workers::<_, Job>::new(Place, 1);
        workers.start(&[crew(2)], run);
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
    fn what_is_held_goes_on_when_let_go() {
        let workers = Workers::<_, Job>::new(Place, 1);
        workers.start(&[crew(1)], run);
        workers.hold(0, true);
        let (sender, done) = mpsc::channel();
        let job = Box::new(move || sender.send(()).unwrap());
        assert!(workers.push(0, job).is_ok());
        workers.hold(0, false);
        assert_eq!(done.recv(), Ok(()));
        workers.stop();
    }

    #[test]
    fn a_lane_without_threads_hands_back() {
        let workers = Workers::<_, Job>::new(Place, 2);
        assert!(workers.push(0, Box::new(|| ())).is_err());
        workers.start(&[crew(1)], run);
        assert!(workers.push(0, Box::new(|| ())).is_ok());
        assert!(workers.push(1, Box::new(|| ())).is_err());
        assert!(workers.push(2, Box::new(|| ())).is_err());
        workers.stop();
    }

    #[test]
    fn jobs_of_threads_that_do_not_start_are_not_lost() {
        let workers = Workers::<_, u32>::new(Place, 1);
        workers.queue.state.lock().lanes[0].threads = 2;
        assert_eq!(workers.push(0, 7), Ok(()));
        assert!(workers.queue.missing(0).is_empty());
        assert_eq!(workers.queue.missing(0), [7]);
        assert_eq!(workers.push(0, 8), Err(8));
    }

    #[test]
    fn the_owner_may_go_in_a_thread() {
        let workers = Arc::new(Workers::<_, Job>::new(Place, 1));
        workers.start(&[crew(1)], run);
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
    fn a_thread_that_lingers_is_not_woken_but_for_many_jobs_or_in_a_hurry() {
        let workers = Workers::<_, Job>::new(Place, 1);
        let linger = Linger {
            time: Duration::from_secs(3600),
            jobs: 3,
        };
        let crew = Crew {
            linger: Some(linger),
            ..crew(1)
        };
        workers.start(&[crew], run);
        let lingers = || workers.queue.state.lock().lanes[0].lingers;
        let queued = || workers.queue.state.lock().lanes[0].jobs.len();
        let (sender, done) = mpsc::channel();
        let push = |nth: u32| {
            let sender = sender.clone();
            let job = Box::new(move || sender.send(nth).unwrap());
            assert!(workers.push(0, job).is_ok());
        };
        let settle = || {
            while !lingers() {
                thread::yield_now();
            }
        };
        settle();
        push(0);
        push(1);
        assert!(lingers());
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
    fn an_alarm_rings_only_for_who_would_sleep_on() {
        let alarm = Arc::new(Alarm::new(Place));
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
    fn an_alarm_is_not_missed() {
        let alarm = Arc::new(Alarm::new(Place));
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
