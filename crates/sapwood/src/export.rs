//! Exporting the files of an image as a tar archive, or as a layer of a container image.
//!
//! # How it works
//! The tree is walked depth first, each directory in the order of its names' bytes, so that the
//! same tree gives the same bytes. With a base ([`ExportOptions::since`]) both trees are walked
//! together. Names that are equal in both are left out, and a name that only the base has becomes a
//! whiteout of the OCI image specification: an entry `.wh.NAME`, or `.wh..wh..opq` for a directory
//! that keeps none of the base's names. Whiteouts come before all other entries of their directory.
//!
//! The first name of an inode has its content, and every further one is a hard link to it. If
//! anything about an inode with several names changed, all of its names are exported.
//!
//! Headers are ustar with pax records for values that ustar cannot express: fractions of seconds,
//! long names, large numbers, extended attributes and ACLs. Access times are left out. Files with
//! holes are stored in GNU tar's sparse format (`holes`), in layers only on request.
//!
//! The length of a file is in its header, so unreadable parts of it become zeros (`damage`).

mod compare;
mod entry;
mod holes;
mod stream;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::archive::path as path_of;
use crate::damage::Damage;
use crate::fs::FileSystem;
use crate::progress::{OnProgress, Progress};
use crate::tree::{self, HeldInode, Names};
use crate::vfs::{self, FileKind, Ino};
use compare::Side;
use entry::{Entries, Files};
use stream::Stream;

/// How an archive is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ExportCompression {
    /// Not at all.
    #[default]
    None,
    /// gzip, at this level: 0 to 9.
    Gzip(u32),
    /// zstd, at this level: 1 to 22.
    Zstd(i32),
}

/// Options of an export.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ExportOptions {
    /// Export the changes since this directory of this image; it may be the same image.
    pub since: Option<(FileSystem, PathBuf)>,
    /// Make a layer of an OCI image. A name that means a whiteout is refused, here and with a base.
    pub layer: bool,
    /// Compression.
    pub compression: ExportCompression,
    /// Leave out the holes of files, in version 1.0 of GNU tar's sparse format. `None`: leave them
    /// out in an archive, but not in a layer. The image specification of OCI advises against sparse
    /// files in layers, because not every program that unpacks them knows the format.
    pub sparse: Option<bool>,
    /// Continue after a part of a file that cannot be read, which becomes zeros. Otherwise the rest
    /// of that file becomes zeros. Either way the file is reported and counted as damaged.
    pub keep_going: bool,
}

/// Report of an export.
#[derive(Debug, Clone)]
#[must_use = "an export leaves out sockets, and what it cannot read"]
pub struct ExportReport {
    /// Entries, whiteouts among them.
    pub entries: u64,
    /// Sockets, which an archive cannot have.
    pub left_out: u64,
    /// Files and directories that could not be read, or only in part. Each was reported as
    /// [`Progress::Failed`].
    pub damaged: u64,
    /// SHA-256 of the archive before compression: the layer's `diff_id`.
    pub diff_id: [u8; 32],
    /// SHA-256 of the output: the layer's digest.
    pub digest: [u8; 32],
    /// Bytes that were written.
    pub size: u64,
}

/// Errors of an export. The output so far is no complete archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The archive could not be written.
    #[error("the archive cannot be written: {0}")]
    Write(#[from] io::Error),
    /// A file of the image could not be read.
    #[error("{}: {source}", path.display())]
    Image {
        /// Its path.
        path: PathBuf,
        /// Error of the file system.
        source: vfs::Error,
    },
    /// A part of a file of the image could not be read. The archive has zeros in its place.
    #[error("{}: {damage}", path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// The unreadable part.
        #[source]
        damage: Damage,
    },
    /// A directory or file of the base could not be read, so the changes are unknown.
    #[error("the base: {}: {source}", path.display())]
    Base {
        /// Its path.
        path: PathBuf,
        /// Error of the file system.
        source: vfs::Error,
    },
    /// The path to export is not a directory.
    #[error("{}: not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// The image has a name that is no file name.
    #[error("{}: a name in it is no file name", .0.display())]
    BadName(PathBuf),
    /// A name that would mean the removal of another one.
    #[error("{}: in a layer a name with .wh. at its start means a removal", .0.display())]
    Whiteout(PathBuf),
    /// A device number that no archive can have.
    #[error("{}: the device number {rdev:#x} is too large for an archive", path.display())]
    Device {
        /// Path of the device node.
        path: PathBuf,
        /// The number.
        rdev: u64,
    },
}

type Result<T> = std::result::Result<T, ExportError>;

/// The start of a whiteout's name.
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of all that the base has in a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// An error of the file system at a path.
fn at(path: &[u8]) -> impl Fn(vfs::Error) -> ExportError {
    let path = path_of(path);
    move |source| ExportError::Image {
        path: path.clone(),
        source,
    }
}

