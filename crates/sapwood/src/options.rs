//! Options for opening and mounting an image, for both formats.
//!
//! # How it works
//! Options are given by name before the image is read. Each is declared once, with the kind of file
//! system that has it ([`table`]). A common option is set for every kind. An option of one kind is
//! set for that kind, and recorded with its name. When the image is opened its kind is known: an
//! option of another kind is then an error. Tests: `common_options_reach_every_engine`,
//! `foreign_options_are_refused`, `every_option_is_what_its_declaration_says`.

mod btrfs;
#[cfg(test)]
mod declarations;
mod devices;
mod ext4;
mod generic;
mod given;
mod mounting;
mod protection;
mod rescue;
pub mod table;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::Kind;
use crate::vfs::Timestamp;
pub use mounting::{Access, Choice, Mounting};
pub use rescue::{DeletedFiles, Rescue};

/// Why an option is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No file system has it.
    #[error("unknown mount option {0}")]
    Unknown(String),
    /// The option needs a value.
    #[error("mount option {0} needs a value")]
    NoValue(String),
    /// The value makes no sense.
    #[error("mount option {name}: {value} makes no sense")]
    BadValue {
        /// The option.
        name: String,
        /// Its value.
        value: String,
    },
    /// A known option that is not supported.
    #[error("mount option {option} is not supported: {why}")]
    Unsupported {
        /// Name and value.
        option: String,
        /// The reason.
        why: &'static str,
    },
    /// The option belongs to another kind of file system.
    #[error("mount option {option} is one of {of}, and this is {found}")]
    Foreign {
        /// The option.
        option: String,
        /// The kind that has it.
        of: Kind,
        /// Format of the image.
        found: Kind,
    },
}

/// An option whose value makes no sense, or is missing.
fn bad(name: &str, value: Option<&str>) -> OptionError {
    match value {
        Some(value) => OptionError::BadValue {
            name: name.to_owned(),
            value: value.to_owned(),
        },
        None => OptionError::NoValue(name.to_owned()),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: Option<&str>) -> Result<T, OptionError> {
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| bad(name, value))
}

fn bytes<T: TryFrom<u64>>(name: &str, value: Option<&str>) -> Result<T, OptionError> {
    value
        .and_then(parse_size)
        .and_then(|bytes| T::try_from(bytes).ok())
        .ok_or_else(|| bad(name, value))
}

/// Bytes with an optional binary unit, and with it a fraction: `512`, `64k`, `256M`, `1.5G`.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let shift = match text.get(number.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    let unit = 1_u64 << shift;
    let Some((whole, fraction)) = number.split_once('.') else {
        let count = number.parse::<u64>().ok()?;
        return count.checked_mul(unit);
    };
    // Nine digits resolve each byte of a gibibyte.
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    if shift == 0 || !digits || !(1..=9).contains(&fraction.len()) {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / u128::from(scale);
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    whole.checked_add(u64::try_from(part).ok()?)
}

/// Most bytes of a chunk in a btrfs that gets `content` bytes of files and is shrunk afterwards.
pub(crate) fn largest_chunk(content: u64) -> u64 {
    (content / 16).clamp(16 << 20, 1 << 30)
}

/// Id of the subvolume that contains all others.
const TOP_LEVEL: u64 = 5;

/// Options of every kind of file system and of the mount, as they were given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    btrfs: sapwood_btrfs::Options,
    ext4: sapwood_ext4::Options,
    mount: Mounting,
    /// Further devices of a btrfs.
    devices: Vec<PathBuf>,
    /// Directories in which further devices are looked for.
    scanned: Vec<PathBuf>,
    /// The interval of commits was chosen.
    commit_is_chosen: bool,
    /// Commits need not be durable before the end; see [`Unflushed`](crate::unflushed::Unflushed).
    unflushed: bool,
    /// The key of a LUKS volume.
    key: Option<sapwood_luks::Key>,
    /// Options for reading a damaged image without its engine.
    rescue: Option<Rescue>,
    /// The options in the order in which they were given. An option of one kind is recorded with
    /// that kind.
    given: Vec<(Option<Kind>, String)>,
}

