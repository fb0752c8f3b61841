//! `sapwood find`: finds files by their attributes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use sapwood::internal::Pattern;
use sapwood::vfs::{FileKind, Timestamp};
use sapwood::{FileSystem, Metadata};

use super::attributes::{group_id, user_id};
use super::choice::SubvolumeChoice;
use super::entry::ListedFile;
use super::failure::Result;
use super::files::{absolute, failed, for_each, shown_path, within_place};
use super::interrupt;
use super::long_paths::{LeftOut, LongPaths};
use super::mode::ModeChange;
use super::output::{self, Array};

/// For `sapwood help find`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood find disk.img:/etc -name '*.conf' -type f",
        "by name and kind",
    ),
    (
        "sapwood find disk.img --size +100M --mtime -7",
        "large, and changed this week",
    ),
    (
        "sapwood find disk.img --perm /6000 --json",
        "set-id files, as JSON",
    ),
];

#[derive(Debug, clap::Args)]
#[command(
    next_help_heading = "Tests, all of which a file must pass",
    disable_help_flag = true
)]
pub(super) struct Args {
    /// Files or directories to search, with everything below; a name may be a pattern
    #[arg(
        value_name = "IMAGE[:PATH]",
        required = true,
        help_heading = "Arguments"
    )]
    pub(super) places: Vec<OsString>,
    /// The name matches, as '*.conf'
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// Like --name, ignoring case
    #[arg(long, value_name = "GLOB")]
    iname: Option<OsString>,
    /// The whole path matches; * matches / too
    #[arg(long, value_name = "GLOB")]
    path: Option<OsString>,
    /// One of these kinds: f (file), d (directory), l (symbolic link), b, c, p, s; as f,l
    #[arg(long = "type", value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    kinds: Vec<FileKind>,
    /// Size in this unit, rounded up (c bytes, k, M, G; without 512 bytes); + is more, - less
    #[arg(long, value_name = "[+-]N[ckMG]", allow_hyphen_values = true)]
    size: Option<Size>,
    /// Changed this many days ago; + is earlier, - later
    #[arg(long, value_name = "[+-]DAYS", allow_hyphen_values = true)]
    mtime: Option<Range>,
    /// Like --mtime, in minutes
    #[arg(long, value_name = "[+-]MINUTES", allow_hyphen_values = true)]
    mmin: Option<Range>,
    /// Changed later than this file of the image
    #[arg(long, value_name = "[IMAGE:]PATH")]
    pub(super) newer: Option<OsString>,
    /// Changed later than this time, as touch --date has it
    #[arg(long, value_name = "TIME", value_parser = super::times::parse)]
    newermt: Option<SystemTime>,
    /// Owned by this user: a number, or a name of the image's etc/passwd
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Owned by this group: a number, or a name of the image's etc/group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Exactly this mode; -MODE: with all of these bits, /MODE: with one of them
    #[arg(long, value_name = "[-/]MODE", allow_hyphen_values = true)]
    perm: Option<Perm>,
    /// Number of names
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    links: Option<Range>,
    /// With this inode number
    #[arg(long, value_name = "N")]
    inum: Option<u64>,
    /// Empty files and directories
    #[arg(long)]
    empty: bool,
    /// Descend at most this many levels; 0 is the argument itself
    #[arg(
        long,
        visible_alias = "max-depth",
        value_name = "N",
        help_heading = "Depth and output"
    )]
    maxdepth: Option<usize>,
    /// Leave out this many levels
    #[arg(
        long,
        visible_alias = "min-depth",
        value_name = "N",
        help_heading = "Depth and output"
    )]
    mindepth: Option<usize>,
    /// End each path with a zero byte, and escape nothing
    #[arg(
        short = '0',
        long,
        conflicts_with = "json",
        help_heading = "Depth and output"
    )]
    print0: bool,
    /// Print JSON
    #[arg(long, help_heading = "Depth and output")]
    json: bool,
    /// Print help
    #[arg(short, long, action = clap::ArgAction::Help, help_heading = "Depth and output")]
    help: Option<bool>,
    #[command(flatten)]
    long: LongPaths,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// Options that find(1) begins with one dash.
const WORDS: [&str; 18] = [
    "name", "iname", "path", "type", "size", "mtime", "mmin", "newer", "newermt", "user", "group",
    "perm", "links", "inum", "empty", "maxdepth", "mindepth", "print0",
];

/// The arguments of the process, where `sapwood find -name` is `--name`.
pub(super) fn with_long_options(args: Vec<OsString>) -> Vec<OsString> {
    let find = args
        .iter()
        .skip(1)
        .find(|arg| !arg.as_bytes().starts_with(b"-"));
    if find.is_none_or(|command| command != "find") {
        return args;
    }
    let long = |arg: OsString| {
        let word = arg.to_str().and_then(|arg| arg.strip_prefix('-'));
        if word.is_some_and(|word| WORDS.contains(&word)) {
            OsString::from_vec([b"-", arg.as_bytes()].concat())
        } else {
            arg
        }
    };
    args.into_iter().map(long).collect()
}

