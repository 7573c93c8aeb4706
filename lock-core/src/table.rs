//! The lock table: what a lock does, as one pure state machine.
//!
//! `(state, command, now) -> (reply, pushes)`. The in-memory backend is a thin shell around
//! it, and the Lua scripts are the same machine written for the server: the differential test
//! gives both the same commands and clock steps and demands the same answers. Each rule has a
//! name here (a function or a variant) and a test below.

use std::collections::BTreeMap;

use crate::clock::ServerMs;
use crate::nonce::Nonce;
use crate::token::FencingToken;
use crate::wire::{Entry, Mode, OwnerValue, Push};

/// How long the counter lives after it was seeded. Counting does not extend that: seeded at a
/// server time S it gives S and a little, less than one per microsecond, and expires on the same
/// clock, so that the next seed is higher.
const COUNTER_LIFE_MS: u64 = 300_000;
/// The queue outlives the lock and the last look at it by the longest silence of a waiter.
const QUEUE_LIFE_MS: u64 = 600_000;
/// Other clients write keys that expire in a million years; no lock of ours lives longer than this.
const LONGEST_HOLDER_MS: u64 = 86_400_000;
/// One call looks at so many entries at most, so that it does not hold up the server. Whoever
/// called repeats it when there are more.
pub(crate) const LOOKS_PER_CALL: usize = 100;

/// What a lock key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "foreign values stand in servers, which the tests compare with"
    )
)]
pub(crate) enum Held {
    /// A lock of ours.
    Native(OwnerValue),
    /// A string that somebody else wrote: another library's lock, or no lock at all.
    Foreign(String),
    /// Something that is no string, by its Redis type.
    OtherType(&'static str),
}

/// Something with an expiry: it lives while the clock does not show a later time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mortal<T> {
    pub(crate) it: T,
    /// `None` lives until it is deleted.
    pub(crate) expires_ms: Option<ServerMs>,
}

impl<T> Mortal<T> {
    fn is_alive(&self, now_ms: ServerMs) -> bool {
        self.expires_ms.is_none_or(|end| now_ms <= end)
    }

    fn remaining_ms(&self, now_ms: ServerMs) -> Option<u64> {
        self.expires_ms.map(|end| end.since(now_ms))
    }
}

/// One lock: the key, its queue, its counter and its grace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Table {
    pub(crate) key: Option<Mortal<Held>>,
    pub(crate) queue: Option<Mortal<BTreeMap<u64, Entry>>>,
    pub(crate) counter: Option<Mortal<u64>>,
    pub(crate) grace: Option<Mortal<()>>,
}

/// An acquire, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acquire<'a> {
    pub(crate) nonce: Nonce,
    pub(crate) ttl_ms: u64,
    pub(crate) floor_us: u64,
    pub(crate) not_after_ms: ServerMs,
    pub(crate) label: &'a str,
    /// Absent to ask once without standing in the queue.
    pub(crate) entry: Option<&'a Entry>,
    /// How far the seed of a counter lies ahead of the server's time, in microseconds.
    pub(crate) lead_us: u64,
    pub(crate) earlier: &'a [Entry],
}

/// A release or a cancel, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release<'a> {
    pub(crate) nonce: Nonce,
    pub(crate) floor_us: u64,
    pub(crate) grace_ms: u64,
    /// For how long a lock of the caller's stays locked all the same, owned by nobody.
    pub(crate) keep_ms: u64,
    /// As in [`Acquire`].
    pub(crate) lead_us: u64,
    pub(crate) entries: &'a [Entry],
}

/// Who holds the key, as an answer tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderSeen {
    /// `None` is a key without expiry.
    pub(crate) remaining_ms: Option<u64>,
    /// The value of the key; empty while nobody holds it and foreign clients go first.
    pub(crate) value: String,
}

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Late,
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    Queued {
        rank: u64,
        holder: HolderSeen,
    },
    Busy {
        holder: HolderSeen,
    },
    /// The key is free, and the first entries of the queue were all dead: ask again at once.
    More,
    Foreign {
        found: String,
    },
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) verdict: Verdict,
    /// The key is free, and the first entries of the queue were all dead: release again, so that
    /// whoever lives behind them gets it.
    pub(crate) more: bool,
}

