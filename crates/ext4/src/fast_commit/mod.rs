//! Fast commits: small records of the changes that an fsync needs, in addition to the journal's
//! transactions.
//!
//! # How it works
//! An image with this feature has an area after its log. In place of a whole transaction an fsync
//! may write the needed records there: inodes, ranges of blocks, names. These records count only if
//! they belong to the transaction that would follow in the log. A commit of that transaction makes
//! them stale.
//!
//! **Which transactions.** A handle makes its transaction ineligible for fast commits, unless it
//! was started with [`Store::start_tracked`]. Operations start so if a replay of their
//! [records](crate::track) repeats them. Each record is made where all changes of its kind pass;
//! changes that a fast commit cannot express are detected there, too ([`CommitReason`]). So every
//! change that is not recorded is committed whole.
//!
//! **Writing.** The caller that leads a fast commit keeps the journal from committing, and takes
//! the records while no handle is open. So the records are of whole operations: all of the
//! transaction since the last fast commit, in their order, with the inodes as they are in their
//! table. A fast commit leads from the state of the last one to the state of that moment, so
//! dependencies between inodes need no special care. [`encode`] writes the records as [tags](tag):
//! the fields of a new inode before its name; ranges and names in their order; last the fields of
//! all inodes with a name, because names change their counts. For directories it writes only names,
//! from which replay derives times and sizes. Then the data is flushed if an inode leads to
//! unflushed data, and the blocks are written and flushed.
//!
//! **Replay.** [`recovery`](crate::recovery) reads the area and applies it.
//!
//! | trouble | how | test |
//! |---|---|---|
//! | an operation is half done | records are taken while no handle is open; one of several handles is an orphan, or whole in each | `crash`, base `ext4-fast` |
//! | data is not on disk, its extent is | data is written before the map; flushed before the fast commit | `crash`, base `ext4-fast` |
//! | blocks freed and used again in one transaction | freed blocks are reusable only after the commit | `truncate`, `holes` |
//! | an inode number freed and used again | whole commit, and avoided ([`CommitReason::InodeReused`]) | `the_same_number_again` |
//! | a name is removed and added again | names are written in their order | `the_same_name_again`, `replace_by_rename` |
//! | an inode that was made and deleted | nothing is written of it, if no fast commit had it | `came_and_went` |
//! | names of an inode just made | its fields come before its first name | `link`, `others_are_carried` |
//! | orphans: the list on disk is older | whole commit for an inode that left the list, or is on it and has a name ([`CommitReason::Orphan`]) | `unlinked_and_open_for_long`, `without_a_name`, `unlinked_in_groups_just_begun` |
//! | old attributes in the place of a new inode | whole commit ([`CommitReason::Xattrs`]), as the kernel would leave them there | `tests::old_attributes_are_not_left_to_a_new_inode` |
//! | an inode counts a block of attributes | whole commit ([`CommitReason::Xattrs`]), as the kernel's replay counts only blocks of the map | `attributes_in_a_block` |
//! | superblock and descriptors at home are older | they are written back and flushed before the first fast commit | `tests::blocks_written_back_are_durable_before_the_fast_commit` |
//! | a fast commit is torn | the ones before it count | `tests::a_torn_fast_commit_ends_the_area` |
//! | a commit ends the transaction | it erases the area; the next fast commit begins anew | `after_a_commit`, `tests::old_fast_commits_are_erased` |
//! | the area is full | the transaction is committed | `the_area_is_full` |
//! | the same transaction number after a recovery | a recovery leaves one out | `tests::sequence_numbers_are_not_reused` |
//! | a write fails | the journal is aborted, what was durable stays | `tests::a_failed_write_ends_the_mount` |
//!
//! Tests without a path are scenarios of `tests/trials/stories`, whose images Sapwood, the kernel
//! and `e2fsck` recover.
//!
//! **Other readers.** The kernel (6.18) takes the 60 bytes of every inode of a fast commit for a
//! tree of extents. So links, devices and files with block maps need a whole commit. `e2fsck`
//! (1.47) discards the whole log if the area is stale, or if the log has a newer superblock than
//! its home location; and it reads group descriptors from their home location. So the area is
//! erased, and superblock and descriptors are written back first. It keeps an inode that lost its
//! last name, and damages a file that lost all its blocks and got new ones: both are written only
//! if asked for ([`FastCommits::Full`](crate::FastCommits::Full)).
//!
//! Tags: kernel documentation, `filesystems/ext4/journal.rst` ("Fast commits"), and images that the
//! kernel wrote.

