//! Reading, writing and truncating.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::{Error, NewInode, SharedBytes, WriteMode, rules};
use std::convert::Infallible;

pub(super) fn cases() -> Vec<Case> {
    group!("data":
        written_bytes_are_read_back,
        reads_stop_at_the_end,
        writes_return_the_offset_behind_them,
        overwriting_changes_just_the_range,
        write_behind_the_end_leaves_zeros,
        empty_write_changes_nothing,
        append_writes_at_the_end,
        content_of_anything_but_a_file_is_refused,
        truncate_cuts,
        truncate_extends_with_zeros,
        what_was_cut_off_stays_gone,
        size_of_anything_but_a_file_is_refused,
        sizes_around_every_limit_work,
        files_grow_byte_by_byte,
        large_writes_work,
        far_offsets_work,
        longest_file_works,
        longer_files_are_refused,
        written_data_survives_a_remount if persistent,
        overwritten_data_survives_a_remount if persistent,
        random_writes_agree_with_a_plain_buffer,
        shared_bytes_agree_with_a_plain_buffer,
        compressible_data_reads_back,
    )
}

/// Sizes at which engines change the way in which they store a file: inline limits, sectors,
/// extents.
const LIMITS: [usize; 19] = [
    1, 59, 60, 61, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 131_071,
    131_072, 131_073,
];

fn written_bytes_are_read_back(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.write(0, b"hello, world")?;
    same(file.size()?, 12)?;
    same(file.content()?, b"hello, world")?;
    same(file.read(7, 5)?, b"world")?;
    let other = t.root().find("f")?;
    same(other.content()?, b"hello, world")
}

fn reads_stop_at_the_end(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"0123456789")?;
    same(file.read(5, 100)?, b"56789")?;
    same(file.read(9, 1)?, b"9")?;
    same(file.read(10, 10)?, b"")?;
    same(file.read(1 << 40, 10)?, b"")?;
    same(file.read(u64::MAX, 10)?, b"")?;
    same(file.read(0, 0)?, b"")?;
    let empty = t.root().file("e")?;
    same(empty.read(0, 10)?, b"")
}

fn writes_return_the_offset_behind_them(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    same(file.write(0, b"abc")?, 3)?;
    same(file.write(10_000, b"abc")?, 10_003)?;
    same(file.append(b"defg")?, 10_007)?;
    same(file.write(1, b"x")?, 2)
}

fn overwriting_changes_just_the_range(t: &mut Fixture) -> Outcome {
    let mut bytes = pattern(1, 50_000);
    let file = t.root().file_of("f", &bytes)?;
    t.fs().sync()?;
    for (seed, (offset, len)) in [
        (0, 1),
        (4095, 2),
        (4096, 4096),
        (10_000, 20_000),
        (49_999, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let new = pattern(100 + seed as u64, len);
        file.write(offset as u64, &new)?;
        bytes[offset..offset + len].copy_from_slice(&new);
        same_bytes(&file.content()?, &bytes)?;
    }
    same(file.size()?, 50_000)
}

fn write_behind_the_end_leaves_zeros(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"start")?;
    file.write(100_000, b"end")?;
    let mut want = b"start".to_vec();
    want.resize(100_000, 0);
    want.extend(b"end");
    same_bytes(&file.content()?, &want)?;
    t.fs().sync()?;
    same_bytes(&file.content()?, &want)?;
    let other = t.root().file("g")?;
    other.write(10, b"x")?;
    same_bytes(&other.content()?, b"\0\0\0\0\0\0\0\0\0\0x")
}

fn empty_write_changes_nothing(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.write(0, b"")?;
    file.write(1000, b"")?;
    file.append(b"")?;
    same(file.content()?, b"abc")
}

fn append_writes_at_the_end(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let mut want = Vec::new();
    let mode = WriteMode {
        append: true,
        ..WriteMode::default()
    };
    for round in 0..100 {
        let piece = pattern(round, 700);
        let end = file.write_mode(round % 7 * 1000, &piece, mode)?;
        want.extend(&piece);
        same(end, want.len() as u64)?;
    }
    same_bytes(&file.content()?, &want)
}

