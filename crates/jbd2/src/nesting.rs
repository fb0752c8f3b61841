//! Counts the open handles of each thread, for assertions in debug builds.

#[cfg(debug_assertions)]
mod count {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    thread_local! {
        static OPEN: Arc<AtomicUsize> = Arc::default();
    }

    /// Counts for the thread that started a handle, whichever thread ends it.
    #[derive(Debug)]
    pub(crate) struct Open(Arc<AtomicUsize>);

    impl Open {
        pub(crate) fn new() -> Self {
            let open = OPEN.with(Arc::clone);
            open.fetch_add(1, Ordering::Relaxed);
            Self(open)
        }
    }

    impl Drop for Open {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Panics if this thread has an open handle: waiting for a commit would not end.
    pub(crate) fn assert_no_handle() {
        let open = OPEN.with(|open| open.load(Ordering::Relaxed));
        assert!(open == 0, "a thread with an open handle may wait here");
    }
}

#[cfg(not(debug_assertions))]
mod count {
    #[derive(Debug)]
    pub(crate) struct Open;

    impl Open {
        pub(crate) fn new() -> Self {
            Self
        }
    }

    pub(crate) fn assert_no_handle() {}
}

pub(crate) use count::{Open, assert_no_handle};
