//! Locks that services of other languages share with a quorum: one key at each server, and no token.

use lock_core::dialect::{Dialect, ReleaseMethod};
use lock_core::error::{InvalidDialectReason, InvalidSetting};

use super::*;

const fn set_nx_px(release: ReleaseMethod) -> Dialect {
    Dialect::SetNxPx { release }
}

const SET_NX_PX: Dialect = set_nx_px(ReleaseMethod::Script);

const SUPPORTED: [Dialect; 4] = [
    SET_NX_PX,
    set_nx_px(ReleaseMethod::WatchMulti),
    set_nx_px(ReleaseMethod::Auto),
    Dialect::LuaSetnxExpire,
];

impl Quorum {
    async fn connect_in(&self, dialect: Dialect) -> LockManager {
        let connected = self.try_connect(|builder| builder.dialect(dialect)).await;
        connected.expect("the servers run")
    }

    /// Returns how many servers gave the key to this owner of another library.
    fn set_by_another(&self, owner: &str) -> usize {
        let set = ["SET", KEY, owner, "NX", "PX", "20000"];
        let servers = self.0.iter();
        servers.filter(|it| it.cli(&set) != Reply::Nil).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_without_token_is_held_at_a_majority_until_its_release() {
    let quorum = Quorum::start();
    for dialect in SUPPORTED {
        let first = quorum.connect_in(dialect).await;
        let second = quorum.connect_in(dialect).await;
        let ttl = Duration::from_secs(20);
        let held = first.lock(NAME).ttl(ttl).acquire().await.unwrap();
        assert_eq!(held.fencing_token(), None, "{dialect}");
        eventually_async(SOON, async || quorum.holders() == 5).await;
        let values = quorum.0.iter().map(|it| it.cli(&["GET", KEY]));
        let mut values: Vec<_> = values.map(|it| it.text().to_owned()).collect();
        values.dedup();
        assert_eq!(values.len(), 1, "{dialect}: all servers have one owner");
        let keys: i64 = quorum
            .0
            .iter()
            .map(|it| it.cli(&["DBSIZE"]).integer())
            .sum();
        assert_eq!(keys, 5, "{dialect}: no other keys");
        let refused = second.lock(NAME).ttl(ttl).try_acquire().await.unwrap();
        assert!(refused.is_none(), "{dialect}");
        let seen = second.admin().inspect(NAME).await.unwrap();
        assert!(seen.holder().is_some(), "{dialect}: {seen:?}");
        held.renew().await.unwrap();
        held.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
        let next = second.lock(NAME).ttl(ttl).acquire().await.unwrap();
        next.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

/// redsync and node-redlock write one value to all servers, and need a majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_of_another_library_at_a_majority_is_respected() {
    let quorum = Quorum::start();
    for dialect in SUPPORTED {
        let locks = quorum.connect_in(dialect).await;
        let ttl = Duration::from_secs(20);
        for server in &quorum.0[1..4] {
            server.cli(&["SET", KEY, "cmVkc3luYw==", "NX", "PX", "20000"]);
        }
        let refused = locks.lock(NAME).ttl(ttl).try_acquire().await.unwrap();
        assert!(refused.is_none(), "{dialect}");
        assert_eq!(quorum.holders(), 3, "{dialect}: nothing of ours stays");
        let waiting = tokio::spawn(locks.lock(NAME).ttl(ttl).wait(WAIT).acquire());
        for server in &quorum.0[1..4] {
            server.cli(&["DEL", KEY]);
        }
        let held = waiting.await.unwrap().unwrap();
        assert!(quorum.set_by_another("b3RoZXI=") < 3, "{dialect}");
        held.release().await.unwrap();
        for server in &quorum.0 {
            server.cli(&["DEL", KEY]);
        }
    }
}

/// A native lock and one without a token exclude each other on one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contending_managers_of_two_dialects_exclude_each_other() {
    let quorum = Quorum::start();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for dialect in [
        SET_NX_PX,
        Dialect::Native,
        SET_NX_PX,
        Dialect::LuaSetnxExpire,
    ] {
        let locks = quorum.connect_in(dialect).await;
        let inside = Arc::clone(&inside);
        tasks.push(tokio::spawn(async move {
            for _ in 0..12 {
                let ttl = Duration::from_secs(20);
                let held = locks
                    .lock(NAME)
                    .ttl(ttl)
                    .wait(WAIT)
                    .acquire()
                    .await
                    .unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_without_token_outlives_dead_servers_and_a_rolling_restart() {
    let quorum = Quorum::start();
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire] {
        let locks = quorum.connect_in(dialect).await;
        let ttl = Duration::from_secs(3);
        let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
        for server in &quorum.0 {
            server.restart();
            eventually_async(WAIT, async || {
                let _renewed_or_later = held.renew().await;
                server.cli(&["EXISTS", KEY]).integer() == 1
            })
            .await;
        }
        assert!(!held.is_lost(), "{dialect}");
        held.release().await.unwrap();
        quorum.0[0].stop();
        quorum.0[3].stop();
        let held = locks
            .lock(NAME)
            .ttl(ttl)
            .wait(WAIT)
            .acquire()
            .await
            .unwrap();
        quorum.0[0].cont();
        quorum.0[3].cont();
        held.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

/// An acquire that was dropped leaves no server locked, also where the cancel has another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_without_tokens_leave_no_lock() {
    let quorum = Quorum::start();
    for dialect in SUPPORTED {
        let locks = quorum.connect_in(dialect).await;
        let ttl = Duration::from_secs(300);
        for us in [200, 500, 1_000, 2_000, 4_000, 8_000] {
            let acquiring = locks.lock(NAME).ttl(ttl).wait(WAIT).acquire();
            let _dropped = tokio::time::timeout(Duration::from_micros(us), acquiring).await;
        }
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dialects_of_two_steps_or_of_clocks_are_refused() {
    let quorum = Quorum::start();
    let native = quorum.connect().await;
    for dialect in [Dialect::SetnxExpire, Dialect::DeadlineGetset] {
        let connecting = quorum.try_connect(|it| it.dialect(dialect)).await;
        let request = native.lock(NAME).dialect(dialect).try_acquire().await;
        for error in [connecting.unwrap_err(), request.unwrap_err()] {
            let LockError::Invalid(InvalidSetting::Dialect { reason, .. }) = &error else {
                panic!("{error:?}");
            };
            assert_eq!(*reason, InvalidDialectReason::InQuorum);
            assert!(error.to_string().contains("`SetNxPx`"), "{error}");
        }
    }
}
