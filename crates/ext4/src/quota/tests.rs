//! Usage and limits, judged by `e2fsck`; power cuts.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{QuotaEntry, QuotaKind};
use sapwood_testing::RecordDevice;
use sapwood_vfs::{
    Credentials, FileSystem, Fsxattr, Ino, NewInode, RenameMode, SetAttr, SyncKind, WriteMode,
};

use crate::oracles::{MIB, TOOLS, clean, image, left_out};
use crate::{Error, Ext4, Options};

const KINDS: &str = "-O quota,project,^ea_inode -E quotatype=usrquota:grpquota:prjquota";

fn made(more: &str) -> Option<Arc<MemoryDevice>> {
    (!left_out(TOOLS)).then(|| image(32 * MIB, &format!("{KINDS} {more}")))
}

fn mount(device: Arc<dyn Device>) -> crate::Result<Ext4> {
    let options = Options {
        background: false,
        noatime: true,
        ..Options::default()
    };
    Ext4::open(device, options)
}

fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: uid + 1,
        ..Credentials::ROOT
    }
}

fn create(fs: &Ext4, who: u32, name: &str) -> sapwood_vfs::Result<Ino> {
    let made = fs.create(
        &user(who),
        fs.root(),
        name.as_bytes(),
        NewInode::Regular,
        0o644,
    )?;
    Ok(made.ino())
}

fn write(fs: &Ext4, ino: Ino, len: usize) -> sapwood_vfs::Result<()> {
    let at = fs.getattr(ino)?.size;
    fs.write(ino, at, &vec![7; len], WriteMode::default())?;
    Ok(())
}

fn entry(fs: &Ext4, kind: QuotaKind, id: u32) -> QuotaEntry {
    let table = fs.engine.quota.kinds().iter().find(|one| one.kind == kind);
    let entries = table.unwrap().entries.lock();
    entries
        .get(&id)
        .map(|entry| entry.values.clone())
        .unwrap_or_default()
}

/// Sets limits: (soft, hard) of space in KiB, and of inodes.
fn limit(
    device: &Arc<MemoryDevice>,
    kind: QuotaKind,
    id: u32,
    space: (u64, u64),
    inodes: (u64, u64),
) {
    let fs = mount(device.clone()).unwrap();
    let tables = fs.engine.quota.kinds();
    let table = tables.iter().find(|one| one.kind == kind).unwrap();
    let owners = crate::quota_table::Owners {
        uid: id,
        gid: id,
        project: id,
    };
    super::ensure(&fs.engine, &owners).unwrap();
    let (block, offset, values) = {
        let mut entries = table.entries.lock();
        let entry = entries.get_mut(&id).unwrap();
        entry.values.space_soft = space.0.into();
        entry.values.space_hard = space.1.into();
        entry.values.inode_soft = inodes.0.into();
        entry.values.inode_hard = inodes.1.into();
        (entry.block, entry.offset, entry.values.stored())
    };
    let h = fs.engine.start(4).unwrap();
    let buffer = fs.engine.block(block).unwrap();
    let mut content = h.modify(&buffer).unwrap();
    content[offset..offset + QuotaEntry::SIZE].copy_from_slice(values.bytes());
    drop(content);
    drop(h);
    fs.unmount().unwrap();
}

