//! Making, resizing and checking images.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{CString, c_char, c_int};

use sapwood::{CheckOptions, ImageBuilder, Kind, NewSize};

use crate::call::{self, Failure, done, known};

/// For `sapwood_mkfs`, `sapwood_builder_write` and `sapwood_export`: an existing file is replaced.
pub const SAPWOOD_REPLACE: u32 = 1;

/// For `sapwood_check`: all data is read too, and compared with its checksums (btrfs).
pub const SAPWOOD_CHECK_DATA: u32 = 1;

/// Makes a file system in a new image file. The file gets its name when it is complete and durable.
///
/// `type` is `"btrfs"` or `"ext4"`. `options` ends with `NULL`, and contains options of
/// `sapwood mkfs` as `"name"` or `"name=value"`, such as `"label=root"`; it may be `NULL`. If
/// `source` is not `NULL`, the image gets the files of that directory; then `size` may be 0 for an
/// image that is as small as its files allow.
///
/// Errors: `EEXIST` (without `SAPWOOD_REPLACE` in `flags`), `EINVAL` (an option), `ENOSPC`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_mkfs(
    image: *const c_char,
    r#type: *const c_char,
    size: u64,
    options: *const *const c_char,
    source: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let image = call::path("image", image)?;
        let kind: Kind = call::required("type", r#type)?.parse()?;
        known(flags, SAPWOOD_REPLACE)?;
        let mut builder = ImageBuilder::new(kind);
        if size > 0 {
            builder = builder.size(size);
        }
        let mut next = options;
        while let Some(option) = next.as_ref() {
            let Some(option) = call::optional("an option", *option)? else {
                break;
            };
            builder = match option.split_once('=') {
                Some((name, value)) => builder.option(name, Some(value))?,
                None => builder.option(option, None)?,
            };
            next = next.add(1);
        }
        if !source.is_null() {
            builder = builder.from_dir(call::path("source", source)?)?;
        } else if size == 0 {
            return Err(Failure::invalid("the image needs a size"));
        }
        match image.symlink_metadata() {
            Ok(found) if flags & SAPWOOD_REPLACE == 0 || !found.is_file() => {
                let message = format!("{}: exists", image.display());
                Err(Failure::new(libc::EEXIST, message))
            }
            _ => Ok(builder.write_to(image)?),
        }
    })
}

/// Changes the size of an image that is not open, and of its file. `size` is `"min"`, a number of
/// bytes or one with a unit (`"2G"`), or a change (`"+1G"`, `"-512M"`). `result` gets the size of the
/// file system in bytes; it may be `NULL`.
///
/// A crash leaves a complete file system of the old or the new size. Errors: `EINVAL` (the files do
/// not fit), and the errors of `sapwood_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_resize(
    image: *const c_char,
    size: *const c_char,
    result: *mut u64,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let image = call::path("image", image)?;
        let size: NewSize = call::required("size", size)?.parse()?;
        let report = sapwood::resize(image, size, &mut |_| {})?;
        if let Some(result) = result.as_mut() {
            *result = report.after;
        }
        Ok(())
    })
}

/// The result of a check. Any number of threads may use it at a time.
pub struct Report {
    clean: bool,
    suppressed: u64,
    findings: Vec<Found>,
}

struct Found {
    code: CString,
    text: CString,
    warning: bool,
}

/// Something that a check found.
#[repr(C)]
#[derive(Debug)]
pub struct Finding {
    /// Kind of the finding, as a word that stays the same from version to version.
    pub code: *const c_char,
    /// Description of the defect, with the block, key or inode.
    pub text: *const c_char,
    /// Every reader copes with it: nothing is lost or in danger.
    pub warning: bool,
}

/// Checks an image that is not open, and changes nothing. The report has the defects;
/// `sapwood_report_free` releases it.
///
/// `flags` is 0 or `SAPWOOD_CHECK_DATA`. Errors: as `sapwood_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_check(
    image: *const c_char,
    flags: u32,
    report: *mut *mut Report,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("report", report, || {
            known(flags, SAPWOOD_CHECK_DATA)?;
            let options = CheckOptions {
                data: flags & SAPWOOD_CHECK_DATA != 0,
                ..CheckOptions::default()
            };
            let image = call::path("image", image)?;
            let report = sapwood::check(image, &options, &mut |_| {})?;
            let findings = report.findings.iter().map(|finding| Found {
                code: call::text(finding.code),
                text: call::text(&finding.text),
                warning: finding.warning,
            });
            Ok(Report {
                clean: report.clean,
                suppressed: report.suppressed,
                findings: findings.collect(),
            })
        })
    }
}

/// Whether nothing is wrong. There may be warnings. False if `report` is `NULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_report_is_clean(report: *const Report) -> bool {
    // SAFETY: the promise of the crate.
    unsafe { report.as_ref() }.is_some_and(|report| report.clean)
}

/// The number of findings that the report contains.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_report_count(report: *const Report) -> usize {
    // SAFETY: the promise of the crate.
    unsafe { report.as_ref() }.map_or(0, |report| report.findings.len())
}

/// The number of further findings, which the report does not contain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_report_suppressed(report: *const Report) -> u64 {
    // SAFETY: the promise of the crate.
    unsafe { report.as_ref() }.map_or(0, |report| report.suppressed)
}

/// A finding by its number from 0. Its strings are valid as long as the report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_report_get(
    report: *const Report,
    number: usize,
    finding: *mut Finding,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let place = call::place("finding", finding)?;
        let report = call::handle("report", report)?;
        let found = report.findings.get(number);
        let found = found.ok_or_else(|| Failure::invalid(format!("no finding {number}")))?;
        place.write(Finding {
            code: found.code.as_ptr(),
            text: found.text.as_ptr(),
            warning: found.warning,
        });
        Ok(())
    })
}

/// Releases a report. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_report_free(report: *mut Report) {
    // SAFETY: the promise of the crate: it came from `sapwood_check`.
    drop(unsafe { call::take(report) });
}
