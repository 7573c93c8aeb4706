#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod check;
mod event;
mod faults;
mod history;
mod lines;
mod record;
mod recorder;
mod register;
mod sink;

pub use check::{
    Check, Checker, DEFAULT_TOLERANCE, FencingTokens, Report, Violation, ViolationKind,
    lost_updates, stale_accesses,
};
pub use event::{Access, AccessKind, Call, Event, Kind, Nanos, Stall, Validity, nanos};
#[doc(inline)]
pub use faults::{Command, Faults, OtherHolder, in_memory_with_faults, try_in_memory_with_faults};
pub use history::{HeldLock, History, InvalidLine, Operation};
pub use lines::Line;
pub use record::{AcquisitionRecord, PendingCall};
pub use recorder::{
    RecordClock, RecordedGuard, RecordedRequest, Recorder, RecorderBuilder, StallWatch,
};
pub use register::{FencedRegister, StaleToken};
