//! The service in Rust. `java/src/main/java/beside/Main.java` is the same service in Java.

use std::time::{Duration, Instant};

use lock_core::LockManager;
use lock_core::dialect::{Dialect, RedissonLock};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use crate::BoxError;

/// The name of the lock in both languages, and its key on the server.
pub const LOCK: &str = "stock:17";
/// The key of the record.
const SOLD: &str = "stock:17:sold";
/// This service, in the record.
const SIDE: &str = "rust";
/// The time between the read and the write: without the lock, updates would be lost.
const WORK: Duration = Duration::from_millis(1);

/// What the stock says: how many pieces were sold, the fencing token of the last sale, and the service.
#[derive(Debug, Default)]
pub struct Record {
    pub sold: u64,
    token: u64,
    side: String,
}

impl Record {
    pub async fn read(connection: &mut MultiplexedConnection) -> Result<Self, BoxError> {
        let text: Option<String> = connection.get(SOLD).await?;
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or("the record is cut off");
        Ok(Self {
            sold: next()?.parse()?,
            token: next()?.parse()?,
            side: next()?.to_owned(),
        })
    }

    async fn write(&self, connection: &mut MultiplexedConnection) -> Result<(), BoxError> {
        let Self { sold, token, side } = self;
        let () = connection
            .set(SOLD, format!("{sold} {token} {side}"))
            .await?;
        Ok(())
    }
}

/// Sells until the time is over, and reports.
pub async fn run(url: &str) -> Result<(), BoxError> {
    let mut connection = examples::server::connect(url).await?;
    // region: connect
    let locks = LockManager::builder()
        .prefix("") // the key is the name that Java uses
        .dialect(Dialect::Redisson {
            lock: RedissonLock::Fenced,
        })
        .connect(url)
        .await?;
    // endregion
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;

    let until = Instant::now() + Duration::from_secs(crate::seconds()?);
    let (mut sections, mut changes) = (0, 0);
    let mut tokens: Option<(u64, u64)> = None;
    while Instant::now() < until {
        let guard = locks.lock(LOCK).acquire().await?;
        let token = examples::token(&guard)?.as_u64();
        let last = Record::read(&mut connection).await?;
        if token <= last.token {
            return Err(format!("token {token} came after token {}", last.token).into());
        }
        sleep(WORK).await;
        let record = Record {
            sold: last.sold + 1,
            token,
            side: SIDE.to_owned(),
        };
        record.write(&mut connection).await?;
        guard.release().await?;

        sections += 1;
        changes += u64::from(!last.side.is_empty() && last.side != SIDE);
        tokens = Some((tokens.map_or(token, |(first, _)| first), token));
    }
    let (first, last) = tokens.unwrap_or_default();
    println!("done {sections} {changes} {first} {last}");
    locks.shutdown().await?;
    Ok(())
}
