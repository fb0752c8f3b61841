//! The order of writes: requests that must be on disk, or must not be written, before another.

use sapwood_btrfs_format::BlockGroupFlags;
use sapwood_testing::device::RecordedRequest;

use super::*;

/// Bytes of a tree block.
const NODE: usize = 16 << 10;

/// Logical addresses of the log tree blocks in a request.
fn log_blocks(data: &[u8]) -> impl Iterator<Item = u64> {
    let field = |block: &[u8], at: usize| {
        let bytes = block
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let blocks = data.chunks_exact(NODE);
    blocks
        .filter(move |block| field(block, 88) == objectid::TREE_LOG)
        .map(move |block| field(block, 48))
}

fn is_log_block(request: &Request<'_>) -> bool {
    log_blocks(request.bytes.unwrap_or_default())
        .next()
        .is_some()
}

/// The log tree blocks that were written from `position` on.
fn logged_since(gate: &Gate, position: usize) -> Vec<u64> {
    let log = gate.inner().log();
    let blocks = |entry: &RecordedRequest| match &entry.action {
        Action::Write { data, .. } => log_blocks(data).collect(),
        _ => Vec::new(),
    };
    let entries = log.entries().iter().skip(position);
    entries.flat_map(blocks).collect()
}

fn held(gate: &Gate, kind: RequestKind) -> usize {
    let held = gate.held().into_iter();
    held.filter(|held| held.kind == kind).count()
}

#[test]
fn the_superblock_of_a_log_waits_for_that_of_the_commit() {
    let (gate, _) = gate();
    let fs = open(gate.clone()).unwrap();
    write(&fs, create(&fs, b"first"), &[1; 50_000]);
    let second = create(&fs, b"second");
    gate.hold_if(|request| is_super(request.offset, request.kind));
    let early = thread::scope(|scope| {
        scope.spawn(|| fs.sync().unwrap());
        gate.wait_held(1);
        write(&fs, second, &[2; 50_000]);
        let fsync = scope.spawn(|| fs.fsync(second, SyncKind::All).unwrap());
        // It waits for the lock, unless it passes by it and is held at the gate.
        let order = &fs.engine.transactions.superblock_order;
        until(|| order.blocked() == 1 || held(&gate, RequestKind::Fua) == 2 || fsync.is_finished());
        let early = held(&gate, RequestKind::Fua) - 1;
        gate.open();
        early
    });
    assert_eq!(early, 0, "superblocks beside that of the commit");
    assert_eq!(counter(&fs, "fast_fsyncs"), 1);
}

#[test]
fn a_log_waits_for_the_blocks_of_the_log_before() {
    let (gate, base) = gate();
    let fs = open(gate.clone()).unwrap();
    let files = [create(&fs, b"a"), create(&fs, b"b")];
    fs.sync().unwrap();
    for ino in files {
        write(&fs, ino, &[5; 9000]);
    }
    gate.hold_if(is_log_block);
    let early = thread::scope(|scope| {
        let fsync = |ino: Ino| {
            let (fs, gate) = (&fs, &gate);
            move || {
                fs.fsync(ino, SyncKind::All).unwrap();
                gate.inner().mark(format!("{}", ino.0));
            }
        };
        scope.spawn(fsync(files[0]));
        gate.wait_held(1);
        gate.hold_if(|request| request.kind == RequestKind::Flush);
        scope.spawn(fsync(files[1]));
        let trans = fs.engine.join().unwrap().trans().clone();
        let state = &TransactionLog::of(&trans).state;
        until(|| state.asleep() == 1 || held(&gate, RequestKind::Flush) > 0);
        let early = held(&gate, RequestKind::Flush);
        gate.open();
        early
    });
    assert_eq!(
        early, 0,
        "flushes before the blocks of the first log are written"
    );
    every_cut(&gate, &base, |after, marks| {
        for (name, ino) in [b"a", b"b"].into_iter().zip(files) {
            if marks.contains(&format!("{}", ino.0)) {
                assert!(content(after, name) == Some(vec![5; 9000]));
            }
        }
    });
}

#[test]
fn blocks_of_the_durable_log_are_not_free_before_the_next_is_durable() {
    let (gate, _) = gate();
    let fs = open(gate.clone()).unwrap();
    let ino = create(&fs, b"f");
    fs.sync().unwrap();
    let position = gate.inner().log().entries().len();
    write(&fs, ino, b"1");
    fs.fsync(ino, SyncKind::All).unwrap();
    let first = logged_since(&gate, position);
    assert!(!first.is_empty());
    write(&fs, ino, b"2");
    gate.hold_if(|request| is_super(request.offset, request.kind));
    let space = &fs.engine.space;
    let take = |bytenr: &&u64| {
        let taken = space.take_exactly(**bytenr, NODE as u64, BlockGroupFlags::METADATA);
        taken.is_ok()
    };
    let early = thread::scope(|scope| {
        scope.spawn(|| fs.fsync(ino, SyncKind::All).unwrap());
        gate.wait_held(1);
        let early = first.iter().filter(take).count();
        gate.open();
        early
    });
    assert_eq!(early, 0, "blocks of the durable log that are free");
    assert!(first.iter().filter(take).count() > 0, "none comes back");
}

#[test]
fn a_commit_shows_no_less_of_a_file_than_the_log_before_it() {
    let memory = Arc::new(formatted());
    let fs = open(memory.clone()).unwrap();
    let ino = create(&fs, b"f");
    fs.sync().unwrap();
    // A hole, and data after it.
    let data = [7; 100_000];
    fs.write(ino, 8192, &data, WriteMode::default()).unwrap();
    fs.engine.writeback.hold_completions(true);
    fs.fsync(ino, SyncKind::All).unwrap();
    // The tree lacks the first bytes now: the completion alone would not raise the size.
    write(&fs, ino, &[8; 10]);
    fs.engine.writeback.hold_completions(false);
    fs.engine.commit(None).unwrap();
    let after = open(Arc::new(memory.snapshot())).unwrap();
    let found = content(&after, b"f").unwrap();
    assert_eq!(found.len(), 108_192);
    assert!(found[8192..].iter().all(|byte| *byte == 7));
}

#[test]
fn an_fsync_waits_for_the_commit_that_has_its_changes() {
    let (gate, _) = gate();
    let fs = open(gate.clone()).unwrap();
    let ino = create(&fs, b"f");
    write(&fs, ino, &[1; 50_000]);
    gate.hold_if(|request| is_super(request.offset, request.kind));
    let early = thread::scope(|scope| {
        scope.spawn(|| fs.sync().unwrap());
        gate.wait_held(1);
        let fsync = scope.spawn(|| fs.fsync(ino, SyncKind::All).unwrap());
        until(|| fsync.is_finished() || fs.engine.transactions.sleepers() > 0);
        let early = fsync.is_finished();
        gate.open();
        early
    });
    assert!(!early);
}

#[test]
fn superblocks_are_written_through_after_a_flush() {
    let (gate, _) = gate();
    let fs = open(gate.clone()).unwrap();
    let ino = create(&fs, b"f");
    fs.sync().unwrap();
    write(&fs, ino, b"1");
    fs.fsync(ino, SyncKind::All).unwrap();
    let log = gate.inner().log();
    let entries = log.entries();
    let is_super = |nth: &usize| super_of(&entries[*nth]).is_some();
    let supers: Vec<usize> = (0..entries.len()).filter(is_super).collect();
    assert_eq!(supers.len(), 2);
    for nth in supers {
        assert!(matches!(
            &entries[nth].action,
            Action::Write { fua: true, .. }
        ));
        assert_eq!(entries[nth - 1].action, Action::Flush);
    }
}
