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

    /// Returns the allocations since an earlier measurement, for one of `parts` equal operations.
    #[must_use]
    pub fn per(self, earlier: Self, parts: u32) -> Self {
        let each = |now, before| (now - before) / f64::from(parts);
        Self {
            count: each(self.count, earlier.count),
            bytes: each(self.bytes, earlier.bytes),
            live_bytes: each(self.live_bytes, earlier.live_bytes),
        }
    }
}
