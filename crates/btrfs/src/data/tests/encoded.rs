//! Encoded writes: what the tree and the log get, and the content that readers see.

use sapwood_btrfs_format::compression as id;
use sapwood_testing::device::{Fault, FaultDevice, FaultRule, RequestKinds};
use sapwood_vfs::{CopyMode, FileSystem as _, SyncKind};

use super::*;
use crate::check::{CheckOptions, check};
use crate::compression::Compression;
use crate::data::compress::compress;
use crate::data::{EncodedExtent, copy_range, truncate, write_encoded};
use crate::mount::Btrfs;

/// Bytes that become about half as long.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| b'a' + random.u8(..14)).collect()
}

/// Words from a short list, which every algorithm finds.
fn words(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let list: Vec<[u8; 8]> = (0..64).map(|_| random.u64(..).to_le_bytes()).collect();
    let mut all = Vec::new();
    while all.len() < len {
        all.extend(list[random.usize(..64)]);
    }
    all.truncate(len);
    all
}

fn packed(how: Compression, bytes: &[u8]) -> Vec<u8> {
    compress(how, bytes, bytes.len(), 4096).unwrap()
}

/// A whole extent of `plain` at `offset`.
fn whole<'a>(offset: u64, plain: &[u8], how: Compression, stored: &'a [u8]) -> EncodedExtent<'a> {
    EncodedExtent {
        offset,
        len: plain.len() as u64,
        extent_len: plain.len() as u64,
        extent_offset: 0,
        compression: how.id(),
        stored,
    }
}

fn encode(engine: &Arc<Engine>, file: &Arc<Inode>, extent: &EncodedExtent<'_>) -> Result<bool> {
    let _io = file.io.write();
    write_encoded(engine, file, extent)
}

const ZSTD: Compression = Compression::Zstd(3);
const ALL: [Compression; 3] = [Compression::Zlib(3), Compression::Lzo, ZSTD];

/// Everything is durable: the image is consistent and has these files.
fn synced(engine: &Arc<Engine>, image: &MemoryDevice, files: &[(&Arc<Inode>, &[u8])]) {
    crate::mount::sync(engine).unwrap();
    consistent(image, files);
}

/// The image as a power cut leaves it now, after its recovery, is consistent and has these files.
fn consistent(image: &MemoryDevice, files: &[(&Arc<Inode>, &[u8])]) {
    let device = Arc::new(image.snapshot());
    let fs = Btrfs::open(vec![device.clone() as Arc<dyn Device>], Options::default()).unwrap();
    for (inode, expected) in files {
        // The tests create `f`, and then `g`.
        let name: &[u8] = if inode.objectid == 257 { b"f" } else { b"g" };
        let file = fs.lookup(fs.root(), name).unwrap();
        let mut found = vec![0; expected.len() + 10_000];
        let len = fs.read(file.attr.ino, 0, &mut found).unwrap();
        assert!(found[..len] == **expected, "{inode:?}: {len} bytes");
    }
    fs.sync().unwrap();
    fs.close().unwrap();
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 10,
    };
    let report = check(&[&*device], &options, &mut |_| ()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn an_extent_is_stored_as_it_comes() {
    for how in ALL {
        let gate = device(&MkfsOptions::default());
        let engine = open(&gate);
        let file = create(&engine, b"f");
        let plain = words(131_072, 1);
        let bytes = packed(how, &plain);
        assert!(encode(&engine, &file, &whole(4096, &plain, how, &bytes)).unwrap());
        let expected = [vec![0; 4096], plain.clone()].concat();
        // From memory, and from the tree.
        for _ in 0..2 {
            assert!(read(&engine, &file, 0, 200_000).unwrap() == expected);
            flush_complete(&engine, &file).unwrap();
        }
        let found = stored(&engine, &file, 4096);
        assert_eq!(found.disk_len, (bytes.len() as u64).next_multiple_of(4096));
        assert_eq!((found.ram_len, found.compression), (131_072, how.id()));
        let mut on_disk = vec![0; bytes.len()];
        let mirror = engine.volume.readable(found.bytenr, 4096).unwrap().first();
        engine
            .volume
            .read(found.bytenr, &mut on_disk, mirror.unwrap())
            .unwrap();
        assert!(on_disk == bytes);
        assert_eq!(file.state.lock().nbytes, 131_072);
        synced(&engine, gate.inner(), &[(&file, &expected)]);
        let feature = match how {
            Compression::Zlib(_) => Incompat::empty(),
            Compression::Lzo => Incompat::COMPRESS_LZO,
            Compression::Zstd(_) => Incompat::COMPRESS_ZSTD,
        };
        let again = reopen(&gate);
        assert!(again.incompat.contains(feature), "{how:?}");
    }
}

#[test]
fn a_small_file_stays_inline() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    let plain = text(3000, 2);
    let bytes = packed(ZSTD, &plain);
    assert!(encode(&engine, &file, &whole(0, &plain, ZSTD, &bytes)).unwrap());
    assert!(read(&engine, &file, 0, 5000).unwrap() == plain);
    let content = items::find(&engine, &file, 0).unwrap().content;
    assert_eq!(content, Content::Inline);
    synced(&engine, gate.inner(), &[(&file, &plain)]);
    // Data that follows makes it an extent.
    let more = text(65_536, 3);
    let bytes = packed(ZSTD, &more);
    let later = whole(8192, &more, ZSTD, &bytes);
    assert!(!encode(&engine, &file, &later).unwrap());
    write(&engine, &file, 8192, &more);
    let expected = [plain, vec![0; 5192], more].concat();
    synced(&engine, gate.inner(), &[(&file, &expected)]);
}

