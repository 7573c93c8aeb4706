//! `lockctl` against real servers, with real processes, signals and terminals.

mod admin;
mod admin_foreign;
mod assets;
mod cluster;
mod container;
mod doctor;
mod doctor_address;
mod doctor_rights;
mod doctor_tls;
mod doctor_topologies;
mod escapes;
mod exclusion;
mod exit_codes;
mod golden;
mod guide;
mod json;
mod kinds;
mod loss;
mod once_per;
mod program;
mod signals;
mod terminal;
mod tickets;
mod watch;
