//! The recipes of the guide's page `cookbook`.

mod election;
mod jobs;
mod leader;
mod requests;
