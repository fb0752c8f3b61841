//! Images whose journal needs recovery: checked as a recovery would leave them, and not changed.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sapwood_block::{Device, MemoryDevice};

use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, fill, lines, report, with_kernel};

/// The device while the kernel has it mounted, with an open file that has no name any more.
fn caught(args: &str) -> Arc<MemoryDevice> {
    let caught = Mutex::new(None);
    let body = |at: &Path| {
        fill(at);
        let mut open = std::fs::File::create(at.join("open")).unwrap();
        open.write_all(&[1; 9000]).unwrap();
        open.sync_all().unwrap();
        std::fs::remove_file(at.join("open")).unwrap();
        std::fs::write(at.join("last"), "last").unwrap();
        std::fs::File::open(at.join("last"))
            .unwrap()
            .sync_all()
            .unwrap();
        let image = at.parent().unwrap().join("image");
        *caught.lock().unwrap() = Some(MemoryDevice::load(image).unwrap());
    };
    with_kernel(&image(24 * MIB, args), body).unwrap();
    Arc::new(caught.into_inner().unwrap().unwrap())
}

#[test]
fn a_journal_is_replayed_in_memory_only() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    for args in ["-b 1024", "-O ^orphan_file", "-O orphan_file", "-t ext3"] {
        let device = caught(args);
        let mut before = vec![0; device.size() as usize];
        device.read_at(0, &mut before).unwrap();
        let report = report(&device).unwrap();
        let codes: Vec<_> = report
            .findings
            .iter()
            .map(|finding| finding.code())
            .collect();
        assert_eq!(codes, ["NeedsRecovery"], "{args}: {}", lines(&report));
        assert!(report.stats.names > 200, "{args}: {:?}", report.stats);
        let mut after = vec![0; before.len()];
        device.read_at(0, &mut after).unwrap();
        assert!(before == after, "{args}: the image was changed");
    }
}

#[test]
fn an_unusable_journal_is_a_finding() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let saved = Saved::new(&caught("-b 1024"));
    saved.debugfs("zap_block -f <8> -o 0 -l 16 -p 0x77 0\n");
    let report = report(&saved.load()).unwrap();
    let found = report
        .findings
        .iter()
        .any(|finding| finding.code() == "JournalBad");
    assert!(found && !report.is_clean(), "{}", lines(&report));
}
