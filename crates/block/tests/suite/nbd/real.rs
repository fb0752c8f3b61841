//! `qemu-nbd` and `nbdkit` on Unix sockets.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sapwood_block::{Device, Error, NbdDevice, NbdOptions};
use sapwood_testing::machine::{Need, left_out};

const SIZE: u64 = 16 << 20;

/// A server process, killed at the end.
struct Process {
    dir: tempfile::TempDir,
    child: Option<Child>,
    program: &'static str,
    args: Vec<String>,
}

impl Process {
    /// `SOCKET` and `IMAGE` in the arguments are placeholders for the paths. `None` where the
    /// program is not installed.
    fn start(program: &'static str, args: &[&str]) -> Option<Self> {
        if left_out(&[Need::Program(program)]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (socket, image) = (dir.path().join("socket"), dir.path().join("image"));
        std::fs::File::create(&image)
            .unwrap()
            .set_len(SIZE)
            .unwrap();
        let put = |arg: &&str| {
            arg.replace("SOCKET", socket.to_str().unwrap())
                .replace("IMAGE", image.to_str().unwrap())
        };
        let args = args.iter().map(put).collect();
        let mut process = Self {
            dir,
            child: None,
            program,
            args,
        };
        process.spawn();
        Some(process)
    }

    fn spawn(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let child = Command::new(self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        self.listening();
    }

    /// Waits until the server accepts a connection.
    fn listening(&mut self) {
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{} {:?}: {ended:?}",
                self.program,
                self.args
            );
            std::thread::yield_now();
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn open(&self, export: &str) -> NbdDevice {
        let uri = format!("nbd+unix:///{export}?socket={}", self.socket().display());
        NbdDevice::open(&uri, NbdOptions::default()).unwrap()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn qemu() -> Option<Process> {
    let args = [
        "-f",
        "raw",
        "-t",
        "-e",
        "8",
        "-x",
        "disk",
        "--discard=unmap",
        "-k",
        "SOCKET",
        "IMAGE",
    ];
    Process::start("qemu-nbd", &args)
}

fn nbdkit(args: &[&str]) -> Option<Process> {
    Process::start("nbdkit", &[&["-f", "-U", "SOCKET"], args].concat())
}

/// Random writes, reads, discards and flushes, compared with a model. Returns the model.
fn exercise(device: &NbdDevice, seed: u64, steps: u32) -> Vec<u8> {
    assert_eq!(device.size(), SIZE);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = vec![0_u8; SIZE as usize];
    for step in 0..steps {
        let start = random.usize(..SIZE as usize);
        let most = if random.u8(..8) == 0 { 3 << 20 } else { 20_000 };
        let len = random.usize(1..most).min(SIZE as usize - start);
        let range = start..start + len;
        let at = start as u64;
        match random.u8(..6) {
            0 => {
                let mut seen = vec![0; len];
                device.read_at(at, &mut seen).unwrap();
                assert!(seen == model[range], "step {step}");
            }
            1 => {
                model[range.clone()].fill(0);
                device.discard(at, len as u64).unwrap();
                device.write_at(at, &model[range]).unwrap();
            }
            2 => device.flush().unwrap(),
            3 => {
                model[range.clone()].fill_with(|| random.u8(..));
                device.write_fua(at, &model[range]).unwrap();
            }
            _ => {
                model[range.clone()].fill_with(|| random.u8(..));
                device.write_at(at, &model[range]).unwrap();
            }
        }
    }
    device.flush().unwrap();
    let mut seen = vec![0; SIZE as usize];
    device.read_at(0, &mut seen).unwrap();
    assert!(seen == model);
    model
}

fn same_as_the_image(image: &Path, model: &[u8]) {
    assert!(std::fs::read(image).unwrap() == model);
}

#[test]
fn qemu_nbd_holds_what_is_written() {
    let Some(server) = qemu() else { return };
    let device = server.open("disk");
    assert!(device.connections() > 1, "qemu-nbd offers several");
    let model = exercise(&device, 1, 150);
    drop(device);
    same_as_the_image(&server.image(), &model);
}

/// Writes twice 64 KiB to an empty image, discards all of it, and expects no space in use.
fn discards_all(server: &Process, export: &str) {
    use std::os::unix::fs::MetadataExt;

    let used = || std::fs::metadata(server.image()).unwrap().blocks();
    let device = server.open(export);
    for at in [4 << 20, 9 << 20] {
        device.write_at(at, &[7; 64 << 10]).unwrap();
    }
    device.flush().unwrap();
    assert!(used() > 0);
    device.discard(0, SIZE).unwrap();
    device.discard(0, SIZE).unwrap();
    device.flush().unwrap();
    assert_eq!(used(), 0);
}

#[test]
fn servers_tell_what_takes_space() {
    if let Some(server) = qemu() {
        discards_all(&server, "disk");
    }
    let logged = ["--filter=log", "file", "IMAGE", "logfile=IMAGE.log"];
    let Some(server) = nbdkit(&logged) else {
        return;
    };
    discards_all(&server, "");
    let log = std::fs::read_to_string(server.dir.path().join("image.log")).unwrap();
    let trimmed = log.lines().filter(|line| line.contains(" Trim "));
    let trimmed: Vec<_> = trimmed.collect();
    let is_data = |line: &&str| line.contains("0x400000") || line.contains("0x900000");
    assert_eq!(trimmed.len(), 2, "{log}");
    assert!(trimmed.iter().all(is_data), "{log}");
    assert!(log.contains(" Extents "), "{log}");
}

#[test]
fn nbdkit_holds_what_is_written() {
    let Some(server) = nbdkit(&["file", "IMAGE"]) else {
        return;
    };
    let model = exercise(&server.open(""), 2, 150);
    same_as_the_image(&server.image(), &model);
}

#[test]
fn blocks_of_a_server_that_takes_whole_ones_only() {
    let filter = [
        "--filter=blocksize-policy",
        "file",
        "IMAGE",
        "blocksize-minimum=4096",
        "blocksize-error-policy=error",
    ];
    let Some(server) = nbdkit(&filter) else {
        return;
    };
    let model = exercise(&server.open(""), 3, 100);
    same_as_the_image(&server.image(), &model);
}

#[test]
fn a_slow_server_has_many_requests_in_flight() {
    let filter = [
        "--filter=delay",
        "file",
        "IMAGE",
        "delay-read=20ms",
        "delay-write=20ms",
    ];
    let Some(server) = nbdkit(&filter) else {
        return;
    };
    exercise(&server.open(""), 4, 20);
}

#[test]
fn an_error_of_the_server_is_an_error_of_the_request() {
    let filter = [
        "--filter=error",
        "file",
        "IMAGE",
        "error-pwrite=ENOSPC",
        "error-pwrite-rate=100%",
    ];
    let Some(server) = nbdkit(&filter) else {
        return;
    };
    let device = server.open("");
    let error = device.write_at(0, &[1; 4096]).unwrap_err();
    assert!(error.is_host_full(), "{error}");
    device.read_at(0, &mut [0; 4096]).unwrap();
    device.flush().unwrap();
}

#[test]
fn random_errors_of_the_server_leave_a_device_that_works() {
    let filter = [
        "--filter=retry",
        "--filter=error",
        "file",
        "IMAGE",
        "error-rate=4%",
        "retry-delay=1",
        "retry-exponential=no",
        "retries=50",
    ];
    let Some(server) = nbdkit(&filter) else {
        return;
    };
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    // The handshake itself may meet an error.
    let opened = (0..50).find_map(|_| NbdDevice::open(&uri, NbdOptions::default()).ok());
    let device = opened.unwrap();
    let (mut failed, mut done) = (0, 0);
    for at in 0..64 {
        match device.write_at(at * 4096, &[at as u8 + 1; 4096]) {
            Ok(()) => done += 1,
            Err(Error::Io { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(done > 0, "{failed} failed");
}

#[test]
fn writes_survive_a_killed_server() {
    let Some(mut server) = qemu() else { return };
    let device = server.open("disk");
    let mut model = vec![0_u8; SIZE as usize];
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..8 {
        for _ in 0..20 {
            let start = random.usize(..SIZE as usize / 4096) * 4096;
            model[start..start + 4096].fill(random.u8(1..));
            device
                .write_at(start as u64, &model[start..start + 4096])
                .unwrap();
        }
        server.kill();
        server.spawn();
        let start = random.usize(..SIZE as usize / 4096) * 4096;
        let mut seen = vec![0; 4096];
        device.read_at(start as u64, &mut seen).unwrap();
        assert!(seen == model[start..start + 4096]);
    }
    device.flush().unwrap();
    same_as_the_image(&server.image(), &model);
}

#[test]
fn an_export_that_is_not_there_is_refused() {
    let Some(server) = qemu() else { return };
    let uri = format!("nbd+unix:///other?socket={}", server.socket().display());
    let error = NbdDevice::open(&uri, NbdOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("refuses the export \"other\": no such export"),
        "{error}"
    );
}

#[test]
fn a_server_that_stays_away_is_given_up() {
    let Some(mut server) = qemu() else { return };
    let uri = format!("nbd+unix:///disk?socket={}", server.socket().display());
    let options = NbdOptions {
        patience: Duration::from_millis(50),
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&uri, options).unwrap();
    server.kill();
    let error = device.flush().unwrap_err().to_string();
    assert!(
        error.contains("cannot connect") && error.contains("no new connection"),
        "{error}"
    );
    assert_eq!(
        device.read_at(0, &mut [0; 512]).unwrap_err().to_string(),
        error
    );
}
