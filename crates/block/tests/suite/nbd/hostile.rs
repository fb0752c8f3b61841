//! Servers that send wrong answers, answer twice, out of order or with garbage.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sapwood_block::{Device, Error, NbdError, Violation};

use super::server::*;

const SIZE: u64 = 1 << 20;
const LEN: u32 = 8192;
const AT: u64 = 4096;

/// The violation in a device's error.
fn violation(error: Error) -> Violation {
    match error {
        Error::Nbd { source, .. } => match &*source {
            NbdError::Violation(violation) => violation.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

type Answer = fn(&mut UnixStream, &Asked) -> io::Result<()>;

/// The violation that a read of [`LEN`] bytes at [`AT`] reports; later requests report it again.
fn read_fails(answer: Answer) -> Violation {
    let server = Server::answering(Offer::new(SIZE, FLUSH), answer);
    let device = server.open(|_| {}).unwrap();
    let mut buf = vec![0; LEN as usize];
    let found = violation(device.read_at(AT, &mut buf).unwrap_err());
    let again = violation(device.flush().unwrap_err());
    assert_eq!(found, again, "the server was asked again");
    found
}

/// The violation that a discard reports after such a status; later requests report it again.
fn status_fails(answer: Answer) -> Violation {
    let mut offer = Offer::new(1 << 30, FLUSH | 1 << 5);
    offer.status = true;
    let server = Server::answering(offer, move |stream, asked| match asked.command {
        CMD_STATUS => answer(stream, asked),
        _ => ok(stream, asked.cookie),
    });
    let device = server.open(|_| {}).unwrap();
    let found = violation(device.discard(0, 16 << 20).unwrap_err());
    let again = violation(device.flush().unwrap_err());
    assert_eq!(found, again, "the server was asked again");
    found
}

#[test]
fn a_status_that_cannot_be_is_a_violation() {
    let cases: Vec<(&str, Answer)> = vec![
        ("Kind(0)", |stream, asked| ok(stream, asked.cookie)),
        ("Kind(5)", |stream, asked| {
            status(stream, false, asked.cookie, CONTEXT, &[(4096, 0)])?;
            status(stream, true, asked.cookie, CONTEXT, &[(4096, 0)])
        }),
        ("Context(43)", |stream, asked| {
            status(stream, true, asked.cookie, CONTEXT + 1, &[(4096, 0)])
        }),
        ("Length(4)", |stream, asked| {
            status(stream, true, asked.cookie, CONTEXT, &[])
        }),
        ("Length(13)", |stream, asked| {
            chunk_of(stream, (1, 5, asked.cookie), 13, &[0; 13])
        }),
        ("Length(4294967295)", |stream, asked| {
            chunk_of(stream, (1, 5, asked.cookie), u32::MAX, &[])
        }),
        ("Extent { at: 4096, len: 0 }", |stream, asked| {
            status(stream, true, asked.cookie, CONTEXT, &[(4096, 0), (0, 1)])
        }),
        ("Extent { at: 16777216, len: 1 }", |stream, asked| {
            let extents = [(16 << 20, 0), (1, 0)];
            status(stream, true, asked.cookie, CONTEXT, &extents)
        }),
        ("Short { got: 0, wanted: 16777216 }", |stream, asked| {
            chunk_of(stream, (1, 0, asked.cookie), 0, &[])
        }),
        ("Data { offset: 0, len: 1 }", |stream, asked| {
            data(stream, true, asked.cookie, 0, &[1])
        }),
    ];
    for (wanted, answer) in cases {
        assert_eq!(format!("{:?}", status_fails(answer)), wanted);
    }
}

#[test]
fn replies_that_fit_no_request_are_violations() {
    let all = vec![7_u8; LEN as usize];
    assert_eq!(all.len(), 8192);
    let cases: Vec<(&str, Answer)> = vec![
        ("Cookie(77)", |stream, _| ok(stream, 77)),
        ("Magic(3735928559)", |stream, _| {
            stream.write_all(&[0xde, 0xad, 0xbe, 0xef])
        }),
        ("Kind(0)", |stream, asked| {
            simple(stream, asked.cookie, 0, &[7; LEN as usize])
        }),
        ("Kind(9)", |stream, asked| {
            chunk_of(stream, (1, 9, asked.cookie), 0, &[])
        }),
        ("Kind(5)", |stream, asked| {
            chunk_of(stream, (1, 5, asked.cookie), 12, &[0; 12])
        }),
        ("Length(0)", |stream, asked| {
            chunk_of(stream, (0, 0, asked.cookie), 0, &[])
        }),
        ("Length(7)", |stream, asked| {
            chunk_of(stream, (1, 1, asked.cookie), 7, &[0; 7])
        }),
        ("Length(11)", |stream, asked| {
            chunk_of(stream, (1, 2, asked.cookie), 11, &[0; 11])
        }),
        ("Length(5)", |stream, asked| {
            chunk_of(stream, (1, 1 << 15, asked.cookie), 5, &[0; 5])
        }),
        ("Length(4294967295)", |stream, asked| {
            chunk_of(stream, (1, 1 << 15, asked.cookie), u32::MAX, &[])
        }),
        ("Data { offset: 4096, len: 4294967287 }", |stream, asked| {
            chunk_of(stream, (1, 1, asked.cookie), u32::MAX, &AT.to_be_bytes())
        }),
        ("Data { offset: 4095, len: 2 }", |stream, asked| {
            data(stream, false, asked.cookie, AT - 1, &[1, 2])
        }),
        ("Data { offset: 12287, len: 2 }", |stream, asked| {
            data(
                stream,
                false,
                asked.cookie,
                AT + u64::from(LEN) - 1,
                &[1, 2],
            )
        }),
        (
            "Data { offset: 18446744073709551615, len: 2 }",
            |stream, asked| data(stream, false, asked.cookie, u64::MAX, &[1, 2]),
        ),
        ("Data { offset: 4097, len: 1 }", |stream, asked| {
            data(stream, false, asked.cookie, AT, &[1, 2, 3])?;
            data(stream, false, asked.cookie, AT + 1, &[2])
        }),
        ("Data { offset: 4096, len: 0 }", |stream, asked| {
            data(stream, false, asked.cookie, AT, &[])
        }),
        ("Data { offset: 4096, len: 4294967295 }", |stream, asked| {
            let hole = [&AT.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
            chunk_of(stream, (1, 2, asked.cookie), 12, &hole)
        }),
        ("Short { got: 3, wanted: 8192 }", |stream, asked| {
            data(stream, true, asked.cookie, AT, &[1, 2, 3])
        }),
        ("Short { got: 0, wanted: 8192 }", |stream, asked| {
            chunk_of(stream, (1, 0, asked.cookie), 0, &[])
        }),
    ];
    for (wanted, answer) in cases {
        let found = format!("{:?}", read_fails(answer));
        assert!(found.starts_with(wanted), "{wanted}: {found}");
    }
}

#[test]
fn a_second_reply_is_a_violation() {
    let server = Server::answering(Offer::new(SIZE, FLUSH), |stream, asked| {
        data(stream, true, asked.cookie, asked.offset, &[7; 512])?;
        data(stream, true, asked.cookie, asked.offset, &[7; 512])
    });
    let device = server.open(|_| {}).unwrap();
    // The first reply is a good one, and may be seen before the second.
    let _ = device.read_at(0, &mut [0; 512]);
    let found = violation(device.read_at(0, &mut [0; 512]).unwrap_err());
    assert!(matches!(found, Violation::Cookie(_)), "{found:?}");
}

#[test]
fn data_for_a_write_is_a_violation() {
    let server = Server::answering(Offer::new(SIZE, FLUSH), |stream, asked| {
        data(stream, true, asked.cookie, asked.offset, &[1])
    });
    let device = server.open(|_| {}).unwrap();
    let found = violation(device.write_at(0, &[1; 512]).unwrap_err());
    assert!(
        matches!(found, Violation::Data { offset: 0, len: 1 }),
        "{found:?}"
    );
}

/// The error of opening a server that runs `serve` after the connection. It reads the client's
/// bytes until the client gives up: closing a socket with unread bytes may discard the server's
/// own.
fn open_fails(serve: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static) -> String {
    let server = Server::start(move |stream| {
        let mut rest = stream.try_clone()?;
        serve(stream)?;
        rest.shutdown(Shutdown::Write)?;
        io::copy(&mut rest, &mut io::sink()).map(drop)
    });
    let error = server.open(|_| {}).unwrap_err();
    assert!(matches!(error, Error::Nbd { .. }));
    error.to_string()
}

#[test]
fn damaged_handshakes_are_errors() {
    let until_context = |stream: &mut UnixStream| -> io::Result<()> {
        greet(stream)?;
        option(stream)?;
        answer(stream, 8, 1, &[])?;
        option(stream).map(drop)
    };
    let until_go = move |stream: &mut UnixStream| -> io::Result<()> {
        until_context(stream)?;
        answer(stream, 10, (1 << 31) | 1, &[])?;
        option(stream).map(drop)
    };
    let says = |wanted: &str, found: String| assert!(found.contains(wanted), "{wanted}: {found}");
    says("connection lost", open_fails(|_| Ok(())));
    says(
        "not an NBD server",
        open_fails(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request")),
    );
    // The oldstyle handshake.
    says(
        "not an NBD server",
        open_fails(|mut stream| {
            stream.write_all(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53")?;
            stream.write_all(&[0; 140])
        }),
    );
    says(
        "not an NBD server",
        open_fails(|mut stream| stream.write_all(b"NBDMAGICIHAVEOPT\x00\x00")),
    );
    says(
        "wrong magic number",
        open_fails(|mut stream| {
            greet(&mut stream)?;
            stream.write_all(&[9; 20])
        }),
    );
    says(
        "option 3, which was not asked",
        open_fails(|mut stream| {
            greet(&mut stream)?;
            answer(&mut stream, 3, 1, &[])
        }),
    );
    says(
        "a message of 4294967295 bytes",
        open_fails(|mut stream| {
            greet(&mut stream)?;
            stream.write_all(&0x0003_e889_0455_65a9_u64.to_be_bytes())?;
            stream.write_all(&[0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff])
        }),
    );
    says(
        "a message of 3 bytes",
        open_fails(move |mut stream| {
            until_context(&mut stream)?;
            answer(&mut stream, 10, 4, &[0; 3])
        }),
    );
    says(
        "too many answers",
        open_fails(move |mut stream| {
            until_context(&mut stream)?;
            (0..100).try_for_each(|_| answer(&mut stream, 10, 4, b"\0\0\0\x01qemu:x"))
        }),
    );
    says(
        "no size",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(&mut stream, 7, 1, &[])
        }),
    );
    says(
        "a message of 5 bytes",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(&mut stream, 7, 3, &[0, 0, 1, 1, 1])
        }),
    );
    says(
        "impossible block sizes: least 3",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(
                &mut stream,
                7,
                3,
                &[0, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 9],
            )
        }),
    );
    says(
        "impossible block sizes: least 512, most 1",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(
                &mut stream,
                7,
                3,
                &[0, 3, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 1],
            )
        }),
    );
    says(
        "too many answers",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            loop {
                answer(&mut stream, 7, 3, &[0, 9])?;
            }
        }),
    );
    says(
        "no such export: not \\u{1b}[2J here",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(&mut stream, 7, (1 << 31) | 6, b"not \x1b[2J here")
        }),
    );
    says(
        "demands TLS",
        open_fails(move |mut stream| {
            until_go(&mut stream)?;
            answer(&mut stream, 7, (1 << 31) | 5, b"")
        }),
    );
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let server = Server::answering(Offer::new(SIZE, FLUSH), |_, _| Ok(()));
    let device = server
        .open(|options| options.timeout = Duration::from_millis(20))
        .unwrap();
    let error = device.read_at(0, &mut [0; 512]).unwrap_err().to_string();
    assert!(error.contains("the server does not answer"), "{error}");
    let again = device.write_at(0, &[0; 512]).unwrap_err().to_string();
    assert_eq!(error, again);
}

