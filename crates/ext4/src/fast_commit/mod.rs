//! Fast commits: small records of what an fsync needs, beside the journal's transactions.
//!
//! # How it works
//! An image with this feature has an area behind its log. In place of a whole transaction an fsync may write there what it needs: inodes,
//! ranges of blocks, names. They count only if they belong to the transaction that would have come next; a commit of it makes them old.
//!
//! **Reading.** [`area`] reads them: all up to the last one that is whole and has the right checksum. What is torn ends the area; what is whole and
//! makes no sense is an error, found before anything is changed. [`apply`] then makes the image as they say, as often as need be: a
//! name that is there is not added, a block that is in use is not counted twice. The changes go straight to the device that the engine has. The caller
//! gives it an overlay, so that a contradiction that is found late leaves the image untouched.
//!
//! **Which transactions.** Every handle makes its transaction one that only a whole commit can
//! express, but for those of [`Engine::start_tracked`]: operations that are done again by a replay of
//! their [`note`]s. These are taken where all changes pass (an inode is stored, a map or a
//! directory changes, an inode is taken or freed, an orphan comes or goes), and there it is also
//! seen what cannot be said ([`Reason`]). So what is not recorded is committed whole.
//!
//! **Writing.** [`commit`] has the turn of the journal, so that no transaction is committed meanwhile, and takes the [`records`] while no handle is open: whole
//! operations, all of the transaction since the last fast commit, in their order, with the inodes as they stand in their
//! table. So a fast commit leads from the state of the last one to that at this moment, and it does not matter which inodes depend on which others.
//! [`encode`] makes tags of it: for a new inode its fields, then its name; ranges and names as they came; last the fields of all inodes
//! that have a name, as names change what they count. Of directories only names are said: their times and sizes follow. Then the data is flushed if
//! an inode leads to some that was not, the blocks are written, and flushed. An inode that nothing is to be said of is durable.
//!
//! | trouble | how | test |
//! |---|---|---|
//! | an operation is half done | records are taken while no handle is open; one of several handles is an orphan, or whole in each | `crash`, base `ext4-fast` |
//! | data is not on disk, its extent is | data is written before the map; flushed before the fast commit | `crash`, base `ext4-fast` |
//! | blocks freed and used again in one transaction | freed blocks come back with the commit only | `truncate`, `holes` |
//! | an inode number freed and used again | is not said, and avoided ([`Reason::InodeReused`]) | `the_same_number_again` |
//! | a name that goes and comes again | names are said in their order | `the_same_name_again`, `replace_by_rename` |
//! | an inode that came and went | nothing is said of it, if no fast commit had it | `came_and_went` |
//! | names of an inode just made | its fields go before its first name | `link`, `others_are_carried` |
//! | orphans: the list on disk is older | what left the list, or is on it and has a name, is not said ([`Reason::Orphan`]) | `unlinked_and_open_for_long`, `without_a_name`, `unlinked_in_groups_just_begun` |
//! | old attributes in the place of a new inode | are not said ([`Reason::Xattrs`]), as the kernel would leave them there | `tests::old_attributes_are_not_left_to_a_new_inode` |
//! | an inode counts a block of attributes | is not said ([`Reason::Xattrs`]), as the kernel's replay counts those of the map alone | `attributes_in_a_block` |
//! | superblock and descriptors at home are older | they are written home and flushed before the first fast commit | `tests::what_is_brought_home_is_durable_before_the_fast_commit` |
//! | a fast commit is torn | the ones before it count | `tests::a_torn_fast_commit_ends_the_area` |
//! | a commit ends the transaction | it erases the area; the next one begins anew | `after_a_commit`, `tests::old_fast_commits_are_erased` |
//! | the area is full | the transaction is committed | `the_area_is_full` |
//! | the same transaction number after a recovery | a recovery leaves one out | `tests::numbers_do_not_come_again` |
//! | a write fails | the journal is aborted, what was durable stays | `tests::a_failed_write_ends_the_mount` |
//!
//! Those without a path are stories of `tests/stories`, whose images we, the kernel and `e2fsck` recover.
//!
//! **Other readers.** The kernel (6.18) takes the 60 bytes of every inode that it is told of for a tree of extents, so nothing is said of links and
//! devices, nor of files with block maps. `e2fsck` (1.47) gives up all of the log if the area is old, and if the log has a newer superblock than stands at its
//! place; and it takes the descriptors of groups from their place. So the area is erased, and superblock and descriptors are brought home first. It keeps an inode that lost its last name, and damages a file that lost all its
//! blocks and got new ones: both are said only if asked for ([`FastCommits::Full`](crate::FastCommits::Full)).
//!
//! Tags: kernel documentation, `filesystems/ext4/journal.rst` ("Fast commits"), and what the kernel writes.

mod encode;
pub(crate) mod tag;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use write::{Outcome, commit};

#[cfg(doc)]
use crate::commit_reason::Reason;
