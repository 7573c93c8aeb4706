//! Random steps for both sides.

use super::*;

use proptest::collection::vec;

use lock_protocol::wire::Mode;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire {
        who: usize,
        ttl_ms: u64,
        floor_ahead_us: i64,
        not_after_ms: i64,
        wait: Option<Wait>,
        lead_us: u64,
        /// Whether the acquire carries an entry that was sent before.
        entry_from_history: bool,
        /// Whether it names the earlier entries. A late copy does not, so an owner may have several in the queue.
        names_earlier: bool,
        max_queue: Option<u32>,
        kind: Kind,
        purpose: Purpose,
    },
    Release {
        who: usize,
        grace_ms: u64,
        min_hold_ms: u64,
        /// The period for which the work is done; 0 if it isn't.
        done_ms: u64,
        floor_ahead_us: i64,
        lead_us: u64,
        kind: Kind,
    },
    Renew {
        who: usize,
        ttl_ms: u64,
        kind: Kind,
    },
    /// An operator's release.
    ForceRelease {
        mode: ForceMode,
        /// Whether the operator names the token of the lock that was held last.
        token: bool,
        /// What the operator has seen; `None` if it is not compared.
        seen: Option<Seen>,
        floor_ahead_us: i64,
    },
    Inspect,
    Clock {
        step_us: i64,
    },
    /// The clock goes to the end of a member, in order: two ends in one millisecond are a case of their own.
    ClockToEnd {
        number: usize,
        offset_us: u64,
    },
    /// An action of another client or of an operator.
    Foreign(Foreign),
}

/// What an operator has seen in the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// What it holds now.
    Now,
    /// What it held at the last inspection.
    Before,
    Free,
    /// A value of another client.
    Foreign,
}

#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) mode: Mode,
    pub(super) channel: usize,
    pub(super) lease_ms: u64,
    pub(super) expires_in_ms: i64,
}

#[derive(Clone, Debug)]
pub(super) enum Foreign {
    SetPx(u64),
    SetWithoutExpiry,
    Persist,
    List,
    Delete,
    /// A value of a group that this version does not know.
    UnknownGroup(u64),
    LoseHolders,
    LoseCounter,
    SetCounter(u64),
    LoseQueue,
    /// Entries of other managers' waiters are added to the queue at once.
    Crowd {
        count: usize,
        wait: Wait,
        kind: &'static str,
    },
}

/// Which kind a command names.
#[derive(Clone, Copy, Debug)]
enum StepKind {
    /// That of its owner.
    Own,
    Other(Kind),
}

impl StepKind {
    /// The owners' kinds: two readers, and two holders of permits out of one number.
    fn of(self, who: usize) -> Kind {
        let permits = |weight| Kind::Permits { of: 3, weight };
        match self {
            Self::Other(kind) => kind,
            Self::Own => [
                Kind::Exclusive,
                Kind::Read,
                Kind::Read,
                permits(1),
                permits(2),
            ][who],
        }
    }
}

/// Mostly new locks; sometimes an owner that takes the place of another one, or of itself.
fn purposes() -> impl Strategy<Value = Purpose> {
    prop_oneof![
        18 => Just(Purpose::Acquire),
        2 => Just(Purpose::Downgrade),
        3 => (0..OWNERS).prop_map(|from| Purpose::Exchange(owner_id(from))),
    ]
}

fn kinds() -> impl Strategy<Value = StepKind> {
    prop_oneof![
        8 => Just(StepKind::Own),
        2 => Just(StepKind::Other(Kind::Exclusive)),
        1 => Just(StepKind::Other(Kind::Read)),
        1 => Just(StepKind::Other(Kind::Permits { of: 3, weight: 1 })),
        1 => Just(StepKind::Other(Kind::Permits { of: 5, weight: 4 })),
    ]
}

