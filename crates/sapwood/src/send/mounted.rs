//! Sending a snapshot of a mount: its daemon, which has the image open, sends it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use sapwood_btrfs::Btrfs;

use super::btrfs::{Snapshot, Snapshots};
use super::error::{Result, SendError};
use super::{SendOptions, SendReport};
use crate::bulk::frames::{Frame, Request, Sent, Top};
use crate::progress::{OnProgress, Progress};
use crate::vfs::Ino;

/// Writes the read-only snapshot with the directory `snapshot` in a mount of a btrfs by Sapwood, as
/// [`FileSystem::send`](crate::FileSystem::send) does. The parent and the clone sources are
/// directories of the same mount. The daemon of the mount sends for its owner and root, and the
/// mount stays in use.
///
/// ```no_run
/// let mut options = sapwood::SendOptions::default();
/// options.parent = Some("/mnt/monday".into());
/// let stream = std::fs::File::create("tuesday.stream")?;
/// sapwood::send("/mnt/tuesday", stream, &options, &mut |_| {})?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`FileSystem::send`](crate::FileSystem::send); the directory is in no mount by
/// Sapwood, or the caller is neither its owner nor root.
pub fn send(
    snapshot: impl AsRef<Path>,
    writer: impl Write,
    options: &SendOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<SendReport> {
    Ok(send_by_daemon(
        snapshot.as_ref(),
        writer,
        options,
        progress,
    )?)
}

/// An open directory, and the device that it is on.
fn open(path: &Path) -> Result<(File, u64, Top)> {
    let failed = |source| SendError::Mount {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let top = Top {
        ino: found.ino(),
        path: path.as_os_str().as_bytes().to_vec(),
    };
    if found.is_dir() {
        Ok((file, found.dev(), top))
    } else {
        Err(SendError::NotSubvolume(path.to_owned()))
    }
}

fn send_by_daemon(
    snapshot: &Path,
    mut writer: impl Write,
    options: &SendOptions,
    progress: &mut OnProgress<'_>,
) -> Result<SendReport> {
    options.check()?;
    if options.parent_image.is_some() {
        return Err(SendError::ParentImage);
    }
    let (dir, device, top) = open(snapshot)?;
    let real = snapshot.canonicalize().unwrap_or_default();
    let name = options.checked_name()?;
    let name = name.or(real.file_name().map(OsStr::to_owned));
    // The kernel keeps the inodes of open directories.
    let mut held = Vec::new();
    let mut other = |path: &Path| {
        let (file, found, top) = open(path)?;
        held.push(file);
        if found == device {
            Ok(top)
        } else {
            Err(SendError::ParentImage)
        }
    };
    let parent = options.parent.as_deref().map(&mut other).transpose()?;
    let clone_sources = options.clone_sources.iter();
    let clone_sources = clone_sources
        .map(|path| other(path))
        .collect::<Result<_>>()?;
    let request = Frame::Request(Request::Send {
        top,
        name: name.unwrap_or_else(|| "snapshot".into()).into_vec(),
        version: options.version,
        compressed: options.compressed,
        data: options.data,
        parent,
        clone_sources,
    });
    let socket = sapwood_fuse::bulk::connect_for_streams(dir.as_fd());
    let socket = socket.map_err(|source| SendError::Mount {
        path: snapshot.to_owned(),
        source,
    })?;
    let lost = |error: io::Error| SendError::Daemon(error.to_string());
    request.send(&mut &socket).map_err(lost)?;
    loop {
        if options.stop.is_stopped() {
            return Err(SendError::Stopped);
        }
        match Frame::receive(&mut &socket).map_err(lost)? {
            Frame::Stream(piece) => writer.write_all(&piece).map_err(SendError::Write)?,
            Frame::Progress(done) => progress(Progress::Done {
                phase: "sent",
                done,
            }),
            Frame::Sent(sent) => {
                return Ok(SendReport {
                    inodes: sent.inodes,
                    content: sent.content,
                    size: sent.size,
                });
            }
            Frame::Failed(why) => return Err(SendError::Daemon(why)),
            _ => return Err(SendError::Daemon("it sends no stream".to_owned())),
        }
    }
}

/// A snapshot that a client of the daemon requests.
pub(crate) struct MountedSnapshot {
    pub(crate) top: Top,
    pub(crate) parent: Option<Top>,
    pub(crate) clone_sources: Vec<Top>,
}

/// Sends a snapshot of a mounted btrfs.
///
/// # Errors
/// The errors of [`FileSystem::send`](crate::FileSystem::send).
pub(crate) fn send_mounted(
    fs: &Btrfs,
    wanted: &MountedSnapshot,
    writer: impl Write,
    options: &SendOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Sent> {
    options.check()?;
    let name = options.checked_name()?.unwrap_or_else(|| "snapshot".into());
    let find = |top: &Top| {
        let path = Path::new(OsStr::from_bytes(&top.path));
        Snapshot::at(fs, Ino(top.ino), path).map(Arc::new)
    };
    let new = find(&wanted.top)?;
    let old = wanted.parent.as_ref().map(find).transpose()?;
    let clones = wanted.clone_sources.iter().map(find);
    let source = Snapshots::new(new, old, clones.collect::<Result<_>>()?, options);
    let report = super::send_tree(source, &name, writer, options, progress)?;
    Ok(Sent {
        inodes: report.inodes,
        content: report.content,
        size: report.size,
    })
}
