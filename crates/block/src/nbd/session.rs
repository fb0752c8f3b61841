//! The connections to an export: requests in turn over all of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::connection::{Connection, Failure, Request, Ticket};
use super::handshake::Export;
use super::uri::NbdUri;
use super::wire::CAN_MULTI_CONN;
use crate::NbdError;

/// Pieces of one request that are in flight at once.
const WINDOW: usize = 64;
/// Time to wait for the end of an old connection.
const DRAIN: Duration = Duration::from_secs(1);

/// Connections that live and end together.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connections: Vec<Arc<Connection>>,
    turn: AtomicUsize,
    pub(super) generation: u64,
}

impl Session {
    /// Connects to an export, with `most` connections if the server allows several.
    pub(super) fn open(
        uri: &NbdUri,
        timeout: Duration,
        most: usize,
        generation: u64,
    ) -> Result<(Self, Export), NbdError> {
        // No cookie of an older connection is one of these.
        let first = generation << 40;
        let (connection, export) = Connection::open(uri, timeout, first)?;
        let mut connections = vec![connection];
        if export.has(CAN_MULTI_CONN) {
            while connections.len() < most {
                match Connection::open(uri, timeout, first) {
                    Ok((more, same)) if same == export => connections.push(more),
                    Ok((more, _)) => {
                        more.close(Duration::ZERO);
                        return Err(NbdError::Changed("its connections see different exports"));
                    }
                    Err(why) => {
                        log::info!("one connection less: {why}");
                        break;
                    }
                }
            }
        }
        let session = Self {
            connections,
            turn: AtomicUsize::new(0),
            generation,
        };
        Ok((session, export))
    }

    /// Whether every connection reports allocated ranges.
    pub(super) fn tells_status(&self) -> bool {
        let mut all = self.connections.iter();
        all.all(|connection| connection.tells_status())
    }

    fn send(&self, request: Request<'_>) -> Result<Arc<Ticket>, Failure> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let connection = self.connections.get(turn % self.connections.len().max(1));
        let none = || {
            let lost = NbdError::Lost(io::ErrorKind::NotConnected.into());
            Failure::Dead(Arc::new(lost))
        };
        connection.ok_or_else(none)?.send(request)
    }

    /// Sends requests, and gives each reply to `done`. Returns when none is in flight.
    pub(super) fn all<'p>(
        &self,
        requests: impl Iterator<Item = Request<'p>>,
        mut done: impl FnMut(usize, Vec<u8>),
    ) -> Result<(), Failure> {
        let mut tickets = std::collections::VecDeque::new();
        let (mut number, mut failure) = (0, None);
        let mut take = |ticket: Arc<Ticket>, failure: &mut Option<Failure>| {
            match ticket.wait() {
                Ok(data) => done(number, data),
                Err(why) => drop(failure.get_or_insert(why)),
            }
            number += 1;
        };
        for request in requests {
            if failure.is_some() {
                break;
            }
            match self.send(request) {
                Ok(ticket) => tickets.push_back(ticket),
                Err(why) => failure = Some(why),
            }
            if tickets.len() >= WINDOW
                && let Some(first) = tickets.pop_front()
            {
                take(first, &mut failure);
            }
        }
        for ticket in tickets {
            take(ticket, &mut failure);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Closes all connections, and waits a moment for the end of each.
    pub(super) fn close(&self) {
        for connection in &self.connections {
            connection.close(DRAIN);
        }
    }
}
