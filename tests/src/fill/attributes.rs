//! Extended attributes and POSIX ACLs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};

use super::Fill;
use super::names::colliding;

fn set(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(lsetxattr(path, name, value, XattrFlags::empty())?)
}

pub(super) fn attributes(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("xattrs")?;
    let largest = fill.limits.value;
    let file = dir.join("file");
    fs::write(&file, b"has attributes")?;
    set(&file, b"user.small", b"value")?;
    set(&file, b"user.empty", b"")?;
    set(&file, b"user.binary", &(0..=255).collect::<Vec<u8>>())?;
    set(&file, b"user.\xff\xfe odd\n", b"odd name")?;
    let mut long = b"user.".to_vec();
    long.resize(255, b'n');
    set(&file, &long, b"long name")?;
    set(&file, b"trusted.secret", b"of root")?;
    set(&file, b"security.mark", b"made here")?;
    let large = dir.join("large");
    fs::write(&large, b"")?;
    set(&large, b"user.large", &fill.random.bytes(largest))?;
    set(&large, b"user.half", &fill.random.bytes(largest / 2))?;
    let many = dir.join("many");
    fs::write(&many, b"")?;
    let count = fill.limits.attributes;
    for at in 0..count {
        set(
            &many,
            format!("user.number-{at}").as_bytes(),
            &fill.random.bytes(at * 2),
        )?;
    }
    for at in (0..count).step_by(4) {
        rustix::fs::lremovexattr(&many, format!("user.number-{at}"))?;
        set(
            &many,
            format!("user.number-{}", at + 1).as_bytes(),
            b"replaced",
        )?;
    }
    for (left, right) in colliding(&mut fill.random) {
        set(&many, format!("user.{left}").as_bytes(), right.as_bytes())?;
        set(&many, format!("user.{right}").as_bytes(), left.as_bytes())?;
    }
    others(&dir)?;
    acls(fill)
}

/// Inodes that are no files have attributes too.
fn others(dir: &Path) -> io::Result<()> {
    let below = dir.join("directory");
    fs::create_dir(&below)?;
    set(&below, b"user.of-a-directory", b"d")?;
    let link = dir.join("link");
    symlink("file", &link)?;
    set(&link, b"trusted.of-a-link", b"l")?;
    let node = dir.join("node");
    mknodat(CWD, &node, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    set(&node, b"trusted.of-a-pipe", b"p")
}

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// An ACL as the attribute holds it: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn acls(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("acls")?;
    let access = b"system.posix_acl_access";
    let file = dir.join("file");
    fs::write(&file, b"named users")?;
    let named = [
        (USER_OBJ, 6, NOBODY),
        (USER, 7, 1000),
        (USER, 4, 1001),
        (GROUP_OBJ, 4, NOBODY),
        (GROUP, 6, 2000),
        (MASK, 6, NOBODY),
        (OTHER, 0, NOBODY),
    ];
    set(&file, access, &acl(&named))?;
    let plain = dir.join("plain");
    fs::write(&plain, b"an ACL that a mode can express")?;
    set(
        &plain,
        access,
        &acl(&[
            (USER_OBJ, 6, NOBODY),
            (GROUP_OBJ, 6, NOBODY),
            (OTHER, 4, NOBODY),
        ]),
    )?;
    let heirs = dir.join("heirs");
    fs::create_dir(&heirs)?;
    let default = [
        (USER_OBJ, 7, NOBODY),
        (USER, 5, 1234),
        (GROUP_OBJ, 5, NOBODY),
        (MASK, 7, NOBODY),
        (OTHER, 1, NOBODY),
    ];
    set(&heirs, b"system.posix_acl_default", &acl(&default))?;
    fs::write(heirs.join("file"), b"inherits")?;
    fs::create_dir(heirs.join("dir"))?;
    fs::write(heirs.join("dir/file"), b"inherits too")?;
    symlink("file", heirs.join("link"))?;
    // chmod changes the mask, not the group's entry.
    use std::os::unix::fs::PermissionsExt;
    let changed = heirs.join("changed");
    fs::write(&changed, b"")?;
    fs::set_permissions(&changed, fs::Permissions::from_mode(0o640))
}
