//! Receives in place that are refused or fail: crashed images, links that lead out, failing devices,
//! repeated chains, and reserved names.

use std::path::Path;
use std::sync::Arc;

use sapwood::internal::btrfs_format::stream::{attribute, command};
use sapwood::internal::{ReceiveError, TransactionError};
use sapwood::{Error, FileSystem, Options, ReceiveOptions, SendOptions};
use sapwood_testing::machine::{RECEIVED_DIRECTORIES, part_left_out};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

use super::{
    Change, FORMS, MIB, NAME, formatted, in_place, made, next, open, open_to_read,
    receive_in_place, same, stream, stream_parent, sub_tree, tree,
};

#[test]
fn an_image_that_was_not_unmounted_is_not_received_into() {
    let one = next(&formatted(FORMS[0], 48 * MIB), 1, 40);
    let two = next(&one, 2, 20);
    let machine = Arc::new(one.snapshot());
    in_place(&machine, &stream(&two, Some(&one), "two")).unwrap();
    let three = next(&two, 3, 20);
    let delta = stream(&three, Some(&two), "three");
    // Both the recorded state and the state of a copy.
    for image in [&machine, &two] {
        let image = Arc::new(image.snapshot());
        assert!(open_to_read(&image).was_unmounted());
        let fs = open(&image);
        let crashed = Arc::new(image.snapshot());
        fs.close().unwrap();
        assert!(!open_to_read(&crashed).was_unmounted());
        let mut fs = open(&crashed);
        // It closes the image and opens it again.
        fs.transaction(|_| Ok::<_, Error>(())).unwrap();
        for _ in 0..2 {
            let error = receive_in_place(&mut fs, &delta).unwrap_err();
            let error = error.downcast::<ReceiveError>().unwrap();
            assert!(matches!(error, ReceiveError::NotUnmounted(_)), "{error}");
        }
        fs.close().unwrap();
        in_place(&image, &delta).unwrap();
    }
}