/// What became of the caller's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    HandedOver,
    NotOurs,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    NotOurs,
}

/// The server's time, and whether anybody listens on a channel.
pub(crate) struct Context<'a> {
    pub(crate) now_us: u64,
    pub(crate) heard: &'a dyn Fn(&str) -> bool,
}

impl Context<'_> {
    pub(crate) fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }
}

/// Who gets the lock within one call.
struct Grantee {
    nonce: Nonce,
    lease_ms: u64,
    label: String,
    /// Where to tell; absent for the caller, who reads the reply, and for those who poll.
    channel: Option<String>,
}

/// What a look at the queue of a free key came to.
#[derive(Default)]
struct Walk {
    grantee: Option<Grantee>,
    /// For how long the key stays free for foreign clients.
    grace_ms: u64,
    /// Whoever waits first has to be told: nobody got the key, and somebody there may live.
    head_is_unserved: bool,
    more: bool,
}

impl Grantee {
    fn caller(ask: &Acquire<'_>) -> Self {
        Self {
            nonce: ask.nonce,
            lease_ms: ask.ttl_ms,
            label: ask.label.to_owned(),
            channel: None,
        }
    }
}

impl Table {
    /// Whether nothing is left that a later command could see.
    pub(crate) fn is_empty(&self) -> bool {
        self.key.is_none() && self.queue.is_none() && self.counter.is_none() && self.grace.is_none()
    }

    /// Takes away what has expired, as a server does when a key is touched.
    pub(crate) fn expire(&mut self, now_ms: ServerMs) {
        fn drop_dead<T>(slot: &mut Option<Mortal<T>>, now_ms: ServerMs) {
            if slot.as_ref().is_some_and(|mortal| !mortal.is_alive(now_ms)) {
                *slot = None;
            }
        }
        drop_dead(&mut self.key, now_ms);
        drop_dead(&mut self.queue, now_ms);
        drop_dead(&mut self.counter, now_ms);
        drop_dead(&mut self.grace, now_ms);
    }

    /// When all of this is over, if nobody comes: `None` where something lives until it is deleted.
    pub(crate) fn ends_ms(&self) -> Option<ServerMs> {
        fn end<T>(slot: Option<&Mortal<T>>) -> Option<ServerMs> {
            slot.map_or(Some(ServerMs::new(0)), |mortal| mortal.expires_ms)
        }
        let key = end(self.key.as_ref())?;
        let queue = end(self.queue.as_ref())?;
        let counter = end(self.counter.as_ref())?;
        let grace = end(self.grace.as_ref())?;
        Some(key.max(queue).max(counter).max(grace))
    }

    pub(crate) fn acquire(&mut self, ask: &Acquire<'_>, at: &Context<'_>) -> (Answer, Vec<Push>) {
        let now_ms = at.now_ms();
        if now_ms > ask.not_after_ms {
            return (Answer::Late, Vec::new());
        }
        self.expire(now_ms);
        let mut walk = Walk::default();
        match &mut self.key {
            Some(Mortal {
                it: Held::OtherType(found),
                ..
            }) => {
                let found = (*found).to_owned();
                return (Answer::Foreign { found }, Vec::new());
            }
            Some(Mortal {
                it: Held::Native(owner),
                expires_ms,
            }) if owner.nonce == ask.nonce => {
                let token = owner.token;
                return (
                    asked_again(token, expires_ms, ask.ttl_ms, now_ms),
                    Vec::new(),
                );
            }
            Some(_) if ask.entry.is_none() => {
                let holder = self.holder_seen(0, now_ms);
                return (Answer::Busy { holder }, Vec::new());
            }
            None if self.queue.is_none() => walk.grantee = Some(Grantee::caller(ask)),
            Some(_) | None => {}
        }
        let queue = walk.grantee.is_none();
        let mut head_left = false;
        if let (true, Some(entry)) = (queue, ask.entry) {
            let stood = self.enqueue(entry, ask.earlier);
            if stood && self.key.is_some() {
                head_left = self.prune(entry, now_ms);
            }
        }
        if queue && self.key.is_none() {
            walk = self.drive(Some(ask), at);
        }
        let granted = walk.grantee.as_ref();
        let token = granted.map(|to| self.grant(to, ask.floor_us, ask.lead_us, at));
        let moved = queue && (granted.is_some() || head_left || walk.head_is_unserved);
        let pushes = self.pushes(granted.zip(token), moved, walk.grace_ms, at);
        if let (Some(to), Some(token)) = (granted, token)
            && to.nonce == ask.nonce
        {
            let remaining_ms = to.lease_ms;
            return (
                Answer::Held {
                    token,
                    remaining_ms,
                },
                pushes,
            );
        }
        if walk.more {
            return (Answer::More, pushes);
        }
        let holder = self.holder_seen(walk.grace_ms, now_ms);
        let Some(entry) = ask.entry else {
            return (Answer::Busy { holder }, pushes);
        };
        let rank = self.looked_at(entry, &holder, now_ms);
        (Answer::Queued { rank, holder }, pushes)
    }

