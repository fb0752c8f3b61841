//! An open image.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int};

use sapwood::{FileSystem, Kind, Options};

use crate::call::{self, done};

/// An open image.
///
/// Any number of threads may use it at a time. `sapwood_close` must be the last call with it.
pub struct Fs(FileSystem);

impl Fs {
    pub(crate) fn get(&self) -> &FileSystem {
        &self.0
    }
}

/// Sizes and counts of a file system.
#[repr(C)]
#[derive(Debug)]
pub struct StatFs {
    /// Unit of the counts of blocks, in bytes.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Size of the file system.
    pub blocks: u64,
    /// Unused blocks.
    pub blocks_free: u64,
    /// Unused blocks that an ordinary user may have.
    pub blocks_available: u64,
    /// Number of inodes; 0 if they are created on demand.
    pub inodes: u64,
    /// Unused inodes.
    pub inodes_free: u64,
}

/// Opens an image file or block device. No other process can open it meanwhile, unless both only
/// read. `IMAGE#N` is partition N of an image.
///
/// `options` is a list as `mount -o` takes it, such as `"ro"` or `"compress=zstd,subvol=home"`;
/// it may be `NULL`.
///
/// Errors: `ENOENT`, `EACCES`, `EBUSY` (in use), `EMEDIUMTYPE` (not btrfs or ext4), `EUCLEAN`
/// (damaged), `EOPNOTSUPP` (with an unknown feature), `EINVAL` (an option).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_open(
    image: *const c_char,
    options: *const c_char,
    fs: *mut *mut Fs,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("fs", fs, || {
            let image = call::path("image", image)?;
            let mut given = Options::default();
            if let Some(list) = call::optional("options", options)? {
                given.set_list(list)?;
            }
            let located = sapwood::internal::image::located(image, &given);
            let (image, given) = located.map_err(sapwood::Error::from)?;
            Ok(Fs(given.open(image)?))
        })
    }
}

/// Makes everything durable, and ends the use of the image. The handle is gone also if that fails.
/// Open files, listings and walks must be closed too; until then every call with them fails.
/// `NULL` is allowed.
///
/// Errors: changes that did not become durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_close(fs: *mut Fs) -> c_int {
    // SAFETY: the promise of the crate: it came from `sapwood_open`, and is used no more.
    done(|| match unsafe { call::take(fs) } {
        Some(fs) => Ok(fs.0.close()?),
        None => Ok(()),
    })
}

/// Makes everything durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_sync(fs: *const Fs) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe { Ok(call::handle("fs", fs)?.0.sync()?) })
}

/// The format of the image: `"btrfs"` or `"ext4"`; `NULL` if `fs` is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_type(fs: *const Fs) -> *const c_char {
    // SAFETY: the promise of the crate.
    match unsafe { fs.as_ref() }.map(|fs| fs.0.kind()) {
        Some(Kind::Btrfs) => c"btrfs".as_ptr(),
        Some(Kind::Ext4) => c"ext4".as_ptr(),
        None => std::ptr::null(),
    }
}

/// Sizes and counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_statfs(fs: *const Fs, result: *mut StatFs) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let result = call::place("result", result)?;
        let stat = call::handle("fs", fs)?.0.statfs()?;
        result.write(StatFs {
            block_size: stat.block_size,
            name_max: stat.name_max,
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
        });
        Ok(())
    })
}

/// Sets the owner and group of new files. The default is the owner of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_set_creator(fs: *const Fs, uid: u32, gid: u32) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        call::handle("fs", fs)?.0.set_creator(uid, gid);
        Ok(())
    })
}

/// Permission bits that new files and directories do not get; none at first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_set_umask(fs: *const Fs, umask: u32) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        call::handle("fs", fs)?.0.set_umask(umask);
        Ok(())
    })
}