#[test]
fn a_server_that_does_not_begin_the_handshake_is_named() {
    let server = Server::start(|mut stream| stream.read_exact(&mut [0]));
    let opened = server.open(|options| options.timeout = Duration::from_millis(20));
    let error = opened.unwrap_err().to_string();
    assert!(
        error.contains("one at a time (qemu-nbd without -e)"),
        "{error}"
    );
}

#[test]
fn a_server_that_ends_every_connection_is_given_up() {
    let server = Server::answering(Offer::new(SIZE, FLUSH), |_, _| {
        Err(io::ErrorKind::Other.into())
    });
    let device = server.open(|_| {}).unwrap();
    let error = device.flush().unwrap_err().to_string();
    assert!(error.contains("connection lost"), "{error}");
}

#[test]
fn an_export_that_changed_is_refused() {
    let size = AtomicU64::new(SIZE);
    let server = Server::start(move |mut stream| {
        let offer = Offer::new(size.fetch_sub(4096, Ordering::SeqCst), FLUSH);
        handshake(&mut stream, &offer)?;
        // One request, and the connection ends.
        let mut bytes = [0; 28];
        stream.read_exact(&mut bytes)
    });
    let device = server.open(|_| {}).unwrap();
    assert_eq!(device.size(), SIZE);
    let error = device.read_at(0, &mut [0; 512]).unwrap_err().to_string();
    assert!(error.contains("the export differs: its size"), "{error}");
}

