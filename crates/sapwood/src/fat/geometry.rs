//! The sizes of a FAT volume.

use super::tree::Tree;
use super::{FatError, FatWidth, Result};

/// Bytes of a sector.
pub(super) const SECTOR: u64 = 512;
/// Bytes of a directory entry.
pub(super) const ENTRY: u64 = 32;
/// Least names of the root directory of FAT12 and FAT16, which is not in clusters.
const ROOT_ENTRIES: u64 = 512;
/// Least distance, in clusters, from the bounds between the widths, because some readers count
/// wrongly there.
const MARGIN: u64 = 16;
/// The first cluster has this number.
pub(super) const FIRST_CLUSTER: u32 = 2;

/// Volumes that are tried if no size is given, smallest first: width and sectors of a cluster.
const FITTING: &[(FatWidth, u8)] = &[
    (FatWidth::Fat12, 4),
    (FatWidth::Fat16, 4),
    (FatWidth::Fat16, 8),
    (FatWidth::Fat16, 16),
    (FatWidth::Fat32, 8),
    (FatWidth::Fat32, 16),
    (FatWidth::Fat32, 32),
    (FatWidth::Fat32, 64),
];

/// Where the parts of a volume are: reserved sectors, two file allocation tables, the root
/// directory of FAT12 and FAT16, and the clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) width: FatWidth,
    pub(super) cluster_sectors: u8,
    pub(super) reserved: u16,
    /// Names that the root directory has room for; 0 in FAT32, where it is in clusters.
    pub(super) root_entries: u16,
    pub(super) fat_sectors: u32,
    pub(super) clusters: u32,
    /// All sectors.
    pub(super) sectors: u32,
}

impl FatWidth {
    /// Bits of an entry of the table.
    pub(super) fn bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }

    /// Fewest and most clusters. A reader finds out the width from their number.
    fn clusters(self) -> (u64, u64) {
        match self {
            Self::Fat12 => (1, 4084 - MARGIN),
            Self::Fat16 => (4085 + MARGIN, 65_524 - MARGIN),
            Self::Fat32 => (65_525 + MARGIN, 0x0fff_fff5 - MARGIN),
        }
    }

    fn reserved(self) -> u16 {
        match self {
            Self::Fat12 | Self::Fat16 => 1,
            Self::Fat32 => 32,
        }
    }

    /// Sectors of a cluster in a volume of this size, best first.
    fn cluster_sectors(self, sectors: u64) -> impl Iterator<Item = u8> {
        let first = match (self, (sectors * SECTOR) >> 20) {
            (Self::Fat12 | Self::Fat16, _) => 2,
            (Self::Fat32, ..=260) => 0,
            (Self::Fat32, ..=8192) => 3,
            (Self::Fat32, ..=16_384) => 4,
            (Self::Fat32, ..=32_768) => 5,
            (Self::Fat32, _) => 6,
        };
        (first..=6).chain((0..first).rev()).map(|shift| 1 << shift)
    }

    /// The width of a volume of this size.
    fn of_size(sectors: u64) -> Self {
        match (sectors * SECTOR) >> 20 {
            0..8 => Self::Fat12,
            8..512 => Self::Fat16,
            _ => Self::Fat32,
        }
    }
}

impl Geometry {
    /// The smallest volume that holds these files, and leaves `free` bytes.
    pub(super) fn fitting(width: Option<FatWidth>, tree: &Tree, free: u64) -> Result<Self> {
        let forced: Vec<(FatWidth, u8)> = match width {
            Some(width) => width.cluster_sectors(0).map(|each| (width, each)).collect(),
            None => FITTING.to_vec(),
        };
        for (width, each) in forced {
            let (least, most) = width.clusters();
            let cluster = u64::from(each) * SECTOR;
            let needed = tree.clusters(width, cluster) + free.div_ceil(cluster);
            let clusters = needed.max(least);
            if clusters <= most {
                let root = root_entries(width, tree)?;
                let bits = (clusters + u64::from(FIRST_CLUSTER)) * width.bits();
                let fat = bits.div_ceil(8 * SECTOR);
                let data = data_start(width, root, fat);
                let sectors = data + clusters * u64::from(each);
                return Self::of(width, each, root, fat, clusters, sectors);
            }
        }
        Err(FatError::NoVolume { width, size: None })
    }

