//! Sectors without a good copy that a scrub repairs from files, images and streams.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::scrub::{
    Donated, Donor, Offer, ScrubOptions, ScrubReport, TakeOffer, scrub, scrub_with,
};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_vfs::FileSystem;

use super::devices::{Pair, SIZE, any, clean, get, open, place, put};
use super::relocation::{filled_memory, memory, noise, verify};

const SECTOR: usize = 4096;

/// Bytes as a donor. After them it fails if `fails`.
#[derive(Clone, Default)]
struct Bytes {
    bytes: Vec<u8>,
    path: Option<&'static [u8]>,
    from: u64,
    fails: bool,
}

impl Donor for Bytes {
    fn each(&mut self, sector: usize, take: &mut TakeOffer<'_>) -> io::Result<()> {
        for (offset, bytes) in (self.from..).step_by(sector).zip(self.bytes.chunks(sector)) {
            let path = self.path;
            if take(Offer {
                bytes,
                path,
                offset,
            })
            .is_break()
            {
                return Ok(());
            }
        }
        if self.fails {
            return Err(io::Error::other("cut short"));
        }
        Ok(())
    }
}

/// Sectors of `bytes` from an offset on that is not theirs.
fn elsewhere(bytes: &[u8]) -> Bytes {
    Bytes {
        bytes: bytes.to_vec(),
        from: 1 << 40,
        ..Bytes::default()
    }
}

fn formatted(checksum: ChecksumKind, data: Profile) -> Pair {
    let pair = [memory(), memory()];
    let options = MkfsOptions {
        data: Some(data),
        metadata: Some(Profile::Raid1),
        checksum,
        ..MkfsOptions::default()
    };
    mkfs_several(&[&*pair[0], &*pair[1]], &options).unwrap();
    pair
}

/// A file system whose file `x` has lost all copies of its sectors.
fn damaged(checksum: ChecksumKind, data: Profile, content: &[u8]) -> Pair {
    let pair = formatted(checksum, data);
    let fs = open(pair.each_ref().map(any).to_vec()).unwrap();
    put(&fs, b"x", content);
    fs.unmount().unwrap();
    drop(fs);
    let mut spoiled = 0;
    for device in &pair {
        let mut bytes = vec![0; SIZE as usize];
        device.read_at(0, &mut bytes).unwrap();
        let sectors: Vec<&[u8]> = content.chunks(SECTOR).collect();
        for (nth, sector) in bytes.chunks(SECTOR).enumerate() {
            if sectors.contains(&sector) {
                spoiled += 1;
                let at = (nth * SECTOR) as u64;
                device.write_at(at, &[0xEE; SECTOR]).unwrap();
            }
        }
    }
    assert!(spoiled >= content.len() / SECTOR, "{spoiled}");
    pair
}

fn scrubbed(pair: &Pair, donors: Vec<Bytes>) -> ScrubReport {
    let devices = pair.each_ref().map(any);
    let mut donors: Vec<_> = donors
        .into_iter()
        .map(|donor| Box::new(donor) as Box<dyn Donor>)
        .collect();
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    scrub_with(&devices, &ScrubOptions::default(), &mut donors, go_on).unwrap()
}

fn assert_whole(pair: &Pair, content: &[u8]) {
    let fs = open(pair.each_ref().map(any).to_vec()).unwrap();
    assert!(get(&fs, b"x") == content);
    fs.unmount().unwrap();
    drop(fs);
    clean(pair);
    assert!(scrubbed(pair, Vec::new()).is_clean());
}

#[test]
fn lost_sectors_come_from_the_same_file_or_another_place() {
    let content = noise(11, 40 * SECTOR);
    for data in [Profile::Single, Profile::Raid1] {
        for donor in [
            Bytes {
                bytes: content.clone(),
                ..Bytes::default()
            },
            Bytes {
                bytes: content.clone(),
                path: Some(b"x"),
                ..Bytes::default()
            },
            elsewhere(&[noise(12, 3 * SECTOR), content.clone()].concat()),
        ] {
            let pair = damaged(ChecksumKind::Crc32c, data, &content);
            let before = scrubbed(&pair, vec![elsewhere(&noise(13, 50 * SECTOR))]);
            assert!(!before.is_clean());
            assert!(before.files.iter().all(|file| !file.repaired));
            assert_eq!(before.donated[0].sectors, 0);
            let report = scrubbed(&pair, vec![elsewhere(&noise(13, 50 * SECTOR)), donor]);
            assert!(report.is_clean(), "{report:?}");
            let sectors = report.donated.iter().map(|donated| donated.sectors);
            assert!(sectors.eq([0, 40]), "{report:?}");
            let [file] = &*report.files else {
                panic!("{report:?}");
            };
            assert_eq!(
                (&*file.path, file.offset, file.len),
                (&b"x"[..], 0, 163_840)
            );
            assert_eq!((file.repaired, file.donor), (true, Some(1)));
            assert_whole(&pair, &content);
        }
    }
}

