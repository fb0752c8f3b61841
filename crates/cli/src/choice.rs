//! The part of an image that a command opens: its devices, and a subvolume.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sapwood::luks::Key;
use sapwood::verity::RootHash;

use super::failure::{Failure, Result, USAGE};
use super::times;

/// The heading of options that name a part of an image.
pub(super) const PART: &str = "Part of the image";

/// The other devices of the image, for every command that opens one.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Devices {
    /// Another device of a btrfs over several devices; can be given several times
    #[arg(long = "device", value_name = "FILE", global = true, help_heading = PART,
        display_order = 1004)]
    paths: Vec<PathBuf>,
    /// Look for the other devices of a btrfs in this directory; can be given several times
    #[arg(long = "scan", value_name = "DIR", global = true, help_heading = PART,
        display_order = 1005)]
    scanned: Vec<PathBuf>,
    /// Open a btrfs although devices are missing, as far as its profiles allow
    #[arg(long, global = true, help_heading = PART, display_order = 1006)]
    degraded: bool,
    /// The journal of the ext4 is on this file or device
    #[arg(long, value_name = "FILE", global = true, help_heading = PART, display_order = 1006)]
    journal_device: Option<PathBuf>,
}

/// The devices that the command line names, once it was read.
static DEVICES: OnceLock<Devices> = OnceLock::new();

impl Devices {
    /// Whether any is named.
    pub(super) fn are_given(&self) -> bool {
        !self.paths.is_empty()
            || !self.scanned.is_empty()
            || self.degraded
            || self.journal_device.is_some()
    }

    /// Makes them the devices of [`opening`].
    pub(super) fn choose(self) {
        DEVICES.get_or_init(|| self);
    }

    /// For a command that cannot use them.
    pub(super) fn refuse() -> Failure {
        let line = "--device, --scan, --degraded and --journal-device are for commands that read or change the files of an image";
        Failure::new(USAGE, line)
    }
}

/// The hash tree of the image, for every command that reads one.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Verity {
    /// Verify every block that is read with the dm-verity hash tree of this root hash
    #[arg(long, value_name = "HEX", global = true, help_heading = PART, display_order = 1005,
        requires = "hash_device")]
    root_hash: Option<RootHash>,
    /// File or device with the hash tree
    #[arg(long, value_name = "FILE", global = true, help_heading = PART, display_order = 1006,
        requires = "root_hash")]
    hash_device: Option<PathBuf>,
}

/// The hash tree that the command line names, once it was read.
static VERITY: OnceLock<(PathBuf, RootHash)> = OnceLock::new();

impl Verity {
    /// Makes it the hash tree of [`opening`], for a command that `reads` an image.
    pub(super) fn choose(self, reads: bool) -> Result<()> {
        let (Some(device), Some(root)) = (self.hash_device, self.root_hash) else {
            return Ok(());
        };
        if !reads {
            let line = "--root-hash is for commands that read files of an image; a mount takes -o \
                        verity.roothash=HEX,verity.hashdevice=FILE";
            return Err(Failure::new(USAGE, line));
        }
        VERITY.get_or_init(|| (device, root));
        Ok(())
    }
}

/// The key of an encrypted image, for every command that opens one.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Encryption {
    /// Decrypt the image, a LUKS volume, with the content of this file; - is standard input
    #[arg(long, value_name = "FILE", global = true, help_heading = PART, display_order = 1007)]
    key_file: Option<PathBuf>,
    /// Decrypt the image, a LUKS volume, with a passphrase from the terminal
    #[arg(long, global = true, help_heading = PART, display_order = 1008,
        conflicts_with = "key_file")]
    ask_passphrase: bool,
}

/// The source of the image's key, from the command line.
enum KeySource {
    File(PathBuf),
    Given(Key),
    Terminal,
}

static KEY: OnceLock<KeySource> = OnceLock::new();

impl Encryption {
    /// Makes it the key of [`opening`], for a command that `opens` an image. A command that
    /// `makes` a volume asks for a new passphrase itself.
    pub(super) fn choose(self, opens: bool, makes: bool) -> Result<()> {
        let given = self.key_file.is_some() || self.ask_passphrase;
        if given && !opens && !makes {
            let line = "--key-file and --ask-passphrase are for commands that read or change the files of an image";
            return Err(Failure::new(USAGE, line));
        }
        let source = match self.key_file {
            Some(path) if path == Path::new("-") => {
                KeySource::Given(sapwood::luks::read_key(&path)?)
            }
            Some(path) => KeySource::File(path),
            None if !self.ask_passphrase => return Ok(()),
            None if makes => KeySource::Terminal,
            None => KeySource::Given(passphrase("Passphrase: ")?),
        };
        KEY.get_or_init(|| source);
        Ok(())
    }
}

