//! Requests that say how long they wait for a server that can't be reached.

use super::*;

const OUTAGE_WAIT: u64 = 60_000;

fn outlasting(patience: Patience) -> Bench {
    Bench::new(|config| AcquireConfig {
        patience,
        outage_wait: Some(ms(OUTAGE_WAIT)),
        ..config
    })
}

fn waiter(wait: u64) -> Bench {
    outlasting(Patience::Wait {
        started: at(0),
        deadline: at(wait),
        max_queue: QueueLimit::NONE,
    })
}

fn attempt() -> Bench {
    outlasting(Patience::OneAttempt {
        started: at(0),
        until: at(TIMEOUT),
    })
}

/// The server is gone: the command fails, and so does the connection.
fn down(bench: &mut Bench) -> NextAction<FailedCommand> {
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down)
}

/// The server is back: there is a connection, and the acquire goes out after a pause.
#[track_caller]
fn up(bench: &mut Bench) {
    let next = bench.reconnect(Ok(()));
    if let NextAction::Perform(Action::Wait { until }) = next {
        bench.to(whole_millis(until.since(at(0))));
        acquire_limit(bench.timeout());
    }
}

#[test]
fn busy_lock_uses_the_wait_and_nothing_of_the_time_for_outages() {
    let mut bench = waiter(WAIT);
    bench.start();
    bench.pass(10).reply(queued(0, Some(90_000)));
    cancel_limit(bench.to(WAIT).timeout());
    assert_eq!(timed_out(bench.cancelled(None)).0, WAIT);
}

#[test]
fn attempt_on_a_busy_lock_ends_at_once() {
    let mut bench = attempt();
    bench.start();
    let next = bench.pass(10).reply(busy(Some(1_000)));
    assert!(matches!(
        next,
        NextAction::Done(AcquireResult::Contended { .. })
    ));
}

#[test]
fn outage_that_is_longer_than_its_time_ends_the_call_with_its_failure() {
    let mut bench = waiter(WAIT);
    bench.start();
    // The outage began when the command was sent.
    reconnects_until(down(bench.pass(100)), OUTAGE_WAIT);
    let next = bench
        .to(OUTAGE_WAIT)
        .reconnect(Err(FailureClass::Unreachable));
    failed_with(next, FailureClass::Unreachable);
}

#[test]
fn wait_stands_still_during_an_outage() {
    let mut bench = waiter(WAIT);
    bench.start();
    bench.pass(10).reply(queued(0, Some(90_000)));
    // 1.5 s of the wait are over when the server dies.
    acquire_limit(bench.to(1_500).notify(Notification::Poll));
    reconnects_until(down(&mut bench), 1_500 + OUTAGE_WAIT);
    bench.to(30_000);
    up(&mut bench);
    let back = bench.now_ms;
    bench.reply(queued(0, Some(90_000)));
    // The rest of the wait.
    let end = back + WAIT - 1_500;
    assert!(matches!(
        bench.to(end - 1).timeout(),
        NextAction::Perform(Action::Wait { .. } | Action::Acquire { .. })
    ));
    let mut next = bench.to(end).timeout();
    if let NextAction::Perform(Action::Acquire { .. }) = next {
        next = bench.reply(queued(0, Some(90_000)));
        assert!(matches!(next, NextAction::Perform(Action::Wait { .. })));
        next = bench.timeout();
    }
    cancel_limit(next);
    assert_eq!(timed_out(bench.cancelled(None)).0, end);
}

#[test]
fn outages_share_one_time() {
    let mut bench = waiter(WAIT);
    bench.start();
    down(&mut bench);
    bench.to(OUTAGE_WAIT - 1_000);
    up(&mut bench);
    let back = bench.now_ms;
    bench.reply(queued(0, Some(90_000)));
    acquire_limit(bench.pass(100).notify(Notification::Poll));
    let left = OUTAGE_WAIT - back;
    reconnects_until(down(&mut bench), back + 100 + left);
    let next = bench
        .to(back + 100 + left)
        .reconnect(Err(FailureClass::Unreachable));
    failed_with(next, FailureClass::Unreachable);
}

