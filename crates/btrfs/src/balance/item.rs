//! The item that records a balance in progress. The kernel continues such a balance when it mounts
//! the file system, unless the mount option `skip_balance` is given. [`resume`](super::resume)
//! continues a balance of the kernel.

use std::sync::Arc;

use sapwood_btrfs_format::{
    BalanceArgs, BalanceArgsFlags, BalanceFlags, BalanceItem, Key, SINGLE_PROFILE, kind, objectid,
};

use super::{BalanceError, BalanceOptions, Filter, Result};
use crate::mkfs::Profile;
use crate::transaction::Store;

const KEY: Key = Key {
    objectid: objectid::BALANCE,
    kind: kind::BALANCE_ITEM,
    offset: 0,
};

/// The balance that the file system records; `None` if there is none.
///
/// # Errors
/// Unreadable blocks; [`BalanceError::Unsupported`] if its filters are not known here.
pub(crate) fn read(store: &Store) -> Result<Option<BalanceOptions>> {
    let root = &store.roots.root_tree;
    let Some(found) = root.get(store, &KEY)? else {
        return Ok(None);
    };
    let bad = |source| crate::Error::BadItem {
        root: root.id(),
        key: KEY,
        source,
    };
    let item = BalanceItem::read(&found).map_err(bad)?;
    let flags = BalanceFlags::from_bits_retain(item.flags.get());
    let filter = |content, args: &BalanceArgs| {
        let chosen = flags.contains(content);
        chosen.then(|| filter_of(args)).transpose()
    };
    Ok(Some(BalanceOptions {
        data: filter(BalanceFlags::DATA, &item.data)?,
        metadata: filter(BalanceFlags::METADATA, &item.metadata)?,
        system: filter(BalanceFlags::SYSTEM, &item.system)?,
        force: flags.contains(BalanceFlags::FORCE),
        ..BalanceOptions::default()
    }))
}

/// Whether the file system records a balance.
pub(crate) fn is_there(store: &Store) -> crate::Result<bool> {
    Ok(store.roots.root_tree.get(store, &KEY)?.is_some())
}

/// Records a balance, durably. An earlier record is replaced.
///
/// # Errors
/// No space, unreadable blocks.
pub(super) fn write(store: &Arc<Store>, options: &BalanceOptions) -> Result<()> {
    let mut item = BalanceItem::default();
    let mut flags = BalanceFlags::empty();
    flags.set(BalanceFlags::FORCE, options.force);
    let parts = [
        (BalanceFlags::DATA, &options.data, &mut item.data),
        (
            BalanceFlags::METADATA,
            &options.metadata,
            &mut item.metadata,
        ),
        (BalanceFlags::SYSTEM, &options.system, &mut item.system),
    ];
    for (content, filter, args) in parts {
        if let Some(filter) = filter {
            flags |= content;
            *args = args_of(filter);
        }
    }
    item.flags = flags.bits().into();
    change(store, |h| {
        h.store().roots.root_tree.clone().put(h, &KEY, item.bytes())
    })
}

/// Removes the record, durably. False if there is none.
///
/// # Errors
/// No space, unreadable blocks.
pub(super) fn remove(store: &Arc<Store>) -> Result<bool> {
    if !is_there(store)? {
        return Ok(false);
    }
    change(store, |h| {
        let root = h.store().roots.root_tree.clone();
        root.delete(h, &KEY).map(drop)
    })?;
    Ok(true)
}

fn change(
    store: &Arc<Store>,
    work: impl FnOnce(&mut crate::transaction::Handle) -> crate::Result<()>,
) -> Result<()> {
    let mut h = store.start_urgent(1)?;
    let transid = h.transid();
    let worked = work(&mut h);
    h.finish(worked)?;
    Ok(store.commit_and_unpin(Some(transid))?)
}

fn bits_of(profile: Profile) -> u64 {
    match profile.flags().bits() {
        0 => SINGLE_PROFILE,
        bits => bits,
    }
}