#[test]
fn part_of_an_extent_is_stored_with_the_whole() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    let plain = words(100_001, 4);
    let bytes = packed(Compression::Lzo, &plain);
    let mut part = whole(8192, &plain, Compression::Lzo, &bytes);
    (part.extent_offset, part.len) = (40_960, 50_001);
    assert!(encode(&engine, &file, &part).unwrap());
    let mut expected = [&[0; 8192][..], &plain[40_960..90_961]].concat();
    assert!(read(&engine, &file, 0, 200_000).unwrap() == expected);
    synced(&engine, gate.inner(), &[(&file, &expected)]);
    // Growth shows zeros, although the extent has more bytes.
    {
        let _io = file.io.write();
        truncate(&engine, &file, 70_000).unwrap();
    }
    expected.resize(70_000, 0);
    synced(&engine, gate.inner(), &[(&file, &expected)]);
    // A cut within it, twice the same write over that, and bytes in its middle.
    {
        let _io = file.io.write();
        truncate(&engine, &file, 30_000).unwrap();
    }
    expected.truncate(30_000);
    synced(&engine, gate.inner(), &[(&file, &expected)]);
    for _ in 0..2 {
        assert!(encode(&engine, &file, &part).unwrap());
    }
    let mut expected = [&[0; 8192][..], &plain[40_960..90_961]].concat();
    write(&engine, &file, 20_000, &[b'x'; 10_000]);
    expected[20_000..30_000].fill(b'x');
    assert!(read(&engine, &file, 0, 200_000).unwrap() == expected);
    synced(&engine, gate.inner(), &[(&file, &expected)]);
}

#[test]
fn it_replaces_what_is_in_memory_and_is_shared_by_clones() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let (file, copy) = (create(&engine, b"f"), create(&engine, b"g"));
    write(&engine, &file, 0, &[b'o'; 200_000]);
    let plain = text(65_536, 5);
    let bytes = packed(ZSTD, &plain);
    let extent = whole(65_536, &plain, ZSTD, &bytes);
    assert!(encode(&engine, &file, &extent).unwrap());
    let mut expected = vec![b'o'; 200_000];
    expected[65_536..131_072].copy_from_slice(&plain);
    {
        let _io = (file.io.write(), copy.io.write());
        copy_range(&engine, &file, 0, &copy, 0, 0, CopyMode::Any).unwrap();
    }
    assert!(read(&engine, &copy, 0, 300_000).unwrap() == expected);
    let place = |file| stored(&engine, file, 65_536).bytenr;
    assert_eq!(place(&file), place(&copy));
    // The clone keeps the extent when the file gets another.
    let other = text(65_536, 6);
    let bytes = packed(ZSTD, &other);
    let again = whole(65_536, &other, ZSTD, &bytes);
    assert!(encode(&engine, &file, &again).unwrap());
    let mut changed = expected.clone();
    changed[65_536..131_072].copy_from_slice(&other);
    synced(
        &engine,
        gate.inner(),
        &[(&file, &changed), (&copy, &expected)],
    );
}

