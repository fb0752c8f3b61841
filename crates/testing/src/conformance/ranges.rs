//! Holes, preallocation, and moving ranges within a file.

use super::case::{Case, group};
use super::support::{
    Fixture, HeldInode, Outcome, check, fails, pattern, refused, same, same_bytes,
};
use sapwood_vfs::{AllocMode, Error, NewInode, SyncKind};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = group!("seek":
        empty_file_has_nothing,
        file_without_holes,
        holes_and_data_are_found if holes,
        hole_at_the_end_is_found if holes,
        file_of_one_hole if holes,
        offsets_behind_the_end_are_refused,
        unstored_and_stored_data_look_alike if holes,
        preallocation_counts_as_hole if holes & preallocate,
    );
    cases.extend(group!("fallocate":
        allocate_extends_the_file if preallocate,
        allocate_can_keep_the_size if preallocate,
        allocate_spares_content if preallocate,
        allocated_range_can_be_written if preallocate,
        allocated_range_survives_a_remount if persistent & preallocate,
        punched_hole_reads_as_zeros if punch_hole,
        punched_hole_frees_space if punch_hole,
        punch_behind_the_end_is_harmless if punch_hole,
        punched_hole_survives_a_remount if punch_hole,
        zeroed_range_reads_as_zeros if zero_range,
        zero_range_extends_the_file_unless_told if zero_range,
        collapse_takes_a_range_out if shift_range,
        collapse_must_be_aligned_and_inside if shift_range,
        insert_opens_a_hole if shift_range,
        insert_must_be_aligned_and_inside if shift_range,
        bad_ranges_are_refused,
        anything_but_a_file_is_refused,
        random_ranges_agree_with_a_plain_buffer,
    ));
    let refuses = Case::new(
        "fallocate",
        "missing_modes_are_refused",
        missing_modes,
        |c| !(c.preallocate && c.punch_hole && c.zero_range && c.shift_range),
    );
    cases.push(refuses);
    cases
}

const ALLOCATE: AllocMode = AllocMode::Allocate { keep_size: false };
const RESERVE: AllocMode = AllocMode::Allocate { keep_size: true };
const ZERO: AllocMode = AllocMode::ZeroRange { keep_size: false };

fn empty_file_has_nothing(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.data_from(0), Error::NoSuchOffset)?;
    refused(file.hole_from(0), Error::NoSuchOffset)
}

fn file_without_holes(t: &mut Fixture) -> Outcome {
    for (number, len) in [1u64, 100, 4096, 10_000, 300_000].into_iter().enumerate() {
        let file = t
            .root()
            .file_of(format!("f{number}"), &pattern(1, len as usize))?;
        for offset in [0, len / 2, len - 1] {
            same(file.data_from(offset)?, offset)?;
            same(file.hole_from(offset)?, len)?;
        }
    }
    Ok(())
}

/// Data in blocks 2, 3 and 8 of a file that is a little longer than ten blocks.
fn sparse<'a>(t: &'a Fixture, name: &str) -> Outcome<HeldInode<'a>> {
    let block = t.capabilities.block_size;
    let file = t.root().file(name)?;
    file.truncate(10 * block + 5)?;
    file.write(2 * block, &pattern(1, 2 * block as usize))?;
    file.write(8 * block + 10, b"in the middle")?;
    Ok(file)
}

fn seeks_in_sparse(t: &Fixture, file: &HeldInode<'_>) -> Outcome {
    let block = t.capabilities.block_size;
    same(file.data_from(0)?, 2 * block)?;
    same(file.data_from(block + 1)?, 2 * block)?;
    same(file.data_from(2 * block + 7)?, 2 * block + 7)?;
    same(file.data_from(4 * block)?, 8 * block)?;
    same(file.data_from(9 * block - 1)?, 9 * block - 1)?;
    refused(file.data_from(9 * block), Error::NoSuchOffset)?;
    same(file.hole_from(0)?, 0)?;
    same(file.hole_from(block + 3)?, block + 3)?;
    same(file.hole_from(2 * block)?, 4 * block)?;
    same(file.hole_from(3 * block + 1)?, 4 * block)?;
    same(file.hole_from(8 * block)?, 9 * block)?;
    same(file.hole_from(10 * block + 4)?, 10 * block + 4)
}

fn holes_and_data_are_found(t: &mut Fixture) -> Outcome {
    let file = sparse(t, "f")?;
    t.fs().fsync(file.ino(), SyncKind::All)?;
    seeks_in_sparse(t, &file)
}

