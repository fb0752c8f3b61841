//! The options of mke2fs.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::ArgAction;
use sapwood::block::Operand;
use sapwood::internal::options::parse_size;
use sapwood::{Kind, MkfsOptions, Storage};

use super::{Asked, Error, Request, Result, RootDirectory, set, words};

/// Make an ext2, ext3 or ext4 file system, with the options of mke2fs
#[derive(Debug, clap::Parser)]
#[command(name = "mke2fs", max_term_width = 100, args_override_self = true)]
#[command(disable_version_flag = true)]
struct Args {
    /// Image file or block device
    #[arg(value_name = "DEVICE", required_unless_present = "version")]
    device: Option<PathBuf>,
    /// Size of the file system, in KiB, in blocks with -b, or with s, k, m, g or t
    #[arg(value_name = "SIZE")]
    size: Option<String>,
    /// ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// What it will be used for: default, small, floppy, big, huge, news, largefile, largefile4
    #[arg(short = 'T', value_name = "USAGE,...")]
    usage: Option<String>,
    /// Bytes of a block
    #[arg(short = 'b', value_name = "BYTES", allow_hyphen_values = true)]
    block_size: Option<String>,
    /// Fill it with what is in this directory
    #[arg(short = 'd', value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// What a kernel does when it finds an error: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOUR")]
    errors: Option<String>,
    /// Extended options
    #[arg(short = 'E', value_name = "OPTION,...", action = ArgAction::Append)]
    extended: Vec<String>,
    /// Overwrite what is there
    #[arg(short = 'F', action = ArgAction::Count)]
    force: u8,
    /// Blocks of a group
    #[arg(short = 'g', value_name = "BLOCKS")]
    group: Option<String>,
    /// Groups whose metadata is kept together
    #[arg(short = 'G', value_name = "GROUPS")]
    flex: Option<String>,
    /// Bytes per inode
    #[arg(short = 'i', value_name = "BYTES")]
    ratio: Option<String>,
    /// Bytes of an inode
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<String>,
    /// With a journal
    #[arg(short = 'j')]
    journal: bool,
    /// Options of the journal: size=MEGABYTES
    #[arg(short = 'J', value_name = "OPTION,...", action = ArgAction::Append)]
    journal_options: Vec<String>,
    /// Label
    #[arg(short = 'L', value_name = "LABEL", allow_hyphen_values = true)]
    label: Option<String>,
    /// Percentage of the blocks reserved for the superuser
    #[arg(short = 'm', value_name = "PERCENT", allow_hyphen_values = true)]
    reserved: Option<String>,
    /// Number of inodes; 0: by the size
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<String>,
    /// Features
    #[arg(short = 'O', value_name = "FEATURE,...", action = ArgAction::Append)]
    #[arg(allow_hyphen_values = true)]
    features: Vec<String>,
    /// Revision: 1
    #[arg(short = 'r', value_name = "REVISION")]
    revision: Option<String>,
    /// UUID, clear, random or time
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Creating system: linux
    #[arg(short = 'o', value_name = "SYSTEM")]
    system: Option<String>,
    /// Print nothing but errors
    #[arg(short = 'q')]
    quiet: bool,
    /// Do not discard the device
    #[arg(short = 'K')]
    keep: bool,
    /// Print the version
    #[arg(short = 'V')]
    version: bool,
    #[command(flatten)]
    ignored: Ignored,
    #[command(flatten)]
    refused: Refused,
}

/// Options that change nothing here.
#[derive(Debug, clap::Args)]
struct Ignored {
    /// Accepted, and changes nothing
    #[arg(short = 'v')]
    verbose: bool,
    /// Accepted, and changes nothing
    #[arg(short = 'D')]
    direct: bool,
    /// Accepted, and changes nothing
    #[arg(short = 'M', value_name = "DIR")]
    mounted_on: Option<OsString>,
}

/// Options that are refused by name.
#[derive(Debug, clap::Args)]
struct Refused {
    #[arg(short = 'c', hide = true, action = ArgAction::Count)]
    search: u8,
    #[arg(short = 'l', hide = true)]
    bad_blocks: Option<OsString>,
    #[arg(short = 'C', hide = true)]
    cluster: Option<OsString>,
    #[arg(short = 'n', hide = true)]
    dry: bool,
    #[arg(short = 'S', hide = true)]
    superblocks: bool,
    #[arg(short = 'z', hide = true)]
    undo: Option<OsString>,
    #[arg(short = 'R', hide = true)]
    raid: Option<OsString>,
}

