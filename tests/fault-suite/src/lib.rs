//! The fault suite: many clients, a server and a network that misbehave, and a judge.
//!
//! It works as Jepsen does (K. Kingsbury): processes record what they asked for and what they were
//! told, somebody breaks things meanwhile, and afterwards pure functions look for what must not
//! be in the record. The parts, from the bottom up:
//!
//! - [`event`]: what is recorded, and its JSON lines;
//! - [`history`]: one round's record, put together to holds and waits;
//! - [`spoken`]: the dialects that clients may speak;
//! - [`checks`]: the eight checks, and [`late`]: what counts where there are no tokens;
//! - [`resource`]: what the lock protects, outside of Redis, fenced and unfenced;
//! - [`worker`]: one client process of eight tasks, and the [`load`] it takes on besides;
//! - [`stage`]: server, proxies, workers and resource of one round;
//! - [`nemesis`]: what breaks things;
//! - [`runner`]: rounds, one after another, and [`report`]: what came out.
//!
//! All times are nanoseconds of the machine's boot clock, which all processes share; it goes on
//! while one of them is stopped.

pub mod checks;
pub mod dialects;
pub mod environment;
pub mod event;
pub mod history;
pub mod late;
pub mod leftovers;
pub mod load;
pub mod nemesis;
pub mod report;
pub mod resource;
pub mod runner;
pub mod sampler;
pub mod worker;
pub mod workload;
