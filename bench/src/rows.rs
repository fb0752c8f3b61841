//! The rows: each workload with its sizes, contestants and figures.

use crate::error::{Error, Result};
use crate::fio::dbench;
use crate::load::{self, Big, Cache, Writes};
use crate::make::Source;
use crate::run::{Run, Size};
use crate::tasks;

/// A figure of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Its key in [`Figures`](crate::run::Figures).
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// A lower value is better.
    pub(crate) lower: bool,
}

const fn high(key: &'static str, title: &'static str, unit: &'static str) -> Figure {
    Figure {
        lower: false,
        ..low(key, title, unit)
    }
}

pub(crate) const fn low(key: &'static str, title: &'static str, unit: &'static str) -> Figure {
    Figure {
        key,
        title,
        unit,
        lower: true,
    }
}

/// The work of a row.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Uses a file system.
    Use(fn(&mut Run) -> Result<()>),
    /// Writes with fsyncs; by the size.
    Write(fn(u32) -> Writes),
    /// Accesses a large file.
    Big(Big),
    /// Makes an image of this.
    Make(Source),
}

/// A workload.
pub(crate) struct Row {
    /// `N` stands for the size, `F` for a number of files for each.
    pub(crate) name: &'static str,
    /// Heading of its table. The text after a semicolon is the unit that `N` counts.
    pub(crate) title: &'static str,
    pub(crate) work: Work,
    /// Rows of one group are chosen together.
    pub(crate) group: &'static str,
    /// Sizes that run by default, and the one of them with more contestants and on every medium.
    pub(crate) sizes: &'static [u32],
    pub(crate) usual: u32,
    /// Default of `F`.
    pub(crate) files: u32,
    /// Contestants of every size, separated by spaces.
    pub(crate) main: &'static str,
    /// Contestants of the usual size.
    pub(crate) more: &'static str,
    /// The most important figure is the first.
    pub(crate) figures: &'static [Figure],
}

const MOUNTS: &str = "btrfs-fuse ext4-fuse kernel-btrfs kernel-ext4";
const LIBRARY: &str = "btrfs-lib ext4-lib";
const OTHERS: &str = "btrfs-loop ext4-loop kernel-xfs fuse2fs btrfs-fuse+again";
const ALL: &str = "btrfs-lib ext4-lib btrfs-loop ext4-loop kernel-xfs fuse2fs btrfs-fuse+again";
const TRUSTED: &str = "btrfs-loop ext4-loop btrfs-trusted ext4-trusted fuse-limit";
/// Mounts of rows whose limit is FUSE.
const NAMES: &str = "btrfs-fuse ext4-fuse kernel-btrfs kernel-ext4 fuse-limit";
const SERVED: &str = "btrfs-fuse ext4-fuse btrfs-loop ext4-loop fuse2fs";
const MAKERS: &str = "sapwood-mkfs-btrfs sapwood-mkfs-ext4 mkfs.btrfs mke2fs \
    kernel-btrfs kernel-ext4 source-read";
const UNPACKERS: &str = "sapwood-mkfs-btrfs sapwood-mkfs-ext4 kernel-btrfs kernel-ext4 source-read";
const COMPRESSORS: &str = "sapwood-mkfs-btrfs mkfs.btrfs";

const RATE: Figure = high("rate", "bandwidth", "MiB/s");
const P50: Figure = low("fsync_p50", "fsync, half take at most", "ms");
const P99: Figure = low("fsync_p99", "fsync, 99 of 100 take at most", "ms");
const MAX: Figure = low("fsync_max", "fsync, longest", "ms");
const RENAMES: &[Figure] = &[low("ms", "time", "ms"), low("us_each", "time of one", "µs")];
const TIME: Figure = low("s", "time", "s");
const DURABLE: Figure = low("durable_s", "until durable", "s");
const STATUS: Figure = low("status_s", "git status after it", "s");
const REMOVE: Figure = low("remove_s", "rm -rf", "s");
const IMAGE: &[Figure] = &[
    TIME,
    low("peak_mib", "peak memory", "MiB"),
    low("cpu_s", "processor time of the program", "s"),
    low("size_mib", "size", "MiB"),
    low("out_s", "time to extract it again", "s"),
];

