//! A thread that receives termination signals.

use std::io;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Ends the watch when closed or dropped. Later signals are ignored, not fatal.
#[derive(Debug)]
pub struct Watch {
    handle: Handle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Calls `act` in a separate thread for each `SIGTERM`, `SIGINT` or `SIGHUP` that the process
/// receives, until the watch is dropped. Call it after [`daemonize`](crate::daemon::daemonize) has
/// forked.
///
/// # Errors
/// The handler could not be set, or the thread could not be started.
pub fn on_termination(mut act: impl FnMut(i32) + Send + 'static) -> io::Result<Watch> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                act(signal);
            }
        })?;
    Ok(Watch { handle })
}