impl Refused {
    fn first(&self) -> Option<&'static str> {
        let all = [
            (self.search > 0, "-c: a search for bad blocks"),
            (self.bad_blocks.is_some(), "-l: a list of bad blocks"),
            (self.cluster.is_some(), "-C: clusters of blocks (bigalloc)"),
            (self.dry, "-n: a run that makes nothing"),
            (self.superblocks, "-S: writing the superblocks only"),
            (self.undo.is_some(), "-z: an undo file"),
            (self.raid.is_some(), "-R (it is -E now)"),
        ];
        let first = all.into_iter().find(|(given, _)| *given);
        first.map(|(_, name)| name)
    }
}

/// The values of `-E` that are not options of mkfs.
struct Extended {
    root: RootDirectory,
    offset: u64,
}

/// Parses a call of the tool `name`.
pub(crate) fn parse(name: &str, args: &[OsString]) -> Result<Asked> {
    let args: Args = match words(args)? {
        Ok(args) => args,
        Err(text) => return Ok(Asked::Print(text)),
    };
    if args.version {
        let version = env!("CARGO_PKG_VERSION");
        return Ok(Asked::Print(format!("mke2fs of sapwood {version}")));
    }
    if let Some(what) = args.refused.first() {
        return Err(Error::unsupported(what));
    }
    let mut options = MkfsOptions::new(Kind::Ext4);
    let kind = args.kind.as_deref().or_else(|| name.strip_prefix("mkfs."));
    let base = base_features(kind.unwrap_or("ext2"))?;
    set(&mut options, "O", Some(base))?;
    if args.journal {
        set(&mut options, "O", Some("has_journal"))?;
    }
    if let Some(usage) = &args.usage {
        args.take_usage(usage, &mut options)?;
    }
    args.take_numbers(&mut options)?;
    for list in &args.features {
        set(&mut options, "O", Some(list))?;
    }
    let extended = args.take_extended(&mut options)?;
    let warnings = args.take_identity(&mut options)?;
    if args.keep {
        options.set_discard(false);
    }
    // mke2fs asks before it overwrites something, but only on a terminal.
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if args.force > 0 || !terminal {
        set(&mut options, "force", None)?;
    }
    let Some(device) = args.device.clone() else {
        return Err(Error::new("no device"));
    };
    let size = args.size.as_deref();
    let size = size.map(|text| size_of(text, args.block_size.as_deref()));
    let size = size.transpose()?;
    if let Some(size) = size {
        set(&mut options, "size", Some(&size.to_string()))?;
    }
    let (uid, gid) = extended.root.owner;
    set(&mut options, "root-owner", Some(&format!("{uid}:{gid}")))?;
    Ok(Asked::Make(Box::new(Request {
        options,
        file: device,
        others: Vec::new(),
        offset: extended.offset,
        size,
        creates: size.is_some(),
        rootdir: args.rootdir.clone(),
        storage: Storage::default(),
        root: Some(extended.root),
        quiet: args.quiet,
        warnings,
    })))
}

/// The features of a type, as mke2fs.conf of the distributions has them.
fn base_features(kind: &str) -> Result<&'static str> {
    match kind {
        "ext2" => Ok("none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr"),
        "ext3" => {
            Ok("none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr,has_journal")
        }
        // The features of ext4 are the defaults of the library.
        "ext4" => Ok("has_journal"),
        other => Err(Error::unsupported(format_args!("-t {other}"))),
    }
}

/// The owner that `UID:GID` names.
fn owner(text: &str) -> Option<(u32, u32)> {
    let (uid, gid) = text.split_once(':')?;
    Some((uid.parse().ok()?, gid.parse().ok()?))
}

/// Bytes of the operand SIZE.
fn size_of(text: &str, block_size: Option<&str>) -> Result<u64> {
    let bad = || Error::new(format_args!("{text:?} is no size"));
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" => match block_size {
            None => 1024,
            Some(bytes) => bytes.parse().map_err(|_| bad())?,
        },
        "s" => 512,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_mul(unit)
        .filter(|size| *size > 0)
        .ok_or_else(bad)
}

