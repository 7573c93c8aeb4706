//! The fault suite: its checks find what is wrong and nothing else, its faults are hard enough to
//! break what is not fenced, and a short run of it passes.

mod dialects;
mod exclusion;
mod losses;
mod record;
mod runs;
mod waits;
