//! States of ext4 images as streams, received by the kernel and by Sapwood.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_tests::changes::Changing;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

use super::{LIMIT, ORDERS, btrfs, each_seed, text};

/// Incremental streams of a chain.
const STEPS: u64 = 10;

/// Changes from one state to the next.
const CHANGES: u64 = 60;

/// Arguments of `mke2fs`, one after another for each two seeds, which differ in the version.
const FORMS: [&str; 6] = [
    "-b 4096",
    "-b 4096 -O inline_data",
    "-b 1024",
    "-b 4096 -t ext3 -I 128",
    "-b 4096 -O ea_inode,large_dir",
    "-b 4096 -O bigalloc -C 16384",
];

pub(super) fn trials() -> Vec<Trial> {
    let kernel = [
        machine::KERNEL,
        Need::Program("btrfs"),
        Need::Program("mke2fs"),
    ];
    let programs = ["setfacl", "setcap", "fallocate"].map(Need::Program);
    let orders = [&kernel[..], &programs].concat();
    let chains = [&[machine::RECEIVED_DIRECTORIES], &kernel[..]].concat();
    vec![
        trial("chains_of_ext4_images_are_received", &chains, || {
            each_seed(1, chain)
        }),
        trial(
            "each_order_of_names_is_received_from_ext4",
            &orders,
            orders_of_names,
        ),
        trial(
            "equal_inodes_of_reproducible_images_prove_nothing",
            &[],
            reproducible_images,
        ),
        trial("a_copy_is_compared_by_its_inodes", &[], copies),
    ]
}

fn tree(path: &Path) -> Result<Tree, String> {
    Tree::of_mount(path, Detail::Sums).map_err(|error| error.to_string())
}

fn send(new: &Path, old: Option<&Path>, name: &str, version: u64, stream: &Path) -> Outcome {
    let mut send = Command::new(sapwood());
    send.args([
        "send",
        "-f",
        "--name",
        name,
        "--proto",
        &version.to_string(),
    ]);
    if let Some(old) = old {
        send.arg("-p").arg(old);
    }
    process::succeed(send.arg("-o").arg(stream).arg(new), LIMIT)?;
    Ok(())
}

/// The states of an ext4 image that changes. Each third one is in a new image, to which the tree
/// was copied.
struct Chain {
    form: &'static str,
    seed: u64,
    image: TempImage,
    old: Option<TempImage>,
}

impl Chain {
    fn make(form: &str) -> Result<TempImage, String> {
        TempImage::by_kernel(&Mkfs::ext4(form).sized(256 << 20))
    }

    fn new(seed: u64) -> Result<Self, String> {
        let form = FORMS[usize::try_from(seed / 2).unwrap() % FORMS.len()];
        Ok(Self {
            form,
            seed,
            image: Self::make(form)?,
            old: None,
        })
    }

    /// Changes the image, and keeps the state before.
    fn change(&mut self, step: u64) -> Outcome {
        if step > 0 {
            self.old = Some(self.image.copy()?);
        }
        let mount = Driver::Kernel.mount(self.image.path(), "noatime")?;
        if step == 0 {
            fs::remove_dir(mount.path().join("lost+found"))?;
        }
        Changing::new(mount.path(), self.seed * 1000 + step).change(CHANGES);
        if step % 3 == 2 {
            let built = Self::make(self.form)?;
            let other = Driver::Kernel.mount(built.path(), "noatime")?;
            fs::remove_dir(other.path().join("lost+found"))?;
            let from = mount.path().join(".");
            process::run("cp", &["-a", text(&from), text(other.path())])?;
            other.unmount()?;
            mount.unmount()?;
            self.image = built;
            return Ok(());
        }
        mount.unmount()?;
        Ok(())
    }
}

/// The destinations of a chain.
struct Received {
    by_kernel: TempImage,
    by_us: TempImage,
    /// An ext4 that gets a directory of each state.
    by_ext4: TempImage,
    /// A copy of the first state, which becomes the later ones.
    in_place: Option<TempImage>,
    directory: tempfile::TempDir,
}

impl Received {
    fn receive(&self, stream: &Path) -> Outcome {
        let mount = Driver::Kernel.mount(self.by_kernel.path(), "noatime")?;
        btrfs(&["receive", "-f", text(stream), text(mount.path())])?;
        mount.unmount()?;
        let image = format!("{}:", text(self.by_us.path()));
        let ext4 = format!("{}:", text(self.by_ext4.path()));
        for place in [image.as_ref(), ext4.as_ref(), self.directory.path()] {
            let mut receive = Command::new(sapwood());
            receive
                .args(["receive", "-f"])
                .arg(stream)
                .arg::<&Path>(place);
            process::succeed(&mut receive, LIMIT)?;
        }
        if let Some(image) = &self.in_place {
            let mut receive = Command::new(sapwood());
            receive.args(["receive", "--in-place", "-f"]).arg(stream);
            process::succeed(receive.arg(image.path()), LIMIT)?;
            image.check()?;
        }
        Ok(())
    }

