//! Attributes in all three places, judged by `e2fsck` and the kernel.

use sapwood_vfs::acl::{self, Acl, AclEntry, Tag};
use sapwood_vfs::{self as vfs, Credentials, FileSystem, Ino, NewInode, SetXattrMode};

use crate::Ext4;
use crate::oracles::{MIB, TOOLS, clean, file, image, left_out, open as mount};

fn set(fs: &Ext4, ino: Ino, name: &str, value: &[u8]) -> vfs::Result<()> {
    fs.setxattr(ino, name.as_bytes(), value, SetXattrMode::Any)
}

/// The block of attributes that an inode has.
fn block(fs: &Ext4, ino: Ino) -> u64 {
    let inode = fs.inode(ino).unwrap();
    let state = inode.state.lock();
    state.raw.file_acl()
}

/// The number of inodes that a block of attributes records.
fn users(fs: &Ext4, block: u64) -> u32 {
    let content = fs.engine.block(block).unwrap().read();
    u32::from_le_bytes(content[4..8].try_into().unwrap())
}

#[test]
fn what_fits_nowhere_is_refused() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024");
    let fs = mount(&device);
    let ino = file(&fs, "a");
    set(&fs, ino, "user.small", b"kept").unwrap();
    let refused = set(&fs, ino, "user.large", &[7; 1000]);
    assert_eq!(refused, Err(vfs::Error::NoSpace));
    assert!(!fs.read_only());
    assert_eq!(fs.getxattr(ino, b"user.small").unwrap(), b"kept");
    assert_eq!(fs.listxattr(ino).unwrap(), [b"user.small".to_vec()]);
    fs.unmount().unwrap();
    clean(&device, "refused");
}

#[test]
fn a_shared_block_is_left_alone() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let (one, two) = (file(&fs, "one"), file(&fs, "two"));
    for ino in [one, two] {
        set(&fs, ino, "user.large", &[3; 2000]).unwrap();
    }
    let shared = block(&fs, one);
    assert_ne!(shared, 0);
    assert_eq!(block(&fs, two), shared);
    assert_eq!(users(&fs, shared), 2);
    set(&fs, two, "user.large", &[4; 2000]).unwrap();
    assert_eq!((block(&fs, one), users(&fs, shared)), (shared, 1));
    assert_ne!(block(&fs, two), shared);
    assert_eq!(fs.getxattr(one, b"user.large").unwrap(), [3; 2000]);
    assert_eq!(fs.getxattr(two, b"user.large").unwrap(), [4; 2000]);
    fs.removexattr(one, b"user.large").unwrap();
    assert_eq!(block(&fs, one), 0);
    fs.unmount().unwrap();
    clean(&device, "shared");
}

#[test]
fn values_move_between_places() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096 -O ea_inode");
    let free = |fs: &Ext4| {
        fs.sync().unwrap();
        let stat = fs.statfs().unwrap();
        (stat.blocks_free, stat.inodes_free)
    };
    let fs = mount(&device);
    let ino = file(&fs, "a");
    let before = free(&fs);
    let lens = [10, 3000, 50_000, 20, 65_000, 65_000, 3000];
    for (round, len) in lens.into_iter().enumerate() {
        let value = vec![round as u8; len];
        set(&fs, ino, "user.moves", &value).unwrap();
        assert_eq!(fs.getxattr(ino, b"user.moves").unwrap(), value, "{len}");
    }
    fs.unmount().unwrap();
    clean(&device, "moved");
    let fs = mount(&device);
    let ino = fs.lookup(fs.root(), b"a").unwrap().ino();
    assert_eq!(fs.getxattr(ino, b"user.moves").unwrap(), [6; 3000]);
    set(&fs, ino, "user.moves", &[9; 60_000]).unwrap();
    fs.removexattr(ino, b"user.moves").unwrap();
    assert_eq!(free(&fs), before);
    fs.unmount().unwrap();
    clean(&device, "removed");
}