impl Options {
    /// The defaults.
    ///
    /// ```no_run
    /// let options = sapwood::Options::new().read_only(true).subvolume("home");
    /// let fs = options.open("disk.img")?;
    /// # Ok::<(), sapwood::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing on disk may change (`ro`).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.set_access(read_only);
        self
    }

    /// Compresses new data (`compress=`), on btrfs.
    #[must_use]
    pub fn compress(mut self, compression: sapwood_btrfs::Compression) -> Self {
        self.btrfs.compress = Some(compression);
        self.record(Some(Kind::Btrfs), format!("compress={compression}"));
        self
    }

    /// Opens the subvolume at this path from the top level (`subvol=`), on btrfs.
    #[must_use]
    pub fn subvolume(mut self, path: impl AsRef<Path>) -> Self {
        self.set_subvolume(path.as_ref().as_os_str().as_bytes());
        self
    }

    /// Makes changes reproducible: the same operations of one thread on the same image give the
    /// same bytes, at any time and on any machine. Every time that is not given explicitly is
    /// `time`, and random numbers derive from the image. A copy into the image has one thread,
    /// makes holes of blocks of zeros, and gives files their modification time as access time.
    ///
    /// ```no_run
    /// let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    /// let fs = sapwood::Options::new().reproducible(time).open("disk.img")?;
    /// fs.write("hello", "world")?;
    /// fs.close()?;
    /// # Ok::<(), sapwood::Error>(())
    /// ```
    #[must_use]
    pub fn reproducible(mut self, time: SystemTime) -> Self {
        self.set_reproducible(time.into());
        self
    }

    pub(crate) fn set_reproducible(&mut self, time: Timestamp) {
        self.btrfs.set_reproducible(time);
        self.ext4.set_reproducible(time);
    }

    /// The time of [`reproducible`](Self::reproducible).
    pub(crate) fn fixed_time(&self) -> Option<Timestamp> {
        self.btrfs.fixed_time
    }

    /// Whether changes are [reproducible](Self::reproducible).
    #[must_use]
    pub fn is_reproducible(&self) -> bool {
        self.fixed_time().is_some()
    }

    /// Sets an option by its name in `-o`, and returns the options.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    pub fn option(mut self, name: &str, value: Option<&str>) -> crate::Result<Self> {
        self.take(name, value)?;
        Ok(self)
    }

    /// Changes nothing on disk (`ro`).
    pub fn set_read_only(&mut self) {
        self.set_access(true);
    }

    fn set_access(&mut self, read_only: bool) {
        let option = if read_only { "ro" } else { "rw" };
        self.record(None, option.to_owned());
        self.btrfs.read_only = read_only;
        self.ext4.read_only = read_only;
        self.mount.read_only = read_only;
    }

    /// Whether nothing on disk may change.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.btrfs.read_only
    }

    /// Shows the image as its last commit left it: neither a log nor a journal is replayed
    /// (`norecovery`). Needs [`set_read_only`](Self::set_read_only).
    pub fn set_no_recovery(&mut self) {
        self.record(None, "norecovery".to_owned());
        self.btrfs.no_log_replay = true;
        self.ext4.no_load = true;
    }

    /// Opens the subvolume at this path from the top level (`subvol=`), which need not be text.
    pub fn set_subvolume(&mut self, path: &[u8]) {
        self.btrfs.subvolume = sapwood_btrfs::SubvolumeChoice::Path(path.to_vec());
        let option = format!("subvol={}", String::from_utf8_lossy(path));
        self.record(Some(Kind::Btrfs), option);
    }

    /// Sets the longest time from a change to its commit (`commit=`).
    pub fn set_commit_interval(&mut self, interval: Duration) {
        self.btrfs.commit_interval = interval;
        self.ext4.commit_interval = interval;
        self.commit_is_chosen = true;
        let option = format!("commit={}", interval.as_secs());
        self.record(None, option);
    }

    /// Whether the interval of commits was set.
    #[must_use]
    pub fn commit_is_chosen(&self) -> bool {
        self.commit_is_chosen
    }

    /// Sets an option by its name in `-o`.
    ///
    /// # Errors
    /// No option has that name, it has another form of value, or it is refused.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> crate::Result<()> {
        Ok(self.take(name, value)?)
    }

    /// Like [`set`](Self::set), with the error of this part of the library.
    pub(crate) fn take(&mut self, name: &str, value: Option<&str>) -> Result<(), OptionError> {
        let option = table::find(name).ok_or_else(|| OptionError::Unknown(name.to_owned()))?;
        option.take(self, name, value)?;
        let given = match value {
            Some(value) => format!("{name}={value}"),
            None => name.to_owned(),
        };
        self.record(option.of, given);
        Ok(())
    }

    /// Sets a list of options as in `-o`, separated by commas.
    ///
    /// # Errors
    /// The first error of [`set`](Self::set).
    pub fn set_list(&mut self, list: &str) -> crate::Result<()> {
        Ok(self.take_list(list)?)
    }

    /// Like [`set_list`](Self::set_list), with the error of this part of the library.
    fn take_list(&mut self, list: &str) -> Result<(), OptionError> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            self.take_text(option)?;
        }
        Ok(())
    }

    /// Sets an option in its form in `-o`: `NAME` or `NAME=VALUE`.
    fn take_text(&mut self, option: &str) -> Result<(), OptionError> {
        match option.split_once('=') {
            Some((name, value)) => self.take(name, Some(value)),
            None => self.take(option, None),
        }
    }

    /// The options of the mount.
    #[doc(hidden)]
    #[must_use]
    pub fn mounting(&self) -> &Mounting {
        &self.mount
    }

    /// The options of the btrfs engine.
    ///
    /// # Errors
    /// [`OptionError::Foreign`].
    #[doc(hidden)]
    pub fn for_btrfs(&self) -> Result<sapwood_btrfs::Options, OptionError> {
        self.refuse_foreign(Kind::Btrfs)?;
        Ok(self.btrfs.clone())
    }

    /// The options of the ext4 engine.
    ///
    /// # Errors
    /// [`OptionError::Foreign`].
    #[doc(hidden)]
    pub fn for_ext4(&self) -> Result<sapwood_ext4::Options, OptionError> {
        self.refuse_foreign(Kind::Ext4)?;
        Ok(self.ext4.clone())
    }

    /// Leaves out flushes of the image. The caller that fills the image flushes it at the end.
    pub(crate) fn set_unflushed(&mut self) {
        self.unflushed = true;
    }

    pub(crate) fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Changes an ext4 past its journal: a file that has no name until it is complete needs no
    /// recovery.
    pub(crate) fn past_journal(mut self) -> Self {
        self.ext4.in_place = true;
        self
    }

    /// Overwrites data of a btrfs in its place, and changes an ext4 past its journal: a file that has
    /// no name until it is complete needs no recovery.
    pub(crate) fn in_place(mut self) -> Self {
        self.btrfs.in_place = true;
        self.past_journal()
    }

    /// The options of an engine on a staged device. A commit of the engine becomes durable only
    /// when the changes are applied.
    pub(crate) fn staged(mut self) -> Self {
        const NEVER: Duration = Duration::from_secs(u32::MAX as u64);
        self.btrfs.keep_opened = true;
        self.btrfs.tree_log = false;
        self.btrfs.discard = false;
        self.btrfs.commit_interval = NEVER;
        self.ext4.in_place = true;
        self.ext4.discard = false;
        self.ext4.commit_interval = NEVER;
        self.unflushed = false;
        self
    }

    /// Keeps an image compact that is filled with about `bytes` and shrinks then.
    pub(crate) fn shrinking_later(mut self, bytes: u64) -> Self {
        self.ext4.dense = true;
        self.btrfs.largest_chunk = Some(largest_chunk(bytes));
        self
    }

    /// Opens the top level (`subvolid=0`), on btrfs: every subvolume has a path there.
    #[must_use]
    pub fn top_level(mut self) -> Self {
        self.btrfs.subvolume = sapwood_btrfs::SubvolumeChoice::Id(TOP_LEVEL);
        self.record(Some(Kind::Btrfs), format!("subvolid={TOP_LEVEL}"));
        self
    }

    /// Records an option as given. A function that sets an option may call another one that records
    /// the same.
    fn record(&mut self, of: Option<Kind>, option: String) {
        let entry = (of, option);
        if self.given.last() != Some(&entry) {
            self.given.push(entry);
        }
    }

    /// Whether the log or journal is not replayed.
    #[cfg(feature = "fuse")]
    pub(crate) fn is_without_recovery(&self) -> bool {
        self.btrfs.no_log_replay || self.ext4.no_load
    }

    /// The same options for an engine that writes, which needs a recovery.
    #[cfg(feature = "fuse")]
    pub(crate) fn writing(mut self) -> Self {
        self.set_access(false);
        self.btrfs.no_log_replay = false;
        self.ext4.no_load = false;
        self.given.retain(|(_, option)| {
            let mut alone = Self::default();
            alone.take_text(option).is_err() || !alone.is_without_recovery()
        });
        self
    }

    /// Refuses options that a file system of the kind `found` does not have.
    ///
    /// # Errors
    /// [`OptionError::Foreign`] for the first of them.
    pub(crate) fn refuse_foreign(&self, found: Kind) -> Result<(), OptionError> {
        let foreign = |of: Kind| of != found;
        let first = self.given.iter().find_map(|(of, option)| {
            let of = of.filter(|of| foreign(*of))?;
            Some((of, option.clone()))
        });
        match first {
            None => Ok(()),
            Some((of, option)) => Err(OptionError::Foreign { option, of, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use sapwood_ext4::DataMode;

    use super::*;

    fn parsed(list: &str) -> Result<Options, OptionError> {
        let mut options = Options::default();
        options.take_list(list)?;
        Ok(options)
    }

    #[test]
    fn common_options_reach_every_engine() {
        let options = parsed(
            "ro,noatime,commit=7,space_wait=9,threads=3,cache_size=1M,dirty_size=2M,discard,norecovery",
        );
        let options = options.unwrap();
        let (btrfs, ext4) = (options.for_btrfs().unwrap(), options.for_ext4().unwrap());
        let mount = options.mounting();
        assert!(options.is_read_only() && btrfs.read_only && ext4.read_only && mount.read_only);
        assert!(btrfs.noatime && ext4.noatime && mount.noatime);
        assert!(options.commit_is_chosen() && !Options::default().commit_is_chosen());
        assert!(btrfs.discard && ext4.discard);
        assert!(btrfs.no_log_replay && ext4.no_load);
        assert_eq!(
            (btrfs.threads, ext4.threads, mount.threads),
            (3, 3, Some(3))
        );
        let interval = Duration::from_secs(7);
        assert_eq!(btrfs.commit_interval, interval);
        assert_eq!(ext4.commit_interval, interval);
        let wait = Duration::from_secs(9);
        assert_eq!((btrfs.patience, ext4.patience), (wait, wait));
        assert_eq!((btrfs.cache_bytes, ext4.cache_bytes), (1 << 20, 1 << 20));
        assert_eq!((btrfs.dirty_bytes, ext4.dirty_bytes), (2 << 20, 2 << 20));
        let bounded = parsed("memory_size=170M,dirty_size=1M").unwrap();
        let (btrfs, ext4) = (bounded.for_btrfs().unwrap(), bounded.for_ext4().unwrap());
        assert_eq!((btrfs.cache_bytes, ext4.cache_bytes), (68 << 20, 80 << 20));
        assert_eq!((btrfs.inode_bytes, ext4.inode_bytes), (34 << 20, 10 << 20));
        assert_eq!((btrfs.dirty_bytes, ext4.dirty_bytes), (1 << 20, 1 << 20));
    }

    #[test]
    fn foreign_options_are_refused() {
        for (list, own, foreign) in [
            ("subvol=a", Kind::Btrfs, Kind::Ext4),
            ("compress", Kind::Btrfs, Kind::Ext4),
            ("ssd", Kind::Btrfs, Kind::Ext4),
            ("data=journal", Kind::Ext4, Kind::Btrfs),
            ("noload", Kind::Ext4, Kind::Btrfs),
            ("user_xattr", Kind::Ext4, Kind::Btrfs),
        ] {
            let options = parsed(list).unwrap();
            let said = |found| match found {
                Kind::Btrfs => options.for_btrfs().map(drop),
                Kind::Ext4 => options.for_ext4().map(drop),
            };
            assert_eq!(said(own), Ok(()), "{list}");
            let expected = OptionError::Foreign {
                option: list.to_owned(),
                of: own,
                found: foreign,
            };
            assert_eq!(said(foreign), Err(expected), "{list}");
        }
    }

    #[test]
    fn options_that_weaken_durability_are_refused() {
        for list in [
            "nobarrier",
            "barrier=0",
            "errors=continue",
            "errors=panic",
            "flushoncommit",
        ] {
            let refused = parsed(list).unwrap_err();
            assert!(
                matches!(&refused, OptionError::Unsupported { option, .. } if option == list),
                "{list}: {refused}"
            );
        }
    }

    #[cfg(feature = "fuse")]
    #[test]
    fn options_for_writing_skip_no_recovery() {
        for skips in [
            "norecovery",
            "nologreplay",
            "noload",
            "rescue=nologreplay",
            "rescue=nologreplay:nologreplay",
        ] {
            let list = format!("ro,noatime,{skips}");
            let options = parsed(&list).unwrap().writing();
            assert!(!options.is_read_only() && !options.is_without_recovery());
            let text = options.to_text(Kind::Btrfs);
            assert!(text.contains("noatime"), "{text}");
            assert!(!text.contains(skips), "{text}");
        }
    }

    #[test]
    fn options_of_ext4_are_read() {
        let ext4 = |list| parsed(list).unwrap().for_ext4().unwrap();
        assert_eq!(ext4("data=ordered").data, DataMode::Ordered);
        assert_eq!(ext4("data=writeback").data, DataMode::Writeback);
        assert_eq!(ext4("data=journal").data, DataMode::Journal);
        assert_eq!(ext4("barrier,acl"), sapwood_ext4::Options::default());
        assert!(ext4("ro,noload").no_load);
        let kept = ext4("nodelalloc,user_xattr,errors=remount-ro,barrier=1,commit=9");
        assert_eq!(kept.commit_interval, Duration::from_secs(9));
        for list in [
            "data=turbo",
            "data",
            "errors=maybe",
            "inode_search=restart",
            "commit=x",
        ] {
            assert!(parsed(list).is_err(), "{list}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64k"), Some(65536));
        assert_eq!(parse_size("1GiB"), Some(1 << 30));
        assert_eq!(parse_size("16777216t"), None);
        assert_eq!(parse_size("k"), None);
        assert_eq!(parse_size("1.5G"), Some(3 << 29));
        assert_eq!(parse_size("0.001k"), Some(1));
        for bad in [
            "1.5",
            "1.G",
            ".5G",
            "1.5.5G",
            "1.-5G",
            "16777215.9999999999t",
        ] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
