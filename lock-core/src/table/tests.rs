//! Each rule of the table by its name.

use super::*;

const TTL: u64 = 30_000;
const NOW: u64 = 1_000_000_000;

/// They differ in their first digits, by which the head of a queue is told.
fn nonce(number: u128) -> Nonce {
    Nonce::from_number(number << 96)
}

/// So many milliseconds after the beginning.
fn after(ms: u64) -> ServerMs {
    ServerMs::from_micros(NOW).plus(ms)
}

fn entry(number: u128) -> Entry {
    Entry {
        nonce: nonce(number),
        mode: Mode::Subscribed,
        lease_ms: 2_000,
        kind: String::new(),
        gone_at_ms: after(60_000),
        channel: format!("c{number}"),
        label: "waiter".into(),
    }
}

/// A plain release, of one who waits nowhere.
fn ending(number: u128) -> Release<'static> {
    Release {
        nonce: nonce(number),
        floor_us: NOW,
        grace_ms: 0,
        keep_ms: 0,
        lead_us: 0,
        entries: &[],
    }
}

/// A table with a clock, and channels on which nobody listens.
struct World {
    table: Table,
    now_us: u64,
    deaf: Vec<String>,
    pushes: Vec<Push>,
}

impl World {
    fn new() -> Self {
        Self {
            table: Table::default(),
            now_us: NOW,
            deaf: Vec::new(),
            pushes: Vec::new(),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_us += ms * 1000;
    }

    fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }

