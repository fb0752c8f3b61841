//! Compressed extents travel as they are stored: from the kernel's snapshot to an image of ours and
//! further, they take the space that they take when the kernel receives them.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use sapwood_testing::tree::Facts;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::{LIMIT, SAME, btrfs, same, text};

pub(crate) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    let mounts = [machine::KERNEL, Need::Program("btrfs"), Need::Fuse];
    vec![
        trial(
            "compressed_extents_are_stored_as_they_come",
            &kernel,
            || {
                ["zlib", "lzo", "zstd"]
                    .into_iter()
                    .try_for_each(as_they_come)
            },
        ),
        trial(
            "a_mount_stores_compressed_extents_as_they_come",
            &mounts,
            in_a_mount,
        ),
    ]
}

/// Files whose extents are compressed, in part overwritten, cut and shared; inline ones; ends of
/// any length. `$1` is their directory.
const FILES: &str = r#"
    set +o pipefail; cd "$1"; word() { head -c 400000 /dev/urandom | base64 -w 0 | head -c $1; }
    word 500000 > whole; word 300001 > odd; word 262144 > cut; word 131072 > middle; word 303104 > shared; yes | head -c 2000000 > yes
    echo "$(yes | head -c 3000)" > small; echo 1 > tiny; word 4096 > sector; truncate -s 1M holes; word 8192 | dd of=holes bs=4096 seek=50 conv=notrunc status=none
    word 20000 > grown; sync
    word 8192 | dd of=middle bs=4096 seek=5 conv=notrunc status=none; word 100 | dd of=whole bs=1 seek=200000 conv=notrunc status=none
    truncate -s 100001 cut; cp --reflink=always shared twice; word 30000 >> grown; sync; word 777 >> small; sync
"#;

/// Changes of these files for a second, incremental stream.
const CHANGES: &str = r#"
    set +o pipefail; cd "$1"; word() { head -c 400000 /dev/urandom | base64 -w 0 | head -c $1; }
    word 70000 | dd of=odd bs=4096 seek=3 conv=notrunc status=none; rm tiny; word 90000 > tiny; rm small; word 5000 > small; truncate -s 50 whole
    word 150000 >> sector; cp --reflink=always shared again; sync
"#;

/// The kernel's streams of two snapshots.
struct Source {
    image: TempImage,
    streams: [std::path::PathBuf; 2],
}

fn source(algorithm: &str) -> Result<Source, String> {
    let image = TempImage::by_kernel(&Mkfs::default())?;
    let options = format!("noatime,compress-force={algorithm}");
    let mount = Driver::Kernel.mount(image.path(), &options)?;
    let volume = mount.path().join("volume");
    btrfs(&["subvolume", "create", text(&volume)])?;
    let streams = [image.beside("first"), image.beside("second")];
    let mut parent: Option<std::path::PathBuf> = None;
    for (number, (stream, script)) in streams.iter().zip([FILES, CHANGES]).enumerate() {
        process::shell(
            image.beside("").as_path(),
            &format!("set -- {}; {script}", text(&volume)),
            LIMIT,
        )?;
        let snapshot = mount.path().join(format!("s{number}"));
        btrfs(&[
            "subvolume",
            "snapshot",
            "-r",
            text(&volume),
            text(&snapshot),
        ])?;
        let mut args = vec![
            "send",
            "--proto",
            "2",
            "--compressed-data",
            "-f",
            text(stream),
        ];
        if let Some(parent) = &parent {
            args.extend(["-p", text(parent)]);
        }
        args.push(text(&snapshot));
        btrfs(&args)?;
        parent = Some(snapshot);
    }
    mount.unmount()?;
    Ok(Source { image, streams })
}

/// Bytes of data extents in use on a mounted file system.
fn data_used(mount: &Path) -> Result<u64, String> {
    process::run("sync", &["-f", text(mount)])?;
    let report = btrfs(&["filesystem", "df", "--raw", text(mount)])?;
    let line = report.lines().find(|line| line.starts_with("Data"));
    let used = line.and_then(|line| line.rsplit_once("used=")?.1.trim().parse().ok());
    used.ok_or(report)
}