/// An error of the base at a path.
fn at_base(path: &[u8]) -> impl Fn(vfs::Error) -> ExportError {
    let path = path_of(path);
    move |source| ExportError::Base {
        path: path.clone(),
        source,
    }
}

impl FileSystem {
    /// Writes everything below the directory `path`, and its own attributes as the entry `./`, as a
    /// tar archive. The same tree, with the same holes, gives the same bytes. A file or directory
    /// that cannot be read is reported to `progress`, and the export continues. An empty
    /// `lost+found` at the root of an ext4 image belongs to the format, and is left out.
    ///
    /// # Errors
    /// The archive cannot be written; the format of an archive or layer cannot express a file.
    pub fn export_tar(
        &self,
        path: impl AsRef<Path>,
        writer: impl Write,
        options: &ExportOptions,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<ExportReport> {
        let new = top(self, path.as_ref())?;
        let base = options.since.as_ref();
        let old = base.map(|(fs, path)| top(fs, path)).transpose();
        let old = old.map_err(ExportError::of_base)?;
        let files = Files {
            sparse: options.sparse.unwrap_or(!options.layer),
            keep_going: options.keep_going,
            image: bytes(self),
        };
        let mut export = Export {
            new: Side::new(&**self.engine(), self.kind()),
            old: base.map(|(fs, _)| Side::new(&**fs.engine(), fs.kind())),
            out: Entries::new(
                Stream::new(writer, options.compression).map_err(ExportError::Write)?,
                files,
            ),
            refuses_whiteouts: options.layer || base.is_some(),
            firsts: HashMap::new(),
            entries: 0,
            left_out: 0,
            damaged: 0,
            bytes: 0,
            progress,
        };
        if let (Some(old), Some(side)) = (&old, &mut export.old) {
            side.collect_links(old).map_err(ExportError::of_base)?;
            export.new.collect_links(&new)?;
        }
        export.tree(new, old)?;
        let finished = export.out.finish().and_then(Stream::finish);
        let (diff_id, digest, size) = finished.map_err(ExportError::Write)?;
        Ok(ExportReport {
            entries: export.entries,
            left_out: export.left_out,
            damaged: export.damaged,
            diff_id,
            digest,
            size,
        })
    }
}

/// The directory to export, or its base.
fn top<'a>(fs: &'a FileSystem, path: &Path) -> Result<HeldInode<'a>> {
    let name = path.as_os_str().as_bytes();
    let vfs: &dyn vfs::FileSystem = &**fs.engine();
    let node = tree::resolve(vfs, name, true).map_err(at(name))?;
    if node.is_dir() {
        Ok(node)
    } else {
        Err(ExportError::NotDirectory(path.to_owned()))
    }
}

/// A directory that the walk is in.
struct Level<'a> {
    node: HeldInode<'a>,
    /// The same directory of the base.
    old: Option<HeldInode<'a>>,
    /// Path from the top, without a slash at its end.
    path: Vec<u8>,
    /// Names that are still to be exported.
    names: std::vec::IntoIter<Vec<u8>>,
}

/// The state of an export.
struct Export<'a, 'p, 'q, W: Write> {
    new: Side<'a>,
    old: Option<Side<'a>>,
    out: Entries<Stream<W>>,
    refuses_whiteouts: bool,
    /// The exported path of each inode with several names.
    firsts: HashMap<Ino, Vec<u8>>,
    entries: u64,
    left_out: u64,
    damaged: u64,
    /// Bytes of content.
    bytes: u64,
    progress: &'p mut OnProgress<'q>,
}

