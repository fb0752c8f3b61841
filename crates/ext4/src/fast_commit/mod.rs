//! Fast commits: small records of what an fsync needs, beside the journal's transactions.
//!
//! # How it works
//! An image with this feature has an area after its log. In place of a whole transaction an fsync
//! may write there what it needs: inodes, ranges of blocks, names. These records count only if they
//! belong to the transaction that would have come next. A commit of that transaction makes them
//! stale.
//!
//! **Which transactions.** A handle makes its transaction one that only a whole commit can express,
//! unless it was started with [`Store::start_tracked`]. Operations start so if a replay of their
//! [records](crate::track) repeats them. Each record is made where all changes of its kind pass,
//! and there it is also found out what a fast commit cannot express ([`Reason`]). So what is not
//! recorded is committed whole.
//!
//! **Writing.** The caller that leads a fast commit keeps the journal from committing, and takes
//! the records while no handle is open. So it has whole operations: all of the transaction since
//! the last fast commit, in their order, with the inodes as they are in their table. A fast commit
//! leads from the state of the last one to the state of that moment, whichever inodes depend on
//! which others. [`encode`] writes them as [tags](tag): of a new inode its fields, then its name;
//! ranges and names in their order; last the fields of all inodes that have a name, as names change
//! what they count. Of directories only names are written: their times and sizes follow. Then the
//! data is flushed if an inode leads to data that was not, and the blocks are written and flushed.
//!
//! **Replay.** [`recovery`](crate::recovery) reads the area and applies it.
//!
//! | trouble | how | test |
//! |---|---|---|
//! | an operation is half done | records are taken while no handle is open; one of several handles is an orphan, or whole in each | `crash`, base `ext4-fast` |
//! | data is not on disk, its extent is | data is written before the map; flushed before the fast commit | `crash`, base `ext4-fast` |
//! | blocks freed and used again in one transaction | freed blocks are reusable only after the commit | `truncate`, `holes` |
//! | an inode number freed and used again | whole commit, and avoided ([`Reason::InodeReused`]) | `the_same_number_again` |
//! | a name is removed and added again | names are written in their order | `the_same_name_again`, `replace_by_rename` |
//! | an inode that was made and deleted | nothing is written of it, if no fast commit had it | `came_and_went` |
//! | names of an inode just made | its fields come before its first name | `link`, `others_are_carried` |
//! | orphans: the list on disk is older | whole commit for an inode that left the list, or is on it and has a name ([`Reason::Orphan`]) | `unlinked_and_open_for_long`, `without_a_name`, `unlinked_in_groups_just_begun` |
//! | old attributes in the place of a new inode | whole commit ([`Reason::Xattrs`]), as the kernel would leave them there | `tests::old_attributes_are_not_left_to_a_new_inode` |
//! | an inode counts a block of attributes | whole commit ([`Reason::Xattrs`]), as the kernel's replay counts those of the map alone | `attributes_in_a_block` |
//! | superblock and descriptors at home are older | they are written back and flushed before the first fast commit | `tests::what_is_brought_home_is_durable_before_the_fast_commit` |
//! | a fast commit is torn | the ones before it count | `tests::a_torn_fast_commit_ends_the_area` |
//! | a commit ends the transaction | it erases the area; the next fast commit begins anew | `after_a_commit`, `tests::old_fast_commits_are_erased` |
//! | the area is full | the transaction is committed | `the_area_is_full` |
//! | the same transaction number after a recovery | a recovery leaves one out | `tests::numbers_do_not_come_again` |
//! | a write fails | the journal is aborted, what was durable stays | `tests::a_failed_write_ends_the_mount` |
//!
//! Tests without a path are scenarios of `tests/stories`, whose images Sapwood, the kernel and
//! `e2fsck` recover.
//!
//! **Other readers.** The kernel (6.18) takes the 60 bytes of every inode of a fast commit for a
//! tree of extents. So links, devices and files with block maps need a whole commit. `e2fsck`
//! (1.47) discards the whole log if the area is stale, or if the log has a newer superblock than
//! its home location; and it reads group descriptors from their home location. So the area is
//! erased, and superblock and descriptors are written back first. It keeps an inode that lost its
//! last name, and damages a file that lost all its blocks and got new ones: both are written only
//! if asked for ([`FastCommits::Full`](crate::FastCommits::Full)).
//!
//! Tags: kernel documentation, `filesystems/ext4/journal.rst` ("Fast commits"), and what the kernel
//! writes.

pub(crate) mod encode;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use write::{Outcome, commit};

#[cfg(doc)]
use crate::commit_reason::Reason;
#[cfg(doc)]
use crate::store::Store;
