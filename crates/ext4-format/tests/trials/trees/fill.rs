//! The files that the kernel puts into an image, and their state as it reports them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, setxattr};

/// A file as the kernel shows it.
pub(crate) struct Seen {
    pub(crate) path: Vec<u8>,
    pub(crate) inode: u32,
    pub(crate) names: Option<BTreeMap<Vec<u8>, u32>>,
    pub(crate) content: Option<Vec<u8>>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Name `number` of a set with all lengths up to 255 and bytes of 128 and above.
pub(crate) fn name(number: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    let len = (number * 37) % 250 + 5;
    while name.len() < len {
        let byte = (number * 31 + name.len() * 7) as u8;
        name.push(if byte == b'/' || byte == 0 {
            b'_'
        } else {
            byte
        });
    }
    name
}

/// Directories of several sizes, fragmented and sparse files, xattrs of several sizes.
pub(crate) fn fill(root: &Path, block_size: usize, names: usize) {
    let target = root.join("target");
    std::fs::write(&target, b"short").unwrap();
    for (dir, count) in [("few", 5), ("some", 60), ("many", names)] {
        let dir = root.join(dir);
        std::fs::create_dir(&dir).unwrap();
        for number in 0..count {
            let path = dir.join(std::ffi::OsStr::from_bytes(&name(number)));
            std::fs::hard_link(&target, &path).unwrap();
        }
        for number in (0..count).step_by(3) {
            std::fs::remove_file(dir.join(std::ffi::OsStr::from_bytes(&name(number)))).unwrap();
        }
    }
    std::fs::create_dir(root.join("few/sub")).unwrap();
    std::fs::write(root.join("few/inline"), "a".repeat(100)).unwrap();
    let fragmented = File::create(root.join("fragmented")).unwrap();
    for block in 0..1500_u64 {
        fragmented
            .write_all_at(&block.to_le_bytes(), block * 2 * block_size as u64)
            .unwrap();
        if block % 50 == 0 {
            fragmented.sync_data().unwrap();
        }
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    for block in [0, 13, 300, 5000, 70_000] {
        sparse.write_all_at(b"here", block * 1024 + 100).unwrap();
    }
    set_xattrs(root);
}

fn set_xattrs(root: &Path) {
    let acl: Vec<u8> = [
        &2_u32.to_le_bytes()[..],
        &entry(0x01, 6, u32::MAX),
        &entry(0x02, 7, 1000),
        &entry(0x04, 4, u32::MAX),
        &entry(0x10, 7, u32::MAX),
        &entry(0x20, 0, u32::MAX),
    ]
    .concat();
    for (name, sizes) in [
        ("x0", &[0, 1, 30][..]),
        ("x1", &[3, 100, 201]),
        ("x2", &[40, 5, 7, 300, 64, 90]),
    ] {
        let path = root.join(name);
        std::fs::write(&path, name).unwrap();
        for (number, &size) in sizes.iter().enumerate() {
            let value: Vec<u8> = (0..size).map(|byte| byte as u8 ^ number as u8).collect();
            setxattr(
                &path,
                format!("user.name-{number}-é"),
                &value,
                XattrFlags::empty(),
            )
            .unwrap();
            setxattr(
                &path,
                format!("trusted.t{number}"),
                &value[..size / 3],
                XattrFlags::empty(),
            )
            .unwrap();
        }
        setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
    }
}

fn entry(tag: u16, perm: u16, id: u32) -> [u8; 8] {
    let [t0, t1] = tag.to_le_bytes();
    let [p0, p1] = perm.to_le_bytes();
    let [i0, i1, i2, i3] = id.to_le_bytes();
    [t0, t1, p0, p1, i0, i1, i2, i3]
}

/// All below a directory, as the kernel shows it.
pub(crate) fn look(path: &Path, all: &mut Vec<Seen>) {
    let meta = path.symlink_metadata().unwrap();
    let mut seen = Seen {
        path: path.as_os_str().as_bytes().to_vec(),
        inode: meta.ino() as u32,
        names: None,
        content: None,
        xattrs: xattrs(path),
    };
    if meta.is_file() {
        seen.content = Some(std::fs::read(path).unwrap());
    }
    if meta.is_dir() {
        let entries: Vec<_> = std::fs::read_dir(path)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let names = entries
            .iter()
            .map(|entry| (entry.file_name().into_vec(), entry.ino() as u32));
        seen.names = Some(names.collect());
        for entry in entries {
            // The many links to one file are not looked at one by one.
            let many = entry.metadata().unwrap().nlink() > 2 && !entry.path().is_dir();
            if !many {
                look(&entry.path(), all);
            }
        }
    }
    all.push(seen);
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 65536];
    let len = llistxattr(path, &mut list[..]).unwrap();
    let names = list[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let get = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let len = lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        (name.to_vec(), value)
    };
    names.map(get).collect()
}
