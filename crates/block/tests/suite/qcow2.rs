//! The disks in qcow2 files: qemu reads files that this crate writes, and the other way round;
//! power cuts; hostile files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use sapwood_block::{
    Device, DiskFormat, Error, FileDevice, MemoryDevice, OpenOptions, Operand, Qcow2Device,
    Qcow2Error, create_qcow2,
};
use sapwood_testing::RecordDevice;
use sapwood_testing::machine::{Need, left_out};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Runs qemu-img; `None` if it is not installed. Leaks are status 3 of a check.
fn qemu_img(args: &[&str]) -> Option<(i32, String)> {
    let run = Command::new("qemu-img")
        .args(args)
        .stdin(Stdio::null())
        .output();
    let out = run.ok()?;
    let text = [out.stdout, out.stderr].concat();
    let status = out.status.code().unwrap_or(-1);
    Some((status, String::from_utf8_lossy(&text).into_owned()))
}

fn has_qemu() -> bool {
    !left_out(&[Need::Program("qemu-img")])
}

fn expect(args: &[&str]) {
    let (status, text) = qemu_img(args).unwrap();
    assert_eq!(status, 0, "{args:?}: {text}");
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    fn open(&self, name: &str) -> Result<Qcow2Device, Error> {
        open(&self.at(name))
    }

    /// qemu finds no damage, and the disk has the model's content.
    fn judged_by_qemu(&self, name: &str, model: &MemoryDevice) {
        let (disk, raw) = (self.text(name), self.text("raw"));
        model.save(&raw).unwrap();
        expect(&["check", "-q", &disk]);
        let formats = ["-f", "qcow2", "-F", "raw"];
        expect(&[&["compare", "-q"], &formats[..], &[&disk, &raw]].concat());
    }
}

fn open(path: &Path) -> Result<Qcow2Device, Error> {
    let file = FileDevice::open(path, OpenOptions::default())?;
    Qcow2Device::open(Arc::new(file), None)
}

/// Writes, discards and flushes of any alignment, the same to two devices.
fn scribble(random: &mut fastrand::Rng, rounds: usize, devices: [&dyn Device; 2]) {
    let size = devices[1].size();
    for _ in 0..rounds {
        let len = match random.u32(..4) {
            0 => 512 * random.u64(1..8),
            1 => 4096 * random.u64(1..40),
            _ => 512 * random.u64(1..400),
        };
        let at = random.u64(..(size - len) / 512) * 512;
        if random.u32(..12) == 0 {
            devices[0].flush().unwrap();
            continue;
        }
        let mut bytes = vec![0; len as usize];
        if random.u32(..8) > 0 {
            random.fill(&mut bytes);
        }
        for device in devices {
            match len % 1024 {
                0 => device.write_fua(at, &bytes).unwrap(),
                _ => device.write_at(at, &bytes).unwrap(),
            }
        }
    }
}

fn same(one: &dyn Device, two: &dyn Device) {
    assert_eq!(one.size(), two.size());
    let (mut a, mut b) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    let mut at = 0;
    while at < one.size() {
        let len = MIB.min(one.size() - at) as usize;
        one.read_at(at, &mut a[..len]).unwrap();
        two.read_at(at, &mut b[..len]).unwrap();
        assert!(a[..len] == b[..len], "they differ in the MiB at {at}");
        at += len as u64;
    }
}

#[test]
fn qemu_reads_what_is_written() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let size = 40 * MIB + 512 * 5;
    let made = FileDevice::create(files.at("made"), 0).unwrap();
    create_qcow2(&made, size).unwrap();
    drop(made);
    let forms: [(&str, &[&str]); 5] = [
        ("made", &[]),
        // Its table of counts has to grow.
        ("tiny", &["-o", "cluster_size=512"]),
        ("usual", &["-o", "compat=1.1"]),
        ("small", &["-o", "cluster_size=512,refcount_bits=1"]),
        ("old", &["-o", "compat=0.10,cluster_size=4096"]),
    ];
    for (name, args) in forms {
        if name != "made" {
            let create = ["create", "-q", "-f", "qcow2"];
            let (path, size) = (files.text(name), size.to_string());
            expect(&[&create, args, &[&path, &size]].concat());
        }
        let model = MemoryDevice::new(size);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..3 {
            let disk = files.open(name).unwrap();
            scribble(&mut random, 60, [&disk, &model]);
            same(&disk, &model);
            disk.discard(3 * MIB, 9 * MIB).unwrap();
            model.discard(3 * MIB, 9 * MIB).unwrap();
            // Clusters that a discard covers only in part stay.
            disk.write_at(3 * MIB, &vec![5; 9 << 20]).unwrap();
            model.write_at(3 * MIB, &vec![5; 9 << 20]).unwrap();
            disk.flush().unwrap();
        }
        files.judged_by_qemu(name, &model);
    }
}

