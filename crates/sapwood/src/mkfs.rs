//! Creation of a file system on a device, and its options.
//!
//! Each option is declared once ([`table`]), with its meaning for each format. Parsing, the help of
//! `sapwood mkfs`, `sapwood mkfs-options`, `docs/mkfs-options.md` and the error for an option of
//! the other format follow from the declaration.

mod btrfs;
mod ext4;
mod generic;
pub(crate) mod table;

use std::path::{Path, PathBuf};

use sapwood_block::Device;
use sapwood_btrfs::mkfs as btrfs_mkfs;
use sapwood_ext4::JournalDevice;
use sapwood_ext4::mkfs as ext4_mkfs;

use crate::Kind;
use crate::image::{OpenError, named, open_device};
use crate::options::Options;

/// Why an option of mkfs is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsOptionError {
    /// No format has it.
    #[error("unknown option {0}")]
    Unknown(String),
    /// It needs a value.
    #[error("{0} needs a value")]
    NoValue(String),
    /// The value makes no sense.
    #[error("{option}: {value} makes no sense")]
    BadValue {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// The value has to be a size.
    #[error("{option}: {value} is not a size: bytes, or a number with k, M, G or T")]
    NotASize {
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// There is no such checksum, profile, feature or extended option.
    #[error("unknown {what} {name}")]
    UnknownName {
        /// The kind of value.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Only the other format has it.
    #[error("{option} means nothing for {kind}")]
    Foreign {
        /// The option.
        option: String,
        /// The format that lacks it.
        kind: Kind,
    },
    /// Two options contradict each other.
    #[error("{one} and {other} exclude each other")]
    Conflict {
        /// The first option.
        one: &'static str,
        /// The second option.
        other: &'static str,
    },
}

/// Why a file system was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// btrfs cannot be made so.
    #[error("{}", named(path, source))]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// A bad option, or an error of the device.
        source: Box<btrfs_mkfs::MkfsError>,
    },
    /// Several devices, for a format that has one.
    #[error("{}: {kind} has one device", path.display())]
    OneDevice {
        /// The image.
        path: PathBuf,
        /// The format.
        kind: Kind,
    },
    /// The device with the journal cannot be opened.
    #[error("{}", named(path, source))]
    Journal {
        /// The device with the journal.
        path: PathBuf,
        /// The reason.
        source: Box<OpenError>,
    },
    /// ext4 cannot be made so.
    #[error("{}", named(path, source))]
    Ext4 {
        /// The image.
        path: PathBuf,
        /// A bad option, or an error of the device.
        source: Box<ext4_mkfs::MkfsError>,
    },
}

/// Report of mkfs.
#[derive(Debug, Clone)]
pub enum MkfsReport {
    /// btrfs.
    Btrfs(btrfs_mkfs::MkfsReport),
    /// ext4.
    Ext4(ext4_mkfs::MkfsReport),
}

impl MkfsReport {
    /// UUID of the file system.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        match self {
            Self::Btrfs(report) => report.uuid,
            Self::Ext4(report) => report.uuid,
        }
    }

    /// Bytes of the device that the file system uses.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Btrfs(report) => report.size,
            Self::Ext4(report) => report.size,
        }
    }
}

/// Format and options of a new file system.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    kind: Kind,
    size: Option<u64>,
    root_owner: Option<(u32, u32)>,
    /// The device with the journal of an ext4.
    journal: Option<PathBuf>,
    btrfs: btrfs_mkfs::MkfsOptions,
    ext4: ext4_mkfs::MkfsOptions,
}

