//! `RecordDevice`: the crash images that a history allows.

use std::sync::Arc;
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::{
    Action, CrashPlan, Fault, FaultDevice, FaultRule, GateDevice, RecordDevice, Replayer,
    RequestKind, RequestKinds, Step, Torn,
};

const SIZE: u64 = 1 << 20;

fn recorder() -> (RecordDevice<MemoryDevice>, MemoryDevice) {
    let device = MemoryDevice::from_bytes(&vec![0xaa; SIZE as usize]);
    let base = device.snapshot();
    (RecordDevice::new(device), base)
}

/// The first byte of each of the first sectors of an image.
fn sectors<const N: usize>(image: &MemoryDevice) -> [u8; N] {
    std::array::from_fn(|i| {
        let mut buf = [0; 512];
        image.read_at(i as u64 * 512, &mut buf).unwrap();
        assert!(
            buf.iter().all(|b| *b == buf[0]),
            "sector {i} is torn within"
        );
        buf[0]
    })
}

fn write(device: &impl Device, sector: u64, value: u8) {
    device.write_at(sector * 512, &[value; 512]).unwrap();
}

#[test]
fn without_drops_a_prefix_is_what_was_written_until_then() {
    let (device, base) = recorder();
    for i in 0..4 {
        write(&device, i, i as u8 + 1);
    }
    let log = device.log();
    let mut seen = Vec::new();
    for n in 0..=4 {
        let image = log.image(&base, &CrashPlan::at(log.after_writes(n)));
        seen.push(sectors::<4>(&image));
    }
    let a = 0xaa;
    assert_eq!(
        seen,
        [
            [a; 4],
            [1, a, a, a],
            [1, 2, a, a],
            [1, 2, 3, a],
            [1, 2, 3, 4]
        ]
    );
    let last = log.image(&base, &CrashPlan::at(log.end()));
    assert_eq!(last.first_difference(device.inner()), None);
    assert_eq!(sectors(&base), [0xaa; 4], "the base is untouched");
}

#[test]
fn only_volatile_writes_can_be_lost_or_torn() {
    let (device, base) = recorder();
    write(&device, 0, 1);
    device.flush().unwrap();
    device
        .write_vectored_at(512, &[&[2; 512], &[2; 1024]])
        .unwrap();
    device.write_fua(4 * 512, &[3; 512]).unwrap();
    device.discard(5 * 512, 512).unwrap();
    let log = device.log();
    assert_eq!(log.volatile(log.end()), [2, 4]);
    let crash = || CrashPlan::at(log.end());
    let image = |plan: CrashPlan| sectors::<6>(&log.image(&base, &plan));
    let a = 0xaa;
    assert_eq!(image(crash()), [1, 2, 2, 2, 3, 0]);
    assert_eq!(image(crash().without(0..9)), [1, a, a, a, 3, a]);
    assert_eq!(image(crash().without([2])), [1, a, a, a, 3, 0]);
    assert_eq!(
        image(crash().tearing(2, Torn::Prefix(1))),
        [1, 2, a, a, 3, 0]
    );
    assert_eq!(
        image(crash().tearing(2, Torn::Sectors(vec![0, 2]))),
        [1, 2, a, 2, 3, 0]
    );
    assert_eq!(
        image(crash().tearing(0, Torn::Prefix(0))),
        [1, 2, 2, 2, 3, 0]
    );
    // Before the flush has ended it guarantees nothing.
    let flush_end = log.epochs()[0].end;
    assert_eq!(
        sectors(&log.image(&base, &CrashPlan::at(flush_end).without([0]))),
        [a]
    );
    assert_eq!(
        sectors(&log.image(&base, &CrashPlan::at(flush_end + 1).without([0]))),
        [1]
    );
}

#[test]
fn epochs_end_with_flushes_and_cover_all_points() {
    let (device, _) = recorder();
    write(&device, 0, 1);
    write(&device, 1, 1);
    device.flush().unwrap();
    device.mark("committed");
    write(&device, 2, 1);
    let log = device.log();
    let epochs = log.epochs();
    assert_eq!(epochs.len(), 2);
    assert_eq!(
        (epochs[0].start, epochs[0].volatile.as_slice()),
        (0, &[0, 1][..])
    );
    assert_eq!(
        (epochs[1].start, epochs[1].end),
        (epochs[0].end + 1, log.end())
    );
    assert_eq!(epochs[1].volatile, [3]);
    let mark = log.marks_before(log.end()).collect::<Vec<_>>();
    assert_eq!(mark, [(epochs[1].start, "committed")]);
    assert_eq!(log.marks_before(mark[0].0).count(), 0);
    assert_eq!(log.crash_points(), [0, 1, 3, 6, 7, 8]);
}

/// The flush guarantees only the write that is not held (in flight) when it begins.
#[test]
fn flush_covers_only_what_ended_before_it_began() {
    let memory = MemoryDevice::from_bytes(&vec![0xaa; SIZE as usize]);
    let base = memory.snapshot();
    let gate = Arc::new(GateDevice::new(memory));
    let device = RecordDevice::new(gate.clone());
    gate.hold_if(|r| r.kind == RequestKind::Flush || r.bytes.is_some_and(|b| b[0] == 2));
    thread::scope(|scope| {
        write(&device, 0, 1);
        let early = scope.spawn(|| write(&device, 1, 2));
        gate.wait_held(1);
        let flush = scope.spawn(|| device.flush().unwrap());
        gate.wait_held(2);
        write(&device, 2, 3);
        gate.release_first();
        early.join().unwrap();
        gate.open();
        flush.join().unwrap();
    });
    let log = device.log();
    // Entries: 0 = before, 1 = in flight when the flush began, 2 = flush, 3 = during it.
    assert_eq!(log.volatile(log.end()), [1, 3]);
    let before_end = log.end() - 1;
    assert_eq!(log.volatile(before_end), [0, 1, 3]);
    let image = log.image(&base, &CrashPlan::at(before_end).without([0, 1]));
    assert_eq!(sectors(&image), [0xaa, 0xaa, 3]);
    let image = log.image(&base, &CrashPlan::at(log.end()).without([0, 1]));
    assert_eq!(sectors(&image), [1, 0xaa, 3]);
}