    fn compare(&self, expected: &Tree, name: &str, facts: Facts) -> Outcome {
        for image in [&self.by_kernel, &self.by_us] {
            let mount = Driver::Kernel.mount(image.path(), "ro,noatime")?;
            let found = tree(&mount.path().join(name))?;
            expected.compare(&found, |_, one, _| one.plain() | facts)?;
            mount.unmount()?;
        }
        // Reading the parent has changed its access times there.
        let found = tree(&self.directory.path().join(name))?;
        expected.compare(&found, |_, one, _| one.plain() | Facts::MTIME)?;
        let mount = Driver::Kernel.mount(self.by_ext4.path(), "ro,noatime")?;
        let found = tree(&mount.path().join(name))?;
        expected.compare(&found, |_, one, _| one.plain() | Facts::MTIME)?;
        mount.unmount()?;
        if let Some(image) = &self.in_place {
            let mount = Driver::Kernel.mount(image.path(), "ro,noatime")?;
            let found = tree(mount.path())?;
            expected.compare(&found, |path, one, _| {
                let known = one.plain() | Facts::MTIME | Facts::ATIME;
                // The record of the state.
                if path == "." {
                    known - Facts::XATTRS
                } else {
                    known
                }
            })?;
            mount.unmount()?;
        }
        Ok(())
    }
}

fn chain(seed: u64) -> Outcome {
    let version = 1 + seed % 2;
    let mut chain = Chain::new(seed)?;
    // Sapwood only reads an ext4 with bigalloc.
    let written = !chain.form.contains("bigalloc");
    let mut received = Received {
        by_kernel: TempImage::by_kernel(&Mkfs::default())?,
        by_us: TempImage::by_kernel(&Mkfs::default())?,
        by_ext4: Chain::make(if written { chain.form } else { FORMS[0] })?,
        in_place: None,
        directory: scratch::directory(),
    };
    let mut facts = Facts::MTIME | Facts::ATIME;
    // Version 1 has no holes, and the receivers none of less than 4096 bytes.
    if version == 2 && chain.form != "-b 1024" {
        facts |= Facts::DATA;
    }
    let stream = received.by_kernel.beside("stream");
    for step in 0..=STEPS {
        chain.change(step)?;
        let name = format!("s{step}");
        let old = chain.old.as_ref().map(TempImage::path);
        send(chain.image.path(), old, &name, version, &stream)?;
        received.receive(&stream)?;
        let mount = Driver::Kernel.mount(chain.image.path(), "ro,noatime")?;
        let expected = tree(mount.path())?;
        mount.unmount()?;
        received
            .compare(&expected, &name, facts)
            .map_err(|error| format!("{:?}, step {step}: {error:?}", chain.form))?;
        if step == 0 && written {
            received.in_place = Some(chain.image.copy()?);
        }
    }
    received.by_ext4.check()?;
    full_into_ext4(&chain, version, &stream)?;
    received.by_us.check()?;
    Ok(())
}

/// A full stream of the last state, received into an ext4 image.
fn full_into_ext4(chain: &Chain, version: u64, stream: &Path) -> Outcome {
    let target = Chain::make(FORMS[0])?;
    send(chain.image.path(), None, "full", version, stream)?;
    let mut receive = Command::new(sapwood());
    receive.args(["receive", "-f"]).arg(stream);
    process::succeed(receive.arg(format!("{}:", text(target.path()))), LIMIT)?;
    target.check()?;
    let expected = Driver::Kernel.mount(chain.image.path(), "ro,noatime")?;
    let found = Driver::Kernel.mount(target.path(), "ro,noatime")?;
    tree(expected.path())?.compare(&tree(&found.path().join("full"))?, |_, one, _| {
        one.plain() | Facts::MTIME | Facts::ATIME
    })?;
    expected.unmount()?;
    found.unmount()?;
    Ok(())
}

/// Each order as a directory of the image, sent on its own.
fn orders_of_names() -> Outcome {
    let image = Chain::make(FORMS[0])?;
    let destination = TempImage::by_kernel(&Mkfs::default())?;
    let run = |scripts: &dyn Fn(usize) -> &'static str| -> Outcome {
        let mount = Driver::Kernel.mount(image.path(), "noatime")?;
        for number in 0..ORDERS.len() {
            let dir = mount.path().join(format!("v{number}"));
            fs::create_dir_all(&dir)?;
            process::shell(&dir, &format!("set -e; {}", scripts(number)), LIMIT)?;
        }
        mount.unmount()?;
        Ok(())
    };
    run(&|number| ORDERS[number].1)?;
    let old = image.copy()?;
    run(&|number| ORDERS[number].2)?;
    let kernel = Driver::Kernel.mount(destination.path(), "noatime")?;
    let mount = Driver::Kernel.mount(image.path(), "ro,noatime")?;
    let stream = image.beside("stream");
    let place = |image: &TempImage, number: usize| -> PathBuf {
        format!("{}:v{number}", text(image.path())).into()
    };
    for (number, (what, _, _)) in ORDERS.iter().enumerate() {
        let old = place(&old, number);
        let names = [format!("old{number}"), format!("new{number}")];
        for (name, parent) in names.iter().zip([None, Some(&*old)]) {
            let new = match parent {
                None => old.clone(),
                Some(_) => place(&image, number),
            };
            send(&new, parent, name, 1 + number as u64 % 2, &stream)?;
            btrfs(&["receive", "-f", text(&stream), text(kernel.path())])
                .map_err(|error| format!("{what}: {error}"))?;
        }
        let expected = tree(&mount.path().join(format!("v{number}")))?;
        expected
            .compare(&tree(&kernel.path().join(&names[1]))?, |_, one, _| {
                one.plain() | Facts::MTIME
            })
            .map_err(|error| format!("{what}: {error}"))?;
    }
    mount.unmount()?;
    kernel.unmount()?;
    Ok(())
}

