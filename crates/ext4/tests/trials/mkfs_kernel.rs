//! `mkfs` and `mke2fs` make the same image with the same options, byte for byte except for the
//! differences named below; `e2fsck` reports nothing, the kernel mounts and fills it, and the tools
//! that change a file system accept it.
//!
//! Differences, and reasons:
//! - the superblock counts the KiB that were written, and the tools write other ones than we do;
//! - a journal with fast commits is marked as such by Sapwood; `mke2fs` leaves that to the first
//!   mount;
//! - with `inline_data` lost+found has 16 KiB as always, where `mke2fs` makes one block less;
//! - where many inodes shrink the groups, Sapwood reserves the percentage of all blocks, `mke2fs`
//!   the percentage of the blocks in whole groups;
//! - an extent block of a journal of more than four extents may stand elsewhere (no case here).
//!
//! Without the tools, or without the right to mount, cases are skipped by name.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use sapwood_block::{FileDevice, OpenOptions};
use sapwood_ext4::mkfs::{DirHash, MkfsOptions, mkfs};
use sapwood_testing::machine::{E2FSPROGS, Need, Outcome, trial};
use sapwood_testing::oracle::Kind;

const UUID: &str = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
const SEED: &str = "11223344-5566-4788-99aa-bbccddeeff00";
const TIME: u64 = 1_700_000_000;

/// The ext4 part of Debian's `mke2fs.conf`; the machine's own may differ.
const CONFIG: &str = "
[defaults]
base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
default_mntopts = acl,user_xattr
enable_periodic_fsck = 0
blocksize = 4096
inode_size = 256
inode_ratio = 16384
hash_alg = HASH
[fs_types]
ext4 = {
  features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
}
small = {
  blocksize = 1024
  inode_ratio = 4096
}
floppy = {
  blocksize = 1024
  inode_ratio = 8192
}
";

/// Name, bytes of the image, options of `mke2fs` and of Sapwood.
struct Case {
    name: &'static str,
    size: u64,
    /// In the spelling of `mke2fs`; Sapwood's are derived from it.
    words: &'static str,
}

