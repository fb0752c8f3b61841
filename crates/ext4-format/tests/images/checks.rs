//! What is compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;

use libtest_mimic::Failed;
use sapwood_ext4_format::{
    BitmapKind, DumpGroup, DumpInode, DumpSuper, GroupDesc, GroupFlags, Incompat, Inode, MmpBlock,
    SUPER_SIZE, SuperBlock, bitmap, validate_block_bitmap, validate_group, validate_inode,
    validate_inode_bitmap,
};

use crate::image::{TempImage, run};

fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, theirs: T) -> Result<(), Failed> {
    if ours == theirs {
        return Ok(());
    }
    Err(format!("{what}:\n  ours   {ours:?}\n  theirs {theirs:?}").into())
}

/// `key: value` lines.
fn fields(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.trim().into(), value.trim().into()))
        .collect()
}

/// Lines of `dumpe2fs -h` that are written otherwise: dates, units, names of users; and what is
/// read from elsewhere than the superblock.
const OTHERWISE: &[&str] = &[
    "Filesystem created",
    "Last mount time",
    "Last write time",
    "Last checked",
    "Lifetime writes",
    "Reserved blocks uid",
    "Reserved blocks gid",
];
const ELSEWHERE: &[&str] = &[
    "Journal features",
    "Total journal size",
    "Total journal blocks",
    "Max transaction length",
    "Fast commit length",
    "Journal sequence",
    "Journal start",
    "Journal checksum type",
    "Journal checksum",
    "Journal size",
    "MMP_block",
    "mmp_magic",
    "mmp_check_interval",
    "mmp_sequence",
    "mmp_update_date",
    "mmp_update_time",
    "mmp_node_name",
    "mmp_device_name",
];

/// The dump, line by line; the checksum; the way back to bytes.
pub(crate) fn superblock(image: &TempImage) -> Result<(), Failed> {
    let theirs = run(Command::new("dumpe2fs").arg("-h").arg(image.path()))?;
    let ours = fields(&DumpSuper(&image.sb).to_string());
    let mut compared = 0;
    for (key, value) in fields(&theirs) {
        if ELSEWHERE.contains(&key.as_str()) {
            continue;
        }
        let Some(our_value) = ours.get(&key) else {
            return Err(format!("no {key} in our dump, theirs is {value}").into());
        };
        if !OTHERWISE.contains(&key.as_str()) {
            same(&key, our_value, &value)?;
            compared += 1;
        }
    }
    if compared < 25 {
        return Err(format!("only {compared} fields compared").into());
    }
    let mut again = image.sb.clone();
    again.checksum = 0.into();
    again.set_checksum();
    if image.geometry.metadata_csum() {
        same("checksum", again.checksum, image.sb.checksum)?;
    }
    again.set_blocks_count(again.blocks_count())?;
    again.set_free_blocks_count(again.free_blocks_count())?;
    again.set_features(again.features());
    same("bytes", again.bytes(), image.sb.bytes())
}