impl<'a, W: Write> Export<'a, '_, '_, W> {
    fn tree(&mut self, new: HeldInode<'a>, old: Option<HeldInode<'a>>) -> Result<()> {
        self.entry(&new, old.as_ref(), b"")?;
        let mut open = vec![self.level(new, old, Vec::new())?];
        let mut inside = HashSet::new();
        while let Some(level) = open.last_mut() {
            let Some(name) = level.names.next() else {
                open.pop();
                continue;
            };
            match self.name(level, &name, &mut inside) {
                Ok(below) => open.extend(below),
                Err(error) if error.is_damage() => self.damaged(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Exports the file at a name in a directory. A directory is returned, to be walked.
    fn name(
        &mut self,
        level: &Level<'a>,
        name: &[u8],
        inside: &mut HashSet<Ino>,
    ) -> Result<Option<Level<'a>>> {
        let path = tree::join(&level.path, name);
        let node = level.node.child(name).map_err(at(&path))?;
        let old = match &level.old {
            Some(dir) => compare::child(dir, name).map_err(at_base(&path))?,
            None => None,
        };
        self.entry(&node, old.as_ref(), &path)?;
        if !node.is_dir() {
            return Ok(None);
        }
        if !inside.insert(node.ino()) {
            return Err(at(&path)(tree::directory_loop(name)));
        }
        let old = old.filter(HeldInode::is_dir);
        self.level(node, old, path).map(Some)
    }

    /// Reports the unreadable parts.
    fn damaged(&mut self, error: &ExportError) {
        self.damaged += 1;
        (self.progress)(Progress::Failed(error));
    }

    /// Begins a directory: writes its whiteouts, and reads its names.
    fn level(
        &mut self,
        node: HeldInode<'a>,
        old: Option<HeldInode<'a>>,
        path: Vec<u8>,
    ) -> Result<Level<'a>> {
        let names = self.new.names(&node, &path)?;
        if self.refuses_whiteouts
            && let Some(name) = names.iter().find(|name| name.starts_with(WHITEOUT))
        {
            return Err(ExportError::Whiteout(path_of(&tree::join(&path, name))));
        }
        if let (Some(old), Some(side)) = (&old, &self.old) {
            let before = side.names(old, &path).map_err(ExportError::of_base)?;
            let mut gone = Vec::new();
            for name in &before {
                let path = tree::join(&path, name);
                let is_gone = match names.binary_search(name) {
                    Err(_) => true,
                    // A directory does not replace a file, nor a file a directory.
                    Ok(_) => {
                        let now = node.child(name).map_err(at(&path))?;
                        let then = old.child(name).map_err(at_base(&path))?;
                        now.is_dir() != then.is_dir()
                    }
                };
                if is_gone {
                    gone.push([WHITEOUT, name].concat());
                }
            }
            if !gone.is_empty() && gone.len() == before.len() {
                gone = vec![OPAQUE.to_vec()];
            }
            for name in gone {
                self.out.whiteout(&tree::join(&path, &name))?;
                self.count();
            }
        }
        Ok(Level {
            node,
            old,
            path,
            names: names.into_iter(),
        })
    }

    fn count(&mut self) {
        self.entries += 1;
        (self.progress)(Progress::Done {
            phase: "export",
            done: self.entries,
        });
    }

    /// Writes one entry, unless the base has it as it is.
    fn entry(
        &mut self,
        node: &HeldInode<'_>,
        old: Option<&HeldInode<'_>>,
        path: &[u8],
    ) -> Result<()> {
        let attr = node.attr();
        if attr.kind == FileKind::Socket {
            log::warn!("{}: a socket is left out", path_of(path).display());
            self.left_out += 1;
            return Ok(());
        }
        if let (Some(side), Some(old)) = (&self.old, old)
            && self.new.same_names(node, side, old)
            && compare::same(node, old)
                .or_else(not_same)
                .map_err(at(path))?
        {
            return Ok(());
        }
        if attr.kind != FileKind::Directory
            && attr.nlink > 1
            && let Some(first) = self.firsts.get(&attr.ino)
        {
            self.out.link(path, first, attr)?;
            self.count();
            return Ok(());
        }
        let Self {
            out,
            progress,
            bytes,
            ..
        } = self;
        let damage = out.node(path, node, &mut |count| {
            *bytes = bytes.saturating_add(count);
            progress(Progress::Bytes(*bytes));
        })?;
        if attr.kind != FileKind::Directory && attr.nlink > 1 {
            self.firsts.insert(attr.ino, path.to_vec());
        }
        self.count();
        if let Some(damage) = damage {
            let path = path_of(path);
            self.damaged(&ExportError::Damaged { path, damage });
        }
        Ok(())
    }
}

impl ExportError {
    /// Whether a part of the image cannot be read.
    fn is_damage(&self) -> bool {
        matches!(self, Self::Image { source, .. } if is_damage(source))
    }

    /// The same error of the base.
    fn of_base(self) -> Self {
        match self {
            Self::Image { path, source } => Self::Base { path, source },
            other => other,
        }
    }
}

fn is_damage(error: &vfs::Error) -> bool {
    matches!(error, vfs::Error::Io(_) | vfs::Error::Corrupt(_))
}

/// Two files are not the same if one cannot be read: the export reports it.
fn not_same(error: vfs::Error) -> vfs::Result<bool> {
    if is_damage(&error) {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Bytes of the image.
fn bytes(fs: &FileSystem) -> u64 {
    let found = fs.engine().statfs();
    found.map_or(u64::MAX, |found| {
        found.blocks.saturating_mul(found.block_size.into())
    })
}

/// The names of a directory, sorted.
fn sorted_names(node: &HeldInode<'_>, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut names = Names::default();
    let mut sorted = Vec::new();
    while let Some(entry) = names
        .next(node.file_system(), node.ino())
        .map_err(at(path))?
    {
        let name = entry.name;
        let bad = name.is_empty() || name == b"." || name == b"..";
        if bad || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(ExportError::BadName(path_of(path)));
        }
        sorted.push(name);
    }
    sorted.sort();
    Ok(sorted)
}
