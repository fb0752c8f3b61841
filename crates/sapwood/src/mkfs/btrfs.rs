//! Options of btrfs, as in mkfs.btrfs.

use sapwood_btrfs::mkfs::Profile;
use sapwood_btrfs_format::ChecksumKind;

use super::generic::{size, store, switched};
use super::table::{Form, Meaning, MkfsOption, bad};
use super::{MkfsOptionError, MkfsOptions};
use crate::Kind;

type Taken = Result<(), MkfsOptionError>;

/// Their declarations.
pub(super) const OPTIONS: &[MkfsOption] = &[
    MkfsOption::new(
        Some('n'),
        Some("nodesize"),
        Form::Value("BYTES"),
        &[Meaning::of(
            Kind::Btrfs,
            "size of a tree block, 4k to 64k",
            |options, name, value| {
                let bytes = u32::try_from(size(name, value)?).map_err(|_| bad(name, value))?;
                store(&mut options.btrfs.node_size, Some(bytes))
            },
        )
        .default("16k")],
    ),
    MkfsOption::new(
        None,
        Some("checksum"),
        Form::Value("NAME"),
        &[Meaning::of(
            Kind::Btrfs,
            "checksum: crc32c, xxhash, sha256, blake2",
            |options, _, value| {
                let kind = ChecksumKind::from_name(value);
                let kind = kind.ok_or_else(|| unknown("checksum", value))?;
                store(&mut options.btrfs.checksum, kind)
            },
        )
        .default("crc32c")],
    ),
    MkfsOption::new(
        Some('d'),
        Some("data"),
        Form::Value("PROFILE"),
        &[Meaning::of(
            Kind::Btrfs,
            "copies of data: single, dup, raid0, raid1, raid1c3, raid1c4, raid10",
            |options, _, value| store(&mut options.btrfs.data, Some(profile(value)?)),
        )
        .default("single")],
    ),
    MkfsOption::new(
        Some('M'),
        Some("mixed"),
        Form::Alone,
        &[Meaning::of(
            Kind::Btrfs,
            "keep data and metadata together (small images)",
            |options, _, _| store(&mut options.btrfs.mixed, true),
        )],
    ),
];

fn unknown(what: &'static str, name: &str) -> MkfsOptionError {
    MkfsOptionError::UnknownName {
        what,
        name: name.to_owned(),
    }
}

fn profile(name: &str) -> Result<Profile, MkfsOptionError> {
    Profile::from_name(name).ok_or_else(|| unknown("profile", name))
}

/// `-b`, which `--size` overrides.
pub(super) fn size_by_letter(options: &mut MkfsOptions, name: &str, value: &str) -> Taken {
    let bytes = size(name, value)?;
    options.size.get_or_insert(bytes);
    Ok(())
}

pub(super) fn metadata(options: &mut MkfsOptions, _: &str, value: &str) -> Taken {
    store(&mut options.btrfs.metadata, Some(profile(value)?))
}

pub(super) fn feature(options: &mut MkfsOptions, _: &str, value: &str) -> Taken {
    let (name, on) = switched(value);
    let options = &mut options.btrfs;
    match name {
        "no-holes" => options.no_holes = on,
        "free-space-tree" | "fst" => options.free_space_tree = on,
        "block-group-tree" | "bgt" => options.block_group_tree = Some(on),
        "extref" => options.extended_refs = on,
        "skinny-metadata" => options.skinny_metadata = on,
        "mixed-bg" => options.mixed = on,
        _ => return Err(unknown("feature", name)),
    }
    Ok(())
}
