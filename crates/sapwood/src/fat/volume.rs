//! Writes a FAT volume.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::geometry::{ENTRY, FIRST_CLUSTER, Geometry, SECTOR};
use super::tree::{Content, Tree};
use super::{FatError, FatWidth, Result};
use crate::fs::FileSystem;
use crate::progress::{OnProgress, Progress};

/// Bytes of a file that are copied at a time.
const PIECE: usize = 1 << 20;
/// Media descriptor of a disk that is not removable.
const MEDIA: u8 = 0xf8;
/// Attributes of an entry.
const LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
/// The sectors of the information on free clusters, and of the copy of the boot sector (FAT32).
const INFO: u16 = 1;
const BACKUP: u16 = 6;

/// Everything that is written into a volume.
pub(super) struct Volume<'v> {
    pub(super) geometry: Geometry,
    pub(super) tree: &'v Tree,
    /// The file system with the content of the files.
    pub(super) files: Option<&'v FileSystem>,
    pub(super) id: u32,
    /// Filled up with spaces.
    pub(super) label: Option<[u8; 11]>,
    /// Time of the label.
    pub(super) time: SystemTime,
}

/// Clusters of a file, one after the other.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    /// 0 for a file without content.
    first: u32,
    count: u32,
}

/// A time as FAT stores it, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FatTime {
    date: u16,
    time: u16,
    /// Hundredths of a second after `time`, which counts units of two seconds.
    hundredths: u8,
}

