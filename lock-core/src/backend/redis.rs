//! Locks on a Redis server.

mod connection;
mod connections;
mod fault;
mod push;
mod reply;
mod scripts;
mod standalone;

pub(crate) use standalone::connect;

#[cfg(test)]
mod differential;