#[test]
fn a_short_checksum_alone_is_not_enough() {
    // One sector has no neighbour.
    let content = noise(14, SECTOR);
    for (kind, enough) in [
        (ChecksumKind::Crc32c, false),
        (ChecksumKind::XxHash64, true),
        (ChecksumKind::Sha256, true),
    ] {
        let pair = damaged(kind, Profile::Single, &content);
        let report = scrubbed(&pair, vec![elsewhere(&content)]);
        assert_eq!(report.is_clean(), enough, "{kind:?}");
        let other_path = Bytes {
            bytes: content.clone(),
            path: Some(b"other/x"),
            ..Bytes::default()
        };
        let report = scrubbed(&pair, vec![other_path]);
        assert_eq!(report.is_clean(), enough, "{kind:?}");
        let own = Bytes {
            bytes: content.clone(),
            path: Some(b"x"),
            ..Bytes::default()
        };
        assert!(scrubbed(&pair, vec![own]).is_clean(), "{kind:?}");
        assert_whole(&pair, &content);
    }
}

/// Other bytes that have the CRC-32C of a sector.
fn colliding(sector: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let sum = ChecksumKind::Crc32c.compute(bytes);
        !u32::from_le_bytes(sum.as_bytes().try_into().unwrap())
    };
    let (head, mut difference) = (SECTOR - 4, vec![0; SECTOR]);
    let plain = sum(&difference[..head]);
    difference[7] = 1;
    // The last bytes are added to the state of the sum, so they can take back any change of it.
    let last = sum(&difference[..head]) ^ plain;
    difference[head..].copy_from_slice(&last.to_le_bytes());
    let bytes = sector
        .iter()
        .zip(&difference)
        .map(|(one, other)| one ^ other);
    bytes.collect()
}

#[test]
fn other_bytes_with_the_checksum_are_not_taken() {
    let content = noise(15, 20 * SECTOR);
    let mut all = Vec::new();
    for sector in content.chunks(SECTOR) {
        let other = colliding(sector);
        let sum = |bytes: &[u8]| ChecksumKind::Crc32c.compute(bytes);
        assert!(other != sector && sum(&other) == sum(sector));
        // A neighbour of none.
        all.extend(noise(16, SECTOR));
        all.extend(other);
    }
    let pair = damaged(ChecksumKind::Crc32c, Profile::Single, &content);
    let report = scrubbed(&pair, vec![elsewhere(&all)]);
    assert_eq!(report.donated[0].sectors, 0, "{report:?}");
    let right = Bytes {
        bytes: content.clone(),
        ..Bytes::default()
    };
    let report = scrubbed(&pair, vec![elsewhere(&all), right]);
    assert!(report.is_clean(), "{report:?}");
    assert_whole(&pair, &content);
}

#[test]
fn a_donor_that_fails_repairs_what_it_had() {
    let content = noise(17, 20 * SECTOR);
    let pair = damaged(ChecksumKind::Crc32c, Profile::Single, &content);
    let half = Bytes {
        bytes: content[..10 * SECTOR].to_vec(),
        fails: true,
        ..Bytes::default()
    };
    let report = scrubbed(&pair, vec![half]);
    let expected = Donated {
        sectors: 10,
        error: Some("cut short".to_owned()),
    };
    assert_eq!(report.donated, [expected]);
    assert!(!report.is_clean());
    let [repaired, lost] = &*report.files else {
        panic!("{report:?}");
    };
    assert_eq!((repaired.offset, repaired.donor), (0, Some(0)));
    assert_eq!((lost.offset, lost.repaired), (40_960, false));
}

#[test]
fn compressed_extents_come_from_an_older_image() {
    let device = filled_memory();
    let older = device.snapshot();
    let mut bytes = vec![0; SIZE as usize];
    older.read_at(0, &mut bytes).unwrap();
    // The file `text` is compressed, and near the file `noise` that was written before it.
    let from = place(&device, &noise(4, 50_000)).start;
    let spoiled: Vec<u64> = (from..from + (1 << 20)).step_by(SECTOR).collect();
    for at in &spoiled {
        device.write_at(*at, &[0xEE; SECTOR]).unwrap();
    }
    let devices = [any(&device)];
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let lost = scrub(&devices, &ScrubOptions::default(), go_on).unwrap();
    assert!(!lost.is_clean() && lost.files.len() > 2, "{lost:?}");
    let donor: Box<dyn Donor> = Box::new(Bytes {
        bytes,
        ..Bytes::default()
    });
    let report = scrub_with(&devices, &ScrubOptions::default(), &mut [donor], go_on).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(report.donated[0].sectors > 20, "{report:?}");
    let fs = super::relocation::open(&devices).unwrap();
    verify(&fs);
    fs.unmount().unwrap();
}

#[test]
fn a_scrub_that_repairs_nothing_reads_no_donor() {
    let content = noise(18, 4 * SECTOR);
    let pair = damaged(ChecksumKind::Crc32c, Profile::Single, &content);
    let devices: [Arc<dyn Device>; 2] = pair.each_ref().map(any);
    let only = ScrubOptions {
        read_only: true,
        ..ScrubOptions::default()
    };
    let donor: Box<dyn Donor> = Box::new(Bytes {
        bytes: content,
        ..Bytes::default()
    });
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let report = scrub_with(&devices, &only, &mut [donor], go_on).unwrap();
    assert!(report.donated.is_empty() && !report.is_clean());
}