impl Volume<'_> {
    /// Writes the volume into an empty file.
    pub(super) fn write(&self, out: &File, progress: &mut OnProgress<'_>) -> Result<()> {
        out.set_len(self.geometry.size()).map_err(FatError::Write)?;
        let (chains, next) = self.chains()?;
        self.boot_sectors(out, next).map_err(FatError::Write)?;
        let fat = self.allocation(&chains);
        for copy in 0..2 {
            let at = self.geometry.fat_at(copy);
            out.write_all_at(&fat, at).map_err(FatError::Write)?;
        }
        progress(Progress::Total(self.tree.nodes.len() as u64));
        for (at, (node, chain)) in self.tree.nodes.iter().zip(&chains).enumerate() {
            match &node.content {
                Content::Directory(files) => {
                    let bytes = self.directory(at, files, &chains);
                    let place = match chain.first {
                        0 => self.geometry.root_at(),
                        first => self.geometry.cluster_at(first),
                    };
                    out.write_all_at(&bytes, place).map_err(FatError::Write)?;
                }
                Content::File(size) => {
                    self.content(at, *size, self.geometry.cluster_at(chain.first), out)?;
                }
            }
        }
        Ok(())
    }

    /// The clusters of each file, and the first free one.
    fn chains(&self) -> Result<(Vec<Chain>, u32)> {
        let (width, cluster) = (self.geometry.width, self.geometry.cluster());
        let mut next = FIRST_CLUSTER;
        let mut chains = Vec::new();
        for at in 0..self.tree.nodes.len() {
            let count = self.tree.clusters_of(at, width, cluster);
            // The geometry has room for all of them.
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let first = if count == 0 { 0 } else { next };
            chains.push(Chain { first, count });
            next = next.saturating_add(count);
        }
        if u64::from(next) > u64::from(self.geometry.clusters) + u64::from(FIRST_CLUSTER) {
            return Err(FatError::Full {
                needed: self.geometry.cluster_at(next),
                size: self.geometry.size(),
            });
        }
        Ok((chains, next))
    }

    /// The used part of the file allocation table.
    fn allocation(&self, chains: &[Chain]) -> Vec<u8> {
        let width = self.geometry.width;
        let end = match width {
            FatWidth::Fat12 => 0xfff,
            FatWidth::Fat16 => 0xffff,
            FatWidth::Fat32 => 0x0fff_ffff,
        };
        let mut entries = vec![end & !0xff | u32::from(MEDIA), end];
        for chain in chains {
            for at in 1..=chain.count {
                let last = at == chain.count;
                entries.push(if last { end } else { chain.first + at });
            }
        }
        match width {
            FatWidth::Fat12 => {
                let pairs = entries.chunks(2).map(|pair| {
                    let pair = [pair[0], pair.get(1).copied().unwrap_or(0)];
                    pair[0] | pair[1] << 12
                });
                let bytes = pairs.flat_map(|pair| pair.to_le_bytes().into_iter().take(3));
                bytes.collect()
            }
            FatWidth::Fat16 => {
                let narrow = |entry: &u32| (*entry as u16).to_le_bytes();
                entries.iter().flat_map(narrow).collect()
            }
            FatWidth::Fat32 => {
                let bytes = entries.iter().flat_map(|entry| entry.to_le_bytes());
                bytes.collect()
            }
        }
    }

    /// The entries of a directory.
    fn directory(&self, at: usize, files: &[usize], chains: &[Chain]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(label) = self.label.filter(|_| at == 0) {
            let time = FatTime::of(self.time);
            bytes.extend(entry(&label, LABEL, time, 0, 0));
        }
        let first = |at: usize| chains.get(at).map_or(0, |chain| chain.first);
        if let Some(node) = self.tree.nodes.get(at).filter(|_| at != 0) {
            let time = FatTime::of(node.modified);
            bytes.extend(entry(b".          ", DIRECTORY, time, first(at), 0));
            // The root directory is cluster 0 here, whatever its place.
            let above = if node.parent == 0 {
                0
            } else {
                first(node.parent)
            };
            bytes.extend(entry(b"..         ", DIRECTORY, time, above, 0));
        }
        for file in files {
            let Some(node) = self.tree.nodes.get(*file) else {
                continue;
            };
            bytes.extend(node.name.long_entries().concat());
            let (attribute, size) = match node.content {
                Content::Directory(_) => (DIRECTORY, 0),
                // Larger files were refused.
                Content::File(size) => (ARCHIVE, size as u32),
            };
            let time = FatTime::of(node.modified);
            bytes.extend(entry(&node.name.short, attribute, time, first(*file), size));
        }
        bytes
    }

    /// Copies the content of a file to its place, except for zeros.
    fn content(&self, at: usize, size: u64, place: u64, out: &File) -> Result<()> {
        let (Some(node), Some(files)) = (self.tree.nodes.get(at), self.files) else {
            return Ok(());
        };
        if size == 0 {
            return Ok(());
        }
        let file = files.open(&node.path)?;
        let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        let mut done = 0;
        while done < size {
            let len = (size - done).min(piece.len() as u64) as usize;
            let bytes = piece.get_mut(..len).unwrap_or_default();
            let read = file.read_exact_at(bytes, done);
            read.map_err(|source| FatError::Read {
                path: node.path.clone(),
                source,
            })?;
            if bytes.iter().any(|byte| *byte != 0) {
                let written = out.write_all_at(bytes, place + done);
                written.map_err(FatError::Write)?;
            }
            done += len as u64;
        }
        Ok(())
    }

    /// Writes the boot sector, and in FAT32 its copy and the number of free clusters.
    fn boot_sectors(&self, out: &File, next: u32) -> io::Result<()> {
        let boot = self.boot_sector();
        out.write_all_at(&boot, 0)?;
        if self.geometry.width != FatWidth::Fat32 {
            return Ok(());
        }
        let used = next - FIRST_CLUSTER;
        let mut info = [0; SECTOR as usize];
        put(&mut info, 0, b"RRaA");
        put(&mut info, 484, b"rrAa");
        put(
            &mut info,
            488,
            &(self.geometry.clusters - used).to_le_bytes(),
        );
        put(&mut info, 492, &next.to_le_bytes());
        put(&mut info, 510, &[0x55, 0xaa]);
        for copy in [0, BACKUP] {
            let at = |sector: u16| u64::from(copy + sector) * SECTOR;
            out.write_all_at(&boot, at(0))?;
            out.write_all_at(&info, at(INFO))?;
        }
        Ok(())
    }

    fn boot_sector(&self) -> [u8; SECTOR as usize] {
        let geometry = &self.geometry;
        let wide = geometry.width == FatWidth::Fat32;
        let mut boot = [0; SECTOR as usize];
        // The extended part, after which the code begins.
        let extended = if wide { 64 } else { 36 };
        put(&mut boot, 0, &[0xeb, extended as u8 + 24, 0x90]);
        put(&mut boot, 3, b"SAPWOOD ");
        put(&mut boot, 11, &(SECTOR as u16).to_le_bytes());
        boot[13] = geometry.cluster_sectors;
        put(&mut boot, 14, &geometry.reserved.to_le_bytes());
        boot[16] = 2;
        put(&mut boot, 17, &geometry.root_entries.to_le_bytes());
        match u16::try_from(geometry.sectors) {
            Ok(sectors) if !wide => put(&mut boot, 19, &sectors.to_le_bytes()),
            _ => put(&mut boot, 32, &geometry.sectors.to_le_bytes()),
        }
        boot[21] = MEDIA;
        // Sectors of a track and heads, for readers that address a disk by them.
        put(&mut boot, 24, &63u16.to_le_bytes());
        put(&mut boot, 26, &255u16.to_le_bytes());
        if wide {
            put(&mut boot, 36, &geometry.fat_sectors.to_le_bytes());
            put(&mut boot, 44, &FIRST_CLUSTER.to_le_bytes());
            put(&mut boot, 48, &INFO.to_le_bytes());
            put(&mut boot, 50, &BACKUP.to_le_bytes());
        } else {
            put(&mut boot, 22, &(geometry.fat_sectors as u16).to_le_bytes());
        }
        // Number of the drive, and the mark of the fields that follow.
        put(&mut boot, extended, &[0x80, 0, 0x29]);
        put(&mut boot, extended + 3, &self.id.to_le_bytes());
        put(
            &mut boot,
            extended + 7,
            &self.label.unwrap_or(*b"NO NAME    "),
        );
        let name = format!("FAT{:<5}", geometry.width.bits());
        put(&mut boot, extended + 18, name.as_bytes());
        // Code: gives the machine back to its firmware (INT 18h), and waits.
        put(&mut boot, extended + 26, &[0xcd, 0x18, 0xeb, 0xfe]);
        put(&mut boot, 510, &[0x55, 0xaa]);
        boot
    }
}