pub(crate) mod encode;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use sapwood_ext4_format::{INODE_BASE_SIZE, Inode as RawInode};
use sapwood_jbd2::{FastCommitLeader, FastCommitStart, Tid};
use sapwood_vfs::FileKind;

use crate::Result;
use crate::commit_reason::CommitReason;
use crate::inode::table_place;
use crate::store::Store;
use crate::track::{Naming, Record, Taken};
use encode::Encoder;

/// The way in which an inode became durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is durable by a fast commit that was written since the call began, and with it all data
    /// that was written before.
    Written,
    /// It was durable already.
    Found,
    /// Only a commit of its transaction makes it durable.
    Whole(CommitReason),
}

/// An inode with the contents in its table.
struct Stored {
    kind: Option<FileKind>,
    named: bool,
    /// Its content in a tag: the part that has fields.
    fields: Vec<u8>,
}

/// The contents of a fast commit, fixed while no handle is open.
struct Snapshot {
    taken: Taken,
    inodes: BTreeMap<u32, Stored>,
}

impl Snapshot {
    /// Whether there is nothing to write: directories follow from their names.
    fn is_empty(&self) -> bool {
        self.taken.changes.is_empty() && self.told().next().is_none()
    }

    /// Inodes whose fields are written, with these.
    fn told(&self) -> impl Iterator<Item = (u32, &Stored)> {
        let stored = |ino: &u32| Some((*ino, self.inodes.get(ino)?));
        let all = self.taken.touched.iter().filter_map(stored);
        all.filter(|(_, one)| one.kind != Some(FileKind::Directory))
    }
}

enum Look {
    Found,
    Whole(CommitReason),
    Write(Snapshot),
}

/// Makes the changes of an inode in transaction `tid` so far durable, by a fast commit if possible;
/// the device is flushed after that. Hold no handle.
///
/// # Errors
/// Errors of the device; the journal is aborted then.
pub(crate) fn commit(store: &Store, ino: u32, tid: Tid) -> Result<Outcome> {
    let leader = match store.journal.begin_fast_commit()? {
        FastCommitStart::Leader(leader) => leader,
        FastCommitStart::Durable => return Ok(Outcome::Written),
        FastCommitStart::NoArea => return Ok(Outcome::Whole(CommitReason::Area)),
    };
    if tid <= store.journal.durable_tid() {
        return Ok(Outcome::Found);
    }
    if let Some(reason) = leader.requires_whole() {
        return Ok(Outcome::Whole(CommitReason::from_number(reason)));
    }
    let running = leader.tid();
    // A change in progress has not been acknowledged to the caller.
    if !store.fast_commits.with(running, |records| records.has(ino)) {
        return Ok(Outcome::Found);
    }
    let look = leader.quiesce(|whole| match whole {
        Some(reason) => Ok(Look::Whole(CommitReason::from_number(reason))),
        None => look(store, running, ino),
    })??;
    match look {
        Look::Found => Ok(Outcome::Found),
        Look::Whole(reason) => Ok(Outcome::Whole(reason)),
        Look::Write(snapshot) if snapshot.is_empty() => Ok(Outcome::Found),
        Look::Write(snapshot) => write(store, leader, running, &snapshot),
    }
}