impl MkfsOptions {
    /// The defaults of a format.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            size: None,
            root_owner: None,
            journal: None,
            btrfs: btrfs_mkfs::MkfsOptions::default(),
            ext4: ext4_mkfs::MkfsOptions::default(),
        }
    }

    /// Takes an option by its name on the command line, long or short, without dashes: `label`,
    /// `L`.
    ///
    /// # Errors
    /// No option has that name, the other format has it, or the value makes no sense.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> crate::Result<()> {
        Ok(self.take(name, value)?)
    }

    fn take(&mut self, name: &str, value: Option<&str>) -> Result<(), MkfsOptionError> {
        let option = table::find(name).ok_or_else(|| MkfsOptionError::Unknown(name.to_owned()))?;
        option.take(self, value)
    }

    /// The format.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of the file system, if they were chosen.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The label.
    #[must_use]
    pub fn label(&self) -> &str {
        match self.kind {
            Kind::Btrfs => &self.btrfs.label,
            Kind::Ext4 => &self.ext4.label,
        }
    }

    /// Owner and group of the root directory, if they were chosen.
    #[must_use]
    pub fn root_owner(&self) -> Option<(u32, u32)> {
        self.root_owner
    }

    /// Whether an existing file system is overwritten.
    #[must_use]
    pub fn forced(&self) -> bool {
        self.btrfs.force
    }

    /// Whether to discard a device first. The default is yes.
    pub fn set_discard(&mut self, discard: bool) {
        (self.btrfs.discard, self.ext4.discard) = (discard, discard);
    }

    pub(crate) fn set_size(&mut self, bytes: u64) {
        self.size = Some(bytes);
    }

    pub(crate) fn set_label(&mut self, label: String) {
        self.btrfs.label.clone_from(&label);
        self.ext4.label = label;
    }

    pub(crate) fn set_uuid(&mut self, uuid: [u8; 16]) {
        (self.btrfs.uuid, self.ext4.uuid) = (Some(uuid), Some(uuid));
    }

    /// Whether the options make a journal device, which has no files.
    #[doc(hidden)]
    #[must_use]
    pub fn is_journal_device(&self) -> bool {
        self.kind == Kind::Ext4 && self.ext4.asks_for("journal_dev")
    }

    /// The property of the image that excludes a later change of its size.
    pub(crate) fn fixes_size(&self) -> Option<&'static str> {
        let external = self.kind == Kind::Ext4 && self.journal.is_some();
        external.then_some("its journal on another device")
    }

    /// Has `options` open the file system that these options make, with its journal.
    #[doc(hidden)]
    #[must_use]
    pub fn opening(&self, options: Options) -> Options {
        match &self.journal {
            Some(path) => options.journal(path),
            None => options,
        }
    }

    /// Removes the chosen size.
    pub(crate) fn clear_size(&mut self) {
        self.size = None;
    }

    /// Chooses the bytes of a block and of an inode of an ext4.
    pub(crate) fn set_ext4_units(&mut self, block: u64, inode: u16) {
        self.ext4.block_size = u32::try_from(block).ok();
        self.ext4.inode_size = Some(inode.into());
    }

    pub(crate) fn default_uuid(&mut self, uuid: [u8; 16]) {
        self.btrfs.uuid.get_or_insert(uuid);
        self.ext4.uuid.get_or_insert(uuid);
    }

    /// Every time in the new file system is this one, rounded down to seconds on ext4.
    pub fn set_time(&mut self, time: std::time::SystemTime) {
        let since = time.duration_since(std::time::UNIX_EPOCH);
        self.btrfs.time = Some(time);
        self.ext4.time = Some(since.map_or(0, |since| since.as_secs()));
    }

    /// The time of [`set_time`](Self::set_time).
    #[must_use]
    pub fn time(&self) -> Option<std::time::SystemTime> {
        self.btrfs.time
    }

    pub(crate) fn set_root_owner(&mut self, uid: u32, gid: u32) {
        self.root_owner = Some((uid, gid));
    }

    /// Sets unset sizes for an image that is filled and then shrunk: room for about `content` bytes
    /// of files and for at least `inodes` inodes. Returns the size of the image until then. The
    /// image is sparse.
    pub(crate) fn size_to_shrink(&mut self, content: u64, inodes: u64) -> u64 {
        let expected = content.saturating_add(inodes.saturating_mul(1024));
        match self.kind {
            Kind::Btrfs => {
                let nodes = u64::from(self.btrfs.node_size()) * 640;
                self.btrfs.metadata_chunk.get_or_insert(nodes);
                btrfs_room(content, inodes)
            }
            Kind::Ext4 => {
                let ext4 = &mut self.ext4;
                let block = ext4_mkfs::usual_block_size(expected);
                let block = *ext4.block_size.get_or_insert(block);
                let unit = u64::from(block).max(1024);
                let journal = ext4_mkfs::usual_journal(expected / unit, block);
                let journal = *ext4.journal_size.get_or_insert(journal);
                // An inode may take a block of its own for names or attributes. More room than that
                // costs time: data after the tables of removed groups is moved.
                let most = content / 8 * 9 + inodes.saturating_mul(4096);
                // Tables of inodes are a quarter of a group at most.
                let size = (most / 3).saturating_mul(4).saturating_add(journal);
                let size = size.saturating_add(64 << 20) & !0xf_ffff;
                if ext4.inodes.is_none() && ext4.bytes_per_inode.is_none() {
                    // The share of each group, so that the remaining groups have enough.
                    let group = ext4.blocks_per_group.map_or(8 * unit, u64::from) * unit;
                    let remaining = (content / group).max(1);
                    let each = inodes.div_ceil(remaining).min(8 * unit);
                    ext4.inodes = Some(each.saturating_mul(size.div_ceil(group)));
                }
                size
            }
        }
    }

    /// Whether the number of inodes of an ext4 was chosen.
    pub(crate) fn has_inodes(&self) -> bool {
        self.ext4.inodes.is_some() || self.ext4.bytes_per_inode.is_some()
    }

    /// Has ext4 make this many inodes, unless a number was chosen.
    pub(crate) fn suggest_inodes(&mut self, count: u64) {
        if !self.has_inodes() {
            self.ext4.inodes = Some(count);
        }
    }
}

