//! Commands to a mounted file system: control commands, bulk work, and ioctls of files.

use std::sync::Arc;

use sapwood_vfs::Ino;

use super::Dispatcher;
use crate::bulk::{Bulk, Purpose, Service};
use crate::control;
use crate::ioctl;
use crate::node::NodeId;
use crate::request::{Caller, ControlAnswer, Reply};
use crate::verity;

impl Dispatcher {
    /// The bulk work of this mount.
    pub(crate) fn bulk(&self) -> &Bulk {
        &self.bulk
    }

    /// Sets the service for [bulk work](crate::bulk) of this mount.
    pub(crate) fn serve_bulk(&self, service: Arc<dyn Service>) {
        self.bulk.set_service(service);
    }

    /// Starts bulk work for the caller `who`, which listens at `name`.
    fn start_bulk(
        &self,
        purpose: Purpose,
        who: Caller,
        dir: Ino,
        name: &[u8],
    ) -> Reply<ControlAnswer> {
        let closed = Arc::clone(&self.closed);
        let panicked = move || {
            log::error!("the engine panicked: the mount answers EIO to every request from now on");
            *closed.write() = true;
        };
        let synchronous = self.synchronous.all || self.synchronous.names;
        let started = self
            .bulk
            .start(purpose, who, dir, (self.map, synchronous), name, panicked);
        Ok(ControlAnswer {
            output: started?.to_vec(),
            changed_name: None,
        })
    }

    /// Runs control command `command` with its input. The output has at most `out_size` bytes. Some
    /// commands need the kernel to have written back all [perhaps dirty](Self::perhaps_dirty) nodes
    /// first (`control::wants_settled`).
    ///
    /// # Errors
    /// Errors of the engine; `ENOTTY` for an unknown command.
    pub(crate) fn ioctl(
        &self,
        who: Caller,
        node: NodeId,
        command: u32,
        input: &[u8],
        out_size: usize,
    ) -> Reply<ControlAnswer> {
        let _open = self.enter()?;
        let ino = self.map.ino(node);
        if command == ioctl::FITRIM {
            control::check_owner(who)?;
        }
        if command == verity::ENABLE {
            let attr = self.getattr(node)?;
            verity::check_may_enable(who, attr.uid, attr.perm)?;
        }
        if let Some(purpose) = control::connects(command) {
            if purpose != Purpose::Files {
                control::check_owner(who)?;
            }
            return self.start_bulk(purpose, who, ino, &control::socket_name(input)?);
        }
        let options = self.options.lock().clone();
        let server = control::Server {
            requests: &self.requests,
            waiters: &self.waiters,
            options: &options,
        };
        let mut answer = match control::handle(&*self.fs, &server, who, ino, command, input) {
            Some(answer) => answer?,
            None => ControlAnswer {
                output: ioctl::handle(&*self.fs, ino, command, input)?,
                changed_name: None,
            },
        };
        if ioctl::sets_flags(command) {
            self.settle(ino)?;
        }
        answer.output.truncate(out_size);
        Ok(answer)
    }
}
