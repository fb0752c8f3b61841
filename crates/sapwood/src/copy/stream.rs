//! Pipes, terminals and standard streams of this machine as the source or destination of a copy.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;
use rustix::io::Errno;

use super::error::{CopyCause, CopyError, Result};
use super::local_node::{LocalNode, failure};
use super::side::{Fill, Shown as _, Take};

/// How long a stream is waited for before the stop request is looked at again.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

impl LocalNode {
    /// Reads until the end of the stream.
    pub(super) fn read_stream(
        &self,
        fd: &OwnedFd,
        buf: &mut [u8],
        take: &mut Take<'_>,
    ) -> Result<()> {
        let mut at = 0;
        loop {
            self.wait_for_input(fd)?;
            let count = match rustix::io::read(fd, &mut *buf) {
                Err(Errno::INTR) => continue,
                other => other.map_err(|error| failure(&self.shown(), error))?,
            };
            if count == 0 {
                return Ok(());
            }
            take(at, buf.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
    }

    /// Waits until a read of a stream returns at once, or until the caller ends the copy.
    fn wait_for_input(&self, fd: &OwnedFd) -> Result<()> {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        loop {
            if self.is_stopped() {
                return Err(CopyError::on(self.shown(), CopyCause::Interrupted).that_ends());
            }
            match rustix::event::poll(&mut fds, Some(&WAIT)) {
                Ok(0) | Err(Errno::INTR) => {}
                other => {
                    return other
                        .map(drop)
                        .map_err(|error| failure(&self.shown(), error));
                }
            }
        }
    }

    /// Writes to a pipe or terminal: holes as zeros.
    pub(super) fn write_stream(&self, mut file: File, fill: &mut Fill<'_>) -> Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut end = 0;
        let zeros_to = |file: &mut File, end: &mut u64, at: u64| -> std::io::Result<()> {
            while *end < at {
                let want = usize::try_from(at - *end)
                    .unwrap_or(ZEROS.len())
                    .min(ZEROS.len());
                file.write_all(ZEROS.get(..want).unwrap_or_default())?;
                *end += want as u64;
            }
            Ok(())
        };
        let on = |error: std::io::Error| match error.kind() {
            ErrorKind::BrokenPipe => {
                CopyError::on(self.shown(), CopyCause::Closed(error)).that_ends()
            }
            _ => CopyError::on(self.shown(), error),
        };
        let size = fill(&mut |at, data| {
            zeros_to(&mut file, &mut end, at).map_err(on)?;
            file.write_all(data).map_err(on)?;
            end = at + data.len() as u64;
            Ok(())
        })?;
        zeros_to(&mut file, &mut end, size).map_err(on)
    }
}
