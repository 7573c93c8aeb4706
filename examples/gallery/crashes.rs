//! What is left behind by holders that crash, and connections that break.

use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand;
use crate::children::{Actor, Role, TTL};
use crate::stage::{self, Fault, LONG, Refused, Server, Shown, ms, refused_for};
use crate::wire::{Cut, Wire};

/// How long we wait for a lock that may never come.
const PATIENCE: Duration = Duration::from_secs(3);

/// SETNX without EXPIRE, and a crash.
pub async fn no_expire(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "no-expire";
    let by_hand = async {
        let mut child = Actor::start(Role::Setnx, server, KEY)?;
        child.says().await?;
        child.kill().await?;
        refused_by_hand(server, KEY).await
    };
    let library = async {
        let mut child = Actor::start(Role::Library, server, KEY)?;
        child.says().await?;
        free_after_kill(server, KEY, child).await
    };
    let (by_hand, free) = try_join!(by_hand, library)?;
    Ok(Shown {
        mistake: "`SETNX` without `EXPIRE`, and a crash",
        by_hand,
        library: format!("free after {}, its ttl was {}", ms(free), ms(TTL)),
    })
}

/// The connection is cut between SETNX and EXPIRE.
pub async fn lost_expire(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "lost-expire";
    let by_hand = async {
        let wire = Wire::to(server, Cut::Before("EXPIRE")).await?;
        let mut redis = stage::connect(&wire.url()).await?;
        let answer = by_hand::setnx_then_expire(&mut redis, KEY, 1).await;
        if answer.is_ok() || !wire.was_cut() {
            return Err("the connection was not cut".into());
        }
        refused_by_hand(server, KEY).await
    };
    let library = async {
        // One command: there is no between. So the answer is lost, the worst that a cut can do.
        let wire = Wire::to(server, Cut::After(KEY)).await?;
        let locks = LockManager::connect(&wire.url()).await?;
        let acquired = locks.lock(KEY).ttl(TTL).acquire().await;
        if !wire.was_cut() {
            return Err("the connection was not cut".into());
        }
        let left = by_hand::ttl(&mut server.connect().await?, &format!("lock:{KEY}")).await?;
        let end = match acquired {
            // It asked again on a new connection, and was told that it has the lock.
            Ok(guard) => guard.release().await.map(|()| "the release")?,
            Err(_) => "the error",
        };
        let next = server.locks().await?.lock(KEY);
        let refused = refused_for(LONG, async || {
            Ok(next.clone().try_acquire().await?.is_some())
        });
        Ok((left, end, refused.await?))
    };
    let (by_hand, (left, end, refused)) = try_join!(by_hand, library)?;
    let (Refused::For(time) | Refused::ToTheEnd(time)) = refused;
    Ok(Shown {
        mistake: "the connection cut between `SETNX` and `EXPIRE`",
        by_hand,
        library: format!(
            "locked for {} after {end}: one command, TTL {left} s",
            ms(time)
        ),
    })
}

/// A lock of ten minutes, to be safe, outlives its process.
pub async fn kept(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "kept";
    let by_hand = async {
        let mut child = Actor::start(Role::TenMinutes, server, KEY)?;
        child.says().await?;
        child.kill().await?;
        refused_by_hand(server, KEY).await
    };
    let library = async {
        let mut child = Actor::start(Role::Library, server, KEY)?;
        child.says().await?;
        let begin = Instant::now();
        // Longer than the ttl: renewal is what lets it be short.
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
    Ok(Shown {
        mistake: "ten minutes of ttl, to be safe, and a crash",
        by_hand,
        library: format!("free after {free}: a ttl of {ttl}, renewed for {held}"),
    })
}

/// For how long somebody is refused who tries in the way of those who write locks by hand.
async fn refused_by_hand(server: &Server, key: &str) -> Result<String, Fault> {
    let mut redis = server.connect().await?;
    let mut other = redis.clone();
    let refused = refused_for(
        PATIENCE,
        async || Ok(by_hand::setnx(&mut other, key).await?),
    );
    Ok(match refused.await? {
        Refused::For(time) => format!("free after {}", ms(time)),
        Refused::ToTheEnd(time) => {
            let left = match by_hand::ttl(&mut redis, key).await? {
                -1 => "TTL -1: for ever".to_owned(),
                seconds => format!("{seconds} s of ttl left"),
            };
            format!("still locked after {}, {left}", ms(time))
        }
    })
}

/// Kills the holder; how long another one then waits.
async fn free_after_kill(server: &Server, key: &str, child: Actor) -> Result<Duration, Fault> {
    let locks = server.locks().await?;
    child.kill().await?;
    let begin = Instant::now();
    let guard = locks.lock(key).wait(LONG).acquire().await?;
    let free = begin.elapsed();
    guard.release().await?;
    Ok(free)
}