#[test]
fn an_impossible_size_reaches_no_further_than_the_error() {
    let server = Server::answering(Offer::new(u64::MAX, FLUSH), |stream, asked| {
        let error = [&22_u32.to_be_bytes()[..], &[0, 0]].concat();
        chunk_of(stream, (1, (1 << 15) | 1, asked.cookie), 6, &error)
    });
    let device = server.open(|_| {}).unwrap();
    let error = device.read_at(u64::MAX - 512, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Io { op: "read", .. }), "{error:?}");
    assert!(device.read_at(u64::MAX - 511, &mut [0; 512]).is_err());
}

#[test]
fn random_bytes_from_a_server_are_an_error() {
    for seed in 0..60 {
        let server = Server::start(move |mut stream| {
            let mut random = fastrand::Rng::with_seed(seed);
            if seed % 3 != 0 {
                handshake(&mut stream, &Offer::new(SIZE, FLUSH))?;
                next(&mut stream)?;
            }
            if seed % 3 == 2 {
                stream.write_all(&0x668e_33ef_u32.to_be_bytes())?;
            }
            let noise: Vec<u8> = (0..4096).map(|_| random.u8(..)).collect();
            stream.write_all(&noise)
        });
        if let Ok(device) = server.open(|_| {}) {
            assert!(device.read_at(0, &mut [0; 512]).is_err(), "seed {seed}");
        }
    }
}