#[test]
fn usage_of_all_kinds_of_changes_is_what_e2fsck_counts() {
    for more in [
        "",
        "-b 1024",
        "-b 1024 -O ^extent,^64bit",
        "-O inline_data,^metadata_csum",
    ] {
        let Some(device) = made(more) else { return };
        let fs = mount(device.clone()).unwrap();
        let mut files = Vec::new();
        for number in 0..40_u32 {
            let ino = create(&fs, 1000 + number % 20, &format!("file{number}")).unwrap();
            write(&fs, ino, 700 * number as usize).unwrap();
            files.push(ino);
        }
        fs.sync().unwrap();
        let dir = fs.create(&user(2000), fs.root(), b"dir", NewInode::Directory, 0o755);
        let dir = dir.unwrap().ino();
        for number in 0..100 {
            let name = format!("a name that is long enough to need more blocks {number}");
            let what = NewInode::Symlink(b"target");
            fs.create(&user(3000), dir, name.as_bytes(), what, 0o777)
                .unwrap();
        }
        for (number, ino) in files.iter().enumerate() {
            let id = number as u32;
            match number % 6 {
                0 => {
                    let owner = SetAttr {
                        uid: Some(70_000 + id),
                        gid: Some(5),
                        ..SetAttr::default()
                    };
                    fs.setattr(*ino, &owner).unwrap();
                }
                1 => fs
                    .unlink(fs.root(), format!("file{number}").as_bytes())
                    .unwrap(),
                2 => {
                    let size = SetAttr {
                        size: Some(100),
                        ..SetAttr::default()
                    };
                    fs.setattr(*ino, &size).unwrap();
                }
                3 => {
                    let project = Fsxattr {
                        projid: 9 + id,
                        ..Fsxattr::default()
                    };
                    fs.set_fsxattr(*ino, &project).unwrap();
                }
                4 => {
                    let (from, to) = (format!("file{number}"), format!("file{}", number + 1));
                    fs.rename(
                        fs.root(),
                        from.as_bytes(),
                        fs.root(),
                        to.as_bytes(),
                        RenameMode::Replace,
                    )
                    .unwrap();
                }
                _ => {}
            }
        }
        assert!(entry(&fs, QuotaKind::User, 3000).inodes.get() == 100);
        fs.unmount().unwrap();
        clean(&device, more);
        // Loaded again, and everything deleted.
        let fs = mount(device.clone()).unwrap();
        assert!(entry(&fs, QuotaKind::User, 3000).inodes.get() == 100);
        for number in 0..100 {
            let name = format!("a name that is long enough to need more blocks {number}");
            fs.unlink(dir, name.as_bytes()).unwrap();
        }
        assert_eq!(entry(&fs, QuotaKind::User, 3000).inodes.get(), 0);
        fs.unmount().unwrap();
        clean(&device, more);
    }
}

/// Made by Sapwood: judged by `e2fsck`, and changed.
#[test]
fn a_new_file_system_has_the_usage_of_its_directories() {
    for (features, owner) in [
        (&["quota"][..], (0, 0)),
        (&["quota", "project"], (1000, 7)),
        (&["quota", "project", "orphan_file", "fast_commit"], (0, 5)),
    ] {
        let device = Arc::new(MemoryDevice::new(32 * MIB));
        let options = crate::mkfs::MkfsOptions {
            features: features
                .iter()
                .map(|name| ((*name).to_owned(), true))
                .collect(),
            root_owner: owner,
            ..crate::mkfs::MkfsOptions::default()
        };
        crate::mkfs::mkfs(&*device, &options).unwrap();
        if !left_out(TOOLS) {
            clean(&device, "made");
        }
        let fs = mount(device.clone()).unwrap();
        assert_eq!(fs.engine.quota.kinds().len(), features.len().min(2) + 1);
        let root = entry(&fs, QuotaKind::User, owner.0);
        assert_eq!(root.inodes.get(), 1 + u64::from(owner.0 == 0));
        let ino = create(&fs, 3000, "file").unwrap();
        write(&fs, ino, 9000).unwrap();
        fs.sync().unwrap();
        // A crash with the feature of fast commits counts everything again.
        let cut = Arc::new(device.snapshot());
        fs.unmount().unwrap();
        let fs = mount(cut.clone()).unwrap();
        assert_eq!(entry(&fs, QuotaKind::User, 3000).inodes.get(), 1);
        fs.unmount().unwrap();
        for device in [device, cut] {
            if !left_out(TOOLS) {
                clean(&device, "used");
            }
        }
    }
}

#[test]
fn hundreds_of_owners_fill_many_blocks() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    for round in 0..2 {
        let fs = mount(device.clone()).unwrap();
        for number in 0..150_u32 {
            let owner = (number * 7919 + round).wrapping_mul(2_654_435_761) / 2;
            create(&fs, owner, &format!("{round}-{number}")).unwrap();
        }
        fs.unmount().unwrap();
        clean(&device, "owners");
    }
}