fn kind(text: &str) -> Result<FileKind, String> {
    Ok(match text {
        "f" => FileKind::Regular,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        _ => return Err(format!("{text} is not a file type: f, d, l, b, c, p or s")),
    })
}

/// A number that is asked for: exactly it, more, or less.
#[derive(Debug, Clone, Copy)]
enum Range {
    Exactly(u64),
    More(u64),
    Less(u64),
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (range, number): (fn(u64) -> Self, &str) = match text.as_bytes().first() {
            Some(b'+') => (Self::More, text.get(1..).unwrap_or_default()),
            Some(b'-') => (Self::Less, text.get(1..).unwrap_or_default()),
            _ => (Self::Exactly, text),
        };
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| digits);
        number
            .map(range)
            .ok_or_else(|| format!("{text} is not a number, such as 7, +7 or -7"))
    }
}

impl Range {
    fn has(self, number: u64) -> bool {
        match self {
            Self::Exactly(wanted) => number == wanted,
            Self::More(wanted) => number > wanted,
            Self::Less(wanted) => number < wanted,
        }
    }
}

/// A size in a unit.
#[derive(Debug, Clone, Copy)]
struct Size {
    range: Range,
    unit: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = match text.as_bytes().last() {
            Some(b'c') => (1, 1),
            Some(b'w') => (1, 2),
            Some(b'b') => (1, 512),
            Some(b'k' | b'K') => (1, 1 << 10),
            Some(b'M') => (1, 1 << 20),
            Some(b'G') => (1, 1 << 30),
            _ => (0, 512),
        };
        let number = text.get(..text.len() - number).unwrap_or_default();
        let range = number.parse();
        let range =
            range.map_err(|_: String| format!("{text} is not a size, such as 10k, +5M or -1G"))?;
        Ok(Self { range, unit })
    }
}

/// Permissions that are asked for.
#[derive(Debug, Clone)]
enum Perm {
    Exactly(ModeChange),
    All(ModeChange),
    Some(ModeChange),
}

impl FromStr for Perm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = || text.get(1..).unwrap_or_default().parse();
        match text.as_bytes().first() {
            Some(b'-') => rest().map(Self::All),
            Some(b'/') => rest().map(Self::Some),
            _ => text.parse().map(Self::Exactly),
        }
    }
}

impl Perm {
    fn has(&self, mode: u32) -> bool {
        match self {
            Self::Exactly(wanted) => wanted.apply(0, false, 0) == mode,
            Self::All(wanted) => {
                let wanted = wanted.apply(0, false, 0);
                mode & wanted == wanted
            }
            Self::Some(wanted) => {
                let wanted = wanted.apply(0, false, 0);
                wanted == 0 || mode & wanted != 0
            }
        }
    }
}

/// The tests of the options for one image.
struct Wanted<'a> {
    args: &'a Args,
    name: Option<Pattern>,
    iname: Option<Pattern>,
    path: Option<Pattern>,
    newer: Option<Timestamp>,
    user: Option<u32>,
    group: Option<u32>,
    now: Timestamp,
}

impl<'a> Wanted<'a> {
    fn new(args: &'a Args, fs: &FileSystem) -> Result<Self> {
        let pattern = |text: &OsString| Pattern::new(text.as_bytes());
        let mut newer = args.newermt.map(Timestamp::from);
        if let Some(place) = &args.newer {
            let reference = within_place(fs.image_path(), place, "find")?;
            let found = fs.metadata(&reference).map_err(failed)?.attr().mtime;
            newer = newer.max(Some(found));
        }
        Ok(Self {
            args,
            name: args.name.as_ref().map(pattern),
            iname: args
                .iname
                .as_ref()
                .map(|text| Pattern::ignoring_case(text.as_bytes())),
            path: args.path.as_ref().map(pattern),
            newer,
            user: args
                .user
                .as_ref()
                .map(|name| user_id(fs, name))
                .transpose()?,
            group: args
                .group
                .as_ref()
                .map(|name| group_id(fs, name))
                .transpose()?,
            now: Timestamp::now(),
        })
    }