#[test]
fn failed_requests_promise_nothing() {
    let memory = MemoryDevice::from_bytes(&vec![0xaa; SIZE as usize]);
    let base = memory.snapshot();
    let fault = Arc::new(FaultDevice::new(memory));
    let device = RecordDevice::new(fault.clone());
    write(&device, 0, 1);
    fault.arm(FaultRule::new(RequestKinds::FLUSH, 1, Fault::Fail));
    device.flush().unwrap_err();
    fault.arm(FaultRule::new(RequestKinds::FUA, 1, Fault::Fail));
    device.write_fua(512, &[2; 512]).unwrap_err();
    device.write_at(SIZE, &[2; 512]).unwrap_err();
    let log = device.log();
    assert_eq!(log.volatile(log.end()), [0, 2, 3]);
    assert_eq!(log.epochs().len(), 1);
    let crash = CrashPlan::at(log.end());
    assert_eq!(sectors(&log.image(&base, &crash)), [1, 0xaa]);
    let crash = crash.without([0]).tearing(2, Torn::Prefix(1));
    let crash = crash.tearing(3, Torn::Prefix(1));
    assert_eq!(sectors(&log.image(&base, &crash)), [0xaa, 2]);
}

#[test]
fn replayer_equals_one_image_at_a_time_in_any_order() {
    let (device, base) = recorder();
    for i in 0..200u64 {
        let offset = i * 7919 % (SIZE - 20_000);
        let data = vec![i as u8; (i * 97 % 20_000) as usize + 1];
        match i % 11 {
            0 => device.flush().unwrap(),
            1 => device.write_fua(offset, &data).unwrap(),
            2 => device.discard(offset, data.len() as u64).unwrap(),
            3 => drop(device.mark(format!("{i}"))),
            _ => device.write_at(offset, &data).unwrap(),
        }
    }
    let log = device.log();
    let mut replayer = Replayer::new(&log, &base);
    let points = log.crash_points();
    let backwards = points.iter().rev().step_by(9);
    for (seed, &point) in points.iter().chain(backwards).enumerate() {
        let plan = log.random_plan(point, seed as u64);
        assert_eq!(
            plan,
            log.random_plan(point, seed as u64),
            "the seed decides"
        );
        let volatile = log.volatile(point);
        assert!(
            plan.drop
                .iter()
                .chain(plan.torn.keys())
                .all(|e| volatile.contains(e))
        );
        let fast = replayer.image(&plan);
        assert_eq!(
            fast.first_difference(&model_image(&log, &base, &plan)),
            None,
            "{plan:?}"
        );
    }
}

/// Applies the plan in the slow and obvious way.
fn model_image(
    log: &sapwood_testing::RecordLog,
    base: &MemoryDevice,
    plan: &CrashPlan,
) -> MemoryDevice {
    let mut bytes = vec![0; SIZE as usize];
    base.read_at(0, &mut bytes).unwrap();
    let volatile = log.volatile(plan.at);
    for step in &log.steps()[..plan.at] {
        let Step::Begin(entry) = step else { continue };
        let Some((offset, len)) = log.entries()[*entry].action.range() else {
            continue;
        };
        let lost = plan.drop.contains(entry) && volatile.contains(entry);
        for at in 0..len {
            let sector = (offset + at) / 512 - offset / 512;
            let arrived = match plan.torn.get(entry) {
                Some(Torn::Prefix(n)) => sector < *n,
                Some(Torn::Sectors(list)) => list.contains(&sector),
                None => true,
            };
            if arrived && !lost {
                bytes[(offset + at) as usize] = match &log.entries()[*entry].action {
                    Action::Write { data, .. } => data[at as usize],
                    _ => 0,
                };
            }
        }
    }
    MemoryDevice::from_bytes(&bytes)
}

#[test]
fn a_taken_log_leaves_an_empty_one() {
    let (device, _) = recorder();
    write(&device, 0, 1);
    device.flush().unwrap();
    let first = device.take_log();
    assert_eq!(first.entries().len(), 2);
    assert_eq!(device.position(), 0);
    let base = device.inner().snapshot();
    write(&device, 1, 2);
    let second = device.log();
    assert_eq!(second.volatile(second.end()), [0]);
    let image = second.image(&base, &CrashPlan::at(second.end()));
    assert_eq!(sectors(&image), [1, 2, 0xaa]);
}

#[test]
fn a_request_in_flight_when_the_log_is_taken_is_in_neither_wrongly() {
    let gate = Arc::new(GateDevice::new(MemoryDevice::new(SIZE)));
    let device = RecordDevice::new(gate.clone());
    gate.hold_if(|_| true);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&device, 0, 1));
        gate.wait_held(1);
        let first = device.take_log();
        assert_eq!(first.volatile(first.end()), [0]);
        gate.open();
        writer.join().unwrap();
    });
    assert!(device.log().steps().is_empty());
}
