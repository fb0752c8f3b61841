//! Compares chunks, device extents and block groups, which describe the same space.

use std::collections::BTreeMap;

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, DevExtent, DevItem, kind, objectid};

use super::error::CheckError;
use super::finding::Finding;
use super::source::{has_parity, on_device};
use super::state::{Check, Pointer};
use super::superblock::is_dump;
use super::walk::{Walk, entries};

struct Group {
    len: u64,
    flags: BlockGroupFlags,
    used: u64,
    /// Sum of its extents.
    charged: u64,
}

/// Block groups by address.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<u64, Group>);

impl Groups {
    /// Returns false if there is one at this address already.
    pub(super) fn add(
        &mut self,
        logical: u64,
        len: u64,
        flags: BlockGroupFlags,
        used: u64,
    ) -> bool {
        let fresh = !self.0.contains_key(&logical);
        self.0.entry(logical).or_insert(Group {
            len,
            flags,
            used,
            charged: 0,
        });
        fresh
    }

    /// Charges the group that contains all of an extent. Returns its flags.
    pub(super) fn charge(&mut self, bytenr: u64, len: u64) -> Option<BlockGroupFlags> {
        let (start, group) = self.0.range_mut(..=bytenr).next_back()?;
        let end = bytenr.checked_add(len)?;
        if end > start.saturating_add(group.len) {
            return None;
        }
        group.charged = group.charged.saturating_add(len);
        Some(group.flags)
    }

    /// Address, `used` of the item, and charged bytes of each group.
    pub(super) fn used(&self) -> Vec<(u64, u64, u64)> {
        self.0
            .iter()
            .map(|(at, g)| (*at, g.used, g.charged))
            .collect()
    }

    /// Begin and end of each group.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let range = |(at, g): (&u64, &Group)| (*at, at.saturating_add(g.len));
        self.0.iter().map(range).collect()
    }
}

/// A UUID as a number, for comparison and display.
fn half(uuid: &[u8; 16]) -> u64 {
    let bytes = uuid.iter();
    bytes.fold(0, |n, byte| n.rotate_left(8) ^ u64::from(*byte))
}

