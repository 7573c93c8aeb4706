//! Keeps locks on Redis servers: on one, in a cluster, or at a quorum.

mod channels;
mod client;
#[cfg(feature = "cluster")]
mod cluster;
mod confirmer;
mod connect;
mod connection;
mod connector;
mod credentials;
pub(crate) mod deployment;
mod dial;
#[cfg(feature = "__doctor")]
pub mod doctor;
mod errors;
mod handshake;
mod link;
mod listening;
mod location;
mod login;
#[cfg(feature = "cluster")]
mod membership;
mod node;
mod node_config;
mod operations;
mod pool;
#[cfg(feature = "quorum")]
mod quorum;
mod report;
mod sentinel;
mod single;
#[cfg(feature = "__tls")]
mod tls;
mod transport;
pub(crate) mod url;

pub(crate) use connect::{connect, connect_lazily};