/// A size in bytes at which a btrfs has more than enough room for `content` bytes of files and
/// `inodes` inodes.
pub(crate) fn btrfs_room(content: u64, inodes: u64) -> u64 {
    let most = (content / 4 * 5).saturating_add(inodes.saturating_mul(3 * 4096));
    most.saturating_mul(2).saturating_add(1 << 30) & !0xf_ffff
}

/// Makes a file system on a device that is open for writing and called `path` in errors. It uses
/// all of the device, or, with `whole` false, the chosen [size](MkfsOptions::size).
///
/// [`MkfsError`]. Nothing was written if the options contradict each other or if the device has a
/// file system.
pub fn mkfs(
    device: &dyn Device,
    path: &Path,
    options: &MkfsOptions,
    whole: bool,
) -> Result<MkfsReport, MkfsError> {
    mkfs_several(&[device], path, options, whole)
}

/// Makes a file system on several devices like [`mkfs`]. Errors call the first one `path`.
///
/// # Errors
/// [`MkfsError`], also for a format that has one device.
pub fn mkfs_several(
    devices: &[&dyn Device],
    path: &Path,
    options: &MkfsOptions,
    whole: bool,
) -> Result<MkfsReport, MkfsError> {
    let size = options.size.filter(|_| !whole);
    match options.kind {
        Kind::Btrfs => {
            let mut engine = options.btrfs.clone();
            engine.size = size;
            let made = btrfs_mkfs::mkfs_several(devices, &engine);
            made.map(MkfsReport::Btrfs)
                .map_err(|source| MkfsError::Btrfs {
                    path: path.to_owned(),
                    source: Box::new(source),
                })
        }
        Kind::Ext4 => {
            let [device] = devices else {
                return Err(MkfsError::OneDevice {
                    path: path.to_owned(),
                    kind: options.kind,
                });
            };
            let mut engine = options.ext4.clone();
            engine.size = size;
            if let Some(owner) = options.root_owner {
                engine.root_owner = owner;
            }
            if let Some(journal) = &options.journal {
                let opened = open_device(journal, false).map_err(|error| MkfsError::Journal {
                    path: journal.clone(),
                    source: Box::new(error),
                })?;
                engine.journal = Some(JournalDevice::new(opened));
            }
            let made = ext4_mkfs::mkfs(*device, &engine);
            made.map(MkfsReport::Ext4)
                .map_err(|source| MkfsError::Ext4 {
                    path: path.to_owned(),
                    source: Box::new(source),
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use sapwood_ext4::mkfs::DirHash;

    use super::*;

    fn parsed(kind: Kind, words: &str) -> Result<MkfsOptions, MkfsOptionError> {
        let mut options = MkfsOptions::new(kind);
        let mut words = words.split_whitespace();
        while let Some(word) = words.next() {
            let name = word.trim_start_matches('-');
            let alone = table::find(name).is_some_and(|option| option.form == table::Form::Alone);
            let value = if alone { None } else { words.next() };
            options.take(name, value)?;
        }
        Ok(options)
    }

    #[test]
    fn options_of_mke2fs_are_read() {
        let found = parsed(
            Kind::Ext4,
            "-b 1k -I 512 -N 100 -O ^has_journal,extent -m 0 -J size=8 -G 4 -L name \
             -E lazy_itable_init=1,stride=4,stripe_width=8,nodiscard,root_owner=1:2,hash_alg=tea",
        );
        let found = found.unwrap().ext4;
        assert_eq!(found.block_size, Some(1024));
        assert_eq!(found.inode_size, Some(512));
        assert_eq!(found.inodes, Some(100));
        let features = [
            ("has_journal".to_owned(), false),
            ("extent".to_owned(), true),
        ];
        assert_eq!(found.features, features);
        assert_eq!(found.reserved_percent, 0.0);
        assert_eq!(found.journal_size, Some(8 << 20));
        assert_eq!(found.flex_groups, 4);
        assert_eq!(found.label, "name");
        assert!(found.lazy_itable_init && !found.discard && !found.force);
        assert_eq!((found.stride, found.stripe_width), (4, 8));
        assert_eq!(found.root_owner, (1, 2));
        assert_eq!(found.dir_hash, DirHash::Tea);
        let found = parsed(Kind::Ext4, "-i 8k").unwrap().ext4;
        assert_eq!(found.bytes_per_inode, Some(8192));
    }

    #[test]
    fn options_of_mkfs_btrfs_are_read() {
        let found = parsed(
            Kind::Btrfs,
            "-b 1G -n 4k --checksum xxhash -d dup -m single -O ^no-holes,bgt --mixed --force",
        );
        let found = found.unwrap();
        assert_eq!(found.size(), Some(1 << 30));
        assert!(found.forced());
        let found = found.btrfs;
        assert_eq!(found.node_size, Some(4096));
        assert_eq!(found.checksum.to_string(), "xxhash64");
        assert_eq!(found.data, Some(btrfs_mkfs::Profile::Dup));
        assert_eq!(found.metadata, Some(btrfs_mkfs::Profile::Single));
        assert!(!found.no_holes && found.block_group_tree == Some(true) && found.mixed);
        let sized = parsed(Kind::Btrfs, "--size 2G -b 1G").unwrap();
        assert_eq!(sized.size(), Some(2 << 30));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "-m 60",
            "-m x",
            "-J size=x",
            "-J device=",
            "-E turbo",
            "-E stride",
            "-N 1 -i 8k",
            "--size x",
            "-U x",
            "--root-owner x",
            "-L",
            "--turbo",
        ] {
            assert!(parsed(Kind::Ext4, words).is_err(), "{words}");
        }
        for words in ["-m raid5", "-O turbo", "--checksum md5", "-n 5000x"] {
            assert!(parsed(Kind::Btrfs, words).is_err(), "{words}");
        }
    }

    #[test]
    fn an_option_of_the_other_format_is_named() {
        let error = parsed(Kind::Ext4, "--nodesize 16k").unwrap_err();
        assert_eq!(error.to_string(), "--nodesize means nothing for ext4");
        let error = parsed(Kind::Btrfs, "-E discard").unwrap_err();
        assert_eq!(error.to_string(), "-E means nothing for btrfs");
        for option in table::all() {
            for kind in Kind::ALL {
                let value = (option.form != table::Form::Alone).then_some("");
                let taken = option.take(&mut MkfsOptions::new(kind), value);
                let foreign = matches!(taken, Err(MkfsOptionError::Foreign { .. }));
                assert_eq!(
                    foreign,
                    option.meaning(kind).is_none(),
                    "{}",
                    option.usage()
                );
            }
        }
    }
}