    fn with<T>(&mut self, run: impl FnOnce(&mut Table, &Context<'_>) -> (T, Vec<Push>)) -> T {
        let deaf = self.deaf.clone();
        let at = Context {
            now_us: self.now_us,
            heard: &|channel| !deaf.iter().any(|known| known == channel),
        };
        let (answer, pushes) = run(&mut self.table, &at);
        self.pushes = pushes;
        answer
    }

    fn ask(&mut self, number: u128, entry: Option<&Entry>, earlier: &[Entry]) -> Answer {
        let not_after_ms = self.now_ms().plus(1_000);
        self.with(|table, at| {
            let ask = Acquire {
                nonce: nonce(number),
                ttl_ms: TTL,
                floor_us: NOW,
                not_after_ms,
                label: "caller",
                entry,
                lead_us: 0,
                earlier,
            };
            table.acquire(&ask, at)
        })
    }

    fn try_once(&mut self, number: u128) -> Answer {
        self.ask(number, None, &[])
    }

    fn wait(&mut self, number: u128) -> Answer {
        self.ask(number, Some(&entry(number)), &[])
    }

    fn release(&mut self, number: u128) -> Verdict {
        self.release_by(&ending(number))
    }

    fn release_by(&mut self, call: &Release<'_>) -> Verdict {
        let released = self.with(|table, at| table.release(call, at));
        assert!(!released.more, "{released:?}");
        released.verdict
    }

    fn owner(&mut self) -> Option<Nonce> {
        self.table.expire(self.now_ms());
        match &self.table.key {
            Some(Mortal {
                it: Held::Native(owner),
                ..
            }) => Some(owner.nonce),
            _ => None,
        }
    }

    fn foreign(&mut self, expires_ms: Option<ServerMs>) {
        self.table.key = Some(Mortal {
            it: Held::Foreign("theirs".into()),
            expires_ms,
        });
    }
}

fn token(answer: &Answer) -> FencingToken {
    match answer {
        Answer::Held { token, .. } => *token,
        other => panic!("not held: {other:?}"),
    }
}

fn rank(answer: &Answer) -> u64 {
    match answer {
        Answer::Queued { rank, .. } => *rank,
        other => panic!("not queued: {other:?}"),
    }
}

#[test]
fn a_free_lock_is_held_at_once() {
    let mut world = World::new();
    let answer = world.try_once(1);
    assert!(matches!(
        answer,
        Answer::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    assert_eq!(world.owner(), Some(nonce(1)));
    assert!(world.pushes.is_empty());
}

#[test]
fn one_who_does_not_wait_is_told_who_holds_it() {
    let mut world = World::new();
    world.try_once(1);
    world.pass(10_000);
    let Answer::Busy { holder } = world.try_once(2) else {
        panic!("not busy");
    };
    assert_eq!(holder.remaining_ms, Some(20_000));
    assert!(holder.value.ends_with(" caller"));
    assert!(world.table.queue.is_none());
}

#[test]
fn asking_again_is_having_asked_once() {
    let mut world = World::new();
    let first = token(&world.try_once(1));
    world.pass(10_000);
    let again = world.try_once(1);
    assert_eq!(token(&again), first);
    // The shorter expiry was raised to the ttl.
    assert!(matches!(
        again,
        Answer::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn asking_again_never_shortens() {
    let mut world = World::new();
    world.try_once(1);
    let now_ms = world.now_ms();
    world.table.renew(nonce(1), 60_000, now_ms);
    assert!(matches!(
        world.try_once(1),
        Answer::Held {
            remaining_ms: 60_000,
            ..
        }
    ));
}

#[test]
fn a_copy_after_not_after_writes_nothing() {
    let mut world = World::new();
    let at = Context {
        now_us: NOW + 1_000,
        heard: &|_| true,
    };
    let ask = Acquire {
        nonce: nonce(1),
        ttl_ms: TTL,
        floor_us: NOW,
        not_after_ms: after(0),
        label: "",
        entry: None,
        lead_us: 0,
        earlier: &[],
    };
    assert_eq!(world.table.acquire(&ask, &at).0, Answer::Late);
    assert!(world.table.is_empty());
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let mut world = World::new();
    world.try_once(1);
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(rank(&world.wait(3)), 1);
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(world.release(1), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(nonce(2)));
    assert_eq!(world.release(2), Verdict::HandedOver);
    assert_eq!(world.owner(), Some(nonce(3)));
    assert_eq!(world.release(3), Verdict::Free);
    assert_eq!(world.owner(), None);
}

#[test]
fn a_newcomer_queues_behind_those_who_wait_also_when_the_lease_has_ended() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert!(matches!(world.try_once(9), Answer::Busy { .. }));
    assert_eq!(world.owner(), Some(nonce(2)));

    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 1);
    assert_eq!(rank(&world.wait(3)), 0);
    assert_eq!(world.owner(), Some(nonce(2)));
}

#[test]
fn the_first_takes_an_ended_lease_by_looking() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(TTL);
    // A key still lives at its last millisecond.
    assert_eq!(rank(&world.wait(2)), 0);
    world.pass(1);
    let answer = world.wait(2);
    assert!(matches!(
        answer,
        Answer::Held {
            remaining_ms: TTL,
            ..
        }
    ));
    // Nothing is pushed to the caller; whoever is first now is told when to look.
    assert_eq!(
        world.pushes,
        [Push::Head {
            to: nonce(3).short(),
            server_us: world.now_us,
            holder_ms: TTL
        }]
    );
}

#[test]
fn a_hand_over_gives_a_claim_and_tells_the_next_when_it_ends() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(5);
    world.release(1);
    let [
        Push::Grant {
            nonce: to,
            lease_ms: 2_000,
            server_us,
            ..
        },
        Push::Head {
            to: head,
            holder_ms: 2_000,
            ..
        },
    ] = world.pushes[..]
    else {
        panic!("{:?}", world.pushes);
    };
    assert_eq!(
        (to, head, server_us),
        (nonce(2), nonce(3).short(), world.now_us)
    );
    world.pass(2_001);
    assert_eq!(world.owner(), None);
}

#[test]
fn a_waiter_whose_channel_nobody_hears_is_skipped() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.deaf.push("c2".into());
    world.release(1);
    assert_eq!(world.owner(), Some(nonce(3)));
    assert!(world.table.queue.is_none());
}

#[test]
fn a_waiter_whose_wait_is_over_is_skipped() {
    let mut world = World::new();
    world.try_once(1);
    let short = Entry {
        gone_at_ms: after(10),
        ..entry(2)
    };
    world.ask(2, Some(&short), &[]);
    world.wait(3);
    world.pass(11);
    world.release(1);
    assert_eq!(world.owner(), Some(nonce(3)));
}

#[test]
fn one_who_polls_is_never_skipped_and_nothing_is_pushed_to_it() {
    let mut world = World::new();
    world.try_once(1);
    let polling = Entry {
        mode: Mode::Polling,
        lease_ms: 1_500,
        ..entry(2)
    };
    world.deaf.push("c2".into());
    world.ask(2, Some(&polling), &[]);
    world.release(1);
    assert_eq!(world.owner(), Some(nonce(2)));
    assert!(world.pushes.is_empty());
    let answer = world.ask(2, Some(&polling), &[]);
    assert!(matches!(
        answer,
        Answer::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn an_extended_entry_keeps_its_place() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    let extended = Entry {
        gone_at_ms: after(600_000),
        ..entry(2)
    };
    assert_eq!(rank(&world.ask(2, Some(&extended), &[entry(2)])), 0);
    assert_eq!(world.table.queue.as_ref().unwrap().it.len(), 2);
}

#[test]
fn cancelling_the_first_tells_the_second_when_to_look() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.pass(10_000);
    assert_eq!(
        world.release_by(&Release {
            entries: &[entry(2)],
            ..ending(2)
        }),
        Verdict::NotOurs
    );
    assert_eq!(
        world.pushes,
        [Push::Head {
            to: nonce(3).short(),
            server_us: world.now_us,
            holder_ms: 20_000
        }]
    );
}

#[test]
fn cancelling_a_grant_that_crossed_it_hands_on() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.wait(3);
    world.release(1);
    assert_eq!(
        world.release_by(&Release {
            entries: &[entry(2)],
            ..ending(2)
        }),
        Verdict::HandedOver
    );
    assert_eq!(world.owner(), Some(nonce(3)));
}

#[test]
fn nobody_releases_or_renews_what_is_another_s() {
    let mut world = World::new();
    world.try_once(1);
    assert_eq!(world.release(2), Verdict::NotOurs);
    assert_eq!(world.table.renew(nonce(2), TTL, after(0)), Renewed::NotOurs);
    assert_eq!(world.owner(), Some(nonce(1)));
}

#[test]
fn a_second_release_touches_nobody() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.release(1);
    assert_eq!(world.release(1), Verdict::NotOurs);
    assert_eq!(world.owner(), Some(nonce(2)));
}