const fn case(name: &'static str, size: u64, words: &'static str) -> Case {
    Case { name, size, words }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Every option at least once, on sizes from the smallest up.
const CASES: &[Case] = &[
    case("defaults", GIB, ""),
    case("small", 64 * MIB, ""),
    case("one_group", 8 * MIB, ""),
    case("floppy", 2 * MIB, ""),
    case("no_room_for_a_journal", 1500 * KIB, ""),
    case("seventeen_groups", 17 * 128 * MIB, ""),
    case("partial_flex", 5 * GIB, ""),
    case("large", 24 * GIB, ""),
    case("odd_size", 33_001 * KIB, ""),
    case("short_last_group", 131_172 * KIB, "-b 4096"),
    case("groups_shrink", 262_148 * KIB, "-b 4096"),
    case("blocks_of_2k", 512 * MIB, "-b 2048"),
    case("blocks_of_1k", 700 * MIB, "-b 1024"),
    case("table_skips_a_copy", 300 * MIB, "-b 1024"),
    case("inodes_of_128", 512 * MIB, "-I 128"),
    case("inodes_of_1024", 512 * MIB, "-I 1024"),
    case("few_inodes", 512 * MIB, "-N 100"),
    case("many_inodes", 512 * MIB, "-i 1024"),
    case("reserved_none", 512 * MIB, "-m 0"),
    case("reserved_some", 512 * MIB, "-m 12.5"),
    case("label", 64 * MIB, "-L sixteen_bytes_ok"),
    case("journal_of_4m", 3 * GIB, "-J size=4"),
    case("no_journal", 512 * MIB, "-O ^has_journal"),
    case("no_flex", 300 * MIB, "-b 1024 -O ^flex_bg"),
    case("flex_of_4", 300 * MIB, "-b 1024 -G 4"),
    case("small_groups", 64 * MIB, "-b 1024 -g 1024 -O ^resize_inode"),
    case("meta_bg", 20 * GIB, "-O meta_bg,^resize_inode"),
    case(
        "meta_bg_no_flex",
        30 * MIB,
        "-b 1024 -g 512 -O meta_bg,^resize_inode,^flex_bg",
    ),
    case("sparse_super2", 512 * MIB, "-O sparse_super2"),
    case("sparse_super2_two", 200 * MIB, "-b 4096 -O sparse_super2"),
    case("sparse_super2_one", 8 * MIB, "-O sparse_super2"),
    case(
        "no_sparse_super",
        200 * MIB,
        "-b 4096 -O ^sparse_super,^resize_inode",
    ),
    case("32bit", 512 * MIB, "-O ^64bit"),
    case("uninit_bg", 512 * MIB, "-O ^64bit,^metadata_csum,uninit_bg"),
    case("no_checksums", 512 * MIB, "-O ^metadata_csum"),
    case("csum_seed", 512 * MIB, "-O metadata_csum_seed"),
    case("no_extents", 512 * MIB, "-O ^extent,^64bit"),
    case("no_extents_1k", 64 * MIB, "-O ^extent,^64bit"),
    case("orphan_file", 600 * MIB, "-O orphan_file"),
    case("orphan_file_large", 4 * GIB, "-O orphan_file"),
    case("fast_commit", 512 * MIB, "-O fast_commit"),
    case("inline_data", 512 * MIB, "-O inline_data"),
    case("ea_inode_large_dir", 512 * MIB, "-O ea_inode,large_dir"),
    case("mmp", 512 * MIB, "-O mmp"),
    case(
        "mmp_1k_orphans",
        64 * MIB,
        "-O mmp,orphan_file -E mmp_update_interval=9",
    ),
    case("project", 512 * MIB, "-O project"),
    case(
        "ext2",
        64 * MIB,
        "-O none,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file",
    ),
    case(
        "ext3",
        64 * MIB,
        "-O none,has_journal,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file",
    ),
    case("nothing", 512 * MIB, "-O none"),
    case("hash_tea", 64 * MIB, "-E hash_alg=tea,stride=2"),
    case(
        "owner_and_raid",
        64 * MIB,
        "-E root_owner=1000:1001,stride=4,stripe_width=8",
    ),
];

/// In these the number of reserved blocks may differ.
const GROUPS_SHRINK: &[&str] = &["short_last_group", "groups_shrink", "many_inodes"];

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("sapwood-mkfs-")
            .tempdir()
            .unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn run(program: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    let output = command
        .args(args)
        .env("E2FSPROGS_FAKE_TIME", TIME.to_string())
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn must(program: &str, args: &[&str]) -> Result<String, Failed> {
    match run(program, args) {
        (true, text) => Ok(text),
        (false, text) => Err(format!("{program} {args:?}: {text}").into()),
    }
}

/// Whether the kernel knows the format of quotas that ext4 uses.
fn has_quotas() -> bool {
    Path::new("/sys/module/quota_v2").exists()
}

/// The kernel's needs for mounting a case's image: project ids need quotas, which not all kernels
/// have.
fn mount_needs(case: &Case) -> Vec<Need> {
    let quotas = Need::Other(|| (!has_quotas()).then(|| "no quotas in the kernel".to_owned()));
    let more = (case.name == "project").then_some(quotas);
    [Need::Kernel(Kind::Ext4)].into_iter().chain(more).collect()
}

fn bytes_of(uuid: &str) -> [u8; 16] {
    uuid::Uuid::parse_str(uuid).unwrap().into_bytes()
}

/// Sapwood's options from the options of `mke2fs`.
fn ours(words: &str) -> MkfsOptions {
    let mut options = MkfsOptions {
        uuid: Some(bytes_of(UUID)),
        hash_seed: Some(bytes_of(SEED)),
        time: Some(TIME),
        ..MkfsOptions::default()
    };
    let mut words = words.split_whitespace();
    while let (Some(option), Some(value)) = (words.next(), words.next()) {
        match option {
            "-b" => options.block_size = Some(value.parse().unwrap()),
            "-I" => options.inode_size = Some(value.parse().unwrap()),
            "-N" => options.inodes = Some(value.parse().unwrap()),
            "-i" => options.bytes_per_inode = Some(value.parse().unwrap()),
            "-m" => options.reserved_percent = value.parse().unwrap(),
            "-L" => value.clone_into(&mut options.label),
            "-G" => options.flex_groups = value.parse().unwrap(),
            "-g" => options.blocks_per_group = Some(value.parse().unwrap()),
            "-J" => {
                let megabytes: u64 = value.strip_prefix("size=").unwrap().parse().unwrap();
                options.journal_size = Some(megabytes * MIB);
            }
            "-O" => {
                let switch = |name: &str| match name.strip_prefix('^') {
                    Some(name) => (name.to_owned(), false),
                    None => (name.to_owned(), true),
                };
                options.features = value.split(',').map(switch).collect();
            }
            "-E" => value
                .split(',')
                .for_each(|part| extended(&mut options, part)),
            other => panic!("{other}"),
        }
    }
    options
}

fn extended(options: &mut MkfsOptions, part: &str) {
    let (name, value) = part.split_once('=').unwrap();
    match name {
        "hash_alg" => options.dir_hash = DirHash::Tea,
        "stride" => options.stride = value.parse().unwrap(),
        "mmp_update_interval" => options.mmp_update_interval = Some(value.parse().unwrap()),
        "stripe_width" => options.stripe_width = value.parse().unwrap(),
        "root_owner" => {
            let (uid, gid) = value.split_once(':').unwrap();
            options.root_owner = (uid.parse().unwrap(), gid.parse().unwrap());
        }
        other => panic!("{other}"),
    }
}

fn make_ours(path: &Path, case: &Case) -> Result<(), Failed> {
    let device = FileDevice::create(path, case.size)?;
    mkfs(&device, &ours(case.words))?;
    Ok(())
}

fn make_theirs(path: &Path, case: &Case) -> Result<(), Failed> {
    std::fs::File::create(path)?.set_len(case.size)?;
    let seed = format!("hash_seed={SEED}");
    let mut args = vec!["-q", "-F", "-t", "ext4", "-U", UUID];
    let words = case.words.replace("hash_alg=tea,", "");
    // The last -E counts.
    let joined = words.replace("-E ", &format!("-E {seed},"));
    args.extend(joined.split_whitespace());
    if !joined.contains("-E") {
        args.extend(["-E", &seed]);
    }
    args.push(path.to_str().unwrap());
    let config = path.with_extension("conf");
    let hash = if case.words.contains("hash_alg=tea") {
        "tea"
    } else {
        "half_md4"
    };
    std::fs::write(&config, CONFIG.replace("HASH", hash))?;
    let made = Command::new("mke2fs")
        .args(&args)
        .env("MKE2FS_CONFIG", &config)
        .env("E2FSPROGS_FAKE_TIME", TIME.to_string())
        .stdin(Stdio::null())
        .output()?;
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr).into_owned();
        return Err(format!("mke2fs {args:?}: {why}").into());
    }
    Ok(())
}

