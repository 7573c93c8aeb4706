//! The fault suite: many clients, a server and a network that misbehave, and checks of the guarantees.
//!
//! It works as Jepsen does (K. Kingsbury): processes record their requests and the replies, a
//! nemesis breaks things meanwhile, and afterwards pure functions search the record for what must
//! not be there. The parts, from the bottom up:
//!
//! - [`event`]: what is recorded, and its JSON lines;
//! - [`history`]: one round's record, put together to held locks and waits;
//! - [`dialects`]: the dialects that clients use;
//! - [`checks`]: the eight checks, and [`late`]: what counts where there are no tokens;
//! - [`resource`]: what the lock protects, outside of Redis, fenced and unfenced;
//! - [`worker`]: one client process of eight tasks with a [`workload`], and its extra [`load`];
//! - [`environment`]: server, proxies, workers and resource of one round, the [`sampler`] of the
//!   server's keys, and the [`leftovers`];
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
