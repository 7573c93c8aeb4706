//! The recipes of the guide's page `cookbook`.

mod jobs;
mod leader;
mod requests;