fn content_of_anything_but_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    refused(dir.read(0, 10), Error::IsDirectory)?;
    refused(dir.write(0, b"x"), Error::IsDirectory)?;
    refused(t.root().read(0, 10), Error::IsDirectory)?;
    for (name, what) in [
        ("s", NewInode::Symlink(b"f")),
        ("c", NewInode::CharDevice(1)),
        ("b", NewInode::BlockDevice(1)),
        ("p", NewInode::Fifo),
        ("k", NewInode::Socket),
    ] {
        let inode = t.root().make(name, what, 0o600)?;
        refused(inode.read(0, 10), Error::Invalid)?;
        refused(inode.write(0, b"x"), Error::Invalid)?;
    }
    Ok(())
}

fn truncate_cuts(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 300_000);
    let file = t.root().file_of("f", &bytes)?;
    for size in [299_999, 131_072, 131_071, 4097, 4096, 4095, 1, 0] {
        file.truncate(size)?;
        same(file.size()?, size)?;
        same_bytes(&file.content()?, &bytes[..size as usize])?;
    }
    Ok(())
}

fn truncate_extends_with_zeros(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    for size in [4, 4096, 10_000, 1_000_000] {
        file.truncate(size)?;
        let mut want = b"abc".to_vec();
        want.resize(size as usize, 0);
        same_bytes(&file.content()?, &want)?;
    }
    file.truncate(1 << 40)?;
    same(file.size()?, 1 << 40)?;
    same(file.read((1 << 40) - 3, 10)?, [0; 3])
}

fn what_was_cut_off_stays_gone(t: &mut Fixture) -> Outcome {
    for (number, cut) in [1u64, 100, 4095, 4096, 4097, 70_000]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(number as u64, 100_000);
        let mut want = bytes[..cut as usize].to_vec();
        want.resize(100_000, 0);
        // Once while the data may still be in memory only, and once after it was stored.
        for stored in [false, true] {
            let file = t.root().file_of(format!("f{number}{stored}"), &bytes)?;
            if stored {
                t.fs().sync()?;
            }
            file.truncate(cut)?;
            file.truncate(100_000)?;
            same_bytes(&file.content()?, &want)?;
            t.fs().sync()?;
            same_bytes(&file.content()?, &want)?;
        }
        let file = t.root().file_of(format!("g{number}"), &bytes)?;
        file.truncate(cut)?;
        file.write(99_999, &[0])?;
        same_bytes(&file.content()?, &want)?;
    }
    Ok(())
}

fn size_of_anything_but_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    refused(dir.truncate(0), Error::IsDirectory)?;
    let link = t.root().symlink("s", b"f")?;
    refused(link.truncate(0), Error::Invalid)?;
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    refused(fifo.truncate(0), Error::Invalid)
}

fn sizes_around_every_limit_work(t: &mut Fixture) -> Outcome {
    for len in LIMITS {
        t.root()
            .file_of(format!("f{len}"), &pattern(len as u64, len))?;
    }
    for round in 0..2 {
        for len in LIMITS {
            let file = t.root().find(format!("f{len}"))?;
            same(file.size()?, len as u64)?;
            same_bytes(&file.content()?, &pattern(len as u64, len))?;
        }
        if round == 0 && t.capabilities.persistent {
            t.remount(false)?;
        }
    }
    Ok(())
}

fn files_grow_byte_by_byte(t: &mut Fixture) -> Outcome {
    let bytes = pattern(3, 4200);
    let file = t.root().file("f")?;
    for (offset, byte) in bytes.iter().enumerate() {
        file.write(offset as u64, &[*byte])?;
        if offset % 1000 == 999 {
            t.fs().sync()?;
        }
    }
    same_bytes(&file.content()?, &bytes)
}

