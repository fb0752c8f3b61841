//! Devices on top of devices: the requests and properties that they pass on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_block::{Device, Layer, MemoryDevice, OverlayDevice};
use sapwood_testing::{CountDevice, FaultDevice, GateDevice, RecordDevice, RequestKinds};

/// Counts the hints that reach it.
#[derive(Debug)]
struct Hinted {
    inner: MemoryDevice,
    hints: AtomicU64,
}

impl Layer for Hinted {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.inner
    }

    fn will_read(&self, _offset: u64, len: u64) {
        self.hints.fetch_add(len, Ordering::Relaxed);
    }

    fn write_behind(&self, _offset: u64, len: u64) {
        self.hints.fetch_add(len, Ordering::Relaxed);
    }

    fn has_no_data(&self, _offset: u64, _len: u64) -> bool {
        true
    }
}

#[test]
fn every_layer_passes_hints_on() {
    let hinted = Arc::new(Hinted {
        inner: MemoryDevice::new(1 << 20),
        hints: AtomicU64::new(0),
    });
    let counted = Box::new(CountDevice::new(Arc::clone(&hinted)));
    let stack = RecordDevice::new(GateDevice::new(FaultDevice::new(counted)));
    Device::will_read(&stack, 0, 100);
    Device::write_behind(&stack, 0, 11);
    assert_eq!(hinted.hints.load(Ordering::Relaxed), 111);
    assert!(Device::writes_to_memory(&stack) && Device::has_no_data(&stack, 0, 1));
}

#[test]
fn a_failed_read_below_loses_no_page() {
    let below = Arc::new(FaultDevice::new(MemoryDevice::new(5 * 4096)));
    let overlay = OverlayDevice::new(below.clone());
    overlay.write_at(10, &[1]).unwrap();
    below.fail_all(RequestKinds::READ);
    assert!(overlay.write_at(4096, &[2]).is_err());
    overlay.write_at(11, &[3]).unwrap();
    below.clear();
    let mut seen = [0; 2];
    overlay.read_at(10, &mut seen).unwrap();
    assert_eq!(seen, [1, 3]);
}