/// Figures that every mount with a daemon has.
pub(crate) const SERVING: [Figure; 2] = [
    low("served_mib", "peak memory of the daemon", "MiB"),
    low("served_cpu_s", "processor time of the daemon", "s"),
];

const fn row(name: &'static str, title: &'static str, work: Work) -> Row {
    Row {
        name,
        title,
        work,
        group: "tasks",
        sizes: &[0],
        usual: 0,
        files: 500,
        main: MOUNTS,
        more: "",
        figures: &[TIME],
    }
}

/// Writers with fsyncs, of a number of jobs or attributes.
const fn writes(name: &'static str, title: &'static str, writes: fn(u32) -> Writes) -> Row {
    row(name, title, Work::Write(writes))
        .shows("fsync", &[RATE, P50, P99, MAX])
        .more(ALL)
}

const fn big(name: &'static str, write: bool, random: bool, cache: Cache) -> Row {
    let title = if write {
        "a big file, written and made durable"
    } else {
        "a big file, read"
    };
    let big = Big {
        write,
        random,
        cache,
    };
    row(name, title, Work::Big(big)).shows("big", &[RATE])
}

const fn image(name: &'static str, title: &'static str, source: Source) -> Row {
    let row = row(name, title, Work::Make(source)).shows("image", IMAGE);
    row.sizes(&[100_000], 100_000).main(MAKERS)
}

impl Row {
    const fn shows(self, group: &'static str, figures: &'static [Figure]) -> Self {
        Self {
            group,
            figures,
            ..self
        }
    }

    const fn sizes(self, sizes: &'static [u32], usual: u32) -> Self {
        Self {
            sizes,
            usual,
            ..self
        }
    }

    const fn main(self, main: &'static str) -> Self {
        Self { main, ..self }
    }

    const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }
}