/// The output of `dumpe2fs`, without fields that count other written bytes.
fn listing(path: &Path) -> Result<String, Failed> {
    let text = must("dumpe2fs", &[path.to_str().unwrap()])?;
    let other = [
        "Lifetime writes",
        "Checksum:",
        "Reserved block count",
        "Journal features",
        "mmp_update_",
        "mmp_node_name",
        "mmp_device_name",
    ];
    let same = |line: &&str| {
        !other
            .iter()
            .any(|start| line.trim_start().starts_with(start))
    };
    Ok(text
        .lines()
        .filter(same)
        .fold(String::new(), |all, line| all + line + "\n"))
}

fn first_difference(ours: &str, theirs: &str) -> Option<String> {
    let mut lines = ours.lines().zip(theirs.lines());
    let found = lines.find(|(ours, theirs)| ours != theirs);
    let found = found.map(|(ours, theirs)| format!("ours: {ours}\ntheirs: {theirs}"));
    found.or_else(|| (ours.len() != theirs.len()).then(|| "one is longer".to_owned()))
}

/// Same lists, and same bytes.
fn equal_to_mke2fs(case: &Case) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let (own, their) = (scratch.path("ours"), scratch.path("theirs"));
    make_ours(&own, case)?;
    make_theirs(&their, case)?;
    if case.name != "inline_data" {
        if let Some(difference) = first_difference(&listing(&own)?, &listing(&their)?) {
            return Err(difference.into());
        }
        let differing = differing_blocks(&own, &their, case.name)?;
        if !differing.is_empty() {
            return Err(format!("bytes differ: {differing:x?}").into());
        }
    }
    must("e2fsck", &["-fn", own.to_str().unwrap()]).map(drop)
}

