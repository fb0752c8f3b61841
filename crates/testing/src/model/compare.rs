//! Comparing the visible state of two file systems.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Display};
use std::ops::ControlFlow;

use super::Seen;
use sapwood_vfs::{Error, FileKind, FileSystem, Ino, Result};

/// Number of bytes that are compared at once.
const PIECE: usize = 1 << 20;

/// The first difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Path from the start of the comparison; empty for the directory itself.
    pub path: String,
    /// What differs, with both values.
    pub what: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}': {}", self.path, self.what)
    }
}

/// Compares two whole file systems: names, types, permissions, owners, link counts, sizes,
/// content, extended attributes, targets, device numbers, flags, and which names lead to
/// the same inode. Times, inode numbers and allocation are not compared.
///
/// # Errors
/// The first difference, or an error of either.
pub fn compare_trees(
    one: &dyn FileSystem,
    other: &dyn FileSystem,
) -> std::result::Result<(), Difference> {
    compare_below((one, one.root()), (other, other.root()))
}

/// Compares two directories and everything below them.
///
/// # Errors
/// As [`compare_trees`].
pub fn compare_below(
    (one, one_dir): (&dyn FileSystem, Ino),
    (other, other_dir): (&dyn FileSystem, Ino),
) -> std::result::Result<(), Difference> {
    let mut comparison = Comparison {
        sides: [one, other],
        same: HashMap::new(),
        path: Vec::new(),
    };
    let ends = comparison.inodes([one_dir, other_dir]);
    ends.map_err(|what| Difference {
        path: comparison.path.join("/"),
        what,
    })
}

struct Comparison<'a> {
    sides: [&'a dyn FileSystem; 2],
    /// The inode of the second file system for each inode of the first.
    same: HashMap<Ino, Ino>,
    path: Vec<String>,
}

/// Text of a difference.
type Outcome<T = ()> = std::result::Result<T, String>;

fn equal<T: Debug + PartialEq>(what: &str, [one, other]: &[T; 2]) -> Outcome {
    match one == other {
        true => Ok(()),
        false => Err(format!("{what}: {one:?} and {other:?}")),
    }
}

impl Comparison<'_> {
    /// Makes the same call on both sides.
    fn both<T>(
        &self,
        what: &str,
        inos: [Ino; 2],
        call: impl Fn(&dyn FileSystem, Ino) -> Result<T>,
    ) -> Outcome<[T; 2]> {
        let run = |side: usize| {
            call(self.sides[side], inos[side])
                .map_err(|error| format!("{what} on side {side}: {error:?}"))
        };
        Ok([run(0)?, run(1)?])
    }

    fn inodes(&mut self, inos: [Ino; 2]) -> Outcome {
        let attrs = self.both("getattr", inos, |fs, ino| fs.getattr(ino))?;
        equal(
            "attributes",
            &[Seen::from(&attrs[0]), Seen::from(&attrs[1])],
        )?;
        // A directory has one name, and the stubs of subvolumes in a snapshot may share their
        // number.
        if attrs[0].kind != FileKind::Directory {
            match self.same.insert(inos[0], inos[1]) {
                Some(known) if known == inos[1] => return Ok(()),
                Some(_) => return Err("hard links lead to different inodes".to_owned()),
                None => {}
            }
        }
        self.xattrs(inos)?;
        match attrs[0].kind {
            FileKind::Regular => self.content(inos, attrs[0].size),
            FileKind::Symlink => {
                let targets = self.both("readlink", inos, |fs, ino| fs.readlink(ino))?;
                equal("target", &targets)
            }
            FileKind::Directory => self.directories(inos),
            _ => Ok(()),
        }
    }

    fn xattrs(&self, inos: [Ino; 2]) -> Outcome {
        let all = self.both("xattrs", inos, |fs, ino| {
            let mut all = BTreeMap::new();
            for name in fs.listxattr(ino)? {
                let value = fs.getxattr(ino, &name)?;
                if all
                    .insert(String::from_utf8_lossy(&name).into_owned(), value)
                    .is_some()
                {
                    return Err(Error::corrupt("an attribute is listed twice".to_owned()));
                }
            }
            Ok(all)
        })?;
        equal("extended attributes", &all)
    }

    fn content(&self, inos: [Ino; 2], size: u64) -> Outcome {
        let mut offset = 0;
        while offset < size {
            let pieces = self.both("read", inos, |fs, ino| {
                let mut buf = vec![0; PIECE];
                let got = fs.read(ino, offset, &mut buf)?;
                buf.truncate(got);
                Ok(buf)
            })?;
            let lengths = [pieces[0].len(), pieces[1].len()];
            equal(&format!("bytes read at {offset}"), &lengths)?;
            let mut pairs = pieces[0].iter().zip(&pieces[1]);
            if let Some(at) = pairs.position(|(one, other)| one != other) {
                let values = [pieces[0][at], pieces[1][at]];
                return equal(&format!("byte {}", offset + at as u64), &values);
            }
            if pieces[0].is_empty() {
                return Err(format!("nothing to read at {offset} of {size}"));
            }
            offset += pieces[0].len() as u64;
        }
        Ok(())
    }

    fn directories(&mut self, inos: [Ino; 2]) -> Outcome {
        let names = self.both("readdir", inos, |fs, ino| {
            let mut names = Vec::new();
            fs.readdir(ino, 0, &mut |entry| {
                names.push(entry.name);
                ControlFlow::Continue(())
            })?;
            names.sort();
            Ok(names)
        })?;
        let text = |names: &[Vec<u8>]| -> Vec<String> {
            let names = names.iter();
            names
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect()
        };
        equal("names", &[text(&names[0]), text(&names[1])])?;
        for name in &names[0] {
            self.path.push(String::from_utf8_lossy(name).into_owned());
            self.entries(inos, name)?;
            self.path.pop();
        }
        Ok(())
    }

    fn entries(&mut self, dirs: [Ino; 2], name: &[u8]) -> Outcome {
        let lookup = |side: usize| {
            self.sides[side]
                .lookup(dirs[side], name)
                .map_err(|error| format!("lookup on side {side}: {error:?}"))
        };
        let one = lookup(0)?.ino();
        let ends = match lookup(1) {
            Ok(other) => {
                let ends = self.inodes([one, other.ino()]);
                self.sides[1].forget(other.ino(), 1);
                ends
            }
            Err(what) => Err(what),
        };
        self.sides[0].forget(one, 1);
        ends
    }
}
