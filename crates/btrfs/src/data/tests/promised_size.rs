//! Data promised by a flush stays within the size on disk, despite concurrent writes.

use sapwood_vfs::SyncKind;

use super::*;
use crate::data::flush::{Begun, settle_size};
use crate::data::truncate;
use crate::mount::{fsync, sync};

/// Offset of the promised data.
const AT: u64 = 24_576;

/// A device and a file with a sector of `b` at [`AT`] in memory, whose write the device holds.
fn file_with_held_data(options: Options) -> (Gate, Arc<Engine>, Arc<Inode>) {
    let gate = device(&MkfsOptions::default());
    let devices: Vec<Arc<dyn Device>> = vec![gate.clone()];
    let (engine, _) = Engine::open(devices, options).unwrap();
    let file = create(&engine, b"f");
    write(&engine, &file, AT, &[b'b'; 4096]);
    hold(&gate, b'b');
    (gate, engine, file)
}

fn quiet() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

/// Runs `promise`, and while the device holds the data, `beside`.
fn run_beside(gate: &Gate, promise: impl FnOnce() -> Result<()> + Send, beside: impl FnOnce()) {
    thread::scope(|scope| {
        let promise = scope.spawn(promise);
        gate.wait_held(1);
        beside();
        gate.open();
        promise.join().unwrap().unwrap();
    });
}

fn after_power_cut(gate: &Gate, file: &Inode) -> (u64, Vec<u8>) {
    let again = reopen(gate);
    let file = load(&again, file.objectid);
    let bytes = read(&again, &file, AT, 4096).unwrap();
    (file.state.lock().size, bytes)
}

#[test]
fn a_sync_keeps_data_behind_what_is_written_meanwhile() {
    let (gate, engine, file) = file_with_held_data(quiet());
    run_beside(
        &gate,
        || sync(&engine),
        || write(&engine, &file, 4096, &[b'a'; 8192]),
    );
    let (size, bytes) = after_power_cut(&gate, &file);
    assert_eq!(size, AT + 4096);
    assert!(bytes.iter().all(|byte| *byte == b'b'));
}

#[test]
fn an_fsync_by_commit_keeps_data_behind_what_is_written_meanwhile() {
    let (gate, engine, file) = file_with_held_data(Options {
        tree_log: false,
        ..quiet()
    });
    run_beside(
        &gate,
        || fsync(&engine, &file, SyncKind::All),
        || write(&engine, &file, 4096, &[b'a'; 8192]),
    );
    let (size, _) = after_power_cut(&gate, &file);
    assert_eq!(size, AT + 4096);
}

#[test]
fn a_sync_keeps_what_a_truncation_beside_it_left() {
    let (gate, engine, file) = file_with_held_data(quiet());
    run_beside(
        &gate,
        || sync(&engine),
        || {
            {
                let _io = file.io.write();
                truncate(&engine, &file, AT + 2000).unwrap();
            }
            write(&engine, &file, 4096, &[b'a'; 8192]);
        },
    );
    let (size, bytes) = after_power_cut(&gate, &file);
    assert_eq!(size, AT + 2000);
    assert!(bytes.iter().all(|byte| *byte == b'b'));
}

#[test]
fn a_file_that_was_emptied_and_written_again_shows_no_zeros() {
    let (gate, engine, file) = file_with_held_data(quiet());
    gate.open();
    let begun = Begun::of(&file);
    flush_complete(&engine, &file).unwrap();
    {
        let _io = file.io.write();
        truncate(&engine, &file, 0).unwrap();
    }
    write(&engine, &file, 0, &[b'a'; AT as usize + 4096]);
    hold(&gate, b'a');
    // The file is as long as it was, but has no byte that the flush saw.
    run_beside(
        &gate,
        || settle_size(&engine, &file, begun),
        || assert_eq!(file.state.lock().disk_size, 0),
    );
    assert_eq!(file.state.lock().disk_size, AT + 4096);
}