/// Takes the records to write, while no handle is open.
fn look(store: &Store, tid: Tid, ino: u32) -> Result<Look> {
    let touched = store.fast_commits.with(tid, |records| records.touched());
    if !touched.contains(&ino) {
        return Ok(Look::Found);
    }
    let mut inodes = BTreeMap::new();
    for ino in touched {
        let stored = read(store, ino)?;
        if stored.named && store.orphans.knows(ino) {
            return Ok(Look::Whole(CommitReason::Orphan));
        }
        inodes.insert(ino, stored);
    }
    let alive = |ino: u32| inodes.get(&ino).is_some_and(|stored: &Stored| stored.named);
    let tracker = &store.fast_commits;
    if tracker.careful() && tracker.with(tid, |records| records.deletes(alive)) {
        return Ok(Look::Whole(CommitReason::Deleted));
    }
    let taken = tracker.with(tid, |records| records.take(alive));
    Ok(Look::Write(Snapshot { taken, inodes }))
}

/// The content that the next commit would write for an inode.
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
/// commit has a beginning and no end (6.18). So one that does not fit into its first sector follows
/// an empty one, which does.
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
        // A name of a missing inode would be an error.
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
    // Last, because names change an inode's counts.
    for (ino, stored) in snapshot.told() {
        encoder.inode(ino, &stored.fields);
    }
}

/// Writes a fast commit of transaction `tid` and ends it as durable.
fn write(
    store: &Store,
    leader: FastCommitLeader<'_>,
    tid: Tid,
    snapshot: &Snapshot,
) -> Result<Outcome> {
    let blocks = encode(store, tid as u32, snapshot);
    match put(store, &leader, &blocks, &snapshot.taken) {
        Ok(true) => {}
        Ok(false) => {
            leader.require_whole(CommitReason::Area.number());
            return Ok(Outcome::Whole(CommitReason::Area));
        }
        Err(error) => {
            store.journal.abort(&error);
            return Err(error);
        }
    }
    let end = snapshot.taken.next_block + blocks.len() as u64;
    store
        .fast_commits
        .with(tid, |records| records.next_block = end);
    store.counters.fast_commits.written(blocks.len() as u64);
    leader.durable();
    Ok(Outcome::Written)
}

/// Makes blocks durable, after the data that they refer to: a fast commit counts as soon as its
/// checksum is right. Returns false, and writes nothing, if the area has no room for them.
fn put(
    store: &Store,
    leader: &FastCommitLeader<'_>,
    blocks: &[Vec<u8>],
    taken: &Taken,
) -> Result<bool> {
    let at = taken.next_block;
    if at + blocks.len() as u64 > leader.log().fast_commit_blocks() {
        return Ok(false);
    }
    let flush = || -> Result<()> {
        store.counters.fast_commits.flushed();
        Ok(leader.log().flush()?)
    };
    let written_back = at == 0 && write_back(store, leader)?;
    if taken.data_written || written_back {
        flush()?;
    }
    let pieces: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    leader.write(at, &pieces)?;
    flush()?;
    Ok(true)
}

/// Writes the superblock and the group descriptors to their home location if the log has newer
/// ones: `e2fsck` (1.47) takes them from there. With an older superblock it makes the checksum of
/// the superblock wrong, and gives up. With older descriptors it ignores all blocks and inodes of
/// groups that were used first since the last checkpoint, and so meets orphans whose blocks are
/// free.
///
/// True if anything was written. It must be durable before the first fast commit.
fn write_back(store: &Store, leader: &FastCommitLeader<'_>) -> Result<bool> {
    let geometry = &store.geometry;
    let mut written = false;
    let each_block = geometry.descs_per_block().max(1) as usize;
    for group in (0..geometry.group_count()).step_by(each_block) {
        let (block, _) = geometry.descriptor_block(group)?;
        written |= leader.write_back(block)?;
    }
    // A superblock that counts more groups follows their descriptors.
    if written && store.journal.late_block().is_some() {
        store.device.flush()?;
    }
    written |= leader.write_back(geometry.super_block())?;
    Ok(written)
}