#[test]
fn a_renewal_extends_and_never_makes_a_key() {
    let mut world = World::new();
    world.try_once(1);
    world.pass(TTL - 1);
    let now_ms = world.now_ms();
    assert!(matches!(
        world.table.renew(nonce(1), TTL, now_ms),
        Renewed::Held { .. }
    ));
    world.pass(TTL);
    assert_eq!(world.owner(), Some(nonce(1)));
    world.pass(1);
    let now_ms = world.now_ms();
    assert_eq!(world.table.renew(nonce(1), TTL, now_ms), Renewed::NotOurs);
    assert!(world.table.key.is_none());
}

#[test]
fn tokens_grow_also_when_the_counter_was_lost_or_rolled_back() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    let counters = [None, Some(5), None, Some(NOW + 3)];
    for (turn, lost) in (1..).zip(counters) {
        world.pass(1);
        let next = token(&world.try_once(turn));
        assert!(next > last, "{next} after {last}");
        last = next;
        world.release(turn);
        world.table.counter = lost.map(|it| Mortal {
            it,
            expires_ms: None,
        });
    }
}

#[test]
fn tokens_count_by_one_while_the_counter_lives() {
    let mut world = World::new();
    let first = token(&world.try_once(1));
    world.release(1);
    let second = token(&world.try_once(2));
    assert_eq!(second.as_u64(), first.as_u64() + 1);
}