fn receive(stream: &Path, place: &str, more: &[&str]) -> Result<(), String> {
    let mut receive = Command::new(sapwood());
    receive.args(["receive", "-q"]).args(more).arg("-f");
    receive.arg(stream).arg(place);
    process::succeed(&mut receive, LIMIT).map_err(|error| error.to_string())?;
    Ok(())
}

/// Compares the snapshots of a received image with the source's. Returns the bytes of its data.
fn received(source: &TempImage, image: &TempImage) -> Result<u64, String> {
    let from = Driver::Kernel.mount(source.path(), "ro,noatime")?;
    let to = Driver::Kernel.mount(image.path(), "noatime")?;
    for name in ["s0", "s1"] {
        same(
            &from.path().join(name),
            &to.path().join(name),
            (SAME, Facts::empty()),
        )
        .map_err(|error| format!("{name}: {error}"))?;
    }
    let used = data_used(to.path())?;
    from.unmount()?;
    to.unmount()?;
    image.check()?;
    btrfs(&["check", "--check-data-csum", text(image.path())])?;
    Ok(used)
}

fn as_they_come(algorithm: &str) -> Outcome {
    let source = source(algorithm)?;
    let kernel = TempImage::by_kernel(&Mkfs::default())?;
    let mount = Driver::Kernel.mount(kernel.path(), "noatime")?;
    for stream in &source.streams {
        btrfs(&["receive", "-f", text(stream), text(mount.path())])?;
    }
    let expected = data_used(mount.path())?;
    mount.unmount()?;

    let [first, expanded, second] = [(); 3].map(|()| TempImage::by_kernel(&Mkfs::default()));
    let (first, expanded, second) = (first?, expanded?, second?);
    for stream in &source.streams {
        receive(stream, &format!("{}:", text(first.path())), &[])?;
        let place = format!("{}:", text(expanded.path()));
        receive(stream, &place, &["--force-decompress"])?;
    }
    let used = received(&source.image, &first)?;
    assert_eq!(used, expected, "{algorithm}");
    let plain = received(&source.image, &expanded)?;
    assert!(
        plain > used * 5 / 4,
        "{algorithm}: {plain} bytes, {used} compressed"
    );

    for (name, parent) in [("s0", None), ("s1", Some("s0"))] {
        let stream = second.beside(name);
        let mut send = Command::new(sapwood());
        send.args(["send", "-q", "--proto", "2", "--compressed-data", "-o"]);
        send.arg(&stream)
            .arg(format!("{}:{name}", text(first.path())));
        send.args(parent.iter().flat_map(|parent| ["-p", parent]));
        process::succeed(&mut send, LIMIT)?;
        receive(&stream, &format!("{}:", text(second.path())), &[])?;
    }
    let again = received(&source.image, &second)?;
    assert_eq!(again, used, "{algorithm}: at the receiver, at the sender");
    Ok(())
}

fn in_a_mount() -> Outcome {
    let source = source("zstd")?;
    let image = TempImage::by_kernel(&Mkfs::default())?;
    let mount = Driver::Sapwood.mount(image.path(), "rw")?;
    let [first, second] = &source.streams;
    receive(first, text(mount.path()), &[])?;
    let mut dump = Command::new(sapwood());
    dump.args(["receive", "--dump", "-f"]).arg(first);
    let dump = process::succeed(&mut dump, LIMIT)?;
    let sent = dump
        .lines()
        .filter(|line| line.starts_with("encoded_write"));
    let sent = sent.count() as u64;
    assert!(sent > 10, "{dump}");

    let mut stats = Command::new(sapwood());
    stats.args(["stats", "--json"]).arg(mount.path());
    let stats = process::succeed(&mut stats, LIMIT)?;
    let count = |name: &str| -> Option<u64> {
        let (_, rest) = stats.split_once(&format!("\"{name}\":"))?;
        let end = rest.find([',', '}'])?;
        rest.get(..end)?.trim().parse().ok()
    };
    assert_eq!(count("encoded_writes"), Some(sent), "{stats}");
    assert_eq!(count("expanded_extents"), Some(0), "{stats}");
    // The second stream cuts an extent within a sector, so it has a reason to expand one.
    receive(second, text(mount.path()), &[])?;
    mount.unmount()?;
    received(&source.image, &image)?;
    Ok(())
}
