//! Writing a fast commit.

use std::collections::BTreeMap;

use sapwood_ext4_format::{INODE_BASE_SIZE, Inode as RawInode};
use sapwood_jbd2::{FastCommitLeader, FastCommitStart, Tid};
use sapwood_vfs::FileKind;

use super::encode::Encoder;
use crate::Result;
use crate::commit_reason::Reason;
use crate::inode::table_place;
use crate::store::Store;
use crate::track::{Naming, Record, Taken};

/// How an inode became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is durable by a fast commit that was written since the call began, and with it all data
    /// that was written before.
    Written,
    /// It was durable already.
    Found,
    /// Only a commit of its transaction makes it durable.
    Whole(Reason),
}

/// An inode as it stands in its table.
struct Stored {
    kind: Option<FileKind>,
    named: bool,
    /// What a tag says of it: the part that has fields.
    fields: Vec<u8>,
}

/// All that a fast commit says, fixed while no handle is open.
struct Snapshot {
    taken: Taken,
    inodes: BTreeMap<u32, Stored>,
}

impl Snapshot {
    /// Whether there is nothing to say, as directories follow from their names.
    fn is_empty(&self) -> bool {
        self.taken.changes.is_empty() && self.told().next().is_none()
    }

    /// Inodes whose fields are to be said, with these.
    fn told(&self) -> impl Iterator<Item = (u32, &Stored)> {
        let stored = |ino: &u32| Some((*ino, self.inodes.get(ino)?));
        let all = self.taken.touched.iter().filter_map(stored);
        all.filter(|(_, one)| one.kind != Some(FileKind::Directory))
    }
}

enum Look {
    Found,
    Whole(Reason),
    Write(Snapshot),
}

/// Makes durable what transaction `tid` has of an inode so far, by a fast commit if there can be
/// one; after that the device was flushed. Hold no handle.
///
/// # Errors
/// The device; the journal is aborted then.
pub(crate) fn commit(store: &Store, ino: u32, tid: Tid) -> Result<Outcome> {
    let leader = match store.journal.begin_fast_commit()? {
        FastCommitStart::Leader(leader) => leader,
        FastCommitStart::Durable => return Ok(Outcome::Written),
        FastCommitStart::NoArea => return Ok(Outcome::Whole(Reason::Area)),
    };
    if tid <= store.journal.durable_tid() {
        return Ok(Outcome::Found);
    }
    if let Some(reason) = leader.requires_whole() {
        return Ok(Outcome::Whole(Reason::from_number(reason)));
    }
    // What is being changed just now is nothing that the caller was told of.
    if !store
        .fast_commits
        .with(leader.tid(), |records| records.has(ino))
    {
        return Ok(Outcome::Found);
    }
    let look = leader.quiesce(|whole| match whole {
        Some(reason) => Ok(Look::Whole(Reason::from_number(reason))),
        None => look(store, leader.tid(), ino),
    })??;
    match look {
        Look::Found => Ok(Outcome::Found),
        Look::Whole(reason) => Ok(Outcome::Whole(reason)),
        Look::Write(snapshot) if snapshot.is_empty() => Ok(Outcome::Found),
        Look::Write(snapshot) => write(store, leader, &snapshot),
    }
}

/// Takes what is to be said, while no handle is open.
fn look(store: &Store, tid: Tid, ino: u32) -> Result<Look> {
    let touched = store.fast_commits.with(tid, |records| records.touched());
    if !touched.contains(&ino) {
        return Ok(Look::Found);
    }
    let mut inodes = BTreeMap::new();
    for ino in touched {
        let stored = read(store, ino)?;
        if stored.named && store.orphans.knows(ino) {
            return Ok(Look::Whole(Reason::Orphan));
        }
        inodes.insert(ino, stored);
    }
    let alive = |ino: u32| inodes.get(&ino).is_some_and(|stored: &Stored| stored.named);
    let tracker = &store.fast_commits;
    if tracker.careful()
        && !sapwood_fault::planted(127)
        && tracker.with(tid, |records| records.deletes(alive))
    {
        return Ok(Look::Whole(Reason::Deleted));
    }
    let taken = tracker.with(tid, |records| records.take(alive));
    Ok(Look::Write(Snapshot { taken, inodes }))
}

