//! The superblock, its copies, and the copies of descriptors.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{
    Compat, FormatError, Geometry, GroupDesc, INODE_BASE_SIZE, Incompat, MMP_SEQ_CLEAN, MmpBlock,
    RoCompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState, special_ino, validate_super,
};

use super::finding::Finding;
use super::journal;
use super::report::CheckError;
use super::state::{Check, View};
use crate::journal_device::JournalDevice;

/// Compatible features that are known.
const KNOWN_COMPAT: Compat = Compat::from_bits_retain(0x1f7f);
/// Read-only-compatible features that this check supports.
const KNOWN_RO: RoCompat = RoCompat::from_bits_retain(0x1f77b);
/// Most bytes of a group descriptor.
const DESC_SIZE_MAX: u16 = 1024;

/// Result of reading the superblock.
pub(super) struct Opened {
    pub(super) view: View,
    pub(super) recovered: bool,
}

/// Reads the superblock and replays the journal into memory if that is needed.
pub(super) fn open(
    device: &Arc<dyn Device>,
    journal: Option<&JournalDevice>,
    findings: &mut Vec<Finding>,
) -> Result<Opened, CheckError> {
    let mut view = read(device, findings)?;
    view.journal = journal.map(JournalDevice::in_memory);
    let recover = view.geometry.features().has_incompat(Incompat::RECOVER);
    if !recover {
        state(&view, findings);
        journal::judge(&view, findings);
        return Ok(Opened {
            view,
            recovered: false,
        });
    }
    findings.push(Finding::NeedsRecovery {});
    let Some(overlay) = journal::replayed(&view, findings) else {
        return Ok(Opened {
            view,
            recovered: true,
        });
    };
    // The replayed superblock is checked instead.
    findings.retain(|finding| !matches!(finding, Finding::SuperField { .. }));
    let journal = view.journal;
    let mut view = read(&overlay, findings)?;
    view.device = overlay;
    view.journal = journal;
    Ok(Opened {
        view,
        recovered: true,
    })
}

/// Reads and checks the superblock of a device.
fn read(device: &Arc<dyn Device>, findings: &mut Vec<Finding>) -> Result<View, CheckError> {
    let name = || device.name().to_owned();
    let not_ext4 = || CheckError::NotExt4 { device: name() };
    if device.size() < SUPER_OFFSET + SUPER_SIZE as u64 {
        return Err(not_ext4());
    }
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes)?;
    let bad = |source| CheckError::Super {
        device: name(),
        source,
    };
    let sb = SuperBlock::read(&bytes).map_err(bad)?;
    if sb.magic.get() != sapwood_ext4_format::SUPER_MAGIC {
        return Err(not_ext4());
    }
    let features = sb.features();
    let mut unknown = features.read_blockers().names();
    if features.has_incompat(Incompat::JOURNAL_DEV) {
        unknown.push("journal_dev".into());
    }
    unknown.extend(features.ro_compat.difference(KNOWN_RO).names());
    if !unknown.is_empty() {
        return Err(CheckError::Features(unknown.join(", ")));
    }
    let unknown = features.compat.difference(KNOWN_COMPAT).names();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        findings.push(Finding::UnknownFeatures { names });
    }
    if let Err(error) = sb.verify_checksum() {
        findings.push(Finding::SuperChecksum { error });
    }
    let geometry = Geometry::new(&sb).map_err(bad)?;
    geometry.check_device(device.size()).map_err(bad)?;
    if let Err(error) = validate_super(&sb, device.size()) {
        findings.push(Finding::SuperField { error });
    }
    findings.extend(extra_isize(&sb, &geometry));
    findings.extend(contradictions(&sb));
    // Linux then treats each group by itself; e2fsck does not open the image.
    if sb.log_groups_per_flex > 31 {
        findings.push(Finding::SuperField {
            error: FormatError::Super {
                field: "log_groups_per_flex",
                value: sb.log_groups_per_flex.into(),
                why: "a power of two above 2^31",
            },
        });
    }
    let device = Arc::clone(device);
    Ok(View {
        device,
        sb,
        geometry,
        journal: None,
    })
}

/// Checks the bytes that inodes should have beyond the first 128: at most as many as exist, and at
/// least the field itself and the checksum.
fn extra_isize(sb: &SuperBlock, geometry: &Geometry) -> Vec<Finding> {
    let most = geometry.inode_size().saturating_sub(INODE_BASE_SIZE as u16);
    let fields = [
        ("min_extra_isize", sb.min_extra_isize.get()),
        ("want_extra_isize", sb.want_extra_isize.get()),
    ];
    let bad = |value: u16| !(4..=most).contains(&value) || !value.is_multiple_of(4);
    let wrong = fields
        .into_iter()
        .filter(|(_, value)| most > 0 && *value != 0 && bad(*value));
    let finding = |(field, value)| Finding::SuperField {
        error: FormatError::Super {
            field,
            value: u64::from(value),
            why: "inodes have no such room",
        },
    };
    wrong.map(finding).collect()
}