#[test]
fn a_file_with_a_link_outside_of_the_directory_is_not_changed() {
    let old = formatted(FORMS[0], 48 * MIB);
    let fs = open(&old);
    for dir in ["srv", "home"] {
        fs.create_dir(dir).unwrap();
    }
    for file in ["srv/in", "srv/out"] {
        fs.write(file, "old").unwrap();
    }
    fs.hard_link("srv/in", "srv/in2").unwrap();
    fs.hard_link("srv/out", "home/out").unwrap();
    fs.close().unwrap();
    let changes: [(Change<'_>, bool); 4] = [
        (&|fs| fs.write("srv/in2", "new"), true),
        (&|fs| fs.remove_file("srv/out"), true),
        (&|fs| fs.write("srv/out", "new"), false),
        (&|fs| fs.set_permissions("srv/out", 0o600), false),
    ];
    for (number, (change, allowed)) in changes.iter().enumerate() {
        let new = Arc::new(old.snapshot());
        let fs = open(&new);
        change(&fs).unwrap();
        fs.close().unwrap();
        let mut options = SendOptions::default();
        options.parent = Some("srv".into());
        options.parent_image = Some(open_to_read(&old));
        let mut delta = Vec::new();
        let sent = open_to_read(&new).send("srv", &mut delta, &options, &mut |_| {});
        sent.unwrap();
        let machine = Arc::new(old.snapshot());
        let mut fs = open(&machine);
        let received = fs.receive_in_place("srv", &*delta, &ReceiveOptions::default(), &mut |_| {});
        fs.close().unwrap();
        if *allowed {
            received.unwrap();
            let trees = [&new, &machine].map(|image| sub_tree(&open_to_read(image), "srv"));
            assert_eq!(trees[0], trees[1], "{number}");
        } else {
            let error = received.unwrap_err().downcast::<ReceiveError>().unwrap();
            assert!(
                matches!(&error, ReceiveError::LinkedOutside(path) if path == Path::new("out")),
                "{number}: {error}"
            );
            assert_eq!(tree(&old).difference(&tree(&machine)), None, "{number}");
        }
        let out = open_to_read(&machine).read("home/out").unwrap();
        assert_eq!(out, b"old", "{number}");
    }
}

#[test]
fn a_write_at_an_offset_past_all_files_is_refused() {
    let old = next(&formatted(FORMS[0], 48 * MIB), 1, 10);
    let new = next(&old, 2, 10);
    let parent = stream_parent(&stream(&new, Some(&old), "next"));
    for (offset, len) in [(u64::MAX - 2, 1), (u64::MAX - 2, 9), (u64::MAX - 8000, 1)] {
        let hostile = made(parent, &|writer| {
            writer.begin(command::WRITE);
            writer.put(attribute::PATH, b"step");
            writer.put(attribute::FILE_OFFSET, &offset.to_le_bytes());
            writer.put(attribute::DATA, &vec![1; len]);
        });
        let machine = Arc::new(old.snapshot());
        let error = in_place(&machine, &hostile).unwrap_err();
        let error = error.downcast::<ReceiveError>().unwrap();
        assert!(matches!(error, ReceiveError::File { .. }), "{error}");
        assert_eq!(tree(&old).difference(&tree(&machine)), None);
    }
}

/// Whatever write is the first that fails, the error says which state the image has.
#[test]
fn a_failing_device_has_the_state_that_the_error_says() {
    for form in [FORMS[0], FORMS[3]] {
        let old = next(&formatted(form, 48 * MIB), 1, 40);
        let new = next(&old, 2, 30);
        let delta = stream(&new, Some(&old), "next");
        let options = Options::new().option("noatime", None).unwrap();
        let kinds = RequestKinds::ANY_CHANGE;
        let receive = |nth: u64| {
            let device = Arc::new(FaultDevice::new(Arc::new(old.snapshot())));
            let rule = FaultRule::new(kinds, nth, Fault::Fail);
            device.arm(rule.from_then_on());
            let opened = FileSystem::open_on(device.clone(), NAME, &options);
            let received = opened.and_then(|mut fs| receive_in_place(&mut fs, &delta));
            (device, received)
        };
        let (device, received) = receive(u64::MAX);
        received.unwrap();
        let all = device.seen(kinds);
        let (before, after) = (tree(&old), tree(&new));
        let mut seen = [0, 0];
        for nth in all.saturating_sub(60)..all {
            let (device, received) = receive(nth);
            let Err(error) = received else { continue };
            let image = Arc::new(device.inner().snapshot());
            open(&image).close().unwrap();
            let found = tree(&image);
            let is_new = same(&after, &found).is_ok();
            let is_old = before.difference(&found).is_none();
            assert!(is_new || is_old, "{form:?}, write {nth}: {error}");
            let text = error.to_string();
            let Some(failed) = error.downcast_ref::<TransactionError>() else {
                continue;
            };
            if text.contains("the next open for writing completes them") {
                assert!(
                    is_new && failed.may_be_applied(),
                    "{form:?}, write {nth}: {error}"
                );
                seen[1] += 1;
            } else if !failed.may_be_applied() {
                assert!(is_old, "{form:?}, write {nth}: {error}");
                seen[0] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 1), "{form:?}: {seen:?}");
    }
}

#[test]
fn a_repeated_chain_is_skipped() {
    let one = next(&formatted(FORMS[0], 48 * MIB), 1, 40);
    let two = next(&one, 2, 20);
    let three = next(&two, 3, 20);
    let deltas = [
        stream(&two, Some(&one), "two"),
        stream(&three, Some(&two), "three"),
    ];
    let back = stream(&two, Some(&three), "two");
    let mut resume = ReceiveOptions::default();
    resume.resume = true;
    for at_once in [false, true] {
        let machine = Arc::new(one.snapshot());
        let receive = |stream: &[u8]| {
            let mut fs = open(&machine);
            let received = fs.receive_in_place("", stream, &resume, &mut |_| {});
            fs.close().unwrap();
            received.unwrap().content
        };
        let chain = || -> u64 {
            if at_once {
                return receive(&deltas.concat());
            }
            deltas.iter().map(|delta| receive(delta)).sum()
        };
        assert!(chain() > 0);
        assert_eq!(chain(), 0, "at once: {at_once}");
        same(&tree(&three), &tree(&machine)).unwrap();
        // A way back to an earlier state is no repetition.
        receive(&back);
        same(&tree(&two), &tree(&machine)).unwrap();
        chain();
        same(&tree(&three), &tree(&machine)).unwrap();
    }
}

#[test]
fn a_subvolume_with_the_name_of_a_record_is_refused() {
    let image = next(&formatted(FORMS[0], 48 * MIB), 1, 10);
    let dir = tempfile::tempdir().unwrap();
    for name in [".sapwood-received", ".sapwood-receive-x"] {
        let store = open(&formatted(FORMS[0], 48 * MIB));
        let full = stream(&image, None, name);
        let options = ReceiveOptions::default();
        let here = store.receive("", &*full, &options, &mut |_| {});
        let mut results = vec![here];
        if !part_left_out("into a directory", &[RECEIVED_DIRECTORIES]) {
            results.push(sapwood::receive(dir.path(), &*full, &options, &mut |_| {}));
        }
        for received in results {
            let error = received.unwrap_err().downcast::<ReceiveError>().unwrap();
            assert!(matches!(error, ReceiveError::ReservedName(_)), "{error}");
        }
        assert!(!store.exists(name).unwrap());
        assert!(!dir.path().join(name).exists());
    }
}
