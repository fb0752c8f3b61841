//! Refused images, and images that stay readable.

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::FileSystem;

use crate::oracles::{MIB, TOOLS, clean, debugfs_only, image, left_out};
use crate::{Error, Ext4, Options};

/// Offset of the Hurd's upper mode bits in an inode (Linux: upper bits of the attribute block's
/// number).
const MODE_HIGH: u64 = 0x76;

fn hurd() -> std::sync::Arc<MemoryDevice> {
    let made = image(16 * MIB, "-t ext2 -o hurd -b 1024 -I 128");
    let made = debugfs_only(&made, "mkdir dir\nwrite /dev/null file");
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Ext4::open(made.clone(), options).unwrap();
    let root = fs.engine.groups.inode_table(0).unwrap() * 1024 + 128;
    made.write_at(root + MODE_HIGH, &[1, 0]).unwrap();
    made
}

/// Linux's fields would overwrite the Hurd's.
#[test]
fn an_image_of_the_hurd_is_only_read() {
    if left_out(TOOLS) {
        return;
    }
    let device = hurd();
    let before = device.snapshot();
    let error = Ext4::open(device.clone(), Options::default())
        .err()
        .unwrap();
    assert!(matches!(error, Error::ReadOnlyFeature(_)), "{error}");
    assert!(error.to_string().contains("Hurd"), "{error}");
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Ext4::open(device.clone(), options).unwrap();
    let root = fs.root();
    assert!(fs.listxattr(root).unwrap().is_empty());
    fs.lookup(root, b"dir").unwrap();
    fs.lookup(root, b"file").unwrap();
    fs.unmount().unwrap();
    assert_eq!(device.first_difference(&before), None);
    clean(&device, "hurd");
}