/// Writes a field at its place in a sector or entry.
fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

/// The entry of a file in its directory.
fn entry(
    name: &[u8; 11],
    attribute: u8,
    time: FatTime,
    cluster: u32,
    size: u32,
) -> [u8; ENTRY as usize] {
    let mut entry = [0; ENTRY as usize];
    put(&mut entry, 0, name);
    entry[11] = attribute;
    entry[13] = time.hundredths;
    put(&mut entry, 14, &time.time.to_le_bytes());
    for at in [16, 18, 24] {
        put(&mut entry, at, &time.date.to_le_bytes());
    }
    put(&mut entry, 20, &((cluster >> 16) as u16).to_le_bytes());
    put(&mut entry, 22, &time.time.to_le_bytes());
    put(&mut entry, 26, &(cluster as u16).to_le_bytes());
    put(&mut entry, 28, &size.to_le_bytes());
    entry
}

impl FatTime {
    /// The time, or the nearest one between 1980 and 2107.
    fn of(time: SystemTime) -> Self {
        /// Seconds from 1970 to 1980, and to 2108.
        const RANGE: [u64; 2] = [315_532_800, 4_354_819_200];
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let hundredths = since.subsec_millis() / 10;
        let (seconds, hundredths) = match since.as_secs() {
            early if early < RANGE[0] => (RANGE[0], 0),
            late if late >= RANGE[1] => (RANGE[1] - 1, 0),
            seconds => (seconds, hundredths),
        };
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        Self {
            date: ((year - 1980) << 9 | month << 5 | day) as u16,
            time: (hour << 11 | minute << 5 | (second / 2)) as u16,
            hundredths: (u64::from(hundredths) + second % 2 * 100) as u8,
        }
    }
}

/// Year, month and day of a day since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that a leap day is at the end of one; 1600-03-01 is day 0.
    let since = days + 135_080;
    let (era, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (1600 + era * 400 + year + next, month, of_month)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_days_and_seconds() {
        let of = |seconds| FatTime::of(UNIX_EPOCH + Duration::from_secs(seconds));
        let found = of(951_782_400 + 3723);
        assert_eq!(found.date, 20 << 9 | 2 << 5 | 29);
        assert_eq!((found.time, found.hundredths), (1 << 11 | 2 << 5 | 1, 100));
        assert_eq!(of(0).date, 1 << 5 | 1);
        assert_eq!(of(u64::from(u32::MAX) * 2).date, 127 << 9 | 12 << 5 | 31);
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_723), (2024, 1, 1));
        assert_eq!(date(19_722), (2023, 12, 31));
    }
}
