//! Names and directories.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::fs::{CWD, Dev, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};
use sapwood_vfs::FileSystem;

use crate::support::{Mounted, Outcome, eventually, expect_errno, trial};
use crate::{holds, same};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("all_kinds_of_inodes", &[], all_kinds),
        trial("hard_links_and_unlink", &[], hard_links),
        trial("rename_with_each_flag", &[], renames),
        trial("names_of_255_bytes_and_more", &[], long_names),
        trial("absent_names_are_seen_once_made", &[], negative_names),
        trial("directory_of_10000_entries", &[], many_entries),
        trial("directory_emptied_while_listed", &[], listed_while_removed),
        trial(
            "listing_ends_while_entries_are_renamed_away_and_back",
            &[],
            listed_while_renamed,
        ),
        trial("open_directory_that_was_removed", &[], removed_directory),
        trial("unlinked_file_lives_while_open", &[], unlinked_open_file),
        trial("eight_threads_at_once", &[], parallel),
        trial("root_has_the_number_of_the_engine", &[], root_number),
    ]
}

fn all_kinds() -> Outcome {
    let mounted = Mounted::new()?;
    fs::write(mounted.path("file"), b"content")?;
    same!(fs::read(mounted.path("file"))?, b"content");
    fs::create_dir(mounted.path("dir"))?;
    std::os::unix::fs::symlink("dir/../file", mounted.path("link"))?;
    same!(
        fs::read_link(mounted.path("link"))?.as_os_str(),
        "dir/../file"
    );
    same!(fs::read(mounted.path("link"))?, b"content");
    let device: Dev = makedev(259, 70_000);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("block", FileType::BlockDevice, device),
        ("char", FileType::CharacterDevice, device),
    ] {
        mknodat(
            CWD,
            mounted.path(name),
            kind,
            Mode::from_raw_mode(0o600),
            device,
        )?;
    }
    let kind = |name: &str| fs::symlink_metadata(mounted.path(name)).map(|meta| meta.file_type());
    holds!(kind("fifo")?.is_fifo());
    holds!(kind("socket")?.is_socket());
    holds!(kind("block")?.is_block_device());
    holds!(kind("char")?.is_char_device());
    same!(fs::symlink_metadata(mounted.path("char"))?.rdev(), device);
    same!(fs::read_dir(mounted.dir())?.count(), 7);
    expect_errno(fs::create_dir(mounted.path("dir")), libc::EEXIST)?;
    expect_errno(fs::remove_dir(mounted.path("file")), libc::ENOTDIR)?;
    expect_errno(fs::remove_file(mounted.path("dir")), libc::EISDIR)?;
    fs::write(mounted.path("dir/inner"), b"")?;
    expect_errno(fs::remove_dir(mounted.path("dir")), libc::ENOTEMPTY)?;
    fs::remove_dir_all(mounted.path("dir"))?;
    Ok(())
}

fn listed_while_renamed() -> Outcome {
    let mounted = Mounted::new()?;
    let dir = mounted.path("dir");
    fs::create_dir(&dir)?;
    let count = 3000;
    for number in 0..count {
        fs::write(dir.join(format!("entry-with-a-long-name-{number}")), b"")?;
    }
    let mut names = BTreeSet::new();
    let mut listed = 0;
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        listed += 1;
        holds!(listed <= 2 * count);
        fs::rename(&path, dir.join("away"))?;
        fs::rename(dir.join("away"), &path)?;
        names.insert(path);
    }
    same!(names.len(), count);
    Ok(())
}

fn hard_links() -> Outcome {
    let mounted = Mounted::new()?;
    fs::write(mounted.path("a"), b"1")?;
    fs::hard_link(mounted.path("a"), mounted.path("b"))?;
    let (a, b) = (
        fs::metadata(mounted.path("a"))?,
        fs::metadata(mounted.path("b"))?,
    );
    same!(a.ino(), b.ino());
    same!(a.nlink(), 2);
    fs::remove_file(mounted.path("a"))?;
    same!(fs::metadata(mounted.path("b"))?.nlink(), 1);
    expect_errno(fs::metadata(mounted.path("a")), libc::ENOENT)
}

fn renames() -> Outcome {
    let mounted = Mounted::new()?;
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, mounted.path(from), CWD, mounted.path(to), flags)
            .map_err(std::io::Error::from)
    };
    fs::write(mounted.path("a"), b"a")?;
    fs::write(mounted.path("b"), b"b")?;
    expect_errno(rename("a", "b", RenameFlags::NOREPLACE), libc::EEXIST)?;
    rename("a", "b", RenameFlags::EXCHANGE)?;
    same!(fs::read(mounted.path("a"))?, b"b");
    same!(fs::read(mounted.path("b"))?, b"a");
    rename("a", "c", RenameFlags::NOREPLACE)?;
    fs::rename(mounted.path("c"), mounted.path("b"))?;
    same!(fs::read(mounted.path("b"))?, b"b");
    expect_errno(rename("a", "b", RenameFlags::EXCHANGE), libc::ENOENT)?;
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    expect_errno(rename("a", "b", both), libc::EINVAL)?;
    rename("b", "w", RenameFlags::WHITEOUT)?;
    let left = fs::symlink_metadata(mounted.path("b"))?;
    same!((left.mode(), left.rdev()), (libc::S_IFCHR, 0));
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    expect_errno(rename("w", "b", both), libc::EEXIST)?;
    fs::remove_file(mounted.path("b"))?;
    same!(fs::read(mounted.path("w"))?, b"b");
    fs::create_dir_all(mounted.path("d/e"))?;
    expect_errno(
        fs::rename(mounted.path("d"), mounted.path("d/e/f")),
        libc::EINVAL,
    )?;
    same!(fs::read_dir(mounted.dir())?.count(), 2);
    Ok(())
}