fn large_writes_work(t: &mut Fixture) -> Outcome {
    let bytes = pattern(4, 9 << 20);
    let file = t.root().file("f")?;
    same(file.write(12_345, &bytes)?, 12_345 + bytes.len() as u64)?;
    same_bytes(&file.read(12_345, bytes.len())?, &bytes)?;
    t.fs().sync()?;
    same_bytes(&file.read(12_345, bytes.len() + 5)?, &bytes)?;
    same_bytes(
        &file.read(12_345 + 1_000_000, 3)?,
        &bytes[1_000_000..1_000_003],
    )
}

fn far_offsets_work(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let offsets = [1u64 << 32, (1 << 32) - 2, 1 << 40, (1 << 43) + 5, 3];
    for offset in offsets {
        file.write(offset, &offset.to_le_bytes())?;
    }
    t.fs().sync()?;
    for offset in [1u64 << 40, (1 << 43) + 5, 3] {
        same(file.read(offset, 8)?, offset.to_le_bytes())?;
    }
    same(file.size()?, (1 << 43) + 13)?;
    same(file.read(1 << 41, 4)?, [0; 4])?;
    let allocated = file.attr()?.allocated;
    check(
        allocated <= 1 << 20,
        format_args!("{allocated} bytes are allocated"),
    )
}

fn longest_file_works(t: &mut Fixture) -> Outcome {
    let longest = t.capabilities.max_file_size.min(rules::MAX_FILE_SIZE);
    let file = t.root().file("f")?;
    file.truncate(longest)?;
    same(file.size()?, longest)?;
    same(file.read(longest - 1, 10)?, [0])?;
    same(file.read(longest, 10)?, b"")?;
    file.truncate(1)?;
    same(file.size()?, 1)
}

fn longer_files_are_refused(t: &mut Fixture) -> Outcome {
    let longest = t.capabilities.max_file_size.min(rules::MAX_FILE_SIZE);
    let file = t.root().file_of("f", b"abc")?;
    refused(file.truncate(longest + 1), Error::FileTooLarge)?;
    refused(file.truncate(u64::MAX), Error::FileTooLarge)?;
    refused(file.write(longest, b"x"), Error::FileTooLarge)?;
    refused(file.write(u64::MAX, b"x"), Error::FileTooLarge)?;
    refused(file.write(u64::MAX - 1, b"xyz"), Error::FileTooLarge)?;
    same(file.content()?, b"abc")
}

fn written_data_survives_a_remount(t: &mut Fixture) -> Outcome {
    let sizes = [0, 1, 1000, 4096, 70_000, 3_000_000];
    for size in sizes {
        let dir = t.root().dir(format!("d{size}"))?;
        dir.file_of("f", &pattern(size as u64, size))?;
    }
    for _ in 0..2 {
        t.remount(false)?;
        for size in sizes {
            let file = t.root().walk(&format!("d{size}/f"))?;
            same_bytes(&file.content()?, &pattern(size as u64, size))?;
        }
    }
    Ok(())
}

fn overwritten_data_survives_a_remount(t: &mut Fixture) -> Outcome {
    let mut bytes = pattern(1, 500_000);
    t.root().file_of("f", &bytes)?;
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..5 {
        t.remount(false)?;
        let file = t.root().find("f")?;
        same_bytes(&file.content()?, &bytes)?;
        for _ in 0..20 {
            let len = random.usize(1..30_000);
            let offset = random.usize(0..bytes.len() - len);
            let new = pattern(random.u64(..), len);
            file.write(offset as u64, &new)?;
            bytes[offset..offset + len].copy_from_slice(&new);
        }
        if round % 2 == 0 {
            t.fs().sync()?;
        }
    }
    t.remount(false)?;
    same_bytes(&t.root().find("f")?.content()?, &bytes)
}

/// Writes into the buffer that a file is compared with.
fn overwrite(want: &mut Vec<u8>, offset: usize, new: &[u8]) {
    want.resize(want.len().max(offset + new.len()), 0);
    want[offset..offset + new.len()].copy_from_slice(new);
}

