//! Makes an empty qcow2 file.

use crate::{Device, Result};

use super::header::MAGIC;

/// Bytes of a cluster: 2 to this power. The default of qemu.
const CLUSTER_BITS: u32 = 16;

/// Makes a file an empty qcow2 file of version 3 with a disk of `size` bytes, durably. The file is
/// made longer as needed.
///
/// # Errors
/// I/O errors of the device.
pub fn create_qcow2(device: &dyn Device, size: u64) -> Result<()> {
    let cluster = 1_u64 << CLUSTER_BITS;
    let entries = size.div_ceil(cluster * (cluster / 8)).max(1);
    let l1_clusters = (entries * 8).div_ceil(cluster);
    // Header, table of counts, a block of counts, the L1 table.
    let used = 3 + l1_clusters;
    device.grow(used * cluster)?;
    let mut header = vec![0; cluster as usize];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(4, &3_u32.to_be_bytes());
    put(20, &CLUSTER_BITS.to_be_bytes());
    put(24, &size.to_be_bytes());
    put(36, &(entries as u32).to_be_bytes());
    put(40, &(3 * cluster).to_be_bytes());
    put(48, &cluster.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &112_u32.to_be_bytes());
    let mut table = vec![0; cluster as usize];
    table[..8].copy_from_slice(&(2 * cluster).to_be_bytes());
    let mut counts = vec![0; cluster as usize];
    for at in 0..used as usize {
        counts[at * 2 + 1] = 1;
    }
    device.write_at(cluster, &table)?;
    device.write_at(2 * cluster, &counts)?;
    device.write_at(3 * cluster, &vec![0; (l1_clusters * cluster) as usize])?;
    device.flush()?;
    device.write_at(0, &header)?;
    device.flush()
}
