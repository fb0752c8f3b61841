//! One inode, as the `stat` command of `debugfs` prints it (without the map).

use std::fmt::{Display, Formatter, Result};

use super::Date;
use crate::{Geometry, Inode, file_mode};

/// Prints an inode.
#[derive(Clone, Copy, Debug)]
pub struct DumpInode<'a> {
    /// Inode number.
    pub ino: u32,
    /// The inode.
    pub inode: &'a Inode,
    /// Geometry of the file system.
    pub geometry: &'a Geometry,
}

fn type_name(mode: u16) -> &'static str {
    match mode & file_mode::TYPE {
        file_mode::REGULAR => "regular",
        file_mode::DIR => "directory",
        file_mode::SYMLINK => "symlink",
        file_mode::BLOCK => "block special",
        file_mode::CHAR => "character special",
        file_mode::FIFO => "FIFO",
        file_mode::SOCKET => "socket",
        _ => "bad type",
    }
}

impl Display for DumpInode<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (inode, geometry) = (self.inode, self.geometry);
        writeln!(
            f,
            "Inode: {}   Type: {}    Mode:  0{:03o}   Flags: {:#x}",
            self.ino,
            type_name(inode.mode()),
            inode.mode() & 0o7777,
            inode.flags().bits()
        )?;
        let version = inode.version();
        write!(f, "Generation: {}    Version: 0x", inode.generation())?;
        if wide(inode) {
            write!(f, "{:08x}:", version >> 32)?;
        }
        writeln!(f, "{:08x}", version as u32)?;
        write!(f, "User: {:5}   Group: {:5}", inode.uid(), inode.gid())?;
        if let Some(project) = inode.projid() {
            write!(f, "   Project: {project:5}")?;
        }
        writeln!(f, "   Size: {}", inode.size(geometry))?;
        writeln!(f, "File ACL: {}", inode.file_acl())?;
        writeln!(
            f,
            "Links: {}   Blockcount: {}",
            inode.links(),
            inode.sectors(geometry)
        )?;
        let times = [
            ("ctime", Some(inode.ctime())),
            ("atime", Some(inode.atime())),
            ("mtime", Some(inode.mtime())),
            ("crtime", inode.crtime()),
        ];
        for (name, time) in times {
            let Some(time) = time else { continue };
            let (seconds, extra) = time.encode(true);
            write!(f, "{name:>6}: 0x{seconds:08x}")?;
            if wide(inode) {
                write!(f, ":{extra:08x}")?;
            }
            writeln!(f, " -- {}", Date(time.seconds))?;
        }
        if inode.dtime() != 0 {
            let date = Date(i64::from(inode.dtime()));
            writeln!(f, " dtime: 0x{:08x} -- {date}", inode.dtime())?;
        }
        if inode.size_on_disk() > crate::INODE_BASE_SIZE {
            let size = inode.stored_extra_isize();
            writeln!(f, "Size of extra inode fields: {size}")?;
        }
        if geometry.metadata_csum() {
            writeln!(f, "Inode checksum: 0x{:08x}", inode.checksum())?;
        }
        if matches!(inode.file_type(), file_mode::CHAR | file_mode::BLOCK) {
            let (major, minor) = inode.device();
            if inode.block_word(0) == 0 {
                write!(f, "(New-style) ")?;
            }
            writeln!(f, "Device major/minor number: {major:02}:{minor:02}")?;
        }
        Ok(())
    }
}

/// Whether the inode has all four times in full.
fn wide(inode: &Inode) -> bool {
    inode.extra_isize() >= 24
}