/// The server keeps the entry of a waiter for the rest of its wait, which is as long as before the outage.
#[test]
fn entry_after_an_outage_lasts_for_the_rest_of_the_wait() {
    let mut bench = waiter(WAIT);
    bench.start();
    down(&mut bench);
    bench.to(WAIT * 5);
    up(&mut bench);
    assert_eq!(
        bench.acquisition.sent().waits_until,
        Some(at(bench.now_ms + WAIT))
    );
}

#[test]
fn poll_near_the_end_of_the_wait_has_the_time_for_outages_too() {
    let mut bench = waiter(WAIT);
    bench.start();
    bench.pass(10).reply(queued(0, Some(90_000)));
    let poll = bench.to(WAIT - 10).notify(Notification::Poll);
    assert_eq!(acquire_limit(poll), TIMEOUT);
    down(bench.pass(TIMEOUT));
    bench.to(30_000);
    up(&mut bench);
    bench.reply(queued(0, Some(90_000)));
    cancel_limit(bench.pass(10).timeout());
}

#[test]
fn failure_that_another_try_does_not_cure_ends_the_call_at_once() {
    for class in [FailureClass::Fatal, FailureClass::Forbidden] {
        for mut bench in [waiter(WAIT), attempt()] {
            bench.start();
            failed_with(bench.pass(10).fail(class), class);
        }
        for mut bench in [waiter(WAIT), attempt()] {
            bench.start();
            down(&mut bench);
            if let NextAction::Perform(Action::Acquire { .. }) = bench.timeout() {
                down(&mut bench);
            }
            failed_with(bench.pass(50).reconnect(Err(class)), class);
        }
    }
}

#[test]
fn attempt_is_made_again_under_its_owner_id_until_the_server_replies() {
    let classes = [
        FailureClass::TimedOut,
        FailureClass::OutOfMemory,
        FailureClass::Retry,
        FailureClass::Unknown,
    ];
    let mut bench = attempt();
    bench.start();
    let mut pause = 10;
    for class in classes {
        let before = bench.now_ms + 100;
        waits_until(bench.pass(100).fail(class), before + pause);
        // Each try has the time of one.
        assert_eq!(acquire_limit(bench.to(before + pause).timeout()), TIMEOUT);
        pause *= 2;
    }
    let (_, request) = acquired(bench.pass(10).reply(held(TTL)));
    assert_eq!(request.owner_id, OwnerId::from_number(1));
}

#[test]
fn attempt_waits_for_a_connection() {
    let mut bench = attempt();
    bench.start();
    // The connection had been idle, so the first failure is no outage yet.
    acquire_limit(bench.fail(FailureClass::Unreachable));
    reconnects_until(down(&mut bench), OUTAGE_WAIT);
    bench.to(20_000);
    up(&mut bench);
    let next = bench.reply(busy(Some(1_000)));
    assert!(matches!(
        next,
        NextAction::Done(AcquireResult::Contended { .. })
    ));
}

#[test]
fn attempt_ends_with_the_time_for_outages() {
    let mut bench = attempt();
    bench.start();
    bench.fail(FailureClass::Unreachable);
    down(&mut bench);
    bench.to(OUTAGE_WAIT - 5);
    bench.reconnect(Ok(()));
    assert_eq!(acquire_limit(bench.timeout()), 5);
    failed_with(
        bench.pass(5).fail(FailureClass::TimedOut),
        FailureClass::TimedOut,
    );
}

#[test]
fn shutdown_ends_an_attempt_that_waits_for_the_server() {
    let mut bench = attempt();
    bench.start();
    bench.fail(FailureClass::TimedOut);
    let failure = failed(bench.notify(Notification::ShuttingDown));
    assert!(
        matches!(failure, AcquireFailure::ShuttingDown),
        "{failure:?}"
    );
}