#[test]
fn limits_are_enforced() {
    let Some(device) = made("") else { return };
    limit(&device, QuotaKind::User, 1000, (0, 100), (0, 3));
    let fs = mount(device.clone()).unwrap();
    let quota = sapwood_vfs::Error::Quota.errno();
    let one = create(&fs, 1000, "one").unwrap();
    write(&fs, one, 60 << 10).unwrap();
    // Dirty data counts, of each file.
    let two = create(&fs, 1000, "two").unwrap();
    assert_eq!(write(&fs, two, 60 << 10).unwrap_err().errno(), quota);
    write(&fs, two, 40 << 10).unwrap();
    assert_eq!(write(&fs, two, 1).unwrap_err().errno(), quota);
    fs.sync().unwrap();
    assert_eq!(write(&fs, one, 5000).unwrap_err().errno(), quota);
    let allocated = fs.fallocate(
        one,
        1 << 20,
        4096,
        sapwood_vfs::AllocMode::Allocate { keep_size: true },
    );
    assert_eq!(allocated.unwrap_err().errno(), quota);
    create(&fs, 1000, "three").unwrap();
    assert_eq!(create(&fs, 1000, "four").unwrap_err().errno(), quota);
    // Another owner has no limit, and space that is given back can be used.
    let other = create(&fs, 1001, "other").unwrap();
    write(&fs, other, 1 << 20).unwrap();
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(one, &empty).unwrap();
    write(&fs, two, 50 << 10).unwrap();
    fs.unmount().unwrap();
    clean(&device, "limits");
}

#[test]
fn limits_are_not_enforced_if_the_options_say_so() {
    let Some(device) = made("") else { return };
    limit(&device, QuotaKind::User, 1000, (0, 10), (0, 1));
    let options = Options {
        background: false,
        quota_limits: false,
        ..Options::default()
    };
    let fs = Ext4::open(device.clone(), options).unwrap();
    for name in ["one", "two"] {
        let ino = create(&fs, 1000, name).unwrap();
        write(&fs, ino, 20_000).unwrap();
    }
    fs.unmount().unwrap();
    clean(&device, "no limits");
}

#[test]
fn a_recount_corrects_usage() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    let fs = mount(device.clone()).unwrap();
    for number in 0..30 {
        let ino = create(&fs, 1000 + number, &format!("file{number}")).unwrap();
        write(&fs, ino, 5000).unwrap();
    }
    fs.sync().unwrap();
    let table = &fs.engine.quota.kinds()[0];
    {
        let mut entries = table.entries.lock();
        entries.remove(&1007);
        entries.get_mut(&1003).unwrap().values.inodes = 77.into();
        entries.get_mut(&1004).unwrap().values.space = 0.into();
    }
    assert_eq!(
        super::recount::count(&fs.engine).unwrap().len(),
        31 + 31 + 1
    );
    fs.unmount().unwrap();
    // The entries of the file, not of the memory.
    let fs = mount(device.clone()).unwrap();
    let (block, offset) = {
        let entries = fs.engine.quota.kinds()[0].entries.lock();
        let entry = &entries[&1005];
        (entry.block, entry.offset)
    };
    fs.unmount().unwrap();
    device
        .write_at(block * 1024 + offset as u64 + 24, &[9])
        .unwrap();
    let judged = sapwood_testing::oracle::ext4::check(&device);
    assert!(
        judged.is_err_and(|text| text.contains("QUOTA WARNING")),
        "a wrong usage is found"
    );
    let fs = mount(device.clone()).unwrap();
    assert_eq!(entry(&fs, QuotaKind::User, 1005).inodes.get(), 9);
    super::recount(&fs.engine).unwrap();
    assert_eq!(entry(&fs, QuotaKind::User, 1005).inodes.get(), 1);
    fs.unmount().unwrap();
    clean(&device, "recounted");
}

/// Moved files get fewer nodes of their extent trees.
#[test]
fn usage_after_a_resize_is_what_e2fsck_counts() {
    let tests = [
        ("", true),
        ("-O ^has_journal", true),
        ("-O ^extent,^64bit", false),
    ];
    for (more, nodes) in tests {
        let Some(device) = made(&format!("-b 1024 {more}")) else {
            return;
        };
        let fs = mount(device.clone()).unwrap();
        // Directories of the root are in different groups.
        for dir in 0..4 {
            let name = format!("d{dir}");
            let what = NewInode::Directory;
            let dir = fs.create(&user(0), fs.root(), name.as_bytes(), what, 0o755);
            let file = fs.create(
                &user(4000),
                dir.unwrap().ino(),
                b"f",
                NewInode::Regular,
                0o644,
            );
            let file = file.unwrap().ino();
            // In this order, nodes are split in the middle.
            for number in (0..300_u64).rev() {
                let at = number * 2048;
                fs.write(file, at, &[7; 1024], WriteMode::default())
                    .unwrap();
                if number % 20 == 0 {
                    fs.fsync(file, SyncKind::All).unwrap();
                }
            }
        }
        let before = entry(&fs, QuotaKind::User, 4000).space.get();
        fs.unmount().unwrap();
        drop(fs);
        clean(&device, more);
        let resized: Arc<dyn Device> = device.clone();
        for size in [12, 32, 9] {
            crate::resize::resize(&resized, size * MIB, None, &mut |_| ()).unwrap();
            clean(&device, &format!("{more}: {size} MiB"));
        }
        crate::resize::shrink_to_fit(&resized, 0, None, &mut |_| ()).unwrap();
        clean(&device, &format!("{more}: smallest"));
        let fs = mount(device.clone()).unwrap();
        let after = entry(&fs, QuotaKind::User, 4000).space.get();
        assert_eq!(after < before, nodes, "{more}: {before} to {after}");
        fs.unmount().unwrap();
    }
}

