//! Copies on devices.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};

use crate::Options;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::mount::Engine;

#[test]
fn a_copy_is_repaired_unless_the_place_has_new_content() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = Options {
        background: false,
        ..Options::default()
    };
    let (engine, _) = Engine::open(devices, options).unwrap();
    let volume = &engine.volume;
    volume.begin_repairs();
    // A block of metadata has two copies.
    let logical = engine.roots.get(5).unwrap().node().bytenr();
    let mut old = vec![0; 16384];
    volume.read(logical, &mut old, 1).unwrap();
    let copy = || {
        let mut bytes = vec![0; old.len()];
        volume.read(logical, &mut bytes, 0).unwrap();
        bytes
    };
    let bad = volume.place(logical, 0).1;
    device.write_at(bad, &[7; 4096]).unwrap();
    assert!(volume.repair_from(logical, &old, 1, 0).unwrap());
    assert!(copy() == old);
    // A reader that found the damage is late: the place belongs to another block now.
    let new = vec![9; old.len()];
    volume.write_vectored(logical, &[&new]).unwrap();
    assert!(!volume.repair_from(logical, &old, 1, 0).unwrap());
    assert!(copy() == new);
}
