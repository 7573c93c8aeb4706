//! The harness: real servers, a lossy network, a clock in the test's hand, and real processes.
//!
//! - [`RedisServer`] owns a `redis-server` on a free port, and takes it away again on drop.
//! - [`Proxy`] stands in front of a server and delays, cuts, loses, mutes and refuses.
//! - [`FrozenClock`] is the wall clock of a server, moved only by the test.
//! - [`Helper`] is a child process that speaks JSON lines and can be killed or frozen.
//! - [`mod@conformance`] is what every backend has to keep, as one suite.
//! - [`faults`] is the fault suite: many clients, everything that breaks, and a judge.
//! - [`interop`] races clients of other languages against ours.
//! - [`eventually`] waits for a condition, never for an amount of time.
//!
//! Nothing of this is ever skipped: what the harness needs and does not find is a failure that
//! says how to get it.

pub mod clock;
pub mod conformance;
pub mod cut;
pub mod faults;
pub mod interop;
mod janitor;
pub mod monitor;
mod ports;
pub mod preload;
pub mod process;
pub mod proxy;
pub mod resp;
pub mod server;
mod signal;
pub mod wait;

pub use clock::FrozenClock;
pub use cut::cut;
pub use monitor::{Monitor, Recording};
pub use preload::Shim;
pub use process::Helper;
pub use proxy::{Direction, Lost, Proxy};
pub use resp::{Connection, Reply};
pub use server::{RedisServer, ServerOptions};
pub use wait::{eventually, eventually_async, eventually_some, shut_down};
