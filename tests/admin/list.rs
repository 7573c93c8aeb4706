//! Listing the locks of a prefix.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_core::LockManager;
use lock_core::admin::{Admin, Cursor, LockInfo, LockStatus};
use lock_core::error::BackendErrorKind;
use test_support::RedisServer;
use test_support::fixtures::{LONG, SOON, ms};
use tests::{backend_error_kind, connect, one_attempt, start_waiter};

/// Returns the locks of all pages.
async fn all(admin: &Admin, pattern: &str, limit: usize) -> Vec<LockInfo> {
    let mut locks = Vec::new();
    let mut next: Option<Cursor> = None;
    loop {
        let page = admin.list(pattern).limit(limit).after(next).await.unwrap();
        assert!(page.locks.len() <= limit, "{}", page.locks.len());
        locks.extend(page.locks);
        next = page.next;
        if next.is_none() {
            return locks;
        }
    }
}

fn names(locks: &[LockInfo]) -> BTreeSet<&str> {
    locks.iter().map(|lock| lock.name.as_str()).collect()
}

async fn prefixed(server: &RedisServer, prefix: &str) -> LockManager {
    let builder = one_attempt(LockManager::builder()).prefix(prefix);
    builder.connect(&server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_shows_holders_and_the_number_of_waiters() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let other = connect(&server).await;
    let held = locks.lock("job").ttl(LONG).acquire().await.unwrap();
    let waiter = start_waiter(&server, other.lock("job").wait(SOON), 1).await;
    let tagged = locks.lock("{t}:cart").acquire().await.unwrap();
    tokio::time::sleep(ms(20)).await;
    server.cli(&["SET", "lock:settings", "x"]);
    server.cli(&["SET", "lock:redsync", "4e2a", "PX", "60000"]);
    server.cli(&["HSET", "lock:hash", "f", "1"]);
    let found = all(&other.admin(), "*", 200).await;
    // Neither the counter `lock:{t}:cart:f` nor the hash.
    let expected = BTreeSet::from(["job", "redsync", "settings", "{t}:cart"]);
    assert_eq!((names(&found), found.len()), (expected, 4));
    for lock in &found {
        let full = other.admin().inspect(lock.name.clone()).await.unwrap();
        assert_eq!(
            (&lock.key, lock.waiters_total),
            (&full.key, full.waiters_total)
        );
        assert_eq!(lock.waiters, []);
        match (lock.name.as_str(), &lock.status) {
            ("job", LockStatus::Held(holder)) => {
                assert_eq!(lock.waiters_total, 1);
                assert_eq!(holder.token, held.fencing_token());
                let held_for = holder.held_for.unwrap();
                assert!((ms(20)..SOON).contains(&held_for), "{held_for:?}");
                assert!(holder.remaining.is_some_and(|left| left <= LONG));
                assert!(!holder.is_foreign() && !holder.is_own());
            }
            ("{t}:cart", LockStatus::Held(holder)) => {
                assert_eq!(holder.token, tagged.fencing_token());
            }
            ("redsync", LockStatus::Held(holder)) => assert!(holder.is_foreign()),
            ("settings", LockStatus::Foreign { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    tagged.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_every_lock_and_at_most_their_limit() {
    let server = RedisServer::start();
    let server_locks = connect(&server).await;
    for locks in [server_locks, LockManager::in_memory()] {
        let mut guards = Vec::new();
        for number in 0..1_000 {
            let name = format!("n:{number:04}");
            guards.push(locks.lock(name).acquire().await.unwrap());
        }
        guards.push(locks.lock("other").acquire().await.unwrap());
        for limit in [1_000_000, 1_000, 333, 7] {
            let limit = limit.min(10_000);
            let found = all(&locks.admin(), "n:*", limit).await;
            // The server's table does not change meanwhile, so no lock is found twice.
            assert_eq!(
                (names(&found).len(), found.len()),
                (1_000, 1_000),
                "{limit}"
            );
        }
        let page = locks.admin().list("n:*").limit(0).await.unwrap();
        assert_eq!(page.locks.len(), 1);
        let page = locks.admin().list("n:*").await.unwrap();
        assert_eq!(page.locks.len(), 200);
        // Locks that are released before the next page are left out.
        drop(guards);
        assert!(locks.shutdown().await.is_ok());
        let rest = locks.admin().list("n:*").after(page.next).await.unwrap();
        assert_eq!(rest.locks, []);
    }
}

/// A pattern that matches few keys of many costs many short commands, and no long one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_is_bounded() {
    const KEYS: u64 = 1_000_000;
    const LOCKS: u64 = 1_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let fill = "for i = 1, ARGV[1] do redis.call('SET', 'cache:' .. i, 'x') end \
                for i = 1, ARGV[2] do redis.call('SET', 'lock:order:' .. i, ARGV[3], 'PX', 600000) end";
    let value = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 12 99 web-1";
    let (keys, count) = ((KEYS - LOCKS).to_string(), LOCKS.to_string());
    let mut connection = server.connect().unwrap();
    connection.set_patience(LONG).unwrap();
    let filled = connection.call(&["EVAL", fill, "0", &keys, &count, value]);
    assert_eq!(filled.unwrap().error(), None);

    server.cli(&["CONFIG", "RESETSTAT"]);
    let (mut found, mut pages, mut next) = (BTreeSet::new(), 0, None);
    loop {
        let before = scans(&server);
        let page = locks
            .admin()
            .list("order:*")
            .limit(10_000)
            .after(next)
            .await
            .unwrap();
        assert!(scans(&server) - before <= 100);
        assert!(page.scanned <= 50_000, "{}", page.scanned);
        found.extend(page.locks.into_iter().map(|lock| lock.name));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(found.len() as u64, LOCKS);
    assert!((20..=25).contains(&pages), "{pages}");
    // Each command looks at few keys. Its mean time shows it too; the longest time does not, because a
    // busy machine interrupts the server in some command.
    assert!(scans(&server) >= KEYS / 600);
    for (command, mean) in mean_times(&server) {
        assert!(mean < Duration::from_millis(5), "{command}: {mean:?}");
    }
}

/// The mean time of each command that the server has executed.
fn mean_times(server: &RedisServer) -> Vec<(String, Duration)> {
    let stats = server.cli(&["INFO", "commandstats"]).text().to_owned();
    let mean = |line: &str| {
        let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let micros = numbers.split("usec_per_call=").nth(1)?.split(',').next()?;
        let mean = Duration::from_secs_f64(micros.parse::<f64>().ok()? / 1e6);
        Some((command.to_owned(), mean))
    };
    let means: Vec<_> = stats.lines().filter_map(mean).collect();
    assert!(
        means.iter().any(|(command, _)| command == "scan"),
        "{stats}"
    );
    means
}

/// How many SCANs the server has executed.
fn scans(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]).text().to_owned();
    let scan = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_scan:calls="));
    let calls = scan.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// The prefix is text, and only the rest is a pattern.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_escapes_glob_characters_of_the_prefix() {
    let server = RedisServer::start();
    for prefix in ["a*:", "a?:", "[ab]:", "a\\:", "[^a]:", "a:"] {
        let locks = prefixed(&server, prefix).await;
        let mine = format!("mine{}", prefix.len());
        let held = [
            locks.lock(mine.as_str()).acquire().await.unwrap(),
            locks.lock("b").acquire().await.unwrap(),
        ];
        std::mem::forget(held);
    }
    for prefix in ["a*:", "a?:", "[ab]:", "a\\:", "[^a]:", "a:"] {
        let admin = prefixed(&server, prefix).await.admin();
        let mine = format!("mine{}", prefix.len());
        let found = all(&admin, "*", 200).await;
        assert_eq!(names(&found), BTreeSet::from(["b", &mine]), "{prefix}");
        let found = all(&admin, "mine*", 200).await;
        assert_eq!(names(&found), BTreeSet::from([mine.as_str()]), "{prefix}");
    }
}

/// The server and the memory match patterns alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_match_alike_on_the_server_and_in_memory() {
    let server = RedisServer::start();
    let on_server = connect(&server).await;
    let in_memory = LockManager::in_memory();
    let mut guards = Vec::new();
    for name in [
        "a", "ab", "abc", "b", "a*c", "a[c", "a\\c", "a-c", "é", "a\nc", "A", "^", "]",
    ] {
        guards.push(on_server.lock(name).acquire().await.unwrap());
        guards.push(in_memory.lock(name).acquire().await.unwrap());
    }
    for pattern in [
        "",
        "*",
        "a*",
        "a?c",
        "a??",
        "?",
        "??",
        "[ab]",
        "[^a]",
        "[a-b]*",
        "[b-a]*",
        "a\\*c",
        "a[*[]c",
        "a[\\]\\\\]c",
        "[",
        "[^",
        "a\\",
        "*c",
        "*b*",
        "**",
        "[]]",
        "[^]]",
        "a[a-]c",
        "a[+--]c",
        "\\a",
    ] {
        let theirs = all(&on_server.admin(), pattern, 200).await;
        let ours = all(&in_memory.admin(), pattern, 200).await;
        assert_eq!(names(&theirs), names(&ours), "{pattern}");
    }
    drop(guards);
}

/// Applications have no right to list: SCAN shows the names of all keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_without_the_right_is_an_error_that_names_it() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pass",
        "~lock:*",
        "~{lock:*}:*",
        "&*",
        "+@all",
        "-scan",
    ]);
    let url = format!("redis://app:pass@{}", server.address());
    let locks = LockManager::connect(&url).await.unwrap();
    let held = locks.lock("job").acquire().await.unwrap();
    let error = locks.admin().list("*").await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("listing needs `+scan`; use another user for `lockctl`"),
        "{error}"
    );
    assert_eq!(
        backend_error_kind::<()>(Err(error)),
        BackendErrorKind::Permission
    );
    // With the right, the key pattern is enough: SCAN names other keys, and they are not read.
    server.cli(&["SET", "other:job", "x"]);
    server.cli(&["ACL", "SETUSER", "app", "+scan"]);
    let found = all(&locks.admin(), "*", 200).await;
    assert_eq!(names(&found), BTreeSet::from(["job"]));
    held.release().await.unwrap();
}