/// All rows, in the order of the report.
#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    writes("seq-N", "sequential 64 KiB writes, fsync after each; jobs", |jobs| {
        Writes { jobs, block: 64 << 10, random: false, fsync_every: 1, xattrs: 0 }
    }).sizes(&[1, 2, 4, 8, 16, 32, 64], 8),
    writes("rand-N", "random 4 KiB writes, fsync after every 16th; jobs", |jobs| {
        Writes { jobs, block: 4 << 10, random: true, fsync_every: 16, xattrs: 0 }
    }).sizes(&[1, 2, 4, 8, 16, 32, 64], 8),
    writes("xattr-N", "8 jobs, random 64 KiB writes with fsync; xattrs per file", |xattrs| {
        Writes { jobs: 8, block: 64 << 10, random: true, fsync_every: 1, xattrs }
    }).sizes(&[1, 10, 100], 1),
    row("commits-N", "4 KiB writes with fsync next to commits; writers", Work::Use(load::commits))
        .shows("fsync", &[high("rate", "fsyncs", "1/s"), P50, P99, MAX])
        .sizes(&[8], 8).more(LIBRARY),
    row("dbench-N", "dbench; clients", Work::Use(dbench))
        .shows("dbench", &[high("rate", "throughput", "MiB/s"), low("slowest_ms", "slowest", "ms")])
        .sizes(&[1, 16, 64], 64).more(OTHERS),
    row("create-NxF", "empty files created and removed; workers", Work::Use(load::create))
        .shows("create", &[high("rate", "creates", "1/s"), high("removes", "removes", "1/s")])
        .sizes(&[1, 8, 48, 64], 48).main(NAMES).more(ALL),
    row("renames-N", "renames after an fsync; files", Work::Use(|run| load::renames(run, 0)))
        .shows("renames", RENAMES).sizes(&[1000, 10_000, 50_000], 10_000).main(NAMES).more(ALL),
    row("renames-fsync-N", "the same with an fsync of the directory every 100; files",
        Work::Use(|run| load::renames(run, 100)))
        .shows("renames", RENAMES).sizes(&[1000, 10_000, 50_000], 10_000).more(ALL),
    image("image-N", "an image of a directory of small files; files", Source::Tree),
    image("image-zstd-N", "the same, compressed; files", Source::Zstd).main(COMPRESSORS),
    image("image-tar-N", "an image of a tar of them; files", Source::Tar).main(UNPACKERS),
    image("image-tgz-N", "an image of a tar.gz of them; files", Source::Gzip).main(UNPACKERS),
    image("image-oci-N", "an image of an OCI archive of them; files", Source::Oci),
    image("image-include", "an image of a directory, and out again", Source::Dir("/usr/include"))
        .sizes(&[0], 0),
    image("image-share", "an image of a directory, and out again", Source::Dir("/usr/share"))
        .sizes(&[0], 0),
    big("write-seq", true, false, Cache::Cold).more(ALL),
    big("write-seq-direct", true, false, Cache::Direct),
    big("write-rand", true, true, Cache::Cold).more(LIBRARY),
    big("write-rand-direct", true, true, Cache::Direct),
    big("read-seq-cold", false, false, Cache::Cold).more(ALL),
    big("read-seq-warm", false, false, Cache::Warm).more(ALL),
    big("read-seq-direct", false, false, Cache::Direct),
    big("read-rand-cold", false, true, Cache::Cold).more(LIBRARY),
    big("read-rand-warm", false, true, Cache::Warm).more(LIBRARY),
    big("read-rand-direct", false, true, Cache::Direct),
    row("stat-N", "stat of very many files; files", Work::Use(load::stat))
        .shows("tasks", &[high("rate", "nothing cached", "1/s"), high("warm", "once more", "1/s")])
        .sizes(&[20_000], 20_000).more(LIBRARY),
    row("small-N", "small files, unpacked by one client; files", Work::Use(tasks::small))
        .shows("tasks", tasks::SMALL).sizes(&[100_000], 100_000).more(TRUSTED),
    row("client-N", "one client, each operation on new files; files", Work::Use(load::client))
        .shows("tasks", load::CLIENT).sizes(&[20_000], 20_000).more(TRUSTED),
    row("git-clone-N", "git clone, and rm -rf of the clone; files", Work::Use(tasks::git_clone))
        .shows("tasks", &[TIME, DURABLE, STATUS, REMOVE]).sizes(&[20_000], 20_000).more(TRUSTED),
    row("node-modules-N", "packages like node_modules; files", Work::Use(load::packages))
        .shows("tasks", &[TIME, DURABLE, REMOVE]).sizes(&[12_000], 12_000).more(TRUSTED),
    row("rust-build", "a Rust build", Work::Use(tasks::rust_build)),
    row("sqlite", "SQLite, one transaction after the other", Work::Use(tasks::sqlite))
        .shows("tasks", &[high("rate", "rollback journal", "1/s"), high("wal", "WAL", "1/s")]),
    row("postgres", "PostgreSQL, pgbench with 4 clients", Work::Use(tasks::postgres))
        .shows("tasks", &[high("rate", "transactions", "1/s")]),
    row("idle", "a mount that is not used", Work::Use(load::idle))
        .shows("idle", &[low("rate", "wake-ups", "1/s"), low("resident_mib", "resident", "MiB")])
        .main(SERVED),
];

impl Row {
    /// Its name at a size.
    pub(crate) fn name_at(&self, size: Size) -> String {
        let name = self.name.replace('N', &size.count.to_string());
        name.replace('F', &size.files.to_string())
    }

