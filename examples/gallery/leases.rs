//! Leases that expire while the holder works.

use std::time::Duration;

use lock_core::{LockError, Renew};
use tokio::sync::Barrier;
use tokio::try_join;

use crate::by_hand::{self, POLL};
use crate::stage::{ActResult, BoxError, HolderLog, LONG, Server, ms};

const MS: Duration = Duration::from_millis(1);

/// A holder finishes in time, hangs before the release, and then deletes the lock of the next holder.
pub async fn other_lock_deleted(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "others-lock";
    /// The ttl of the first holder, which works for a part of it.
    const TTL: Duration = Duration::from_millis(500);
    let work = 200 * MS;
    // The second holder still works when the first one releases.
    let works = 1000 * MS;

    let by_hand = async {
        let log = HolderLog::default();
        // The first holder hangs, and the third client starts, until the second one holds the lock.
        let next = Barrier::new(3);
        let mut redis = [
            server.connect().await?,
            server.connect().await?,
            server.connect().await?,
        ];
        let [first, second, third] = &mut redis;
        by_hand::poll_set_nx_px(first, KEY, "first", TTL, POLL).await?;
        let first = async {
            log.work(work).await;
            next.wait().await;
            by_hand::del(first, KEY).await
        };
        let second = async {
            by_hand::poll_set_nx_px(second, KEY, "second", LONG, POLL).await?;
            next.wait().await;
            log.work(works).await;
            by_hand::delete_if_mine(second, KEY, "second").await
        };
        let third = async {
            next.wait().await;
            by_hand::poll_set_nx_px(third, KEY, "third", LONG, POLL).await?;
            log.work(works).await;
            by_hand::delete_if_mine(third, KEY, "third").await
        };
        try_join!(first, second, third)?;
        Ok(log.two_holders())
    };
    let library = async {
        let log = HolderLog::default();
        let next = Barrier::new(3);
        let others = [server.locks().await?, server.locks().await?];
        let locks = server.locks().await?;
        // A process that hangs does not renew.
        let guard = locks
            .lock(KEY)
            .ttl(TTL)
            .renew(Renew::Never)
            .acquire()
            .await?;
        let first = async {
            log.work_under(&guard, work).await;
            next.wait().await;
            Ok(guard.release().await)
        };
        let second = async {
            let guard = others[0].lock(KEY).wait(LONG).acquire().await?;
            next.wait().await;
            log.work_under(&guard, works).await;
            guard.release().await
        };
        let third = async {
            next.wait().await;
            let guard = others[1].lock(KEY).wait(LONG).acquire().await?;
            log.work_under(&guard, works).await;
            guard.release().await
        };
        let (late, (), ()) = try_join!(first, second, third)?;
        let late = match late {
            Err(LockError::Lost { .. }) => "`Lost`".to_owned(),
            Err(error) => error.to_string(),
            Ok(()) => "done".to_owned(),
        };
        Ok::<_, BoxError>((log.two_holders(), late))
    };
    let (by_hand, (library, late)) = try_join!(by_hand, library)?;
    Ok(ActResult {
        mistake: "a late `DEL` of another holder's lock",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!(
            "two holders for {}; the late release says {late}",
            ms(library)
        ),
    })
}

/// The work takes longer than the lease.
pub async fn work_too_long(server: &Server) -> Result<ActResult, BoxError> {
    const KEY: &str = "work-too-long";
    const TTL: Duration = Duration::from_secs(2);
    let works = 3000 * MS;

    let by_hand = async {
        let log = HolderLog::default();
        let worker = async |owner: &str| {
            let mut redis = server.connect().await?;
            by_hand::poll_set_nx_px(&mut redis, KEY, owner, TTL, POLL).await?;
            log.work(works).await;
            by_hand::delete_if_mine(&mut redis, KEY, owner).await
        };
        try_join!(worker("one"), worker("other"))?;
        Ok::<_, BoxError>(log.two_holders())
    };
    let library = async {
        let log = HolderLog::default();
        let worker = async || {
            let locks = server.locks().await?;
            let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            log.work_under(&guard, works).await;
            guard.release().await
        };
        try_join!(worker(), worker())?;
        Ok(log.two_holders())
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(ActResult {
        mistake: "a lease that ends before the work",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!("two holders for {}: renewed", ms(library)),
    })
}
