//! The round trip that a measurement is compared with.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

use crate::connection::open;

/// A connection that measures round trips with PING.
#[derive(Clone)]
pub struct RoundTrip(MultiplexedConnection);

impl RoundTrip {
    /// Connects with the settings of the library's own connections.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str) -> Self {
        Self(open(url, None).await)
    }

    /// Measures this many round trips, each after a pause of `pace`. A command after a pause takes
    /// longer than the next one of a busy client, because threads and cores have to wake up.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn measure(&mut self, count: usize, pace: Duration) -> Vec<Duration> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            tokio::time::sleep(pace).await;
            let started = Instant::now();
            let pong: String = redis::cmd("PING")
                .query_async(&mut self.0)
                .await
                .expect("the server replies");
            times.push(started.elapsed());
            assert_eq!(pong, "PONG");
        }
        times
    }
}
