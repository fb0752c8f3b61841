//! Copying and sharing ranges.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, fails, pattern, refused, same, same_bytes};
use sapwood_vfs::{CopyMode, Error, NewInode};

pub(super) fn cases() -> Vec<Case> {
    group!("copy":
        whole_file_is_copied,
        part_is_copied,
        copy_goes_into_the_middle,
        copy_stops_at_the_end_of_the_source,
        copy_from_behind_the_end_is_nothing,
        copy_within_a_file,
        overlapping_copy_is_refused,
        unaligned_copies_work,
        small_files_are_copied,
        holes_are_copied,
        copy_replaces_what_was_there,
        anything_but_a_file_is_refused,
        too_far_a_target_is_refused,
        copies_survive_a_remount if persistent,
        shared_ranges_part_when_written if reflink,
        shared_copy_survives_the_source if reflink,
        sharing_must_be_aligned if reflink,
        sharing_behind_the_end_is_refused if reflink,
        sharing_takes_no_space if shared_space,
        many_files_share_one_extent if reflink,
    )
}

fn whole_file_is_copied(t: &mut Fixture) -> Outcome {
    for (number, len) in [0usize, 1, 4096, 100_000, 3_000_001]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(number as u64, len);
        let from = t.root().file_of(format!("f{number}"), &bytes)?;
        let to = t.root().file(format!("g{number}"))?;
        same(from.copy_to(0, &to, 0, 0, CopyMode::Any)?, len as u64)?;
        same_bytes(&to.content()?, &bytes)?;
        same_bytes(&from.content()?, &bytes)?;
        t.fs().sync()?;
        same_bytes(&to.content()?, &bytes)?;
    }
    Ok(())
}

fn part_is_copied(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 100_000);
    let from = t.root().file_of("f", &bytes)?;
    let to = t.root().file("g")?;
    same(from.copy_to(8192, &to, 0, 40_960, CopyMode::Any)?, 40_960)?;
    same_bytes(&to.content()?, &bytes[8192..49_152])
}

fn copy_goes_into_the_middle(t: &mut Fixture) -> Outcome {
    let (one, mut want) = (pattern(1, 100_000), pattern(2, 100_000));
    let from = t.root().file_of("f", &one)?;
    let to = t.root().file_of("g", &want)?;
    same(from.copy_to(4096, &to, 16_384, 8192, CopyMode::Any)?, 8192)?;
    want[16_384..24_576].copy_from_slice(&one[4096..12_288]);
    same_bytes(&to.content()?, &want)?;
    // The target starts after the end of the file: the gap is a hole.
    same(from.copy_to(0, &to, 200_704, 4096, CopyMode::Any)?, 4096)?;
    want.resize(200_704, 0);
    want.extend(&one[..4096]);
    same_bytes(&to.content()?, &want)
}

fn copy_stops_at_the_end_of_the_source(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 10_000);
    let from = t.root().file_of("f", &bytes)?;
    let to = t.root().file("g")?;
    same(from.copy_to(0, &to, 0, 1 << 40, CopyMode::Any)?, 10_000)?;
    same_bytes(&to.content()?, &bytes)?;
    same(from.copy_to(8192, &to, 0, 4096, CopyMode::Any)?, 1808)?;
    same(to.size()?, 10_000)
}

fn copy_from_behind_the_end_is_nothing(t: &mut Fixture) -> Outcome {
    let from = t.root().file_of("f", b"abc")?;
    let to = t.root().file_of("g", b"def")?;
    for offset in [3, 4, 4096, 1 << 40] {
        same(from.copy_to(offset, &to, 0, 100, CopyMode::Any)?, 0)?;
        same(from.copy_to(offset, &to, 4096, 0, CopyMode::Any)?, 0)?;
    }
    same(to.content()?, b"def")
}

fn copy_within_a_file(t: &mut Fixture) -> Outcome {
    let mut want = pattern(1, 81_920);
    let file = t.root().file_of("f", &want)?;
    same(
        file.copy_to(0, &file, 40_960, 20_480, CopyMode::Any)?,
        20_480,
    )?;
    want.copy_within(0..20_480, 40_960);
    same_bytes(&file.content()?, &want)?;
    same(file.copy_to(4096, &file, 0, 4096, CopyMode::Any)?, 4096)?;
    want.copy_within(4096..8192, 0);
    same_bytes(&file.content()?, &want)?;
    same(
        file.copy_to(0, &file, 81_920, 81_920, CopyMode::Any)?,
        81_920,
    )?;
    let doubled = [want.clone(), want].concat();
    same_bytes(&file.content()?, &doubled)
}