#[test]
fn what_qemu_writes_is_read() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let model = MemoryDevice::new(20 * MIB);
    scribble(
        &mut fastrand::Rng::with_seed(3),
        80,
        [&model.snapshot(), &model],
    );
    model.write_at(9 * MIB, &vec![b'x'; 3 << 20]).unwrap();
    model.save(files.at("raw")).unwrap();
    let forms: [&[&str]; 4] = [
        &[],
        &["-c"],
        &["-c", "-o", "compression_type=zstd"],
        &["-c", "-o", "cluster_size=2M"],
    ];
    for args in forms {
        let convert = ["convert", "-q", "-f", "raw", "-O", "qcow2"];
        let (raw, path) = (files.text("raw"), files.text("disk"));
        expect(&[&convert, args, &[&raw, &path]].concat());
        let disk = files.open("disk").unwrap();
        same(&disk, &model);
        // Compressed clusters are written, too.
        let copy = model.snapshot();
        scribble(&mut fastrand::Rng::with_seed(9), 60, [&disk, &copy]);
        disk.flush().unwrap();
        same(&disk, &copy);
        drop(disk);
        expect(&["check", "-q", &path]);
    }
}

#[test]
fn clusters_of_a_snapshot_stay() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let path = files.text("disk");
    expect(&["create", "-q", "-f", "qcow2", &path, "20M"]);
    let before = MemoryDevice::new(20 * MIB);
    let disk = files.open("disk").unwrap();
    scribble(&mut fastrand::Rng::with_seed(1), 60, [&disk, &before]);
    drop(disk);
    expect(&["snapshot", "-c", "one", &path]);
    let after = before.snapshot();
    let disk = files.open("disk").unwrap();
    same(&disk, &after);
    scribble(&mut fastrand::Rng::with_seed(2), 60, [&disk, &after]);
    same(&disk, &after);
    drop(disk);
    expect(&["check", "-q", &path]);
    expect(&["snapshot", "-a", "one", &path]);
    same(&files.open("disk").unwrap(), &before);
}

#[test]
fn a_backing_file_is_used_only_if_the_caller_gives_it() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let base = MemoryDevice::new(8 * MIB);
    base.write_at(MIB, &vec![3; 4 << 20]).unwrap();
    base.save(files.at("base")).unwrap();
    let path = files.text("top");
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
    expect(&[&create[..], &[&files.text("base"), &path, "12M"]].concat());
    let refused = files.open("top").unwrap_err();
    let source = std::error::Error::source(&refused).unwrap();
    assert!(matches!(
        source.downcast_ref(),
        Some(Qcow2Error::Backing { name }) if *name == files.text("base")
    ));
    let file = FileDevice::open(files.at("top"), OpenOptions::default()).unwrap();
    let below = Arc::new(base.snapshot());
    let disk = Qcow2Device::open(Arc::new(file), Some(below)).unwrap();
    let model = base.resized(12 * MIB);
    same(&disk, &model);
    scribble(&mut fastrand::Rng::with_seed(4), 40, [&disk, &model]);
    // Discarded bytes are undefined, but never more than the backing disk shows.
    disk.discard(2 * MIB, MIB).unwrap();
    disk.flush().unwrap();
    for device in [&disk as &dyn Device, &model] {
        device.write_at(2 * MIB, &vec![9; 1 << 20]).unwrap();
    }
    same(&disk, &model);
    drop(disk);
    files.judged_by_qemu("top", &model);
}

#[test]
fn a_chain_of_backing_files_is_opened_on_demand_only() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let base = MemoryDevice::new(4 * MIB);
    base.write_at(MIB, &vec![3; 1 << 20]).unwrap();
    base.save(files.at("base")).unwrap();
    let create = ["create", "-q", "-f", "qcow2", "-F"];
    expect(&[&create[..], &["raw", "-b", "base", &files.text("middle")]].concat());
    let middle = files.text("middle");
    expect(&[&create[..], &["qcow2", "-b", &middle, &files.text("top")]].concat());
    let operand = |name: &str| Operand::parse(Path::new(&files.text(name))).unwrap();
    let refused = operand("top").open(OpenOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("--backing-files"), "{refused}");
    let disk = operand("top#backing=yes").open(OpenOptions::default());
    let disk = disk.unwrap();
    same(&*disk, &base);
    disk.write_at(MIB, &[9; 512]).unwrap();
    base.write_at(MIB, &[9; 512]).unwrap();
    same(&*disk, &base);
    // Files of the chain are locked against writers.
    let busy = FileDevice::open(files.at("base"), OpenOptions::default());
    assert!(matches!(busy, Err(Error::Busy { .. })));
    drop(disk);
    expect(&["check", "-q", &files.text("top")]);
}