fn long_names() -> Outcome {
    let mounted = Mounted::new()?;
    let longest = "x".repeat(255);
    let longer = "x".repeat(256);
    fs::write(mounted.path(&longest), b"")?;
    same!(fs::read_dir(mounted.dir())?.count(), 1);
    let refused = libc::ENAMETOOLONG;
    expect_errno(fs::metadata(mounted.path(&longer)), refused)?;
    expect_errno(fs::write(mounted.path(&longer), b""), refused)?;
    expect_errno(fs::create_dir(mounted.path(&longer)), refused)?;
    expect_errno(
        fs::rename(mounted.path(&longest), mounted.path(&longer)),
        refused,
    )?;
    expect_errno(
        fs::hard_link(mounted.path(&longest), mounted.path(&longer)),
        refused,
    )?;
    expect_errno(
        std::os::unix::fs::symlink("t", mounted.path(&longer)),
        refused,
    )
}

fn negative_names() -> Outcome {
    let mounted = Mounted::new()?;
    for round in 0..3 {
        expect_errno(fs::metadata(mounted.path("name")), libc::ENOENT)?;
        fs::write(mounted.path("name"), [round])?;
        same!(fs::read(mounted.path("name"))?, [round]);
        fs::rename(mounted.path("name"), mounted.path("other"))?;
        expect_errno(fs::metadata(mounted.path("name")), libc::ENOENT)?;
        fs::remove_file(mounted.path("other"))?;
    }
    Ok(())
}

fn many_entries() -> Outcome {
    let mounted = Mounted::new()?;
    for number in 0..10_000 {
        fs::File::create(mounted.path(format!("entry-{number:05}")))?;
    }
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(mounted.dir())? {
            let entry = entry?;
            holds!(entry.file_type()?.is_file());
            holds!(seen.insert(entry.file_name()));
        }
        same!(seen.len(), 10_000);
    }
    // With attributes: the inode numbers of the listing equal the inodes' numbers.
    for entry in fs::read_dir(mounted.dir())?.take(500) {
        use std::os::unix::fs::DirEntryExt;
        let entry = entry?;
        same!(entry.ino(), entry.metadata()?.ino());
    }
    Ok(())
}

fn listed_while_removed() -> Outcome {
    let mounted = Mounted::new()?;
    for number in 0..2000 {
        fs::write(mounted.path(number.to_string()), b"")?;
    }
    for entry in fs::read_dir(mounted.dir())? {
        fs::remove_file(entry?.path())?;
    }
    same!(fs::read_dir(mounted.dir())?.count(), 0);
    Ok(())
}

fn removed_directory() -> Outcome {
    let mounted = Mounted::new()?;
    fs::create_dir(mounted.path("dir"))?;
    let open = fs::File::open(mounted.path("dir"))?;
    fs::remove_dir(mounted.path("dir"))?;
    same!(open.metadata()?.nlink(), 0);
    let inside = rustix::fs::openat(
        &open,
        "name",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        Mode::from_raw_mode(0o600),
    );
    expect_errno(inside.map_err(std::io::Error::from), libc::ENOENT)
}

fn unlinked_open_file() -> Outcome {
    let mounted = Mounted::new()?;
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("gone"))?;
    file.write_all(b"before")?;
    fs::remove_file(mounted.path("gone"))?;
    file.write_all(b" and after")?;
    file.sync_all()?;
    same!(file.metadata()?.nlink(), 0);
    let mut again = fs::File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&file)
    ))?;
    let mut content = String::new();
    again.read_to_string(&mut content)?;
    same!(content, "before and after");
    drop((file, again));
    fs::write(mounted.path("next"), b"")?;
    // Over io_uring a forget is delivered separately, and no caller waits for it.
    eventually("two inodes are left", || mounted.fs.inode_count() == 2)?;
    mounted.session.unmount()?;
    Ok(())
}

fn parallel() -> Outcome {
    let mounted = Mounted::new()?;
    let dir = Arc::new(mounted.dir().to_path_buf());
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let dir = Arc::clone(&dir);
            std::thread::spawn(move || -> std::io::Result<()> {
                for round in 0..150_u32 {
                    let own = dir.join(format!("{worker}-{round}"));
                    let content = vec![worker as u8; 5000 + round as usize];
                    fs::write(&own, &content)?;
                    let shared = dir.join(format!("shared-{}", round % 5));
                    match fs::File::create_new(&shared) {
                        Ok(_) => fs::remove_file(&shared)?,
                        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                        Err(error) => return Err(error),
                    }
                    let moved = dir.join(format!("{worker}-{round}-moved"));
                    fs::rename(&own, &moved)?;
                    if fs::read(&moved)? != content {
                        return Err(std::io::Error::other("content differs"));
                    }
                    if round % 2 == 0 {
                        fs::remove_file(&moved)?;
                    }
                }
                Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")??;
    }
    same!(fs::read_dir(mounted.dir())?.count(), 8 * 75);
    Ok(())
}

fn root_number() -> Outcome {
    let mounted = Mounted::new()?;
    same!(fs::metadata(mounted.dir())?.ino(), mounted.fs.root().0);
    fs::create_dir(mounted.path("d"))?;
    same!(
        fs::metadata(mounted.path("d/.."))?.ino(),
        mounted.fs.root().0
    );
    Ok(())
}
