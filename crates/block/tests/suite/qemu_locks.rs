//! QEMU's programs and this crate exclude each other from an image. Needs qemu-utils.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sapwood_block::{
    Device, DiskFormat, Error, FileDevice, NbdDevice, NbdOptions, OpenOptions, Operand,
};
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::Loop;
use sapwood_testing::process;
use tempfile::TempDir;

const FORMATS: [&str; 2] = ["raw", "qcow2"];

fn has_qemu() -> bool {
    let programs = ["qemu-img", "qemu-io", "qemu-nbd"];
    !left_out(&programs.map(Need::Program))
}

/// A directory with an image `disk`, which has content, and `base` for other files.
struct Files {
    dir: TempDir,
    format: &'static str,
}

impl Files {
    fn new(format: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Self { dir, format };
        qemu_img(&["create", "-q", "-f", format, &files.at("disk"), "16M"]).unwrap();
        files.write("disk").unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str) -> Result<(), String> {
        qemu_io(&["-f", self.format, "-c", "write -P 7 0 64k", &self.at(name)])
    }

    fn read(&self, name: &str) -> Result<(), String> {
        qemu_io(&[
            "-r",
            "-f",
            self.format,
            "-c",
            "read -P 7 0 64k",
            &self.at(name),
        ])
    }

    fn resize(&self, name: &str) -> Result<(), String> {
        qemu_img(&["resize", "-q", "-f", self.format, &self.at(name), "+1M"])
    }

    fn convert(&self, name: &str) -> Result<(), String> {
        let (from, to) = (self.at(name), self.at("converted"));
        qemu_img(&["convert", "-q", "-f", self.format, "-O", "raw", &from, &to])
    }

    fn serve(&self, name: &str, args: &[&str]) -> Server {
        Server::new(&self.path("socket"), &self.path(name), self.format, args)
    }
}

fn qemu_img(args: &[&str]) -> Result<(), String> {
    process::run("qemu-img", args).map(drop)
}

/// Runs `qemu-io`, whose exit status does not show whether a command in it failed.
fn qemu_io(args: &[&str]) -> Result<(), String> {
    let said = process::run("qemu-io", args)?;
    if said.contains("failed") {
        return Err(said);
    }
    Ok(())
}

/// `qemu-nbd`, which has an image open until this ends.
struct Server(Child);

