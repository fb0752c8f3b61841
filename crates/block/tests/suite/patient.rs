//! Writes that are retried while the host has no space.

use std::sync::Arc;
use std::time::Duration;

use sapwood_block::{Device, MemoryDevice, PatientDevice};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

fn device(fault: Fault) -> (Arc<FaultDevice<MemoryDevice>>, PatientDevice) {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(8192)));
    device.arm(FaultRule::new(RequestKinds::ANY_WRITE, 1, fault));
    let patient = PatientDevice::new(device.clone(), Duration::from_secs(600));
    (device, patient)
}

#[test]
fn a_write_without_space_is_retried() {
    let (device, patient) = device(Fault::NoSpace);
    patient.write_at(0, &[1; 512]).unwrap();
    device.arm(FaultRule::new(RequestKinds::FUA, 1, Fault::NoSpace));
    patient.write_fua(512, &[1; 512]).unwrap();
    assert_eq!(device.seen(RequestKinds::ANY_WRITE), 4);
    let impatient = PatientDevice::new(device.clone(), Duration::ZERO);
    device.arm(FaultRule::new(RequestKinds::WRITE, 1, Fault::NoSpace));
    assert!(impatient.write_at(0, &[1; 512]).unwrap_err().is_host_full());
}

#[test]
fn other_errors_and_flushes_are_not_retried() {
    let (device, patient) = device(Fault::Fail);
    assert!(!patient.write_at(0, &[1; 512]).unwrap_err().is_host_full());
    device.arm(FaultRule::new(RequestKinds::FLUSH, 1, Fault::NoSpace));
    assert!(patient.flush().unwrap_err().is_host_full());
}
