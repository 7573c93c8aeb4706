//! One test for each way in which a lock on one Redis primary can go wrong: it provokes the fault
//! on a real server, and shows what happens instead. The number in a test's name is that of the
//! mode in the project's list; modes that take several servers are not here.

mod ambiguity;
mod guide;
mod runtime;
mod server_errors;
mod state_loss;
mod support;
mod time;
mod waiting;
