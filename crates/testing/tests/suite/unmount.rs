//! Unmounting while a process has a mount namespace of its own.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::Kind;

fn succeeds(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// A loop device's file system stays mounted in the other namespace, and the image is complete only
/// when that namespace is gone.
#[test]
fn unmounting_waits_for_copies_in_other_namespaces() {
    if left_out(&[Need::Kernel(Kind::Ext4), Need::Program("unshare")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    let file = fs::File::create(&image).unwrap();
    file.set_len(8 << 20).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    assert!(succeeds("mke2fs", &["-q", "-F", "-t", "ext4", image]));
    assert!(succeeds("mount", &["-o", "loop", image, at]));
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The process prints the first byte when the namespace exists.
    let stdout = other.stdout.as_mut().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    fs::write(Path::new(at).join("file"), "content").unwrap();
    let unmounted = std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| sapwood_testing::unmount(Path::new(at)));
        let mounted = || {
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
            table.lines().any(|line| line.contains(at))
        };
        while mounted() {
            std::thread::yield_now();
        }
        // The mount is gone here: the thread waits for the other namespace.
        let waits = (0..1000).all(|_| !mounted() && !unmounting.is_finished());
        other.stdin.take().unwrap().write_all(b"\n").unwrap();
        other.wait().unwrap();
        (waits, unmounting.join().unwrap())
    });
    assert_eq!(unmounted, (true, Ok(())));
    assert!(succeeds("e2fsck", &["-fn", image]));
    let listed = Command::new("debugfs")
        .args(["-R", "cat /file", image])
        .output();
    assert_eq!(listed.unwrap().stdout, b"content");
}
