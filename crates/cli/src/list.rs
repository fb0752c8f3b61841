//! `sapwood ls` and `sapwood tree`.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sapwood::{FileSystem, Metadata};
use unicode_width::UnicodeWidthStr as _;

use super::choice::SubvolumeChoice;
use super::colors::{Colors, When};
use super::entry::{self, ListedFile};
use super::failure::Result;
use super::files::{failed, for_each, shown_path};
use super::long_paths::{LeftOut, LongPaths};
use super::output::{self, Array};
use super::times;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "the options of ls(1)")]
pub(super) struct LsArgs {
    /// Directories or files to list, or patterns
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
    /// Long form: mode, links, owner, size, time
    #[arg(short, long)]
    long: bool,
    /// Show hidden names too, with . and ..
    #[arg(short, long)]
    all: bool,
    /// Show hidden names too, without . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Sizes with units, as 1.5K
    #[arg(short, long)]
    human_readable: bool,
    /// List directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Newest first
    #[arg(short = 't', long, overrides_with = "by_size")]
    by_time: bool,
    /// Largest first
    #[arg(short = 'S', long, overrides_with = "by_time")]
    by_size: bool,
    /// In reverse order
    #[arg(short, long)]
    reverse: bool,
    /// One name in each line, also on a terminal
    #[arg(short = '1', long)]
    one: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    directory: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Colour names by the kind of file, as $LS_COLORS says
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always"
    )]
    color: When,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    long_paths: LongPaths,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct TreeArgs {
    /// Directory to show
    #[arg(value_name = "IMAGE[:PATH]")]
    pub(super) place: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    long_paths: LongPaths,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A name of a list.
struct Row {
    /// The printed name.
    name: PathBuf,
    path: PathBuf,
    metadata: Metadata,
}

pub(super) fn ls(args: &LsArgs) -> Result<()> {
    let mut lister = Lister {
        args,
        array: args.json.then(Array::begin).transpose()?,
        colors: Colors::new(args.color),
        several: args.places.len() > 1,
        begun: false,
    };
    let listed = for_each(&args.places, &args.choice, true, |fs, path, several| {
        lister.several |= several;
        lister.place(fs, path)
    });
    Array::end_if_any(lister.array, listed)
}

struct Lister<'a> {
    args: &'a LsArgs,
    array: Option<Array>,
    colors: Colors,
    several: bool,
    /// Something was printed.
    begun: bool,
}

