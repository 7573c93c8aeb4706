//! Locks that remain after a crash of the holder or a broken connection.

use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand;
use crate::children::{ChildProcess, Role, TTL};
use crate::stage::{self, ActResult, Blocked, BoxError, LONG, Server, blocked_for, ms};
use crate::wire::{Cut, Wire};

/// The longest wait for a lock that may never be free.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The holder crashes after SETNX without EXPIRE.
pub async fn no_expire(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "no-expire";
    let by_hand = async {
        let mut child = ChildProcess::start(Role::Setnx, server, KEY)?;
        child.read().await?;
        child.kill().await?;
        blocked_by_hand(server, KEY).await
    };
    let library = async {
        let mut child = ChildProcess::start(Role::Library, server, KEY)?;
        child.read().await?;
        free_after_kill(server, KEY, child).await
    };
    let (by_hand, free) = try_join!(by_hand, library)?;
    Ok(ActResult {
        mistake: "`SETNX` without `EXPIRE`, and a crash",
        by_hand,
        library: format!("free after {}, its ttl was {}", ms(free), ms(TTL)),
    })
}

/// The connection is cut between SETNX and EXPIRE.
pub async fn lost_expire(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "lost-expire";
    let by_hand = async {
        let wire = Wire::to(server, Cut::Before("EXPIRE")).await?;
        let mut redis = stage::connect(&wire.url()).await?;
        let answer = by_hand::setnx_then_expire(&mut redis, KEY, 1).await;
        if answer.is_ok() || !wire.was_cut() {
            return Err("the connection was not cut".into());
        }
        blocked_by_hand(server, KEY).await
    };
    let library = async {
        // Acquiring is one command, so the connection cannot break in the middle. The worst case is a
        // lost reply.
        let wire = Wire::to(server, Cut::After(KEY)).await?;
        let locks = LockManager::connect(&wire.url()).await?;
        let acquired = locks.lock(KEY).ttl(TTL).acquire().await;
        if !wire.was_cut() {
            return Err("the connection was not cut".into());
        }
        let left = by_hand::ttl(&mut server.connect().await?, &format!("lock:{KEY}")).await?;
        let end = match acquired {
            // The library sent the command again on a new connection, and the reply confirmed the lock.
            Ok(guard) => guard.release().await.map(|()| "the release")?,
            Err(_) => "the error",
        };
        let next = server.locks().await?.lock(KEY);
        let blocked = blocked_for(LONG, async || {
            Ok(next.clone().try_acquire().await?.is_some())
        });
        Ok((left, end, blocked.await?))
    };
    let (by_hand, (left, end, blocked)) = try_join!(by_hand, library)?;
    let (Blocked::For(time) | Blocked::UntilTimeout(time)) = blocked;
    Ok(ActResult {
        mistake: "the connection cut between `SETNX` and `EXPIRE`",
        by_hand,
        library: format!(
            "locked for {} after {end}: one command, TTL {left} s",
            ms(time)
        ),
    })
}

/// The holder of a lock with a long ttl crashes.
pub async fn kept(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "kept";
    let by_hand = async {
        let mut child = ChildProcess::start(Role::TenMinutes, server, KEY)?;
        child.read().await?;
        child.kill().await?;
        blocked_by_hand(server, KEY).await
    };
    let library = async {
        let mut child = ChildProcess::start(Role::Library, server, KEY)?;
        child.read().await?;
        let begin = Instant::now();
        // Longer than the ttl, so that the lock has to be renewed.
        sleep(2 * TTL).await;
        if server
            .locks()
            .await?
            .lock(KEY)
            .try_acquire()
            .await?
            .is_some()
        {
            return Err("the child's lock was not renewed".into());
        }
        let held = begin.elapsed();
        Ok((held, free_after_kill(server, KEY, child).await?))
    };
    let (by_hand, (held, free)) = try_join!(by_hand, library)?;
    let (free, ttl, held) = (ms(free), ms(TTL), ms(held));
    Ok(ActResult {
        mistake: "ten minutes of ttl, to be safe, and a crash",
        by_hand,
        library: format!("free after {free}: a ttl of {ttl}, renewed for {held}"),
    })
}

/// Measures for how long the lock stays taken for a client that uses SETNX.
async fn blocked_by_hand(server: &Server, key: &str) -> Result<String, BoxError> {
    let mut redis = server.connect().await?;
    let mut other = redis.clone();
    let blocked = blocked_for(TIMEOUT, async || Ok(by_hand::setnx(&mut other, key).await?));
    Ok(match blocked.await? {
        Blocked::For(time) => format!("free after {}", ms(time)),
        Blocked::UntilTimeout(time) => {
            let left = match by_hand::ttl(&mut redis, key).await? {
                -1 => "TTL -1: forever".to_owned(),
                seconds => format!("{seconds} s of ttl left"),
            };
            format!("still locked after {}, {left}", ms(time))
        }
    })
}

/// Kills the holder, and measures how long another client then waits.
async fn free_after_kill(
    server: &Server,
    key: &str,
    child: ChildProcess,
) -> Result<Duration, BoxError> {
    let locks = server.locks().await?;
    child.kill().await?;
    let begin = Instant::now();
    let guard = locks.lock(key).wait(LONG).acquire().await?;
    let free = begin.elapsed();
    guard.release().await?;
    Ok(free)
}
