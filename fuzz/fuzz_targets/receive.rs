//! Streams received into an image, cut and then resumed: the image stays consistent, other files
//! stay as they are, and only a complete subvolume is read-only.
//!
//! Input: see [`Run`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood::{FileSystem, Options, ReceiveOptions};
use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs_format::stream::{Writer, attribute as attr, command as cmd, header};

/// The commands of a subvolume, and the position of the first cut.
#[derive(Arbitrary, Debug)]
struct Run {
    newer: bool,
    cut: u16,
    commands: Vec<Step>,
}

/// A command with a value for every attribute; each command takes its own.
#[derive(Arbitrary, Debug)]
struct Step {
    number: u8,
    path: u8,
    other: u8,
    xattr: u8,
    offset: u32,
    len: u16,
    mode: u32,
    owner: u32,
    compression: u8,
    data: Vec<u8>,
}

const MOST: usize = 60;
const UUID: [u8; 16] = [9; 16];
const PATHS: [&[u8]; 12] = [
    b"",
    b"a",
    b"b",
    b"d",
    b"e",
    b"d/a",
    b"d/b",
    b"d/e",
    b"d/e/a",
    b"e/d",
    b"a/b",
    b"../outside",
];
const XATTRS: [&[u8]; 6] = [
    b"user.x",
    b"user.sapwood.part",
    b"trusted.y",
    b"security.capability",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];

fn path(number: u8) -> &'static [u8] {
    PATHS[usize::from(number) % PATHS.len()]
}

fn stream(run: &Run) -> Vec<u8> {
    let version = 1 + u32::from(run.newer);
    let mut stream = header(version).to_vec();
    let mut writer = Writer::new(version);
    writer
        .begin(cmd::SUBVOL)
        .put(attr::PATH, b"s")
        .put(attr::UUID, &UUID)
        .put_u64(attr::CTRANSID, 7);
    stream.extend_from_slice(writer.finish());
    for step in &run.commands {
        let number = cmd::MKFILE + u16::from(step.number) % (cmd::ENCODED_WRITE - cmd::SNAPSHOT);
        let number = if number == cmd::END {
            cmd::WRITE
        } else {
            number
        };
        let name = XATTRS[usize::from(step.xattr) % XATTRS.len()];
        let (offset, len) = (u64::from(step.offset), u64::from(step.len));
        writer
            .begin(number)
            .put(attr::PATH, path(step.path))
            .put(attr::PATH_TO, path(step.other))
            .put(attr::PATH_LINK, path(step.other))
            .put(attr::XATTR_NAME, name)
            .put(attr::XATTR_DATA, step.data.get(..256).unwrap_or(&step.data))
            .put_u64(attr::FILE_OFFSET, offset)
            .put_u64(attr::SIZE, offset)
            .put_u64(attr::MODE, step.mode.into())
            .put_u64(attr::UID, step.owner.into())
            .put_u64(attr::GID, step.owner.into())
            .put_u64(attr::RDEV, step.owner.into())
            .put_time(attr::ATIME, i64::from(step.offset), 1)
            .put_time(attr::MTIME, -1, 2)
            .put_time(attr::CTIME, 3, 3)
            .put(attr::CLONE_UUID, &UUID)
            .put_u64(attr::CLONE_CTRANSID, 7)
            .put(attr::CLONE_PATH, path(step.other))
            .put_u64(attr::CLONE_OFFSET, len & !0xfff)
            .put_u64(attr::CLONE_LEN, len)
            .put_u32(attr::FALLOCATE_MODE, step.mode & 0x13)
            .put_u64(attr::FILEATTR, step.mode.into())
            .put_u64(attr::UNENCODED_FILE_LEN, len)
            .put_u64(attr::UNENCODED_LEN, len)
            .put_u64(attr::UNENCODED_OFFSET, 0)
            .put_u32(attr::COMPRESSION, u32::from(step.compression % 5))
            .put_data(step.data.get(..4096).unwrap_or(&step.data));
        stream.extend_from_slice(writer.finish());
    }
    stream.extend_from_slice(writer.begin(cmd::END).finish());
    stream
}

/// An image with a file that no stream may touch.
fn base() -> MemoryDevice {
    static BASE: OnceLock<MemoryDevice> = OnceLock::new();
    let make = || {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs(&*device, &MkfsOptions::default()).expect("mkfs");
        let fs = open(&device);
        fs.write("/outside", b"kept").expect("write");
        fs.close().expect("close");
        device.snapshot()
    };
    BASE.get_or_init(make).snapshot()
}

fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::open_on(device.clone(), "memory", &Options::new()).expect("open")
}

fuzz_target!(|run: Run| -> Corpus {
    if run.commands.len() > MOST {
        return Corpus::Reject;
    }
    let stream = stream(&run);
    let device = Arc::new(base());
    let cut = usize::from(run.cut) % (stream.len() + 1);
    for (end, resume) in [(cut, false), (stream.len(), true)] {
        let fs = open(&device);
        let mut options = ReceiveOptions::default();
        options.resume = resume;
        let bytes = stream.get(..end).unwrap_or_default();
        let received = fs.receive("/", bytes, &options, &mut |_| {});
        for one in fs.subvolumes().expect("subvolumes") {
            assert_eq!(one.read_only, one.received_uuid != [0; 16]);
            assert_eq!(one.read_only, received.is_ok());
        }
        assert_eq!(fs.read("/outside").expect("read"), b"kept");
        fs.close().expect("close");
    }
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 10,
    };
    let report = check(&[&*device], &options, &mut |_| ()).expect("check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    Corpus::Keep
});
