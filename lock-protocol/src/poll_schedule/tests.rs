use super::*;

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

const LONGEST_PAUSE: Duration = Duration::from_millis(100);

fn poll_schedule() -> PollSchedule {
    PollSchedule::new(at(0), LONGEST_PAUSE, Jitter::seeded(3))
}

fn native(ms: u64) -> HolderExpiry {
    HolderExpiry::Native { ends: at(ms) }
}

const FIRST: LocalPosition = LocalPosition::First;
const BEHIND: LocalPosition = LocalPosition::Behind;

#[test]
fn first_waiter_polls_when_the_holder_s_lease_ends() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(100), 0, native(400), None, FIRST);
    assert_eq!(poll_schedule.next(), at(402));
    poll_schedule.on_reply(at(100), 3, native(400), None, FIRST);
    assert_eq!(poll_schedule.next(), at(432));
    // Whatever its rank: all entries ahead of it may be dead.
    for rank in [24, 25, 300, 1_000_000] {
        poll_schedule.on_reply(at(100), rank, native(400), None, FIRST);
        assert!(
            poll_schedule.next() >= at(402) && poll_schedule.next() <= at(650),
            "{rank}"
        );
    }
}

#[test]
fn waiters_behind_leave_the_poll_at_expiry_to_the_first_one() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(0), 1, native(100), None, BEHIND);
    assert!(poll_schedule.next() > at(700) && poll_schedule.next() <= at(1_000));
    poll_schedule.on_reply(at(0), 20, native(100), None, BEHIND);
    assert!(poll_schedule.next() > at(1_400) && poll_schedule.next() <= at(2_000));
}

/// The end of a lease is announced to none of them, and there is no queue.
#[test]
fn waiter_for_an_announced_release_polls_at_the_expiry_and_each_second() {
    let mut poll_schedule = poll_schedule();
    let notified = |ms| HolderExpiry::Notified { ends: at(ms) };
    poll_schedule.on_reply(at(100), 0, notified(400), None, FIRST);
    assert_eq!(poll_schedule.next(), at(402));
    // Unlike in a queue, the rank does not say who is first.
    for (ends, local_position) in [(400, BEHIND), (60_000, FIRST), (60_000, BEHIND)] {
        poll_schedule.on_reply(at(100), 0, notified(ends), None, local_position);
        let next = poll_schedule.next();
        assert!(next > at(850) && next <= at(1_100), "{next:?}");
    }
    // The waiter ahead got the lock for longer than this one had seen.
    let seen = ObservedExpiry {
        at: at(200),
        holder_expires_at: at(700),
    };
    poll_schedule.on_reply(at(100), 0, notified(400), None, BEHIND);
    poll_schedule.is_first(at(200), Some(seen));
    assert_eq!(poll_schedule.next(), at(702));
}

#[test]
fn no_waiter_pauses_for_longer_than_the_cap() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(100), 0, native(60_000), None, FIRST);
    assert!(poll_schedule.next() > at(850) && poll_schedule.next() <= at(1_100));
    poll_schedule.on_reply(at(100), 30, native(60_000), None, FIRST);
    assert!(poll_schedule.next() > at(2_300) && poll_schedule.next() <= at(3_100));
    for (local_position, longest) in [(FIRST, 5_000), (BEHIND, 30_000)] {
        for rank in [1_000, 3_000, 100_000, u64::MAX] {
            poll_schedule.on_reply(at(100), rank, native(86_000_000), None, local_position);
            let next = poll_schedule.next().since(at(100));
            let longest = Duration::from_millis(longest);
            assert!(next <= longest && next > longest * 3 / 4, "{rank} {next:?}");
        }
    }
}

/// However long the queue is, the waiter's entry has not expired at any poll.
/// Returns how many polls this many waiters make in a second, behind a lock that is renewed. Each
/// keeps its rank.
fn polls_per_second(waiters: u32, local_position: LocalPosition) -> u32 {
    const SPAN: u32 = 300;
    // The first polls of all waiters come in the order of their ranks.
    let begin = at(300_000);
    let end = begin.plus(Duration::from_secs(SPAN.into()));
    let mut polls = 0;
    for rank in 0..waiters {
        let jitter = Jitter::seeded(rank.into());
        let mut poll_schedule = PollSchedule::new(at(0), LONGEST_PAUSE, jitter);
        let mut now = at(0);
        while now < end {
            polls += u32::from(now >= begin);
            let ends = now.plus(Duration::from_secs(30));
            let expiry = HolderExpiry::Native { ends };
            poll_schedule.on_reply(now, rank.into(), expiry, None, local_position);
            now = poll_schedule.next();
        }
    }
    polls / SPAN
}

