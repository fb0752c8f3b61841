//! The daemon of a mount scrubs the file system for its owner and root, while it stays in use.
//!
//! # How it works
//! A client requests the work over a connection of its own ([`upkeep`](crate::bulk::upkeep)), so the
//! kernel's requests continue meanwhile. The mount does one such work at a time.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_fuse::bulk::{Service, Work};

use super::writing::Engines;
use crate::bulk::upkeep::{Answer, Reporter, Request};
use crate::image::Mounted;
use crate::scrub::{self, ScrubReport};

/// See the module.
pub(super) struct Upkeep {
    engines: Arc<Engines>,
    /// Held during the work.
    one: Mutex<()>,
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
    pub(super) fn new(engines: Arc<Engines>) -> Self {
        Self {
            engines,
            one: Mutex::default(),
        }
    }

    /// Serves a client. The error is a reason that people read.
    fn serve(&self, work: &Work) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let admitted = work.identify().map_err(failed)?;
        let request = Request::receive(&work.socket).map_err(failed)?;
        let Some(_one) = self.one.try_lock() else {
            return Err("the mount is being scrubbed already".to_owned());
        };
        // The engine stays meanwhile.
        let _in_use = self.engines.in_use.read();
        let image = self.engines.current().clone();
        let mut reporter = Reporter::new(&work.socket);
        match request {
            Request::Scrub { read_only, limit } => {
                if !read_only && (image.read_only() || admitted.check_writable().is_err()) {
                    let why = "the mount is read-only; --read-only scrubs without repairs";
                    return Err(why.to_owned());
                }
                let report = scrub(&image, read_only, limit, &mut reporter)?;
                Answer::Done(report).send(&work.socket).map_err(failed)
            }
        }
    }
}

fn scrub(
    image: &Mounted,
    read_only: bool,
    limit: Option<u64>,
    reporter: &mut Reporter<'_>,
) -> Result<ScrubReport, String> {
    let Mounted::Btrfs(fs) = image else {
        return Err("an ext4 image is scrubbed while it is not mounted".to_owned());
    };
    let options = sapwood_btrfs::scrub::ScrubOptions {
        read_only,
        limit,
        ..sapwood_btrfs::scrub::ScrubOptions::default()
    };
    let report = sapwood_btrfs::scrub::scrub_mounted(fs, &options, &mut |step| {
        reporter.step(step.done, step.total)
    });
    let report = report.map_err(|error| error.to_string())?;
    Ok(scrub::shown(report))
}
