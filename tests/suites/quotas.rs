//! `sapwood quota` on an image and on a mount, where programs meet the limits.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::mount::{Mounted, SapwoodMount};
use sapwood_tests::{Need, Outcome, scratch, trial};
use serde_json::Value;

use super::several::{content, run, said};

const MIB: usize = 1 << 20;
/// `EDQUOT`
const EXCEEDED: i32 = 122;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("quotas_of_an_image", &[], of_an_image),
        trial("limits_hold_in_a_mount", &[Need::Fuse], in_a_mount),
        trial("changes_of_quotas_are_refused_by_name", &[], refused),
    ]
}

/// An image with subvolume 256, `a`.
fn image(dir: &Path, kind: &str) -> Result<String, String> {
    let image = dir.join("i.img").to_str().unwrap().to_owned();
    run(&["mkfs", "-q", "-t", kind, "--size", "256M", &image])?;
    if kind == "btrfs" {
        run(&["subvolume", "create", &format!("{image}:/a")])?;
    }
    Ok(image)
}

/// Referenced bytes of a group, if the numbers are right.
fn referenced(place: &str, group: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let shown: Value = serde_json::from_str(&run(&["quota", "show", "--json", place])?)?;
    assert_eq!(shown["consistent"], true, "{shown}");
    let groups = shown["groups"].as_array().unwrap();
    let found = groups.iter().find(|other| other["group"] == group);
    Ok(found.unwrap()["referenced"].as_u64().unwrap())
}

fn of_an_image() -> Outcome {
    let dir = scratch::directory();
    let image = image(dir.path(), "btrfs")?;
    let off = run(&["quota", "show", &image])?;
    assert!(off.contains("quotas are off"), "{off}");
    for simple in [&[][..], &["--simple"]] {
        run(&[&["quota", "enable"], simple, &[&image]].concat())?;
        run(&["quota", "create", &image, "1/1"])?;
        run(&["quota", "assign", &image, "256", "1/1"])?;
        run(&["quota", "limit", "-r", "2M", &image, "1/1"])?;
        let source = dir.path().join("source");
        fs::write(&source, content(MIB))?;
        let (source, target) = (source.to_str().unwrap(), format!("{image}:/a/file"));
        run(&["cp", "-q", source, &target])?;
        assert!(referenced(&image, "1/1")? >= MIB as u64);
        fs::write(source, content(3 * MIB))?;
        let much = said(&["cp", "-q", source, &format!("{image}:/a/much")])?;
        assert!(much.all().contains("quota exceeded"), "{}", much.all());
        let table = run(&["quota", "show", &image])?;
        assert!(table.contains("2.00 MiB"), "{table}");
        run(&["check", "-q", &image])?;
        run(&["rm", &target])?;
        run(&["quota", "unassign", &image, "256", "1/1"])?;
        run(&["quota", "remove", &image, "1/1"])?;
        run(&["quota", "disable", &image])?;
    }
    run(&["check", "-q", &image])?;
    Ok(())
}

fn in_a_mount() -> Outcome {
    let dir = scratch::directory();
    let image = image(dir.path(), "btrfs")?;
    let mount = SapwoodMount::new(Path::new(&image), "")?;
    let place = mount.path().to_str().unwrap().to_owned();
    let at = |name: &str| mount.path().join("a").join(name);
    fs::write(at("before"), content(MIB))?;
    run(&["sync", &place])?;
    run(&["quota", "enable", &place])?;
    assert!(referenced(&place, "0/256")? >= MIB as u64);
    run(&["quota", "limit", "-r", "3M", &place, "256"])?;
    let much = fs::write(at("much"), content(3 * MIB));
    assert_eq!(much.unwrap_err().raw_os_error(), Some(EXCEEDED));
    fs::remove_file(at("much"))?;
    fs::remove_file(at("before"))?;
    // The kernel tells the daemon about a last close, and about a removal, a little later.
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(error) = fs::write(at("after"), content(2 * MIB)) {
        assert_eq!(error.raw_os_error(), Some(EXCEEDED));
        assert!(Instant::now() < end, "removed files make no room");
        thread::sleep(Duration::from_millis(50));
    }
    run(&["sync", &place])?;
    let used = referenced(&place, "0/256")?;
    assert!(used >= 2 * MIB as u64 && used <= 3 * MIB as u64, "{used}");
    run(&["quota", "rescan", &place])?;
    assert_eq!(referenced(&place, "0/256")?, used);
    Box::new(mount).unmount()?;
    run(&["check", "-q", &image])?;
    assert_eq!(referenced(&image, "0/256")?, used);
    Ok(())
}

fn refused() -> Outcome {
    let dir = scratch::directory();
    let made = image(dir.path(), "btrfs")?;
    let refuses = |args: &[&str], code: i32, why: &str| -> Outcome {
        let answer = said(&[&["quota"], args].concat())?;
        assert_eq!(
            answer.status.code(),
            Some(code),
            "{args:?}: {}",
            answer.all()
        );
        assert!(answer.all().contains(why), "{args:?}: {}", answer.all());
        Ok(())
    };
    let image_of = made.as_str();
    refuses(&["rescan", image_of], 1, "quotas are off")?;
    refuses(&["disable", image_of], 1, "quotas are off")?;
    refuses(&["create", image_of, "300"], 2, "belong to subvolumes")?;
    run(&["quota", "enable", image_of])?;
    refuses(&["enable", "--simple", image_of], 1, "quota groups are on")?;
    refuses(&["limit", image_of, "256"], 2, "--referenced")?;
    refuses(&["limit", "-r", "much", image_of, "256"], 2, "not a size")?;
    refuses(
        &["limit", "-r", "1M", image_of, "7/7"],
        1,
        "no quota group 7/7",
    )?;
    refuses(&["remove", image_of, "256"], 1, "its subvolume exists")?;
    refuses(&["assign", image_of, "256", "1/x"], 2, "LEVEL/ID")?;
    refuses(&["show", "nothing.img"], 1, "nothing.img")?;
    fs::remove_file(&made)?;
    let ext4 = image(dir.path(), "ext4")?;
    refuses(&["enable", &ext4], 1, "needs btrfs")?;
    Ok(())
}