/// Up to rank 300 the polls grow with the logarithm of the rank. Further back, each waiter polls once
/// in 26 s.
#[test]
fn ten_thousand_waiters_make_four_hundred_polls_per_second() {
    let per_second = [1, 10, 100, 1_000, 10_000].map(|waiters| polls_per_second(waiters, BEHIND));
    assert_eq!(per_second, [1, 11, 38, 77, 419]);
    let of_managers = [1, 10, 100, 1_000].map(|managers| polls_per_second(managers, FIRST));
    assert_eq!(of_managers, [1, 11, 41, 247]);
}

#[test]
fn waiter_of_any_rank_stays_in_the_queue() {
    let (ttl, hours) = (Ttl::new(Duration::from_secs(30)).unwrap(), 3_600_000);
    let deadline = at(4 * hours);
    for rank in [0, 19, 2_999, 3_000, 6_000, 100_000, u64::MAX] {
        for local_position in [FIRST, BEHIND] {
            let mut poll_schedule = poll_schedule();
            let (mut now, mut expires_at, mut polls) = (at(0), at(0), 0_u64);
            while now < at(2 * hours) {
                assert!(
                    now <= expires_at || polls == 0,
                    "rank {rank}: the entry expired before {now:?}"
                );
                let mode = Mode::Subscribed;
                if polls == 0 || needs_extension(mode, now, expires_at, deadline) {
                    let left = deadline.since(now);
                    expires_at = now.plus(entry_lifetime(mode, left, ttl, Duration::from_secs(1)));
                }
                poll_schedule.on_reply(now, rank, native(4 * hours), None, local_position);
                now = poll_schedule.next();
                polls += 1;
            }
            assert!(polls >= 2 * hours / 30_000, "{rank}: {polls} polls");
        }
    }
}

#[test]
fn first_waiter_behind_a_foreign_holder_polls() {
    let mut poll_schedule = poll_schedule();
    let holder_expiry = HolderExpiry::Foreign { ends: at(10_000) };
    poll_schedule.on_reply(at(0), 0, holder_expiry, None, FIRST);
    assert!(poll_schedule.next() <= at(100) && poll_schedule.next() > at(74));
    poll_schedule.on_reply(at(0), 1, holder_expiry, None, BEHIND);
    assert!(poll_schedule.next() > at(700));
    poll_schedule.on_reply(
        at(0),
        50,
        HolderExpiry::Foreign { ends: at(300) },
        None,
        FIRST,
    );
    assert!(poll_schedule.next() <= at(550) && poll_schedule.next() >= at(302));
}

/// Two waiters may read their replies in another order than the server queued them.
#[test]
fn head_of_the_queue_polls_also_when_another_waiter_read_its_reply_first() {
    let mut poll_schedule = poll_schedule();
    let holder_expiry = HolderExpiry::Foreign { ends: at(10_000) };
    poll_schedule.on_reply(at(0), 0, holder_expiry, None, BEHIND);
    assert!(poll_schedule.next() <= at(100));
}

/// The moments of `count` polls behind a holder whose lease does not end.
fn polls(mut poll_schedule: PollSchedule, count: usize) -> Vec<Moment> {
    let mut now = at(0);
    let mut moments = Vec::new();
    for _ in 0..count {
        poll_schedule.on_reply(
            now,
            0,
            HolderExpiry::Polled { ends: at(600_000) },
            None,
            FIRST,
        );
        now = poll_schedule.next();
        moments.push(now);
    }
    moments
}