fn overlapping_copy_is_refused(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 40_960);
    let file = t.root().file_of("f", &bytes)?;
    for (from, to, len) in [
        (0, 4096, 8192),
        (8192, 4096, 8192),
        (0, 0, 4096),
        (0, 4096, 0),
    ] {
        refused(
            file.copy_to(from, &file, to, len, CopyMode::Any),
            Error::Invalid,
        )?;
    }
    same_bytes(&file.content()?, &bytes)
}

fn unaligned_copies_work(t: &mut Fixture) -> Outcome {
    let source = pattern(1, 50_000);
    let from = t.root().file_of("f", &source)?;
    let to = t.root().file("g")?;
    let mut want = Vec::new();
    for (offset, at, len) in [
        (1usize, 0usize, 100usize),
        (4097, 50, 10_000),
        (0, 4095, 4098),
        (4096, 20_001, 8192),
        (12_345, 6789, 30_000),
    ] {
        let copied = from.copy_to(offset as u64, &to, at as u64, len as u64, CopyMode::Any)?;
        same(copied, len as u64)?;
        want.resize(want.len().max(at + len), 0);
        want[at..at + len].copy_from_slice(&source[offset..offset + len]);
        same_bytes(&to.content()?, &want)?;
    }
    t.fs().sync()?;
    same_bytes(&to.content()?, &want)
}

fn small_files_are_copied(t: &mut Fixture) -> Outcome {
    // Small enough to be stored inline.
    let from = t.root().file_of("f", b"small")?;
    t.fs().sync()?;
    let to = t.root().file("g")?;
    same(from.copy_to(0, &to, 0, 0, CopyMode::Any)?, 5)?;
    same(to.content()?, b"small")?;
    let large = t.root().file_of("h", &pattern(1, 100_000))?;
    same(from.copy_to(0, &large, 8192, 5, CopyMode::Any)?, 5)?;
    let mut want = pattern(1, 100_000);
    want[8192..8197].copy_from_slice(b"small");
    same_bytes(&large.content()?, &want)
}

fn holes_are_copied(t: &mut Fixture) -> Outcome {
    let from = t.root().file("f")?;
    from.write(40_960, b"data")?;
    from.truncate(81_920)?;
    let to = t.root().file_of("g", &[1; 100_000])?;
    same(from.copy_to(0, &to, 0, 0, CopyMode::Any)?, 81_920)?;
    let mut want = vec![0; 81_920];
    want[40_960..40_964].copy_from_slice(b"data");
    want.resize(100_000, 1);
    same_bytes(&to.content()?, &want)
}

fn copy_replaces_what_was_there(t: &mut Fixture) -> Outcome {
    let to = t.root().file_of("to", &pattern(0, 200_000))?;
    let mut want = pattern(0, 200_000);
    for round in 1..20u64 {
        let bytes = pattern(round, 65_536);
        let from = t.root().file_of(format!("f{round}"), &bytes)?;
        let at = (round * 7 % 30) * 4096;
        from.copy_to(0, &to, at, 0, CopyMode::Any)?;
        want[at as usize..at as usize + 65_536].copy_from_slice(&bytes);
        same_bytes(&to.content()?, &want)?;
    }
    t.fs().sync()?;
    same_bytes(&to.content()?, &want)
}

fn anything_but_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file_of("f", b"abc")?, t.root().dir("d")?);
    refused(
        dir.copy_to(0, &file, 0, 0, CopyMode::Any),
        Error::IsDirectory,
    )?;
    refused(
        file.copy_to(0, &dir, 0, 0, CopyMode::Any),
        Error::IsDirectory,
    )?;
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    fails(fifo.copy_to(0, &file, 0, 0, CopyMode::Any))?;
    fails(file.copy_to(0, &fifo, 0, 0, CopyMode::Any))?;
    same(file.content()?, b"abc")
}

fn too_far_a_target_is_refused(t: &mut Fixture) -> Outcome {
    let from = t.root().file_of("f", &[1; 8192])?;
    let to = t.root().file("g")?;
    let far = t.capabilities.max_file_size - 4095;
    for offset in [far, u64::MAX - 4096] {
        let result = from.copy_to(0, &to, offset, 0, CopyMode::Any);
        refused(result, Error::FileTooLarge)?;
    }
    same(to.size()?, 0)
}

fn copies_survive_a_remount(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 1_000_000);
    let from = t.root().file_of("f", &bytes)?;
    let to = t.root().file("g")?;
    from.copy_to(0, &to, 0, 0, CopyMode::Any)?;
    to.write(500_000, b"changed")?;
    from.truncate(10)?;
    let mut want = bytes.clone();
    want[500_000..500_007].copy_from_slice(b"changed");
    drop((from, to));
    t.remount(false)?;
    same_bytes(&t.root().find("g")?.content()?, &want)?;
    same_bytes(&t.root().find("f")?.content()?, &bytes[..10])?;
    t.root().unlink("f")?;
    t.remount(false)?;
    same_bytes(&t.root().find("g")?.content()?, &want)
}