#[expect(clippy::too_many_lines, reason = "one strategy for each kind of step")]
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..OWNERS;
    let ttl_ms = prop_oneof![Just(100_u64), Just(1_000), Just(30_000), 100..5_000_u64];
    let floor = prop_oneof![4 => Just(-1_000_000_i64), 1 => -5_000_000..5_000_000_i64];
    let mode = prop_oneof![3 => Just(Mode::Subscribed), 1 => Just(Mode::Polling)];
    let wait = (mode, 0..CHANNELS.len(), 100..2_000_u64, -10..20_000_i64).prop_map(
        |(mode, channel, lease_ms, expires_in_ms)| Wait {
            mode,
            channel,
            lease_ms,
            expires_in_ms,
        },
    );
    let lead = prop_oneof![4 => Just(0_u64), 1 => Just(60_000_000)];
    let not_after = prop_oneof![9 => 0..3_000_i64, 1 => -5..1_i64];
    let acquire = (
        who.clone(),
        ttl_ms.clone(),
        floor.clone(),
        not_after,
        proptest::option::weighted(0.7, wait.clone()),
        lead.clone(),
        any::<bool>(),
        (
            proptest::bool::weighted(0.8),
            proptest::option::weighted(0.3, 0..4_u32),
        ),
        kinds(),
        purposes(),
    )
        .prop_map(
            |(
                who,
                ttl_ms,
                floor_ahead_us,
                not_after_ms,
                wait,
                lead_us,
                entry_from_history,
                (names_earlier, max_queue),
                kind,
                purpose,
            )| {
                let kind = match purpose {
                    Purpose::Acquire => kind.of(who),
                    Purpose::Downgrade => Kind::Read,
                    Purpose::Exchange(_) => Kind::Exclusive,
                };
                let wait = wait.filter(|_| purpose == Purpose::Acquire);
                Step::Acquire {
                    who,
                    ttl_ms,
                    floor_ahead_us,
                    not_after_ms,
                    wait,
                    lead_us,
                    entry_from_history,
                    names_earlier,
                    max_queue,
                    kind,
                    purpose,
                }
            },
        );
    let grace = prop_oneof![4 => Just(0_u64), 1 => Just(20)];
    let keep = prop_oneof![3 => Just(0_u64), 1 => 1..3_000_u64];
    // Only exclusive locks are done. A period may end before the release.
    let done = prop_oneof![3 => Just(0_u64), 1 => 1..3_000_u64, 1 => 1..100_000_000_u64];
    let release = (who.clone(), grace, keep, done, floor.clone(), lead, kinds()).prop_map(
        |(who, grace_ms, min_hold_ms, done_ms, floor_ahead_us, lead_us, kind)| {
            let kind = kind.of(who);
            let done_ms = if kind.is_shared() { 0 } else { done_ms };
            Step::Release {
                who,
                grace_ms,
                min_hold_ms: if done_ms > 0 { 0 } else { min_hold_ms },
                done_ms,
                floor_ahead_us,
                lead_us,
                kind,
            }
        },
    );
    let mode = prop_oneof![
        Just(ForceMode::Revoke),
        Just(ForceMode::Now),
        Just(ForceMode::Grant)
    ];
    let seen = prop_oneof![
        4 => Just(None),
        2 => Just(Some(Seen::Now)),
        1 => Just(Some(Seen::Before)),
        1 => Just(Some(Seen::Free)),
        1 => Just(Some(Seen::Foreign)),
    ];
    let force =
        (mode, any::<bool>(), seen, floor).prop_map(|(mode, token, seen, floor_ahead_us)| {
            Step::ForceRelease {
                mode,
                token,
                seen,
                floor_ahead_us,
            }
        });
    let renew = (who, ttl_ms.clone(), kinds()).prop_map(|(who, ttl_ms, kind)| Step::Renew {
        who,
        ttl_ms,
        kind: kind.of(who),
    });
    let offset = prop_oneof![2 => Just(0_u64), 1 => 0..2_000_u64];
    let clock_to_end =
        (0..3_usize, offset).prop_map(|(number, offset_us)| Step::ClockToEnd { number, offset_us });
    let clock = prop_oneof![
        4 => 0..50_000_i64,
        4 => 0..3_000_000_i64,
        1 => 0..700_000_000_i64,
        1 => 0..90_000_000_000_i64,
        2 => -3_000_000..0_i64,
    ]
    .prop_map(|step_us| Step::Clock { step_us });
    let foreign = prop_oneof![
        ttl_ms.clone().prop_map(Foreign::SetPx),
        ttl_ms.prop_map(Foreign::UnknownGroup),
        Just(Foreign::LoseHolders),
        Just(Foreign::SetWithoutExpiry),
        Just(Foreign::Persist),
        Just(Foreign::List),
        Just(Foreign::Delete),
        Just(Foreign::Delete),
        Just(Foreign::LoseCounter),
        prop_oneof![Just(9_007_199_254_740_990_u64), 1..9_u64].prop_map(Foreign::SetCounter),
        Just(Foreign::LoseQueue),
    ]
    .prop_map(Step::Foreign);
    // Around the number of entries that one call scans.
    let count = prop_oneof![3 => 1..4_usize, 1 => 98..103_usize, 1 => 190..210_usize];
    let kind = prop_oneof![3 => Just(""), 2 => Just("r"), 1 => Just("4x2"), 1 => Just("z")];
    let crowd = (count, wait, kind)
        .prop_map(|(count, wait, kind)| Step::Foreign(Foreign::Crowd { count, wait, kind }));
    vec(
        prop_oneof![16 => acquire, 10 => release, 4 => renew, 8 => clock,
            2 => clock_to_end, 2 => foreign, 1 => crowd,
            2 => force, 2 => Just(Step::Inspect)],
        1..30,
    )
}
