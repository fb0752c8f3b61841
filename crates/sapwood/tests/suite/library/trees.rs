//! Lists, walks, patterns and removals of trees.

use super::*;

#[test]
fn names_are_listed_and_walked() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("a/b").unwrap();
        for number in 0..3000 {
            fs.write(format!("a/{number}"), "").unwrap();
        }
        fs.write("a/b/file", "x").unwrap();
        fs.symlink("/a", "a/b/link").unwrap();
        let listed: Vec<_> = fs.read_dir("a").unwrap().map(Result::unwrap).collect();
        assert_eq!(listed.len(), 3001);
        let dir = listed
            .iter()
            .find(|entry| entry.file_name() == "b")
            .unwrap();
        assert!(dir.file_type().is_dir() && dir.path() == Path::new("a/b"));
        let walked: Vec<_> = fs.walk("a").unwrap().map(Result::unwrap).collect();
        assert_eq!(walked.len(), 3003);
        let at = |path: &str| {
            walked
                .iter()
                .position(|e| e.path() == Path::new(path))
                .unwrap()
        };
        assert!(at("a/b") < at("a/b/file"));
        assert!(walked[at("a/b/link")].file_type().is_symlink());
        assert_eq!(walked[at("a/b/file")].metadata().len(), 1);
        // A walk that is not ended gives its references back.
        let mut walk = fs.walk("/").unwrap();
        walk.next().unwrap().unwrap();
        walk.nth(2).unwrap().unwrap();
        drop(walk);
        assert_eq!(kind(fs.read_dir("a/b/file")), ErrorKind::NotADirectory);
        assert_eq!(kind(fs.remove_dir("a")), ErrorKind::DirectoryNotEmpty);
        fs.remove_dir_all("a").unwrap();
        assert!(!fs.exists("a").unwrap());
        // Its entries refer to the removed directory.
        assert_eq!(fs.engine().referenced().len(), 1);
        drop(listed);
        assert_eq!(fs.engine().referenced().len(), 0);
    });
}

#[test]
fn names_are_renamed_linked_and_removed() {
    each(|image| {
        let fs = image.open();
        fs.write("one", "1").unwrap();
        fs.hard_link("one", "two").unwrap();
        assert_eq!(fs.metadata("two").unwrap().nlink(), 2);
        fs.rename("two", "three").unwrap();
        assert_eq!(kind(fs.metadata("two")), ErrorKind::NotFound);
        fs.symlink("three", "link").unwrap();
        assert_eq!(fs.read_link("link").unwrap(), PathBuf::from("three"));
        assert!(fs.symlink_metadata("link").unwrap().is_symlink());
        assert!(fs.metadata("link").unwrap().is_file());
        fs.remove_file("link").unwrap();
        fs.remove_file("one").unwrap();
        assert_eq!(fs.read("three").unwrap(), b"1");
        assert_eq!(kind(fs.remove_dir_all("three")), ErrorKind::NotADirectory);
        assert_eq!(kind(fs.remove_file("none")), ErrorKind::NotFound);
    });
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    each(|image| {
        let fs = image.open();
        fs.set_creator(10, 20);
        fs.write("one", "1").unwrap();
        fs.write("two", "2").unwrap();
        fs.rename_whiteout("one", "two").unwrap();
        assert_eq!(fs.read("two").unwrap(), b"1");
        fs.close().unwrap();
        let left = image.open().metadata("one").unwrap();
        let device = (left.file_type().kind(), left.rdev(), left.mode() & 0o7777);
        assert_eq!(device, (FileKind::CharDevice, 0, 0));
        assert_eq!((left.uid(), left.gid()), (10, 20));
    });
}

#[test]
fn removing_a_tree_reports_every_name() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("top/a/b").unwrap();
        for name in ["top/1", "top/a/2", "top/a/b/3"] {
            fs.write(name, "x").unwrap();
        }
        let mut steps = Vec::new();
        let mut names = Vec::new();
        fs.remove_dir_all_with("top", &Stop::new(), &mut |step| match step {
            Progress::Done { done, .. } => steps.push(done),
            Progress::Item(name) => names.push(name.to_string()),
            other => panic!("{other:?}"),
        })
        .unwrap();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
        names.sort();
        let all = ["top", "top/1", "top/a", "top/a/2", "top/a/b", "top/a/b/3"];
        assert_eq!(names, all);
        assert!(!fs.exists("top").unwrap());
    });
}