    /// A volume of this size that holds these files.
    pub(super) fn of_size(width: Option<FatWidth>, tree: &Tree, size: u64) -> Result<Self> {
        let sectors = size / SECTOR;
        let chosen = width.unwrap_or_else(|| FatWidth::of_size(sectors));
        let (least, most) = chosen.clusters();
        let root = root_entries(chosen, tree)?;
        for each in chosen.cluster_sectors(sectors) {
            let per = u64::from(each);
            let whole = sectors.saturating_sub(data_start(chosen, root, 0)) / per;
            let bits = (whole + u64::from(FIRST_CLUSTER)) * chosen.bits();
            let fat = bits.div_ceil(8 * SECTOR);
            let data = data_start(chosen, root, fat);
            let clusters = sectors.saturating_sub(data) / per;
            if !(least..=most).contains(&clusters) {
                continue;
            }
            let needed = tree.clusters(chosen, per * SECTOR);
            if needed > clusters {
                let needed = (data + needed * per) * SECTOR;
                return Err(FatError::Full { needed, size });
            }
            return Self::of(chosen, each, root, fat, clusters, sectors);
        }
        Err(FatError::NoVolume {
            width,
            size: Some(size),
        })
    }

    fn of(
        width: FatWidth,
        cluster_sectors: u8,
        root_entries: u16,
        fat: u64,
        clusters: u64,
        sectors: u64,
    ) -> Result<Self> {
        let narrow = |number: u64| {
            u32::try_from(number).map_err(|_| FatError::NoVolume {
                width: Some(width),
                size: Some(sectors.saturating_mul(SECTOR)),
            })
        };
        Ok(Self {
            width,
            cluster_sectors,
            reserved: width.reserved(),
            root_entries,
            fat_sectors: narrow(fat)?,
            clusters: narrow(clusters)?,
            sectors: narrow(sectors)?,
        })
    }

    /// Bytes of a cluster.
    pub(super) fn cluster(&self) -> u64 {
        u64::from(self.cluster_sectors) * SECTOR
    }

    /// Bytes of the volume.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.sectors) * SECTOR
    }

    /// First byte of a file allocation table, 0 or 1.
    pub(super) fn fat_at(&self, copy: u64) -> u64 {
        (u64::from(self.reserved) + copy * u64::from(self.fat_sectors)) * SECTOR
    }

    /// First byte of the root directory of FAT12 and FAT16.
    pub(super) fn root_at(&self) -> u64 {
        self.fat_at(2)
    }

    /// First byte of a cluster.
    pub(super) fn cluster_at(&self, cluster: u32) -> u64 {
        let data = self.root_at() + u64::from(self.root_entries) * ENTRY;
        data + u64::from(cluster.saturating_sub(FIRST_CLUSTER)) * self.cluster()
    }
}

/// Sectors before the first cluster.
fn data_start(width: FatWidth, root_entries: u16, fat_sectors: u64) -> u64 {
    let root = u64::from(root_entries) * ENTRY / SECTOR;
    u64::from(width.reserved()) + 2 * fat_sectors + root
}

/// The names that the root directory has room for, in whole sectors.
fn root_entries(width: FatWidth, tree: &Tree) -> Result<u16> {
    if width == FatWidth::Fat32 {
        return Ok(0);
    }
    let entries = tree.root_entries().max(ROOT_ENTRIES);
    let entries = entries.next_multiple_of(SECTOR / ENTRY);
    u16::try_from(entries).map_err(|_| FatError::TooManyNames("/".into()))
}
