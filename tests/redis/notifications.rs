//! Forged and malformed messages on a channel, and what a subscriber can learn.

use lock_core::error::InvalidSetting;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, LONG, NAME, QUEUE, SOON, ms};
use test_support::{Connection, RedisServer, eventually_async};
use tests::{shut_down, start_waiter};

use super::{connect, connect_with};

/// Returns the owner id and the channel of the only waiter, as a client with the right to read the
/// keys sees them.
fn waits(server: &RedisServer) -> (String, String) {
    let entries = server.cli(&["ZRANGE", QUEUE, "0", "0"]);
    let words: Vec<_> = entries.array()[0].text().split(' ').collect();
    (words[0].to_owned(), words[4].to_owned())
}

fn server_us(server: &RedisServer) -> u64 {
    let time = server.cli(&["TIME"]);
    let part = |at: usize| -> u64 { time.array()[at].text().parse().unwrap() };
    part(0) * 1_000_000 + part(1)
}

/// Returns the token in the key.
fn held_token(server: &RedisServer) -> u64 {
    let value = server.cli(&["GET", KEY]);
    value.text().split(' ').nth(1).unwrap().parse().unwrap()
}

/// A forged grant with the whole owner id, which takes the right to read the keys. A renewal checks
/// a grant whose lease is longer than a handover lease or whose token is not greater. The server
/// refuses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_grant_with_an_impossible_lease_or_token_is_refused() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let token = held_token(&server);
    let now = server_us(&server);
    for forged in [
        format!("{} {now} 3600000", token + 1),
        format!("{} {now} 2001", token + 1),
        format!("{} {now} 2000", token - 1),
        format!("0 {now} 2000"),
        format!("{} {now} {}", token + 1, u64::MAX),
        format!("{} {} 2000", token + 1, u64::MAX),
        format!("{} 0 2000", u64::MAX),
    ] {
        // Each forged grant goes to a waiter that has received none before.
        let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
        let (id, channel) = waits(&server);
        let forged = format!("g {id} {forged}");
        assert_eq!(server.cli(&["PUBLISH", &channel, &forged]).integer(), 1);
        tokio::time::sleep(ms(60)).await;
        assert!(!waiting.is_finished(), "{forged}");
        assert!(!held.is_lost());
        waiting.abort();
        eventually_async(SOON, async || server.cli(&["EXISTS", QUEUE]).integer() == 0).await;
    }
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let (id, channel) = waits(&server);
    for _ in 0..20 {
        let forged = format!("g {id} {} {now} 3600000", token + 1);
        assert_eq!(server.cli(&["PUBLISH", &channel, &forged]).integer(), 1);
    }
    tokio::time::sleep(ms(60)).await;
    assert_eq!(waits(&server).0, id, "the waiter keeps its place");
    // The waiter does not ignore notifications after forged ones: it accepts the true grant.
    held.release().await.unwrap();
    let guard = tokio::time::timeout(ms(600), waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(guard.fencing_token().unwrap().as_u64() > token);
    guard.release().await.unwrap();
}

/// A published grant that is not used shows the owner id to all subscribers: the waiter was frozen
/// for longer than the handover lease, or its subscriber was disconnected. The waiter keeps this
/// owner id, and confirms every later grant with the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_is_confirmed_once_the_owner_id_may_be_known() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let token = held_token(&server);
    for cuts_subscriber in [false, true] {
        let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
        let (id, channel) = waits(&server);
        if cuts_subscriber {
            server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        } else {
            // A grant that is read after its lease ended.
            let late = format!(
                "g {id} {} {} 2000",
                token + 1,
                server_us(&server) - 3_000_000
            );
            assert_eq!(server.cli(&["PUBLISH", &channel, &late]).integer(), 1);
        }
        tokio::time::sleep(ms(100)).await;
        let forged = || format!("g {id} {} {} 2000", u64::MAX, server_us(&server));
        let publish_forged = async || server.cli(&["PUBLISH", &channel, &forged()]).integer() == 1;
        eventually_async(SOON, publish_forged).await;
        for _ in 0..5 {
            tokio::time::sleep(ms(30)).await;
            assert!(publish_forged().await);
        }
        assert!(!waiting.is_finished(), "subscriber cut: {cuts_subscriber}");
        waiting.abort();
        eventually_async(SOON, async || server.cli(&["EXISTS", QUEUE]).integer() == 0).await;
    }
    held.release().await.unwrap();
    shut_down(&locks).await;
}