#[test]
fn waiter_behind_a_newer_version_s_waiter_does_not_poll_in_a_hot_loop() {
    let mut poll_schedule = poll_schedule();
    let free = HolderExpiry::Foreign { ends: at(1_000) };
    poll_schedule.on_reply(at(1_000), 1, free, None, FIRST);
    assert!(poll_schedule.next() > at(1_700) && poll_schedule.next() <= at(2_000));
}

#[test]
fn waiter_without_notifications_backs_off_to_the_longest_pause() {
    let moments = polls(poll_schedule(), 40);
    assert!(moments[0] > at(9) && moments[0] <= at(13), "{moments:?}");
    let pauses = moments.windows(2).map(|pair| pair[1].since(pair[0]));
    let steady: Vec<_> = pauses.skip(4).collect();
    let range = LONGEST_PAUSE * 3 / 4..=LONGEST_PAUSE;
    assert!(
        steady.iter().all(|pause| range.contains(pause)),
        "{steady:?}"
    );
}

#[test]
fn two_polling_waiters_do_not_stay_in_step() {
    let of = |seed| {
        polls(
            PollSchedule::new(at(0), LONGEST_PAUSE, Jitter::seeded(seed)),
            50,
        )
    };
    assert_eq!(of(1), of(1), "the seed decides everything");
    let (one, other) = (of(1), of(2));
    let together = one
        .iter()
        .filter(|mine| {
            let near = |theirs: &&Moment| theirs.since(**mine).max(mine.since(**theirs));
            other
                .iter()
                .any(|theirs| near(&theirs) < Duration::from_millis(1))
        })
        .count();
    assert!(together < 10, "{together} of 50 within a millisecond");
}

#[test]
fn polling_waiter_polls_soon_after_the_holder_s_lease_ends() {
    let mut poll_schedule = poll_schedule();
    for _ in 0..10 {
        poll_schedule.on_reply(at(0), 0, HolderExpiry::Polled { ends: at(7) }, None, FIRST);
        assert!(poll_schedule.next() >= at(9) && poll_schedule.next() <= at(29));
    }
}

#[test]
fn key_without_expiry_is_polled_soon() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(0), 4, HolderExpiry::NoExpiry, None, BEHIND);
    assert_eq!(poll_schedule.next(), at(50));
}

#[test]
fn waiter_without_notifications_polls_three_times_within_a_handover_lease() {
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(0), 12, native(60_000), Some(poll_interval(ttl)), BEHIND);
    assert!(poll_schedule.next() <= at(500) && poll_schedule.next() > at(375));
    assert_eq!(
        handover_lease(Mode::Polling, ttl),
        Duration::from_millis(1_500)
    );
    let short = Ttl::new(Duration::from_millis(150)).unwrap();
    assert_eq!(poll_interval(short), Duration::from_millis(50));
    assert_eq!(
        handover_lease(Mode::Polling, short),
        Duration::from_millis(150)
    );
    assert_eq!(
        handover_lease(Mode::Subscribed, short),
        Duration::from_millis(150)
    );
    assert_eq!(
        handover_lease(Mode::Subscribed, ttl),
        Duration::from_secs(2)
    );
}

#[test]
fn head_notification_brings_the_poll_forward() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(0), 30, native(60_000), None, BEHIND);
    assert!(poll_schedule.next() > at(2_000));
    poll_schedule.is_head(at(100), at(300));
    assert_eq!(poll_schedule.next(), at(302));
    // The holder may have renewed: then the reply says when its lease ends.
    poll_schedule.on_reply(at(302), 0, native(60_000), None, FIRST);
    poll_schedule.is_head(at(400), at(90_000));
    assert!(poll_schedule.next() <= at(1_302));
    poll_schedule.at_once(at(7));
    assert_eq!(poll_schedule.next(), at(7));
}

