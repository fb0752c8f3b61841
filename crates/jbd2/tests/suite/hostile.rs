//! Invented and damaged logs: whatever the blocks contain, a recovery ends, either with an error
//! that wrote nothing or with a replay of blocks that may be written.

use std::sync::Arc;

use crate::common::{BLOCK, BLOCKS, FORMS, formatted, layout, load, open, put};
use proptest::prelude::*;
use sapwood_block::{Device, MemoryDevice};
use sapwood_jbd2::{Error, Incompat, Log};

const LOG: u64 = 70;
const MAGIC: [u8; 4] = 0xC03B_3998u32.to_be_bytes();

/// A device with some committed transactions and a revoke, whose log wraps.
fn written(form: Incompat) -> MemoryDevice {
    let device = Arc::new(formatted(LOG));
    let journal = open(device.clone(), LOG, form);
    for round in 0..60 {
        put(&journal, round % 9, round as u8);
        put(&journal, 20 + round % 7, round as u8);
        if round % 5 == 4 {
            let handle = journal.start(1).unwrap();
            handle.forget(20 + round % 7).unwrap();
        }
        if round % 2 == 1 {
            journal.commit_all().unwrap();
        }
    }
    assert!(journal.counters().checkpoints > 0);
    device.snapshot()
}

/// Offset on the device of a byte of the journal.
fn offset(byte: u64) -> u64 {
    let (block, _) = layout(LOG).find(byte / u64::from(BLOCK)).unwrap();
    block * u64::from(BLOCK) + byte % u64::from(BLOCK)
}

/// Recovers, and asserts that the result is allowed.
fn check_recovery(device: MemoryDevice) -> Result<(), TestCaseError> {
    let device = Arc::new(device);
    let before = device.snapshot();
    let log = match Log::load(device.clone(), layout(LOG), BLOCK) {
        Ok(log) => log,
        Err(_) => {
            prop_assert_eq!(device.first_difference(&before), None);
            return Ok(());
        }
    };
    let allowed = |block: u64| block != 1;
    match log.recover(&allowed) {
        Ok(recovery) => {
            prop_assert!(recovery.blocks <= LOG);
            let again = load(device.clone(), LOG);
            prop_assert!(!again.needs_recovery());
            let mut kept = [[0; BLOCK as usize]; 2];
            before.read_at(u64::from(BLOCK), &mut kept[0]).unwrap();
            device.read_at(u64::from(BLOCK), &mut kept[1]).unwrap();
            prop_assert_eq!(kept[0], kept[1]);
        }
        Err(Error::Corrupt { .. } | Error::Target { .. }) => {
            prop_assert_eq!(device.first_difference(&before), None);
        }
        Err(other) => prop_assert!(false, "{other}"),
    }
    Ok(())
}

/// A piece of an invented log.
#[derive(Debug, Clone)]
enum Piece {
    /// A block of the journal itself: kind, distance of its sequence number, contents.
    Own(u32, u32, Vec<u8>),
    Noise(Vec<u8>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let words = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        // Tags and records with small numbers.
        prop::collection::vec(prop_oneof![Just(0u8), Just(8), 0..20u8], 0..1012),
    ];
    prop_oneof![
        8 => (1..7u32, prop_oneof![9 => Just(0u32), 1 => 0..3u32], words)
            .prop_map(|(kind, off, rest)| Piece::Own(kind, off, rest)),
        1 => prop::collection::vec(any::<u8>(), 1..64).prop_map(Piece::Noise),
    ]
}

