//! A server that loses power: its connections end, and unflushed writes are lost.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use sapwood_block::Device;

use super::server::*;

const SIZE: usize = 64 << 10;

struct Disk {
    /// The content that a read returns.
    volatile: Vec<u8>,
    /// The content after a crash.
    durable: Vec<u8>,
    connections: Vec<UnixStream>,
    random: fastrand::Rng,
    /// One request in this many meets a crash; 0: none.
    odds: u32,
    crashes: u32,
}

impl Disk {
    fn new(seed: u64, odds: u32) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            volatile: vec![0; SIZE],
            durable: vec![0; SIZE],
            connections: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            odds,
            crashes: 0,
        }))
    }

    fn crash(&mut self) {
        self.crashes += 1;
        // A part of the unflushed writes may have reached the disk.
        for block in 0..SIZE / 512 {
            let range = block * 512..(block + 1) * 512;
            if self.random.bool() {
                self.durable[range.clone()].copy_from_slice(&self.volatile[range]);
            }
        }
        self.volatile.clone_from(&self.durable);
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn meets_crash(&mut self) -> bool {
        self.odds > 0 && self.random.u32(..self.odds) == 0
    }

    /// Does a request; the data of a read.
    fn carry_out(&mut self, asked: &Asked) -> Vec<u8> {
        let range = asked.offset as usize..asked.offset as usize + asked.len as usize;
        match asked.command {
            CMD_READ => return self.volatile[range].to_vec(),
            CMD_WRITE => self.volatile[range.clone()].copy_from_slice(&asked.data),
            CMD_ZEROES => self.volatile[range.clone()].fill(0),
            CMD_TRIM => self.volatile[range.clone()].fill(0xee),
            CMD_FLUSH => self.durable.clone_from(&self.volatile),
            other => panic!("command {other}"),
        }
        if asked.flags & 1 != 0 {
            self.durable[range.clone()].copy_from_slice(&self.volatile[range]);
        }
        Vec::new()
    }
}

fn server(disk: &Arc<Mutex<Disk>>, flags: u16) -> Server {
    server_of(disk, flags, None)
}

/// A server with least and most bytes of a request.
fn server_of(disk: &Arc<Mutex<Disk>>, flags: u16, blocks: Option<(u32, u32)>) -> Server {
    let disk = Arc::clone(disk);
    Server::start(move |mut stream| {
        disk.lock().unwrap().connections.push(stream.try_clone()?);
        let offer = Offer {
            blocks,
            ..Offer::new(SIZE as u64, flags)
        };
        handshake(&mut stream, &offer)?;
        loop {
            let asked = next(&mut stream)?;
            if asked.command == CMD_DISC {
                return Ok(());
            }
            let mut disk = disk.lock().unwrap();
            if disk.meets_crash() {
                disk.crash();
                continue;
            }
            let found = disk.carry_out(&asked);
            if disk.meets_crash() {
                disk.crash();
                continue;
            }
            match asked.command {
                CMD_READ => data(&mut stream, true, asked.cookie, asked.offset, &found)?,
                _ => ok(&mut stream, asked.cookie)?,
            }
        }
    })
}

/// Random requests while the server crashes. Returns how often it did.
fn run(seed: u64, flags: u16) -> u32 {
    let disk = Disk::new(seed, 24);
    let server = server(&disk, flags);
    let device = server.open(|options| options.connections = 2).unwrap();
    let mut random = fastrand::Rng::with_seed(seed ^ 0xabcd);
    let mut model = vec![0_u8; SIZE];
    for step in 0..60 {
        let start = random.usize(..SIZE / 512) * 512;
        let len = (random.usize(1..24) * 512).min(SIZE - start);
        let range = start..start + len;
        let at = start as u64;
        let byte = random.u8(1..);
        match random.u8(..10) {
            0 | 1 => {
                device.flush().unwrap();
                let durable = disk.lock().unwrap().durable.clone();
                assert!(
                    durable == model,
                    "seed {seed}, step {step}: a flush lost a write"
                );
            }
            2 | 3 => {
                model[range.clone()].fill(byte);
                device.write_fua(at, &model[range.clone()]).unwrap();
                let durable = disk.lock().unwrap().durable[range.clone()].to_vec();
                assert!(
                    durable == model[range],
                    "seed {seed}, step {step}: a FUA write is lost"
                );
            }
            4 => {
                model[range.clone()].fill(0);
                device.write_at(at, &model[range]).unwrap();
            }
            5 => {
                device.discard(at, len as u64).unwrap();
                // Discarded bytes are undefined until they are written.
                model[range.clone()].fill(byte);
                device.write_at(at, &model[range]).unwrap();
            }
            6 => {
                let mut seen = vec![0; len];
                device.read_at(at, &mut seen).unwrap();
                assert!(
                    seen == model[range],
                    "seed {seed}, step {step}: a read is stale"
                );
            }
            _ => {
                model[range.clone()].fill(byte);
                device.write_at(at, &model[range]).unwrap();
            }
        }
    }
    device.flush().unwrap();
    let mut seen = vec![0; SIZE];
    device.read_at(0, &mut seen).unwrap();
    let disk = disk.lock().unwrap();
    assert!(disk.durable == model && seen == model, "seed {seed}");
    disk.crashes
}

