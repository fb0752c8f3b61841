//! Metadata that the files of an image get in place of their source's.
//!
//! ```
//! use sapwood::Changes;
//!
//! let mut changes = Changes::default();
//! changes.all_root();
//! changes.exclude("*.o")?;
//! changes.exclude("/var/cache/**")?;
//! # Ok::<(), sapwood::Error>(())
//! ```

mod contexts;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::path_table::{PathId, PathTable};
use crate::vfs::{FileKind, Timestamp};
use contexts::Contexts;

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A source's attributes of an inode.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attributes {
    /// Permission, set-id and sticky bits.
    pub(crate) perm: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Last change of the content.
    pub(crate) mtime: Timestamp,
    /// Last access; `None`: same as the last change.
    pub(crate) atime: Option<Timestamp>,
    pub(crate) xattrs: Xattrs,
}

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChangeError {
    /// A pattern of names that is none.
    #[error("{0}")]
    Pattern(#[from] globset::Error),
    /// A range of ids is not `FROM:TO:COUNT`.
    #[error("{0} is not FROM:TO:COUNT")]
    Range(String),
    /// A line of a `file_contexts` file makes no sense.
    #[error("line {line}: {text} is no rule of SELinux file contexts")]
    Context {
        /// Number of the line.
        line: usize,
        /// The line.
        text: String,
    },
    /// The rules of `file_contexts` files are too large.
    #[error("{what} of file contexts take more than {limit} bytes")]
    Contexts {
        /// The part that is too large.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The pattern of a `file_contexts` line is no regular expression.
    #[error("line {line}: {source}")]
    Expression {
        /// Number of the line.
        line: usize,
        /// The defect.
        source: Box<regex::Error>,
    },
}

/// `COUNT` ids from `FROM` on, which become the ids from `TO` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    from: u32,
    to: u32,
    count: u32,
}

impl FromStr for IdRange {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let wrong = || ChangeError::Range(text.to_owned());
        let numbers: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        let Ok(&[from, to, count]) = numbers.as_deref() else {
            return Err(wrong().into());
        };
        // The largest number means none.
        let fits = |first: u32| first.checked_add(count).is_some();
        if fits(from) && fits(to) && count > 0 {
            Ok(Self { from, to, count })
        } else {
            Err(wrong().into())
        }
    }
}

impl IdRange {
    fn map(&self, id: u32) -> Option<u32> {
        let place = id.checked_sub(self.from)?;
        (place < self.count).then(|| self.to + place)
    }
}

/// Metadata that the files of an image get in place of their source's, and files that are left out.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    all_root: bool,
    uids: Vec<IdRange>,
    gids: Vec<IdRange>,
    places: PathTable,
    owners: HashMap<PathId, (u32, u32)>,
    patterns: Vec<Glob>,
    excluded: GlobSet,
    latest: Option<Timestamp>,
    contexts: Contexts,
}

/// A pattern of names anywhere, or of paths from the root if it has a slash.
pub(crate) fn path_pattern(pattern: &str) -> Result<Glob, globset::Error> {
    let trimmed = pattern.trim_end_matches('/');
    let anchored = match trimmed.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if trimmed.contains('/') => trimmed.to_owned(),
        None => format!("**/{trimmed}"),
    };
    GlobBuilder::new(&anchored)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
}

/// Whether a path, relative to the root, or a directory above it is matched.
pub(crate) fn covers(path: &[u8], is_match: impl Fn(&Path) -> bool) -> bool {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let ends = ends.map(|(at, _)| at).chain([path.len()]);
    ends.filter_map(|end| path.get(..end))
        .any(|path| is_match(Path::new(OsStr::from_bytes(path))))
}

/// The names of a path.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
}

impl Changes {
    /// Everything belongs to the superuser.
    pub fn all_root(&mut self) {
        self.all_root = true;
    }

    /// Maps a range of owners to another range. The first range that contains an owner counts; an
    /// owner in none stays.
    pub fn map_uids(&mut self, range: IdRange) {
        self.uids.push(range);
    }

    /// Like [`map_uids`](Self::map_uids), for groups.
    pub fn map_gids(&mut self, range: IdRange) {
        self.gids.push(range);
    }

    /// Leaves out matches of a pattern, with everything below them. `*`, `?`, `[a-z]` and `{a,b}`
    /// match within a name, `**` any number of directories. A pattern without a slash matches names
    /// anywhere, another one paths from the root.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): it is no pattern.
    pub fn exclude(&mut self, pattern: &str) -> crate::Result<()> {
        self.patterns
            .push(path_pattern(pattern).map_err(ChangeError::from)?);
        let mut set = GlobSetBuilder::new();
        for glob in &self.patterns {
            set.add(glob.clone());
        }
        self.excluded = set.build().map_err(ChangeError::from)?;
        Ok(())
    }

    /// Times after this one become this one.
    pub fn clamp_times(&mut self, latest: std::time::SystemTime) {
        self.latest = Some(latest.into());
    }