impl Check<'_> {
    /// Walks the chunk tree through the system chunks in the superblock, and uses its map.
    pub(super) fn chunk_tree(&mut self) -> Result<(), CheckError> {
        let root = Pointer {
            logical: self.sb.chunk_root.get(),
            level: self.sb.chunk_root_level,
            generation: self.sb.chunk_root_generation.get(),
            first_key: None,
        };
        self.refuse_parity()?;
        let mut chunks = Vec::new();
        let mut devices = Vec::new();
        let tree = objectid::CHUNK_TREE;
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                match key.kind {
                    kind::CHUNK_ITEM => {
                        chunks.extend(ChunkItem::parse(data).map(|c| (key.offset, c)));
                    }
                    kind::DEV_ITEM => devices.extend(DevItem::read(data)),
                    _ => check.unexpected(tree, block, key),
                }
            }
        });
        if !self.has_hole(objectid::CHUNK_TREE) {
            self.compare_sys_chunks(&chunks);
            self.source.chunks.clear();
        }
        self.source.chunks.extend(chunks);
        self.refuse_parity()?;
        self.compare_chunks();
        self.compare_devices(&devices);
        Ok(())
    }

    fn refuse_parity(&self) -> Result<(), CheckError> {
        let mut chunks = self.source.chunks.iter();
        match chunks.find(|(_, chunk)| has_parity(chunk.flags)) {
            Some((&logical, chunk)) => Err(CheckError::Profile {
                logical,
                profile: chunk.flags.profile_name(),
            }),
            None => Ok(()),
        }
    }

    fn compare_sys_chunks(&mut self, chunks: &[(u64, ChunkItem)]) {
        for (logical, chunk) in chunks {
            let system = chunk.flags.contains(BlockGroupFlags::SYSTEM);
            if system && !self.source.chunks.contains_key(logical) {
                self.found(Finding::SysChunkMissing { logical: *logical });
            }
        }
        let of_super: Vec<_> = self.source.chunks.clone().into_iter().collect();
        for entry in of_super.iter().filter(|entry| !chunks.contains(entry)) {
            self.found(Finding::SysChunkStray { logical: entry.0 });
        }
    }

    fn compare_chunks(&mut self) {
        let mut before = 0;
        let mut odd = Vec::new();
        for (&logical, chunk) in &self.source.chunks {
            if logical < before {
                odd.push(Finding::ChunkOverlap {
                    logical,
                    end: before,
                });
            }
            before = before.max(logical.saturating_add(chunk.length));
            for stripe in &chunk.stripes {
                if !self.source.disks.iter().any(|d| d.devid == stripe.devid) {
                    odd.push(Finding::ChunkDevice {
                        logical,
                        devid: stripe.devid,
                    });
                }
            }
        }
        odd.into_iter().for_each(|f| self.found(f));
    }

    fn compare_devices(&mut self, devices: &[DevItem]) {
        if self.has_hole(objectid::CHUNK_TREE) {
            return;
        }
        let total = devices
            .iter()
            .fold(0u64, |sum, d| sum.saturating_add(d.total_bytes.get()));
        let (found, expected) = (self.sb.total_bytes.get(), total);
        if found != expected {
            self.found(Finding::SuperTotalBytes { found, expected });
        }
        let (found, expected) = (self.sb.num_devices.get(), devices.len() as u64);
        if found != expected {
            self.found(Finding::SuperDevices { found, expected });
        }
        for item in devices {
            let (devid, total_bytes) = (item.devid.get(), item.total_bytes.get());
            self.groups_of_device(devid, total_bytes, item.bytes_used.get());
            let disk = self.source.disks.iter().find(|d| d.devid == devid);
            let size = disk.map_or(0, |d| d.device.size());
            if size < total_bytes {
                self.found(Finding::DeviceSize {
                    devid,
                    size,
                    total_bytes,
                });
            }
            let (found, expected) = (half(&self.sb.tree_fsid()), half(&item.fsid));
            if found != expected {
                self.found(Finding::DeviceItem {
                    devid,
                    field: "fsid",
                    found,
                    expected,
                });
            }
            let own = self.sb.dev_item;
            // A dump may be restored to a device of another size, but keeps the old items.
            if own.devid == item.devid && !is_dump(&self.sb) {
                self.compare_dev_item(&own, item);
            }
            self.compare_stripe_uuids(item);
        }
    }

    /// Stripes name their device by id and by UUID.
    fn compare_stripe_uuids(&mut self, item: &DevItem) {
        let devid = item.devid.get();
        let chunks = self.source.chunks.iter();
        let odd = chunks.filter(|(_, chunk)| {
            let mut stripes = chunk.stripes.iter();
            stripes.any(|s| s.devid == devid && s.dev_uuid != item.uuid)
        });
        let odd: Vec<u64> = odd.map(|(logical, _)| *logical).collect();
        for logical in odd {
            self.found(Finding::ChunkDeviceUuid { logical, devid });
        }
    }

    fn compare_dev_item(&mut self, own: &DevItem, item: &DevItem) {
        for (field, found, expected) in [
            ("total bytes", own.total_bytes.get(), item.total_bytes.get()),
            ("bytes used", own.bytes_used.get(), item.bytes_used.get()),
            ("uuid", half(&own.uuid), half(&item.uuid)),
        ] {
            if found != expected {
                let devid = own.devid.get();
                self.found(Finding::DeviceItem {
                    devid,
                    field,
                    found,
                    expected,
                });
            }
        }
    }

    /// Stores the numbers of a device item until the device extents are known.
    fn groups_of_device(&mut self, devid: u64, total_bytes: u64, bytes_used: u64) {
        self.roots.devices.insert(devid, (total_bytes, bytes_used));
    }

    /// Walks the device tree and compares it with the chunks.
    pub(super) fn dev_tree(&mut self) {
        let Some(root) = self.tree(objectid::DEV_TREE) else {
            return;
        };
        let mut extents = BTreeMap::new();
        let tree = objectid::DEV_TREE;
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                match key.kind {
                    kind::DEV_EXTENT => {
                        let extent = DevExtent::read(data);
                        extents.extend(extent.map(|e| ((key.objectid, key.offset), e)));
                    }
                    kind::PERSISTENT_ITEM | kind::TEMPORARY_ITEM | kind::DEV_REPLACE => {}
                    _ => check.unexpected(tree, block, key),
                }
            }
        });
        if self.has_hole(objectid::DEV_TREE) || self.has_hole(objectid::CHUNK_TREE) {
            return;
        }
        self.compare_dev_extents(&extents);
        self.compare_stripes(&extents);
    }

    fn compare_dev_extents(&mut self, extents: &BTreeMap<(u64, u64), DevExtent>) {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        let mut before = (0, 0);
        for (&(devid, physical), extent) in extents {
            let (found, logical) = (extent.length.get(), extent.chunk_offset.get());
            let end = physical.saturating_add(found);
            if before.0 == devid && physical < before.1 {
                self.found(Finding::DevExtentOverlap {
                    devid,
                    physical,
                    end: before.1,
                });
            }
            before = (devid, end);
            let sum = used.entry(devid).or_default();
            *sum = sum.saturating_add(found);
            let size = self.roots.devices.get(&devid).map_or(0, |d| d.0);
            if end > size {
                self.found(Finding::DevExtentPastEnd {
                    devid,
                    physical,
                    end,
                    size,
                });
            }
            let has = |c: &&ChunkItem| {
                c.stripes
                    .iter()
                    .any(|s| (s.devid, s.offset) == (devid, physical))
            };
            match self.source.chunks.get(&logical).filter(has).map(on_device) {
                None => self.found(Finding::DevExtentStray {
                    devid,
                    physical,
                    logical,
                }),
                Some(expected) if expected != found => {
                    self.found(Finding::DevExtentLength {
                        devid,
                        physical,
                        found,
                        expected,
                    });
                }
                Some(_) => {}
            }
        }
        for (devid, (_, found)) in self.roots.devices.clone() {
            let expected = used.get(&devid).copied().unwrap_or(0);
            if found != expected {
                self.found(Finding::DeviceBytesUsed {
                    devid,
                    found,
                    expected,
                });
            }
        }
    }

    fn compare_stripes(&mut self, extents: &BTreeMap<(u64, u64), DevExtent>) {
        let mut odd = Vec::new();
        for (&logical, chunk) in &self.source.chunks {
            for stripe in &chunk.stripes {
                let (devid, physical) = (stripe.devid, stripe.offset);
                let extent = extents.get(&(devid, physical));
                if extent.is_none_or(|e| e.chunk_offset.get() != logical) {
                    odd.push(Finding::DevExtentMissing {
                        logical,
                        devid,
                        physical,
                    });
                }
            }
        }
        odd.into_iter().for_each(|f| self.found(f));
    }

    /// Walks the block-group tree, if there is one.
    pub(super) fn block_group_tree(&mut self) {
        let tree = objectid::BLOCK_GROUP_TREE;
        let Some(root) = self.roots.pointer(tree) else {
            return;
        };
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                if key.kind == kind::BLOCK_GROUP_ITEM {
                    check.block_group(tree, &key, data);
                } else {
                    check.unexpected(tree, block, key);
                }
            }
        });
    }

    /// Compares block groups with chunks.
    pub(super) fn compare_groups(&mut self) {
        if self.has_hole(self.group_tree()) || self.has_hole(objectid::CHUNK_TREE) {
            return;
        }
        let mut odd = Vec::new();
        for (&logical, chunk) in &self.source.chunks {
            let Some(group) = self.groups.0.get(&logical) else {
                odd.push(Finding::BlockGroupMissing { logical });
                continue;
            };
            let (found, expected) = (group.len, chunk.length);
            if found != expected {
                odd.push(Finding::BlockGroupLength {
                    logical,
                    found,
                    expected,
                });
            }
            let (found, expected) = (group.flags, chunk.flags);
            if found != expected {
                odd.push(Finding::BlockGroupKind {
                    logical,
                    found,
                    expected,
                });
            }
        }
        for &logical in self.groups.0.keys() {
            if !self.source.chunks.contains_key(&logical) {
                odd.push(Finding::BlockGroupStray { logical });
            }
        }
        odd.into_iter().for_each(|f| self.found(f));
    }
}
