//! What `doctor` asks over its connection to a server.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock_core::doctor::{AskError, Connection, Reply};

use super::check::Check;
use super::info::Info;
use super::server;

/// How many pings are measured.
const PINGS: u32 = 20;

/// Measures round trips.
pub(super) async fn reachable(connection: &mut Connection, address: &str) -> Check {
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let sent = Instant::now();
        // A user without +ping gets an error, which takes as long.
        if let Err(AskError::Broken(error)) = connection.ask(&["PING"]).await {
            return lost(address, error);
        }
        times.push(sent.elapsed());
    }
    server::reachable(times, address)
}

/// The finding about a server that has stopped replying, or that sends bytes nobody can read as a reply.
pub(super) fn lost(address: &str, error: std::io::Error) -> Check {
    let error = AskError::Broken(error);
    let text = format!("lost the connection to {address} ({error})");
    Check::fail("reachable", text)
        .means("locks on this server fail or come late")
        .advice("check the server's load and the network, or raise --timeout")
}

pub(super) async fn info(connection: &mut Connection) -> Result<Info, AskError> {
    let reply = connection.ask(&["INFO"]).await?;
    Ok(Info::parse(&String::from_utf8_lossy(
        reply.bytes().unwrap_or_default(),
    )))
}

/// Reads the fields that HELLO has too. Every user may run it.
pub(super) async fn greeting(connection: &mut Connection) -> Info {
    let reply = connection.ask(&["HELLO"]).await;
    reply.map_or_else(|_| Info::default(), |reply| Info::of_greeting(&reply))
}

/// Returns the first word of ROLE, if the user may run it.
pub(super) async fn role(connection: &mut Connection) -> Option<String> {
    let reply = connection.ask(&["ROLE"]).await.ok()?;
    reply.items().first()?.text().map(str::to_owned)
}

/// Compares the clocks.
pub(super) async fn clock(connection: &mut Connection) -> Option<Check> {
    let sent = Instant::now();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let reply = connection.ask(&["TIME"]).await.ok()?;
    let error = sent.elapsed() / 2;
    let part = |at: usize| reply.items().get(at).and_then(Reply::number);
    let seconds = part(0)?.try_into().ok()?;
    let micros: u32 = part(1)?.try_into().ok()?;
    let server = Duration::new(seconds, micros.checked_mul(1_000)?);
    Some(server::clock(before + error, server, error))
}

/// Subscribes to a channel, publishes to it, and returns how long the message took.
pub(super) async fn echo(connection: &mut Connection, channel: &str) -> Result<Duration, AskError> {
    connection.subscribe(channel).await?;
    let sent = Instant::now();
    connection.publish(channel, "lockctl doctor").await?;
    connection.message().await?;
    Ok(sent.elapsed())
}