    /// The size in a name of this row.
    fn size_in(&self, name: &str) -> Option<Size> {
        let files = self.files;
        let Some((before, after)) = self.name.split_once('N') else {
            return (self.name == name).then_some(Size { count: 0, files });
        };
        let rest = name.strip_prefix(before)?;
        let (count, files) = match (rest.split_once('x'), after) {
            (Some((count, files)), "xF") => (count, files.parse().ok()?),
            _ => (rest, files),
        };
        let count = count.parse().ok()?;
        (count > 0).then_some(Size { count, files })
    }

    /// Its contestants at a size; `first`: on the first medium.
    pub(crate) fn contestants(&self, size: Size, first: bool) -> Vec<&'static str> {
        let more = if first && size.count == self.usual {
            self.more
        } else {
            ""
        };
        let all = self.main.split_whitespace().chain(more.split_whitespace());
        // ext4 keeps an inode's attributes in one block; a hundred need two.
        let crowded = self.name == "xattr-N" && size.count >= 50;
        all.filter(|name| !crowded || name.contains("btrfs") || name.contains("xfs"))
            .collect()
    }
}

/// The rows that a name chooses: a group, or a row with its size.
///
/// # Errors
/// There is none.
pub(crate) fn choose(name: &str) -> Result<Vec<(&'static Row, Size)>> {
    let sizes = |row: &'static Row| {
        let files = row.files;
        row.sizes.iter().map(move |count| {
            (
                row,
                Size {
                    count: *count,
                    files,
                },
            )
        })
    };
    let group = ROWS.iter().filter(|row| row.group == name || name == "all");
    let group: Vec<_> = group.flat_map(sizes).collect();
    if !group.is_empty() {
        return Ok(group);
    }
    let mut found = ROWS
        .iter()
        .filter_map(|row| Some((row, row.size_in(name)?)));
    found.next().map(|row| vec![row]).ok_or_else(|| {
        let rows: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        let mut groups: Vec<_> = ROWS.iter().map(|row| row.group).collect();
        groups.dedup();
        let (rows, groups) = (rows.join(" "), groups.join(" "));
        Error::new(format!(
            "no row {name}; there are {rows}, and the groups all {groups}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::contestant;

    #[test]
    fn every_name_leads_to_its_row_again() {
        let all = choose("all").unwrap();
        let names: BTreeSet<_> = all.iter().map(|(row, size)| row.name_at(*size)).collect();
        assert_eq!(names.len(), all.len());
        for (row, size) in all {
            let name = row.name_at(size);
            let found = choose(&name).unwrap();
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!((found[0].0.name, found[0].1), (row.name, size), "{name}");
        }
        assert_eq!(
            choose("create-48x30000").unwrap()[0].1,
            Size {
                count: 48,
                files: 30_000
            }
        );
        assert_eq!(choose("create-48").unwrap()[0].1.files, 500);
        let fsync = choose("fsync").unwrap();
        assert!(fsync.len() > 14);
        assert!(fsync.iter().all(|(row, _)| row.group == "fsync"));
        for wrong in [
            "",
            "seq",
            "seq-0",
            "seq-x",
            "tar",
            "image-",
            "renames-fsync",
        ] {
            assert!(choose(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_row_has_figures_and_contestants_that_exist() {
        for (row, size) in choose("all").unwrap() {
            assert!(
                !row.figures.is_empty() && row.sizes.contains(&row.usual),
                "{}",
                row.name
            );
            let mut names = row.contestants(size, true).into_iter();
            assert!(names.all(|name| {
                let base = name.trim_end_matches("+again");
                contestant::names().any(|known| known == base)
            }));
        }
        let (row, size) = choose("xattr-100").unwrap()[0];
        assert!(
            !row.contestants(size, true)
                .iter()
                .any(|name| name.contains("ext4"))
        );
        let (row, size) = choose("seq-8").unwrap()[0];
        assert!(row.contestants(size, true).len() > row.contestants(size, false).len());
    }
}