/// A client that may subscribe and publish, but may read no key, learns eight digits of a waiting
/// owner id. It learns a whole owner id only when its lock is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_cannot_learn_a_waiting_owner_id() {
    let server = RedisServer::start();
    let rules = [
        "ACL",
        "SETUSER",
        "spy",
        "on",
        ">pass",
        "&lk1:*",
        "+psubscribe",
        "+publish",
    ];
    assert_eq!(server.cli(&rules).text(), "OK");
    let mut spy = Connection::open(server.address(), None).unwrap();
    assert_eq!(spy.call(&["AUTH", "spy", "pass"]).unwrap().text(), "OK");
    spy.call(&["PSUBSCRIBE", "lk1:*"]).unwrap();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let first = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let second = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    held.release().await.unwrap();
    let holder = first.await.unwrap().unwrap();
    let messages: Vec<_> = (0..2)
        .map(|_| spy.receive().unwrap().array()[3].text().to_owned())
        .collect();
    assert!(messages[0].starts_with("g "), "{messages:?}");
    let words: Vec<_> = messages[1].split(' ').collect();
    let (id, channel) = waits(&server);
    assert_eq!(words[..2], ["h", &id[..8]], "{messages:?}");
    assert!(!messages[1].contains(&id));
    // A forged message made of what the client learned has no effect.
    let now = server_us(&server);
    let token = held_token(&server) + 1;
    for id in [
        words[1],
        &format!("{}-0000-4000-8000-000000000000", words[1]),
    ] {
        let forged = format!("g {id} {token} {now} 2000");
        server.cli(&["PUBLISH", &channel, &forged]);
    }
    tokio::time::sleep(ms(200)).await;
    assert!(!second.is_finished() && !holder.is_lost());
    holder.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

/// A head-of-queue notification causes an early poll, at most one in 50 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_head_notifications_causes_twenty_polls_a_second() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let (id, channel) = waits(&server);
    let mut flood = server.connect().unwrap();
    let monitor = server.monitor();
    let started = std::time::Instant::now();
    let mut sent = 0;
    while started.elapsed() < ms(1_000) {
        let left = if sent % 2 == 0 { 0 } else { 3_600_000 };
        let message = format!("h {} {} {left}", &id[..8], server_us(&server));
        flood.call(&["PUBLISH", &channel, &message]).unwrap();
        sent += 1;
    }
    let span = started.elapsed();
    let recording = monitor.stop();
    let polls = recording.from_clients().filter(|command| {
        command.name() == "EVALSHA" && command.words.get(3).is_some_and(|key| key == KEY)
    });
    let polls = polls.count();
    let most = usize::try_from(span.as_millis()).unwrap() / 50 + 3;
    assert!(
        sent > 4 * most && polls > 0 && polls <= most,
        "{polls} polls, {sent} messages"
    );
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A small generator, so that a failing seed can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0 >> 33
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.next()).unwrap() % from.len()]
    }
}

