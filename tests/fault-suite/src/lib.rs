//! The fault suite: many clients, a server and a network that misbehave, and checks of the guarantees.
//!
//! It works like Jepsen (K. Kingsbury): processes record their requests and replies while a nemesis
//! causes faults. Afterwards pure functions search the record for violations. The crate
//! `lock-testing` has the recorder, the history and the checks that every user can run. The modules
//! add what only this suite knows, from the bottom up:
//!
//! - [`clock`]: the clock of all records;
//! - [`history`]: the record of one round, with the faults and the samples of the server;
//! - [`dialects`]: the dialects that clients use;
//! - [`checks`]: the checks, and [`late`]: the rules for dialects without tokens;
//! - [`resource`]: the protected resource outside of Redis, fenced and unfenced;
//! - [`worker`]: one client process of eight tasks with a [`workload`], and its extra [`load`];
//! - [`crew`]: the client processes of one round, and their records;
//! - [`environment`]: server, proxies and crew of one round, the [`sampler`] of the
//!   server's keys, and the [`leftovers`];
//! - [`nemesis`]: the faults;
//! - [`topology`]: rounds on several servers;
//! - [`runner`]: the rounds, one after another, and [`report`]: the results.
//!
//! All times are nanoseconds of the machine's boot clock. All processes share it, and it continues
//! while a process is stopped.

pub mod checks;
pub mod clock;
pub mod crew;
pub mod dialects;
pub mod environment;
pub mod history;
pub mod late;
pub mod leftovers;
pub mod load;
pub mod nemesis;
pub mod report;
pub mod resource;
pub mod runner;
pub mod sampler;
pub mod topology;
pub mod worker;
pub mod workload;