    /// Whether a file passes all tests but the one of its whole path.
    fn has(&self, found: &Found<'_>) -> Result<bool> {
        let args = self.args;
        let name = found.path.file_name().unwrap_or_default().as_bytes();
        let metadata = found.metadata;
        let matches = |pattern: &Option<Pattern>| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(name))
        };
        let attr = metadata.attr();
        let age = u64::try_from(self.now.sec.saturating_sub(attr.mtime.sec)).unwrap_or(0);
        let in_range = |range: Option<Range>, number| range.is_none_or(|range| range.has(number));
        let size = |size: Size| size.range.has(metadata.len().div_ceil(size.unit));
        let passes = matches(&self.name)
            && matches(&self.iname)
            && (args.kinds.is_empty() || args.kinds.contains(&attr.kind))
            && args.size.is_none_or(size)
            && in_range(args.mtime, age / 86_400)
            && in_range(args.mmin, age.div_ceil(60))
            && self.newer.is_none_or(|newer| attr.mtime > newer)
            && self.user.is_none_or(|uid| attr.uid == uid)
            && self.group.is_none_or(|gid| attr.gid == gid)
            && args.perm.as_ref().is_none_or(|perm| perm.has(attr.perm))
            && in_range(args.links, attr.nlink.into())
            && args.inum.is_none_or(|ino| metadata.ino() == ino);
        Ok(passes && (!args.empty || found.is_empty()?))
    }

    /// Whether a whole path passes.
    fn has_path(&self, whole: &Path) -> bool {
        let pattern = self.path.as_ref();
        pattern.is_none_or(|pattern| pattern.matches(whole.as_os_str().as_bytes()))
    }
}

/// A file that may be wanted.
struct Found<'f> {
    path: &'f Path,
    metadata: &'f Metadata,
    /// Whether a directory has no names.
    is_empty_dir: &'f dyn Fn() -> Result<bool>,
}

impl Found<'_> {
    fn is_empty(&self) -> Result<bool> {
        if self.metadata.is_dir() {
            (self.is_empty_dir)()
        } else {
            Ok(self.metadata.is_file() && self.metadata.len() == 0)
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut array = args.json.then(Array::begin).transpose()?;
    let (least, most) = (
        args.mindepth.unwrap_or(0),
        args.maxdepth.unwrap_or(usize::MAX),
    );
    let found = for_each(&args.places, &args.choice, true, |fs, path, _| {
        let wanted = Wanted::new(args, fs)?;
        let mut left_out = LeftOut::default();
        let mut show = |found: Found<'_>| {
            let Found { path, metadata, .. } = found;
            if !wanted.has(&found)? {
                return Ok(());
            }
            let bytes = path.as_os_str().len() + usize::from(path.is_relative());
            if !args.long.has(bytes, &mut left_out) {
                return Ok(());
            }
            let shown = absolute(path);
            if !wanted.has_path(&shown) {
                return Ok(());
            }
            match &mut array {
                Some(array) => array.push(&ListedFile::new(fs, path, &shown, metadata)?),
                None if args.print0 => {
                    output::bytes(&[shown.as_os_str().as_bytes(), b"\0"].concat())
                }
                None => output::line(shown_path(path)),
            }
        };
        let top = fs.symlink_metadata(path).map_err(failed)?;
        if least == 0 {
            show(Found {
                path,
                metadata: &top,
                is_empty_dir: &|| Ok(fs.read_dir(path).map_err(failed)?.next().is_none()),
            })?;
        }
        if !top.is_dir() {
            return Ok(());
        }
        let mut walk = fs.walk(path).map_err(failed)?.max_depth(most);
        while let Some(step) = walk.step().map_err(failed)? {
            interrupt::check(|| "the search is incomplete".to_owned())?;
            if step.depth() >= least {
                show(Found {
                    path: step.path(),
                    metadata: step.metadata(),
                    is_empty_dir: &|| step.is_empty_dir().map_err(failed),
                })?;
            }
        }
        left_out.end(path)
    });
    Array::end_if_any(array, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_find_have_one_dash_too() {
        let given = [
            "sapwood", "find", "a.img", "-name", "-type", "f", "-0", "--path",
        ];
        let rewritten = with_long_options(given.map(OsString::from).to_vec());
        let wanted = [
            "sapwood", "find", "a.img", "--name", "--type", "f", "-0", "--path",
        ];
        assert_eq!(rewritten, wanted);
        let other = ["sapwood", "ls", "-name"].map(OsString::from).to_vec();
        assert_eq!(with_long_options(other.clone()), other);
    }

    #[test]
    fn numbers_and_modes_are_ranges() {
        let has = |text: &str, number| text.parse::<Range>().unwrap().has(number);
        assert!(has("7", 7) && !has("7", 8));
        assert!(has("+7", 8) && !has("+7", 7));
        assert!(has("-7", 6) && !has("-7", 7));
        for text in ["", "+", "x", "--7", "+-7", "++7"] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
        let mode = |text: &str, mode| text.parse::<Perm>().unwrap().has(mode);
        assert!(mode("644", 0o644) && !mode("644", 0o4644));
        assert!(mode("-u+s", 0o4755) && !mode("-6000", 0o4755));
        assert!(mode("/6000", 0o4755) && !mode("/022", 0o755) && mode("/0", 0));
    }
}