fn compose(pieces: &[Piece], form: Incompat) -> MemoryDevice {
    let device = written(form);
    let mut sequence = [0; 4];
    device.read_at(offset(0x18), &mut sequence).unwrap();
    let mut sequence = u32::from_be_bytes(sequence);
    let mut start = [0; 4];
    device.read_at(offset(0x1c), &mut start).unwrap();
    let start = u64::from(u32::from_be_bytes(start));
    for (index, piece) in (0..).zip(pieces) {
        let mut block = vec![0; BLOCK as usize];
        match piece {
            Piece::Own(kind, off, rest) => {
                block[..4].copy_from_slice(&MAGIC);
                block[4..8].copy_from_slice(&kind.to_be_bytes());
                block[8..12].copy_from_slice(&(sequence + off).to_be_bytes());
                block[12..12 + rest.len()].copy_from_slice(rest);
                sequence += u32::from(*kind == 2);
            }
            Piece::Noise(bytes) => block[..bytes.len()].copy_from_slice(bytes),
        }
        let at = 1 + (start - 1 + index) % (LOG - 1);
        device
            .write_at(offset(at * u64::from(BLOCK)), &block)
            .unwrap();
    }
    device
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn made_up_logs(pieces in prop::collection::vec(piece(), 1..80), form in 0..6usize) {
        check_recovery(compose(&pieces, FORMS[form]))?;
    }

    #[test]
    fn changed_logs(
        changes in prop::collection::vec((0..LOG * u64::from(BLOCK), any::<u8>()), 1..8),
        form in 0..6usize,
    ) {
        let device = written(FORMS[form]);
        for (at, value) in changes {
            device.write_at(offset(at), &[value]).unwrap();
        }
        check_recovery(device)?;
    }

    #[test]
    fn changed_words(
        changes in prop::collection::vec((0..LOG, 0..32u64, any::<u32>()), 1..4),
        form in 0..6usize,
    ) {
        let device = written(FORMS[form]);
        for (block, word, value) in changes {
            let at = offset(block * u64::from(BLOCK) + word * 4);
            device.write_at(at, &value.to_be_bytes()).unwrap();
        }
        check_recovery(device)?;
    }

    #[test]
    fn superblocks(fields in prop::collection::vec((0..0x60u64, any::<u8>()), 0..6)) {
        let device = written(Incompat::empty());
        for (at, value) in fields {
            device.write_at(offset(at), &[value]).unwrap();
        }
        check_recovery(device)?;
    }
}

/// A log in the plain form whose one transaction has a block for `target`.
fn one_target(target: u32) -> Error {
    let device = written(Incompat::empty());
    let mut start = [0; 4];
    device.read_at(offset(0x1c), &mut start).unwrap();
    let block = u64::from(u32::from_be_bytes(start)) * u64::from(BLOCK);
    device
        .write_at(offset(block + 12), &target.to_be_bytes())
        .unwrap();
    let before = device.snapshot();
    let device = Arc::new(device);
    let err = load(device.clone(), LOG).recover(&|_| true).unwrap_err();
    assert_eq!(device.first_difference(&before), None);
    err
}

#[test]
fn targets_in_the_journal_or_off_the_device_are_refused() {
    let journal = layout(LOG).find(0).unwrap().0;
    for target in [journal, journal + 5, BLOCKS, u64::from(u32::MAX)] {
        let err = one_target(target as u32);
        assert!(
            matches!(err, Error::Target { target: seen, .. } if seen == target),
            "{err}"
        );
    }
}

#[test]
fn damage_before_the_last_commit_is_an_error_in_each_checksummed_form() {
    for form in FORMS
        .into_iter()
        .filter(|form| form.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3))
    {
        let device = written(form);
        let log = load(Arc::new(device.snapshot()), LOG);
        let plan = log.scan(&|_| true).unwrap();
        let all = plan.transactions();
        let (first, last) = (all[0], all[all.len() - 1]);
        assert!(all.len() > 3);
        let mut errors = 0;
        let mut block = first.block;
        while block != last.block {
            // Within the magic of the journal's own blocks, and after it.
            for byte in [1, 40] {
                let broken = device.snapshot();
                let at = offset(block * u64::from(BLOCK) + byte);
                let mut value = [0];
                broken.read_at(at, &mut value).unwrap();
                broken.write_at(at, &[value[0] ^ 0x10]).unwrap();
                let err = load(Arc::new(broken), LOG).scan(&|_| true).unwrap_err();
                assert!(matches!(err, Error::Corrupt { .. }), "{form:?}: {err}");
                errors += 1;
            }
            block = if block + 1 == LOG { 1 } else { block + 1 };
        }
        assert!(errors > 10);
    }
}
