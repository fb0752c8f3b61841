//! Names in `lost+found` for inodes that have none.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_ext4_format::special_ino;
use sapwood_vfs::{Credentials, FileKind, FileSystem, NewInode};

use super::edit::Editor;
use super::{Finding, Repaired, mount_options};
use crate::check::report::{CheckError, CheckReport};
use crate::mount::Mount;
use crate::{Error, Ext4, Result, dir, namespace};

const LOST_FOUND: &[u8] = b"lost+found";
/// Permissions of a new `lost+found`.
const PERM: u32 = 0o700;

/// Gives each inode that no directory names the name `#INODE` in `lost+found`, which is made if
/// there is none. The next round corrects `..` and link counts.
pub(super) fn repair(
    editor: Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let lost: Vec<(u32, FileKind)> = report
        .findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Unattached { ino } => Some(*ino),
            _ => None,
        })
        .filter_map(|ino| Some((ino, FileKind::from_mode(editor.inode(ino)?.mode().into())?)))
        .collect();
    if lost.is_empty() {
        return Ok(());
    }
    let device = Arc::clone(&editor.view.device);
    let roomy = !report.findings.iter().any(hides_blocks);
    drop(editor);
    match attach(device, &lost, roomy) {
        Ok(names) => {
            for (ino, _) in lost.iter().filter(|(ino, _)| names.contains(ino)) {
                let text =
                    format!("inode {ino}: in use, but without a name: linked as lost+found/#{ino}");
                done.add("Unattached", text);
            }
        }
        Err(error) => {
            let text = format!("{} inodes without a name: lost+found: {error}", lost.len());
            done.left.push(text);
        }
    }
    Ok(())
}

/// Whether a block may be in use although the bitmaps have it as free.
fn hides_blocks(finding: &Finding) -> bool {
    !matches!(
        finding,
        Finding::Unattached { .. }
            | Finding::LinkCount { .. }
            | Finding::NotClean { .. }
            | Finding::ErrorsNoted { .. }
            | Finding::SuperBackupBad { .. }
            | Finding::SuperBackupDiffers { .. }
            | Finding::DescriptorBackupDiffers { .. }
    )
}

/// Puts the names into `lost+found`, by the engine. With `roomy` it may take free blocks. Returns
/// the inodes that have a name now.
fn attach(
    device: Arc<dyn sapwood_block::Device>,
    lost: &[(u32, FileKind)],
    roomy: bool,
) -> Result<HashSet<u32>> {
    let fs = Ext4::open(Arc::clone(&device), mount_options())?;
    let root = &Credentials::ROOT;
    let there = fs.lookup(fs.root(), LOST_FOUND);
    if matches!(there, Err(sapwood_vfs::Error::NotFound)) && roomy {
        fs.create(root, fs.root(), LOST_FOUND, NewInode::Directory, PERM)
            .map_err(Error::from)?;
    }
    fs.close()?;
    let mount = Mount::open(device, mount_options())?;
    let named = link(&mount, lost, roomy);
    mount.close()?;
    named
}

fn link(mount: &Mount, lost: &[(u32, FileKind)], roomy: bool) -> Result<HashSet<u32>> {
    let engine = &mount.engine;
    let root = engine.inodes.get(engine, special_ino::ROOT)?;
    let found = dir::find(engine, &root, LOST_FOUND)?.ok_or(sapwood_vfs::Error::NotFound)?;
    let lost_found = engine.inodes.get(engine, found.ino)?;
    if lost_found.kind != FileKind::Directory {
        return Err(sapwood_vfs::Error::NotDirectory.into());
    }
    let mut named = HashSet::new();
    for (ino, kind) in lost {
        let name = format!("#{ino}").into_bytes();
        if dir::find(engine, &lost_found, &name)?.is_some() {
            continue;
        }
        if !roomy && dir::room(engine, &lost_found, &name)?.blocks > 0 {
            break;
        }
        namespace::name_lost(engine, &lost_found, &name, (*ino, *kind))?;
        named.insert(*ino);
    }
    Ok(named)
}
