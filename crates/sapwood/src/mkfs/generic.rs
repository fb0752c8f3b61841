//! Options of every format.

use super::table::{Form, Meaning, MkfsOption, bad};
use super::{MkfsOptionError, btrfs, ext4};
use crate::Kind;
use crate::options::parse_size;

type Taken = Result<(), MkfsOptionError>;

/// Their declarations.
pub(super) const OPTIONS: &[MkfsOption] = &[
    MkfsOption::new(
        None,
        Some("size"),
        Form::Value("SIZE"),
        &[Meaning::all(
            "size of the image: bytes, or with k, M, G, T",
            |options, name, value| {
                options.set_size(size(name, value)?);
                Ok(())
            },
        )],
    ),
    MkfsOption::new(
        Some('b'),
        None,
        Form::Value("BYTES"),
        &[
            Meaning::of(Kind::Btrfs, "the same as --size", btrfs::size_by_letter),
            Meaning::of(Kind::Ext4, "block size: 1k, 2k or 4k", ext4::block_size)
                .default("depends on the size"),
        ],
    ),
    MkfsOption::new(
        Some('L'),
        Some("label"),
        Form::Value("LABEL"),
        &[Meaning::all(
            "label: btrfs up to 255 bytes, ext4 up to 16",
            |options, _, value| {
                options.set_label(value.to_owned());
                Ok(())
            },
        )],
    ),
    MkfsOption::new(
        Some('U'),
        Some("uuid"),
        Form::Value("UUID"),
        &[
            Meaning::all("UUID of the file system", |options, name, value| {
                options.set_uuid(uuid(value).ok_or_else(|| bad(name, value))?);
                Ok(())
            })
            .default("random"),
        ],
    ),
    MkfsOption::new(
        Some('O'),
        Some("features"),
        Form::List("FEATURE,..."),
        &[
            Meaning::of(
                Kind::Btrfs,
                "features, with ^ to switch off: no-holes, free-space-tree, block-group-tree, extref, skinny-metadata, mixed-bg",
                btrfs::feature,
            ),
            Meaning::of(
                Kind::Ext4,
                "features, with ^ to switch off, as in mke2fs",
                ext4::feature,
            ),
        ],
    ),
    MkfsOption {
        alias: Some("owner"),
        ..MkfsOption::new(
            None,
            Some("root-owner"),
            Form::Value("UID:GID"),
            &[
                Meaning::all("owner of the root directory", |options, name, value| {
                    let (uid, gid) = owner(value).ok_or_else(|| bad(name, value))?;
                    options.set_root_owner(uid, gid);
                    Ok(())
                })
                .default("root, or the caller if an ordinary user"),
            ],
        )
    },
    MkfsOption::new(
        Some('m'),
        Some("metadata"),
        Form::Value("PROFILE|PERCENT"),
        &[
            Meaning::of(
                Kind::Btrfs,
                "copies of metadata, the profiles of --data",
                btrfs::metadata,
            )
            .default("dup, or raid1 on several devices"),
            Meaning::of(
                Kind::Ext4,
                "percentage of blocks reserved for root",
                ext4::reserved,
            )
            .default("5"),
        ],
    ),
    MkfsOption {
        short_alias: Some('F'),
        ..MkfsOption::new(
            Some('f'),
            Some("force"),
            Form::Alone,
            &[Meaning::all(
                "overwrite an existing file system",
                |options, _, _| {
                    (options.btrfs.force, options.ext4.force) = (true, true);
                    Ok(())
                },
            )],
        )
    },
];

pub(super) fn size(name: &str, value: &str) -> Result<u64, MkfsOptionError> {
    parse_size(value).ok_or_else(|| MkfsOptionError::NotASize {
        option: name.to_owned(),
        value: value.to_owned(),
    })
}

pub(super) fn uuid(value: &str) -> Option<[u8; 16]> {
    Some(uuid::Uuid::parse_str(value).ok()?.into_bytes())
}

pub(super) fn owner(value: &str) -> Option<(u32, u32)> {
    let (uid, gid) = value.split_once(':')?;
    Some((uid.parse().ok()?, gid.parse().ok()?))
}

/// A number of a type that may be smaller than a size.
pub(super) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, MkfsOptionError> {
    value.parse().map_err(|_| bad(name, value))
}

/// A feature's name, and whether it is switched on.
pub(super) fn switched(feature: &str) -> (&str, bool) {
    match feature.strip_prefix('^') {
        Some(name) => (name, false),
        None => (feature, true),
    }
}

/// For the closures of a declaration.
pub(super) fn store<T>(place: &mut T, value: T) -> Taken {
    *place = value;
    Ok(())
}
