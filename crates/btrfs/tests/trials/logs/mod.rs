//! Images with a log that the kernel wrote, and the kernel's own recovery of each.
#![allow(dead_code, unreachable_pub)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};

/// A log: the image and the expected listing.
#[derive(Debug, Clone)]
pub struct Log {
    pub name: String,
    pub image: PathBuf,
    pub listing: String,
}

/// The logs of a directory: `NAME.img.zst` with `NAME.txt`.
pub fn logs_in(dir: &Path) -> Vec<Log> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let image = entry.unwrap().path();
        let name = image.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".img.zst") else {
            continue;
        };
        logs.push(Log {
            name: name.to_owned(),
            listing: std::fs::read_to_string(dir.join(format!("{name}.txt"))).unwrap(),
            image,
        });
    }
    logs.sort_by(|a, b| a.name.cmp(&b.name));
    logs
}

/// The images that are kept with the tests.
pub fn fixtures() -> Vec<Log> {
    logs_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logs"))
}

impl Log {
    /// The image in memory.
    pub fn load(&self) -> Arc<MemoryDevice> {
        let mut file = zstd::Decoder::new(std::fs::File::open(&self.image).unwrap()).unwrap();
        let device = MemoryDevice::new(SIZE);
        let (mut at, mut piece) = (0, vec![0; 64 << 10]);
        loop {
            let mut len = 0;
            while len < piece.len() {
                match file.read(&mut piece[len..]).unwrap() {
                    0 => break,
                    more => len += more,
                }
            }
            if len == 0 {
                return Arc::new(device);
            }
            if piece[..len].iter().any(|byte| *byte != 0) {
                device.write_at(at, &piece[..len]).unwrap();
            }
            at += len as u64;
        }
    }
}

/// Bytes of each image.
const SIZE: u64 = 512 << 20;