#[test]
fn options_ask_for_quotas_that_the_image_keeps() {
    if left_out(TOOLS) {
        return;
    }
    let all = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
    let users = &all[..1];
    for (args, wanted, lacks) in [
        (KINDS, &all[..], None),
        ("-O quota", &all[..2], None),
        ("-O quota", &all[..], Some("keeps no project quotas")),
        ("", users, Some("keeps no user quotas")),
    ] {
        for read_only in [false, true] {
            let options = Options {
                background: false,
                read_only,
                quotas: wanted.to_vec(),
                ..Options::default()
            };
            let opened = Ext4::open(image(16 * MIB, args), options).map(|_| ());
            let text = opened.err().map(|error| error.to_string());
            match (lacks, text) {
                (None, None) => {}
                (Some(lacks), Some(text)) => assert!(text.contains(lacks), "{text}"),
                (_, other) => panic!("{args}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_soft_limit_holds_after_its_grace_time() {
    let Some(device) = made("") else { return };
    limit(&device, QuotaKind::Group, 1001, (10, 0), (1, 0));
    let fs = mount(device.clone()).unwrap();
    let file = create(&fs, 1000, "file").unwrap();
    write(&fs, file, 20_000).unwrap();
    create(&fs, 1000, "second").unwrap();
    fs.sync().unwrap();
    let now = fs.engine.now().sec as u64;
    let values = entry(&fs, QuotaKind::Group, 1001);
    assert!(values.space_time.get() > now && values.inode_time.get() > now);
    for table in fs.engine.quota.kinds() {
        for entry in table.entries.lock().values_mut() {
            let times = [&mut entry.values.space_time, &mut entry.values.inode_time];
            for time in times.into_iter().filter(|time| time.get() > 0) {
                *time = (now - 1).into();
            }
        }
    }
    let quota = sapwood_vfs::Error::Quota.errno();
    assert_eq!(write(&fs, file, 20_000).unwrap_err().errno(), quota);
    assert_eq!(create(&fs, 1000, "third").unwrap_err().errno(), quota);
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(file, &empty).unwrap();
    assert_eq!(entry(&fs, QuotaKind::Group, 1001).space_time.get(), 0);
    write(&fs, file, 20_000).unwrap();
    fs.unmount().unwrap();
    clean(&device, "grace");
}

#[test]
fn after_a_power_cut_usage_is_what_e2fsck_counts() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    let base = device.snapshot();
    let recorder = Arc::new(RecordDevice::new(base.snapshot()));
    let fs = mount(recorder.clone()).unwrap();
    for number in 0..12_u32 {
        let ino = create(&fs, 1000 + number, &format!("file{number}")).unwrap();
        write(&fs, ino, 3000 * (number as usize + 1)).unwrap();
        fs.fsync(ino, SyncKind::All).unwrap();
        if number % 3 == 2 {
            let gone = format!("file{}", number - 1);
            fs.unlink(fs.root(), gone.as_bytes()).unwrap();
        }
        if number % 4 == 3 {
            fs.sync().unwrap();
        }
    }
    fs.unmount().unwrap();
    let log = recorder.log();
    let points = log.crash_points();
    for (number, at) in points.iter().enumerate().step_by(points.len().div_ceil(40)) {
        let plan = log.random_plan(*at, number as u64);
        let cut = Arc::new(log.image(&base, &plan));
        mount(cut.clone()).unwrap().unmount().unwrap();
        clean(&cut, &format!("cut {number}"));
    }
}

#[test]
fn damaged_quota_files_refuse_a_writer_only() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    let fs = mount(device.clone()).unwrap();
    let table = &fs.engine.quota.kinds()[0];
    let inode = fs.engine.inodes.get(&fs.engine, table.ino).unwrap();
    let first = crate::map::block_of(&fs.engine, &inode, 0).unwrap().block() * 1024;
    let root = crate::map::block_of(&fs.engine, &inode, 1).unwrap().block() * 1024;
    drop(inode);
    fs.unmount().unwrap();
    for (at, bytes, what) in [
        (first, vec![0; 4], "no header"),
        (first + 8 + 12, vec![0xff; 4], "more than it has"),
        (
            root + 400,
            vec![0xff, 0xff, 0, 0],
            "reference to block 65535",
        ),
        (root + 400, vec![1, 0, 0, 0], "reference to block 1"),
        (root + 400, vec![2, 0, 0, 0], "two references to block 2"),
    ] {
        let bad = Arc::new(device.snapshot());
        bad.write_at(at, &bytes).unwrap();
        let before = bad.snapshot();
        let error = mount(bad.clone()).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::BadInode { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(bad.first_difference(&before), None);
        let reading = Options {
            read_only: true,
            ..Options::default()
        };
        Ext4::open(bad, reading).unwrap();
    }
}

#[test]
fn a_damaged_quota_file_keeps_no_reader_from_an_unclean_image() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    let fs = mount(device.clone()).unwrap();
    let ino = fs.engine.quota.kinds()[0].ino;
    let inode = fs.engine.inodes.get(&fs.engine, ino).unwrap();
    let first = crate::map::block_of(&fs.engine, &inode, 0).unwrap().block() * 1024;
    drop(inode);
    crate::oracles::file(&fs, "file");
    fs.sync().unwrap();
    let cut = Arc::new(device.snapshot());
    fs.unmount().unwrap();
    cut.write_at(first, &[0; 4]).unwrap();
    let before = cut.snapshot();
    let reading = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Ext4::open(cut.clone(), reading).unwrap();
    fs.lookup(fs.root(), b"file").unwrap();
    fs.unmount().unwrap();
    assert_eq!(cut.first_difference(&before), None);
    assert!(mount(cut).is_err());
}

#[test]
fn a_recount_without_space_for_an_owner_counts_the_others() {
    let Some(device) = made("-b 1024 -m 0") else {
        return;
    };
    let fs = mount(device.clone()).unwrap();
    create(&fs, 1000, "one").unwrap();
    create(&fs, 1000, "two").unwrap();
    fs.unmount().unwrap();
    let device = sapwood_testing::oracle::ext4::debugfs_only(&device, "sif one uid 4242");
    let fs = mount(device).unwrap();
    let filler = crate::oracles::file(&fs, "filler");
    for len in [1 << 20, 1 << 14, 1 << 10] {
        while write(&fs, filler, len).is_ok() {}
    }
    fs.sync().unwrap();
    super::recount(&fs.engine).unwrap();
    assert_eq!(entry(&fs, QuotaKind::User, 1000).inodes.get(), 1);
    assert_eq!(entry(&fs, QuotaKind::User, 4242).inodes.get(), 0);
    fs.unmount().unwrap();
}

#[test]
fn a_repair_counts_usage_again() {
    let Some(device) = made("-b 1024") else {
        return;
    };
    let fs = mount(device.clone()).unwrap();
    for (who, name) in [(1000, "gone"), (1000, "kept")] {
        let ino = create(&fs, who, name).unwrap();
        write(&fs, ino, 5000).unwrap();
    }
    fs.unmount().unwrap();
    let device = sapwood_testing::oracle::ext4::debugfs_only(&device, "clri gone");
    let repairing: Arc<dyn Device> = device.clone();
    let options = crate::check::CheckOptions::default();
    let mut progress = |_| std::ops::ControlFlow::Continue(());
    let done = crate::check::repair::repair(&repairing, &options, &mut progress).unwrap();
    assert!(done.left.is_empty() && done.report.is_clean(), "{done:?}");
    clean(&device, "repaired");
    let fs = mount(device).unwrap();
    assert_eq!(entry(&fs, QuotaKind::User, 1000).inodes.get(), 1);
    fs.unmount().unwrap();
}