fn unstored_and_stored_data_look_alike(t: &mut Fixture) -> Outcome {
    seeks_in_sparse(t, &sparse(t, "f")?)?;
    t.fs().sync()?;
    seeks_in_sparse(t, &t.root().find("f")?)?;
    if t.capabilities.persistent {
        t.remount(false)?;
        seeks_in_sparse(t, &t.root().find("f")?)?;
    }
    Ok(())
}

fn hole_at_the_end_is_found(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let file = t.root().file_of("f", &pattern(1, block as usize))?;
    file.truncate(1 << 30)?;
    same(file.hole_from(0)?, block)?;
    refused(file.data_from(block), Error::NoSuchOffset)?;
    same(file.hole_from((1 << 30) - 1)?, (1 << 30) - 1)
}

fn file_of_one_hole(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.truncate(1 << 40)?;
    refused(file.data_from(0), Error::NoSuchOffset)?;
    same(file.hole_from(0)?, 0)?;
    same(file.hole_from(1 << 39)?, 1 << 39)?;
    same(file.attr()?.allocated, 0)
}

fn offsets_behind_the_end_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &[1; 5000])?;
    for offset in [5000, 5001, 8192, 1 << 50, u64::MAX] {
        refused(file.data_from(offset), Error::NoSuchOffset)?;
        refused(file.hole_from(offset), Error::NoSuchOffset)?;
    }
    Ok(())
}

fn preallocation_counts_as_hole(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let file = t.root().file("f")?;
    file.fallocate(0, 10 * block, ALLOCATE)?;
    refused(file.data_from(0), Error::NoSuchOffset)?;
    file.write(5 * block, &pattern(1, block as usize))?;
    t.fs().sync()?;
    same(file.data_from(0)?, 5 * block)?;
    same(file.hole_from(5 * block)?, 6 * block)
}

fn allocate_extends_the_file(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.fallocate(10_000, 50_000, ALLOCATE)?;
    same(file.size()?, 60_000)?;
    let mut want = b"abc".to_vec();
    want.resize(60_000, 0);
    same_bytes(&file.content()?, &want)?;
    t.fs().sync()?;
    check(file.attr()?.allocated >= 50_000, "nothing was allocated")?;
    file.fallocate(0, 100, ALLOCATE)?;
    same(file.size()?, 60_000)?;
    same_bytes(&file.content()?, &want)
}

fn allocate_can_keep_the_size(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.fallocate(0, 1 << 20, RESERVE)?;
    same((file.size()?, file.content()?), (3, b"abc".to_vec()))?;
    t.fs().sync()?;
    check(file.attr()?.allocated >= 1 << 20, "nothing was allocated")?;
    file.truncate(100_000)?;
    let mut want = b"abc".to_vec();
    want.resize(100_000, 0);
    same_bytes(&file.content()?, &want)
}

fn allocate_spares_content(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 200_000);
    let file = t.root().file_of("f", &bytes)?;
    file.fallocate(0, 200_000, ALLOCATE)?;
    file.fallocate(50_001, 7, ALLOCATE)?;
    same_bytes(&file.content()?, &bytes)?;
    t.fs().sync()?;
    file.fallocate(100_000, 100_000, RESERVE)?;
    same_bytes(&file.content()?, &bytes)
}

fn allocated_range_can_be_written(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.fallocate(0, 500_000, ALLOCATE)?;
    let mut want = vec![0; 500_000];
    for (seed, offset) in [0usize, 4096, 10_000, 262_143, 499_000]
        .into_iter()
        .enumerate()
    {
        let new = pattern(seed as u64, 1000);
        file.write(offset as u64, &new)?;
        want[offset..offset + 1000].copy_from_slice(&new);
        if seed % 2 == 0 {
            t.fs().sync()?;
        }
    }
    same_bytes(&file.content()?, &want)?;
    file.truncate(262_200)?;
    file.truncate(500_000)?;
    want[262_200..].fill(0);
    same_bytes(&file.content()?, &want)
}

fn allocated_range_survives_a_remount(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.fallocate(0, 1 << 20, ALLOCATE)?;
    file.write(400_000, b"written")?;
    drop(file);
    t.remount(false)?;
    let file = t.root().find("f")?;
    let mut want = vec![0; 1 << 20];
    want[400_000..400_007].copy_from_slice(b"written");
    same_bytes(&file.content()?, &want)?;
    check(file.attr()?.allocated >= 1 << 20, "the allocation is lost")?;
    file.write(10, b"x")?;
    want[10] = b'x';
    same_bytes(&file.content()?, &want)
}

