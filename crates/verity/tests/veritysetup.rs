//! `veritysetup` as the oracle, both ways.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_testing::machine::installed;
use sapwood_verity::{Algorithm, Error, Header, Params, RootHash, VerityDevice, build};

const UUID: &str = "6f9c8a3e-1111-4222-8333-444455556666";
const UUID_BYTES: [u8; 16] = [
    0x6f, 0x9c, 0x8a, 0x3e, 0x11, 0x11, 0x42, 0x22, 0x83, 0x33, 0x44, 0x44, 0x55, 0x55, 0x66, 0x66,
];
const SALT: &str = "00112233445566778899aabbccddeeff";

fn open(path: &Path, read_only: bool) -> Arc<dyn Device> {
    let options = if read_only {
        OpenOptions::read_only()
    } else {
        OpenOptions::default()
    };
    Arc::new(FileDevice::open(path, options).unwrap())
}

fn data(path: &Path, len: usize) {
    let mut random = fastrand::Rng::with_seed(len as u64);
    let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
    std::fs::write(path, bytes).unwrap();
}

/// The root hash that `veritysetup format` prints.
fn format(data: &Path, hashes: &Path, params: &Params) -> String {
    let salt = if params.salt.is_empty() { "-" } else { SALT };
    let made = Command::new("veritysetup")
        .args(["format", "--uuid", UUID, "--salt", salt])
        .arg(format!("--hash={}", params.algorithm))
        .arg(format!("--data-block-size={}", params.data_block))
        .arg(format!("--hash-block-size={}", params.hash_block))
        .args([data, hashes])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Root hash:"));
    line.unwrap().trim().to_owned()
}

fn all_params() -> Vec<Params> {
    let mut all = Vec::new();
    for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
        for (data_block, hash_block) in [(4096, 4096), (512, 512), (1024, 4096), (4096, 1024)] {
            for salt in ["-", SALT] {
                let mut params = Params {
                    algorithm,
                    data_block,
                    hash_block,
                    ..Params::default()
                };
                params.set_salt(salt).unwrap();
                all.push(params);
            }
        }
    }
    all
}

#[test]
fn a_tree_has_the_bytes_that_veritysetup_writes() {
    if !installed("veritysetup") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (nth, params) in all_params().into_iter().enumerate() {
        // A block, a full hash block of digests, one more, and several levels.
        for blocks in [1, 2, 8, 128, 129, 1500] {
            let path = at("data");
            data(&path, blocks * params.data_block as usize);
            let theirs = at("theirs");
            let root = format(&path, &theirs, &params);
            let ours = at("ours");
            std::fs::write(&ours, b"").unwrap();
            let device = open(&ours, false);
            let built = build(
                &*open(&path, true),
                &*device,
                &params,
                Some(UUID_BYTES),
                &mut |_| (),
            );
            let (header, found) = built.unwrap();
            drop(device);
            assert_eq!(
                found.to_string(),
                root,
                "{nth}: {params:?}, {blocks} blocks"
            );
            let written = std::fs::read(&ours).unwrap();
            assert!(
                written == std::fs::read(&theirs).unwrap(),
                "{params:?}, {blocks} blocks"
            );
            assert_eq!(Header::read(&*open(&theirs, true)).unwrap(), header);
            let verified = Command::new("veritysetup")
                .arg("verify")
                .args([&path, &ours])
                .arg(&root)
                .status();
            assert!(verified.unwrap().success());
            std::fs::remove_file(&theirs).unwrap();
        }
    }
}

#[test]
fn every_wrong_bit_is_found() {
    if !installed("veritysetup") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, hashes) = (dir.path().join("data"), dir.path().join("hashes"));
    data(&path, 300 * 4096);
    let mut params = Params::default();
    params.set_salt(SALT).unwrap();
    let root: RootHash = format(&path, &hashes, &params).parse().unwrap();
    let opened =
        |root: &RootHash| VerityDevice::open(open(&path, true), open(&hashes, true), root.clone());
    let device = opened(&root).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..200 {
        let from = random.usize(..whole.len());
        let len = random.usize(..=(whole.len() - from).min(20_000));
        let mut bytes = vec![0; len];
        device.read_at(from as u64, &mut bytes).unwrap();
        assert!(bytes == whole[from..from + len]);
    }
    device.verify_all(&mut |_| ()).unwrap();
    assert!(device.write_at(0, &[0]).is_err());
    drop(device);
    let mut other = root.clone();
    other.0[0] ^= 1;
    assert!(matches!(
        opened(&other),
        Err(Error::Mismatch {
            above: "root hash",
            ..
        })
    ));
    other.0.pop();
    assert!(matches!(opened(&other), Err(Error::RootLength { .. })));
    let size = |path: &Path| path.metadata().unwrap().len();
    for victim in [&path, &hashes] {
        // Not the superblock, whose unused bytes have no meaning.
        let start = if *victim == path { 0 } else { 4096 };
        for _ in 0..40 {
            let at = random.u64(start..size(victim));
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .open(victim)
                .unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << random.u32(..8)], at)
                .unwrap();
            let found = opened(&root).and_then(|device| device.verify_all(&mut |_| ()));
            // The rest of the last hash block of a level is zero, and is verified, too.
            assert!(
                matches!(found, Err(Error::Mismatch { .. })),
                "byte {at} of {victim:?}"
            );
            file.write_all_at(&byte, at).unwrap();
        }
    }
    opened(&root).unwrap().verify_all(&mut |_| ()).unwrap();
}