#[test]
fn a_foreign_holder_is_respected_and_its_end_is_the_first_waiter_s_turn() {
    let mut world = World::new();
    world.foreign(Some(after(500)));
    let Answer::Queued { holder, .. } = world.wait(1) else {
        panic!("not queued");
    };
    assert_eq!(
        (holder.value.as_str(), holder.remaining_ms),
        ("theirs", Some(500))
    );
    world.pass(501);
    assert!(matches!(world.wait(1), Answer::Held { .. }));
}

#[test]
fn a_foreign_key_is_never_released_or_renewed() {
    let mut world = World::new();
    world.foreign(None);
    assert_eq!(world.release(1), Verdict::NotOurs);
    assert_eq!(world.table.renew(nonce(1), TTL, after(0)), Renewed::NotOurs);
    assert!(world.table.key.is_some());
}

#[test]
fn behind_a_foreign_holder_a_new_first_begins_to_ask_at_once() {
    let mut world = World::new();
    world.foreign(Some(after(500)));
    world.wait(1);
    world.wait(2);
    world.release_by(&Release {
        entries: &[entry(1)],
        ..ending(1)
    });
    assert!(matches!(
        world.pushes[..],
        [Push::Head { holder_ms: 0, .. }]
    ));
}

#[test]
fn a_key_of_another_type_is_named_and_left_alone() {
    let mut world = World::new();
    world.table.key = Some(Mortal {
        it: Held::OtherType("list"),
        expires_ms: None,
    });
    let found = "list".to_owned();
    assert_eq!(world.wait(1), Answer::Foreign { found });
    assert!(world.table.queue.is_none());
}

#[test]
fn during_grace_only_one_who_finds_no_queue_takes_the_key() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    assert_eq!(
        world.release_by(&Release {
            grace_ms: 20,
            ..ending(1)
        }),
        Verdict::Free
    );
    assert!(matches!(
        world.pushes[..],
        [Push::Head { holder_ms: 20, .. }]
    ));
    assert!(matches!(world.try_once(3), Answer::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 0);
    assert_eq!(world.owner(), None);
    world.pass(21);
    assert!(matches!(world.wait(2), Answer::Held { .. }));
}

#[test]
fn without_waiters_there_is_no_grace() {
    let mut world = World::new();
    world.try_once(1);
    world.release_by(&Release {
        grace_ms: 20,
        ..ending(1)
    });
    assert!(world.table.grace.is_none());
    assert!(matches!(world.try_once(2), Answer::Held { .. }));
}

#[test]
fn one_who_only_asks_takes_the_key_when_all_who_waited_are_gone() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.deaf.push("c2".into());
    world.pass(TTL + 1);
    assert!(matches!(world.try_once(3), Answer::Held { .. }));
    assert!(world.table.queue.is_none());
}

#[test]
fn the_queue_ends_ten_minutes_after_the_lock_and_the_last_look() {
    let mut world = World::new();
    world.try_once(1);
    world.wait(2);
    world.pass(TTL + 600_000);
    world.table.expire(world.now_ms());
    assert!(world.table.queue.is_some());
    world.pass(1);
    world.table.expire(world.now_ms());
    assert!(world.table.queue.is_none());
}

