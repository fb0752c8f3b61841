//! `sapwood scrub --from`: lost sectors come back from a file, an older image and a stream of the
//! kernel; the kernel reads and scrubs the result.

use std::fs::{self, File};
use std::path::Path;

use libtest_mimic::Trial;
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::several::{Set, content, run, said, spoil};

const SECTOR: usize = 4096;
const LOST: usize = 60;

pub(crate) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    vec![
        trial(
            "lost_sectors_come_from_files_images_and_streams",
            &kernel,
            repaired,
        ),
        trial("sources_are_refused_by_name", &[], refused),
    ]
}

/// The number of sectors that each source gave, and whether everything is good now.
fn scrubbed(set: &Set, sources: &[&str]) -> Result<(Vec<u64>, bool), String> {
    let from = sources.iter().flat_map(|source| ["--from", source]);
    let args: Vec<&str> = ["scrub", "--json"].into_iter().chain(from).collect();
    let told = said(&[&args[..], &[set.at(0)]].concat())?;
    let report: serde_json::Value =
        serde_json::from_str(&told.stdout).map_err(|error| format!("{error}: {}", told.all()))?;
    let sources = report["sources"].as_array().ok_or("no sources")?;
    let sectors = sources.iter().map(|source| source["sectors"].as_u64());
    let sectors: Option<Vec<u64>> = sectors.collect();
    let clean = report["clean"].as_bool() == Some(true);
    assert_eq!(clean, told.status.success(), "{report}");
    Ok((sectors.ok_or("no sectors")?, clean))
}

fn repaired() -> Outcome {
    let set = Set::made(1, &["-d", "single"])?;
    let beside = |name: &str| Path::new(set.at(0)).with_file_name(name);
    let (copy, stream, older) = (beside("copy"), beside("stream"), beside("older.img"));
    let file = content(LOST * SECTOR + 100);
    fs::write(&copy, &file)?;
    set.by_kernel(|dir| {
        let (volume, snapshot) = (dir.join("volume"), dir.join("snapshot"));
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        process::run("btrfs", &["subvolume", "create", &path(&volume)]).unwrap();
        fs::create_dir(volume.join("sub")).unwrap();
        fs::copy(&copy, volume.join("sub/kept")).unwrap();
        let pair = [path(&volume), path(&snapshot)];
        process::run(
            "btrfs",
            &["subvolume", "snapshot", "-r", &pair[0], &pair[1]],
        )
        .unwrap();
        process::run("btrfs", &["send", "-q", "-f", &path(&stream), &pair[1]]).unwrap();
    })?;
    fs::copy(set.at(0), &older)?;
    let wrong = beside("wrong");
    fs::write(&wrong, content(LOST * SECTOR + 5000))?;
    let cut = beside("cut");
    fs::copy(&stream, &cut)?;
    File::options().write(true).open(&cut)?.set_len(100_000)?;
    let named = |path: &Path| path.to_str().unwrap().to_owned();
    let [wrong, cut] = [&wrong, &cut].map(|path| named(path));
    for source in [&copy, &older, &stream] {
        let source = named(source);
        let spoiled = spoil(set.at(0), &file)?;
        assert_eq!(spoiled, LOST);
        assert_eq!(scrubbed(&set, &[&wrong])?, (vec![0], false));
        let (sectors, clean) = scrubbed(&set, &[&cut])?;
        assert!(
            !clean && (1..LOST as u64).contains(&sectors[0]),
            "{sectors:?}"
        );
        let (sectors, clean) = scrubbed(&set, &[&wrong, &source])?;
        assert!(
            clean && sectors[0] == 0 && sectors[1] > 0,
            "{source}: {sectors:?}"
        );
        set.command(&["check", "-q", "--check-data-csum"], "")?;
        set.by_kernel(|dir| {
            for place in ["volume/sub/kept", "snapshot/sub/kept"] {
                assert!(fs::read(dir.join(place)).unwrap() == file, "{source}");
            }
        })?;
    }
    // The text names the source.
    spoil(set.at(0), &file)?;
    let told = run(&["scrub", "--from", &named(&copy), set.at(0)])?;
    let line = "volume/sub/kept: bytes 0 to 245760: repaired from ";
    assert!(
        told.contains(line) && told.contains("60 sectors repaired from it"),
        "{told}"
    );
    Ok(())
}

fn refused() -> Outcome {
    let set = Set::made(1, &["-d", "single"])?;
    let none = said(&["scrub", "--from", "/nowhere", set.at(0)])?;
    assert!(none.stderr.contains("/nowhere"), "{}", none.all());
    assert_eq!(none.status.code(), Some(3), "{}", none.all());
    let only = said(&["scrub", "-r", "--from", set.at(0), set.at(0)])?;
    assert_eq!(only.status.code(), Some(2), "{}", only.all());
    let ext4 = Path::new(set.at(0)).with_file_name("ext4.img");
    let ext4 = ext4.to_str().unwrap();
    run(&["mkfs", "-q", "--type", "ext4", "--size", "64M", ext4])?;
    let told = said(&["scrub", "--from", set.at(0), ext4])?;
    assert!(told.stderr.contains("no checksums"), "{}", told.all());
    let inside = Path::new(set.at(0)).parent().unwrap().to_str().unwrap();
    let told = said(&["scrub", "--from", set.at(0), inside])?;
    assert!(told.stderr.contains("unmount it"), "{}", told.all());
    Ok(())
}