#[test]
fn values_go_with_their_inode() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096 -O ea_inode");
    let fs = mount(&device);
    let kept = file(&fs, "kept");
    let before = {
        fs.sync().unwrap();
        fs.statfs().unwrap().inodes_free
    };
    let ino = file(&fs, "a");
    for number in 0..3 {
        set(&fs, ino, &format!("user.{number}"), &[number; 20_000]).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().inodes_free, before - 4);
    fs.unlink(fs.root(), b"a").unwrap();
    fs.forget(ino, 1);
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().inodes_free, before);
    fs.forget(kept, 1);
    fs.unmount().unwrap();
    clean(&device, "deleted");
}

#[test]
fn a_value_in_an_inode_of_its_own_goes_with_its_attribute() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096 -O ea_inode");
    let fs = mount(&device);
    let ino = file(&fs, "a");
    let free = fs.statfs().unwrap().inodes_free;
    set(&fs, ino, "user.large", &[3; 20_000]).unwrap();
    assert_eq!(fs.statfs().unwrap().inodes_free, free - 1);
    fs.removexattr(ino, b"user.large").unwrap();
    assert_eq!(fs.statfs().unwrap().inodes_free, free);
    fs.unmount().unwrap();
    clean(&device, "value");
}

/// A default list of the root that names `users`, for what is created there.
fn inherit(fs: &Ext4, users: u32) -> Vec<u8> {
    let entry = |tag| AclEntry { tag, perm: 7 };
    let named = (0..users).map(|user| entry(Tag::User(user)));
    let ends = [entry(Tag::GroupObj), entry(Tag::Mask), entry(Tag::Other)];
    let entries = [entry(Tag::UserObj)].into_iter().chain(named).chain(ends);
    let list = Acl::new(entries.collect()).unwrap().to_bytes();
    fs.setxattr(fs.root(), acl::DEFAULT, &list, SetXattrMode::Any)
        .unwrap();
    list
}

fn dir(fs: &Ext4, name: &str) -> vfs::Result<Ino> {
    let (who, what) = (Credentials::ROOT, NewInode::Directory);
    let made = fs.create(&who, fs.root(), name.as_bytes(), what, 0o777);
    made.map(|made| made.ino())
}

#[test]
fn a_new_inode_gets_all_its_lists_at_once() {
    if left_out(TOOLS) {
        return;
    }
    // Lists in the inode; one there and one in a block; both in one block, which inodes share.
    let users = [1, 8, 50];
    for (users, features) in users
        .into_iter()
        .flat_map(|n| [(n, "^inline_data"), (n, "inline_data")])
    {
        let device = image(16 * MIB, &format!("-b 4096 -O ea_inode,{features}"));
        let fs = mount(&device);
        let list = inherit(&fs, users);
        let (one, two) = (dir(&fs, "one").unwrap(), dir(&fs, "two").unwrap());
        for ino in [one, two] {
            for name in [acl::ACCESS, acl::DEFAULT] {
                assert_eq!(fs.getxattr(ino, name).unwrap(), list);
            }
        }
        let shared = block(&fs, one);
        assert_eq!(block(&fs, two), shared);
        // An inline directory has an attribute for its names, which takes room in the inode.
        let fits = users == 1 && features == "^inline_data";
        assert_eq!(shared == 0, fits, "{users} {features}");
        if shared != 0 {
            assert_eq!(self::users(&fs, shared), 2);
        }
        fs.unmount().unwrap();
        clean(&device, "lists");
    }
}

#[test]
fn inherited_lists_that_do_not_fit_are_refused() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024");
    let fs = mount(&device);
    let list = inherit(&fs, 80);
    assert_eq!(dir(&fs, "dir"), Err(vfs::Error::NoSpace));
    assert!(!fs.read_only());
    let ino = file(&fs, "file");
    assert!(fs.getxattr(ino, acl::ACCESS).unwrap().len() == list.len());
    fs.unmount().unwrap();
    clean(&device, "refused");
    // Values in inodes of their own take both.
    let device = image(16 * MIB, "-b 1024 -O ea_inode");
    let fs = mount(&device);
    for users in [80, 300] {
        let list = inherit(&fs, users);
        let ino = dir(&fs, &users.to_string()).unwrap();
        for name in [acl::ACCESS, acl::DEFAULT] {
            assert_eq!(fs.getxattr(ino, name).unwrap(), list);
        }
    }
    fs.unmount().unwrap();
    clean(&device, "values");
}
