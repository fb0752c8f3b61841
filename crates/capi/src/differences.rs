//! The differences of two directories.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use sapwood::{DiffEntry, DiffKind, DiffOptions, DiffParts};

use crate::call::{self, Failure, Result, done, known};
use crate::file_system::Fs;

/// For `sapwood_diff`: the bytes of files are compared. Otherwise a file of equal size and
/// modification time counts as unchanged.
pub const SAPWOOD_DIFF_CONTENT: u32 = 1;

/// Only the old directory has the name.
pub const SAPWOOD_REMOVED: u32 = 0;
/// The file has another name in the new directory.
pub const SAPWOOD_RENAMED: u32 = 1;
/// Only the new directory has the name.
pub const SAPWOOD_ADDED: u32 = 2;
/// The file changed.
pub const SAPWOOD_CHANGED: u32 = 3;

/// A part that differs: content, target of a symbolic link, or device number.
pub const SAPWOOD_PART_CONTENT: u32 = 1;
/// A part that differs: length.
pub const SAPWOOD_PART_SIZE: u32 = 2;
/// A part that differs: modification time.
pub const SAPWOOD_PART_MTIME: u32 = 4;
/// A part that differs: permission bits.
pub const SAPWOOD_PART_MODE: u32 = 8;
/// A part that differs: owner.
pub const SAPWOOD_PART_UID: u32 = 16;
/// A part that differs: group.
pub const SAPWOOD_PART_GID: u32 = 32;
/// A part that differs: extended attributes, ACLs among them.
pub const SAPWOOD_PART_XATTRS: u32 = 64;

/// The result of a comparison. Any number of threads may use it at a time.
pub struct Differences(Vec<Stored>);

struct Stored {
    path: CString,
    from: Option<CString>,
    kind: u32,
    parts: u32,
    mode: u32,
}

/// A difference between two directories.
#[repr(C)]
#[derive(Debug)]
pub struct Difference {
    /// The path: in the old directory if it was removed, else in the new one.
    pub path: *const c_char,
    /// The old path of a renamed file, else `NULL`.
    pub from: *const c_char,
    /// One of `SAPWOOD_REMOVED`, `SAPWOOD_RENAMED`, `SAPWOOD_ADDED`, `SAPWOOD_CHANGED`.
    pub kind: u32,
    /// For a changed file: bits `SAPWOOD_PART_...`.
    pub parts: u32,
    /// Type of the file, in the bits `S_IFMT` of `st_mode`.
    pub mode: u32,
}

impl Stored {
    fn of(entry: &DiffEntry) -> Result<Self> {
        let kind = match entry.kind {
            DiffKind::Removed => SAPWOOD_REMOVED,
            DiffKind::Renamed => SAPWOOD_RENAMED,
            DiffKind::Added => SAPWOOD_ADDED,
            DiffKind::Changed => SAPWOOD_CHANGED,
        };
        let from = entry.from.as_ref();
        let from = from.map(|from| call::name(from.as_os_str().as_bytes()));
        Ok(Self {
            path: call::name(entry.path.as_os_str().as_bytes())?,
            from: from.transpose()?,
            kind,
            parts: bits(entry.parts),
            mode: entry.file.mode_bits(),
        })
    }
}

fn bits(parts: DiffParts) -> u32 {
    let all = [
        (parts.content, SAPWOOD_PART_CONTENT),
        (parts.size, SAPWOOD_PART_SIZE),
        (parts.mtime, SAPWOOD_PART_MTIME),
        (parts.mode, SAPWOOD_PART_MODE),
        (parts.uid, SAPWOOD_PART_UID),
        (parts.gid, SAPWOOD_PART_GID),
        (parts.xattrs, SAPWOOD_PART_XATTRS),
    ];
    let set = all.into_iter().filter(|(differs, _)| *differs);
    set.fold(0, |bits, (_, bit)| bits | bit)
}

/// Compares two directories, of one image or of two. The differences are sorted by path;
/// `sapwood_differences_free` releases them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_diff(
    old_fs: *const Fs,
    old_path: *const c_char,
    new_fs: *const Fs,
    new_path: *const c_char,
    flags: u32,
    differences: *mut *mut Differences,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("differences", differences, || {
            known(flags, SAPWOOD_DIFF_CONTENT)?;
            let mut options = DiffOptions::default();
            options.content = flags & SAPWOOD_DIFF_CONTENT != 0;
            let old = call::handle("old_fs", old_fs)?.get();
            let new = call::handle("new_fs", new_fs)?.get();
            let old = (old, call::path("old_path", old_path)?);
            let new = (new, call::path("new_path", new_path)?);
            let mut found = Vec::new();
            sapwood::diff(old, new, &options, &mut |entry| found.push(entry))?;
            found.sort_by(|one, other| one.path.cmp(&other.path).then(one.kind.cmp(&other.kind)));
            let found = found.iter().map(Stored::of);
            Ok(Differences(found.collect::<Result<_>>()?))
        })
    }
}

/// The number of differences. 0 if `differences` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_differences_count(differences: *const Differences) -> usize {
    // SAFETY: the promise of the crate.
    unsafe { differences.as_ref() }.map_or(0, |found| found.0.len())
}

/// A difference by its number from 0. Its strings are valid as long as `differences`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_differences_get(
    differences: *const Differences,
    number: usize,
    difference: *mut Difference,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let place = call::place("difference", difference)?;
        let differences = call::handle("differences", differences)?;
        let found = differences.0.get(number);
        let found = found.ok_or_else(|| Failure::invalid(format!("no difference {number}")))?;
        place.write(Difference {
            path: found.path.as_ptr(),
            from: found
                .from
                .as_ref()
                .map_or(std::ptr::null(), |from| from.as_ptr()),
            kind: found.kind,
            parts: found.parts,
            mode: found.mode,
        });
        Ok(())
    })
}

/// Releases differences. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_differences_free(differences: *mut Differences) {
    // SAFETY: the promise of the crate: it came from `sapwood_diff`.
    drop(unsafe { call::take(differences) });
}
