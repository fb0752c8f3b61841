//! [`Kernel`]: mounts a crash image with the kernel, and runs the tool that checks such images.
//!
//! The kernel replays the log (or journal) with code that is independent of ours; its tree must
//! equal ours. This needs root and a loop device. Only one image at a time: two images of one file
//! system cannot be mounted at once.

use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use sapwood_block::MemoryDevice;
use sapwood_testing::machine::{self, Need};
use sapwood_testing::oracle::KernelMount;
use sapwood_testing::scratch;
use sapwood_testing::tree::{Detail, Tree};
use sapwood_vfs::Timestamp;
use tempfile::TempDir;

use crate::engine::Format;

/// A mount point and files for images, which are mounted one after another.
#[derive(Debug)]
pub struct Kernel {
    engine: Format,
    dir: TempDir,
}

impl Kernel {
    /// A kernel that can mount images of the engine, as a mount of `image` shows.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub fn new(engine: Format, image: &MemoryDevice) -> Result<Self, String> {
        if let Some(why) = machine::missing(&[Need::Kernel(engine.kind())]) {
            return Err(why);
        }
        let kernel = Self {
            engine,
            dir: scratch::directory(),
        };
        kernel.recover(image)?;
        Ok(kernel)
    }

    /// The engine whose images it mounts.
    #[must_use]
    pub fn engine(&self) -> Format {
        self.engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Mounts a copy of the image, reads everything, and unmounts.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn recover(&self, image: &MemoryDevice) -> Result<Tree, String> {
        let began = kernel_time();
        let file = self.path("image");
        image.save(&file).map_err(|error| error.to_string())?;
        self.read(&file, began)
    }

    /// Mounts an image, reads everything, and unmounts.
    fn read(&self, file: &Path, began: Timestamp) -> Result<Tree, String> {
        let mount = KernelMount::at(file, "noatime", &self.path("mnt"))?;
        let tree = Tree::of_mount(mount.path(), Detail::Bytes);
        mount.unmount()?;
        Ok(Tree {
            recovered: Some(began),
            ..tree?
        })
    }

    /// Checks the image with the engine's other tool.
    ///
    /// # Errors
    /// The findings of the tool.
    pub fn check(&self, image: &MemoryDevice) -> Result<(), String> {
        let file = self.path("checked");
        image.save(&file).map_err(|error| error.to_string())?;
        self.engine.tool_check(&file)
    }

    /// The same for the result of the last [`recover`](Self::recover).
    ///
    /// # Errors
    /// The findings of the tool.
    pub fn check_recovered(&self) -> Result<(), String> {
        self.engine.tool_check(&self.path("image"))
    }

    /// Recovers a copy of the image with the engine's other tool, and reads the result through the
    /// kernel; `None` if the tool cannot recover.
    ///
    /// # Errors
    /// The error or the findings.
    pub fn recover_by_tool(&self, image: &MemoryDevice) -> Result<Option<Tree>, String> {
        let began = kernel_time();
        let file = self.path("repaired");
        image.save(&file).map_err(|error| error.to_string())?;
        let Some(recovered) = self.engine.tool_recovery(&file) else {
            return Ok(None);
        };
        recovered?;
        self.engine.tool_check(&file)?;
        self.read(&file, began).map(Some)
    }
}

/// The clock that the kernel takes times of inodes from. It stands still between two ticks, so it
/// may be some milliseconds behind [`Timestamp::now`].
fn kernel_time() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        sec: now.tv_sec,
        nsec: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_inode_gets_a_time_before_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..1000 {
            let began = kernel_time();
            let file = dir.path().join(number.to_string());
            let made = std::fs::File::create(file).unwrap();
            let modified = made.metadata().unwrap().modified().unwrap();
            assert!(Timestamp::from(modified) >= began);
        }
    }
}