/// The key of a server that was restored may be one without an expiry, as before the outage.
#[test]
fn key_without_an_expiry_is_polled_as_long_after_an_outage() {
    let mut bench = attempt();
    bench.start();
    bench.fail(FailureClass::TimedOut);
    acquire_limit(bench.to(20_000).timeout());
    let next = bench.reply(busy(None));
    let NextAction::Perform(Action::Wait { until }) = next else {
        panic!("no second poll: {next:?}");
    };
    bench.to(whole_millis(until.since(at(0))));
    assert!(acquire_limit(bench.timeout()) > 100);
}

#[test]
fn dead_waiters_do_not_use_the_time_for_outages() {
    let mut bench = attempt();
    bench.start();
    let failure = failed(bench.to(TIMEOUT).reply(AcquireReply::More));
    assert!(matches!(failure, AcquireFailure::DeadWaiters));
}

#[test]
fn time_for_a_connection_before_the_first_command_is_an_outage() {
    let of = |patience| AcquireConfig {
        outage_wait: Some(ms(OUTAGE_WAIT)),
        patience,
        ..Bench::config()
    };
    let mut waits = of(Patience::Wait {
        started: at(0),
        deadline: at(WAIT),
        max_queue: QueueLimit::NONE,
    });
    assert_eq!(waits.connects_until(at(0)), at(OUTAGE_WAIT));
    waits.on_connected(at(0), at(20_000));
    assert_eq!(waits.outage_wait, Some(ms(OUTAGE_WAIT - 20_000)));
    assert!(
        matches!(waits.patience, Patience::Wait { deadline, .. } if deadline == at(20_000 + WAIT))
    );
    let mut tries = of(Patience::OneAttempt {
        started: at(0),
        until: at(TIMEOUT),
    });
    assert_eq!(tries.connects_until(at(0)), at(OUTAGE_WAIT));
    tries.on_connected(at(0), at(20_000));
    assert!(
        matches!(tries.patience, Patience::OneAttempt { until, .. } if until == at(20_000 + TIMEOUT))
    );
    // Without a time of its own, it is a part of the wait.
    let mut plain = AcquireConfig {
        outage_wait: None,
        ..waits
    };
    plain.patience = Patience::Wait {
        started: at(0),
        deadline: at(WAIT),
        max_queue: QueueLimit::NONE,
    };
    assert_eq!(plain.connects_until(at(0)), at(WAIT));
    plain.on_connected(at(0), at(1_000));
    assert!(matches!(plain.patience, Patience::Wait { deadline, .. } if deadline == at(WAIT)));
}

/// Without a time of their own, outages use up the wait.
#[test]
fn outage_without_a_time_of_its_own_ends_with_the_wait() {
    let mut bench = Bench::waiter();
    bench.start();
    reconnects_until(down(bench.pass(100)), WAIT);
    failed_with(
        bench.to(WAIT).reconnect(Err(FailureClass::Unreachable)),
        FailureClass::Unreachable,
    );
}

/// The cancel of an earlier copy may still take effect, so another owner id asks, after a pause.
#[test]
fn attempt_whose_copy_is_in_the_way_is_not_contended() {
    let mut bench = attempt();
    bench.start();
    let (copy, _) = bench.copy.take().expect("an acquire was sent");
    bench.acquisition.sent_mut().on_any_reply(&copy);
    let now = bench.pass(10).now;
    let taken_back = AcquireOutcome::StartOver;
    let next = bench
        .acquisition
        .on_reply(taken_back, now, &mut bench.peers);
    assert!(
        matches!(next, NextAction::Perform(Action::StartOver)),
        "{next:?}"
    );
    let next = bench
        .acquisition
        .on_start_over(OwnerId::from_number(2), now);
    let NextAction::Perform(Action::Wait { until }) = next else {
        panic!("{next:?}");
    };
    assert!(until > now);
    bench.to(whole_millis(until.since(at(0))) + 1);
    acquire_limit(bench.timeout());
}
