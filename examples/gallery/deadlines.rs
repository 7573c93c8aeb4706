//! Locks whose value is a deadline, and which other clients take over with GETSET.

use std::time::Duration;

use lock_core::Renew;
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand::Deadlines;
use crate::stage::{ActResult, Blocked, BoxError, HolderLog, LONG, Server, blocked_for, ms};

const TTL: Duration = Duration::from_secs(1);

/// Returns a client with a correct clock and a network without delay.
async fn client(server: &Server) -> redis::RedisResult<Deadlines> {
    Ok(Deadlines {
        redis: server.connect().await?,
        ttl: TTL,
        clock_ahead: Duration::ZERO,
        network: Duration::ZERO,
    })
}

/// Returns an error if the loser acquired the lock: then the act shows nothing.
fn check_not_acquired<T>(lock: Option<&T>) -> Result<(), BoxError> {
    match lock {
        Some(_) => Err("the loser acquired the lock".into()),
        None => Ok(()),
    }
}

/// Two clients find the lock of a dead holder, and the slower one moves the deadline of the winner.
pub async fn moved(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "moved-deadline";
    // Both clients read before one of them writes.
    let [fast, slow] = [50, 150].map(Duration::from_millis);
    // The loser writes before the winner releases.
    let works = Duration::from_millis(300);

    let by_hand = async {
        let mut winner = client(server).await?;
        let mut loser = client(server).await?;
        let mut next = client(server).await?;
        winner.network = fast;
        loser.network = slow;
        winner.leave_dead_lock(KEY).await?;
        let winner = async {
            let mine = winner.lock(KEY).await?;
            sleep(works).await;
            winner.unlock(KEY, mine).await?;
            blocked_for(LONG, async || Ok(next.try_lock(KEY).await?.is_some())).await
        };
        let loser = async {
            let acquired = loser.try_lock(KEY).await?;
            check_not_acquired(acquired.as_ref())
        };
        Ok::<Blocked, BoxError>(try_join!(winner, loser)?.0)
    };
    let library = async {
        let [winner, loser, next] = [
            server.locks().await?,
            server.locks().await?,
            server.locks().await?,
        ];
        let dead = winner.lock(KEY).ttl(slow).renew(Renew::Never);
        dead.acquire().await?.lost().await;
        let winner = async {
            let guard = winner.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            sleep(works).await;
            guard.release().await?;
            let next = next.lock(KEY);
            blocked_for(LONG, async || {
                Ok(next.clone().try_acquire().await?.is_some())
            })
            .await
        };
        let loser = async {
            sleep(fast).await;
            let acquired = match loser.lock(KEY).ttl(TTL).wait(slow).acquire().await {
                Err(error) if error.is_contended() => None,
                acquired => Some(acquired?),
            };
            check_not_acquired(acquired.as_ref())
        };
        Ok(try_join!(winner, loser)?.0)
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    let locked = |(Blocked::For(time) | Blocked::UntilTimeout(time))| {
        format!("locked for {} after the release", ms(time))
    };
    Ok(ActResult {
        mistake: "`GETSET` by a loser moves the winner's deadline",
        by_hand: locked(by_hand),
        library: locked(library),
    })
}

/// A client whose clock is ahead takes over a lock before its deadline.
pub async fn clocks_differ(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "clocks";
    const AHEAD: Duration = Duration::from_secs(3);
    let works = Duration::from_millis(600);
    // The second client starts when the first one holds the lock.
    let later = Duration::from_millis(100);

    let by_hand = async {
        let log = HolderLog::default();
        let worker = async |delay: Duration, clock_ahead: Duration| {
            let mut client = client(server).await?;
            client.clock_ahead = clock_ahead;
            sleep(delay).await;
            let mine = client.lock(KEY).await?;
            log.work(works).await;
            client.unlock(KEY, mine).await
        };
        try_join!(worker(Duration::ZERO, Duration::ZERO), worker(later, AHEAD))?;
        Ok::<_, BoxError>(log.two_holders())
    };
    let library = async {
        let log = HolderLog::default();
        // The library uses no clock of a client for this, so no clock is set ahead here.
        let worker = async |delay: Duration| {
            let locks = server.locks().await?;
            sleep(delay).await;
            let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            log.work_under(&guard, works).await;
            guard.release().await
        };
        try_join!(worker(Duration::ZERO), worker(later))?;
        Ok(log.two_holders())
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(ActResult {
        mistake: "deadlines by clocks that differ by 3 s",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!(
            "two holders for {}: only the server's clock counts",
            ms(library)
        ),
    })
}