/// Ranges of a file that are not holes.
fn data_ranges(file: &std::fs::File) -> Result<Vec<(u64, u64)>, Failed> {
    use rustix::fs::{SeekFrom, seek};
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start))?;
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

/// Masks counters of written bytes in a superblock, and its checksum; in a journal's superblock,
/// the mark of fast commits; in the block of multiple mount protection, its time, names and
/// checksum.
fn mask(block: &mut [u8], case: &str) {
    if block[0x38..0x3a] == [0x53, 0xef] {
        block[0x178..0x180].fill(0);
        block[0x3fc..0x400].fill(0);
        if GROUPS_SHRINK.contains(&case) {
            block[8..12].fill(0);
        }
    }
    // The tools ignore the fixed time here, and name the machine and the file.
    if block[..4] == [0x50, 0x4d, 0x4d, 0] {
        block[8..0x70].fill(0);
        block[0x3fc..0x400].fill(0);
    }
    if block[..4] == [0xc0, 0x3b, 0x39, 0x98] && case == "fast_commit" {
        block[0x28..0x2c].fill(0);
    }
}

/// Differing bytes: offset and both values. Only the first of each KiB.
fn differing_blocks(own: &Path, their: &Path, case: &str) -> Result<Vec<(u64, u8, u8)>, Failed> {
    use std::os::unix::fs::FileExt;
    let (own, their) = (std::fs::File::open(own)?, std::fs::File::open(their)?);
    let mut starts = std::collections::BTreeSet::new();
    for (start, end) in data_ranges(&own)?.into_iter().chain(data_ranges(&their)?) {
        starts.extend((start / KIB..end.div_ceil(KIB)).map(|block| block * KIB));
    }
    let mut differing = Vec::new();
    let (mut a, mut b) = ([0; 1024], [0; 1024]);
    for at in starts {
        let rest = (own.metadata()?.len() - at).min(KIB) as usize;
        own.read_exact_at(&mut a[..rest], at)?;
        their.read_exact_at(&mut b[..rest], at)?;
        mask(&mut a, case);
        mask(&mut b, case);
        let first = a.iter().zip(&b).position(|(a, b)| a != b);
        differing.extend(first.map(|n| (at + n as u64, a[n], b[n])));
    }
    Ok(differing)
}

/// Mounts an image by Sapwood with the kernel, fills it, and lets e2fsck judge the result.
fn kernel_fills(case: &Case) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let (image, point) = (scratch.path("image"), scratch.path("mount"));
    make_ours(&image, case)?;
    std::fs::create_dir(&point)?;
    let (image, at) = (image.to_str().unwrap(), point.to_str().unwrap());
    must("mount", &["-o", "loop", image, at])?;
    let filled = fill(&point, case);
    let unmounted = sapwood_testing::unmount(&point);
    filled?;
    unmounted?;
    must("e2fsck", &["-fn", image]).map(drop)
}