    pub(crate) fn release(
        &mut self,
        call: &Release<'_>,
        at: &Context<'_>,
    ) -> (Released, Vec<Push>) {
        let now_ms = at.now_ms();
        self.expire(now_ms);
        let mine = self.is_owner(call.nonce);
        let kept = mine && call.keep_ms > 0;
        if kept {
            self.park(now_ms.plus(call.keep_ms));
        } else if mine {
            self.key = None;
        }
        let moved = self.leave_queue(call.entries) || mine;
        let queue = self.queue.is_some();
        if mine && !kept && queue && call.grace_ms > 0 {
            self.grace = Some(Mortal {
                it: (),
                expires_ms: Some(now_ms.plus(call.grace_ms)),
            });
        }
        let walk = if queue && self.key.is_none() {
            self.drive(None, at)
        } else {
            Walk::default()
        };
        let granted = walk.grantee.as_ref();
        let token = granted.map(|to| self.grant(to, call.floor_us, call.lead_us, at));
        let moved = queue && (moved || granted.is_some() || walk.head_is_unserved);
        let pushes = self.pushes(granted.zip(token), moved, walk.grace_ms, at);
        let verdict = match (mine, granted.is_some()) {
            (true, true) => Verdict::HandedOver,
            (true, false) => Verdict::Free,
            (false, _) => Verdict::NotOurs,
        };
        let more = walk.more;
        (Released { verdict, more }, pushes)
    }

    /// Extends the lease, and never shortens it: whoever is told of the end of an earlier renewal
    /// counts on that.
    pub(crate) fn renew(&mut self, nonce: Nonce, ttl_ms: u64, now_ms: ServerMs) -> Renewed {
        self.expire(now_ms);
        match &mut self.key {
            Some(Mortal {
                it: Held::Native(owner),
                expires_ms,
            }) if owner.nonce == nonce => Renewed::Held {
                token: owner.token,
                remaining_ms: raise(expires_ms, ttl_ms, now_ms),
            },
            _ => Renewed::NotOurs,
        }
    }

    fn is_owner(&self, nonce: Nonce) -> bool {
        matches!(
            &self.key,
            Some(Mortal { it: Held::Native(owner), .. }) if owner.nonce == nonce
        )
    }

    /// Locked on, but no longer the caller's: a renewal or an acquire that was overtaken by the
    /// release finds that it is not its own.
    fn park(&mut self, until_ms: ServerMs) {
        if let Some(Mortal {
            it: Held::Native(owner),
            expires_ms,
        }) = &mut self.key
        {
            owner.nonce = Nonce::nobody();
            *expires_ms = Some(until_ms);
        }
    }

    /// Order of arrival: behind the last, or where an earlier entry of the same nonce stood. Says
    /// whether this very entry stood there already.
    fn enqueue(&mut self, entry: &Entry, earlier: &[Entry]) -> bool {
        let queue = self.queue.get_or_insert_with(|| Mortal {
            it: BTreeMap::new(),
            expires_ms: None,
        });
        let stood = score_of(&queue.it, entry);
        let mut score = queue.it.last_key_value().map_or(1, |(last, _)| last + 1);
        for old in earlier {
            if let Some(stood) = score_of(&queue.it, old) {
                score = score.min(stood);
                queue.it.remove(&stood);
            }
        }
        if stood.is_none() {
            queue.it.insert(score, entry.clone());
        }
        stood.is_some()
    }

