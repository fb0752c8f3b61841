//! The group of many small files.

use sapwood::Kind;

use super::{Item, MAIN};
use crate::contestant::Contestant;
use crate::workload::task::Task;
use crate::workload::{Workload, image_small};

/// Number of files of the operations of one client.
const CLIENT: u32 = 20_000;
/// Number of files of a repository.
const REPOSITORY: u32 = 20_000;
/// Number of files of packages.
const MODULES: u32 = 12_000;

/// `files` small files in an archive and in images, and some fewer for the other workloads.
pub(super) fn items(files: u32) -> Vec<Item> {
    let all = [
        Workload::Task(Task::Small { files }),
        Workload::ImageSmall { files },
        Workload::Task(Task::Client { files: CLIENT }),
        Workload::Task(Task::GitMany { files: REPOSITORY }),
        Workload::Task(Task::Modules { files: MODULES }),
    ];
    all.map(|workload| Item {
        who: contestants(&workload),
        library: false,
        ..Item::new(workload, true)
    })
    .into()
}

/// The contestants of a workload of this group; `None` of another one.
pub(super) fn contestants(workload: &Workload) -> Option<Vec<Contestant>> {
    match workload {
        Workload::ImageSmall { .. } => Some(image_small::contestants()),
        Workload::Task(
            Task::Small { .. } | Task::Client { .. } | Task::GitMany { .. } | Task::Modules { .. },
        ) => Some(mounted()),
        _ => None,
    }
}

/// Every contestant with a mount; Sapwood over both transports, and without checks of permissions.
fn mounted() -> Vec<Contestant> {
    let plain = Kind::ALL.map(Contestant::plain_loop);
    let trusted = Kind::ALL.map(Contestant::trusted);
    let ours = plain.into_iter().chain(trusted);
    MAIN.iter().map(|one| one()).chain(ours).collect()
}

#[cfg(test)]
mod tests {
    use crate::suite::tests::{names, suite};
    use crate::suite::{Group, Suite};

    #[test]
    fn small_files_run_beside_the_kernel_and_images_beside_their_programs() {
        let group = Suite {
            groups: vec![Group::Small],
            ..suite()
        };
        let single = Suite {
            workloads: ["small-1000", "image-small-1000", "client-20000"]
                .into_iter()
                .chain(["git-clone-20000", "node-modules-12000"])
                .map(|name| name.parse().unwrap())
                .collect(),
            media: vec!["/disk".into()],
            ..suite()
        };
        let (group, single) = (group.cases(), single.cases());
        assert_eq!(group.len(), 5);
        for (one, other) in group.iter().zip(&single) {
            assert_eq!(one.workload, other.workload);
            assert_eq!(names(one), names(other));
        }
        let client = names(&group[2]);
        assert_eq!(client[..2], ["btrfs-fuse", "ext4-fuse"]);
        assert!(client.contains(&"kernel-ext4") && client.contains(&"btrfs-loop"));
        assert!(client.contains(&"ext4-trusted"));
        let images = names(&group[1]);
        for tool in ["sapwood-mkfs-ext4-tar", "mke2fs", "source-read"] {
            assert!(images.contains(&tool), "{images:?}");
        }
        assert!(images.contains(&"kernel-btrfs") && !images.contains(&"btrfs-fuse"));
    }

    #[test]
    fn a_tool_that_is_left_out_is_named_and_does_not_run() {
        let suite = Suite {
            groups: vec![Group::Small],
            ..suite()
        };
        let case = &suite.cases()[1];
        let left_out = suite.left_out();
        let zstd = "mkfs.btrfs-zstd";
        let named = left_out
            .iter()
            .any(|(name, _)| name.contains(zstd) && name.contains("image-small-1000"));
        assert_ne!(named, names(case).contains(&zstd), "{left_out:?}");
    }
}