/// Messages that no client sends, made of parts of messages that clients send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_notifications_are_ignored() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let (id, channel) = waits(&server);
    let number = server_us(&server).to_string();
    let huge = "9".repeat(400);
    let parts = [
        "g",
        "h",
        "x",
        "",
        " ",
        "-1",
        "0",
        "1",
        "2000",
        "18446744073709551616",
        "\u{0}",
        "\r\n",
        "é",
        &id[..8],
        &id[..35],
        "ffffffff",
        &number,
        &huge,
        "1e9",
        "nan",
        "\u{202e}",
    ];
    let mut random = Random(7);
    let mut sender = server.connect().unwrap();
    for _ in 0..4_000 {
        let count = random.next() % 7;
        let words: Vec<_> = (0..count).map(|_| random.pick(&parts)).collect();
        let message = words.join(random.pick(&[" ", " ", " ", "  ", "\t", ""]));
        sender.call(&["PUBLISH", &channel, &message]).unwrap();
    }
    let bytes: [&[u8]; 3] = [
        b"PUBLISH",
        channel.as_bytes(),
        &[0xff, 0xfe, b'g', b' ', 0x80],
    ];
    sender.call(&bytes).unwrap();
    assert!(!waiting.is_finished() && !held.is_lost());
    assert_eq!(waits(&server).0, id);
    held.release().await.unwrap();
    let guard = tokio::time::timeout(ms(600), waiting).await;
    guard
        .expect("the subscriber is still connected")
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(locks.stats().panics, 0);
}

/// The channel's name contains the prefix, so that an ACL separates tenants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acl_separates_the_channels_of_prefixes() {
    let server = RedisServer::start();
    // An ACL pattern cannot contain a space, and a question mark is any letter.
    let rules = [
        "on",
        ">pass",
        "~shop?1:*",
        "~{shop?1:*}:*",
        "&lk1:shop%201::*",
        "+@all",
    ];
    let words = [&["ACL", "SETUSER", "shop"][..], &rules].concat();
    assert_eq!(server.cli(&words).text(), "OK");
    let url = format!("redis://shop:pass@{}", server.address());
    let locks = connect_with(LockManager::builder().prefix("shop 1:"), &url).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).ttl(LONG).wait(SOON).acquire());
    let queue = "{shop 1:job}:q";
    eventually_async(SOON, async || server.cli(&["ZCARD", queue]).integer() == 1).await;
    let entries = server.cli(&["ZRANGE", queue, "0", "0"]);
    let words: Vec<_> = entries.array()[0].text().split(' ').collect();
    assert_eq!(words[1], "s", "the waiter has notifications");
    assert!(words[4].starts_with("lk1:shop%201::"), "{words:?}");
    let mut tenant = server.connect().unwrap();
    tenant.call(&["AUTH", "shop", "pass"]).unwrap();
    for foreign in ["lk1:lock::x", "lk1:x", "lk1:shop::x"] {
        let refused = tenant
            .call(&["PUBLISH", foreign, "h 00000000 0 0"])
            .unwrap();
        assert!(
            refused
                .error()
                .is_some_and(|text| text.starts_with("NOPERM")),
            "{foreign}"
        );
    }
    held.release().await.unwrap();
    let guard = tokio::time::timeout(ms(600), waiting).await;
    guard.unwrap().unwrap().unwrap().release().await.unwrap();
    shut_down(&locks).await;
}

#[tokio::test]
async fn prefix_longer_than_64_bytes_is_rejected() {
    let server = RedisServer::start();
    let longest = "p".repeat(64);
    let url = server.url();
    let locks = LockManager::builder().prefix(&longest).connect(&url);
    let guard = locks.await.unwrap().lock(NAME).acquire().await.unwrap();
    guard.release().await.unwrap();
    let long = LockManager::builder().prefix("é".repeat(33));
    let in_memory = long.clone().in_memory();
    for outcome in [
        long.connect(&server.url()).await.map(drop),
        in_memory.map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert!(
            matches!(
                &error,
                LockError::Invalid(InvalidSetting::Manager {
                    setting: "prefix",
                    ..
                })
            ),
            "{error}"
        );
        assert!(error.to_string().contains("at most 64 bytes"), "{error}");
    }
}
