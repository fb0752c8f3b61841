//! Encoded writes whose claims are wrong: each is refused, or leaves bytes that cannot be read. The
//! image stays consistent.

use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs_format::stream::{Writer, attribute, command, encoding, header};

use super::{ReceiveOptions, image};
use crate::{FileSystem, Options};

/// The numbers of an encoded write, in the order of [`NUMBERS`].
type Claims = [u64; 5];

const NUMBERS: [u16; 4] = [
    attribute::FILE_OFFSET,
    attribute::UNENCODED_FILE_LEN,
    attribute::UNENCODED_LEN,
    attribute::UNENCODED_OFFSET,
];

const LEN: u64 = 65_536;

fn stream(claims: Claims, data: &[u8]) -> Vec<u8> {
    let mut bytes = header(2).to_vec();
    let mut writer = Writer::new(2);
    let mut add = |number, compose: &dyn Fn(&mut Writer)| {
        compose(writer.begin(number));
        bytes.extend_from_slice(writer.finish());
    };
    add(command::SUBVOL, &|out| {
        out.put(attribute::PATH, b"s")
            .put(attribute::UUID, &[7; 16]);
        out.put_u64(attribute::CTRANSID, 1);
    });
    add(command::MKFILE, &|out| {
        out.put(attribute::PATH, b"f").put_u64(attribute::INO, 2);
    });
    add(command::WRITE, &|out| {
        out.put(attribute::PATH, b"f");
        out.put_u64(attribute::FILE_OFFSET, 0).put_data(&[1; 9000]);
    });
    add(command::ENCODED_WRITE, &|out| {
        let [numbers @ .., encoding] = &claims;
        out.put(attribute::PATH, b"f");
        for (attribute, number) in NUMBERS.into_iter().zip(numbers) {
            out.put_u64(attribute, *number);
        }
        out.put_u32(attribute::COMPRESSION, u32::try_from(*encoding).unwrap());
        out.put_data(data);
    });
    add(command::END, &|_| {});
    bytes
}

#[test]
fn wrong_claims_of_extents_leave_a_consistent_image() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    image(&target).close().unwrap();
    let empty = std::fs::read(&target).unwrap();
    let plain: Vec<u8> = (0..LEN).map(|at| (at / 100) as u8).collect();
    let good = zstd::bulk::compress(&plain, 3).unwrap();
    let (mut stored, mut unreadable) = (0, 0);
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut claims: Claims = [0, LEN, LEN, 0, encoding::ZSTD.into()];
        let mut data = good.clone();
        if seed > 0 {
            let wrong = random.usize(..6);
            let sectors = random.u64(..40) * 4096;
            let odd = [1, 4097, 9000, 131_072, u64::MAX, u64::MAX - 4095];
            match claims.get_mut(wrong) {
                Some(encoding) if wrong == 4 => *encoding = random.u64(..9),
                Some(number) if random.bool() => *number = sectors,
                Some(number) => *number = odd[random.usize(..odd.len())],
                None if random.bool() => data.iter_mut().for_each(|byte| *byte = random.u8(..)),
                None => data.resize(random.usize(..140_000), 3),
            }
        }
        let device = Arc::new(MemoryDevice::from_bytes(&empty));
        let fs = FileSystem::open_on(device.clone(), "memory", &Options::new()).unwrap();
        let bytes = stream(claims, &data);
        let received = fs.receive("/", &*bytes, &ReceiveOptions::default(), &mut |_| {});
        if received.is_ok() {
            stored += 1;
            match fs.read("/s/f") {
                Ok(found) if seed == 0 => assert_eq!(found, plain),
                Ok(_) => {}
                Err(error) => {
                    let why = error.to_string();
                    assert!(seed > 0 && why.contains("compressed data"), "{why}");
                    unreadable += 1;
                }
            }
        }
        fs.close().unwrap();
        let options = CheckOptions {
            check_data_csum: true,
            max_findings: 10,
        };
        let report = check(&[&*device], &options, &mut |_| ()).unwrap();
        let findings = &report.findings;
        assert!(findings.is_empty(), "seed {seed} {claims:?}: {findings:?}");
    }
    assert!(stored > 5 && unreadable > 2, "{stored} {unreadable}");
}