fn args_of(filter: &Filter) -> BalanceArgs {
    let mut args = BalanceArgs::default();
    let mut flags = BalanceArgsFlags::empty();
    if !filter.profiles.is_empty() {
        flags |= BalanceArgsFlags::PROFILES;
        let bits = filter.profiles.iter().map(|profile| bits_of(*profile));
        args.profiles = bits.fold(0, |all, bits| all | bits).into();
    }
    if let Some(usage) = &filter.usage {
        flags |= BalanceArgsFlags::USAGE_RANGE;
        let percent = |bound: u64| u32::try_from(bound.min(100)).unwrap_or(100);
        args.usage_min = percent(*usage.start()).into();
        args.usage_max = percent(*usage.end()).into();
    }
    if let Some(devid) = filter.devid {
        flags |= BalanceArgsFlags::DEVID;
        args.devid = devid.into();
    }
    if let Some(limit) = filter.limit {
        flags |= BalanceArgsFlags::LIMIT;
        args.limit_min = (limit as u32).into();
        args.limit_max = ((limit >> 32) as u32).into();
    }
    if let Some(profile) = filter.convert {
        flags |= BalanceArgsFlags::CONVERT;
        args.target = bits_of(profile).into();
        flags.set(BalanceArgsFlags::SOFT, filter.soft);
    }
    args.flags = flags.bits().into();
    args
}

fn filter_of(args: &BalanceArgs) -> Result<Filter> {
    let flags = args.in_use();
    let known = BalanceArgsFlags::PROFILES
        | BalanceArgsFlags::USAGE
        | BalanceArgsFlags::USAGE_RANGE
        | BalanceArgsFlags::DEVID
        | BalanceArgsFlags::LIMIT
        | BalanceArgsFlags::CONVERT
        | BalanceArgsFlags::SOFT;
    let other = flags.difference(known);
    if !other.is_empty() {
        let names: Vec<_> = other.iter_names().map(|(name, _)| name).collect();
        return Err(BalanceError::Unsupported(names.join(", ").to_lowercase()));
    }
    let mut filter = Filter::default();
    if flags.contains(BalanceArgsFlags::PROFILES) {
        let has = |profile: &Profile| args.profiles.get() & bits_of(*profile) != 0;
        filter.profiles = Profile::ALL.into_iter().filter(has).collect();
    }
    if flags.contains(BalanceArgsFlags::USAGE) {
        filter.usage = Some(0..=args.usage());
    }
    if flags.contains(BalanceArgsFlags::USAGE_RANGE) {
        filter.usage = Some(args.usage_min.get().into()..=args.usage_max.get().into());
    }
    if flags.contains(BalanceArgsFlags::DEVID) {
        filter.devid = Some(args.devid.get());
    }
    if flags.contains(BalanceArgsFlags::LIMIT) {
        filter.limit = Some(args.limit());
    }
    if flags.contains(BalanceArgsFlags::CONVERT) {
        let target = args.target.get();
        let mut all = Profile::ALL.into_iter();
        let profile = all.find(|profile| bits_of(*profile) == target);
        let unknown = || BalanceError::Unsupported(format!("conversion to profile {target:#x}"));
        filter.convert = Some(profile.ok_or_else(unknown)?);
        // The groups that have it are done.
        filter.soft = true;
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_come_back_from_the_item() {
        let all = Filter {
            usage: Some(10..=50),
            profiles: vec![Profile::Single, Profile::Raid1],
            devid: Some(3),
            limit: Some(1 << 33),
            convert: Some(Profile::Raid1c3),
            soft: true,
        };
        let back = filter_of(&args_of(&all)).unwrap();
        assert_eq!(format!("{back:?}"), format!("{all:?}"));
        let none = filter_of(&args_of(&Filter::default())).unwrap();
        assert_eq!(format!("{none:?}"), format!("{:?}", Filter::default()));
    }

    #[test]
    fn unknown_filters_are_refused_by_name() {
        let unknown = BalanceArgsFlags::VRANGE | BalanceArgsFlags::STRIPES_RANGE;
        let mut args = BalanceArgs {
            flags: unknown.bits().into(),
            ..BalanceArgs::default()
        };
        let refused = filter_of(&args).unwrap_err();
        assert!(
            refused.to_string().contains("vrange, stripes_range"),
            "{refused}"
        );
        args.flags = BalanceArgsFlags::CONVERT.bits().into();
        args.target = 128.into();
        assert!(filter_of(&args).is_err());
    }
}