/// Reads a part of a file, which ends with the file.
fn same_part(file: &HeldInode<'_>, want: &[u8], offset: usize, len: usize) -> Outcome {
    let start = offset.min(want.len());
    let end = (offset + len).min(want.len()).max(start);
    same_bytes(&file.read(offset as u64, len)?, &want[start..end])
}

fn random_writes_agree_with_a_plain_buffer(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let mut want: Vec<u8> = Vec::new();
    let mut random = fastrand::Rng::with_seed(42);
    for round in 0..400 {
        let offset = random.usize(..200_000);
        match random.u8(..10) {
            0..7 => {
                let new = pattern(random.u64(..), random.usize(1..20_000));
                file.write(offset as u64, &new)?;
                overwrite(&mut want, offset, &new);
            }
            7 => {
                file.truncate(offset as u64)?;
                want.resize(offset, 0);
            }
            8 => t.fs().fsync(file.ino(), sapwood_vfs::SyncKind::Data)?,
            _ => {
                same_part(&file, &want, offset, random.usize(1..50_000))?;
            }
        }
        if round % 50 == 0 {
            same_bytes(&file.content()?, &want)?;
        }
    }
    t.fs().sync()?;
    same_bytes(&file.content()?, &want)
}

/// Bytes that the file system may keep, with zeros or other bytes behind them in their buffer.
fn shared(bytes: &[u8], behind: u8) -> SharedBytes {
    let fill = |buffer: &mut Vec<u8>| {
        buffer.extend_from_slice(bytes);
        buffer.resize(bytes.len() + 5000, behind);
        Ok::<_, Infallible>(())
    };
    let Ok(whole) = SharedBytes::filled(bytes.len() + 5000, fill);
    whole.first(bytes.len())
}

fn shared_bytes_agree_with_a_plain_buffer(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let mut want: Vec<u8> = Vec::new();
    let mut random = fastrand::Rng::with_seed(43);
    for round in 0..300 {
        let offset = match random.u8(..4) {
            0 => random.usize(..400_000),
            1 => want.len(),
            _ => random.usize(..100) * 4096,
        };
        match random.u8(..10) {
            0..6 => {
                let new = pattern(random.u64(..), random.usize(30_000..140_000));
                let given = shared(&new, random.u8(..2));
                t.fs().write_shared(
                    file.ino(),
                    offset as u64,
                    given.clone(),
                    WriteMode::default(),
                )?;
                overwrite(&mut want, offset, &new);
                let short = pattern(random.u64(..), random.usize(1..9000));
                let at = offset + random.usize(..new.len());
                file.write(at as u64, &short)?;
                overwrite(&mut want, at, &short);
                same_bytes(&given, &new)?;
            }
            6 => {
                file.truncate(offset as u64)?;
                want.resize(offset, 0);
            }
            7 => t.fs().fsync(file.ino(), sapwood_vfs::SyncKind::Data)?,
            _ => {
                same_part(&file, &want, offset, random.usize(1..50_000))?;
            }
        }
        if round % 50 == 0 {
            same_bytes(&file.content()?, &want)?;
        }
    }
    t.fs().sync()?;
    same_bytes(&file.content()?, &want)
}

fn compressible_data_reads_back(t: &mut Fixture) -> Outcome {
    let mut bytes = b"the same again and again, ".repeat(20_000);
    let zeros = t.root().file_of("z", &vec![0; 700_000])?;
    let file = t.root().file_of("f", &bytes)?;
    t.fs().sync()?;
    same_bytes(&file.content()?, &bytes)?;
    same_bytes(&zeros.content()?, &vec![0; 700_000])?;
    let new = pattern(5, 10_000);
    file.write(200_001, &new)?;
    bytes[200_001..210_001].copy_from_slice(&new);
    t.fs().sync()?;
    same_bytes(&file.content()?, &bytes)?;
    file.truncate(205_000)?;
    same_bytes(&file.content()?, &bytes[..205_000])
}
