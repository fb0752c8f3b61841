//! Options of ext4, as in mke2fs.

use sapwood_ext4::mkfs::{DirHash, OnError};

use super::generic::{number, owner, size, store, switched, uuid};
use super::table::{Form, Meaning, MkfsOption, bad};
use super::{MkfsOptionError, MkfsOptions};
use crate::Kind;

type Taken = Result<(), MkfsOptionError>;

/// Their declarations.
pub(super) const OPTIONS: &[MkfsOption] = &[
    MkfsOption::new(
        Some('I'),
        Some("inode-size"),
        Form::Value("BYTES"),
        &[
            Meaning::of(Kind::Ext4, "inode size", |options, name, value| {
                store(&mut options.ext4.inode_size, Some(number(name, value)?))
            })
            .default("256"),
        ],
    ),
    MkfsOption::new(
        Some('N'),
        Some("inodes"),
        Form::Value("COUNT"),
        &[Meaning::of(
            Kind::Ext4,
            "number of inodes",
            |options, name, value| {
                store(&mut options.ext4.inodes, Some(number(name, value)?))?;
                one_of(options)
            },
        )],
    ),
    MkfsOption::new(
        Some('i'),
        Some("bytes-per-inode"),
        Form::Value("BYTES"),
        &[Meaning::of(
            Kind::Ext4,
            "bytes of the file system per inode",
            |options, name, value| {
                store(&mut options.ext4.bytes_per_inode, Some(size(name, value)?))?;
                one_of(options)
            },
        )
        .default("16k")],
    ),
    MkfsOption::new(
        Some('E'),
        Some("extended"),
        Form::List("OPTION,..."),
        &[Meaning::of(
            Kind::Ext4,
            "extended options: lazy_itable_init[=0|1], lazy_journal_init[=0|1], \
             root_owner[=UID:GID], hash_seed=UUID, hash_alg=half_md4|tea|legacy, stride=BLOCKS, \
             stripe_width=BLOCKS, mmp_update_interval=SECONDS, nodiscard",
            extended,
        )],
    ),
    MkfsOption::new(
        Some('g'),
        Some("blocks-per-group"),
        Form::Value("BLOCKS"),
        &[
            Meaning::of(Kind::Ext4, "blocks per group", |options, name, value| {
                store(
                    &mut options.ext4.blocks_per_group,
                    Some(number(name, value)?),
                )
            })
            .default("all bits of a bitmap"),
        ],
    ),
    MkfsOption::new(
        Some('G'),
        Some("flex-groups"),
        Form::Value("GROUPS"),
        &[Meaning::of(
            Kind::Ext4,
            "groups that share a metadata area, a power of two",
            |options, name, value| store(&mut options.ext4.flex_groups, number(name, value)?),
        )
        .default("16")],
    ),
    MkfsOption::new(
        Some('J'),
        Some("journal"),
        Form::List("size=MEGABYTES|device=FILE"),
        &[Meaning::of(
            Kind::Ext4,
            "size of the journal, or the device that has it, made with -O journal_dev",
            journal,
        )
        .default("depends on the size")],
    ),
    MkfsOption::new(
        Some('e'),
        Some("errors"),
        Form::Value("continue|remount-ro|panic"),
        &[Meaning::of(
            Kind::Ext4,
            "reaction of the kernel to an error",
            |options, name, value| {
                options.ext4.on_error = match value {
                    "continue" => OnError::Continue,
                    "remount-ro" => OnError::ReadOnly,
                    "panic" => OnError::Panic,
                    _ => return Err(bad(name, value)),
                };
                Ok(())
            },
        )
        .default("continue")],
    ),
];

/// Fails if the number of inodes is given in two ways.
fn one_of(options: &MkfsOptions) -> Taken {
    if !(options.ext4.inodes.is_some() && options.ext4.bytes_per_inode.is_some()) {
        Ok(())
    } else {
        Err(MkfsOptionError::Conflict {
            one: "-N",
            other: "-i",
        })
    }
}

pub(super) fn block_size(options: &mut MkfsOptions, name: &str, value: &str) -> Taken {
    let bytes = u32::try_from(size(name, value)?).map_err(|_| bad(name, value))?;
    store(&mut options.ext4.block_size, Some(bytes))
}

pub(super) fn reserved(options: &mut MkfsOptions, name: &str, value: &str) -> Taken {
    let percent = value.parse().ok();
    let percent = percent.filter(|percent| (0.0..=50.0).contains(percent));
    store(
        &mut options.ext4.reserved_percent,
        percent.ok_or_else(|| bad(name, value))?,
    )
}

/// A feature. The engine refuses one that does not exist.
pub(super) fn feature(options: &mut MkfsOptions, _: &str, value: &str) -> Taken {
    let (name, on) = switched(value);
    options.ext4.features.push((name.to_owned(), on));
    Ok(())
}

fn journal(options: &mut MkfsOptions, name: &str, value: &str) -> Taken {
    let device = value.strip_prefix("device=");
    if let Some(device) = device.filter(|device| !device.is_empty()) {
        options.journal = Some(device.into());
        return Ok(());
    }
    let megabytes: Option<u64> = value
        .strip_prefix("size=")
        .and_then(|value| value.trim_end_matches(['M', 'm']).parse().ok());
    let bytes = megabytes.and_then(|megabytes| megabytes.checked_mul(1 << 20));
    store(
        &mut options.ext4.journal_size,
        Some(bytes.ok_or_else(|| bad(name, value))?),
    )
}

fn extended(options: &mut MkfsOptions, letter: &str, given: &str) -> Taken {
    let engine = &mut options.ext4;
    let bad = || bad(letter, given);
    let (name, value) = match given.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (given, None),
    };
    let switch = || match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err(bad()),
    };
    let number =
        || -> Result<u32, _> { value.and_then(|value| value.parse().ok()).ok_or_else(bad) };
    match name {
        "lazy_itable_init" => engine.lazy_itable_init = switch()?,
        // The journal is always complete on disk: it is zeroed or discarded.
        "lazy_journal_init" => drop(switch()?),
        "discard" => engine.discard = switch()?,
        "nodiscard" => engine.discard = false,
        "stride" => engine.stride = u16::try_from(number()?).map_err(|_| bad())?,
        "stripe_width" | "stripe-width" => engine.stripe_width = number()?,
        "mmp_update_interval" => {
            engine.mmp_update_interval = Some(u16::try_from(number()?).map_err(|_| bad())?);
        }
        "hash_seed" => engine.hash_seed = Some(value.and_then(uuid).ok_or_else(bad)?),
        "root_owner" => {
            engine.root_owner = match value {
                None => (
                    rustix::process::getuid().as_raw(),
                    rustix::process::getgid().as_raw(),
                ),
                Some(value) => owner(value).ok_or_else(bad)?,
            };
            options.root_owner = Some(engine.root_owner);
        }
        "hash_alg" => {
            engine.dir_hash = match value {
                Some("half_md4") => DirHash::HalfMd4,
                Some("tea") => DirHash::Tea,
                Some("legacy") => DirHash::Legacy,
                _ => return Err(bad()),
            };
        }
        _ => {
            return Err(MkfsOptionError::UnknownName {
                what: "extended option",
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}