/// Two files that are each other's backing file.
#[test]
fn a_loop_of_backing_files_is_an_error() {
    let files = Files::new();
    for (name, below) in [("a", b"b"), ("b", b"a")] {
        let file = FileDevice::create(files.at(name), 0).unwrap();
        create_qcow2(&file, MIB).unwrap();
        let mut header = [0; 512];
        file.read_at(0, &mut header).unwrap();
        header[8..16].copy_from_slice(&200_u64.to_be_bytes());
        header[16..20].copy_from_slice(&1_u32.to_be_bytes());
        header[200] = below[0];
        file.write_at(0, &header).unwrap();
    }
    let operand = Operand::parse(Path::new(&files.text("a#backing=yes"))).unwrap();
    let refused = operand.open(OpenOptions::read_only()).unwrap_err();
    assert!(refused.to_string().contains("loop"), "{refused}");
}

#[test]
fn a_file_is_read_as_raw_on_demand() {
    let files = Files::new();
    let file = FileDevice::create(files.at("disk"), 0).unwrap();
    create_qcow2(&file, 7 * MIB).unwrap();
    let raw = file.size();
    drop(file);
    let open = |name: &str| {
        let operand = Operand::parse(Path::new(&files.text(name))).unwrap();
        operand.open(OpenOptions::default()).unwrap()
    };
    let detected = open("disk");
    assert_eq!(
        (detected.size(), detected.format()),
        (7 * MIB, DiskFormat::Qcow2)
    );
    drop(detected);
    let forced = open("disk#format=raw");
    assert_eq!((forced.size(), forced.format()), (raw, DiskFormat::Raw));
    drop(forced);
    let part = open("disk#offset=65536,format=raw");
    assert_eq!(
        (part.size(), part.format()),
        (raw - 65_536, DiskFormat::Raw)
    );
}

#[test]
fn zeros_take_no_clusters() {
    let device = Arc::new(MemoryDevice::new(4 * MIB));
    create_qcow2(&device, 8 * MIB).unwrap();
    let before = device.snapshot();
    let disk = Qcow2Device::open(device.clone(), None).unwrap();
    disk.write_at(MIB + 5, &vec![0; 1 << 20]).unwrap();
    disk.flush().unwrap();
    assert_eq!(device.first_difference(&before), None);
    // A cluster that has something else is written.
    disk.write_at(MIB, &vec![1; 1 << 17]).unwrap();
    disk.write_at(MIB, &vec![0; 1 << 16]).unwrap();
    let mut found = vec![7; 1 << 17];
    disk.read_at(MIB, &mut found).unwrap();
    assert!(found[..1 << 16].iter().all(|byte| *byte == 0));
    assert!(found[1 << 16..].iter().all(|byte| *byte == 1));
}

/// Every entry of the table of counts leads to one block, in which all clusters are in use: the
/// search for a free cluster ends.
#[test]
fn counts_without_end_are_an_error() {
    let device = MemoryDevice::new(2 * MIB);
    create_qcow2(&device, 8 * MIB).unwrap();
    let block = (2_u64 << 16).to_be_bytes();
    device.write_at(1 << 16, &block.repeat(8192)).unwrap();
    device.write_at(2 << 16, &vec![1; 1 << 16]).unwrap();
    let disk = Qcow2Device::open(Arc::new(device), None).unwrap();
    let refused = disk.write_at(0, &[1; 512]).unwrap_err();
    assert!(refused.to_string().contains("reference count"), "{refused}");
}