impl Args {
    /// Block size and number of inodes by the words of `-T`.
    fn take_usage(&self, usage: &str, options: &mut MkfsOptions) -> Result<()> {
        let (mut block_size, mut ratio) = ("4096", "16384");
        for word in usage.split(',') {
            (block_size, ratio) = match word {
                "default" | "ext2" | "ext3" | "ext4" => continue,
                "small" => ("1024", "4096"),
                "floppy" => ("1024", "8192"),
                "big" => (block_size, "32768"),
                "huge" => (block_size, "65536"),
                "news" => (block_size, "4096"),
                "largefile" => ("4096", "1048576"),
                "largefile4" => ("4096", "4194304"),
                _ => return Err(Error::unsupported(format_args!("-T {word}"))),
            };
        }
        if self.block_size.is_none() {
            set(options, "b", Some(block_size))?;
        }
        if self.ratio.is_none() && self.count().is_none() {
            set(options, "i", Some(ratio))?;
        }
        Ok(())
    }

    /// The number of inodes, if one was chosen.
    fn count(&self) -> Option<&str> {
        self.inodes.as_deref().filter(|count| *count != "0")
    }

    fn take_numbers(&self, options: &mut MkfsOptions) -> Result<()> {
        if let Some(revision) = self.revision.as_deref().filter(|text| *text != "1") {
            return Err(Error::unsupported(format_args!("-r {revision}")));
        }
        let linux = |system: &&str| system.eq_ignore_ascii_case("linux") || *system == "0";
        if let Some(system) = self.system.as_deref().filter(|system| !linux(system)) {
            return Err(Error::unsupported(format_args!("-o {system}")));
        }
        // A number of inodes decides, if a ratio is given as well.
        let ratio = match self.count() {
            Some(_) => None,
            None => self.ratio.as_deref(),
        };
        let given = [
            ("b", self.block_size.as_deref()),
            ("e", self.errors.as_deref()),
            ("g", self.group.as_deref()),
            ("G", self.flex.as_deref()),
            ("i", ratio),
            ("I", self.inode_size.as_deref()),
            ("N", self.count()),
            ("m", self.reserved.as_deref()),
        ];
        let lists = self.journal_options.iter().map(|list| ("J", Some(&**list)));
        for (name, value) in given.into_iter().chain(lists) {
            if value.is_some() {
                set(options, name, value)?;
            }
        }
        Ok(())
    }

    /// Label and UUID; returns the warnings.
    fn take_identity(&self, options: &mut MkfsOptions) -> Result<Vec<String>> {
        const LABEL: usize = 16;
        let mut warnings = Vec::new();
        if let Some(label) = &self.label {
            let mut end = label.len().min(LABEL);
            while !label.is_char_boundary(end) {
                end -= 1;
            }
            let kept = label.get(..end).unwrap_or_default();
            if kept != label {
                warnings.push(format!("label cut to {kept:?}"));
            }
            set(options, "label", Some(kept))?;
        }
        let uuid = match self.uuid.as_deref() {
            None | Some("random" | "time") => return Ok(warnings),
            Some("clear" | "null") => "00000000-0000-0000-0000-000000000000",
            Some(uuid) => uuid,
        };
        set(options, "uuid", Some(uuid))?;
        Ok(warnings)
    }

    fn take_extended(&self, options: &mut MkfsOptions) -> Result<Extended> {
        let mut extended = Extended {
            root: RootDirectory {
                owner: (0, 0),
                mode: 0o755,
            },
            offset: 0,
        };
        let words = self.extended.iter().flat_map(|list| list.split(','));
        for word in words.filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = || Error::new(format_args!("-E {word}: makes no sense"));
            match name {
                "root_owner" if value.is_empty() => {
                    extended.root.owner = (
                        rustix::process::getuid().as_raw(),
                        rustix::process::getgid().as_raw(),
                    );
                }
                "root_owner" => {
                    extended.root.owner = owner(value).ok_or_else(bad)?;
                }
                "root_perms" => {
                    let mode = u32::from_str_radix(value, 8).ok();
                    let mode = mode.filter(|mode| *mode <= 0o7777);
                    extended.root.mode = mode.ok_or_else(bad)?;
                }
                "offset" => extended.offset = parse_size(value).ok_or_else(bad)?,
                // Where metadata lies, and what the device holds before, are our own choice.
                "packed_meta_blocks" | "assume_storage_prezeroed" => {}
                _ => set(options, "E", Some(word))?,
            }
        }
        let device = self.device.as_deref();
        if extended.offset > 0 && device.is_some_and(Operand::is_fixed) {
            return Err(Error::unsupported("-E offset= of a part of an image"));
        }
        Ok(extended)
    }
}
