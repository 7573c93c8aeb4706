//! The acquires of a set of locks, which one command sends together.

use super::{SentAcquires, SentCopy};

impl SentAcquires {
    /// Records a reply that this copy was not executed: the command ended at an earlier lock of the set.
    pub fn on_not_run(&mut self, copy: &SentCopy) {
        self.on_any_reply(copy);
        self.forget_unsent_entry(copy);
        if self.entries.as_slice().is_empty() {
            self.on_busy();
        }
    }

    /// Records the reply that the same command has released everything that the owner id had.
    pub fn on_undone(&mut self, copy: &SentCopy) {
        self.on_any_reply(copy);
        self.on_busy();
    }
}