/// A file marked dirty, with tables that lead outside of it, or with two L1 entries for one L2
/// table.
#[test]
fn hostile_files_are_not_repaired() {
    for (entry, second, said) in [
        (1_u64 << 50, 0, "is not in the file"),
        (5 << 16, 4_u64 << 16, "reference count"),
    ] {
        let device = MemoryDevice::new(2 * MIB);
        create_qcow2(&device, 1 << 30).unwrap();
        device.write_at(72, &1_u64.to_be_bytes()).unwrap();
        let first = 4_u64 << 16 | 1 << 63;
        device.write_at(3 << 16, &first.to_be_bytes()).unwrap();
        device
            .write_at((3 << 16) + 8, &second.to_be_bytes())
            .unwrap();
        device.write_at(4 << 16, &entry.to_be_bytes()).unwrap();
        let refused = Qcow2Device::open(Arc::new(device), None).unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn a_file_that_lazy_counts_left_dirty_gets_its_counts() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    let path = files.text("disk");
    expect(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        "lazy_refcounts=on",
        &path,
        "20M",
    ]);
    let model = MemoryDevice::new(20 * MIB);
    let disk = files.open("disk").unwrap();
    scribble(&mut fastrand::Rng::with_seed(1), 60, [&disk, &model]);
    drop(disk);
    // The state after a crash of a writer that did not write counts: dirty, without counts of its
    // data.
    let file = FileDevice::open(files.at("disk"), OpenOptions::default()).unwrap();
    file.write_at(72, &1_u64.to_be_bytes()).unwrap();
    let mut block = [0; 8];
    file.read_at(1 << 16, &mut block).unwrap();
    let at = u64::from_be_bytes(block);
    file.write_at(at + 2 * 5, &[0; 1000]).unwrap();
    drop(file);
    let disk = files.open("disk").unwrap();
    same(&disk, &model);
    scribble(&mut fastrand::Rng::with_seed(2), 30, [&disk, &model]);
    same(&disk, &model);
    drop(disk);
    expect(&["check", "-q", &path]);
}

/// A power cut at many moments, with lost and torn writes: qemu finds leaks at worst, and every
/// sector is as of the last flush or of a later write.
#[test]
fn every_power_cut_leaves_what_was_flushed() {
    if !has_qemu() {
        return;
    }
    let files = Files::new();
    for (seed, form) in [
        (1, "cluster_size=4096"),
        (2, "cluster_size=512,refcount_bits=16"),
    ] {
        let path = files.text("disk");
        expect(&["create", "-q", "-f", "qcow2", "-o", form, &path, "1M"]);
        let room = 6 * MIB;
        let base = MemoryDevice::load(files.at("disk")).unwrap().resized(room);
        let record = Arc::new(RecordDevice::new(base.snapshot()));
        let disk = Qcow2Device::open(record.clone(), None).unwrap();
        // For each sector every content since the last flush, by the moment that it was written.
        let mut random = fastrand::Rng::with_seed(seed);
        let mut moments = vec![(0, MemoryDevice::new(MIB))];
        let now = MemoryDevice::new(MIB);
        for round in 0..40_u8 {
            let len = 512 * random.u64(1..30);
            let at = random.u64(..(MIB - len) / 512) * 512;
            if round % 7 == 6 {
                let at = at / 4096 * 4096;
                let len = (64 << 10).min(MIB - at);
                disk.discard(at, len).unwrap();
                disk.write_at(at, &vec![100 + round; len as usize]).unwrap();
                now.put(at, &vec![100 + round; len as usize]);
            } else {
                disk.write_at(at, &vec![round + 1; len as usize]).unwrap();
                now.put(at, &vec![round + 1; len as usize]);
            }
            if round % 3 == 0 {
                disk.flush().unwrap();
                moments.push((record.position(), now.snapshot()));
            }
        }
        disk.flush().unwrap();
        moments.push((record.position(), now.snapshot()));
        drop(disk);
        let log = record.log();
        for (number, at) in log.crash_points().into_iter().enumerate() {
            let plan = log.random_plan(at, number as u64);
            let image = log.image(&base, &plan);
            image.save(files.at("cut")).unwrap();
            if number % 4 == 0 {
                let (status, text) =
                    qemu_img(&["check", "-f", "qcow2", &files.text("cut")]).unwrap();
                assert!(
                    [0, 3].contains(&status),
                    "seed {seed}, cut {number}: {text}"
                );
            }
            let found = Qcow2Device::open(Arc::new(image), None).unwrap();
            let flushed = moments.iter().rposition(|(step, _)| *step <= at).unwrap();
            if let Some((_, last)) = moments.get(flushed + 1).or(Some(&(0, now.snapshot()))) {
                between(&found, &moments[flushed].1, last, number);
            }
        }
    }
}