fn punched_hole_reads_as_zeros(t: &mut Fixture) -> Outcome {
    for (number, (offset, len)) in [
        (0, 4096),
        (0, 100),
        (100, 100),
        (4000, 200),
        (4096, 8192),
        (5000, 50_000),
        (99_999, 1),
        (0, 100_000),
    ]
    .into_iter()
    .enumerate()
    {
        let mut want = pattern(number as u64, 100_000);
        let file = t.root().file_of(format!("f{number}"), &want)?;
        if number % 2 == 0 {
            t.fs().sync()?;
        }
        file.fallocate(offset as u64, len as u64, AllocMode::PunchHole)?;
        want[offset..offset + len].fill(0);
        same_bytes(&file.content()?, &want)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &want)?;
    }
    Ok(())
}

fn punched_hole_frees_space(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &pattern(1, 1 << 20))?;
    t.fs().sync()?;
    let before = file.attr()?.allocated;
    file.fallocate(1 << 18, 1 << 19, AllocMode::PunchHole)?;
    t.fs().sync()?;
    let after = file.attr()?.allocated;
    same(before - after, 1 << 19)?;
    if t.capabilities.holes {
        same(file.hole_from(0)?, 1 << 18)?;
        same(file.data_from(1 << 18)?, 3 << 18)?;
    }
    Ok(())
}

fn punch_behind_the_end_is_harmless(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 10_000);
    let file = t.root().file_of("f", &bytes)?;
    file.fallocate(20_000, 10_000, AllocMode::PunchHole)?;
    same_bytes(&file.content()?, &bytes)?;
    file.fallocate(8192, 1 << 40, AllocMode::PunchHole)?;
    let mut want = bytes;
    want[8192..].fill(0);
    same_bytes(&file.content()?, &want)
}

fn punched_hole_survives_a_remount(t: &mut Fixture) -> Outcome {
    let mut want = pattern(1, 500_000);
    let file = t.root().file_of("f", &want)?;
    t.fs().sync()?;
    for (offset, len) in [(10_000, 1), (16_384, 65_536), (300_001, 100_000)] {
        file.fallocate(offset as u64, len as u64, AllocMode::PunchHole)?;
        want[offset..offset + len].fill(0);
    }
    drop(file);
    if t.capabilities.persistent {
        t.remount(false)?;
    }
    same_bytes(&t.root().find("f")?.content()?, &want)
}

fn zeroed_range_reads_as_zeros(t: &mut Fixture) -> Outcome {
    for (number, (offset, len)) in [
        (0, 4096),
        (1, 100),
        (4000, 200),
        (4095, 4098),
        (5000, 50_000),
        (0, 100_000),
    ]
    .into_iter()
    .enumerate()
    {
        let mut want = pattern(number as u64, 100_000);
        let file = t.root().file_of(format!("f{number}"), &want)?;
        if number % 2 == 0 {
            t.fs().sync()?;
        }
        file.fallocate(offset as u64, len as u64, ZERO)?;
        want[offset..offset + len].fill(0);
        same_bytes(&file.content()?, &want)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &want)?;
        let bytes = pattern(100, 10);
        file.write(offset as u64, &bytes)?;
        want[offset..offset + 10].copy_from_slice(&bytes);
        same_bytes(&file.content()?, &want)?;
    }
    Ok(())
}

fn zero_range_extends_the_file_unless_told(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abcdef")?;
    let keep = AllocMode::ZeroRange { keep_size: true };
    file.fallocate(3, 100_000, keep)?;
    same(file.content()?, b"abc\0\0\0")?;
    file.fallocate(1, 9999, ZERO)?;
    same(file.size()?, 10_000)?;
    let mut want = b"a".to_vec();
    want.resize(10_000, 0);
    same_bytes(&file.content()?, &want)
}

fn collapse_takes_a_range_out(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let mut want = pattern(1, 20 * block as usize + 77);
    let file = t.root().file_of("f", &want)?;
    for (first, count) in [(0, 1), (5, 3), (2, 10)] {
        file.fallocate(first * block, count * block, AllocMode::CollapseRange)?;
        want.drain((first * block) as usize..((first + count) * block) as usize);
        same_bytes(&file.content()?, &want)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &want)?;
    }
    Ok(())
}

