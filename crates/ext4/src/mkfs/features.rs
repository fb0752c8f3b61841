//! Features of a new file system.
//!
//! The defaults are the ext4 features of Debian's `mke2fs.conf`. Features that only change the
//! layout of an image, and that the engine can write, can be switched. They exclude each other as
//! in `mke2fs`.

use sapwood_ext4_format::{Compat, Features, Incompat, RoCompat};

use super::error::MkfsError;

const DEFAULT: Features = Features {
    compat: Compat::HAS_JOURNAL
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX),
    incompat: Incompat::FILETYPE
        .union(Incompat::EXTENTS)
        .union(Incompat::BIT64)
        .union(Incompat::FLEX_BG),
    ro_compat: RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::METADATA_CSUM),
};

/// Features that can be switched.
const CHOICE: Features = Features {
    compat: DEFAULT
        .compat
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::FAST_COMMIT)
        .union(Compat::STABLE_INODES)
        .union(Compat::ORPHAN_FILE),
    incompat: DEFAULT
        .incompat
        .union(Incompat::META_BG)
        .union(Incompat::MMP)
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGEDIR)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::ENCRYPT),
    ro_compat: DEFAULT
        .ro_compat
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::PROJECT)
        .union(RoCompat::QUOTA)
        .union(RoCompat::VERITY),
};

/// Other names of features that the tools accept.
const ALIASES: &[(&str, &str)] = &[
    ("extents", "extent"),
    ("uninit_groups", "uninit_bg"),
    ("largedir", "large_dir"),
];

/// A feature by its name, in its word.
fn named(name: &str) -> Option<Features> {
    let alias = ALIASES.iter().find(|(other, _)| *other == name);
    let name = alias.map_or(name, |(_, name)| name);
    let none = Features::default();
    (0..32).map(|bit| 1 << bit).find_map(|bit| {
        let (compat, incompat, ro_compat) = (
            Compat::from_bits_retain(bit),
            Incompat::from_bits_retain(bit),
            RoCompat::from_bits_retain(bit),
        );
        let is = |names: Vec<String>| names.iter().any(|own| own == name);
        if is(compat.names()) {
            Some(Features { compat, ..none })
        } else if is(incompat.names()) {
            Some(Features { incompat, ..none })
        } else if is(ro_compat.names()) {
            Some(Features { ro_compat, ..none })
        } else {
            None
        }
    })
}

/// Applies names that are switched on or off, in order, to the defaults; `none` clears all.
///
/// # Errors
/// [`MkfsError::UnknownFeature`], [`MkfsError::UnsupportedFeature`], [`MkfsError::Needs`],
/// [`MkfsError::Conflict`].
pub(super) fn resolve(changes: &[(String, bool)]) -> Result<Features, MkfsError> {
    let mut features = DEFAULT;
    for (name, on) in changes {
        if name == "none" && *on {
            features = Features::default();
            continue;
        }
        let Some(one) = named(name) else {
            return Err(MkfsError::UnknownFeature(name.clone()));
        };
        let choice = CHOICE.compat.contains(one.compat)
            && CHOICE.incompat.contains(one.incompat)
            && CHOICE.ro_compat.contains(one.ro_compat);
        if *on && !choice {
            return Err(MkfsError::UnsupportedFeature(name.clone()));
        }
        features.compat.set(one.compat, *on);
        features.incompat.set(one.incompat, *on);
        features.ro_compat.set(one.ro_compat, *on);
    }
    if features.metadata_csum() {
        // The better checksum of descriptors replaces the older one.
        features.ro_compat.remove(RoCompat::GDT_CSUM);
    }
    check(&features)?;
    Ok(features)
}

fn check(features: &Features) -> Result<(), MkfsError> {
    let needs = |feature, needs| Err(MkfsError::Needs { feature, needs });
    let journal = features.has_compat(Compat::HAS_JOURNAL);
    if features.has_compat(Compat::ORPHAN_FILE) && !journal {
        return needs("orphan_file", "has_journal");
    }
    if features.has_compat(Compat::FAST_COMMIT) && !journal {
        return needs("fast_commit", "has_journal");
    }
    if features.has_ro_compat(RoCompat::QUOTA) && features.has_incompat(Incompat::EA_INODE) {
        return Err(MkfsError::Conflict("quota", "ea_inode"));
    }
    if features.has_incompat(Incompat::CSUM_SEED) && !features.metadata_csum() {
        return needs("metadata_csum_seed", "metadata_csum");
    }
    if features.has_incompat(Incompat::BIT64) && !features.has_incompat(Incompat::EXTENTS) {
        return needs("64bit", "extent");
    }
    if features.has_compat(Compat::RESIZE_INODE) {
        if features.has_incompat(Incompat::META_BG) {
            return Err(MkfsError::Conflict("resize_inode", "meta_bg"));
        }
        if !features.has_ro_compat(RoCompat::SPARSE_SUPER)
            && !features.has_compat(Compat::SPARSE_SUPER2)
        {
            return needs("resize_inode", "sparse_super");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(list: &str) -> Result<Features, String> {
        let changes: Vec<_> = list
            .split(',')
            .map(|word| match word.strip_prefix('^') {
                Some(name) => (name.to_owned(), false),
                None => (word.to_owned(), true),
            })
            .collect();
        resolve(&changes).map_err(|error| error.to_string())
    }

    #[test]
    fn every_choice_has_its_name() {
        for name in CHOICE.names() {
            let one = named(&name).unwrap();
            assert_eq!(one.names(), [name]);
        }
    }

    #[test]
    fn features_are_switched_in_order() {
        let found = resolved("none,extents,^extent,filetype").unwrap();
        assert_eq!(found.names(), ["filetype"]);
        let found = resolved("uninit_bg").unwrap();
        assert_eq!(found, DEFAULT);
        let found = resolved("uninit_bg,^metadata_csum").unwrap();
        assert!(found.has_ro_compat(RoCompat::GDT_CSUM) && !found.metadata_csum());
    }

    #[test]
    fn impossible_features_are_refused_by_name() {
        for (list, why) in [
            ("turbo", "unknown feature turbo"),
            ("^turbo", "unknown feature turbo"),
            ("bigalloc", "feature bigalloc is not supported"),
            ("casefold", "feature casefold is not supported"),
            (
                "quota,ea_inode",
                "features quota and ea_inode exclude each other",
            ),
            ("journal_dev", "feature journal_dev is not supported"),
            ("^extent", "feature 64bit needs extent"),
            (
                "^has_journal,orphan_file",
                "feature orphan_file needs has_journal",
            ),
            (
                "^has_journal,fast_commit",
                "feature fast_commit needs has_journal",
            ),
            (
                "^metadata_csum,metadata_csum_seed",
                "feature metadata_csum_seed needs metadata_csum",
            ),
            (
                "meta_bg",
                "features resize_inode and meta_bg exclude each other",
            ),
            ("^sparse_super", "feature resize_inode needs sparse_super"),
        ] {
            assert_eq!(resolved(list), Err(why.to_owned()), "{list}");
        }
    }
}
