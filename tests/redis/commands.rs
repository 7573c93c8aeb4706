//! The exact number of commands that clients send: for one section, and while they are idle.

use std::collections::HashMap;
use std::time::Instant;

use lock_core::{LockError, LockManager, distributed_lock};
use test_support::fixtures::{AT_ONCE, KEY, NAME, SOON, keys, ms, queue_length};
use test_support::monitor::Command as RecordedCommand;
use test_support::{Proxy, Recording, RedisServer, eventually_async};
use tests::{acquire_and_release, granted, section_of_a_queue, start_waiter};
use tokio::task::JoinSet;

use super::{connect, connect_with};

#[distributed_lock(name = "job", wait = "20s", manager = locks)]
async fn annotated(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "job", wait = "0s", manager = locks)]
async fn annotated_with_one_attempt(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

async fn acquire_with_a_wait(locks: &LockManager) {
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// Runs one uncontended section in each way. Returns how many that are.
async fn run_sections(locks: &LockManager) -> usize {
    acquire_and_release(locks).await;
    acquire_with_a_wait(locks).await;
    let section = async |_: &_| ();
    locks.lock(NAME).run(section).await.unwrap();
    annotated(locks).await.unwrap();
    annotated_with_one_attempt(locks).await.unwrap();
    5
}

/// Returns the names of the client's commands. The subscription sends a PING after each three
/// seconds without a message.
fn names_without_heartbeats(recording: &Recording) -> Vec<String> {
    let names = recording.from_clients().map(RecordedCommand::name);
    names.filter(|name| name != "PING").collect()
}

/// Each command is sent after the reply to the one before, and no connection is opened. So two
/// commands are two round trips.
#[tokio::test]
async fn uncontended_section_costs_two_commands() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    run_sections(&locks).await;
    let connections = proxy.accepted();
    let monitor = server.monitor();
    let mut sections = 0;
    for _ in 0..5 {
        sections += run_sections(&locks).await;
    }
    let commands = names_without_heartbeats(&monitor.stop());
    assert_eq!(commands, vec!["EVALSHA"; 2 * sections]);
    assert_eq!(proxy.accepted(), connections);
}

/// Readers and permits must not make an exclusive lock slower: its scripts call what they need, and nothing else.
#[tokio::test]
async fn scripts_of_an_exclusive_section_call_seven_commands() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    acquire_with_a_wait(&locks).await;
    let monitor = server.monitor();
    acquire_with_a_wait(&locks).await;
    let recording = monitor.stop();
    let called = recording.all().iter();
    let called = called.filter(|command| command.is_from_script());
    let called: Vec<_> = called.map(RecordedCommand::name).collect();
    let acquire = ["TIME", "EXISTS", "INCR", "SET"];
    // The key goes before anything that may fail.
    let release = ["GET", "DEL", "EXISTS"];
    assert_eq!(called, [&acquire[..], &release].concat());
}

/// The connection and the scripts are there when `connect` returns.
#[tokio::test]
async fn first_attempt_after_connect_costs_two_commands() {
    let server = RedisServer::start();
    for use_attribute in [false, true] {
        let locks = connect(&server).await;
        let monitor = server.monitor();
        if use_attribute {
            annotated_with_one_attempt(&locks).await.unwrap();
        } else {
            acquire_and_release(&locks).await;
        }
        let commands = names_without_heartbeats(&monitor.stop());
        assert_eq!(commands, ["EVALSHA"; 2], "attribute: {use_attribute}");
    }
}

/// The first acquire that may wait subscribes to the channel of its manager. Later ones do not.
#[tokio::test]
async fn first_acquire_with_a_wait_also_subscribes() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    let connections = proxy.accepted();
    let monitor = server.monitor();
    acquire_with_a_wait(&locks).await;
    let recording = monitor.stop();
    assert_eq!(recording.client_commands_about(KEY), 2);
    let count = |name: &str| {
        let names = names_without_heartbeats(&recording);
        names.iter().filter(|known| *known == name).count()
    };
    assert_eq!([count("HELLO"), count("SUBSCRIBE")], [1, 1]);
    assert_eq!(proxy.accepted(), connections + 1);
}

/// The commands of many sections.
#[derive(Debug, Default, PartialEq)]
struct ScriptCounts {
    /// The owner ids, each of which acquires and releases once.
    owner_ids: usize,
    releases: usize,
    /// The acquires after the first one of an owner id.
    polls: usize,
    others: usize,
}

/// Counts the commands by the hashes of their scripts.
fn count_scripts(recording: &Recording, acquire: &str, release: &str) -> ScriptCounts {
    let mut counts = ScriptCounts::default();
    let mut acquires: HashMap<&str, usize> = HashMap::new();
    for command in recording.from_clients() {
        // The heartbeat, and the queries of the test.
        if matches!(command.name().as_str(), "PING" | "ZCARD") {
            continue;
        }
        // EVALSHA, the hash, the number of keys, five keys, the owner id.
        match &command.words[..] {
            [_, hash, _, _, _, _, _, _, owner_id, ..] if hash == acquire => {
                *acquires.entry(owner_id).or_default() += 1;
            }
            [_, hash, ..] if hash == release => counts.releases += 1,
            _ => counts.others += 1,
        }
    }
    counts.owner_ids = acquires.len();
    counts.polls = acquires.values().map(|count| count - 1).sum();
    counts
}

/// Returns the hashes of the scripts that acquire and release.
async fn script_hashes(server: &RedisServer, locks: &LockManager) -> [String; 2] {
    let monitor = server.monitor();
    acquire_and_release(locks).await;
    let recording = monitor.stop();
    let scripts = recording
        .from_clients()
        .filter(|command| command.name() == "EVALSHA");
    let hashes: Vec<_> = scripts.map(|command| command.words[1].clone()).collect();
    hashes.try_into().expect("two commands")
}