#[test]
fn a_lock_that_is_kept_is_nobodys_until_its_time() {
    let mut world = World::new();
    world.try_once(1);
    assert!(matches!(world.wait(2), Answer::Queued { .. }));
    assert_eq!(
        world.release_by(&Release {
            keep_ms: 5_000,
            ..ending(1)
        }),
        Verdict::Free
    );
    assert_eq!(world.owner(), Some(Nonce::nobody()));
    // Whoever is first is told when to look, and no other client is let in before.
    assert!(matches!(
        world.pushes.as_slice(),
        [Push::Head {
            holder_ms: 5_000,
            ..
        }]
    ));
    assert!(world.table.grace.is_none());
    // What the release overtook cannot lengthen it.
    let now_ms = world.now_ms();
    let late = world.table.renew(nonce(1), TTL, now_ms);
    assert_eq!(late, Renewed::NotOurs);
    assert!(matches!(world.try_once(1), Answer::Busy { .. }));
    assert_eq!(
        world.release_by(&Release {
            keep_ms: 9_000,
            ..ending(1)
        }),
        Verdict::NotOurs
    );
    world.pass(5_001);
    assert!(matches!(world.wait(2), Answer::Held { .. }));
}

/// Puts so many others into the queue, before whoever comes next.
fn crowd(world: &mut World, count: u128, one: impl Fn(u128) -> Entry) {
    let queue = world.table.queue.get_or_insert_with(|| Mortal {
        it: BTreeMap::new(),
        expires_ms: None,
    });
    let last = queue.it.last_key_value().map_or(0, |(score, _)| *score);
    for (score, number) in (last + 1..).zip(1_000..1_000 + count) {
        queue.it.insert(score, one(number));
    }
}

fn deaf(number: u128) -> Entry {
    Entry {
        channel: "deaf".into(),
        ..entry(number)
    }
}

fn expired(number: u128) -> Entry {
    Entry {
        gone_at_ms: ServerMs::new(0),
        ..entry(number)
    }
}

fn queued(world: &World) -> usize {
    world.table.queue.as_ref().map_or(0, |queue| queue.it.len())
}

#[test]
fn a_look_while_the_key_is_held_removes_those_whose_time_has_passed_and_nobody_else() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    world.try_once(1);
    crowd(&mut world, 60, |number| {
        if number % 2 == 0 {
            expired(number)
        } else {
            deaf(number)
        }
    });
    assert_eq!(rank(&world.wait(2)), 60, "to come is not to look");
    assert_eq!(queued(&world), 61);
    assert_eq!(rank(&world.wait(2)), 30);
    assert_eq!(queued(&world), 31, "their line may be broken just now");
}

#[test]
fn a_look_that_removes_the_head_tells_the_next() {
    let mut world = World::new();
    world.try_once(1);
    crowd(&mut world, 1, expired);
    world.wait(2);
    world.wait(3);
    world.pushes.clear();
    assert_eq!(rank(&world.wait(3)), 1);
    let head = Push::Head {
        to: nonce(2).short(),
        server_us: world.now_us,
        holder_ms: TTL,
    };
    assert_eq!(world.pushes, [head]);
}

#[test]
fn one_call_looks_at_a_hundred_and_says_that_there_are_more() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    crowd(&mut world, 250, deaf);
    assert_eq!(world.wait(2), Answer::More);
    assert_eq!(queued(&world), 151);
    assert_eq!(world.wait(2), Answer::More);
    token(&world.wait(2));
    assert_eq!(queued(&world), 0);

    // Exactly a hundred are no more.
    let mut world = World::new();
    crowd(&mut world, 100, expired);
    token(&world.try_once(2));
    let mut world = World::new();
    crowd(&mut world, 101, expired);
    assert_eq!(world.try_once(2), Answer::More);
    token(&world.try_once(2));
}

#[test]
fn a_release_says_that_there_are_more_and_goes_on_when_it_is_repeated() {
    let mut world = World::new();
    world.deaf.push("deaf".into());
    world.try_once(1);
    crowd(&mut world, 250, deaf);
    world.wait(2);
    let mut release = || {
        let answer = world.with(|table, at| table.release(&ending(1), at));
        (answer.verdict, answer.more)
    };
    assert_eq!(release(), (Verdict::Free, true));
    assert_eq!(release(), (Verdict::NotOurs, true));
    assert_eq!(release(), (Verdict::NotOurs, false));
    assert_eq!(world.owner(), Some(nonce(2)));
}

