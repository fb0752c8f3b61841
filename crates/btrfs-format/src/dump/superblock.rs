//! Readable dumps of superblocks.

use std::fmt;

use super::{Text, Uuid};
use crate::SuperBlock;

/// Prints a superblock, one field or group of fields per line.
pub struct DumpSuper<'a>(pub &'a SuperBlock);

impl fmt::Display for DumpSuper<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = self.0;
        writeln!(
            f,
            "superblock at {} generation {}",
            sb.bytenr, sb.generation
        )?;
        match sb.checksum_kind() {
            Some(kind) => {
                let found = kind
                    .read(&sb.csum)
                    .map(|c| c.to_string())
                    .unwrap_or_default();
                let verdict = match kind.verify_block(sb.bytes()) {
                    Ok(()) => String::from("right"),
                    Err(bad) => format!("WRONG, expected {}", bad.expected),
                };
                writeln!(f, "checksum {kind} {found} ({verdict})")?;
            }
            None => writeln!(f, "checksum of unknown kind {}", sb.csum_type)?,
        }
        writeln!(f, "magic {}", Text(&sb.magic))?;
        writeln!(f, "label {}", Text(sb.label_bytes()))?;
        writeln!(
            f,
            "fsid {} metadata uuid {}",
            Uuid(&sb.fsid),
            Uuid(&sb.metadata_uuid)
        )?;
        writeln!(f, "flags {}", sb.super_flags())?;
        writeln!(f, "incompat {}", sb.incompat())?;
        writeln!(f, "compat-ro {}", sb.compat_ro())?;
        writeln!(
            f,
            "sector {} node {} stripe {}",
            sb.sectorsize, sb.nodesize, sb.stripesize
        )?;
        writeln!(
            f,
            "total {} used {} devices {}",
            sb.total_bytes, sb.bytes_used, sb.num_devices
        )?;
        writeln!(f, "root tree {} level {}", sb.root, sb.root_level)?;
        writeln!(
            f,
            "chunk tree {} level {} generation {}",
            sb.chunk_root, sb.chunk_root_level, sb.chunk_root_generation
        )?;
        writeln!(f, "log tree {} level {}", sb.log_root, sb.log_root_level)?;
        writeln!(
            f,
            "cache generation {} uuid tree generation {}",
            sb.cache_generation.get() as i64,
            sb.uuid_tree_generation
        )?;
        let dev = &sb.dev_item;
        writeln!(
            f,
            "device {} uuid {} total {} used {}",
            dev.devid,
            Uuid(&dev.uuid),
            dev.total_bytes,
            dev.bytes_used
        )?;
        for chunk in sb.sys_chunks() {
            match chunk {
                Ok((logical, chunk)) => {
                    writeln!(f, "system chunk {logical}{}", super::item::Chunk(&chunk))?;
                }
                Err(err) => writeln!(f, "system chunk array: {err}")?,
            }
        }
        self.backups(f)
    }
}

impl DumpSuper<'_> {
    fn backups(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, b) in self.0.super_roots.iter().enumerate() {
            if b.tree_root.get() == 0 {
                continue;
            }
            write!(
                f,
                "backup {n}: total {} used {}",
                b.total_bytes, b.bytes_used
            )?;
            for (name, at, generation, level) in [
                ("root", b.tree_root, b.tree_root_gen, b.tree_root_level),
                ("chunk", b.chunk_root, b.chunk_root_gen, b.chunk_root_level),
                (
                    "extent",
                    b.extent_root,
                    b.extent_root_gen,
                    b.extent_root_level,
                ),
                ("fs", b.fs_root, b.fs_root_gen, b.fs_root_level),
                ("dev", b.dev_root, b.dev_root_gen, b.dev_root_level),
                ("csum", b.csum_root, b.csum_root_gen, b.csum_root_level),
            ] {
                write!(f, "; {name} {at} generation {generation} level {level}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