/// A waiter sends one command when it enters the queue and one when it releases, however long the
/// queue is. On a slow machine, the waiters also poll, 80 times a second if they are a thousand, and the holders
/// renew their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_section_costs_two_commands() {
    let server = RedisServer::start();
    let patient = async || {
        let builder = LockManager::builder().command_timeout(SOON);
        connect_with(builder, &server.url()).await
    };
    let managers = [patient().await, patient().await];
    for locks in &managers {
        acquire_with_a_wait(locks).await;
    }
    let [acquire, release] = script_hashes(&server, &managers[0]).await;
    for (waiters, rounds) in [(2, 50), (10, 10), (100, 2), (1_000, 1)] {
        let first = managers[0].lock(NAME).acquire().await.unwrap();
        let monitor = server.monitor();
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for task in 0..waiters {
            let locks = managers[task % managers.len()].clone();
            tasks.spawn(async move {
                for _ in 0..rounds {
                    section_of_a_queue(locks.lock(NAME)).await;
                }
            });
        }
        let entries = i64::try_from(waiters).unwrap();
        eventually_async(SOON, async || queue_length(&server) == entries).await;
        first.release().await.unwrap();
        tasks.join_all().await;
        let took = started.elapsed();
        let counts = count_scripts(&monitor.stop(), &acquire, &release);
        let sections = waiters * rounds;
        let about = format!("{waiters} waiters in {took:?}: {counts:?}");
        // The first holder acquired before the recording.
        let each = (counts.owner_ids, counts.releases);
        assert_eq!(each, (sections, sections + 1), "{about}");
        let others = counts.polls + counts.others;
        let slowly = sections / 10 + 80 * usize::try_from(took.as_secs()).unwrap();
        let most = if took < AT_ONCE { 0 } else { slowly };
        assert!(others <= most, "{about}");
    }
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// The section takes longer than a third of the handover lease, so a renewal extends the lease to
/// the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_section_with_a_renewal_costs_three_commands() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let monitor = server.monitor();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    let held = granted(AT_ONCE, waiting).await;
    let handover_lease = server.cli(&["PTTL", KEY]).integer();
    assert!(handover_lease <= 2_000, "{handover_lease}");
    eventually_async(SOON, async || server.cli(&["PTTL", KEY]).integer() > 20_000).await;
    held.release().await.unwrap();
    let recording = monitor.stop();
    let scripts = recording
        .from_clients()
        .filter(|command| command.name() == "EVALSHA" && command.words[3] == KEY);
    // The first holder's release, and three scripts of the waiter.
    assert_eq!(scripts.count(), 4);
}

/// What a manager does while its commands are recorded.
#[derive(Clone, Copy, Debug)]
enum Idle {
    Unused,
    AfterAnAttempt,
    AfterAWait,
    Holding,
}

/// Returns the commands of one manager in 3.2 s, in which nothing is acquired or released.
async fn idle_commands(idle: Idle) -> Vec<String> {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut held = None;
    match idle {
        Idle::Unused => {}
        Idle::AfterAnAttempt => acquire_and_release(&locks).await,
        Idle::AfterAWait => acquire_with_a_wait(&locks).await,
        // A renewal is due after each third of the ttl.
        Idle::Holding => held = locks.lock(NAME).ttl(ms(3_000)).try_acquire().await.unwrap(),
    }
    let monitor = server.monitor();
    tokio::time::sleep(ms(3_200)).await;
    let recording = monitor.stop();
    drop(held);
    let commands = recording.from_clients();
    commands.map(RecordedCommand::name).collect()
}

/// An idle manager sends nothing, except for a PING after three seconds of silence on its
/// subscription. A manager that holds a lock sends a renewal after each third of the ttl. For the
/// first renewal, the background thread connects.
#[tokio::test]
async fn idle_manager_sends_heartbeats_and_renewals_only() {
    let (unused, attempted, waited, holding) = tokio::join!(
        idle_commands(Idle::Unused),
        idle_commands(Idle::AfterAnAttempt),
        idle_commands(Idle::AfterAWait),
        idle_commands(Idle::Holding),
    );
    assert_eq!(unused, [""; 0]);
    assert_eq!(attempted, [""; 0]);
    // A busy machine may be late.
    assert!(matches!(waited.len(), 1..=2), "{waited:?}");
    assert!(waited.iter().all(|name| name == "PING"), "{waited:?}");
    let handshake = holding.iter().position(|name| name == "EVALSHA").unwrap();
    assert_eq!(holding[0], "HELLO");
    // Two pipelines. Redis 7.2 and later also show `CLIENT SETINFO`, twice.
    let (set_info, first): (Vec<_>, Vec<_>) = holding[1..handshake]
        .iter()
        .map(String::as_str)
        .enumerate()
        .partition(|(at, name)| *name == "CLIENT" && *at < 2);
    assert!(matches!(set_info.len(), 0 | 2), "{holding:?}");
    let first: Vec<_> = first.into_iter().map(|(_, name)| name).collect();
    let expected = [
        "ROLE", "INFO", "TIME", "SCRIPT", "SCRIPT", "SCRIPT", "CLIENT",
    ];
    assert_eq!(first, expected);
    let renewals = &holding[handshake..];
    assert!(matches!(renewals.len(), 2..=3), "{holding:?}");
    assert!(renewals.iter().all(|name| name == "EVALSHA"), "{holding:?}");
}