impl Lister<'_> {
    fn place(&mut self, fs: &FileSystem, path: &Path) -> Result<()> {
        let top = if self.args.long || self.args.directory {
            fs.symlink_metadata(path)
        } else {
            fs.metadata(path).or_else(|_| fs.symlink_metadata(path))
        };
        let metadata = top.map_err(failed)?;
        if metadata.is_dir() && !self.args.directory {
            return self.directory(fs, path);
        }
        let name = path.to_owned();
        let path = path.to_owned();
        self.print(
            fs,
            &[Row {
                name,
                path,
                metadata,
            }],
        )
    }

    /// A directory, and with `-R` all below it.
    fn directory(&mut self, fs: &FileSystem, top: &Path) -> Result<()> {
        let mut waiting = vec![top.to_owned()];
        let mut entered = std::collections::HashSet::new();
        let mut left_out = LeftOut::default();
        while let Some(dir) = waiting.pop() {
            if self.args.recursive {
                let ino = fs.metadata(&dir).map_err(failed)?.ino();
                if !entered.insert(ino) {
                    let why = "directory loop: it is reached a second time";
                    return Err(super::failure::Failure::on(shown_path(&dir), why));
                }
            }
            let mut rows = self.rows(fs, &dir)?;
            if self.args.json && self.args.recursive {
                for row in &mut rows {
                    row.name = row.path.clone();
                }
            }
            if (self.several || self.args.recursive) && !self.args.json {
                let blank = if self.begun { "\n" } else { "" };
                output::line(format!("{blank}{}:", shown_path(&dir)))?;
            }
            self.print(fs, &rows)?;
            if self.args.recursive {
                let below = rows.into_iter().rev().filter(|row| {
                    let dots = [".", ".."].map(Path::new).contains(&row.name.as_path());
                    row.metadata.is_dir() && !dots
                });
                let long_paths = self.args.long_paths;
                let below = below.filter(|row| {
                    let bytes = row.path.as_os_str().len();
                    long_paths.has(bytes, &mut left_out)
                });
                waiting.extend(below.map(|row| row.path));
            }
        }
        left_out.end(top)
    }

    fn rows(&self, fs: &FileSystem, dir: &Path) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for entry in fs.read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let hidden = name.as_bytes().starts_with(b".");
            if hidden && !self.args.all && !self.args.almost_all {
                continue;
            }
            rows.push(Row {
                name: name.into(),
                path: entry.path(),
                metadata: entry.metadata().map_err(failed)?,
            });
        }
        if self.args.all {
            for name in [".", ".."] {
                let path = dir.join(name);
                let metadata = fs.metadata(&path).map_err(failed)?;
                let name = PathBuf::from(name);
                rows.push(Row {
                    name,
                    path,
                    metadata,
                });
            }
        }
        let name = |row: &Row| row.name.as_os_str().as_bytes().to_vec();
        match (self.args.by_time, self.args.by_size) {
            (true, _) => rows.sort_by_key(|row| (Reverse(row.metadata.attr().mtime), name(row))),
            (_, true) => rows.sort_by_key(|row| (Reverse(row.metadata.len()), name(row))),
            _ => rows.sort_by_key(name),
        }
        if self.args.reverse {
            rows.reverse();
        }
        Ok(rows)
    }

    fn print(&mut self, fs: &FileSystem, rows: &[Row]) -> Result<()> {
        self.begun = true;
        if let Some(array) = &mut self.array {
            return rows.iter().try_for_each(|row| {
                let shown = ListedFile::new(fs, &row.path, &row.name, &row.metadata)?;
                array.push(&shown)
            });
        }
        if self.args.long {
            return self.long(fs, rows);
        }
        let widest = rows.iter().map(|row| row.metadata.ino().to_string().len());
        let widest = widest.max().unwrap_or(0);
        let names = rows.iter().map(|row| {
            let inode = if self.args.inode {
                format!("{:>widest$} ", row.metadata.ino())
            } else {
                String::new()
            };
            let plain = output::name(row.name.as_os_str().as_bytes());
            let width = inode.len() + plain.width();
            (width, format!("{inode}{}", self.painted(fs, row, plain)))
        });
        let names: Vec<(usize, String)> = names.collect();
        match output::terminal_width().filter(|_| !self.args.one) {
            Some(width) => output::columns(&names, width)
                .iter()
                .try_for_each(output::line),
            None => names.iter().try_for_each(|(_, name)| output::line(name)),
        }
    }

    /// The printed form of a name, in its colour.
    fn painted(&self, fs: &FileSystem, row: &Row, plain: String) -> String {
        let is_broken = || fs.metadata(&row.path).is_err();
        self.colors
            .paint(plain, row.name.as_os_str(), &row.metadata, is_broken)
    }

    /// The long form, in columns that are as wide as their widest field.
    fn long(&self, fs: &FileSystem, rows: &[Row]) -> Result<()> {
        let fields: Vec<[String; 5]> = rows.iter().map(|row| self.fields(&row.metadata)).collect();
        let width = |nth: usize| {
            let all = fields.iter().filter_map(|row| row.get(nth));
            all.map(String::len).max().unwrap_or(0)
        };
        let [ino, links, uid, gid, size] = [0, 1, 2, 3, 4].map(width);
        for (row, fields) in rows.iter().zip(&fields) {
            let inode = if self.args.inode {
                format!("{:>ino$} ", fields[0])
            } else {
                String::new()
            };
            output::line(format!(
                "{inode}{} {:>links$} {:>uid$} {:>gid$} {:>size$} {} {}{}",
                output::mode(row.metadata.attr()),
                fields[1],
                fields[2],
                fields[3],
                fields[4],
                times::local_seconds(row.metadata.attr().mtime),
                self.painted(fs, row, output::name(row.name.as_os_str().as_bytes())),
                entry::arrow(fs, &row.path, &row.metadata)?,
            ))?;
        }
        Ok(())
    }

    /// Inode number, links, owner, group, size.
    fn fields(&self, metadata: &Metadata) -> [String; 5] {
        let size = || {
            if self.args.human_readable {
                output::human(metadata.len())
            } else {
                metadata.len().to_string()
            }
        };
        [
            metadata.ino().to_string(),
            metadata.nlink().to_string(),
            metadata.uid().to_string(),
            metadata.gid().to_string(),
            entry::device(metadata).unwrap_or_else(size),
        ]
    }
}

pub(super) fn tree(args: &TreeArgs) -> Result<()> {
    let place = std::slice::from_ref(&args.place);
    let mut array = args.json.then(Array::begin).transpose()?;
    let shown = for_each(place, &args.choice, true, |fs, path, _| {
        let mut below = fs.walk(path).map_err(failed)?;
        let mut left_out = LeftOut::default();
        if array.is_none() {
            output::line(shown_path(path))?;
        }
        let mut counts = (0_u64, 0_u64);
        while let Some(entry) = below.step().map_err(failed)? {
            let (path, metadata) = (entry.path(), entry.metadata());
            if metadata.is_dir() {
                counts.0 += 1
            } else {
                counts.1 += 1
            }
            if !args.long_paths.has(path.as_os_str().len(), &mut left_out) {
                continue;
            }
            if let Some(array) = &mut array {
                array.push(&ListedFile::new(fs, path, entry.relative_path(), metadata)?)?;
                continue;
            }
            let target = if metadata.is_dir() {
                "/".to_owned()
            } else {
                entry::arrow(fs, path, metadata)?
            };
            let name = path.file_name().unwrap_or_default();
            let indent = "  ".repeat(entry.depth());
            let name = output::name(name.as_bytes());
            output::line(format!("{indent}{name}{target}"))?;
        }
        if array.is_none() {
            output::line(format!("{} directories, {} files", counts.0, counts.1))?;
        }
        left_out.end(path)
    });
    Array::end_if_any(array, shown)
}
