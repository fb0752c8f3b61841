//! Features that operations set, compared with the kernel's.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{XattrFlags, setxattr};
use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{
    Compat, Features, LINK_MAX, RoCompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock,
};
use sapwood_vfs::{
    self as vfs, Credentials, FileSystem, Ino, NewInode, SetAttr, SetXattrMode, WriteMode, acl,
};

use crate::Ext4;
use crate::oracles::{
    KERNEL, MIB, TOOLS, clean, debugfs_only, image, kernel_writes, left_out, open as mount,
};

/// A change of `/dir`, which exists, and of files below it.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// An attribute that fits into the inode, or does not.
    Xattr(usize),
    /// A default ACL, then a file that inherits it.
    Acl,
    /// A new file with a byte at this offset.
    WriteAt(u64),
    /// A new file cut to this size.
    Truncate(u64),
    /// Files in one directory.
    Names(u32),
    /// A subdirectory.
    Mkdir,
}

const SMALL: Step = Step::Xattr(10);
const BLOCK: Step = Step::Xattr(500);
const GIB2: u64 = 1 << 31;

/// Options of `mke2fs`, a step, and the features that it adds.
const TABLE: &[(&str, Step, Features)] = &[
    ("-O ^ext_attr", SMALL, ext_attr()),
    ("-O ^ext_attr", BLOCK, ext_attr()),
    ("-O ^ext_attr", Step::Acl, ext_attr()),
    ("-O ^ext_attr", Step::WriteAt(0), none()),
    ("-O ^ext_attr,inline_data", Step::WriteAt(0), none()),
    ("-O ^ext_attr,fast_commit", BLOCK, ext_attr()),
    ("-t ext2 -O ^ext_attr", BLOCK, ext_attr()),
    ("-t ext2 -r 0 -O none", BLOCK, ext_attr()),
    ("-t ext2 -r 0 -O none", Step::Truncate(GIB2), large_file()),
    ("-t ext2 -r 0 -O none", Step::Names(300), none()),
    ("-O ^large_file", Step::WriteAt(GIB2 - 1), large_file()),
    ("-O ^large_file", Step::WriteAt(GIB2 - 2), none()),
    ("-O ^large_file", Step::Truncate(GIB2), large_file()),
    ("-O ^large_file", Step::Truncate(GIB2 - 1), none()),
    (
        "-O ^large_file,^has_journal",
        Step::Truncate(GIB2),
        large_file(),
    ),
    (
        "-O ^large_file,fast_commit",
        Step::Truncate(GIB2),
        large_file(),
    ),
    ("-O ^dir_index", Step::Names(300), none()),
    ("-O ^dir_nlink", Step::Mkdir, none()),
    ("-O ^extra_isize", SMALL, none()),
    ("-O ^huge_file", Step::Truncate(1 << 40), none()),
    ("-O ^extent,^64bit", Step::WriteAt(1 << 30), none()),
    ("-O ^filetype", Step::Mkdir, none()),
    ("-O ^resize_inode,^sparse_super", Step::Mkdir, none()),
];

const fn none() -> Features {
    Features {
        compat: Compat::empty(),
        incompat: sapwood_ext4_format::Incompat::empty(),
        ro_compat: RoCompat::empty(),
    }
}

const fn ext_attr() -> Features {
    Features {
        compat: Compat::EXT_ATTR,
        ..none()
    }
}

const fn large_file() -> Features {
    Features {
        ro_compat: RoCompat::LARGE_FILE,
        ..none()
    }
}

/// An ACL with a named user.
fn list() -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let any = u32::MAX;
    let entries = [
        entry(1, 7, any),
        entry(2, 5, 77),
        entry(4, 5, any),
        entry(0x10, 5, any),
        entry(0x20, 0, any),
    ];
    [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
}

fn by_kernel(at: &Path, step: Step) {
    let dir = at.join("dir");
    match step {
        Step::Xattr(len) => {
            setxattr(&dir, "user.a", &vec![1; len], XattrFlags::empty()).unwrap();
        }
        Step::Acl => {
            let name = "system.posix_acl_default";
            setxattr(&dir, name, &list(), XattrFlags::empty()).unwrap();
            std::fs::write(dir.join("file"), "").unwrap();
        }
        Step::WriteAt(offset) => {
            let file = std::fs::File::create(dir.join("file")).unwrap();
            file.write_all_at(b"x", offset).unwrap();
        }
        Step::Truncate(size) => {
            let file = std::fs::File::create(dir.join("file")).unwrap();
            file.set_len(size).unwrap();
        }
        Step::Names(count) => {
            for number in 0..count {
                std::fs::write(dir.join(format!("name-{number}")), "").unwrap();
            }
        }
        Step::Mkdir => std::fs::create_dir(dir.join("below")).unwrap(),
    }
}