fn collapse_must_be_aligned_and_inside(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let bytes = pattern(1, 4 * block as usize);
    let file = t.root().file_of("f", &bytes)?;
    for (offset, len) in [
        (1, block),
        (0, block - 1),
        (0, 4 * block),
        (3 * block, block),
        (8 * block, block),
    ] {
        refused(
            file.fallocate(offset, len, AllocMode::CollapseRange),
            Error::Invalid,
        )?;
    }
    same_bytes(&file.content()?, &bytes)
}

fn insert_opens_a_hole(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let mut want = pattern(1, 5 * block as usize + 77);
    let file = t.root().file_of("f", &want)?;
    for (first, count) in [(0, 1), (3, 7), (8, 2)] {
        file.fallocate(first * block, count * block, AllocMode::InsertRange)?;
        let at = (first * block) as usize;
        want.splice(at..at, vec![0; (count * block) as usize]);
        same_bytes(&file.content()?, &want)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &want)?;
    }
    same(file.size()?, want.len() as u64)
}

fn insert_must_be_aligned_and_inside(t: &mut Fixture) -> Outcome {
    let block = t.capabilities.block_size;
    let bytes = pattern(1, 4 * block as usize);
    let file = t.root().file_of("f", &bytes)?;
    for (offset, len) in [
        (1, block),
        (0, block - 1),
        (4 * block, block),
        (9 * block, block),
    ] {
        refused(
            file.fallocate(offset, len, AllocMode::InsertRange),
            Error::Invalid,
        )?;
    }
    same_bytes(&file.content()?, &bytes)
}

fn missing_modes(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 40_960);
    let file = t.root().file_of("f", &bytes)?;
    let has = t.capabilities;
    for (mode, has) in [
        (ALLOCATE, has.preallocate),
        (RESERVE, has.preallocate),
        (AllocMode::PunchHole, has.punch_hole),
        (ZERO, has.zero_range),
        (AllocMode::CollapseRange, has.shift_range),
        (AllocMode::InsertRange, has.shift_range),
    ] {
        if !has {
            let result = file.fallocate(4096, 4096, mode);
            refused(result, Error::NotSupported)?;
        }
    }
    same_bytes(&file.content()?, &bytes)
}

fn bad_ranges_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    let has = t.capabilities;
    for (mode, has) in [
        (ALLOCATE, has.preallocate),
        (RESERVE, has.preallocate),
        (AllocMode::PunchHole, has.punch_hole),
        (ZERO, has.zero_range),
    ] {
        if has {
            refused(file.fallocate(0, 0, mode), Error::Invalid)?;
            let far = file.fallocate(u64::MAX - 10, 5, mode);
            refused(far, Error::FileTooLarge)?;
            let far = file.fallocate(1, i64::MAX as u64, mode);
            refused(far, Error::FileTooLarge)?;
            let wraps = file.fallocate(u64::MAX, u64::MAX, mode);
            refused(wraps, Error::FileTooLarge)?;
        }
    }
    same(file.content()?, b"abc")
}

fn anything_but_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    for inode in [&t.root(), &t.root().symlink("s", b"t")?, &fifo] {
        fails(inode.fallocate(0, 100, ALLOCATE))?;
        fails(inode.data_from(0))?;
    }
    Ok(())
}

fn random_ranges_agree_with_a_plain_buffer(t: &mut Fixture) -> Outcome {
    const LEN: usize = 400_000;
    let file = t.root().file("f")?;
    file.truncate(LEN as u64)?;
    let mut want = vec![0; LEN];
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..300 {
        let offset = random.usize(..LEN);
        let len = random.usize(1..60_000).min(LEN - offset);
        let (at, count, range) = (offset as u64, len as u64, offset..offset + len);
        match random.u8(..6) {
            0 if t.capabilities.punch_hole => {
                file.fallocate(at, count, AllocMode::PunchHole)?;
                want[range].fill(0);
            }
            1 if t.capabilities.zero_range => {
                file.fallocate(at, count, ZERO)?;
                want[range].fill(0);
            }
            2 if t.capabilities.preallocate => file.fallocate(at, count, ALLOCATE)?,
            3 => t.fs().fsync(file.ino(), SyncKind::All)?,
            _ => {
                let new = pattern(round, len);
                file.write(at, &new)?;
                want[range].copy_from_slice(&new);
            }
        }
        if round % 20 == 19 {
            same_bytes(&file.content()?, &want)?;
        }
    }
    if t.capabilities.persistent {
        drop(file);
        t.remount(false)?;
    }
    same_bytes(&t.root().find("f")?.content()?, &want)
}