    /// Takes out those whose time has passed, while somebody holds the key. Not those that nobody
    /// listens for: their line may be broken just now. Says whether the head was among them.
    fn prune(&mut self, own: &Entry, now_ms: ServerMs) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let first = queue.it.first_key_value().map(|(score, _)| *score);
        let looked_at = queue.it.iter().take(LOOKS_PER_CALL);
        let over = looked_at.filter(|(_, entry)| *entry != own && now_ms > entry.gone_at_ms);
        let over: Vec<u64> = over.map(|(score, _)| *score).collect();
        for score in &over {
            queue.it.remove(score);
        }
        first.is_some_and(|first| over.contains(&first))
    }

    fn leave_queue(&mut self, entries: &[Entry]) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let before = queue.it.len();
        for entry in entries {
            if let Some(score) = score_of(&queue.it, entry) {
                queue.it.remove(&score);
            }
        }
        let left = before > queue.it.len();
        self.forget_empty_queue();
        left
    }

    fn forget_empty_queue(&mut self) {
        if self.queue.as_ref().is_some_and(|queue| queue.it.is_empty()) {
            self.queue = None;
        }
    }

    /// The key is free and somebody waits: who gets it, and else for how long it stays free
    /// for foreign clients.
    fn drive(&mut self, caller: Option<&Acquire<'_>>, at: &Context<'_>) -> Walk {
        if let Some(grace) = &self.grace {
            return Walk {
                grace_ms: grace.remaining_ms(at.now_ms()).unwrap_or(0),
                ..Walk::default()
            };
        }
        let mut walk = self.next_in_line(caller, at);
        if walk.grantee.is_none() && !walk.head_is_unserved {
            // Nobody who waits is alive: then it is free for one who only asks once.
            let only_asks = caller.filter(|ask| ask.entry.is_none());
            walk.grantee = only_asks.map(Grantee::caller);
        }
        walk
    }

    /// The first who waits and is alive. Those before it are taken out.
    fn next_in_line(&mut self, caller: Option<&Acquire<'_>>, at: &Context<'_>) -> Walk {
        let mut walk = Walk::default();
        let mut dead = 0;
        while let Some(first) = self.queue.as_mut().and_then(|queue| queue.it.first_entry()) {
            if dead == LOOKS_PER_CALL {
                walk.more = true;
                walk.head_is_unserved = true;
                break;
            }
            let head = first.get();
            let asks_now = caller.filter(|ask| ask.entry == Some(head));
            if asks_now.is_none() && !is_alive(head, at) {
                first.remove();
                dead += 1;
                continue;
            }
            if !head.kind.is_empty() {
                // Its own version knows what it wants, and takes the key.
                walk.head_is_unserved = true;
                break;
            }
            let head = first.remove();
            walk.grantee = Some(match asks_now {
                Some(ask) => Grantee {
                    nonce: head.nonce,
                    lease_ms: ask.ttl_ms,
                    label: head.label,
                    channel: None,
                },
                None => Grantee {
                    nonce: head.nonce,
                    lease_ms: head.lease_ms,
                    label: head.label,
                    channel: (head.mode == Mode::Subscribed).then_some(head.channel),
                },
            });
            break;
        }
        self.forget_empty_queue();
        walk
    }

    /// The counter first, then the key.
    fn grant(
        &mut self,
        to: &Grantee,
        floor_us: u64,
        lead_us: u64,
        at: &Context<'_>,
    ) -> FencingToken {
        let token = self.next_token(floor_us, lead_us, at);
        let now_ms = at.now_ms();
        self.key = Some(Mortal {
            it: Held::Native(OwnerValue {
                nonce: to.nonce,
                token,
                since_ms: now_ms,
                label: to.label.clone(),
            }),
            expires_ms: Some(now_ms.plus(to.lease_ms)),
        });
        token
    }

    /// Grows by one, and from the time when the counter was lost, rolled back or never there.
    fn next_token(&mut self, floor_us: u64, lead_us: u64, at: &Context<'_>) -> FencingToken {
        let counter = self.counter.get_or_insert(Mortal {
            it: 0,
            expires_ms: None,
        });
        counter.it = counter.it.saturating_add(1);
        if counter.it < floor_us {
            let seed_us = floor_us.max(at.now_us.saturating_add(lead_us));
            // By the time of the seed, which may be ahead of the clock: the next seed is higher.
            *counter = Mortal {
                it: seed_us,
                expires_ms: Some(ServerMs::from_micros(seed_us).plus(COUNTER_LIFE_MS)),
            };
        }
        FencingToken::new(counter.it)
    }

    /// A grant to the new owner, and word to whoever is first now.
    fn pushes(
        &self,
        granted: Option<(&Grantee, FencingToken)>,
        moved: bool,
        grace_ms: u64,
        at: &Context<'_>,
    ) -> Vec<Push> {
        let mut pushes = Vec::new();
        if !moved {
            return pushes;
        }
        if let Some((to, token)) = granted
            && to.channel.is_some()
        {
            pushes.push(Push::Grant {
                nonce: to.nonce,
                token,
                server_us: at.now_us,
                lease_ms: to.lease_ms,
            });
        }
        let head = self
            .queue
            .as_ref()
            .and_then(|queue| queue.it.values().next());
        if let Some(head) = head.filter(|head| head.mode == Mode::Subscribed) {
            pushes.push(Push::Head {
                to: head.nonce.short(),
                server_us: at.now_us,
                holder_ms: match (&granted, &self.key) {
                    (Some((to, _)), _) => to.lease_ms,
                    (
                        None,
                        Some(
                            key @ Mortal {
                                it: Held::Native(_),
                                ..
                            },
                        ),
                    ) => key.remaining_ms(at.now_ms()).unwrap_or(0),
                    // A foreign holder tells nobody when it goes: begin asking now.
                    (None, _) => grace_ms,
                },
            });
        }
        pushes
    }

    fn holder_seen(&self, grace_ms: u64, now_ms: ServerMs) -> HolderSeen {
        match &self.key {
            None => HolderSeen {
                remaining_ms: Some(grace_ms),
                value: String::new(),
            },
            Some(key) => HolderSeen {
                remaining_ms: key.remaining_ms(now_ms),
                value: match &key.it {
                    Held::Native(owner) => owner.to_string(),
                    Held::Foreign(text) => text.clone(),
                    Held::OtherType(_) => String::new(),
                },
            },
        }
    }

    fn looked_at(&mut self, entry: &Entry, holder: &HolderSeen, now_ms: ServerMs) -> u64 {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let held_ms = holder.remaining_ms.unwrap_or(0).min(LONGEST_HOLDER_MS);
        queue.expires_ms = Some(now_ms.plus(held_ms).plus(QUEUE_LIFE_MS));
        let before = queue
            .it
            .values()
            .take_while(|waits| *waits != entry)
            .count();
        u64::try_from(before).unwrap_or(u64::MAX)
    }
}