fn by_us(fs: &Ext4, step: Step) {
    let dir = fs.lookup(fs.root(), b"dir").unwrap().ino();
    let make = |name: &str, what: NewInode<'_>| -> Ino {
        let made = fs.create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755);
        made.unwrap().ino()
    };
    let set = |name: &[u8], value: &[u8]| fs.setxattr(dir, name, value, SetXattrMode::Any);
    match step {
        Step::Xattr(len) => set(b"user.a", &vec![1; len]).unwrap(),
        Step::Acl => {
            set(acl::DEFAULT, &list()).unwrap();
            make("file", NewInode::Regular);
        }
        Step::WriteAt(offset) => {
            let file = make("file", NewInode::Regular);
            fs.write(file, offset, b"x", WriteMode::default()).unwrap();
        }
        Step::Truncate(size) => {
            let change = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(make("file", NewInode::Regular), &change)
                .unwrap();
        }
        Step::Names(count) => {
            for number in 0..count {
                make(&format!("name-{number}"), NewInode::Regular);
            }
        }
        Step::Mkdir => {
            make("below", NewInode::Directory);
        }
    }
}

/// Features, and fields that a change of the revision sets.
fn summary(device: &MemoryDevice) -> (Features, u32, u32, u16) {
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    let sb = SuperBlock::parse(&bytes).unwrap();
    let rest = (sb.rev_level.get(), sb.first_ino.get(), sb.inode_size.get());
    (sb.features(), rest.0, rest.1, rest.2)
}

#[test]
fn an_operation_sets_the_features_that_the_kernel_sets() {
    if left_out(TOOLS) {
        return;
    }
    let kernel = !left_out(KERNEL);
    for (args, step, added) in TABLE {
        let what = format!("{args}: {step:?}");
        let fresh = debugfs_only(&image(16 * MIB, &format!("-b 1024 {args}")), "mkdir dir");
        let before = summary(&fresh).0;
        let ours = std::sync::Arc::new(fresh.snapshot());
        let fs = mount(&ours);
        by_us(&fs, *step);
        fs.unmount().unwrap();
        clean(&ours, &what);
        let after = summary(&ours);
        let expected = Features {
            compat: before.compat | added.compat,
            ro_compat: before.ro_compat | added.ro_compat,
            ..before
        };
        assert_eq!(after.0, expected, "{what}");
        if kernel {
            let theirs = kernel_writes(&fresh, |at| by_kernel(at, *step));
            assert_eq!(after, summary(&theirs), "{what}");
            clean(&theirs, &what);
        }
    }
}

/// Links of `/dir` after one more subdirectory, or the refusal.
#[test]
fn links_of_a_directory_overflow_as_with_the_kernel() {
    if left_out(TOOLS) {
        return;
    }
    let kernel = !left_out(KERNEL);
    // Options, links before, whether the directory has a hash tree, links after.
    let (most, refused) = (u32::from(LINK_MAX), None);
    let cases = [
        ("-O dir_nlink", most - 1, true, Some(most)),
        ("-O dir_nlink", most, true, Some(1)),
        ("-O dir_nlink", 1, true, Some(1)),
        ("-O dir_nlink", most, false, refused),
        ("-O ^dir_nlink", most - 1, true, Some(most)),
        ("-O ^dir_nlink", most, true, refused),
    ];
    for (args, links, tree, expected) in cases {
        let what = format!("{args}: {links} {tree}");
        let made = image(16 * MIB, &format!("-b 1024 -O ^metadata_csum {args}"));
        let made = debugfs_only(&made, "mkdir dir");
        let fs = mount(&made);
        by_us(&fs, Step::Names(if tree { 300 } else { 1 }));
        fs.unmount().unwrap();
        let made = debugfs_only(&made, &format!("sif /dir links_count {links}"));
        let ours = std::sync::Arc::new(made.snapshot());
        let fs = mount(&ours);
        let dir = fs.lookup(fs.root(), b"dir").unwrap().ino();
        let (who, kind) = (Credentials::ROOT, NewInode::Directory);
        let result = fs.create(&who, dir, b"below", kind, 0o755);
        match expected {
            Some(_) => drop(result.unwrap()),
            None => assert_eq!(result.err(), Some(vfs::Error::TooManyLinks), "{what}"),
        }
        let found = fs.getattr(dir).unwrap().nlink;
        assert_eq!(found, expected.unwrap_or(links), "{what}");
        if kernel {
            kernel_writes(&made, |at| {
                use std::os::unix::fs::MetadataExt as _;
                let made = std::fs::create_dir(at.join("dir/below"));
                assert_eq!(made.is_ok(), expected.is_some(), "{what}: {made:?}");
                let links = std::fs::metadata(at.join("dir")).unwrap().nlink();
                assert_eq!(links, u64::from(found), "{what}");
            });
        }
    }
}
