#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(feature = "locks", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "locks"),
    doc = "Histories of locks, and a checker of the guarantees."
)]

mod check;
mod event;
#[cfg(feature = "locks")]
mod faults;
mod history;
mod lines;
#[cfg(feature = "locks")]
mod record;
#[cfg(feature = "locks")]
mod recorder;
#[cfg(feature = "locks")]
mod register;
#[cfg(feature = "locks")]
mod sink;

pub use check::{
    Check, Checker, DEFAULT_TOLERANCE, FencingTokens, Report, Violation, ViolationKind,
    lost_updates, stale_accesses,
};
pub use event::{Access, AccessKind, Call, Event, Kind, Nanos, Stall, Validity, nanos};
#[cfg(feature = "locks")]
#[doc(inline)]
pub use faults::{Command, Faults, OtherHolder, in_memory_with_faults};
pub use history::{HeldLock, History, InvalidLine, Operation};
pub use lines::Line;
#[cfg(feature = "locks")]
#[doc(inline)]
pub use lock_core::testing::errors;
#[cfg(feature = "locks")]
pub use record::{AcquisitionRecord, PendingCall};
#[cfg(feature = "locks")]
pub use recorder::{
    RecordClock, RecordedGuard, RecordedRequest, Recorder, RecorderBuilder, StallWatch,
};
#[cfg(feature = "locks")]
pub use register::{FencedRegister, StaleToken};