#[test]
fn entries_and_walks_have_metadata_and_paths() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("d/e").unwrap();
        fs.write("d/e/f", "four").unwrap();
        fs.symlink("f", "d/e/link").unwrap();
        let entries: sapwood::Result<Vec<_>> = fs.read_dir("/d/e").unwrap().collect();
        let entries = entries.unwrap();
        assert_eq!(entries.len(), 2);
        for entry in &entries {
            let found = entry.metadata().unwrap();
            assert_eq!(found, fs.symlink_metadata(entry.path()).unwrap());
            assert_eq!(found.is_symlink(), entry.file_name() == "link");
        }
        fs.remove_file("d/e/f").unwrap();
        let gone = entries.iter().find(|entry| entry.file_name() == "f");
        assert_eq!(kind(gone.unwrap().metadata()), ErrorKind::NotFound);
        let walked: sapwood::Result<Vec<_>> = fs.walk("/d").unwrap().collect();
        let walked = walked.unwrap();
        let paths = |of: fn(&WalkEntry) -> &Path| walked.iter().map(of).collect::<Vec<_>>();
        assert_eq!(
            paths(WalkEntry::relative_path),
            [Path::new("e"), Path::new("e/link")]
        );
        assert_eq!(
            paths(WalkEntry::path),
            [Path::new("/d/e"), Path::new("/d/e/link")]
        );
    });
}

#[test]
fn patterns_of_paths_are_expanded() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("etc/conf.d").unwrap();
        fs.create_dir_all("opt/conf.d").unwrap();
        for name in [
            "etc/b.conf",
            "etc/a.conf",
            "etc/.c.conf",
            "etc/[x].conf",
            "opt/conf.d/1",
        ] {
            fs.write(name, "").unwrap();
        }
        fs.symlink("../etc", "opt/link").unwrap();
        let found = |pattern: &str| -> Vec<String> {
            let found = fs.glob(pattern).unwrap();
            found
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        assert_eq!(
            found("/etc/*.conf"),
            ["/etc/[x].conf", "/etc/a.conf", "/etc/b.conf"]
        );
        assert_eq!(found("etc/.*"), ["etc/.c.conf"]);
        assert_eq!(found("*/conf.d/?"), ["opt/conf.d/1"]);
        assert_eq!(
            found("opt/l*/[ab].conf"),
            ["opt/link/a.conf", "opt/link/b.conf"]
        );
        // A name that exists means itself.
        assert_eq!(found("etc/[x].conf"), ["etc/[x].conf"]);
        assert_eq!(found("e*/"), ["etc/"]);
        // A pattern without a match stays as it is.
        assert_eq!(found("etc/*.none"), ["etc/*.none"]);
        assert_eq!(found("etc/a.conf/*"), ["etc/a.conf/*"]);
        assert_eq!(found("none/x"), ["none/x"]);
    });
}

#[test]
fn a_walk_ends_at_its_depth() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("top/a/b/c").unwrap();
        let names = |depth: usize| -> Vec<String> {
            let walk = fs.walk("top").unwrap().max_depth(depth);
            walk.map(|entry| entry.unwrap().relative_path().display().to_string())
                .collect()
        };
        assert_eq!(names(0), [""; 0]);
        assert_eq!(names(1), ["a"]);
        assert_eq!(names(2), ["a", "a/b"]);
        assert_eq!(names(9), ["a", "a/b", "a/b/c"]);
        fs.close().unwrap();
    });
}

#[test]
fn a_removal_ends_when_it_is_asked_to() {
    each(|image| {
        let fs = image.open();
        fs.create_dir("top").unwrap();
        for name in 0..5 {
            fs.write(format!("top/{name}"), "").unwrap();
        }
        let stop = Stop::new();
        let removed = fs.remove_dir_all_with("top", &stop, &mut |step| {
            if matches!(step, Progress::Done { done: 2, .. }) {
                stop.stop();
            }
        });
        assert_eq!(kind(removed), ErrorKind::Interrupted);
        assert_eq!(fs.read_dir("top").unwrap().count(), 3);
    });
}
