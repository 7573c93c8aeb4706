use super::*;
use crate::key::LockName;
use crate::kind::Kind;
use crate::renew::Renew;
use crate::ttl::Ttl;

const TIMEOUT: u64 = 1_000;

fn waiting() -> SentAcquires {
    let key = LockKey::new("", &LockName::from("k")).unwrap();
    let lease_config = LeaseConfig {
        ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
        renew: Renew::Auto,
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    };
    let deadline = Moment::from_millis(86_400_000);
    SentAcquires::new(
        OwnerId::random(),
        key,
        lease_config,
        "".into(),
        Some(deadline),
    )
}

/// Sends a poll at this time, over this channel.
fn send(sent: &mut SentAcquires, ms: u64, channel: &str, mode: Mode) -> SentCopy {
    sent.on_send(SendContext {
        run_id: 0,
        origin: 1,
        mode,
        channel: &Arc::from(channel),
        lease: Duration::from_secs(2),
        now: Moment::from_millis(ms),
        not_after: NotAfter {
            server_ms: ServerMs::new(ms),
            not_after_ms: ServerMs::new(ms + TIMEOUT),
        },
        command_timeout: Duration::from_millis(TIMEOUT),
    })
}

/// Polls and gets a reply without a result. Returns how many earlier entries the poll carried.
fn poll(sent: &mut SentAcquires, ms: u64, channel: &str, mode: Mode) -> usize {
    let copy = send(sent, ms, channel, mode);
    let earlier = sent.earlier().len();
    sent.on_any_reply(&copy);
    earlier
}

fn entries(sent: &SentAcquires) -> Vec<QueueEntry> {
    sent.release_request().entries
}

#[test]
fn entry_is_forgotten_once_no_command_can_add_it() {
    let mut sent = waiting();
    poll(&mut sent, 0, "a", Mode::Subscribed);
    sent.forget_earlier_entries(ServerMs::new(5));
    assert_eq!(poll(&mut sent, 100, "b", Mode::Subscribed), 1);
    // The command that carried the first entry may still arrive.
    sent.forget_earlier_entries(ServerMs::new(TIMEOUT));
    assert_eq!(entries(&sent).len(), 2);
    assert_eq!(poll(&mut sent, 900, "b", Mode::Subscribed), 1);
    sent.forget_earlier_entries(ServerMs::new(TIMEOUT + 1));
    assert_eq!(entries(&sent).len(), 1);
    assert_eq!(poll(&mut sent, 1_900, "b", Mode::Subscribed), 0);
    // No entry is forgotten without a reply.
    for number in 0..50 {
        let channel = format!("c{number}");
        let earlier = poll(&mut sent, 2_000 + number, &channel, Mode::Subscribed);
        assert_eq!(earlier as u64, number + 1);
    }
    sent.forget_earlier_entries(ServerMs::new(86_400_000));
    assert_eq!(entries(&sent).len(), 1);
}

/// There are no notifications, and the server rejects each poll for minutes with a new entry.
#[test]
fn rejected_polls_leave_no_entries() {
    let mut sent = waiting();
    let rejected_poll = |sent: &mut SentAcquires, ms: u64| {
        let copy = send(sent, ms, "c", Mode::Polling);
        sent.on_error_reply(&copy, FailureClass::OutOfMemory);
    };
    for number in 0..1_000 {
        rejected_poll(&mut sent, number * 500);
    }
    assert_eq!(entries(&sent).len(), 0);
    poll(&mut sent, 600_000, "c", Mode::Polling);
    sent.forget_earlier_entries(ServerMs::new(600_001));
    for number in 0..1_000 {
        rejected_poll(&mut sent, 600_500 + number * 500);
    }
    // The server has this entry.
    assert_eq!(entries(&sent).len(), 1);
    assert_eq!(poll(&mut sent, 1_200_000, "c", Mode::Polling), 1);
}

/// Nobody knows whether the server executed any of it.
#[test]
fn unknown_refusal_keeps_the_entry() {
    let mut sent = waiting();
    let copy = send(&mut sent, 0, "c", Mode::Polling);
    sent.on_error_reply(&copy, FailureClass::Unknown);
    assert_eq!(entries(&sent).len(), 1);
    assert!(sent.may_be_present());
}

#[test]
fn hundreds_of_reconnects_keep_polls_short() {
    let mut sent = waiting();
    let mut longest = 0;
    for number in 0..2_000 {
        let (ms, channel) = (number * 250, format!("c{}", number % 7));
        longest = longest.max(poll(&mut sent, ms, &channel, Mode::Subscribed));
        sent.forget_earlier_entries(ServerMs::new(ms + 1));
    }
    assert!(longest <= 5, "{longest}");
}

#[test]
fn polling_waiter_renews_its_entry_and_carries_few() {
    let mut sent = waiting();
    let mut last = None;
    for number in 0..100 {
        let ms = number * 500;
        assert!(poll(&mut sent, ms, "c", Mode::Polling) <= 3);
        let expires_at = sent.entry().map(|entry| entry.expires_at_ms);
        // The lifetime covers four polls and two command timeouts.
        assert_eq!(expires_at, Some(ServerMs::new(ms + 4_000)));
        assert!(expires_at > last);
        last = expires_at;
        sent.forget_earlier_entries(ServerMs::new(ms));
    }
}

#[test]
fn entry_that_equals_an_earlier_one_is_kept_once() {
    let mut sent = waiting();
    for (ms, channel) in [(0, "a"), (10, "b"), (0, "a"), (0, "a")] {
        poll(&mut sent, ms, channel, Mode::Subscribed);
    }
    let channels: Vec<_> = entries(&sent).into_iter().map(|e| e.channel).collect();
    assert_eq!(channels, ["b", "a"].map(Arc::from));
}

/// The clock of a new primary may be ahead. A command to the old one may still add its entry there.
#[test]
fn entries_are_kept_when_another_process_replies() {
    for (run_id, kept) in [(0, 1), (8, 2)] {
        let mut sent = waiting();
        let _no_reply = send(&mut sent, 0, "a", Mode::Subscribed);
        let copy = send(&mut sent, 10, "b", Mode::Subscribed);
        let holder = RawHolder {
            value: "x".into(),
            remaining_ms: None,
        };
        let times = ReplyTimes {
            sent: Moment::from_millis(10),
            received: Moment::from_millis(11),
            server_us: 3_600_000_000,
            run_id,
        };
        sent.on_reply(&copy, AcquireReply::Queued { rank: 0, holder }, times);
        assert_eq!(entries(&sent).len(), kept, "{run_id}");
    }
}
