//! All types of inodes; modes and owners.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::Fill;

pub(super) fn kinds(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("kinds")?;
    fs::write(dir.join("file"), b"content\n")?;
    fs::write(dir.join("empty"), b"")?;
    fs::create_dir(dir.join("directory"))?;
    let longest = fill.limits.symlink;
    let lengths = [1, 7, 59, 60, 61, 255, 1023, 2047, 2048, 3500];
    let shorter = lengths.into_iter().filter(|len| *len < longest);
    for len in shorter.chain([longest]) {
        let target: String = "target/".chars().cycle().take(len).collect();
        let target = target.trim_end_matches('/');
        symlink(target, dir.join(format!("link-{len}")))?;
    }
    symlink("file", dir.join("link-that-leads"))?;
    let mode = Mode::from_raw_mode(0o640);
    let node = |name: &str, kind, device| mknodat(CWD, dir.join(name), kind, mode, device);
    node("null", FileType::CharacterDevice, makedev(1, 3))?;
    node("disk", FileType::BlockDevice, makedev(259, 700_000))?;
    node("odd", FileType::CharacterDevice, makedev(4095, 1_048_575))?;
    node("pipe", FileType::Fifo, 0)?;
    node("socket", FileType::Socket, 0)?;
    // Binding a socket needs a short path.
    let short = tempfile::Builder::new().prefix("s").tempdir()?;
    let place = short.path().join("d");
    symlink(&dir, &place)?;
    drop(UnixListener::bind(place.join("bound"))?);
    lchown(dir.join("link-7"), Some(1234), Some(5678))?;
    lchown(dir.join("pipe"), Some(77), None)?;
    Ok(())
}

pub(super) fn modes(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("modes")?;
    for (at, mode) in [0o4755, 0o2755, 0o6711, 0o1777, 0o000, 0o777, 0o444]
        .into_iter()
        .enumerate()
    {
        let file = dir.join(format!("file-{mode:04o}"));
        fs::write(&file, format!("{at}"))?;
        chown(
            &file,
            Some(1000 + u32::try_from(at).unwrap()),
            Some(4_000_000_000),
        )?;
        fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        let below = dir.join(format!("dir-{mode:04o}"));
        fs::create_dir(&below)?;
        fs::set_permissions(&below, fs::Permissions::from_mode(mode))?;
        fs::write(below.join("inside"), b"x")?;
    }
    // A directory with the set-group-id bit passes its group on, and to directories also the bit.
    let handing = dir.join("handing");
    fs::create_dir(&handing)?;
    chown(&handing, None, Some(4321))?;
    fs::set_permissions(&handing, fs::Permissions::from_mode(0o2775))?;
    fs::write(handing.join("file"), b"y")?;
    fs::create_dir(handing.join("dir"))?;
    fs::write(handing.join("dir").join("file"), b"z")
}
