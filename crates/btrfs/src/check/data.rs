//! Reads all data that has checksums, in every copy.

use sapwood_btrfs_format::{Block, ChecksumKind, kind, objectid};

use super::finding::Finding;
use super::report::Phase;
use super::source::CopyAt;
use super::state::Check;
use super::walk::{Leaves, entries};

/// Most bytes of one read.
const STEP: u64 = 1 << 20;

/// A run of sectors and their checksums.
struct Run<'d> {
    bytenr: u64,
    sums: &'d [u8],
    kind: ChecksumKind,
}

impl Check<'_> {
    /// Verifies all data checksums.
    pub(super) fn verify_data(&mut self) {
        self.phase(Phase::Data, self.checksums.bytes());
        let tree = objectid::CSUM_TREE;
        let (Some(root), Some(kind)) = (self.roots.pointer(tree), self.sb.checksum_kind()) else {
            return;
        };
        let mut leaves = Leaves::new(tree, root);
        while let Some(bytes) = leaves.next(self) {
            let Ok(block) = Block::new(&bytes) else {
                continue;
            };
            for (key, sums) in entries(&block).filter(|(key, _)| key.kind == kind::EXTENT_CSUM) {
                self.verify_item(key.offset, sums, kind);
            }
        }
    }

    fn verify_item(&mut self, mut bytenr: u64, mut sums: &[u8], kind: ChecksumKind) {
        let sectorsize = self.sectorsize();
        while !sums.is_empty() {
            let wanted = ((sums.len() / kind.size()) as u64)
                .min(STEP / sectorsize)
                .max(1);
            // One item may have the checksums of neighbouring chunks.
            let room = self.source.contiguous(bytenr).max(sectorsize);
            let sectors = wanted.min(room / sectorsize).max(1);
            let (now, rest) = sums.split_at((sectors as usize * kind.size()).min(sums.len()));
            for at in self.source.copies(bytenr, sectors * sectorsize) {
                self.verify_copy(
                    &at,
                    &Run {
                        bytenr,
                        sums: now,
                        kind,
                    },
                );
            }
            self.done(sectors * sectorsize);
            sums = rest;
            bytenr = bytenr.saturating_add(sectors * sectorsize);
        }
    }

    fn verify_copy(&mut self, at: &CopyAt, run: &Run<'_>) {
        let sectorsize = self.sectorsize();
        let sums: Vec<&[u8]> = run.sums.chunks_exact(run.kind.size()).collect();
        let len = sums.len() as u64 * sectorsize;
        let mut data = vec![0; len as usize];
        if let Err(error) = self.source.read(at, &mut data) {
            let (bytenr, copy) = (run.bytenr, at.copy);
            return self.found(Finding::DataUnreadable {
                bytenr,
                len,
                copy,
                error,
            });
        }
        self.report.stats.verified_bytes += len;
        let mut first = None;
        let mut bad = 0;
        for (n, (sector, sum)) in data.chunks(sectorsize as usize).zip(&sums).enumerate() {
            let found = run.kind.compute(sector);
            if found.as_bytes() != *sum {
                bad += 1;
                first.get_or_insert((n as u64, found, *sum));
            }
        }
        let Some((n, found, sum)) = first else {
            return;
        };
        let Some(expected) = run.kind.read(sum) else {
            return;
        };
        self.found(Finding::DataChecksum {
            bytenr: run.bytenr + n * sectorsize,
            bad,
            sectors: sums.len() as u64 - n,
            copy: at.copy,
            device: self.source.device_name(at),
            physical: at.physical + n * sectorsize,
            found,
            expected,
        });
    }
}
