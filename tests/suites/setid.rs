//! What changes of a file leave of its set-id bits and of its file capability: the same in our
//! mounts as in the kernel's.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, getxattr, setxattr};
use sapwood::Kind;
use sapwood_testing::oracle::KernelMount;
use sapwood_tests::Outcome;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount};

use sapwood_testing::credentials;

use credentials::{User, acting_as, without_fsetid};

const SIZE: u64 = 200 << 20;
const OWNER: u32 = 1001;
const GROUP: u32 = 2001;
const ELSE: u32 = 1002;
const BLOCK: u64 = 4096;
/// A file capability: revision 2, `CAP_NET_RAW`, effective.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn main() {
    machine::run(2, trials);
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let need = match kind {
            Kind::Btrfs => machine::KERNEL,
            Kind::Ext4 => machine::KERNEL_EXT4,
        };
        for (transport, options) in [
            ("io_uring", "io_uring=auto,sandbox=off"),
            ("dev_fuse", "io_uring=off"),
        ] {
            for cache in ["no_writeback_cache", "writeback_cache"] {
                let name = format!(
                    "{}_{transport}_{cache}_set_id_bits_as_in_the_kernel",
                    kind.name()
                );
                let options = format!("allow_other,{options},{cache}");
                trials.push(machine::trial(name, &[need, Need::Fuse], move || {
                    same_as_kernel(kind, &options)
                }));
            }
        }
    }
    trials
}

fn same_as_kernel(kind: Kind, options: &str) -> Outcome {
    let image = TempImage::new(&Mkfs {
        kind,
        ..Mkfs::default().sized(SIZE)
    })?;
    let kernel = KernelMount::new(image.path(), "rw")?;
    let expected = table(kernel.path())?;
    Box::new(kernel).unmount()?;
    let mount = SapwoodMount::new(image.path(), options)?;
    let found = table(mount.path())?;
    Box::new(mount).unmount()?;
    image.check()?;
    let mut differences = String::new();
    for (expected, found) in expected.iter().zip(&found) {
        if expected != found {
            let _ = writeln!(differences, "kernel: {expected}\n  ours: {found}");
        }
    }
    if differences.is_empty() && expected.len() == found.len() {
        Ok(())
    } else {
        Err(differences.into())
    }
}

type Change = fn(&Path, &File, &File) -> io::Result<()>;

fn range(file: &File, flags: FallocateFlags, offset: u64) -> io::Result<()> {
    Ok(fallocate(file, flags, offset, BLOCK)?)
}

fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("write", |_, file, _| file.write_all_at(b"x", 5)),
        ("truncate", |_, file, _| file.set_len(5 * BLOCK)),
        ("open with O_TRUNC", |path, _, _| {
            let mut options = File::options();
            options.write(true).truncate(true).open(path).map(drop)
        }),
        ("direct write", |path, _, source| {
            let mut block = vec![0; 2 * BLOCK as usize];
            let start = block.as_ptr().align_offset(BLOCK as usize);
            let part = &mut block[start..start + BLOCK as usize];
            source.read_exact_at(part, 0)?;
            let mut options = File::options();
            let file = options
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(path)?;
            file.write_all_at(part, 0)
        }),
        ("fallocate", |_, file, _| {
            range(file, FallocateFlags::empty(), 20 * BLOCK)
        }),
        ("fallocate keep", |_, file, _| {
            range(file, FallocateFlags::KEEP_SIZE, 40 * BLOCK)
        }),
        ("punch", |_, file, _| {
            range(
                file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                BLOCK,
            )
        }),
        ("zero", |_, file, _| {
            range(file, FallocateFlags::ZERO_RANGE, BLOCK)
        }),
        // FUSE has no collapsed and inserted ranges.
        ("copy_file_range", |_, file, source| {
            let (mut from, mut to) = (0, 0);
            let len = usize::try_from(BLOCK).unwrap_or(0);
            copy_file_range(source, Some(&mut from), file, Some(&mut to), len).map(drop)?;
            Ok(())
        }),
        ("chown", |_, file, _| fchown(file, None, Some(ELSE))),
        ("chmod", |_, file, _| {
            file.set_permissions(fs::Permissions::from_mode(0o6770))
        }),
        ("user attribute", |path, _, _| {
            Ok(setxattr(path, "user.x", b"x", XattrFlags::empty())?)
        }),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Who {
    Root,
    RootWithoutFsetid,
    Owner,
    Member,
    Stranger,
}

impl Who {
    const ALL: [Self; 5] = [
        Self::Root,
        Self::RootWithoutFsetid,
        Self::Owner,
        Self::Member,
        Self::Stranger,
    ];

    fn does(self, work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
        let user = |uid, group| User {
            uid,
            gid: ELSE,
            group,
        };
        match self {
            Self::Root => work(),
            Self::RootWithoutFsetid => without_fsetid(work)?,
            Self::Owner => acting_as(user(OWNER, ELSE), work)?,
            Self::Member => acting_as(user(ELSE, GROUP), work)?,
            Self::Stranger => acting_as(user(ELSE, ELSE), work)?,
        }
    }
}

/// A line for each change by each user to each mode.
fn table(root: &Path) -> Result<Vec<String>, libtest_mimic::Failed> {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    let (path, source) = (root.join("file"), root.join("source"));
    fs::write(&source, vec![3; 8 * BLOCK as usize])?;
    let source = File::open(&source)?;
    let mut lines = Vec::new();
    for (what, change) in changes() {
        for who in Who::ALL {
            // A set-group-id bit without the group's right to execute means something else.
            for mode in [0o6777, 0o4766, 0o2777, 0o6767] {
                let told_to_server = !matches!(what, "write" | "direct write");
                if mode == 0o6767 && !told_to_server {
                    continue;
                }
                let _ = fs::remove_file(&path);
                fs::write(&path, vec![1; 16 * BLOCK as usize])?;
                chown(&path, Some(OWNER), Some(GROUP))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                setxattr(
                    &path,
                    "security.capability",
                    &CAPABILITY,
                    XattrFlags::empty(),
                )?;
                let file = File::options().read(true).write(true).open(&path)?;
                let done = who.does(|| change(&path, &file, &source));
                let left = fs::metadata(&path)?.mode() & 0o7777;
                let mut value = [0; 64];
                let capable = getxattr(&path, "security.capability", &mut value).is_ok();
                let errno = done
                    .err()
                    .and_then(|error| error.raw_os_error())
                    .unwrap_or(0);
                lines.push(format!(
                    "{what} by {who:?} of {mode:o}: {left:o}, capability {capable}, errno {errno}"
                ));
            }
        }
    }
    Ok(lines)
}
