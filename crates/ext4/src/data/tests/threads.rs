//! Many threads, little memory, everything in the background.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use sapwood_block::Device;
use sapwood_vfs::SyncKind;

use super::fixture::{FILES, MemoryImage, content, file, open, write};
use crate::mount::sync::fsync;
use crate::{Ext4, Options, data};

/// Writes, cuts and syncs a file for a while; returns what is in it then.
fn work(fs: &Ext4, name: &str, seed: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    let mut model: Vec<u8> = Vec::new();
    for _ in 0..300 {
        let inode = file(fs, name);
        let (offset, len) = (rng.usize(..300_000), rng.usize(1..30_000));
        match rng.u8(..10) {
            0 => {
                let _io = inode.io.write();
                data::truncate(&fs.engine, &inode, offset as u64).unwrap();
                model.resize(offset, 0);
            }
            1 => fsync(&fs.engine, &inode, SyncKind::All).unwrap(),
            2 => assert!(content(fs, &inode) == model),
            _ => {
                let bytes = vec![rng.u8(1..); len];
                write(fs, &inode, offset as u64, &bytes).unwrap();
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&bytes);
            }
        }
    }
    model
}

#[test]
fn writers_share_a_small_bound() {
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext3", "-b", "4096"],
    ] {
        let Some(image) = MemoryImage::new(options, "32M") else {
            return;
        };
        let device = Arc::new(image.device.snapshot());
        let mount = Options {
            dirty_bytes: 100_000,
            commit_interval: Duration::from_millis(1),
            threads: 3,
            ..Options::default()
        };
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, &mount);
        let models: Vec<Vec<u8>> = thread::scope(|scope| {
            let workers: Vec<_> = FILES
                .iter()
                .zip(1..)
                .map(|(name, seed)| {
                    let fs = &fs;
                    scope.spawn(move || work(fs, name, seed))
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        fs.close().unwrap();
        assert_eq!(fs.engine.writeback.bytes(), 0);
        assert_eq!(fs.engine.space.promised(), 0);
        image.check(&device);
        let fs = open(device as Arc<dyn Device>, &mount);
        for (name, model) in FILES.iter().zip(&models) {
            assert!(content(&fs, &file(&fs, name)) == *model, "{name}");
        }
    }
}
