//! Another client of the server, which works beside the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::{Connection, RedisServer};

/// Repeats its work on a thread and a connection of its own until it is dropped. A test that fails drops
/// it too. A scoped thread would run on, and the failed test would wait for it for ever.
pub struct Neighbour {
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts the work. The neighbour repeats it without a pause.
    ///
    /// # Panics
    /// Panics if the server refuses the connection.
    #[must_use = "it ends when it is dropped"]
    pub fn of(
        server: &RedisServer,
        mut work: impl FnMut(&mut Connection) + Send + 'static,
    ) -> Self {
        let mut connection = server.connect().expect("the server accepts a client");
        let has_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&has_ended);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                work(&mut connection);
            }
        });
        Self {
            has_ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let outcome = self.thread.take().map(JoinHandle::join);
        if let Some(Err(payload)) = outcome
            && !thread::panicking()
        {
            std::panic::resume_unwind(payload);
        }
    }
}