#[test]
fn fsync_right_after_it_logs_it() {
    for held in [true, false] {
        let gate = device(&MkfsOptions::default());
        let engine = open(&gate);
        let (file, small) = (create(&engine, b"f"), create(&engine, b"g"));
        crate::mount::sync(&engine).unwrap();
        let (plain, short) = (text(131_072, 7), text(2000, 8));
        let bytes = packed(ZSTD, &plain);
        // The completion runs after the fsync.
        engine.writeback.hold_completions(held);
        let mut part = whole(0, &plain, ZSTD, &bytes);
        (part.extent_offset, part.len) = (65_536, 65_000);
        assert!(encode(&engine, &file, &part).unwrap());
        let bytes = packed(ZSTD, &short);
        assert!(encode(&engine, &small, &whole(0, &short, ZSTD, &bytes)).unwrap());
        crate::mount::fsync(&engine, &file, SyncKind::All).unwrap();
        crate::mount::fsync(&engine, &small, SyncKind::All).unwrap();
        let logs = engine
            .counters
            .fast_fsyncs
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(logs, 2);
        let files: [(&Arc<Inode>, &[u8]); 2] = [(&file, &plain[65_536..130_536]), (&small, &short)];
        consistent(gate.inner(), &files);
        engine.writeback.hold_completions(false);
        synced(&engine, gate.inner(), &files);
    }
}

#[test]
fn a_reader_waits_for_its_completion() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    let plain = text(131_072, 9);
    let bytes = packed(ZSTD, &plain);
    engine.writeback.hold_completions(true);
    assert!(encode(&engine, &file, &whole(0, &plain, ZSTD, &bytes)).unwrap());
    assert!(!has_item(&engine, &file, 0));
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&engine, &file, 1000, 5000).unwrap());
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!reader.is_finished());
        engine.writeback.hold_completions(false);
        assert!(reader.join().unwrap() == plain[1000..6000]);
    });
}

#[test]
fn impossible_claims_are_not_taken() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'o'; 300_000]);
    let plain = text(131_072, 10);
    let bytes = packed(ZSTD, &plain);
    let good = whole(0, &plain, ZSTD, &bytes);
    let long = vec![1; 131_072];
    let wrong = [
        EncodedExtent { offset: 1, ..good },
        EncodedExtent { len: 0, ..good },
        EncodedExtent { len: 5000, ..good },
        EncodedExtent {
            len: 135_168,
            ..good
        },
        EncodedExtent {
            extent_len: 131_073,
            ..good
        },
        EncodedExtent {
            extent_len: 65_536,
            ..good
        },
        EncodedExtent {
            extent_len: u64::MAX,
            ..good
        },
        EncodedExtent {
            extent_offset: 4096,
            ..good
        },
        EncodedExtent {
            extent_offset: 1,
            len: 4096,
            ..good
        },
        EncodedExtent {
            extent_offset: u64::MAX - 4095,
            ..good
        },
        EncodedExtent {
            offset: u64::MAX - 4095,
            ..good
        },
        EncodedExtent {
            compression: id::NONE,
            ..good
        },
        EncodedExtent {
            compression: 77,
            ..good
        },
        EncodedExtent {
            stored: &[],
            ..good
        },
        EncodedExtent {
            stored: &long,
            ..good
        },
        EncodedExtent {
            stored: &long[..130_000],
            ..good
        },
    ];
    for extent in &wrong {
        let taken = encode(&engine, &file, extent).unwrap();
        let EncodedExtent { stored, .. } = extent;
        assert!(!taken, "{} bytes of {extent:?}", stored.len());
    }
    file.state
        .lock()
        .flags
        .insert(sapwood_btrfs_format::InodeFlags::NODATASUM);
    assert!(!encode(&engine, &file, &good).unwrap());
    file.state
        .lock()
        .flags
        .remove(sapwood_btrfs_format::InodeFlags::NODATASUM);
    synced(&engine, gate.inner(), &[(&file, &[b'o'; 300_000])]);
}

