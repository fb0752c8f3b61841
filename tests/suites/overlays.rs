//! Whiteouts: what `RENAME_WHITEOUT` leaves in a mount of ours is what it leaves in a mount of the
//! kernel's, and an overlay of the kernel's takes a mount of ours as its upper directory.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sapwood_testing::credentials::{OTHER, acting_as};
use sapwood_tests::form::Form;
use sapwood_tests::image::TempImage;
use sapwood_tests::machine;
use sapwood_tests::mount::Driver;
use sapwood_tests::{Outcome, scratch};
use tempfile::TempDir;

const SIZE: u64 = 200 << 20;

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for form in Form::plain_ones() {
        trials.push(form.trial("a_whiteout_is_the_same_as_the_kernels", &[], same_as_kernel));
        trials.push(form.trial(
            "an_overlay_takes_a_mount_as_its_upper_directory",
            &[machine::OVERLAY],
            overlay,
        ));
    }
    trials
}

fn whiteout(dir: &Path, from: &str, to: &str, flags: RenameFlags) -> io::Result<()> {
    let (from, to) = (dir.join(from), dir.join(to));
    Ok(renameat_with(
        CWD,
        from,
        CWD,
        to,
        RenameFlags::WHITEOUT | flags,
    )?)
}

/// Renames as a user without capabilities, and says what each name then leads to.
fn renamed(root: &Path) -> Result<Vec<String>, String> {
    let work = || -> io::Result<Vec<String>> {
        let dir = root.join("theirs");
        fs::write(dir.join("a"), "a")?;
        fs::write(dir.join("b"), "b")?;
        fs::create_dir(dir.join("d"))?;
        whiteout(&dir, "a", "moved", RenameFlags::empty())?;
        whiteout(&dir, "d", "moved-d", RenameFlags::NOREPLACE)?;
        let mut lines = Vec::new();
        for (from, flags) in [
            ("b", RenameFlags::NOREPLACE),
            ("b", RenameFlags::EXCHANGE),
            ("none", RenameFlags::empty()),
        ] {
            let refused = whiteout(&dir, from, "moved", flags);
            lines.push(format!("{from}, {flags:?}: {refused:?}"));
        }
        whiteout(&dir, "b", "moved", RenameFlags::empty())?;
        for name in ["a", "b", "d", "moved", "moved-d"] {
            let meta = fs::symlink_metadata(dir.join(name))?;
            lines.push(format!(
                "{name}: mode {:o}, device {}, owner {}:{}",
                meta.mode(),
                meta.rdev(),
                meta.uid(),
                meta.gid(),
            ));
        }
        Ok(lines)
    };
    let done = acting_as(OTHER, work).and_then(|done| done);
    done.map_err(|error| error.to_string())
}

/// A mount of a new image, with a directory of another user's in it.
fn prepared(form: &Form, driver: Driver) -> Result<(TempImage, Vec<String>), String> {
    let image = TempImage::new(&form.mkfs.clone().sized(SIZE))?;
    let options = match driver {
        Driver::Kernel => "rw",
        Driver::Sapwood => "allow_other",
    };
    let mounted = driver.mount(image.path(), options)?;
    let theirs = mounted.path().join("theirs");
    let made = fs::set_permissions(mounted.path(), Permissions::from_mode(0o755))
        .and_then(|()| fs::create_dir(&theirs))
        .and_then(|()| fs::set_permissions(&theirs, Permissions::from_mode(0o777)));
    made.map_err(|error| error.to_string())?;
    let lines = renamed(mounted.path());
    mounted.unmount()?;
    image.check()?;
    Ok((image, lines?))
}

fn same_as_kernel(form: &Form) -> Outcome {
    let (_, expected) = prepared(form, Driver::Kernel)?;
    let (image, found) = prepared(form, Driver::Sapwood)?;
    if expected != found {
        return Err(format!("kernel: {expected:#?}\nours: {found:#?}").into());
    }
    // The kernel finds in our image what our mount showed.
    let mounted = Driver::Kernel.mount(image.path(), "ro")?;
    let meta = fs::symlink_metadata(mounted.path().join("theirs/a"))?;
    let (mode, device) = (meta.mode(), meta.rdev());
    mounted.unmount()?;
    match (mode, device) {
        (libc::S_IFCHR, 0) => Ok(()),
        _ => Err(format!("the kernel finds mode {mode:o}, device {device}").into()),
    }
}

/// An overlay, unmounted when dropped.
struct Overlay(TempDir);

impl Overlay {
    fn new(lower: &Path, top: &Path) -> io::Result<Self> {
        let dir = scratch::directory();
        let (upper, work) = (top.join("upper"), top.join("work"));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let options = std::ffi::CString::new(options)?;
        mount(
            "overlay",
            dir.path(),
            "overlay",
            MountFlags::empty(),
            &*options,
        )?;
        Ok(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

fn overlay(form: &Form) -> Outcome {
    let lower = scratch::directory();
    for name in ["file", "removed", "kept"] {
        fs::write(lower.path().join(name), name)?;
    }
    let image = TempImage::new(&form.mkfs.clone().sized(SIZE))?;
    let mounted = Driver::Sapwood.mount(image.path(), "rw")?;
    for name in ["upper", "work"] {
        fs::create_dir(mounted.path().join(name))?;
    }
    let merged = Overlay::new(lower.path(), mounted.path())?;
    fs::rename(merged.path().join("file"), merged.path().join("moved"))?;
    fs::remove_file(merged.path().join("removed"))?;
    let seen = merged.names()?;
    drop(merged);
    let hidden = fs::symlink_metadata(mounted.path().join("upper/file"))?;
    mounted.unmount()?;
    image.check()?;
    if seen != ["kept", "moved"]
        || hidden.rdev() != 0
        || hidden.mode() & libc::S_IFMT != libc::S_IFCHR
    {
        return Err(format!("{seen:?}, mode {:o}", hidden.mode()).into());
    }
    let mounted = Driver::Kernel.mount(image.path(), "rw")?;
    let merged = Overlay::new(lower.path(), mounted.path())?;
    let (found, content) = (merged.names()?, fs::read(merged.path().join("moved"))?);
    drop(merged);
    mounted.unmount()?;
    match (&found, &content[..]) {
        (found, b"file") if *found == seen => Ok(()),
        _ => Err(format!("in a kernel mount: {found:?}, {content:?}").into()),
    }
}

fn main() {
    machine::run(2, trials);
}