/// What the next commit would write of an inode.
fn read(store: &Store, ino: u32) -> Result<Stored> {
    let (buffer, offset) = table_place(store, ino)?;
    let content = buffer.read();
    let size = usize::from(store.geometry.inode_size());
    let bytes = content.get(offset..offset + size).unwrap_or_default();
    let raw = RawInode::read(bytes, &store.geometry)?;
    let known = match raw.extra_isize() {
        0 => INODE_BASE_SIZE,
        extra => INODE_BASE_SIZE + extra,
    };
    Ok(Stored {
        kind: FileKind::from_mode(raw.mode().into()),
        named: raw.links() > 0 && raw.mode() != 0,
        fields: bytes.get(..known).unwrap_or_default().to_vec(),
    })
}

/// Blocks of a fast commit.
///
/// The first block of the area must not be torn: the kernel refuses the mount if the first fast
/// commit has a beginning and no end (6.18). So what does not fit into its first sector comes
/// behind one that says nothing, and does.
fn encode(store: &Store, tid: u32, snapshot: &Snapshot) -> Vec<Vec<u8>> {
    let new = || Encoder::new(store.geometry.block_size() as usize);
    let mut encoder = new();
    if snapshot.taken.next_block > 0 {
        say(&mut encoder, snapshot);
        return encoder.finish(tid);
    }
    encoder.head(tid);
    say(&mut encoder, snapshot);
    if encoder.in_one_sector() {
        return encoder.finish(tid);
    }
    let (mut opening, mut encoder) = (new(), new());
    opening.head(tid);
    say(&mut encoder, snapshot);
    let mut blocks = opening.finish(tid);
    blocks.extend(encoder.finish(tid));
    blocks
}

fn say(encoder: &mut Encoder, snapshot: &Snapshot) {
    let Snapshot { taken, inodes } = snapshot;
    for record in &taken.changes {
        // A name for what is not there would be an error.
        if let Record::Name {
            name,
            how: Naming::Create,
        } = record
            && let Some(stored) = inodes.get(&name.ino)
        {
            encoder.inode(name.ino, &stored.fields);
        }
        encoder.change(record);
    }
    // Last, as names change what an inode counts.
    for (ino, stored) in snapshot.told() {
        encoder.inode(ino, &stored.fields);
    }
}

fn write(store: &Store, leader: FastCommitLeader<'_>, snapshot: &Snapshot) -> Result<Outcome> {
    let at = snapshot.taken.next_block;
    let blocks = encode(store, leader.tid() as u32, snapshot);
    let end = at + blocks.len() as u64;
    if end > leader.log().fast_commit_blocks() {
        leader.require_whole(Reason::Area.number());
        return Ok(Outcome::Whole(Reason::Area));
    }
    if let Err(error) = put(store, &leader, at, &blocks, snapshot.taken.data_written) {
        store.journal.abort(&error);
        return Err(error);
    }
    store
        .fast_commits
        .with(leader.tid(), |records| records.next_block = end);
    store.counters.fast_commits.written(blocks.len() as u64);
    leader.durable();
    Ok(Outcome::Written)
}

/// Makes it durable: what it leads to first, as nothing but its checksum tells whether it is whole.
fn put(
    store: &Store,
    leader: &FastCommitLeader<'_>,
    at: u64,
    blocks: &[Vec<u8>],
    data_written: bool,
) -> Result<()> {
    let flush = || -> Result<()> {
        store.counters.fast_commits.flushed();
        Ok(store.device.flush()?)
    };
    let written_back = at == 0 && write_back(store, leader)?;
    if data_written && !sapwood_fault::planted(138) || written_back && !sapwood_fault::planted(362)
    {
        flush()?;
    }
    let pieces: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    leader.write(at, &pieces)?;
    match sapwood_fault::planted(147) {
        true => Ok(()),
        false => flush(),
    }
}

/// Writes the superblock and the group descriptors to their home location if the log has newer
/// ones: `e2fsck` (1.47) takes them from there. With an older superblock it makes the checksum of
/// the superblock wrong, and gives up. Of groups that were used first since the last checkpoint it
/// forgets all blocks and inodes, so that it meets orphans whose blocks are free.
///
/// True if anything was written. It has to be durable before the first fast commit.
fn write_back(store: &Store, leader: &FastCommitLeader<'_>) -> Result<bool> {
    let geometry = &store.geometry;
    let mut written = leader.write_back(geometry.super_block())?;
    let each_block = geometry.descs_per_block().max(1) as usize;
    for group in (0..geometry.group_count()).step_by(each_block) {
        let (block, _) = geometry.descriptor_block(group)?;
        written |= leader.write_back(block)?;
    }
    Ok(written)
}