/// Bytes that do not expand are an error of each read, and of nothing else.
#[test]
fn damaged_bytes_are_unreadable() {
    for how in ALL {
        let gate = device(&MkfsOptions::default());
        let engine = open(&gate);
        let file = create(&engine, b"f");
        let junk = vec![0xa5; 9000];
        assert!(encode(&engine, &file, &whole(0, &[0; 65_536], how, &junk)).unwrap());
        let short = whole(0, &[0; 3000], how, &junk[..100]);
        let small = create(&engine, b"g");
        assert!(encode(&engine, &small, &short).unwrap());
        for _ in 0..2 {
            for file in [&file, &small] {
                let error = read(&engine, file, 0, 10).unwrap_err();
                assert!(matches!(error, Error::Compressed { .. }), "{error}");
            }
            flush_complete(&engine, &file).unwrap();
        }
        synced(&engine, gate.inner(), &[]);
    }
}

#[test]
fn a_full_file_system_refuses_it() {
    let gate = GateDevice::new(MemoryDevice::new(128 << 20));
    mkfs(&gate, &MkfsOptions::default()).unwrap();
    let gate = Arc::new(gate);
    let engine = open(&gate);
    let file = create(&engine, b"f");
    let plain = text(131_072, 11);
    let bytes = packed(Compression::Zlib(3), &plain);
    let mut at = 0;
    let refused = loop {
        let extent = whole(at, &plain, Compression::Zlib(3), &bytes);
        match encode(&engine, &file, &extent) {
            Ok(true) => at += 131_072,
            refused => break refused,
        }
    };
    // The rest of the space is in pieces that are too short, or there is none.
    assert!(matches!(refused, Ok(false) | Err(Error::NoSpace)));
    assert!(at > 32 << 20, "{at}");
    assert_eq!(file.state.lock().size, at);
    let expected = plain.repeat((at / 131_072) as usize);
    synced(&engine, gate.inner(), &[(&file, &expected)]);
}

/// The host refuses the bytes: the file keeps its content, also in the log.
#[test]
fn a_full_host_leaves_the_old_content() {
    let image = Arc::new(MemoryDevice::new(256 << 20));
    mkfs(&*image, &MkfsOptions::default()).unwrap();
    let device = Arc::new(FaultDevice::new(Arc::clone(&image)));
    let options = Options {
        background: false,
        ..Options::default()
    };
    let (engine, _) = Engine::open(vec![device.clone() as Arc<dyn Device>], options).unwrap();
    let file = create(&engine, b"f");
    crate::mount::sync(&engine).unwrap();
    let old = text(131_072, 12);
    let bytes = packed(ZSTD, &old);
    assert!(encode(&engine, &file, &whole(0, &old, ZSTD, &bytes)).unwrap());
    flush_complete(&engine, &file).unwrap();
    let plain = text(131_072, 13);
    let how = Compression::Zlib(3);
    let new = packed(how, &plain);
    // The first byte of zlib's header is in no tree block of this image.
    let rule = FaultRule::new(RequestKinds::WRITE, 1, Fault::NoSpace);
    device.arm(rule.of_bytes(|bytes| bytes.first() == Some(&0x78) && bytes.len() > 65_536));
    let extent = whole(65_536, &plain, how, &new);
    let error = encode(&engine, &file, &extent).unwrap_err();
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert_eq!(device.fired(), 1);
    assert_eq!(file.data.pending_bytes(), 0);
    assert!(read(&engine, &file, 0, 200_000).unwrap() == old);
    crate::mount::fsync(&engine, &file, SyncKind::All).unwrap();
    consistent(&image, &[(&file, &old)]);
    assert!(encode(&engine, &file, &extent).unwrap());
    let expected = [&old[..65_536], &plain].concat();
    synced(&engine, &image, &[(&file, &expected)]);
}
