//! What operators see of locks, and what they do with them, on a real server and in memory.

mod inspect;
mod list;
mod loss;
mod release;
mod release_target;
mod rights;
mod tags;
