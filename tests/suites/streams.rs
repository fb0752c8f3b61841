//! Snapshots, and states of ext4 images, as streams: ours received by the kernel, the kernel's by
//! ours, in chains of incremental streams over trees that change at random.
//! `SAPWOOD_STREAM_CHAINS` is the number of chains, `SAPWOOD_SEED` the seed of the first.

mod encoded;
mod ext4;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_tests::changes::Changing;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::random::seed;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(120);

/// Streams of a chain. The first is a full one.
const STEPS: u64 = 8;

/// Changes from one snapshot to the next.
const CHANGES: u64 = 60;

/// Changes of names that need an order of their own: each line is a tree and then its change.
const ORDERS: &[(&str, &str, &str)] = &[
    (
        "swapped files",
        "echo 1 > a; echo 2 > b",
        "mv a c; mv b a; mv c b",
    ),
    (
        "swapped directories",
        "mkdir a b; echo 1 > a/x; echo 2 > b/y",
        "mv a c; mv b a; mv c b",
    ),
    (
        "a ring of three",
        "mkdir a b c; touch a/1 b/2 c/3",
        "mv a t; mv b a; mv c b; mv t c",
    ),
    (
        "a parent below its child",
        "mkdir -p a/b; touch a/f a/b/g",
        "mv a/b b; mv a b/a",
    ),
    (
        "a chain turned over",
        "mkdir -p a/b/c/d; touch a/b/c/d/f",
        "mv a/b/c/d d; mv a/b/c d/c; mv a/b d/c/b; mv a d/c/b/a",
    ),
    (
        "a deleted directory with moved children",
        "mkdir -p a/b; echo 1 > a/f; echo 2 > a/b/g",
        "mkdir n; mv a/f n/f; mv a/b n/b; rmdir a",
    ),
    (
        "a file instead of a directory",
        "mkdir -p d/e; touch d/e/f",
        "rm -r d; echo 1 > d",
    ),
    (
        "a directory instead of a file",
        "echo 1 > f; echo 2 > g",
        "rm f; mkdir f; mv g f/g",
    ),
    ("a replaced file", "echo 1 > f", "echo 2 > g; mv g f"),
    (
        "a replaced directory",
        "mkdir a b; touch b/x",
        "rmdir a; mv b a; mkdir b",
    ),
    (
        "links that move",
        "echo 1 > f; ln f g; mkdir d; ln f d/h",
        "rm f; mv g d/g; ln d/g k; rm d/h",
    ),
    (
        "a link over another file",
        "echo 1 > f; echo 2 > g; ln f h",
        "ln -f g h; ln -f f g",
    ),
    (
        "a name of the kind that send uses",
        "mkdir a b o257-0 o258-0; touch o257-0-0",
        "mv a t; mv b a; mv t b; touch o257-1",
    ),
    (
        "into a new directory",
        "mkdir a; echo 1 > a/f",
        "mkdir -p n/m; mv a n/m/a; mv n/m/a/f n/f",
    ),
    (
        "below a moved directory",
        "mkdir -p a/b c; touch a/b/f",
        "mv a/b c/b; mv c a/c; touch a/c/b/g",
    ),
    (
        "inherited ACLs",
        "mkdir d; setfacl -d -m u:7:rwx d; echo 1 > f; mkdir s; touch s/x",
        "touch d/new; mv f d/f; mv s d/s; mkdir d/made",
    ),
    (
        "a default ACL of the top",
        "setfacl -d -m u:7:rwx .; touch a",
        "touch b; mkdir c; mv a c/a",
    ),
    (
        "a truncated and extended file",
        "head -c 100000 /dev/urandom > f",
        "truncate -s 10 f; truncate -s 90000 f; echo x >> f",
    ),
    (
        "a hole",
        "head -c 100000 /dev/urandom > f",
        "fallocate -p -o 8192 -l 50000 f",
    ),
    (
        "a capability after a change of owner",
        "echo 1 > f; setcap cap_net_raw+ep f",
        "chown 5 f; setcap cap_net_raw+ep f",
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    let programs = ["setfacl", "setcap", "fallocate"].map(Need::Program);
    let orders = [&kernel[..], &programs].concat();
    vec![
        trial("sent_chains_are_received_by_the_kernel", &kernel, || {
            chains(&[], sent_to_the_kernel)
        }),
        trial("chains_of_the_kernel_are_received", &kernel, || {
            chains(&[], received_from_the_kernel)
        }),
        trial("compressed_chains_travel_both_ways", &kernel, || {
            chains(&["compress-force=zstd"], sent_to_the_kernel)?;
            chains(&["compress-force=zstd"], received_from_the_kernel)
        }),
        trial("each_order_of_names_is_received", &orders, orders_of_names),
        trial("a_cut_stream_leaves_a_writable_subvolume", &[], cut_streams),
    ]
    .into_iter()
    .chain(encoded::trials())
    .chain(ext4::trials())
    .collect()
}

fn chains(options: &[&str], run: fn(&Chain) -> Outcome) -> Outcome {
    each_seed(2, |seed| run(&Chain::new(seed, options)?))
}

/// Runs a chain for each seed: `few` ones, if the environment does not set the number.
fn each_seed(few: u64, run: impl Fn(u64) -> Outcome) -> Outcome {
    let count = std::env::var("SAPWOOD_STREAM_CHAINS");
    let count = count.ok().and_then(|text| text.parse().ok()).unwrap_or(few);
    for number in 0..count {
        let seed = seed(1) + number;
        run(seed).map_err(|error| format!("seed {seed}: {error:?}"))?;
    }
    Ok(())
}

/// A source with snapshots `s0`, `s1`, ..., and an empty destination.
struct Chain {
    source: TempImage,
    destination: TempImage,
    version: u64,
}

fn btrfs(args: &[&str]) -> Result<String, String> {
    process::run("btrfs", args)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Chain {
    fn new(seed: u64, options: &[&str]) -> Result<Self, String> {
        let chain = Self {
            source: TempImage::by_kernel(&Mkfs::default())?,
            destination: TempImage::by_kernel(&Mkfs::default())?,
            version: 1 + seed % 2,
        };
        let options = [&["noatime"], options].concat().join(",");
        let mount = Driver::Kernel.mount(chain.source.path(), &options)?;
        let volume = mount.path().join("volume");
        btrfs(&["subvolume", "create", text(&volume)])?;
        for step in 0..STEPS {
            Changing::new(&volume, seed * 1000 + step).change(CHANGES);
            let snapshot = mount.path().join(format!("s{step}"));
            btrfs(&[
                "subvolume",
                "snapshot",
                "-r",
                text(&volume),
                text(&snapshot),
            ])?;
        }
        mount.unmount()?;
        Ok(chain)
    }

    fn stream(&self, step: u64) -> std::path::PathBuf {
        self.source.beside(&format!("stream{step}"))
    }

    /// Compares all snapshots of the destination with the source's.
    fn compare(&self, facts: Facts, not_of_top: Facts) -> Outcome {
        let source = Driver::Kernel.mount(self.source.path(), "ro,noatime")?;
        let destination = Driver::Kernel.mount(self.destination.path(), "ro,noatime")?;
        for step in 0..STEPS {
            let name = format!("s{step}");
            same(
                &source.path().join(&name),
                &destination.path().join(&name),
                (facts, not_of_top),
            )
            .map_err(|error| format!("step {step}: {error}"))?;
        }
        source.unmount()?;
        destination.unmount()?;
        self.destination.check()?;
        Ok(())
    }
}

/// Compares two mounted trees: these facts, and of the top all but some.
fn same(expected: &Path, found: &Path, (facts, not_of_top): (Facts, Facts)) -> Result<(), String> {
    let read = |path| Tree::of_mount(path, Detail::Sums).map_err(|error| error.to_string());
    let of = |path: &str| match path {
        "" | "." => facts - not_of_top,
        _ => facts,
    };
    read(expected)?.compare(&read(found)?, |path, _, _| of(path))
}

const SAME: Facts = Facts::PLAIN.union(Facts::MTIME).union(Facts::ATIME);

fn sent_to_the_kernel(chain: &Chain) -> Outcome {
    let mount = Driver::Kernel.mount(chain.destination.path(), "noatime")?;
    for step in 0..STEPS {
        let stream = chain.stream(step);
        let mut send = Command::new(sapwood());
        send.arg("send")
            .arg(format!("{}:s{step}", text(chain.source.path())));
        if step > 0 {
            send.args(["-p", &format!("s{}", step - 1)]);
        }
        send.args(["--proto", &chain.version.to_string(), "-o"])
            .arg(&stream);
        if chain.version == 2 {
            send.arg("--compressed-data");
        }
        process::succeed(&mut send, LIMIT)?;
        btrfs(&["receive", "-f", text(&stream), text(mount.path())])?;
    }
    mount.unmount()?;
    // Version 1 has no holes.
    let holes = if chain.version == 2 {
        Facts::DATA
    } else {
        Facts::empty()
    };
    chain.compare(SAME | holes, Facts::empty())
}

/// The kernel and ours take turns in receiving.
fn received_from_the_kernel(chain: &Chain) -> Outcome {
    let source = Driver::Kernel.mount(chain.source.path(), "noatime")?;
    let place = format!("{}:", text(chain.destination.path()));
    for step in 0..STEPS {
        let stream = chain.stream(step);
        let snapshot = source.path().join(format!("s{step}"));
        let parent = source.path().join(format!("s{}", step.saturating_sub(1)));
        let version = chain.version.to_string();
        let mut args = vec!["send", "--proto", &version, "-f", text(&stream)];
        if chain.version == 2 {
            args.push("--compressed-data");
        }
        if step > 0 {
            args.extend(["-p", text(&parent)]);
        }
        args.push(text(&snapshot));
        btrfs(&args)?;
        if step % 3 == 2 {
            let mount = Driver::Kernel.mount(chain.destination.path(), "noatime")?;
            btrfs(&["receive", "-f", text(&stream), text(mount.path())])?;
            mount.unmount()?;
            continue;
        }
        let mut receive = Command::new(sapwood());
        receive.args(["receive", "-f"]).arg(&stream).arg(&place);
        process::succeed(&mut receive, LIMIT)?;
    }
    source.unmount()?;
    // The kernel's sender leaves out the time of the top where only temporary names changed it.
    chain.compare(SAME, Facts::MTIME)
}

fn orders_of_names() -> Outcome {
    let source = TempImage::by_kernel(&Mkfs::default())?;
    let destination = TempImage::by_kernel(&Mkfs::default())?;
    let mount = Driver::Kernel.mount(source.path(), "noatime")?;
    for (number, (_, tree, change)) in ORDERS.iter().enumerate() {
        let volume = mount.path().join(format!("v{number}"));
        btrfs(&["subvolume", "create", text(&volume)])?;
        for (name, script) in [("old", tree), ("new", change)] {
            process::shell(&volume, &format!("set -e; {script}"), LIMIT)?;
            let snapshot = mount.path().join(format!("{name}{number}"));
            btrfs(&[
                "subvolume",
                "snapshot",
                "-r",
                text(&volume),
                text(&snapshot),
            ])?;
        }
    }
    mount.unmount()?;
    let stream = source.beside("stream");
    let kernel = Driver::Kernel.mount(destination.path(), "noatime")?;
    let source_mount = |number: usize, name: &str| format!("{name}{number}");
    for (number, (what, _, _)) in ORDERS.iter().enumerate() {
        for name in ["old", "new"] {
            let mut send = Command::new(sapwood());
            let place = format!("{}:{}", text(source.path()), source_mount(number, name));
            send.arg("send").arg(place).arg("-fo").arg(&stream);
            if name == "new" {
                send.arg("-p").arg(source_mount(number, "old"));
            }
            process::succeed(&mut send, LIMIT)?;
            btrfs(&["receive", "-f", text(&stream), text(kernel.path())])
                .map_err(|error| format!("{what}: {error}"))?;
        }
    }
    let mount = Driver::Kernel.mount(source.path(), "ro,noatime")?;
    for (number, (what, _, _)) in ORDERS.iter().enumerate() {
        let name = source_mount(number, "new");
        same(
            &mount.path().join(&name),
            &kernel.path().join(&name),
            (SAME, Facts::empty()),
        )
        .map_err(|error| format!("{what}: {error}"))?;
    }
    mount.unmount()?;
    kernel.unmount()?;
    Ok(())
}

/// A stream that ends anywhere leaves the image consistent, and its subvolume writable and without
/// the mark of a received one. The rest of the image is as it was.
fn cut_streams() -> Outcome {
    let dir = scratch::directory();
    let script = r#"
        "$SAPWOOD" mkfs -q --size 256M source; "$SAPWOOD" mkfs -q --size 256M target
        "$SAPWOOD" subvolume create source:/v; mkdir t; head -c 200000 /dev/urandom > t/large; echo text > t/small; mkdir t/d; ln -s x t/d/link
        "$SAPWOOD" cp -q -a t source:/v/t; "$SAPWOOD" subvolume snapshot -r source:/v /s; "$SAPWOOD" send source:s -o stream
        "$SAPWOOD" send source:s | cmp - stream; echo kept > f; "$SAPWOOD" cp -q f target:/kept
        "$SAPWOOD" receive --dump -f stream | tail -1 | grep -qx end
    "#;
    let run = |script: &str| {
        let script = format!("set -e; SAPWOOD={}; {script}", text(sapwood()));
        process::shell(dir.path(), &script, LIMIT)
    };
    run(script)?;
    let stream = fs::read(dir.path().join("stream")).unwrap();
    for part in 0..24 {
        let end = if part < 12 {
            5 * part
        } else {
            stream.len() * (part - 12) / 12
        };
        fs::write(dir.path().join("cut"), &stream[..end]).unwrap();
        run(
            r#"if "$SAPWOOD" receive -f cut target: 2> error; then exit 1; fi; grep -q 'stream' error
            "$SAPWOOD" subvolume list target > list; if grep -q read-only list; then exit 1; fi
            [ "$("$SAPWOOD" cat target:/kept)" = kept ]; "$SAPWOOD" check -q target
            if [ -s list ]; then "$SAPWOOD" subvolume delete target:/s; fi"#,
        )
        .map_err(|error| format!("cut at {end}: {error}"))?;
    }
    let mut wrong = stream.clone();
    let middle = wrong.len() / 2;
    wrong[middle] ^= 1;
    fs::write(dir.path().join("cut"), wrong).unwrap();
    run(
        r#"if "$SAPWOOD" receive -f cut target: 2> error; then exit 1; fi; grep -q checksum error; "$SAPWOOD" subvolume delete target:/s
        "$SAPWOOD" receive -f stream target:; "$SAPWOOD" subvolume list target | grep -q 's (read-only)'
        "$SAPWOOD" cp -q -a target:/s/t back; diff -r --no-dereference t back; [ -z "$("$SAPWOOD" diff source:s target:s)" ]"#,
    )?;
    Ok(())
}