/// Sectors in which the last flush and the next agree have that content: no later write was there,
/// or all wrote the same.
fn between(found: &dyn Device, flushed: &MemoryDevice, next: &MemoryDevice, number: usize) {
    let (mut a, mut b, mut c) = ([0; 512], [0; 512], [0; 512]);
    for at in (0..found.size()).step_by(512) {
        flushed.read_at(at, &mut a).unwrap();
        next.read_at(at, &mut b).unwrap();
        found.read_at(at, &mut c).unwrap();
        let known = a == b;
        assert!(
            !known || c == a,
            "cut {number}: sector at {at} is {} not {}",
            c[0],
            a[0]
        );
    }
}

fn hostile(change: impl Fn(&mut Vec<u8>)) -> Result<(), String> {
    let device = MemoryDevice::new(2 * MIB);
    create_qcow2(&device, 8 * MIB).unwrap();
    let mut header = vec![0; 65_536];
    device.read_at(0, &mut header).unwrap();
    change(&mut header);
    device.write_at(0, &header).unwrap();
    let disk = Qcow2Device::open(Arc::new(device), None).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; 4096];
    disk.read_at(0, &mut bytes)
        .map_err(|error| error.to_string())?;
    disk.write_at(0, &bytes)
        .map_err(|error| error.to_string())?;
    disk.flush().map_err(|error| error.to_string())
}

#[test]
fn hostile_files_are_refused() {
    hostile(|_| ()).unwrap();
    let put = |at: usize, value: &[u8]| {
        let value = value.to_vec();
        hostile(move |header| header[at..at + value.len()].copy_from_slice(&value))
    };
    for (at, value, said) in [
        (4, &9_u32.to_be_bytes()[..], "version 9"),
        (0, b"QFI\0", "no qcow2 file"),
        (8, &(1_u64 << 60).to_be_bytes(), "backing_file_size"),
        (20, &63_u32.to_be_bytes(), "cluster_bits is 63"),
        (20, &8_u32.to_be_bytes(), "cluster_bits is 8"),
        (24, &u64::MAX.to_be_bytes(), "size is"),
        (24, &(1_u64 << 50).to_be_bytes(), "l1_size"),
        (32, &1_u32.to_be_bytes(), "encryption"),
        (36, &u32::MAX.to_be_bytes(), "l1_size"),
        (40, &(1_u64 << 40).to_be_bytes(), "l1_table_offset"),
        (40, &77_u64.to_be_bytes(), "l1_table_offset"),
        (48, &(u64::MAX << 16).to_be_bytes(), "refcount_table_offset"),
        (56, &u32::MAX.to_be_bytes(), "refcount_table_clusters"),
        (56, &0_u32.to_be_bytes(), "refcount_table_clusters"),
        (60, &u32::MAX.to_be_bytes(), "nb_snapshots"),
        (72, &2_u64.to_be_bytes(), "corrupt"),
        (72, &4_u64.to_be_bytes(), "external data file"),
        (72, &16_u64.to_be_bytes(), "extended L2"),
        (72, &(1_u64 << 40).to_be_bytes(), "incompatible features"),
        (96, &7_u32.to_be_bytes(), "refcount_order"),
    ] {
        let refused = put(at, value).unwrap_err();
        assert!(refused.contains(said), "{at}: {refused}");
    }
    let named = hostile(|header| {
        header[8..16].copy_from_slice(&200_u64.to_be_bytes());
        header[16..20].copy_from_slice(&11_u32.to_be_bytes());
        header[200..211].copy_from_slice(b"/etc/shadow");
    });
    assert!(named.unwrap_err().contains("\"/etc/shadow\""));
}

/// Tables with random entries: errors, never a panic, and no memory beyond the file's size.
#[test]
fn random_tables_are_errors_or_bytes() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = MemoryDevice::new(MIB);
        create_qcow2(&device, 8 * MIB).unwrap();
        for cluster in 1..5_u64 {
            for _ in 0..3 {
                let entry = random.u64(..) >> random.u32(..60) << random.u32(..20);
                let at = cluster * 65_536 + random.u64(..4) * 8;
                device.write_at(at, &entry.to_be_bytes()).unwrap();
            }
        }
        device
            .write_at(3 * 65_536, &(4_u64 << 16 | 1 << 63).to_be_bytes())
            .unwrap();
        let Ok(disk) = Qcow2Device::open(Arc::new(device), None) else {
            continue;
        };
        for cluster in 0..6 {
            let mut bytes = [0; 512];
            let _ = disk.read_at(cluster * 65_536, &mut bytes);
            let _ = disk.write_at(cluster * 65_536, &bytes);
            let _ = disk.discard(cluster * 65_536, 65_536);
        }
        let _ = disk.flush();
    }
}