/// Sections of `dumpe2fs` by group, without the lists of what is free.
fn sections(text: &str) -> BTreeMap<u32, String> {
    let mut sections = BTreeMap::new();
    let mut group = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Group ")
            && let Some((number, _)) = rest.split_once(':')
        {
            group = number.parse().ok();
        }
        if let Some(group) = group
            && !line.trim_start().starts_with("Free ")
        {
            let section: &mut String = sections.entry(group).or_default();
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

/// Every descriptor: the dump, validity, checksum, the way back to bytes.
pub(crate) fn groups(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    let theirs = sections(&run(Command::new("dumpe2fs").arg(image.path()))?);
    same("groups", theirs.len(), geometry.group_count() as usize)?;
    for group in image.groups() {
        let desc = image.desc(group)?;
        let dump = DumpGroup {
            group,
            desc: &desc,
            geometry,
        };
        let theirs = theirs.get(&group).ok_or("no such section")?;
        same("group", dump.to_string().trim_end(), theirs.trim_end())?;
        validate_group(group, &desc, geometry)?;
        let mut again = desc.clone();
        again.set_flags(GroupFlags::empty());
        again.set_checksum(group, geometry);
        again.set_flags(desc.flags());
        again.set_free_clusters(desc.free_clusters())?;
        again.set_checksum(group, geometry);
        same("descriptor", &again, &desc)?;
        let mut bytes = vec![0xa5; usize::from(desc.size())];
        again.write(&mut bytes)?;
        same("read back", &GroupDesc::read(&bytes, geometry)?, &desc)?;
        if geometry.features().group_csum() {
            bytes[5] ^= 1;
            let broken = GroupDesc::read(&bytes, geometry)?;
            if broken.verify_checksum(group, geometry).is_ok() {
                return Err(format!("group {group}: a changed bit was not seen").into());
            }
        }
    }
    Ok(())
}

/// Where inodes of many groups stand, as the `imap` command of debugfs says.
pub(crate) fn inode_places(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    let mut script = String::new();
    let mut ours = Vec::new();
    for group in image.groups() {
        let desc = image.desc(group)?;
        validate_group(group, &desc, geometry)?;
        let index = group % geometry.inodes_per_group();
        let ino = geometry.ino(group, index).ok_or("no inode")?;
        let (block, offset) = geometry.inode_in_table(desc.inode_table(), index);
        writeln!(script, "imap <{ino}>")?;
        ours.push(format!(
            "Inode {ino} is part of block group {group}\n\tlocated at block {block}, offset 0x{offset:04x}"
        ));
    }
    let theirs = debugfs(image, &script)?;
    let theirs: Vec<_> = theirs.split("debugfs: imap").skip(1).collect();
    same("answers", theirs.len(), ours.len())?;
    for (ours, theirs) in ours.iter().zip(theirs) {
        let (_, theirs) = theirs.split_once('\n').unwrap_or_default();
        same("place", ours.trim(), theirs.trim())?;
    }
    Ok(())
}

/// What debugfs answers to a script.
fn debugfs(image: &TempImage, script: &str) -> Result<String, Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("script");
    std::fs::write(&path, script)?;
    run(Command::new("debugfs")
        .arg("-f")
        .arg(path)
        .arg(image.path()))
}

/// Copies of superblock and descriptors stand where the geometry says.
pub(crate) fn copies(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    for group in image.groups() {
        let Some(block) = geometry.backup_super_block(group) else {
            continue;
        };
        let bytes = image.block(block)?;
        let at = if group == 0 && geometry.block_size() > 1024 {
            1024
        } else {
            0
        };
        let copy = SuperBlock::parse(&bytes[at..at + SUPER_SIZE])?;
        same("copy's uuid", copy.uuid, image.sb.uuid)?;
        if image.sb.rev_level.get() > 0 {
            same("copy's group", u32::from(copy.block_group_nr.get()), group)?;
        }
    }
    let per_block = geometry.descs_per_block() as usize;
    for index in (0..geometry.desc_blocks()).take(64) {
        let primary = image.block(geometry.desc_table_block(index))?;
        for backup in geometry.desc_table_backups(index) {
            let copy = image.block(backup)?;
            let size = usize::from(geometry.desc_size());
            let left = geometry.group_count() as usize - index as usize * per_block;
            for place in 0..per_block.min(left) {
                let ours = GroupDesc::read(&primary[place * size..], geometry)?;
                let theirs = GroupDesc::read(&copy[place * size..], geometry)?;
                same("block bitmap", ours.block_bitmap(), theirs.block_bitmap())?;
                same("inode table", ours.inode_table(), theirs.inode_table())?;
            }
        }
    }
    Ok(())
}

/// Every bitmap that was written: validity, checksum, count.
pub(crate) fn bitmaps(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    let inodes = geometry.inodes_per_group();
    for group in image.groups() {
        let desc = image.desc(group)?;
        let clusters = geometry.group_clusters(group);
        if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
            let mut bytes = image.block(desc.block_bitmap())?;
            validate_block_bitmap(group, &bytes, &desc, geometry)?;
            let free = bitmap::count_zero(&bytes, 0, clusters);
            same("free clusters", free, desc.free_clusters())?;
            if geometry.metadata_csum() {
                bytes[0] ^= 0x40;
                let kind = BitmapKind::Block;
                if bitmap::verify_bitmap(kind, &bytes, group, &desc, geometry).is_ok() {
                    return Err(format!("group {group}: a changed bit was not seen").into());
                }
                bytes[0] ^= 0x40;
            }
            let mut again = desc.clone();
            again.set_block_bitmap_csum(0);
            bitmap::set_bitmap_checksum(BitmapKind::Block, &bytes, &mut again, geometry)?;
            let sum = if geometry.metadata_csum() {
                desc.block_bitmap_csum()
            } else {
                0
            };
            same("block bitmap checksum", again.block_bitmap_csum(), sum)?;
        }
        if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
            let bytes = image.block(desc.inode_bitmap())?;
            validate_inode_bitmap(group, &bytes, &desc, geometry)?;
            let free = bitmap::count_zero(&bytes, 0, inodes);
            same("free inodes", free, desc.free_inodes())?;
        }
    }
    Ok(())
}

