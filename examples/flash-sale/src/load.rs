//! The buyers: requests that arrive at random, as those of independent visitors do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::BoxError;
use crate::demo::Demo;
use crate::shop::{Order, Reply};

/// How often the buyers that have arrived meanwhile are sent.
const TICK: Duration = Duration::from_millis(5);

/// How long a buyer waits for a reply. Longer than an instance is frozen.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest reply of an instance, in bytes.
const LONGEST_REPLY: usize = 4096;

/// A small generator of random numbers (splitmix64), so that a seed gives the same arrivals.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the time to the next arrival: exponential, because arrivals are independent.
    fn pause(&mut self, rate: u32) -> Duration {
        let bits = u32::try_from(self.next() >> 32).unwrap_or(u32::MAX);
        // In (0, 1], so that the logarithm is finite.
        let uniform = (f64::from(bits) + 1.0) / (f64::from(u32::MAX) + 1.0);
        Duration::from_secs_f64(-uniform.ln() / f64::from(rate))
    }

    fn choose<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        let count = u64::try_from(among.len()).ok()?;
        let index = usize::try_from(self.next().checked_rem(count)?).ok()?;
        among.get(index).copied()
    }
}

/// Sends buyers until the demo ends.
pub(crate) async fn run(demo: Arc<Demo>, seed: u64) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut random = Random(seed);
    let mut buyer = 0;
    let mut next = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended = std::pin::pin!(demo.ended());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut ended => return,
        }
        let now = Instant::now();
        let rate = demo.model().settings.rate;
        // Arrivals of a time in which this task did not run are not made up for.
        next = next.max(now.checked_sub(TICK * 4).unwrap_or(now));
        while next <= now {
            next += random.pause(rate);
            let Some((order, address)) = next_buyer(&demo, buyer + 1, &mut random) else {
                break;
            };
            buyer += 1;
            let (demo, client) = (Arc::clone(&demo), client.clone());
            tokio::spawn(async move {
                let reply = timeout(PATIENCE, send(&client, address, &order)).await;
                // A killed instance does not reply.
                let reply = reply.ok().and_then(Result::ok);
                demo.model().on_reply(order.sale, reply);
            });
        }
    }
}

/// Returns the next order and its instance, or `None` when no requests are sent.
fn next_buyer(demo: &Demo, buyer: u64, random: &mut Random) -> Option<(Order, SocketAddr)> {
    let mut model = demo.model();
    if !model.sends() {
        return None;
    }
    let serving = model.instances.iter().filter(|i| i.state.serves());
    let addresses: Vec<_> = serving.filter_map(|instance| instance.address).collect();
    let address = random.choose(&addresses)?;
    model.on_request();
    let settings = model.settings;
    let order = Order {
        sale: model.number,
        item: demo.item(model.number),
        buyer,
        lock: settings.lock,
        fence: settings.fence,
        slow: settings.slow,
    };
    Some((order, address))
}

async fn send(
    client: &Client<HttpConnector, Body>,
    address: SocketAddr,
    order: &Order,
) -> Result<Reply, BoxError> {
    let request = Request::post(format!("http://{address}/buy"))
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(serde_json::to_vec(order)?))?;
    let response = client.request(request).await?;
    let body = to_bytes(Body::new(response.into_body()), LONGEST_REPLY).await?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_arrivals_at_the_rate() {
        let total = |seed| {
            let mut random = Random(seed);
            (0..10_000).map(|_| random.pause(200)).sum::<Duration>()
        };
        assert_eq!(total(1), total(1));
        assert_ne!(total(1), total(2));
        // 10,000 arrivals take 50 s at 200 per second, and their standard deviation is 0.5 s.
        assert!(total(1).abs_diff(Duration::from_secs(50)) < Duration::from_secs(2));
    }
}
