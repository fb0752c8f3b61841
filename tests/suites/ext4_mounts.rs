//! Promises of an ext4 mount for images that were not unmounted, and for unknown features.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::FileContent;
use sapwood_testing::tree::{Detail, Tree};
use sapwood_tests::compare::{Compare, compare};
use sapwood_tests::form::Form;
use sapwood_tests::image::TempImage;
use sapwood_tests::mount::{Driver, SapwoodMount};
use sapwood_tests::volume::{list, list_by_library};
use sapwood_tests::{Outcome, process};

/// Files from before the journal was used, and files in the journal only. The last change may be a
/// fast commit; after its replay, directories with new names may have any times.
const BEFORE: &str = "
    mkdir -p dir/below; for i in $(seq 60); do echo $i > dir/file-$i; done
    head -c 300000 /dev/zero > grown; echo old > replaced; cp -a dir again
    setfattr -n user.kept -v one replaced
";
const IN_THE_JOURNAL: &str = "
    mkdir new; for i in $(seq 200); do echo $i > new/name-$i; done
    rm -r again; mv dir/file-1 new/moved; ln dir/file-2 new/linked; ln -s moved new/symlink
    echo longer >> grown; truncate -s 5000 grown; chmod 600 dir/file-3; chown 7:8 dir/file-4
    echo new > side; sync -f side; mv side replaced
    setfattr -n user.new -v two dir/file-5; mkfifo new/fifo
    sync -f .; echo last >> replaced; sync replaced
";

/// An image after a power cut during the kernel's work.
fn unclean(form: &Form) -> Result<TempImage, String> {
    let image = TempImage::new(&form.mkfs.clone().sized(128 << 20))?;
    let limit = Duration::from_secs(60);
    let options = format!("{},commit=300", form.options);
    let mount = Driver::Kernel.mount(image.path(), &options)?;
    process::shell(mount.path(), BEFORE, limit)?;
    mount.unmount()?;
    let mount = Driver::Kernel.mount(image.path(), &options)?;
    process::shell(mount.path(), IN_THE_JOURNAL, limit)?;
    let cut = image.copy()?;
    mount.unmount()?;
    let told = process::run("dumpe2fs", &["-h".as_ref(), cut.path().as_os_str()])?;
    if told.contains("needs_recovery") {
        Ok(cut)
    } else {
        Err("nothing is left to recover".to_owned())
    }
}

fn same(expected: &Tree, found: &Tree, what: &str) -> Result<(), String> {
    compare(expected, found, Compare::SameImage).map_err(|why| format!("{what}: {why}"))
}

/// A read-only mount of an image shows the state in its journal and leaves the image unchanged,
/// byte for byte; a writable mount shows the same.
fn read_only(form: &Form) -> Outcome {
    let image = unclean(form)?;
    // The kernel recovers only an image that it may write to.
    let recovered = image.copy()?;
    Driver::Kernel.mount(recovered.path(), "rw")?.unmount()?;
    let expected = list(&recovered, Driver::Kernel)?;
    let before = FileContent::of(image.path())?;
    let found = list(&image, Driver::Sapwood)?;
    same(&expected, &found, "through a mount")?;
    same(&expected, &list_by_library(&image)?, "through the library")?;
    image.check_by_us()?;
    if FileContent::of(image.path())? != before {
        return Err("a mount that only reads wrote".into());
    }
    Driver::Sapwood.mount(image.path(), "rw")?.unmount()?;
    image.check()?;
    let found = list(&image, Driver::Kernel)?;
    same(&expected, &found, "the kernel, after we recovered it")?;
    Ok(())
}

/// The last commit before the journal, which `noload` shows, is whole too.
fn not_recovered(form: &Form) -> Outcome {
    let image = unclean(form)?;
    let before = FileContent::of(image.path())?;
    let mount = Driver::Sapwood.mount(image.path(), "ro,noload")?;
    let old = fs::read_to_string(mount.path().join("dir/file-60"))?;
    mount.unmount()?;
    if old == "60\n" && FileContent::of(image.path())? == before {
        Ok(())
    } else {
        Err(format!("{old:?}, or the image changed").into())
    }
}

/// Whether an image with an unknown feature can be mounted.
#[derive(Debug, Clone, Copy)]
enum Mountable {
    Never,
    ToRead,
    ToWrite,
}

fn unknown_feature(form: &Form, feature: &str, mountable: Mountable) -> Outcome {
    let image = TempImage::new(&form.mkfs.clone().sized(64 << 20))?;
    let mount = Driver::Kernel.mount(image.path(), "rw")?;
    process::shell(mount.path(), BEFORE, Duration::from_secs(60))?;
    let expected = Tree::of_mount(mount.path(), Detail::Sums)?;
    mount.unmount()?;
    let request = format!("feature {feature}");
    let args = ["-w", "-R", &request].map(std::ffi::OsStr::new);
    process::run("debugfs", &[&args[..], &[image.path().as_ref()]].concat())?;
    let before = FileContent::of(image.path())?;
    let refused = |options: &str| match SapwoodMount::new(image.path(), options) {
        Ok(_) => Err(format!("{options} is not refused")),
        Err(why) if why.contains(feature) => Ok(()),
        Err(why) => Err(format!("{options} is refused for another reason: {why}")),
    };
    let reads = || -> Result<(), String> {
        let found = list(&image, Driver::Sapwood)?;
        compare(&expected, &found, Compare::Live)
    };
    match mountable {
        Mountable::Never => {
            refused("rw")?;
            refused("ro")?;
        }
        Mountable::ToRead => {
            refused("rw")?;
            reads()?;
        }
        Mountable::ToWrite => reads()?,
    }
    if FileContent::of(image.path())? != before {
        return Err("the image changed".into());
    }
    if matches!(mountable, Mountable::ToWrite) {
        let mount = Driver::Sapwood.mount(image.path(), "rw")?;
        fs::write(mount.path().join("written"), "by us")?;
        mount.unmount()?;
        let kernel = Driver::Kernel.mount(image.path(), "ro")?;
        let found = fs::read_to_string(kernel.path().join("written"))?;
        kernel.unmount()?;
        if found != "by us" {
            return Err(format!("the kernel reads {found:?}").into());
        }
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let forms = [
        Form::ext4("plain", "", "rw"),
        Form::ext4("blocks_1k", "-b 1024", "rw"),
        Form::ext4("data_journal", "", "data=journal"),
        Form::ext4("ext3", "-t ext3", "rw"),
        Form::ext4("inline_data", "-O inline_data", "rw"),
        Form::ext4("orphan_file", "-O orphan_file", "rw"),
        Form::ext4("fast_commit", "-O fast_commit", "rw"),
    ];
    let mut trials = Vec::new();
    for form in forms {
        let name = format!("unclean_and_read_only::{}", form.name);
        trials.push(form.trial(name, &[], read_only));
    }
    let plain = Form::ext4("plain", "", "rw");
    trials.push(plain.trial("unclean_and_not_recovered", &[], not_recovered));
    for (name, feature, mountable) in [
        ("incompat", "FEATURE_I30", Mountable::Never),
        ("ro_compat", "FEATURE_R30", Mountable::ToRead),
        ("compat", "FEATURE_C30", Mountable::ToWrite),
    ] {
        let name = format!("unknown_feature::{name}");
        trials.push(plain.trial(name, &[], move |form| {
            unknown_feature(form, feature, mountable)
        }));
    }
    trials
}
