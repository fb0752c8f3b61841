//! One image file and what the crate reads from it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Failed;
use sapwood_ext4_format::{
    Geometry, GroupDesc, Inode, SUPER_OFFSET, SUPER_SIZE, SuperBlock, validate_super,
};

/// An image in a directory of its own.
pub(crate) struct TempImage {
    dir: tempfile::TempDir,
    pub(crate) file: File,
    pub(crate) sb: SuperBlock,
    pub(crate) geometry: Geometry,
}

/// Runs a tool and returns what it prints; fails with its errors if it fails.
pub(crate) fn run(command: &mut Command) -> Result<String, Failed> {
    let output = command.env("TZ", "UTC").env("LC_ALL", "C").output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {errors}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl TempImage {
    /// Makes an image of `size` with `options` of `mke2fs`, and reads its superblock.
    pub(crate) fn make(options: &str, size: &str) -> Result<Self, Failed> {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F"]).args(options.split_whitespace());
        run(command.arg(dir.path().join("image")).arg(size))?;
        Self::read(dir)
    }

    /// Reads the superblock again, after the image changed.
    pub(crate) fn open(self) -> Result<Self, Failed> {
        Self::read(self.dir)
    }

    fn read(dir: tempfile::TempDir) -> Result<Self, Failed> {
        let file = File::open(dir.path().join("image"))?;
        let mut bytes = vec![0; SUPER_SIZE];
        file.read_exact_at(&mut bytes, SUPER_OFFSET)?;
        let sb = SuperBlock::parse(&bytes)?;
        let geometry = validate_super(&sb, file.metadata()?.len())?;
        Ok(Self {
            dir,
            file,
            sb,
            geometry,
        })
    }

    /// Changes the size of the file system with `resize2fs`.
    pub(crate) fn resize(&self, size: &str) -> Result<(), Failed> {
        let path = self.path();
        run(Command::new("e2fsck").arg("-fy").arg(&path))?;
        run(Command::new("resize2fs").arg(&path).arg(size))?;
        Ok(())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// One block.
    pub(crate) fn block(&self, block: u64) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0; self.geometry.block_size() as usize];
        let offset = self.geometry.block_offset(block)?;
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// One group's descriptor.
    pub(crate) fn desc(&self, group: u32) -> Result<GroupDesc, Failed> {
        let (block, offset) = self.geometry.descriptor_block(group)?;
        let bytes = self.block(block)?;
        Ok(GroupDesc::read(&bytes[offset as usize..], &self.geometry)?)
    }

    /// One inode, unchecked.
    pub(crate) fn inode(&self, ino: u32) -> Result<Inode, Failed> {
        let (group, index) = self.geometry.inode_location(ino)?;
        let table = self.desc(group)?.inode_table();
        let (block, offset) = self.geometry.inode_in_table(table, index);
        let bytes = self.block(block)?;
        Ok(Inode::read(&bytes[offset as usize..], &self.geometry)?)
    }

    /// Groups to look at: all, or some of very many.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> + use<> {
        let count = self.geometry.group_count();
        let step = (count / 300).max(1) as usize;
        (0..count).step_by(step).chain([count - 1])
    }
}
