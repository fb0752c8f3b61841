//! The requests on the wire for each call.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use sapwood_block::{Device, Error, NbdError};

use super::server::*;

const SIZE: u64 = 64 << 20;

type Seen = Arc<Mutex<Vec<Asked>>>;

/// Command, flags, offset and length of the requests to a server.
fn asked(seen: &Seen) -> Vec<(u16, u16, u64, u32)> {
    let mut seen = seen.lock().unwrap();
    seen.drain(..)
        .map(|asked| (asked.command, asked.flags, asked.offset, asked.len))
        .collect()
}

fn serve(stream: &mut UnixStream, asked: &Asked) -> io::Result<()> {
    match asked.command {
        CMD_READ => data(
            stream,
            true,
            asked.cookie,
            asked.offset,
            &vec![7; asked.len as usize],
        ),
        _ => ok(stream, asked.cookie),
    }
}

/// A server that serves every request, and the requests.
fn obedient(offer: Offer) -> (Server, Seen) {
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    let server = Server::answering(offer, move |stream, asked| {
        log.lock().unwrap().push(asked.clone());
        serve(stream, asked)
    });
    (server, seen)
}

#[test]
fn flush_and_fua_reach_the_server() {
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH | FUA));
    let device = server.open(|_| {}).unwrap();
    device.write_at(512, &[1; 512]).unwrap();
    device.write_fua(1024, &[1; 512]).unwrap();
    device.flush().unwrap();
    let wanted = [
        (CMD_WRITE, 0, 512, 512),
        (CMD_WRITE, 1, 1024, 512),
        (CMD_FLUSH, 0, 0, 0),
    ];
    assert_eq!(asked(&seen), wanted);
}

#[test]
fn without_fua_a_write_through_is_a_write_and_a_flush() {
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH));
    let device = server.open(|_| {}).unwrap();
    device.write_fua(1024, &[1; 512]).unwrap();
    assert_eq!(
        asked(&seen),
        [(CMD_WRITE, 0, 1024, 512), (CMD_FLUSH, 0, 0, 0)]
    );
}

#[test]
fn zeros_and_discards_are_sent_without_data() {
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH | ZEROES | TRIM));
    let device = server.open(|_| {}).unwrap();
    device.write_at(4096, &[0; 8192]).unwrap();
    device.discard(0, 3 << 20).unwrap();
    assert_eq!(
        asked(&seen),
        [(CMD_ZEROES, 0, 4096, 8192), (CMD_TRIM, 0, 0, 3 << 20)]
    );
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH));
    let device = server.open(|_| {}).unwrap();
    device.write_at(4096, &[0; 8192]).unwrap();
    device.discard(0, 3 << 20).unwrap();
    assert_eq!(asked(&seen), [(CMD_WRITE, 0, 4096, 8192)]);
}

#[test]
fn a_server_without_flush_is_written_to_by_consent_only() {
    let (server, seen) = obedient(Offer::new(SIZE, 0));
    let refused = server.open(|_| {}).unwrap_err();
    assert!(
        matches!(&refused, Error::Nbd { source, .. } if matches!(**source, NbdError::NoFlush)),
        "{refused:?}"
    );
    let device = server.open(|options| options.read_only = true).unwrap();
    assert!(device.read_only() && device.write_at(0, &[1; 512]).is_err());
    device.read_at(0, &mut [0; 512]).unwrap();
    let device = server.open(|options| options.without_flush = true).unwrap();
    device.write_fua(0, &[1; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!(
        asked(&seen),
        [(CMD_READ, 0, 0, 512), (CMD_WRITE, 0, 0, 512)]
    );
}

#[test]
fn a_read_only_export_is_a_read_only_device() {
    let (server, seen) = obedient(Offer::new(SIZE, READ_ONLY));
    let device = server.open(|_| {}).unwrap();
    assert!(device.read_only());
    assert!(matches!(
        device.write_at(0, &[1; 512]),
        Err(Error::ReadOnly { .. })
    ));
    assert!(device.discard(0, 512).is_err());
    device.flush().unwrap();
    assert_eq!(asked(&seen), []);
}

/// A server that reports a status of at most 10 MiB: 4 MiB allocated, 6 MiB not.
fn telling(error: u32) -> (Server, Seen) {
    const MIB: u32 = 1 << 20;
    let mut offer = Offer::new(SIZE, FLUSH | TRIM);
    offer.status = true;
    let seen = Seen::default();
    let record = Arc::clone(&seen);
    let server = Server::answering(offer, move |stream, asked| {
        record.lock().unwrap().push(asked.clone());
        match asked.command {
            CMD_STATUS if error != 0 => simple(stream, asked.cookie, error, &[]),
            // The last extent exceeds the requested range.
            CMD_STATUS => {
                let extents = [(4 * MIB, 0), (6 * MIB, 3)];
                status(stream, true, asked.cookie, CONTEXT, &extents)
            }
            _ => ok(stream, asked.cookie),
        }
    });
    (server, seen)
}

#[test]
fn a_large_discard_leaves_out_what_takes_no_space() {
    const MIB: u64 = 1 << 20;
    let (server, seen) = telling(0);
    let device = server.open(|_| {}).unwrap();
    device.discard(MIB, 16 * MIB).unwrap();
    let wanted = [
        (CMD_STATUS, 0, MIB, 16 << 20),
        (CMD_TRIM, 0, MIB, 4 << 20),
        (CMD_STATUS, 0, 11 * MIB, 6 << 20),
        (CMD_TRIM, 0, 11 * MIB, 4 << 20),
    ];
    assert_eq!(asked(&seen), wanted);
    // Asking would cost more than it saves.
    device.discard(0, 2 * MIB).unwrap();
    assert_eq!(asked(&seen), [(CMD_TRIM, 0, 0, 2 << 20)]);
}

#[test]
fn a_discard_needs_no_status() {
    for error in [95, 5] {
        let (server, seen) = telling(error);
        let device = server.open(|_| {}).unwrap();
        device.discard(0, 16 << 20).unwrap();
        let wanted = [(CMD_STATUS, 0, 0, 16 << 20), (CMD_TRIM, 0, 0, 16 << 20)];
        assert_eq!(asked(&seen), wanted);
    }
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH | TRIM));
    let device = server.open(|_| {}).unwrap();
    device.discard(0, 16 << 20).unwrap();
    assert_eq!(asked(&seen), [(CMD_TRIM, 0, 0, 16 << 20)]);
}

