//! The command, the mount and the library with the kernel and real programs, a module for each
//! subject. A test that needs what this machine lacks is ignored by name.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod archives;
mod builders;
mod cli;
mod copies;
mod damage;
mod dbkill;
mod documents;
mod errors;
mod ext4_matrix;
mod ext4_mounts;
mod ext4_tools;
mod external;
mod extraction;
mod growth;
mod host_full;
mod in_use;
mod journals;
mod kill9;
mod killed_receives;
mod luks;
mod matrix;
mod memory;
mod offline;
mod options;
mod overlays;
mod partitions;
mod programs;
mod quotas;
mod read_only;
mod received;
mod recipes;
mod rescue;
mod scale;
mod scripts;
mod setid;
mod several;
mod shells;
mod sources;
mod streams;
mod sync;
mod synchronous;
mod taken_over;
mod upkeep;

fn main() {
    if extraction::played() {
        return;
    }
    // By far the longest tests come first, so that they do not run alone at the end.
    sapwood_tests::machine::run(4, || {
        sapwood_testing::trials_of![
            dbkill,
            archives,
            builders,
            cli,
            copies,
            damage,
            documents,
            errors,
            ext4_matrix,
            ext4_mounts,
            ext4_tools,
            external,
            extraction,
            growth,
            host_full,
            in_use,
            journals,
            kill9,
            killed_receives,
            luks,
            matrix,
            memory,
            offline,
            options,
            overlays,
            partitions,
            programs,
            quotas,
            read_only,
            recipes,
            received,
            rescue,
            scale,
            scripts,
            setid,
            several,
            shells,
            sources,
            streams,
            sync,
            synchronous,
            taken_over,
            upkeep,
        ]
    });
}
