//! Random operations on the in-memory reference agree with themselves, and find bugs that are
//! planted in a faulty one.

use crate::faulty::{BUGS, Bug, Faulty};
use sapwood_testing::MemoryFs;
use sapwood_testing::model::{
    Failure, Generator, Settings, Threads, compare_trees, minimize, replay, run_sequence,
};
use sapwood_testing::op::{Op, Outcome, Session};
use sapwood_vfs::{Credentials, FileSystem, NewInode};

fn all() -> Settings {
    let mut settings = Settings {
        subvolumes: true,
        ..Settings::default()
    };
    settings.capabilities.shift_range = true;
    settings
}

#[test]
fn equal_file_systems_agree() {
    for seed in 0..20 {
        let (fs, model) = (MemoryFs::new(), MemoryFs::new());
        run_sequence(seed, 500, &fs, &model, &all()).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(fs.held_references(), 0, "seed {seed}");
        assert_eq!(model.held_references(), 0, "seed {seed}");
    }
}

#[test]
fn threads_agree_with_their_models() {
    let fs = MemoryFs::new();
    let threads =
        Threads::run(1, 300, 4, &fs, &all()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(fs.held_references(), 0);
    threads.compare(&fs).unwrap();
    let dir = fs
        .lookup(fs.root(), Threads::name(2).as_bytes())
        .unwrap()
        .ino();
    let who = Credentials::ROOT;
    fs.create(&who, dir, b"not-in-the-model", NewInode::Fifo, 0)
        .unwrap();
    let failure = threads.compare(&fs).unwrap_err();
    assert!(failure.what.contains("not-in-the-model"), "{failure}");
}

#[test]
fn a_seed_makes_the_same_operations_again() {
    let ops = |seed| Generator::new(seed, &all()).take(1000).collect::<Vec<Op>>();
    assert_eq!(ops(7), ops(7));
    assert_ne!(ops(7), ops(8));
}

/// Sequences in which most operations fail test little.
#[test]
fn enough_operations_succeed() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..10 {
        let fs = MemoryFs::new();
        let mut session = Session::new(&fs, fs.root());
        for op in Generator::new(seed, &all()).take(500) {
            match session.apply(&op) {
                Outcome::Failed(_) | Outcome::Refused | Outcome::Empty => bad += 1,
                _ => good += 1,
            }
        }
    }
    assert!(good * 2 > bad, "{good} succeeded, {bad} failed");
}

/// The first failure that one of several seeds finds. A panic of the file system stays a panic.
fn hunt(bug: Bug) -> Failure {
    let settings = all();
    for seed in 0..60 {
        let (fs, model) = (Faulty::new(bug), MemoryFs::new());
        if let Err(failure) = run_sequence(seed, 400, &fs, &model, &settings) {
            return *failure;
        }
    }
    panic!("no seed found {bug:?}");
}

#[test]
fn planted_bugs_are_found_and_minimized() {
    for bug in BUGS.into_iter().filter(|bug| *bug != Bug::RmdirPanics) {
        let failure = hunt(bug);
        assert!(failure.seed.is_some());
        let least = minimize(failure.clone(), &all(), || {
            (Faulty::new(bug), MemoryFs::new())
        });
        assert_eq!(least.seed, failure.seed);
        assert!(least.ops.len() <= 12, "{bug:?} needs {least}");
        // Only the faulty file system fails: two good ones pass the same operations.
        let closely = Settings {
            compare_every: 1,
            ..all()
        };
        let (fs, model) = (Faulty::new(bug), MemoryFs::new());
        let again = replay(&least.ops, &fs, &model, &closely).unwrap_err();
        assert_eq!(again.what, least.what);
        let (fs, model) = (MemoryFs::new(), MemoryFs::new());
        replay(&least.ops, &fs, &model, &closely).unwrap();
    }
}

#[test]
fn a_report_shows_seed_and_operations() {
    let failure = hunt(Bug::NoReplaceReplaces);
    let text = failure.to_string();
    assert!(
        text.contains(&format!("seed {}", failure.seed.unwrap())),
        "{text}"
    );
    assert!(text.contains("no_replace=true"), "{text}");
}

#[test]
fn threads_find_planted_bugs_too() {
    for bug in [Bug::WriteDropsTail, Bug::ExchangeIsRename, Bug::RmdirPanics] {
        let found = (0..20).any(|seed| {
            let fs = Faulty::new(bug);
            Threads::run(seed, 300, 3, &fs, &all()).is_err()
        });
        assert!(found, "{bug:?}");
    }
}

#[test]
fn comparing_sees_every_kind_of_difference() {
    use sapwood_vfs::{SetAttr, SetXattrMode, WriteMode};
    let who = Credentials::ROOT;
    let build = || {
        let fs = MemoryFs::new();
        let file = fs
            .create(&who, fs.root(), b"f", NewInode::Regular, 0o644)
            .unwrap()
            .ino();
        fs.write(file, 0, b"content", WriteMode::default()).unwrap();
        fs.setxattr(file, b"user.a", b"x", SetXattrMode::Any)
            .unwrap();
        fs.link(file, fs.root(), b"g").unwrap();
        fs.create(&who, fs.root(), b"s", NewInode::Symlink(b"t"), 0)
            .unwrap();
        (fs, file)
    };
    type Change = fn(&MemoryFs, sapwood_vfs::Ino);
    let changes: [(&str, Change); 8] = [
        ("f: permissions", |fs, file| {
            let changes = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            fs.setattr(file, &changes).unwrap();
        }),
        ("f: content from byte 3", |fs, file| {
            fs.write(file, 3, b"T", WriteMode::default()).unwrap();
        }),
        ("f: size", |fs, file| {
            fs.write(file, 7, b"s", WriteMode::default()).unwrap();
        }),
        ("f: attribute user.a", |fs, file| {
            fs.setxattr(file, b"user.a", b"y", SetXattrMode::Any)
                .unwrap();
        }),
        ("n: missing", |fs, _| {
            fs.create(&Credentials::ROOT, fs.root(), b"n", NewInode::Fifo, 0)
                .unwrap();
        }),
        ("g: same inode as", |fs, file| {
            fs.unlink(fs.root(), b"g").unwrap();
            let what = NewInode::Regular;
            fs.create(&Credentials::ROOT, fs.root(), b"g", what, 0o644)
                .unwrap();
            fs.getattr(file).unwrap();
        }),
        ("s: content from byte 0", |fs, _| {
            fs.unlink(fs.root(), b"s").unwrap();
            let what = NewInode::Symlink(b"u");
            fs.create(&Credentials::ROOT, fs.root(), b"s", what, 0)
                .unwrap();
        }),
        ("f: flags", |fs, file| {
            fs.set_flags(file, sapwood_vfs::InodeFlags::NODUMP).unwrap();
        }),
    ];
    assert_eq!(compare_trees(&build().0, &build().0), Ok(()));
    for (what, change) in changes {
        let ((one, _), (other, file)) = (build(), build());
        change(&other, file);
        let difference = compare_trees(&one, &other).unwrap_err();
        assert!(difference.contains(&format!("\n{what}")), "{difference}");
    }
}
