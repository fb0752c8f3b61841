//! Set-id bits of files whose content changes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};

use libtest_mimic::Trial;
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use sapwood_vfs::{FileSystem, Ino, SetXattrMode};

use crate::support::{Mounted, Need, Outcome, as_other, for_all, trial};
use crate::{holds, same};
use sapwood_testing::credentials::{OTHER, User, acting_as, without_fsetid};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("set_id_bits_are_cleared_by_every_change", &[], cleared),
        trial("set_id_bits_stay_for_those_who_may_keep_them", &[], kept),
        trial(
            "a_cleared_set_id_bit_is_not_remembered",
            &[Need::Program("setpriv")],
            not_remembered,
        ),
    ]
}

type Change = fn(&File, &File) -> io::Result<()>;

fn changes() -> Vec<(&'static str, Change)> {
    vec![
        ("write", |file, _| file.write_all_at(b"x", 5)),
        ("truncate", |file, _| file.set_len(7)),
        ("allocate", |file, _| {
            Ok(fallocate(file, FallocateFlags::empty(), 0, 1 << 16)?)
        }),
        ("allocate behind the end", |file, _| {
            Ok(fallocate(file, FallocateFlags::KEEP_SIZE, 0, 1 << 17)?)
        }),
        ("punch", |file, _| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(file, punch, 0, 4096)?)
        }),
        ("zero", |file, _| {
            Ok(fallocate(file, FallocateFlags::ZERO_RANGE, 0, 4096)?)
        }),
        ("copy", |file, source| {
            let (mut from, mut to) = (0, 0);
            copy_file_range(source, Some(&mut from), file, Some(&mut to), 4096).map(drop)?;
            Ok(())
        }),
    ]
}

struct Setup {
    mounted: Mounted,
    file: File,
    source: File,
}

impl Setup {
    fn new() -> Result<Self, libtest_mimic::Failed> {
        let mounted = for_all()?;
        fs::write(mounted.path("source"), [1; 8192])?;
        fs::write(mounted.path("file"), [2; 8192])?;
        let open = |name: &str| {
            File::options()
                .read(true)
                .write(true)
                .open(mounted.path(name))
        };
        let (file, source) = (open("file")?, open("source")?);
        Ok(Self {
            mounted,
            file,
            source,
        })
    }

    fn mode(&self) -> io::Result<u32> {
        Ok(self.file.metadata()?.mode() & 0o7777)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(fs::Permissions::from_mode(mode))
    }
}

fn cleared() -> Outcome {
    let setup = Setup::new()?;
    let ino = Ino(setup.file.metadata()?.ino());
    let engine: &dyn FileSystem = &*setup.mounted.fs;
    for (what, change) in changes() {
        for (before, after) in [(0o6777, 0o777), (0o4711, 0o711), (0o2755, 0o755)] {
            setup.set_mode(before)?;
            engine.setxattr(ino, b"security.capability", b"x", SetXattrMode::Any)?;
            acting_as(OTHER, || change(&setup.file, &setup.source))??;
            let left = setup.mode()?;
            if left != after {
                return Err(format!("{what} leaves {left:o} of {before:o}").into());
            }
            same!(engine.getattr(ino)?.perm, after);
            if engine.getxattr(ino, b"security.capability").is_ok() {
                return Err(format!("{what} leaves the capability").into());
            }
        }
    }
    Ok(())
}

fn kept() -> Outcome {
    let setup = Setup::new()?;
    chown(setup.mounted.path("file"), Some(0), Some(77))?;
    for (what, change) in changes() {
        setup.set_mode(0o6777)?;
        change(&setup.file, &setup.source)?;
        let left = setup.mode()?;
        if left != 0o6777 {
            return Err(format!("{what} by root leaves {left:o}").into());
        }
        without_fsetid(|| change(&setup.file, &setup.source))??;
        let left = setup.mode()?;
        if left != 0o777 {
            return Err(format!("{what} without CAP_FSETID leaves {left:o}").into());
        }
    }
    // A set-group-id bit without group execute permission marks mandatory locking; members of the
    // group keep it.
    for (what, change) in changes().into_iter().skip(2) {
        for (group, after) in [(77, 0o2666), (78, 0o666)] {
            setup.set_mode(0o6666)?;
            let user = User { group, ..OTHER };
            acting_as(user, || change(&setup.file, &setup.source))??;
            let left = setup.mode()?;
            if left != after {
                return Err(format!("{what} in group {group} leaves {left:o}").into());
            }
        }
    }
    Ok(())
}

/// The kernel runs a file with the mode that it has cached.
fn not_remembered() -> Outcome {
    let mounted = for_all()?;
    let program = mounted.path("id");
    let lines = [
        "printf x >> id",
        "truncate -s +1 id",
        "fallocate -l 1M id",
        "fallocate -z -o 900000 -l 4096 id",
        "fallocate -p -o 900000 -l 4096 id",
    ];
    for line in lines {
        fs::copy("/usr/bin/id", &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6777))?;
        same!(as_other("./id -u", mounted.dir())?.stdout, b"0\n");
        let changed = as_other(line, mounted.dir())?;
        if !changed.status.success() {
            let why = String::from_utf8_lossy(&changed.stderr).into_owned();
            return Err(format!("{line}: {why}").into());
        }
        let ran = as_other("./id -u", mounted.dir())?;
        if ran.stdout != b"1234\n" {
            let uid = String::from_utf8_lossy(&ran.stdout).into_owned();
            return Err(format!("after {line}: runs as {uid}").into());
        }
        same!(fs::metadata(&program)?.mode() & 0o7777, 0o777);
    }
    holds!(fs::metadata(&program)?.len() > 0);
    Ok(())
}
