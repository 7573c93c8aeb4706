//! Tests of the fault suite. Its checks find all violations and nothing else, its faults are hard
//! enough to break an unfenced resource, and a short run passes.

mod dialects;
mod exclusion;
mod failovers;
mod kinds;
mod losses;
mod record;
mod runs;
mod slots;
mod waits;
