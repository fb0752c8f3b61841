//! The CPU of the thread that serves a ring entry.
//!
//! The kernel puts a request into the queue of its caller's CPU. The thread is bound to that CPU:
//! the caller sleeps until it is answered, so the CPU is free and has warm caches. While the thread
//! polls for a lone client, it runs on another CPU, because it would keep the client from running.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that the process may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus(CpuSet);

impl Cpus {
    /// The CPUs of the calling thread.
    pub(super) fn of_caller() -> Self {
        let cpus = sched_getaffinity(None);
        Self(cpus.unwrap_or_else(|error| {
            log::debug!("CPUs of the process: {error}");
            CpuSet::new()
        }))
    }

    /// Binds the calling thread to a CPU, if it may run there.
    pub(super) fn stay_on(number: u16) {
        let mut cpus = CpuSet::new();
        cpus.set(usize::from(number));
        bind(number, &cpus);
    }

    /// Keeps the calling thread from a CPU. Returns whether there is another one.
    pub(super) fn leave(mut self, number: u16) -> bool {
        self.0.unset(usize::from(number));
        self.0.count() > 0 && bind(number, &self.0)
    }
}

fn bind(number: u16, cpus: &CpuSet) -> bool {
    let bound = sched_setaffinity(None, cpus);
    if let Err(error) = &bound {
        log::debug!("the queue of CPU {number}: {error}");
    }
    bound.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_on_a_cpu_or_leaves_it() {
        let all = Cpus::of_caller();
        let mine = || sched_getaffinity(None).unwrap();
        let first = (0..1024).find(|&number| all.0.is_set(number)).unwrap();
        let number = u16::try_from(first).unwrap();
        Cpus::stay_on(number);
        assert!(mine().is_set(first) && mine().count() == 1);
        assert_eq!(all.leave(number), all.0.count() > 1);
        assert_eq!(mine().is_set(first), all.0.count() == 1);
        // None is left.
        let mut only = CpuSet::new();
        only.set(first);
        assert!(!Cpus(only).leave(number));
    }
}