/// The MMP block, if there is one.
pub(crate) fn mmp(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    if !geometry.features().has_incompat(Incompat::MMP) {
        return Ok(());
    }
    let bytes = image.block(image.sb.mmp_block.get())?;
    let block = MmpBlock::parse(&bytes, Some(geometry.csum_seed()))?;
    same(
        "sequence",
        block.seq.get(),
        sapwood_ext4_format::MMP_SEQ_CLEAN,
    )?;
    let mut broken = bytes;
    broken[20] ^= 1;
    if MmpBlock::parse(&broken, Some(geometry.csum_seed())).is_ok() {
        return Err("a changed bit of the mmp block was not seen".into());
    }
    Ok(())
}

/// All inodes in use, of all groups.
fn used_inodes(image: &TempImage) -> Result<Vec<u32>, Failed> {
    let geometry = &image.geometry;
    let mut used = Vec::new();
    for group in image.groups() {
        let desc = image.desc(group)?;
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let bytes = image.block(desc.inode_bitmap())?;
        let end = geometry.inodes_per_group();
        let mut from = 0;
        while let Some(index) = bitmap::find_next_set(&bytes, from, end) {
            used.extend(geometry.ino(group, index));
            from = index + 1;
        }
    }
    Ok(used)
}

/// Every inode in use: the dump against `stat` of debugfs, validity, checksum, the way back.
pub(crate) fn inodes(image: &TempImage) -> Result<(), Failed> {
    let geometry = &image.geometry;
    let used = used_inodes(image)?;
    let mut script = String::new();
    for ino in &used {
        writeln!(script, "stat <{ino}>")?;
    }
    let theirs = debugfs(image, &script)?;
    let stats: Vec<_> = theirs.split("debugfs: stat").skip(1).collect();
    same("stats", stats.len(), used.len())?;
    let mut kinds = std::collections::BTreeSet::new();
    for (ino, theirs) in used.iter().zip(stats) {
        let inode = image.inode(*ino)?;
        let dump = DumpInode {
            ino: *ino,
            inode: &inode,
            geometry,
        };
        for ours in dump.to_string().lines() {
            // The date after the number is written otherwise.
            let ours = ours.split(" -- ").next().unwrap_or_default().trim();
            if !theirs.lines().any(|line| line.trim().starts_with(ours)) {
                return Err(format!("not in debugfs: {ours}\n{theirs}").into());
            }
        }
        inode.verify_checksum(*ino, geometry)?;
        if inode.mode() != 0 {
            validate_inode(*ino, &inode, geometry)?;
            kinds.insert(inode.file_type());
        }
        round_trip(image, *ino, &inode)?;
    }
    same("kinds of files", kinds.len(), 6)
}

/// What the setters write is what was there.
fn round_trip(image: &TempImage, ino: u32, inode: &Inode) -> Result<(), Failed> {
    let geometry = &image.geometry;
    let mut again = inode.clone();
    again.set_atime(inode.atime());
    again.set_mtime(inode.mtime());
    again.set_ctime(inode.ctime());
    if let Some(created) = inode.crtime() {
        again.set_crtime(created);
    }
    again.set_uid(inode.uid());
    again.set_gid(inode.gid());
    again.set_size(inode.size(geometry), geometry)?;
    again.set_sectors(inode.sectors(geometry), geometry)?;
    again.set_file_acl(inode.file_acl())?;
    again.set_version(inode.version());
    again.set_projid(inode.projid().unwrap_or(0))?;
    if matches!(inode.mode() & 0xf000, 0x2000 | 0x6000) {
        let (major, minor) = inode.device();
        again.set_device(major, minor)?;
    }
    again.set_checksum(ino, geometry);
    same("inode", &again, inode)?;
    let mut bytes = vec![0; usize::from(geometry.inode_size())];
    again.write(&mut bytes)?;
    let (group, index) = geometry.inode_location(ino)?;
    let table = image.desc(group)?.inode_table();
    let (block, offset) = geometry.inode_in_table(table, index);
    let mut on_disk = vec![0; bytes.len()];
    let at = geometry.block_offset(block)? + u64::from(offset);
    image.file.read_exact_at(&mut on_disk, at)?;
    same("bytes", &bytes, &on_disk)?;
    again.set_generation(inode.generation() ^ 1);
    if geometry.metadata_csum() && again.verify_checksum(ino, geometry).is_ok() {
        return Err(format!("inode {ino}: a changed generation was not seen").into());
    }
    Ok(())
}