    /// SELinux labels from the text of a `file_contexts` file: a regular expression, optionally
    /// a kind of file (`--`, `-d`, `-l`, ...), and the label of each line.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): a line makes no sense, or there
    /// are too many.
    pub fn file_contexts(&mut self, text: &str) -> crate::Result<()> {
        Ok(self.contexts.add(text)?)
    }

    /// The place of a path below another one, or below the root.
    pub(crate) fn place(&mut self, above: Option<PathId>, path: &[u8]) -> PathId {
        let top = above.unwrap_or(PathTable::ROOT);
        names(path).fold(top, |at, name| self.places.add(at, name))
    }

    /// The owner and group of the file at this place.
    pub(crate) fn set_owner(&mut self, place: PathId, owner: (u32, u32)) {
        self.owners.insert(place, owner);
    }

    fn listed_owner(&self, path: &[u8]) -> Option<(u32, u32)> {
        let mut parts = names(path);
        let place = parts.try_fold(PathTable::ROOT, |at, name| self.places.child(at, name));
        self.owners.get(&place?).copied()
    }

    /// Whether files get SELinux labels.
    pub(crate) fn has_labels(&self) -> bool {
        !self.contexts.is_empty()
    }

    /// Whether the file at a path, relative to the root, is left out.
    pub(crate) fn excludes(&self, path: &[u8]) -> bool {
        let excluded = |path: &Path| self.excluded.is_match_candidate(&Candidate::new(path));
        !self.excluded.is_empty() && covers(path, excluded)
    }

    /// Owner and group of the file at a path.
    pub(crate) fn owner(&self, path: &[u8], owner: (u32, u32)) -> (u32, u32) {
        let (uid, gid) = self.listed_owner(path).unwrap_or(owner);
        if self.all_root {
            return (0, 0);
        }
        let map = |ranges: &[IdRange], id| ranges.iter().find_map(|range| range.map(id));
        (
            map(&self.uids, uid).unwrap_or(uid),
            map(&self.gids, gid).unwrap_or(gid),
        )
    }

    /// The time that takes the place of another one.
    pub(crate) fn time(&self, time: Timestamp) -> Timestamp {
        self.latest.map_or(time, |latest| time.min(latest))
    }

    /// Sets the SELinux label of the file at a path, if a rule has one.
    pub(crate) fn label(&self, path: &[u8], kind: FileKind, xattrs: &mut Xattrs) {
        const NAME: &[u8] = b"security.selinux";
        if let Some(label) = self.contexts.find(path, kind) {
            xattrs.retain(|(name, _)| name != NAME);
            xattrs.push((NAME.to_vec(), [label, b"\0"].concat()));
        }
    }

    /// Changes all attributes of the file at a path.
    pub(crate) fn apply(&self, path: &[u8], kind: FileKind, attributes: &mut Attributes) {
        let owner = (attributes.uid, attributes.gid);
        (attributes.uid, attributes.gid) = self.owner(path, owner);
        attributes.mtime = self.time(attributes.mtime);
        attributes.atime = attributes.atime.map(|time| self.time(time));
        self.label(path, kind, &mut attributes.xattrs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_paths_and_what_is_below() {
        let mut changes = Changes::default();
        for pattern in ["*.o", "/var/cache/**", "a/{b,c}", "tmp/"] {
            changes.exclude(pattern).unwrap();
        }
        for path in [
            "x.o",
            "d/x.o",
            "d.o/x",
            "var/cache/a/b",
            "a/b",
            "a/c/d",
            "x/tmp/y",
        ] {
            assert!(changes.excludes(path.as_bytes()), "{path}");
        }
        for path in ["x.oo", "var/cache", "x/var/cache/a", "x/a/b", "a/d", "tmpx"] {
            assert!(!changes.excludes(path.as_bytes()), "{path}");
        }
        assert!(changes.excludes(b"\xff.o"));
        assert!(changes.exclude("[").is_err());
    }

    #[test]
    fn ranges_map_ids_and_leave_others() {
        let mut changes = Changes::default();
        changes.map_uids("1000:0:1".parse().unwrap());
        changes.map_uids("100000:1:65535".parse().unwrap());
        changes.map_gids("0:500:10".parse().unwrap());
        assert_eq!(changes.owner(b"f", (1000, 3)), (0, 503));
        assert_eq!(changes.owner(b"f", (100_999, 10)), (1000, 10));
        assert_eq!(changes.owner(b"f", (7, 9)), (7, 509));
        changes.all_root();
        assert_eq!(changes.owner(b"f", (7, 9)), (0, 0));
        for bad in [
            "",
            "1:2",
            "1:2:0",
            "1:2:3:4",
            "-1:2:3",
            "4294967295:0:1",
            "0:1:4294967295",
        ] {
            assert!(bad.parse::<IdRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_later_times_are_clamped() {
        let mut changes = Changes::default();
        let at = |sec| Timestamp { sec, nsec: 5 };
        assert_eq!(changes.time(at(9)), at(9));
        changes.clamp_times(std::time::UNIX_EPOCH + std::time::Duration::from_secs(7));
        assert_eq!(changes.time(at(9)), Timestamp { sec: 7, nsec: 0 });
        assert_eq!(changes.time(at(3)), at(3));
    }
}
