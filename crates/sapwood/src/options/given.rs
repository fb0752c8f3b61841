//! The options of a mount as text for other processes, and the options of a second mount.
//!
//! The daemon of a mount reports its options
//! ([`control::options`](crate::mount::control::options)). A second mount of the image shares the
//! daemon, so its options must be in effect already. Options are compared by their effect: `acl`
//! and `defaults` have none, and `commit=5` changes nothing where the interval is 5 seconds. Tests:
//! `a_second_mount_may_ask_for_what_is_in_effect`, `options_survive_their_text`.

use super::{Kind, OptionError, Options};

impl Options {
    /// The report of a mount of an image of `kind` with these options for other processes: the
    /// kind, then the options, one in each line.
    #[doc(hidden)]
    #[must_use]
    pub fn to_text(&self, kind: Kind) -> String {
        let given = self.given.iter().map(|(_, option)| option.as_str());
        let lines: Vec<&str> = std::iter::once(kind.name()).chain(given).collect();
        lines.join("\n")
    }

    /// The inverse of [`to_text`](Self::to_text). `None` if it is no such text, or an option is
    /// unknown to this version.
    #[doc(hidden)]
    #[must_use]
    pub fn from_text(text: &str) -> Option<(Self, Kind)> {
        let mut lines = text.lines();
        let kind = lines.next()?.parse().ok()?;
        let mut options = Self::default();
        for line in lines {
            options.take_text(line).ok()?;
        }
        Some((options, kind))
    }

    /// Whether all options in `list` are in effect for a mount of an image of `kind` with these
    /// options.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set); [`OptionError::Foreign`].
    #[doc(hidden)]
    pub fn include(&self, list: &str, kind: Kind) -> Result<bool, OptionError> {
        let mut with = self.clone();
        with.take_list(list)?;
        with.refuse_foreign(kind)?;
        Ok(with.effect() == self.effect())
    }

    /// The options without their texts, and each device once.
    fn effect(&self) -> Self {
        let mut effect = self.clone();
        effect.given.clear();
        effect.commit_is_chosen = false;
        effect.devices.sort_unstable();
        effect.devices.dedup();
        effect
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(list: &str) -> Options {
        let mut options = Options::default();
        options.set_list(list).unwrap();
        options
    }

    #[test]
    fn a_second_mount_may_ask_for_what_is_in_effect() {
        for (first, second, kind, wanted) in [
            ("rw", "acl,user_xattr", Kind::Ext4, true),
            ("acl,user_xattr", "acl,user_xattr", Kind::Ext4, true),
            ("acl,commit=5", "defaults,noauto,x-a=b", Kind::Ext4, true),
            ("commit=7", "commit=7", Kind::Btrfs, true),
            ("commit=7", "commit=8", Kind::Btrfs, false),
            ("commit=7,commit=9", "commit=7", Kind::Btrfs, false),
            ("commit=7", "", Kind::Btrfs, true),
            ("rw", "data=ordered", Kind::Ext4, true),
            ("rw", "data=journal", Kind::Ext4, false),
            ("compress=zstd", "compress=zstd:3", Kind::Btrfs, true),
            ("compress=zstd", "compress=zstd:4", Kind::Btrfs, false),
            ("subvol=a", "subvol=a", Kind::Btrfs, true),
            ("subvol=a", "subvol=b", Kind::Btrfs, false),
            ("rw", "allow_other", Kind::Btrfs, false),
            ("allow_other", "allow_other", Kind::Btrfs, true),
            ("device=/b", "device=/b", Kind::Btrfs, true),
            ("device=/b", "device=/c", Kind::Btrfs, false),
            ("sync", "sync,dirsync", Kind::Btrfs, false),
        ] {
            let found = parsed(first).include(second, kind);
            assert_eq!(found, Ok(wanted), "{first}; {second}");
        }
        let foreign = parsed("rw").include("compress", Kind::Ext4);
        assert!(matches!(foreign, Err(OptionError::Foreign { .. })));
        let unknown = parsed("rw").include("colour=red", Kind::Ext4);
        assert!(matches!(unknown, Err(OptionError::Unknown(_))));
    }

    #[test]
    fn options_survive_their_text() {
        for list in [
            "",
            "ro,norecovery",
            "compress=zstd:7,subvol=a/b c,threads=3",
        ] {
            let options = parsed(list);
            let read = Options::from_text(&options.to_text(Kind::Btrfs));
            assert_eq!(read, Some((options, Kind::Btrfs)));
        }
        let mut timed = Options::default();
        timed.set_commit_interval(Duration::from_secs(5));
        let (read, _) = Options::from_text(&timed.to_text(Kind::Ext4)).unwrap();
        assert_eq!(read.include("commit=5", Kind::Ext4), Ok(true));
        for text in ["", "xfs", "ext4\ncolour=red"] {
            assert_eq!(Options::from_text(text), None, "{text}");
        }
    }
}
