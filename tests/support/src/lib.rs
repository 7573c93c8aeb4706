//! The environment of tests: real servers, a lossy network, controlled clocks, and real processes.
//!
//! - [`RedisServer`] owns a `redis-server` on a free port, and removes it on drop.
//! - [`PostgresServer`] does the same with a PostgreSQL server.
//! - [`Proxy`] is in front of a server and delays, cuts, loses, mutes and refuses.
//! - [`StandIn`] is a server that differs from a current one: of a hosting service, old, or hostile.
//! - [`ClusterBus`] cuts a node off from the other nodes of its cluster, but not from its clients.
//! - [`FrozenClock`] is the wall clock of a server, which only the test moves.
//! - [`Helper`] starts a child process that writes JSON lines and can be killed or frozen.
//! - [`Neighbour`] is another client of a server, which works beside the test.
//! - [`Monitor`] records the commands that a server executes.
//! - [`fuzz`] calls a parser with inputs that are nearly right.
//! - [`eventually`] waits for a condition instead of a fixed time.
//! - [`guide`] has the commands that the guide tells a reader to run.
//! - [`fixtures`] has the names, bounds and queries that most tests share.
//!
//! This package does not depend on `lock-core`, so that the unit tests of `lock-core` can use it.
//! No test is ever skipped: a missing program is a failure whose text says how to install it.

pub mod bus;
pub mod child;
pub mod clock;
pub mod cluster;
pub mod cut;
pub mod fixtures;
mod fuzz;
pub mod guide;
mod janitor;
mod lua;
pub mod monitor;
pub mod neighbour;
mod page;
mod ports;
pub mod postgres;
pub mod preload;
pub mod process;
pub mod proxy;
pub mod random;
mod replication;
pub mod resolver;
pub mod resp;
pub mod sentinel;
pub mod server;
mod signal;
pub mod stalls;
pub mod stand_in;
pub mod suspend;
pub mod tls;
pub mod wait;

pub use bus::ClusterBus;
pub use clock::FrozenClock;
pub use cluster::{Failover, RedisCluster, SlotMove, lone_node};
pub use cut::cut;
pub use fuzz::fuzz;
pub use janitor::Scratch;
pub use lua::lua_of_another_engine;
pub use monitor::{Monitor, Recording};
pub use neighbour::Neighbour;
pub use postgres::PostgresServer;
pub use preload::Shim;
pub use process::{Helper, Process};
pub use proxy::{Direction, Lost, Proxy};
pub use random::Random;
pub use resolver::{MovableName, Resolver, SilentResolver, run_under_resolver};
pub use resp::{Connection, Reply};
pub use sentinel::SentinelService;
pub use server::{RedisServer, ServerOptions};
pub use stalls::{Stalls, Stopwatch};
pub use stand_in::StandIn;
pub use suspend::SuspendedMachine;
pub use tls::{Authority, Certificate};
pub use wait::{completes_within, eventually, eventually_async, eventually_some, holds_within};
