//! A handover without the library: the least that a release, a script and a notification need.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use test_support::fixtures::current_thread_runtime;
use tokio::sync::Notify;

use crate::connection::{LoadedScript, open};

/// Replaces the holder and notifies the next one.
const SCRIPT: &str = "redis.call('DEL', KEYS[1]) \
                      redis.call('SET', KEYS[1], ARGV[1], 'PX', 2000) \
                      redis.call('PUBLISH', ARGV[2], ARGV[1]) \
                      return 1";
const CHANNEL: &str = "raw-handover";

/// A releaser, and a subscriber on a thread of its own, as a manager has one.
pub struct RawHandover {
    script: LoadedScript,
    granted: Arc<Notify>,
    close: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl RawHandover {
    /// Connects the releaser and the subscriber.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str) -> Self {
        let script = LoadedScript::load(&open(url, None).await, SCRIPT).await;
        let granted = Arc::<Notify>::default();
        let (ready, close) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let thread = std::thread::spawn({
            let (granted, ready) = (Arc::clone(&granted), Arc::clone(&ready));
            let (close, url) = (Arc::clone(&close), url.to_owned());
            move || {
                current_thread_runtime().block_on(async move {
                    let mut subscriber = open(&url, Some(granted)).await;
                    let confirmed = subscriber.subscribe(CHANNEL).await;
                    confirmed.expect("the server replies");
                    ready.notify_one();
                    close.notified().await;
                });
            }
        });
        ready.notified().await;
        Self {
            script,
            granted,
            close,
            thread: Some(thread),
        }
    }

    /// Measures this many handovers, each after a pause: from the call of the script until the
    /// waiter runs.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn measure(&mut self, count: usize, pace: Duration) -> Vec<Duration> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let waiter = tokio::spawn({
                let granted = Arc::clone(&self.granted);
                async move {
                    granted.notified().await;
                    Instant::now()
                }
            });
            tokio::time::sleep(pace).await;
            let started = Instant::now();
            let arguments = ["6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10", CHANNEL];
            let done: u8 = self.script.call(&["raw"], &arguments).await;
            assert_eq!(done, 1);
            let running = waiter.await.expect("the waiter does not panic");
            times.push(running.duration_since(started));
        }
        times
    }
}

impl Drop for RawHandover {
    fn drop(&mut self) {
        self.close.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