fn run(dir: &Path, script: &str) -> Outcome {
    let script = format!("set -e; SAPWOOD={}; {script}", text(sapwood()));
    process::shell(dir, &script, LIMIT)?;
    Ok(())
}

/// Two builds with equal UUIDs, times and layouts differ in one byte of a file. The byte is sent,
/// and the states have different UUIDs.
fn reproducible_images() -> Outcome {
    let dir = scratch::directory();
    run(
        dir.path(),
        r#"
        mkdir one two; for d in one two; do head -c 9000 /dev/zero > $d/f; echo link > $d/g; touch -d @1000 $d/f $d/g $d; done
        printf x | dd of=two/f bs=1 seek=5000 conv=notrunc status=none; touch -d @1000 two/f
        for d in one two; do SOURCE_DATE_EPOCH=1000000 "$SAPWOOD" mkfs -q -t ext4 --size 16M -U 11111111-2222-3333-4444-555555555555 --rootdir $d $d.img; done
        "$SAPWOOD" send one.img -o one.stream; "$SAPWOOD" send two.img -p one.img -o two.stream; "$SAPWOOD" send two.img -o full.stream
        cp one.img copy.img; "$SAPWOOD" send copy.img --name one | cmp - one.stream
        "$SAPWOOD" mkfs -q --size 256M target; for s in one two; do "$SAPWOOD" receive -f $s.stream target:; done
        "$SAPWOOD" cat target:/two/f | cmp - two/f; "$SAPWOOD" cat target:/one/f | cmp - one/f
        [ $(stat -c %s two.stream) -lt 6000 ]
        uuid() { "$SAPWOOD" receive --dump -f $1 > dump; sed -n '1s/.* uuid=\([^ ]*\).*/\1/p' dump; }
        [ "$(uuid one.stream)" != "$(uuid full.stream)" ]; [ "$(uuid two.stream)" = "$(uuid full.stream)" ]
        "#,
    )
}

/// The content of a file whose inode did not change in a copy is not read, except with `--content`.
/// The stream of a change in a large file has the changed blocks only.
fn copies() -> Outcome {
    let dir = scratch::directory();
    run(
        dir.path(),
        r#"
        "$SAPWOOD" mkfs -q -t ext4 --size 128M old.img; head -c 20000000 /dev/urandom > large
        echo changed-behind-the-back > f; "$SAPWOOD" cp -q f large old.img:/; "$SAPWOOD" mkdir old.img:/d
        cp --sparse=always old.img new.img; at=$(grep -abo changed-behind new.img | head -1 | cut -d: -f1)
        printf CHANGED | dd of=new.img bs=1 seek=$at conv=notrunc status=none
        "$SAPWOOD" send new.img -p old.img -o none.stream; [ $(stat -c %s none.stream) -lt 400 ]
        ! "$SAPWOOD" send new.img -p old.img --content -o x 2> error || exit 1; grep -q 'same identity' error; [ ! -e x ]
        "$SAPWOOD" mkdir new.img:/e; "$SAPWOOD" send new.img -p old.img --content -o found.stream
        grep -qa CHANGED-behind found.stream; [ $(stat -c %s found.stream) -lt 1500 ]
        printf y | dd of=large bs=1 seek=9000000 conv=notrunc status=none; "$SAPWOOD" cp -q large new.img:/
        "$SAPWOOD" send new.img -p old.img -o large.stream; [ $(stat -c %s large.stream) -lt 9000 ]
        "$SAPWOOD" mkfs -q --size 256M target; "$SAPWOOD" send old.img | "$SAPWOOD" receive target:
        "$SAPWOOD" receive -f large.stream target:; "$SAPWOOD" cat target:/new/large | cmp - large
        ! "$SAPWOOD" send new.img -c old.img -o x 2> error || exit 1; grep -q 'clone sources' error
        ! "$SAPWOOD" send new.img --name a/b -o x 2> error || exit 1; grep -q 'not a name' error
        ! "$SAPWOOD" send new.img -p target -o x 2> error || exit 1; grep -q 'not an ext4' error; [ ! -e x ]
        "#,
    )
}