/// A passphrase from the terminal.
fn passphrase(prompt: &str) -> Result<Key> {
    let read = rpassword::prompt_password(prompt);
    let text = read.map_err(|error| Failure::on("the terminal", error))?;
    if text.is_empty() {
        return Err(Failure::new(USAGE, "an empty passphrase"));
    }
    Ok(Key::new(text.into_bytes()))
}

/// The key of a volume that is made; `None` if the command line has none.
///
/// # Errors
/// The key file cannot be read; two different passphrases.
pub(super) fn new_key() -> Result<Option<Key>> {
    match KEY.get() {
        None => Ok(None),
        Some(KeySource::File(path)) => Ok(Some(sapwood::luks::read_key(path)?)),
        Some(KeySource::Given(key)) => Ok(Some(key.clone())),
        Some(KeySource::Terminal) => {
            let key = passphrase("New passphrase: ")?;
            if passphrase("Once more: ")? != key {
                return Err(Failure::new(USAGE, "the two passphrases differ"));
            }
            Ok(Some(key))
        }
    }
}

/// Whether the command line has a key.
pub(super) fn has_key() -> bool {
    KEY.get().is_some()
}

/// The other devices of the image.
pub(super) fn devices() -> &'static [PathBuf] {
    DEVICES.get().map_or(&[], |devices| &devices.paths)
}

/// Options with the other devices of the image, its hash tree and its key.
pub(super) fn opening(read_only: bool) -> sapwood::Options {
    let mut options = sapwood::Options::new().read_only(read_only);
    if let Some((device, root)) = VERITY.get() {
        options = options.verified(device, root.clone());
    }
    match KEY.get() {
        Some(KeySource::File(path)) => options = options.key_file(path),
        Some(KeySource::Given(key)) => options = options.key(key.clone()),
        Some(KeySource::Terminal) | None => {}
    }
    for device in devices() {
        options.add_device(device);
    }
    let given = DEVICES.get();
    for directory in given.iter().flat_map(|given| &given.scanned) {
        options.scan(directory);
    }
    if given.is_some_and(|given| given.degraded) {
        options = options.degraded();
    }
    if let Some(journal) = given.and_then(|given| given.journal_device.as_ref()) {
        options = options.journal(journal);
    }
    options
}

/// The memory for the caches of an image whose metadata is read in order, mostly once.
const IN_ORDER: &str = "64M";

/// Options for an image that a comparison or a send reads in order.
pub(super) fn reading_in_order(options: &mut sapwood::Options) -> sapwood::Result<()> {
    options.set("memory_size", Some(IN_ORDER))
}

/// The memory for the caches of an image that a stream changes.
const IN_BULK: &str = "128M";

/// The part of it for data that is not written yet. It is small, so that writing begins early and
/// goes on beside the reading of the stream.
const IN_BULK_DIRTY: &str = "64M";

/// Options for an image that a stream changes.
pub(super) fn changing_in_bulk(options: &mut sapwood::Options) -> sapwood::Result<()> {
    options.set("memory_size", Some(IN_BULK))?;
    options.set("dirty_size", Some(IN_BULK_DIRTY))
}

/// The subvolume that a command looks into.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct SubvolumeChoice {
    /// Subvolume to look into, by path from the top level [default: the default subvolume]
    #[arg(long, value_name = "PATH", conflicts_with = "subvolid", help_heading = PART)]
    subvol: Option<PathBuf>,
    /// Subvolume to look into, by id
    #[arg(long, value_name = "ID", help_heading = PART)]
    subvolid: Option<u64>,
    /// Look into the top level: all subvolumes have a path there, as `subvolume list` prints it
    #[arg(long, conflicts_with_all = ["subvol", "subvolid"], help_heading = PART)]
    top_level: bool,
}

impl SubvolumeChoice {
    /// Whether one was chosen.
    pub(super) fn is_made(&self) -> bool {
        self.subvol.is_some() || self.subvolid.is_some() || self.top_level
    }

    /// Options with that choice.
    pub(super) fn options(&self, read_only: bool) -> Result<sapwood::Options> {
        let mut options = opening(read_only);
        if let Some(path) = &self.subvol {
            options.set_subvolume(path.as_os_str().as_bytes());
        } else if let Some(id) = self.subvolid {
            options.set("subvolid", Some(&id.to_string()))?;
        } else if self.top_level {
            options = options.top_level();
        }
        Ok(if read_only { options } else { fixed(options)? })
    }
}

/// The options with which an image is changed: reproducible ones if `SOURCE_DATE_EPOCH` is set.
///
/// # Errors
/// It is no time.
pub(super) fn fixed(options: sapwood::Options) -> Result<sapwood::Options> {
    Ok(match times::source_date_epoch()? {
        Some(time) => options.reproducible(time),
        None => options,
    })
}
