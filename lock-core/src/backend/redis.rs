//! Locks on a Redis server.

mod connection;
mod connections;
mod fault;
mod push;
mod reply;
mod scripts;
mod server;
mod standalone;

pub(crate) use standalone::connect;

#[cfg(test)]
mod differential;