impl Server {
    fn new(socket: &Path, image: &Path, format: &str, args: &[&str]) -> Self {
        let _ = std::fs::remove_file(socket);
        let child = Command::new("qemu-nbd")
            .args(["-t", "-f", format, "-k"])
            .args([socket, image])
            .args(args)
            .stdin(Stdio::null())
            .spawn();
        let mut server = Self(child.unwrap());
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let options = NbdOptions {
            read_only: true,
            ..NbdOptions::default()
        };
        // It answers once it has opened the image.
        while NbdDevice::open(&uri, options.clone()).is_err() {
            assert!(server.0.try_wait().unwrap().is_none(), "qemu-nbd ended");
            std::thread::yield_now();
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refused(done: Result<(), String>) {
    let why = done.unwrap_err();
    assert!(why.contains("Is another process using the image"), "{why}");
}

fn is_busy(path: &Path, options: OpenOptions) -> bool {
    match FileDevice::open(path, options) {
        Ok(_) => false,
        Err(Error::Busy { .. }) => true,
        Err(other) => panic!("neither open nor busy: {other}"),
    }
}

/// Whether the image is busy for a writer and for a reader.
fn busy(path: &Path) -> (bool, bool) {
    let writer = is_busy(path, OpenOptions::default());
    (writer, is_busy(path, OpenOptions::read_only()))
}

#[test]
fn qemu_neither_reads_nor_writes_an_image_that_is_open_for_writing() {
    if !has_qemu() {
        return;
    }
    for format in FORMATS {
        let files = Files::new(format);
        let device = FileDevice::open(files.path("disk"), OpenOptions::default()).unwrap();
        let use_it = [Files::write, Files::read, Files::resize, Files::convert];
        for used in use_it {
            refused(used(&files, "disk"));
        }
        drop(device);
        for used in use_it {
            used(&files, "disk").unwrap();
        }
    }
}

#[test]
fn qemu_reads_an_image_that_is_open_for_reading() {
    if !has_qemu() {
        return;
    }
    for format in FORMATS {
        let files = Files::new(format);
        let open = || FileDevice::open(files.path("disk"), OpenOptions::read_only()).unwrap();
        let (one, two) = (open(), open());
        files.read("disk").unwrap();
        files.convert("disk").unwrap();
        for device in [one, two] {
            refused(files.write("disk"));
            refused(files.resize("disk"));
            device.release_lock().unwrap();
        }
        files.write("disk").unwrap();
        files.resize("disk").unwrap();
    }
}

#[test]
fn an_image_that_qemu_serves_is_busy() {
    if !has_qemu() {
        return;
    }
    for format in FORMATS {
        let files = Files::new(format);
        let disk = files.path("disk");
        for (args, wanted) in [(&[][..], (true, true)), (&["-r"][..], (true, false))] {
            let server = files.serve("disk", args);
            assert_eq!(busy(&disk), wanted, "{format} {args:?}");
            let refused = FileDevice::open(&disk, OpenOptions::default());
            let message = refused.unwrap_err().to_string();
            let named = format!(": in use by qemu-nbd (process {})", server.0.id());
            assert!(message.ends_with(&named), "{message}");
            let before = std::fs::read(&disk).unwrap();
            let made = FileDevice::create(&disk, 0);
            assert!(matches!(made, Err(Error::Busy { .. })), "{format} {args:?}");
            assert_eq!(std::fs::read(&disk).unwrap(), before);
            let unlocked = OpenOptions {
                lock: false,
                ..OpenOptions::read_only()
            };
            assert!(!is_busy(&disk, unlocked));
            // A refused open leaves no lock.
            files
                .read("disk")
                .unwrap_or_else(|why| assert!(args.is_empty(), "{why}"));
            drop(server);
            assert_eq!(busy(&disk), (false, false));
        }
    }
}

#[test]
fn backing_files_are_shared_with_qemu_for_reading() {
    if !has_qemu() {
        return;
    }
    let files = Files::new("qcow2");
    for name in ["one", "two"] {
        let base = files.at("disk");
        let top = files.at(name);
        qemu_img(&[
            "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &top,
        ])
        .unwrap();
    }
    let operand = format!("{}#backing=yes", files.at("one"));
    let operand = Operand::parse(Path::new(&operand)).unwrap();
    let open = || operand.open(OpenOptions::default());
    let disk = open().unwrap();
    assert_eq!(disk.format(), DiskFormat::Qcow2);
    refused(files.write("disk"));
    refused(files.resize("disk"));
    files.read("disk").unwrap();
    files.write("two").unwrap();
    refused(files.write("one"));
    drop(disk);

    let server = files.serve("two", &[]);
    assert_eq!(busy(&files.path("two")), (true, true));
    assert_eq!(busy(&files.path("disk")), (true, false));
    open().unwrap();
    drop(server);
    let server = files.serve("disk", &[]);
    assert!(open().is_err());
    drop(server);
    open().unwrap();
}

#[test]
fn a_loop_device_and_its_file_are_locked_against_qemu() {
    if !has_qemu() || left_out(&[Need::Loop]) {
        return;
    }
    let files = Files::new("raw");
    let attached = Loop::new(&files.path("disk"), &[]).unwrap();
    let paths = [attached.path().to_owned(), files.path("disk")];
    for path in &paths {
        let server = Server::new(&files.path("socket"), path, "raw", &[]);
        assert!(busy(&paths[0]).0 && busy(&paths[1]).0, "{}", path.display());
        drop(server);
        assert_eq!(
            (busy(&paths[0]), busy(&paths[1])),
            ((false, false), (false, false))
        );
    }
    let device = FileDevice::open(&paths[0], OpenOptions::default()).unwrap();
    for path in &paths {
        let device = path.to_str().unwrap();
        refused(qemu_io(&["-f", "raw", "-c", "write 0 64k", device]));
    }
    drop(device);
    files.write("disk").unwrap();
}
