//! Keeps locks on Redis servers: on one, in a cluster, or at a quorum.

mod access;
mod channels;
mod client;
#[cfg(feature = "cluster")]
mod cluster;
mod confirmer;
mod connect;
mod connection;
mod connector;
mod credentials;
mod dial;
mod errors;
mod handshake;
mod link;
mod listening;
mod location;
mod login;
mod maker;
#[cfg(feature = "cluster")]
mod membership;
mod node;
mod operations;
pub(crate) mod place;
mod pool;
mod pushes;
#[cfg(feature = "quorum")]
mod quorum;
mod report;
mod security;
mod sentinel;
mod single;
#[cfg(feature = "__tls")]
mod tls;
mod transport;
pub(crate) mod url;

pub(crate) use connect::connect;
