//! Leases that end while somebody works.

use std::time::Duration;

use lock_core::{LockError, Renew};
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand::{self, POLL};
use crate::stage::{Book, Fault, LONG, Server, Shown, ms};

const MS: Duration = Duration::from_millis(1);

/// Somebody is done in time, but hangs before it releases, and deletes the lock of the next one.
pub async fn others_lock_deleted(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "others-lock";
    /// Of the first one's lock. It works for a part of it, and hangs for longer.
    const TTL: Duration = Duration::from_millis(500);
    let (work, hang) = (200 * MS, 600 * MS);
    // The second one's work lasts while the first one wakes up, and the third one has time.
    let works = 1000 * MS;
    // The third comes when the second has the lock, and not before the lease's end.
    let later = 650 * MS;

    let by_hand = async {
        let book = Book::default();
        let mut redis = [
            server.connect().await?,
            server.connect().await?,
            server.connect().await?,
        ];
        let [first, second, third] = &mut redis;
        by_hand::poll_set_nx_px(first, KEY, "first", TTL, POLL).await?;
        let first = async {
            book.work(work).await;
            sleep(hang).await;
            by_hand::del(first, KEY).await
        };
        let second = async {
            by_hand::poll_set_nx_px(second, KEY, "second", LONG, POLL).await?;
            book.work(works).await;
            by_hand::delete_if_mine(second, KEY, "second").await
        };
        let third = async {
            sleep(later).await;
            by_hand::poll_set_nx_px(third, KEY, "third", LONG, POLL).await?;
            book.work(works).await;
            by_hand::delete_if_mine(third, KEY, "third").await
        };
        try_join!(first, second, third)?;
        Ok(book.two_holders())
    };
    let library = async {
        let book = Book::default();
        let others = [server.locks().await?, server.locks().await?];
        let locks = server.locks().await?;
        // Who hangs does not renew.
        let guard = locks
            .lock(KEY)
            .ttl(TTL)
            .renew(Renew::Never)
            .acquire()
            .await?;
        let first = async {
            book.work_under(&guard, work).await;
            sleep(hang).await;
            Ok(guard.release().await)
        };
        let second = async {
            let guard = others[0].lock(KEY).wait(LONG).acquire().await?;
            book.work_under(&guard, works).await;
            guard.release().await
        };
        let third = async {
            sleep(later).await;
            let guard = others[1].lock(KEY).wait(LONG).acquire().await?;
            book.work_under(&guard, works).await;
            guard.release().await
        };
        let (late, (), ()) = try_join!(first, second, third)?;
        let late = match late {
            Err(LockError::Lost { .. }) => "`Lost`".to_owned(),
            Err(error) => error.to_string(),
            Ok(()) => "done".to_owned(),
        };
        Ok::<_, Fault>((book.two_holders(), late))
    };
    let (by_hand, (library, late)) = try_join!(by_hand, library)?;
    Ok(Shown {
        mistake: "a late `DEL` of somebody else's lock",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!(
            "two holders for {}; the late release says {late}",
            ms(library)
        ),
    })
}

/// The work takes longer than the lease, and nobody renews it.
pub async fn work_too_long(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "work-too-long";
    const TTL: Duration = Duration::from_secs(1);
    let works = 1800 * MS;

    let by_hand = async {
        let book = Book::default();
        let worker = async |owner: &str| {
            let mut redis = server.connect().await?;
            by_hand::poll_set_nx_px(&mut redis, KEY, owner, TTL, POLL).await?;
            book.work(works).await;
            by_hand::delete_if_mine(&mut redis, KEY, owner).await
        };
        try_join!(worker("one"), worker("other"))?;
        Ok::<_, Fault>(book.two_holders())
    };
    let library = async {
        let book = Book::default();
        let worker = async || {
            let locks = server.locks().await?;
            let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            book.work_under(&guard, works).await;
            guard.release().await
        };
        try_join!(worker(), worker())?;
        Ok(book.two_holders())
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(Shown {
        mistake: "a lease that ends before the work",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!("two holders for {}: renewed", ms(library)),
    })
}