#[test]
fn a_waiter_of_an_unknown_kind_is_neither_removed_nor_passed() {
    let kind = |number| Entry {
        kind: "r".into(),
        ..entry(number)
    };
    let mut world = World::new();
    world.try_once(1);
    crowd(&mut world, 1, kind);
    world.wait(2);
    assert_eq!(world.release(1), Verdict::Free);
    let head = Push::Head {
        to: nonce(1_000).short(),
        server_us: world.now_us,
        holder_ms: 0,
    };
    assert_eq!(world.pushes, std::slice::from_ref(&head));
    assert_eq!(world.owner(), None);
    assert!(matches!(world.try_once(3), Answer::Busy { .. }));
    assert_eq!(rank(&world.wait(2)), 1);
    assert_eq!(world.pushes, [head], "until it takes the key");
    // Dead it goes as any other.
    world.deaf.push("c1000".into());
    token(&world.wait(2));
}

#[test]
fn sums_of_times_end_at_the_last_moment() {
    let mut world = World::new();
    let answer = world.with(|table, at| {
        let ask = Acquire {
            nonce: nonce(1),
            ttl_ms: u64::MAX,
            floor_us: u64::MAX,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: u64::MAX,
            earlier: &[],
        };
        table.acquire(&ask, at)
    });
    assert_eq!(token(&answer), FencingToken::new(u64::MAX));
    world.pass(TTL * 1_000_000);
    assert_eq!(world.owner(), Some(nonce(1)));
    world.wait(2);
    let now_ms = world.now_ms();
    world.table.renew(nonce(1), u64::MAX, now_ms);
    assert_eq!(world.owner(), Some(nonce(1)));
    let parked = Release {
        keep_ms: u64::MAX,
        ..ending(1)
    };
    world.release_by(&parked);
    world.pass(TTL);
    assert_eq!(world.owner(), Some(Nonce::nobody()));
}

#[test]
fn a_renewal_never_shortens() {
    let mut world = World::new();
    world.try_once(1);
    let now_ms = world.now_ms();
    let renewed = world.table.renew(nonce(1), 500, now_ms);
    assert!(matches!(
        renewed,
        Renewed::Held {
            remaining_ms: TTL,
            ..
        }
    ));
}

#[test]
fn a_counter_lives_five_minutes_from_its_seed_and_the_next_one_is_higher() {
    let mut world = World::new();
    let mut last = FencingToken::new(0);
    for _ in 0..7 {
        let answer = world.try_once(1);
        assert!(token(&answer) > last);
        last = token(&answer);
        world.release(1);
        world.pass(60_000);
    }
    assert!(last.as_u64() > NOW + 300_000_000, "it was seeded again");
    let mut ahead = World::new();
    let answer = ahead.with(|table, at| {
        let ask = Acquire {
            nonce: nonce(1),
            ttl_ms: TTL,
            floor_us: NOW,
            not_after_ms: ServerMs::LAST,
            label: "",
            entry: None,
            lead_us: 60_000_000,
            earlier: &[],
        };
        table.acquire(&ask, at)
    });
    assert_eq!(token(&answer).as_u64(), NOW + 60_000_000);
}

#[test]
fn an_earlier_entry_that_came_late_goes_at_the_next_look() {
    let mut world = World::new();
    world.try_once(1);
    let (old, new) = (expired(2), entry(2));
    let old = Entry {
        gone_at_ms: after(1),
        ..old
    };
    world.ask(2, Some(&new), std::slice::from_ref(&old));
    // A copy that was overtaken.
    world.ask(2, Some(&old), &[]);
    assert_eq!(queued(&world), 2);
    assert_eq!(rank(&world.ask(2, Some(&new), &[old])), 0);
    assert_eq!(queued(&world), 1);
}