fn shared_ranges_part_when_written(t: &mut Fixture) -> Outcome {
    let mut one = pattern(1, 409_600);
    let from = t.root().file_of("f", &one)?;
    let to = t.root().file("g")?;
    same(from.copy_to(0, &to, 0, 0, CopyMode::ShareOnly)?, 409_600)?;
    let mut other = one.clone();
    from.write(10_000, b"in the first")?;
    one[10_000..10_012].copy_from_slice(b"in the first");
    to.write(300_000, b"in the second")?;
    other[300_000..300_013].copy_from_slice(b"in the second");
    for _ in 0..2 {
        same_bytes(&from.content()?, &one)?;
        same_bytes(&to.content()?, &other)?;
        t.fs().sync()?;
    }
    Ok(())
}

fn shared_copy_survives_the_source(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 500_000);
    let from = t.root().file_of("f", &bytes)?;
    let to = t.root().file("g")?;
    from.copy_to(0, &to, 0, 0, CopyMode::ShareOnly)?;
    drop(from);
    t.root().unlink("f")?;
    t.fs().sync()?;
    // These files would get space that was freed by mistake.
    for number in 0..5 {
        t.root()
            .file_of(format!("n{number}"), &pattern(50 + number, 500_000))?;
        t.fs().sync()?;
    }
    same_bytes(&to.content()?, &bytes)
}

fn sharing_must_be_aligned(t: &mut Fixture) -> Outcome {
    let from = t.root().file_of("f", &pattern(1, 40_960))?;
    let to = t.root().file_of("g", &pattern(2, 81_920))?;
    for (offset, at, len) in [(1, 0, 4096), (0, 1, 4096), (0, 0, 4095), (4096, 100, 8192)] {
        let result = from.copy_to(offset, &to, at, len, CopyMode::ShareOnly);
        refused(result, Error::Invalid)?;
    }
    same_bytes(&to.content()?, &pattern(2, 81_920))?;
    // An odd length is valid if the range ends at the end of the source, and in the target at or
    // after its end.
    let odd = t.root().file_of("odd", &pattern(3, 5000))?;
    let result = odd.copy_to(0, &to, 0, 0, CopyMode::ShareOnly);
    refused(result, Error::Invalid)?;
    same(odd.copy_to(0, &to, 81_920, 0, CopyMode::ShareOnly)?, 5000)?;
    same_bytes(&to.read(81_920, 10_000)?, &pattern(3, 5000))
}

fn sharing_behind_the_end_is_refused(t: &mut Fixture) -> Outcome {
    let from = t.root().file_of("f", &pattern(1, 40_960))?;
    let to = t.root().file("g")?;
    for (offset, len) in [(0, 45_056), (40_960, 4096), (81_920, 4096)] {
        let result = from.copy_to(offset, &to, 0, len, CopyMode::ShareOnly);
        refused(result, Error::Invalid)?;
    }
    let result = from.copy_to(40_961, &to, 0, 0, CopyMode::ShareOnly);
    refused(result, Error::Invalid)?;
    same(from.copy_to(40_960, &to, 5, 0, CopyMode::ShareOnly)?, 0)?;
    same(to.size()?, 0)
}

fn sharing_takes_no_space(t: &mut Fixture) -> Outcome {
    let from = t.root().file_of("f", &pattern(1, 16 << 20))?;
    t.fs().sync()?;
    let before = t.fs().statfs()?;
    for number in 0..8 {
        let to = t.root().file(format!("g{number}"))?;
        from.copy_to(0, &to, 0, 0, CopyMode::ShareOnly)?;
    }
    t.fs().sync()?;
    let after = t.fs().statfs()?;
    let taken = before.blocks_free.saturating_sub(after.blocks_free);
    let bytes = taken * u64::from(before.block_size);
    check(bytes < 16 << 20, format_args!("{bytes} bytes were taken"))
}

fn many_files_share_one_extent(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 131_072);
    let from = t.root().file_of("f", &bytes)?;
    // More references than fit inline in one extent item of btrfs.
    for number in 0..600 {
        let to = t.root().file(format!("g{number}"))?;
        from.copy_to(0, &to, 0, 0, CopyMode::ShareOnly)?;
    }
    t.fs().sync()?;
    for number in (0..600).step_by(2) {
        t.root().unlink(format!("g{number}"))?;
    }
    t.root().unlink("f")?;
    t.fs().sync()?;
    for number in (1..600).step_by(50) {
        let file = t.root().find(format!("g{number}"))?;
        same_bytes(&file.content()?, &bytes)?;
    }
    Ok(())
}
