//! Names: long, odd, colliding, many; hard links; renames and removals.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat_with};

use rustix::io::Errno;

use super::Fill;
use crate::random::Random;

/// Pairs of names of 10 bytes whose directory items collide: their CRC-32C is the same.
/// (For names of one length the collision does not depend on the CRC's start value.)
#[must_use]
pub(super) fn colliding(random: &mut Random) -> Vec<(String, String)> {
    let mut seen: HashMap<u32, String> = HashMap::new();
    let mut pairs = Vec::new();
    while pairs.len() < 4 {
        let name = format!("{:010x}", random.next_u64() >> 24);
        let crc = crc32c::crc32c(name.as_bytes());
        match seen.insert(crc, name.clone()) {
            Some(other) if other != name => pairs.push((other, name)),
            _ => {}
        }
    }
    pairs
}

pub(super) fn names(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("names")?;
    let odd: [&[u8]; 12] = [
        b" ",
        b"-rf",
        b"a\nb",
        b"\\",
        b"\xff\xfe\x80",
        b"...",
        b".hidden",
        b"tab\there",
        b"\x01",
        "ümläut-日本語".as_bytes(),
        b"*?[",
        b"quote'\"",
    ];
    for name in odd {
        fs::write(dir.join(OsStr::from_bytes(name)), name)?;
    }
    // Every byte that a name may hold.
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        let name = [b'b', byte, b'e'];
        File::create(dir.join(OsStr::from_bytes(&name)))?;
    }
    for fill_byte in [b'n', 0xc3] {
        let name = [fill_byte; 255];
        fs::write(dir.join(OsStr::from_bytes(&name)), b"longest")?;
    }
    for (left, right) in colliding(&mut fill.random) {
        fs::write(dir.join(&left), &right)?;
        fs::write(dir.join(&right), &left)?;
    }
    // One name of a colliding pair is removed, made again, and gets another type.
    for (at, (left, right)) in colliding(&mut fill.random).into_iter().enumerate() {
        fs::write(dir.join(&left), b"l")?;
        fs::write(dir.join(&right), b"r")?;
        fs::remove_file(dir.join(if at % 2 == 0 { &left } else { &right }))?;
        if at == 3 {
            fs::create_dir(dir.join(&right))?;
        }
    }
    Ok(())
}

pub(super) fn links(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("links")?;
    let first = dir.join("first");
    fs::write(&first, fill.random.bytes(5000))?;
    fs::create_dir(dir.join("elsewhere"))?;
    fs::hard_link(&first, dir.join("second"))?;
    fs::hard_link(&first, dir.join("elsewhere/third"))?;
    fs::write(dir.join("once-two"), b"one name left")?;
    fs::hard_link(dir.join("once-two"), dir.join("gone"))?;
    fs::remove_file(dir.join("gone"))?;
    let many = dir.join("many");
    fs::create_dir(&many)?;
    let name = |at: usize| format!("{at:040}");
    fs::write(many.join(name(0)), b"many names")?;
    for at in 1..fill.limits.links {
        fs::hard_link(many.join(name(0)), many.join(name(at)))?;
    }
    for at in (3..fill.limits.links).step_by(7) {
        fs::remove_file(many.join(name(at)))?;
    }
    // Anything but a directory may have several names.
    std::os::unix::fs::symlink("first", dir.join("link"))?;
    let flags = AtFlags::empty();
    linkat(CWD, dir.join("link"), CWD, dir.join("link-again"), flags)?;
    unnamed(&dir)
}

/// A file that gets its name last (`O_TMPFILE`), where the driver can make one.
fn unnamed(dir: &Path) -> io::Result<()> {
    let (flags, content) = (OFlags::TMPFILE | OFlags::RDWR, b"was without a name");
    let place = dir.join("named-later");
    let file = match openat(CWD, dir, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => file,
        Err(Errno::OPNOTSUPP) => return fs::write(place, content),
        Err(error) => return Err(error.into()),
    };
    rustix::io::write(&file, content)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let unnamed = format!("/proc/self/fd/{fd}");
    linkat(CWD, unnamed, CWD, place, AtFlags::SYMLINK_FOLLOW)?;
    Ok(())
}

/// Directories within directories, by a longer path than one system call takes.
pub(super) fn deep(fill: &mut Fill<'_>) -> io::Result<()> {
    let top = fill.dir("deep")?;
    let mut dir = File::open(top)?;
    for level in 0..220 {
        let name = format!("level-{level:020}");
        mkdirat(&dir, &name, Mode::from_raw_mode(0o755))?;
        let below = openat(
            &dir,
            &name,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        dir = below.into();
    }
    let file = openat(
        &dir,
        "bottom",
        OFlags::CREATE | OFlags::WRONLY,
        Mode::from_raw_mode(0o644),
    )?;
    rustix::io::write(&file, b"far down")?;
    Ok(())
}

pub(super) fn big(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("big")?;
    let count = fill.limits.names;
    for at in 0..count {
        let path = dir.join(format!("name-{}-{at}", fill.random.below(1 << 40)));
        match at % 10 {
            0 => fs::create_dir(path)?,
            1 => std::os::unix::fs::symlink("nowhere", path)?,
            2 => fs::write(path, fill.random.text(at % 4000))?,
            _ => drop(File::create(path)?),
        }
    }
    let mut all: Vec<_> = fs::read_dir(&dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    all.sort();
    for path in all.iter().step_by(5) {
        if path.is_dir() {
            fs::remove_dir(path)?
        } else {
            fs::remove_file(path)?
        }
    }
    Ok(())
}

pub(super) fn moved(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("moved")?;
    let file = |name: &str| -> io::Result<_> {
        let path = dir.join(name);
        fs::write(&path, name)?;
        Ok(path)
    };
    fs::rename(file("a")?, dir.join("a-renamed"))?;
    fs::rename(file("over")?, file("target")?)?;
    for name in ["from", "to", "from/below", "swap-dir"] {
        fs::create_dir(dir.join(name))?;
    }
    fs::rename(file("from/x")?, dir.join("to/x"))?;
    fs::rename(dir.join("from/below"), dir.join("to/below"))?;
    file("to/below/inside")?;
    fs::create_dir(dir.join("empty-target"))?;
    fs::rename(dir.join("to/below"), dir.join("empty-target"))?;
    let exchange = |left: &Path, right: &Path| {
        renameat_with(CWD, left, CWD, right, RenameFlags::EXCHANGE).map_err(io::Error::from)
    };
    exchange(&file("swap-1")?, &file("swap-2")?)?;
    file("swap-dir/inside")?;
    exchange(&dir.join("swap-dir"), &file("swap-3")?)?;
    exchange(&file("from/other")?, &dir.join("to/x"))?;
    let fresh = dir.join("no-replace-done");
    renameat_with(
        CWD,
        file("no-replace")?,
        CWD,
        &fresh,
        RenameFlags::NOREPLACE,
    )?;
    fs::remove_dir(dir.join("from")).expect_err("is not empty");
    fs::create_dir_all(dir.join("tree/of/several"))?;
    file("tree/of/several/files")?;
    fs::remove_dir_all(dir.join("tree"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collisions_hold_for_the_start_value_of_directory_items() {
        for (left, right) in colliding(&mut Random::new(1)) {
            assert_ne!(left, right);
            let hash = |name: &str| crc32c::crc32c_append(1, name.as_bytes());
            assert_eq!(hash(&left), hash(&right));
        }
    }
}