/// A rule for a superblock: whether it is violated, the field with its value, and the reason.
type Fault = (bool, (&'static str, u64), &'static str);

/// Fields and features that contradict each other, where a mount needs only one of the two.
fn contradictions(sb: &SuperBlock) -> Vec<Finding> {
    let faults = field_faults(sb).into_iter().chain(feature_faults(sb));
    let faults = faults.filter(|(is, ..)| *is);
    let finding = |(_, (field, value), why)| Finding::SuperField {
        error: FormatError::Super { field, value, why },
    };
    faults.map(finding).collect()
}

fn field_faults(sb: &SuperBlock) -> [Fault; 7] {
    let features = sb.features();
    let compat = |feature| features.has_compat(feature);
    let (clusters, desc) = (sb.clusters_per_group.get(), sb.desc_size.get());
    let per_group = sb.blocks_per_group.get();
    let (users, groups) = (sb.usr_quota_inum.get(), sb.grp_quota_inum.get());
    let projects = sb.prj_quota_inum.get();
    let orphans = sb.orphan_file_inum.get();
    let quota = features.has_ro_compat(RoCompat::QUOTA);
    let bigalloc = features.has_ro_compat(RoCompat::BIGALLOC);
    let journal = compat(Compat::HAS_JOURNAL) && sb.journal_inum.get() != 0;
    let used = sb.journal_uuid.iter().find(|byte| **byte != 0);
    [
        (
            !bigalloc && clusters != per_group,
            ("clusters_per_group", clusters.into()),
            "without bigalloc it is the number of blocks of a group",
        ),
        (
            desc != 0 && (!desc.is_power_of_two() || desc > DESC_SIZE_MAX),
            ("desc_size", desc.into()),
            "neither 0 nor a power of two up to 1024",
        ),
        (
            journal && used.is_some(),
            (
                "a byte of journal_uuid",
                used.map_or(0, |byte| u64::from(*byte)),
            ),
            "it is for a journal on another device, and the journal is an inode",
        ),
        (
            ![0, special_ino::USER_QUOTA].contains(&users),
            ("usr_quota_inum", users.into()),
            "not the inode for quotas of users",
        ),
        (
            ![0, special_ino::GROUP_QUOTA].contains(&groups),
            ("grp_quota_inum", groups.into()),
            "not the inode for quotas of groups",
        ),
        (
            projects != 0 && (!quota || projects < sb.first_ino.get()),
            ("prj_quota_inum", projects.into()),
            "no inode for quotas of projects",
        ),
        (
            compat(Compat::ORPHAN_FILE) != (orphans != 0),
            ("orphan_file_inum", orphans.into()),
            "the feature orphan_file and its inode need each other",
        ),
    ]
}

fn feature_faults(sb: &SuperBlock) -> [Fault; 4] {
    let features = sb.features();
    let compat = |feature| features.has_compat(feature);
    let incompat = |feature| features.has_incompat(feature);
    let ro = |feature| features.has_ro_compat(feature);
    let ro_bits = ("feature_ro_compat", features.ro_compat.bits().into());
    let incompat_bits = ("feature_incompat", features.incompat.bits().into());
    [
        (
            compat(Compat::RESIZE_INODE) && incompat(Incompat::META_BG),
            incompat_bits,
            "resize_inode and meta_bg exclude each other",
        ),
        (
            incompat(Incompat::CSUM_SEED) && !ro(RoCompat::METADATA_CSUM),
            incompat_bits,
            "metadata_csum_seed needs metadata_csum",
        ),
        (
            ro(RoCompat::METADATA_CSUM) && ro(RoCompat::GDT_CSUM),
            ro_bits,
            "metadata_csum and uninit_bg exclude each other",
        ),
        (
            ro(RoCompat::ORPHAN_PRESENT) && !compat(Compat::ORPHAN_FILE),
            ro_bits,
            "orphan_present needs orphan_file",
        ),
    ]
}

/// Checks the state that the last users recorded in the superblock.
fn state(view: &View, findings: &mut Vec<Finding>) {
    let state = view.sb.state();
    if !state.contains(SuperState::VALID) {
        findings.push(Finding::NotClean {});
    }
    let count = view.sb.error_count.get();
    if state.contains(SuperState::ERROR) || count != 0 {
        findings.push(Finding::ErrorsNoted { count });
    }
}

impl Check<'_> {
    /// Checks the copies of the superblock, and the MMP block.
    pub(super) fn copies_of_super(&mut self) {
        let view = Arc::clone(&self.view);
        for group in 1..view.geometry.group_count() {
            let Some(block) = view.geometry.backup_super_block(group) else {
                continue;
            };
            match view.block(block) {
                Ok(bytes) => self.copy_of_super(group, &bytes),
                Err(finding) => self.found(finding),
            }
        }
        if view.geometry.features().has_incompat(Incompat::MMP) {
            self.mmp(&view);
        }
    }

    fn copy_of_super(&mut self, group: u32, bytes: &[u8]) {
        let bytes = bytes.get(..SUPER_SIZE).unwrap_or(bytes);
        let copy = match SuperBlock::parse(bytes) {
            Ok(copy) => copy,
            Err(error) => return self.found(Finding::SuperBackupBad { group, error }),
        };
        let sb = &self.view.sb;
        let fields: [(&'static str, u64, u64); 9] = [
            (
                "inodes",
                copy.inodes_count.get().into(),
                sb.inodes_count.get().into(),
            ),
            ("blocks", copy.blocks_count(), sb.blocks_count()),
            (
                "log_block_size",
                copy.log_block_size.get().into(),
                sb.log_block_size.get().into(),
            ),
            (
                "blocks_per_group",
                copy.blocks_per_group.get().into(),
                sb.blocks_per_group.get().into(),
            ),
            (
                "inodes_per_group",
                copy.inodes_per_group.get().into(),
                sb.inodes_per_group.get().into(),
            ),
            (
                "inode_size",
                copy.inode_size.get().into(),
                sb.inode_size.get().into(),
            ),
            (
                "first_data_block",
                copy.first_data_block.get().into(),
                sb.first_data_block.get().into(),
            ),
            (
                "desc_size",
                copy.desc_size.get().into(),
                sb.desc_size.get().into(),
            ),
            ("group", copy.block_group_nr.get().into(), u64::from(group)),
        ];
        for (field, found, expected) in fields {
            // The field for the group number has 16 bits.
            let same = found == expected || field == "group" && found == expected & 0xffff;
            if !same {
                self.found(Finding::SuperBackupDiffers {
                    group,
                    field,
                    found,
                    expected,
                });
            }
        }
    }

    fn mmp(&mut self, view: &View) {
        let block = view.sb.mmp_block.get();
        let bytes = match view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => return self.found(finding),
        };
        let seed = view.geometry.metadata_csum();
        let seed = seed.then(|| view.geometry.csum_seed());
        match MmpBlock::parse(&bytes, seed) {
            Ok(mmp) if mmp.seq.get() != MMP_SEQ_CLEAN && !self.options.protected => {
                let sequence = mmp.seq.get();
                self.found(Finding::MmpInUse { block, sequence });
            }
            Ok(_) => {}
            Err(error) => self.found(Finding::MmpBad { block, error }),
        }
        self.used.insert(block);
    }

    /// Compares the copies of one block of the descriptor table with the groups' descriptors.
    pub(super) fn copies_of_descriptors(&mut self, index: u32) {
        let view = Arc::clone(&self.view);
        let per_block = view.geometry.descs_per_block();
        let size = usize::from(view.geometry.desc_size());
        let first = index.saturating_mul(per_block);
        for block in view.geometry.desc_table_backups(index) {
            let bytes = match view.block(block) {
                Ok(bytes) => bytes,
                Err(finding) => {
                    self.found(finding);
                    continue;
                }
            };
            for (group, raw) in (first..).zip(bytes.chunks_exact(size)) {
                let Some(known) = self.groups.get(group as usize) else {
                    break;
                };
                let field = GroupDesc::read(raw, &view.geometry)
                    .ok()
                    .and_then(|copy| differs(&known.desc, &copy));
                if let Some(field) = field {
                    self.found(Finding::DescriptorBackupDiffers {
                        block,
                        group,
                        field,
                    });
                }
            }
        }
    }
}

/// The first location that differs in a copy of a descriptor.
fn differs(desc: &GroupDesc, copy: &GroupDesc) -> Option<&'static str> {
    let places = [
        ("block bitmap", desc.block_bitmap(), copy.block_bitmap()),
        ("inode bitmap", desc.inode_bitmap(), copy.inode_bitmap()),
        ("inode table", desc.inode_table(), copy.inode_table()),
    ];
    let other = places.into_iter().find(|(_, one, other)| one != other);
    other.map(|(field, _, _)| field)
}