/// Asking again is having asked once: same token, and at least the ttl that was asked for.
fn asked_again(
    token: FencingToken,
    expires_ms: &mut Option<ServerMs>,
    ttl_ms: u64,
    now_ms: ServerMs,
) -> Answer {
    Answer::Held {
        token,
        remaining_ms: raise(expires_ms, ttl_ms, now_ms),
    }
}

/// Makes an expiry at least so far away, and says how far it is. A key without one gets one.
fn raise(expires_ms: &mut Option<ServerMs>, ttl_ms: u64, now_ms: ServerMs) -> u64 {
    let remaining = expires_ms.map_or(0, |end| end.since(now_ms));
    let remaining_ms = remaining.max(ttl_ms);
    *expires_ms = Some(now_ms.plus(remaining_ms));
    remaining_ms
}

/// Gone when its wait is over, or when it would be told and nobody listens.
fn is_alive(entry: &Entry, at: &Context<'_>) -> bool {
    at.now_ms() <= entry.gone_at_ms && (entry.mode == Mode::Polling || (at.heard)(&entry.channel))
}

fn score_of(queue: &BTreeMap<u64, Entry>, entry: &Entry) -> Option<u64> {
    queue
        .iter()
        .find_map(|(score, waits)| (waits == entry).then_some(*score))
}

#[cfg(test)]
mod tests;
