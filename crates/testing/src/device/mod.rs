//! Devices on top of another device for crash and concurrency tests: they record, fail, tear, hold
//! or count its requests.

mod count;
mod fault;
mod gate;
mod record;
mod request;
mod torn;

pub use count::{CountDevice, Counts};
pub use fault::{Fault, FaultDevice, FaultRule};
pub use gate::{GateDevice, Held};
pub use record::{
    Action, CrashPlan, Epoch, RecordDevice, RecordLog, RecordedRequest, Replayer, Step,
};
pub use request::{Request, RequestKind, RequestKinds};
pub use torn::Torn;
