//! Locks whose value is a deadline, and which other clients take over with GETSET.

use std::time::Duration;

use lock_core::{LockGuard, Renew};
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand::Deadlines;
use crate::stage::{ActResult, Blocked, BoxError, HolderLog, LONG, Server, blocked_for, ms};

const TTL: Duration = Duration::from_secs(1);

/// The ttl that a dead holder leaves.
const LEFT: Duration = Duration::from_millis(150);

/// Returns a client with a correct clock.
async fn client(server: &Server) -> redis::RedisResult<Deadlines> {
    Ok(Deadlines {
        redis: server.connect().await?,
        ttl: TTL,
        clock_ahead: Duration::ZERO,
    })
}

/// Two clients find the lock of a dead holder, and the slower one moves the deadline of the winner.
pub async fn moved(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "moved-deadline";
    // The clients have different deadlines.
    let slower = Duration::from_millis(5);

    let by_hand = async {
        let mut winner = client(server).await?;
        let mut loser = client(server).await?;
        let mut next = client(server).await?;
        winner.leave_dead_lock(KEY).await?;
        // Both clients read before one of them writes, and the loser writes before the winner releases.
        let expired = winner.find_expired(KEY).await?.ok_or("not expired")?;
        let same = loser.find_expired(KEY).await?.ok_or("not expired")?;
        let mine = winner.take_over(KEY, expired).await?;
        let mine = mine.ok_or("the winner didn't acquire the lock")?;
        sleep(slower).await;
        if loser.take_over(KEY, same).await?.is_some() {
            return Err("the loser acquired the lock".into());
        }
        winner.unlock(KEY, mine).await?;
        blocked_for(LONG, async || Ok(next.try_lock(KEY).await?.is_some())).await
    };
    let library = async {
        let [winner, loser, next] = [
            server.locks().await?,
            server.locks().await?,
            server.locks().await?,
        ];
        let dead = winner.lock(KEY).ttl(LEFT).renew(Renew::Never);
        dead.acquire().await?.lost().await;
        let guard = winner.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
        match loser.lock(KEY).ttl(TTL).wait(slower).acquire().await {
            Err(error) if error.is_contended() => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err("the loser acquired the lock".into()),
        }
        guard.release().await?;
        let next = next.lock(KEY);
        blocked_for(LONG, async || {
            Ok(next.clone().try_acquire().await?.is_some())
        })
        .await
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
    // Shorter than the ttl.
    let works = Duration::from_millis(900);

    let by_hand = async {
        let log = HolderLog::default();
        let mut first = client(server).await?;
        let mut second = client(server).await?;
        second.clock_ahead = AHEAD;
        let work = async |client: &mut Deadlines, mine: u64| {
            log.work(works).await;
            client.unlock(KEY, mine).await
        };
        let mine = first.lock(KEY).await?;
        // The second client starts when the first one holds the lock.
        let second = async {
            let mine = second.lock(KEY).await?;
            work(&mut second, mine).await
        };
        try_join!(work(&mut first, mine), second)?;
        Ok::<_, BoxError>(log.two_holders())
    };
    let library = async {
        let log = HolderLog::default();
        // The library uses no clock of a client for this, so no clock is set ahead here.
        let [first, second] = [server.locks().await?, server.locks().await?];
        let work = async |guard: LockGuard| {
            log.work_under(&guard, works).await;
            guard.release().await
        };
        let guard = first.lock(KEY).ttl(TTL).acquire().await?;
        let second = async {
            let guard = second.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            work(guard).await
        };
        try_join!(work(guard), second)?;
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