#[test]
fn parts_of_blocks_are_read_and_written_back() {
    let mut offer = Offer::new(SIZE, FLUSH | TRIM);
    offer.blocks = Some((4096, 64 << 10));
    let (server, seen) = obedient(offer);
    let device = server.open(|_| {}).unwrap();
    device.write_at(4000, &[1; 200]).unwrap();
    assert_eq!(seen.lock().unwrap()[1].data[4000..4200], [1; 200]);
    assert_eq!(seen.lock().unwrap()[1].data[..4000], [7; 4000]);
    assert_eq!(
        asked(&seen),
        [(CMD_READ, 0, 0, 8192), (CMD_WRITE, 0, 0, 8192)]
    );
    device.read_at(1, &mut [0; 5]).unwrap();
    device.discard(1, 8192).unwrap();
    device.write_at(0, &[1; 128 << 10]).unwrap();
    let wanted = [
        (CMD_READ, 0, 0, 4096),
        (CMD_TRIM, 0, 4096, 4096),
        (CMD_WRITE, 0, 0, 64 << 10),
        (CMD_WRITE, 0, 64 << 10, 64 << 10),
    ];
    assert_eq!(asked(&seen), wanted);
}

#[test]
fn all_pieces_of_a_request_are_in_flight_at_once() {
    const PIECES: usize = 8;
    let held: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let server = Server::answering(Offer::new(SIZE, FLUSH), move |stream, asked| {
        let mut held = held.lock().unwrap();
        held.push(asked.clone());
        // No answer before all have come; then the last comes first, each in two chunks.
        if held.len() == PIECES {
            for asked in held.drain(..).rev() {
                let half = asked.len as usize / 2;
                let bytes = vec![(asked.offset >> 18) as u8; half];
                let middle = asked.offset + half as u64;
                data(stream, false, asked.cookie, middle, &bytes)?;
                data(stream, true, asked.cookie, asked.offset, &bytes)?;
            }
        }
        Ok(())
    });
    let device = server.open(|_| {}).unwrap();
    let mut buf = vec![0; PIECES << 18];
    device.read_at(0, &mut buf).unwrap();
    for (number, piece) in buf.chunks(1 << 18).enumerate() {
        assert!(piece.iter().all(|byte| usize::from(*byte) == number));
    }
}

#[test]
fn several_connections_only_where_a_flush_covers_them() {
    for (flags, connections) in [(FLUSH, 1), (FLUSH | MULTI, 3)] {
        let (server, _seen) = obedient(Offer::new(SIZE, flags));
        let device = server.open(|options| options.connections = 3).unwrap();
        assert_eq!(device.connections(), connections);
    }
}

#[test]
fn what_is_kept_for_a_lost_connection_is_bounded() {
    let (server, seen) = obedient(Offer::new(SIZE, FLUSH));
    let device = server.open(|_| {}).unwrap();
    for at in 0..40 {
        device.write_at(at << 20, &vec![1; 1 << 20]).unwrap();
    }
    let flushes = asked(&seen)
        .iter()
        .filter(|(command, ..)| *command == CMD_FLUSH)
        .count();
    assert_eq!(flushes, 1);
}

#[test]
fn errors_of_the_server_are_those_of_the_host() {
    for (number, errno) in [
        (5, libc::EIO),
        (28, libc::ENOSPC),
        (1, libc::EPERM),
        (777, libc::EINVAL),
    ] {
        let server = Server::answering(Offer::new(SIZE, FLUSH), move |stream, asked| {
            simple(stream, asked.cookie, number, &[])
        });
        let device = server.open(|_| {}).unwrap();
        let error = device.write_at(0, &[1; 512]).unwrap_err();
        assert_eq!(error.is_host_full(), errno == libc::ENOSPC);
        let Error::Io { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(source.raw_os_error(), Some(errno));
    }
}
