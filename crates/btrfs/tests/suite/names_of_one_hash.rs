//! Names with one hash share one item, which must fit into a leaf. A name beyond that is refused,
//! and nothing else fails: a user who may add names must not be able to make a mount read-only.

use crate::image;
use sapwood_btrfs::Btrfs;
use sapwood_btrfs_format::name_hash;
use sapwood_vfs::{Credentials, Error, FileSystem, NewInode, RenameMode, Subvolumes};

const NAME_LEN: usize = 250;
const HASH: u32 = 0x5a90_0d00;

/// `prefix` with four bytes after it, so that its hash is [`HASH`]. A CRC is linear in the bits
/// of these bytes: 32 equations.
fn with_hash(prefix: &[u8]) -> Vec<u8> {
    let hash = |tail: u32| {
        let name = [prefix, &tail.to_le_bytes()].concat();
        name_hash(&name)
    };
    let none = hash(0);
    let mut basis: Vec<(u32, u32)> = Vec::new();
    let reduce = |basis: &[(u32, u32)], mut value: u32, mut bits: u32| {
        for (of_basis, its_bits) in basis {
            if value ^ of_basis < value {
                value ^= of_basis;
                bits ^= its_bits;
            }
        }
        (value, bits)
    };
    for bit in (0..32).map(|nth| 1 << nth) {
        let reduced = reduce(&basis, hash(bit) ^ none, bit);
        if reduced.0 != 0 {
            basis.push(reduced);
            basis.sort_by_key(|(value, _)| std::cmp::Reverse(*value));
        }
    }
    let (left, tail) = reduce(&basis, HASH ^ none, 0);
    assert_eq!(left, 0);
    [prefix, &tail.to_le_bytes()].concat()
}

/// Names with the hash [`HASH`].
fn names() -> impl Iterator<Item = Vec<u8>> {
    (0..)
        .map(|nth| format!("{nth:0width$}", width = NAME_LEN - 4))
        .map(|prefix| with_hash(prefix.as_bytes()))
        .filter(|name| !name.contains(&0) && !name.contains(&b'/'))
}

fn create(fs: &Btrfs, name: &[u8]) -> Result<(), Error> {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name, NewInode::Regular, 0o644)?;
    fs.forget(made.ino(), 1);
    Ok(())
}

#[test]
fn one_too_many_is_refused_and_the_mount_goes_on() {
    let device = image::formatted(256 << 20);
    image::with_mounted(&device, |fs| {
        let mut names = names();
        let mut there = Vec::new();
        let last = loop {
            let name = names.next().unwrap();
            match create(fs, &name) {
                Ok(()) => there.push(name),
                Err(error) => {
                    assert_eq!(error, Error::Overflow);
                    break name;
                }
            }
        };
        assert!(there.len() > 40, "{}", there.len());
        let root = fs.root();
        create(fs, b"other").unwrap();
        let other = fs.lookup(root, b"other").unwrap().ino();
        let to_last = |mode| fs.rename(root, b"other", root, &last, mode);
        for refused in [
            create(fs, &last),
            fs.link(other, root, &last).map(drop),
            to_last(RenameMode::Replace),
            to_last(RenameMode::NoReplace),
            fs.create_subvolume(root, &last).map(drop),
            fs.snapshot(root, root, &last, false).map(drop),
        ] {
            assert_eq!(refused, Err(Error::Overflow));
        }
        // Existing names can be replaced and exchanged, and free their room when they are removed.
        fs.rename(root, b"other", root, &there[0], RenameMode::Exchange)
            .unwrap();
        fs.rename(root, b"other", root, &there[1], RenameMode::Replace)
            .unwrap();
        fs.unlink(root, &there[2]).unwrap();
        create(fs, &last).unwrap();
        fs.forget(other, 1);
        fs.sync().unwrap();
        for name in there[3..].iter().chain([&last, &there[0], &there[1]]) {
            let found = fs.lookup(root, name).unwrap();
            fs.forget(found.ino(), 1);
        }
    });
}
