//! The number of commands of one section.

use test_support::fixtures::{AT_ONCE, KEY, NAME, SOON, keys, ms};
use test_support::monitor::Command as RecordedCommand;
use test_support::{RedisServer, eventually_async};
use tests::{granted, start_waiter};

use super::connect;
use super::turns::take_turns;

#[tokio::test]
async fn uncontended_section_costs_two_commands() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    for _ in 0..5 {
        locks.lock(NAME).run(async |_| ()).await.unwrap();
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    let recording = monitor.stop();
    let commands: Vec<_> = recording
        .from_clients()
        .map(RecordedCommand::name)
        .collect();
    assert_eq!(recording.client_commands_about(NAME), 20, "{commands:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_section_costs_two_commands() {
    const ROUNDS: usize = 10;
    let server = RedisServer::start();
    let managers = [connect(&server).await, connect(&server).await];
    for tasks in [2, 8, 30] {
        let monitor = server.monitor();
        take_turns(&managers, tasks, ROUNDS, ms(1)).await;
        let commands = monitor.stop().client_commands_about(NAME);
        let sections = tasks * ROUNDS;
        assert!(
            commands * 10 <= sections * 21,
            "{commands} commands for {sections} sections of {tasks} tasks"
        );
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