#[test]
fn nothing_flushed_is_lost_when_the_server_loses_power() {
    let mut crashes = 0;
    for seed in 0..40 {
        crashes += run(seed, FLUSH | FUA | TRIM | ZEROES | MULTI);
        crashes += run(seed + 1000, FLUSH | TRIM);
    }
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn writers_in_parallel_survive_crashes_of_the_server() {
    let disk = Disk::new(3, 40);
    let server = server(&disk, FLUSH | FUA | MULTI);
    let device = server.open(|_| {}).unwrap();
    const PART: usize = SIZE / 4;
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (device, disk) = (&device, &disk);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(part as u64);
                let mut model = vec![0; PART];
                for _ in 0..80 {
                    let start = random.usize(..PART / 512) * 512;
                    let len = (random.usize(1..8) * 512).min(PART - start);
                    model[start..start + len].fill(random.u8(1..));
                    let at = (part * PART + start) as u64;
                    device.write_at(at, &model[start..start + len]).unwrap();
                    if random.u8(..4) == 0 {
                        device.flush().unwrap();
                        let durable = disk.lock().unwrap().durable.clone();
                        assert!(
                            durable[part * PART..(part + 1) * PART] == model,
                            "part {part}"
                        );
                    }
                }
            });
        }
    });
    assert!(disk.lock().unwrap().crashes > 3);
}

/// Ends all connections.
fn disconnect(disk: &Mutex<Disk>) {
    for connection in disk.lock().unwrap().connections.drain(..) {
        let _ = connection.shutdown(Shutdown::Both);
    }
}

#[test]
fn nothing_is_written_again_after_a_write_of_another_client() {
    for least in [None, Some((4096, 1 << 20))] {
        let disk = Disk::new(0, 0);
        let server = server_of(&disk, FLUSH | FUA, least);
        let device = server.open(|_| {}).unwrap();
        device.watch(4096 + 1024, 1024).unwrap();
        device.write_at(4096, &[1; 2048]).unwrap();
        device.write_at(8192, &[1; 512]).unwrap();
        disconnect(&disk);
        // No other client wrote: the device continues.
        device.write_at(8192 + 512, &[2; 512]).unwrap();
        disconnect(&disk);
        {
            let mut disk = disk.lock().unwrap();
            disk.volatile[4096 + 2047] = 9;
            disk.volatile[8192..8192 + 4096].fill(9);
        }
        let error = device.flush().unwrap_err().to_string();
        assert!(
            error.contains("another client wrote to the export"),
            "{error}"
        );
        assert!(error.contains("(at byte 5120)"), "{error}");
        for again in [
            device.write_at(0, &[3; 512]),
            device.read_at(0, &mut [0; 512]),
        ] {
            assert_eq!(again.unwrap_err().to_string(), error);
        }
        let disk = disk.lock().unwrap();
        assert!(
            disk.volatile[8192..8192 + 4096]
                .iter()
                .all(|byte| *byte == 9)
        );
        assert_eq!((disk.volatile[4096 + 2047], disk.volatile[0]), (9, 0));
    }
}

#[test]
fn a_server_that_loses_writes_of_a_watched_range_is_not_another_client() {
    let mut crashes = 0;
    for seed in 0..40 {
        let disk = Disk::new(seed, 12);
        let server = server(&disk, FLUSH | FUA);
        let device = server.open(|_| {}).unwrap();
        device.watch(1024, 1024).unwrap();
        for round in 1..=30 {
            device.write_at(1024, &[round; 1024]).unwrap();
            match round % 4 {
                0 => device.flush().unwrap(),
                1 => device.write_fua(1024, &[round; 1024]).unwrap(),
                _ => {}
            }
        }
        device.flush().unwrap();
        let disk = disk.lock().unwrap();
        assert!(disk.durable[1024..2048] == [30; 1024], "seed {seed}");
        crashes += disk.crashes;
    }
    assert!(crashes > 40, "{crashes}");
}