#[test]
fn head_notifications_cause_one_poll_in_50_ms_and_delay_none() {
    let mut poll_schedule = poll_schedule();
    let mut now = at(0);
    poll_schedule.on_reply(now, 5, native(60_000), None, BEHIND);
    let mut polls = Vec::new();
    while now < at(1_000) {
        // Whatever the notifications say.
        let ends = if now.as_nanos().is_multiple_of(3) {
            now
        } else {
            at(86_000_000)
        };
        poll_schedule.is_head(now, ends);
        if now >= poll_schedule.next() {
            polls.push(now);
            poll_schedule.on_reply(now, 5, native(60_000), None, BEHIND);
        }
        now = now.plus(Duration::from_micros(500));
    }
    assert!(polls.len() <= 20, "{}", polls.len());
    let too_soon = |pair: &[Moment]| pair[1].since(pair[0]) < HEAD_INTERVAL;
    assert!(!polls.windows(2).any(too_soon), "{polls:?}");

    // A poll without a reply does not bring the next one forward either.
    let mut polls = 0;
    poll_schedule.at_once(at(1_200));
    for ms in 1_000..2_000 {
        poll_schedule.is_head(at(ms), at(ms));
        if at(ms) >= poll_schedule.next() {
            polls += 1;
            poll_schedule.end_poll(at(ms));
            poll_schedule.at_once(at(ms + 500));
        }
    }
    assert!(polls <= 21, "{polls}");

    poll_schedule.on_reply(at(2_000), 0, native(2_500), None, FIRST);
    for ms in (2_000..2_500).step_by(10) {
        poll_schedule.is_head(at(ms), at(86_000_000));
    }
    assert_eq!(
        poll_schedule.next(),
        at(2_502),
        "the poll at the expiry stays"
    );
}

#[test]
fn next_first_waiter_uses_what_the_previous_one_saw() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(0), 7, native(100), None, BEHIND);
    let seen = ObservedExpiry {
        at: at(400),
        holder_expires_at: at(2_400),
    };
    poll_schedule.is_first(at(400), Some(seen));
    // By its rank it would have polled after 1 s. From now on 5 s is the longest pause.
    assert!(poll_schedule.next() > at(700) && poll_schedule.next() <= at(1_000));

    poll_schedule.on_reply(at(0), 999, native(100), None, BEHIND);
    poll_schedule.is_first(at(9_000), None);
    assert_eq!(
        poll_schedule.next().max(at(350)),
        at(350),
        "its holder's lease has ended by now"
    );
    poll_schedule.on_reply(at(0), 999, native(100), None, BEHIND);
    let seen = ObservedExpiry {
        at: at(9_000),
        holder_expires_at: at(11_000),
    };
    poll_schedule.is_first(at(9_000), Some(seen));
    assert!(poll_schedule.next() >= at(11_002) && poll_schedule.next() <= at(11_250));
    // A younger observation of its own counts instead.
    poll_schedule.on_reply(at(9_500), 3, native(9_600), None, FIRST);
    poll_schedule.is_first(at(9_500), Some(seen));
    assert_eq!(poll_schedule.next(), at(9_632));
}

#[test]
fn expiry_in_the_past_causes_no_hot_loop() {
    let mut poll_schedule = poll_schedule();
    poll_schedule.on_reply(at(500), 0, native(100), None, FIRST);
    assert_eq!(poll_schedule.next(), at(502));
}

#[test]
fn entries_of_long_waits_are_extended_in_time() {
    let day = Duration::from_secs(86_400);
    let second = Duration::from_secs(1);
    let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
    let lifetime = |mode, left| entry_lifetime(mode, left, ttl, second);
    let subscribed = Mode::Subscribed;
    assert_eq!(lifetime(subscribed, 5 * second), 5 * second);
    assert_eq!(lifetime(subscribed, day), LONGEST_SILENCE);
    let expires_at = at(600_000);
    let wants = |mode, now, deadline| needs_extension(mode, at(now), expires_at, at(deadline));
    assert!(!wants(subscribed, 0, 86_400_000));
    assert!(wants(subscribed, 300_001, 86_400_000));
    assert!(!wants(subscribed, 300_001, 600_000));
    // The server cannot see that a polling waiter is dead: its entry lasts for four polls and two
    // command timeouts.
    assert_eq!(lifetime(Mode::Polling, day), 4 * second);
    assert_eq!(lifetime(Mode::Polling, second), second);
    assert!(wants(Mode::Polling, 0, 86_400_000) && !wants(Mode::Polling, 0, 600_000));
    let longest = entry_lifetime(Mode::Polling, Duration::MAX, ttl, Duration::MAX);
    assert_eq!(longest, LONGEST_SILENCE);
}