/// Directories, files of several sizes, as many as there is room for.
fn fill(point: &Path, case: &Case) -> Result<(), Failed> {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata(point)?;
    let owner = ours(case.words).root_owner;
    if (root.uid(), root.gid()) != owner || !point.join("lost+found").is_dir() {
        return Err(format!("root belongs to {}:{}", root.uid(), root.gid()).into());
    }
    for n in 0..12_u8 {
        let dir = point.join(format!("dir{n}"));
        std::fs::create_dir(&dir)?;
        let bytes = vec![n; usize::from(n) * 3000];
        std::fs::write(dir.join("file"), &bytes)?;
        std::os::unix::fs::symlink("file", dir.join("link"))?;
    }
    for n in 0..12_u8 {
        let found = std::fs::read(point.join(format!("dir{n}/file")))?;
        if found != vec![n; usize::from(n) * 3000] {
            return Err(format!("file {n} reads back wrong").into());
        }
    }
    Ok(())
}

/// `resize2fs` grows an image by Sapwood and `tune2fs` switches its features.
fn tools_change(case: &Case) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    make_ours(&image, case)?;
    let path = image.to_str().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image)?;
    file.set_len(case.size * 2)?;
    must("resize2fs", &[path])?;
    must("e2fsck", &["-fn", path])?;
    for change in [
        "^has_journal",
        "has_journal",
        "metadata_csum_seed",
        "large_dir,ea_inode",
    ] {
        let seeded = case.words.contains("csum_seed") || case.words.contains("none");
        if change == "metadata_csum_seed" && seeded {
            continue;
        }
        must("tune2fs", &["-O", change, path])?;
        must("e2fsck", &["-fn", path])?;
    }
    Ok(())
}

/// On a device full of old bytes, which are not discarded: they show nowhere, whether tables are
/// zeroed or left to the kernel.
fn over_old_bytes(case: &Case) -> Result<(), Failed> {
    let scratch = Scratch::new();
    for lazy_itable_init in [false, true] {
        let image = scratch.path("image");
        std::fs::write(&image, vec![0xa5; case.size as usize])?;
        let device = FileDevice::open(&image, OpenOptions::default())?;
        let options = MkfsOptions {
            discard: false,
            lazy_itable_init,
            ..ours(case.words)
        };
        mkfs(&device, &options)?;
        drop(device);
        let path = image.to_str().unwrap();
        must("e2fsck", &["-fn", path])?;
        let zeroed = listing(&image)?.matches("ITABLE_ZEROED").count();
        let groups = case.size.div_ceil(8 * MIB) as usize;
        let expected = if lazy_itable_init { 0 } else { groups };
        if zeroed != expected {
            return Err(format!("{zeroed} groups say that their table is zeroed").into());
        }
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let resizing = [Need::Program("resize2fs"), Need::Program("tune2fs")];
    let changing = [&E2FSPROGS[..], &resizing].concat();
    let mut trials = Vec::new();
    for case in CASES {
        let mut add = |group: &str, needs: &[Need], body: fn(&Case) -> Outcome| {
            let name = format!("{group}::{}", case.name);
            trials.push(trial(name, needs, move || body(case)));
        };
        add("mke2fs", &E2FSPROGS, equal_to_mke2fs);
        let mounting = [&E2FSPROGS[..], &mount_needs(case)].concat();
        // The kernel waits for other machines; the trials of the protection mount such an image.
        if !case.words.contains("mmp") {
            add("kernel", &mounting, kernel_fills);
        }
        if case.name == "small" {
            add("old_bytes", &E2FSPROGS, over_old_bytes);
        }
        let resizable = ["defaults", "small", "csum_seed", "meta_bg", "32bit", "ext3"];
        if resizable.contains(&case.name) {
            add("tools", &changing, tools_change);
        }
    }
    trials
}
