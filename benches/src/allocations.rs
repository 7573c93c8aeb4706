//! What the client allocates. A bench that uses this declares the counting allocator:
//!
//! ```
//! use benches::allocations::Counting;
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting::system();
//! # fn main() {}
//! ```

use std::alloc::System;
use std::ops::Sub;

use crate::figures::number;

/// The system's allocator, with counters of all threads.
pub type Counting = stats_alloc::StatsAlloc<System>;

/// Allocations, and their bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocations {
    /// The number of allocations and reallocations.
    pub count: f64,
    /// The bytes of all allocations.
    pub bytes: f64,
    /// The bytes of the allocations that were not freed.
    pub live_bytes: f64,
}

impl Allocations {
    /// Reads the counters.
    #[must_use]
    pub fn read(allocator: &Counting) -> Self {
        let stats = allocator.stats();
        let [allocations, reallocations, allocated, freed] = [
            stats.allocations,
            stats.reallocations,
            stats.bytes_allocated,
            stats.bytes_deallocated,
        ]
        .map(|count| number(count as u64));
        Self {
            count: allocations + reallocations,
            bytes: allocated,
            live_bytes: allocated - freed,
        }
    }

    /// Returns the share of one of `parts` equal operations.
    #[must_use]
    pub fn per(self, parts: u32) -> Self {
        let parts = f64::from(parts);
        Self {
            count: self.count / parts,
            bytes: self.bytes / parts,
            live_bytes: self.live_bytes / parts,
        }
    }
}

impl Sub for Allocations {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            count: self.count - earlier.count,
            bytes: self.bytes - earlier.bytes,
            live_bytes: self.live_bytes - earlier.live_bytes,
        }
    }
}
