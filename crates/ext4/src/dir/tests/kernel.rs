//! Directories that others made.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use super::*;

/// Names with bytes of both signs.
fn names(count: usize) -> BTreeSet<Vec<u8>> {
    let name = |number: usize| {
        let mut name = numbered(number, 5 + number * 31 % 200);
        name.push(0x80 | (number % 0x7f) as u8);
        name
    };
    (0..count).map(name).collect()
}

fn at(dir: &Path, name: &[u8]) -> std::path::PathBuf {
    dir.join(std::ffi::OsStr::from_bytes(name))
}

fn read_all(fs: &Ext4, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut seen = BTreeSet::new();
    fs.readdir(dir, 0, &mut |entry| {
        assert!(seen.insert(entry.name));
        ControlFlow::Continue(())
    })
    .unwrap();
    seen
}

/// Sapwood reads and changes the kernel's directory, and the kernel reads the result.
fn to_and_fro(args: &str, count: usize) {
    let all = names(count);
    let device = oracles::kernel_writes(&image(64 * MIB, args), |at_root| {
        let dir = at_root.join("d");
        std::fs::create_dir(&dir).unwrap();
        for name in &all {
            std::fs::write(at(&dir, name), b"").unwrap();
        }
    });
    let fs = open(&device, options());
    let dir = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
    assert_eq!(read_all(&fs, dir), all, "{args}");
    let mut left = BTreeSet::new();
    for (number, name) in all.iter().enumerate() {
        let attr = fs.lookup(dir, name).unwrap().attr;
        assert_eq!(attr.kind, FileKind::Regular);
        fs.forget(attr.ino, 1);
        if number % 3 == 0 {
            fs.unlink(dir, name).unwrap();
        } else {
            left.insert(name.clone());
        }
    }
    for name in names(2 * count).difference(&all) {
        let made = fs.create(&Credentials::ROOT, dir, name, NewInode::Fifo, 0o600);
        made.unwrap();
        left.insert(name.clone());
    }
    fs.close().unwrap();
    clean(&device, args);
    oracles::kernel(&device, |at_root| {
        let dir = at_root.join("d");
        for name in &left {
            std::fs::symlink_metadata(at(&dir, name)).unwrap();
        }
        let listed = std::fs::read_dir(&dir).unwrap();
        let listed: BTreeSet<_> = listed
            .map(|entry| entry.unwrap().file_name().into_vec())
            .collect();
        assert_eq!(listed, left, "{args}");
    });
}

#[test]
fn the_kernels_directories_are_read_and_changed_and_ours_by_it() {
    if left_out(KERNEL) {
        return;
    }
    to_and_fro("-b 1024 -N 8000", 2000);
    to_and_fro("-b 4096 -O ^metadata_csum", 1000);
    to_and_fro("-b 2048 -O ^dir_index,^filetype", 300);
    to_and_fro("-b 1024 -O inline_data -I 512", 3);
    to_and_fro("-b 4096 -O inline_data", 40);
}

#[test]
fn names_that_fold_to_the_same_are_found() {
    if left_out(TOOLS) {
        return;
    }
    for count in [3, 400] {
        let device = image(32 * MIB, "-b 1024 -O casefold -E encoding=utf8");
        let name = |number: usize| format!("Straße-{number:04}-Ω");
        let mut commands = "mkdir d\nsif d flags 0x40080000\ncd d\n".to_owned();
        for number in 0..count {
            commands += &format!("write /dev/null {}\n", name(number));
        }
        let device = oracles::debugfs(&device, &commands);
        let options = Options {
            read_only: true,
            ..options()
        };
        let fs = open(&device, options);
        let number = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        let dir = inode(&fs, number);
        let form = Dir::open(&fs.engine, &dir).unwrap().form;
        assert_eq!(form == Form::Indexed, count > 100);
        assert_eq!(read_all(&fs, number).len(), count);
        for number in 0..count {
            let found = |name: &str| {
                let found = find(&fs.engine, &dir, name.as_bytes()).unwrap();
                found.map(|found| found.ino)
            };
            let exact = found(&name(number));
            assert!(exact.is_some());
            assert_eq!(found(&format!("STRASSE-{number:04}-ω")), exact);
            assert_eq!(found(&format!("strase-{number:04}-ω")), None);
        }
    }
}
