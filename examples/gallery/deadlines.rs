//! The scheme whose value is a deadline, taken over by GETSET.

use std::time::Duration;

use lock_core::Renew;
use tokio::time::sleep;
use tokio::try_join;

use crate::by_hand::Deadlines;
use crate::stage::{Book, Fault, LONG, Refused, Server, Shown, ms, refused_for};

const TTL: Duration = Duration::from_secs(1);

/// A client with a good clock and a good network.
async fn client(server: &Server) -> redis::RedisResult<Deadlines> {
    Ok(Deadlines {
        redis: server.connect().await?,
        ttl: TTL,
        clock_ahead: Duration::ZERO,
        network: Duration::ZERO,
    })
}

/// The act is none when the one that is to lose has won.
fn is_not_taken<T>(lock: Option<&T>) -> Result<(), Fault> {
    match lock {
        Some(_) => Err("the loser has won".into()),
        None => Ok(()),
    }
}

/// Two find the lock of a dead holder. The one that is too late has moved the winner's deadline.
pub async fn moved(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "moved-deadline";
    // Both read before either writes.
    let [fast, slow] = [50, 150].map(Duration::from_millis);
    // The loser has written before the winner is done.
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
            refused_for(LONG, async || Ok(next.try_lock(KEY).await?.is_some())).await
        };
        let loser = async {
            let taken = loser.try_lock(KEY).await?;
            is_not_taken(taken.as_ref())
        };
        Ok::<Refused, Fault>(try_join!(winner, loser)?.0)
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
            refused_for(LONG, async || {
                Ok(next.clone().try_acquire().await?.is_some())
            })
            .await
        };
        let loser = async {
            sleep(fast).await;
            let taken = loser.lock(KEY).ttl(TTL).wait(slow).try_acquire().await?;
            is_not_taken(taken.as_ref())
        };
        Ok(try_join!(winner, loser)?.0)
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    let locked = |(Refused::For(time) | Refused::ToTheEnd(time))| {
        format!("locked for {} after the release", ms(time))
    };
    Ok(Shown {
        mistake: "`GETSET` by a loser moves the winner's deadline",
        by_hand: locked(by_hand),
        library: locked(library),
    })
}

/// The clock of one client runs ahead: it takes over what is not over.
pub async fn clocks_differ(server: &Server) -> Result<Shown, Fault> {
    const KEY: &str = "clocks";
    const AHEAD: Duration = Duration::from_secs(3);
    let works = Duration::from_millis(600);
    // The other one comes when the first has the lock.
    let later = Duration::from_millis(100);

    let by_hand = async {
        let book = Book::default();
        let worker = async |comes: Duration, clock_ahead: Duration| {
            let mut client = client(server).await?;
            client.clock_ahead = clock_ahead;
            sleep(comes).await;
            let mine = client.lock(KEY).await?;
            book.work(works).await;
            client.unlock(KEY, mine).await
        };
        try_join!(worker(Duration::ZERO, Duration::ZERO), worker(later, AHEAD))?;
        Ok::<_, Fault>(book.two_holders())
    };
    let library = async {
        let book = Book::default();
        // No client is asked what time it is, so there is no clock here to put ahead.
        let worker = async |comes: Duration| {
            let locks = server.locks().await?;
            sleep(comes).await;
            let guard = locks.lock(KEY).ttl(TTL).wait(LONG).acquire().await?;
            book.work_under(&guard, works).await;
            guard.release().await
        };
        try_join!(worker(Duration::ZERO), worker(later))?;
        Ok(book.two_holders())
    };
    let (by_hand, library) = try_join!(by_hand, library)?;
    Ok(Shown {
        mistake: "deadlines by clocks that differ by 3 s",
        by_hand: format!("two holders for {}", ms(by_hand)),
        library: format!(
            "two holders for {}: only the server's clock counts",
            ms(library)
        ),
    })
}
