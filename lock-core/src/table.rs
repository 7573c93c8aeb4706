//! The lock table: what a lock does, as one pure state machine.
//!
//! `(state, command, now) -> (reply, pushes)`. The in-memory backend is a thin shell around
//! it, and the Lua scripts are the same machine written for the server: the differential test
//! gives both the same commands and clock steps and demands the same answers. Each rule has a
//! name here (a function or a variant) and a test below.

use std::collections::BTreeMap;

use crate::nonce::Nonce;
use crate::token::FencingToken;
use crate::wire::{Entry, Mode, OwnerValue, Push};

/// The counter lives a day; a lost one is seeded from the time, so tokens still grow.
const COUNTER_LIFE_MS: u64 = 86_400_000;
/// The queue outlives the lock and the last look at it by the longest silence of a waiter.
const QUEUE_LIFE_MS: u64 = 600_000;

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
    Native(Owner),
    /// A string that somebody else wrote: another library's lock, or no lock at all.
    Foreign(String),
    /// Something that is no string, by its Redis type.
    OtherType(&'static str),
}

/// [`OwnerValue`] as a map key: hashable for the model checker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) nonce: Nonce,
    pub(crate) token: FencingToken,
    pub(crate) label: String,
}

/// Something with an expiry: it lives while `now_ms <= expires_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mortal<T> {
    pub(crate) it: T,
    /// `None` lives until it is deleted.
    pub(crate) expires_ms: Option<u64>,
}

impl<T> Mortal<T> {
    fn is_alive(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|end| now_ms <= end)
    }

    fn remaining_ms(&self, now_ms: u64) -> Option<u64> {
        self.expires_ms.map(|end| end.saturating_sub(now_ms))
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
    pub(crate) not_after_ms: u64,
    pub(crate) label: &'a str,
    /// Absent to ask once without standing in the queue.
    pub(crate) entry: Option<&'a Entry>,
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
    Foreign {
        found: String,
    },
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    Free,
    HandedOver,
    NotOurs,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held { token: FencingToken, ttl_ms: u64 },
    NotOurs,
}

/// The server's time, and whether anybody listens on a channel.
pub(crate) struct Context<'a> {
    pub(crate) now_us: u64,
    pub(crate) heard: &'a dyn Fn(&str) -> bool,
}

impl Context<'_> {
    fn now_ms(&self) -> u64 {
        self.now_us / 1000
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
    pub(crate) fn expire(&mut self, now_ms: u64) {
        fn drop_dead<T>(slot: &mut Option<Mortal<T>>, now_ms: u64) {
            if slot.as_ref().is_some_and(|mortal| !mortal.is_alive(now_ms)) {
                *slot = None;
            }
        }
        drop_dead(&mut self.key, now_ms);
        drop_dead(&mut self.queue, now_ms);
        drop_dead(&mut self.counter, now_ms);
        drop_dead(&mut self.grace, now_ms);
    }

    pub(crate) fn acquire(&mut self, ask: &Acquire<'_>, at: &Context<'_>) -> (Answer, Vec<Push>) {
        let now_ms = at.now_ms();
        if now_ms > ask.not_after_ms {
            return (Answer::Late, Vec::new());
        }
        self.expire(now_ms);
        let mut grantee = None;
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
            None if self.queue.is_none() => grantee = Some(Grantee::caller(ask)),
            Some(_) | None => {}
        }
        let queue = grantee.is_none();
        if let (true, Some(entry)) = (queue, ask.entry) {
            self.enqueue(entry, ask.earlier);
        }
        let mut grace_ms = 0;
        if queue && self.key.is_none() {
            (grantee, grace_ms) = self.drive(Some(ask), at);
        }
        let token = grantee.as_ref().map(|to| self.grant(to, ask.floor_us, at));
        let pushes = self.pushes(
            grantee.as_ref().zip(token),
            queue && grantee.is_some(),
            grace_ms,
            at,
        );
        if let (Some(to), Some(token)) = (&grantee, token)
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
        let holder = self.holder_seen(grace_ms, now_ms);
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
            self.park(now_ms + call.keep_ms);
        } else if mine {
            self.key = None;
        }
        let moved = self.leave_queue(call.entries) || mine;
        let queue = self.queue.is_some();
        if mine && !kept && queue && call.grace_ms > 0 {
            self.grace = Some(Mortal {
                it: (),
                expires_ms: Some(now_ms + call.grace_ms),
            });
        }
        let (grantee, grace_ms) = if queue && self.key.is_none() {
            self.drive(None, at)
        } else {
            (None, 0)
        };
        let token = grantee.as_ref().map(|to| self.grant(to, call.floor_us, at));
        let moved = queue && (moved || grantee.is_some());
        let pushes = self.pushes(grantee.as_ref().zip(token), moved, grace_ms, at);
        let verdict = match (mine, grantee.is_some()) {
            (true, true) => Released::HandedOver,
            (true, false) => Released::Free,
            (false, _) => Released::NotOurs,
        };
        (verdict, pushes)
    }

    pub(crate) fn renew(&mut self, nonce: Nonce, ttl_ms: u64, now_ms: u64) -> Renewed {
        self.expire(now_ms);
        match &mut self.key {
            Some(Mortal {
                it: Held::Native(owner),
                expires_ms,
            }) if owner.nonce == nonce => {
                *expires_ms = Some(now_ms + ttl_ms);
                Renewed::Held {
                    token: owner.token,
                    ttl_ms,
                }
            }
            _ => Renewed::NotOurs,
        }
    }

    /// Under nobody's nonce: a renewal or an acquire that the release overtook finds that it is
    /// not its own, and cannot lengthen it.
    fn park(&mut self, until_ms: u64) {
        if let Some(Mortal {
            it: Held::Native(owner),
            expires_ms,
        }) = &mut self.key
        {
            owner.nonce = Nonce::nobody();
            *expires_ms = Some(until_ms);
        }
    }

    fn is_owner(&self, nonce: Nonce) -> bool {
        matches!(&self.key, Some(Mortal { it: Held::Native(owner), .. }) if owner.nonce == nonce)
    }

    /// Order of arrival: behind the last, or where an earlier entry of the same nonce stood.
    fn enqueue(&mut self, entry: &Entry, earlier: &[Entry]) {
        let queue = self.queue.get_or_insert_with(|| Mortal {
            it: BTreeMap::new(),
            expires_ms: None,
        });
        if queue.it.values().any(|waits| waits == entry) {
            return;
        }
        let mut score = queue.it.last_key_value().map_or(1, |(last, _)| last + 1);
        for old in earlier {
            if let Some(stood) = score_of(&queue.it, old) {
                score = score.min(stood);
                queue.it.remove(&stood);
            }
        }
        queue.it.insert(score, entry.clone());
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
    fn drive(&mut self, caller: Option<&Acquire<'_>>, at: &Context<'_>) -> (Option<Grantee>, u64) {
        if let Some(grace) = &self.grace {
            return (None, grace.remaining_ms(at.now_ms()).unwrap_or(0));
        }
        let grantee = self.next_in_line(caller, at);
        // Nobody who waits is alive: then it is free for one who only asks once.
        let only_asks = caller.filter(|ask| ask.entry.is_none());
        (grantee.or_else(|| only_asks.map(Grantee::caller)), 0)
    }

    /// The first who waits and is alive. Those before it are taken out.
    fn next_in_line(&mut self, caller: Option<&Acquire<'_>>, at: &Context<'_>) -> Option<Grantee> {
        let mut next = None;
        while next.is_none()
            && let Some((_, head)) = self.queue.as_mut().and_then(|queue| queue.it.pop_first())
        {
            let asks_now = caller.filter(|ask| ask.entry == Some(&head));
            if let Some(ask) = asks_now {
                next = Some(Grantee {
                    nonce: head.nonce,
                    lease_ms: ask.ttl_ms,
                    label: head.label,
                    channel: None,
                });
            } else if is_alive(&head, at) {
                next = Some(Grantee {
                    nonce: head.nonce,
                    lease_ms: head.lease_ms,
                    label: head.label,
                    channel: (head.mode == Mode::Subscribed).then_some(head.channel),
                });
            }
        }
        self.forget_empty_queue();
        next
    }

    /// The counter first, then the key.
    fn grant(&mut self, to: &Grantee, floor_us: u64, at: &Context<'_>) -> FencingToken {
        let token = self.next_token(floor_us, at);
        self.key = Some(Mortal {
            it: Held::Native(Owner {
                nonce: to.nonce,
                token,
                label: to.label.clone(),
            }),
            expires_ms: Some(at.now_ms() + to.lease_ms),
        });
        token
    }

    /// Grows by one, and from the time when the counter was lost, rolled back or never there.
    fn next_token(&mut self, floor_us: u64, at: &Context<'_>) -> FencingToken {
        let counter = self.counter.get_or_insert(Mortal {
            it: 0,
            expires_ms: None,
        });
        counter.it += 1;
        if counter.it < floor_us {
            *counter = Mortal {
                it: floor_us.max(at.now_us),
                expires_ms: Some(at.now_ms() + COUNTER_LIFE_MS),
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
                nonce: head.nonce,
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

    fn holder_seen(&self, grace_ms: u64, now_ms: u64) -> HolderSeen {
        match &self.key {
            None => HolderSeen {
                remaining_ms: Some(grace_ms),
                value: String::new(),
            },
            Some(key) => HolderSeen {
                remaining_ms: key.remaining_ms(now_ms),
                value: match &key.it {
                    Held::Native(owner) => OwnerValue {
                        nonce: owner.nonce,
                        token: owner.token,
                        label: owner.label.clone(),
                    }
                    .to_string(),
                    Held::Foreign(text) => text.clone(),
                    Held::OtherType(_) => String::new(),
                },
            },
        }
    }

    fn looked_at(&mut self, entry: &Entry, holder: &HolderSeen, now_ms: u64) -> u64 {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        queue.expires_ms = Some(now_ms + holder.remaining_ms.unwrap_or(0) + QUEUE_LIFE_MS);
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
    expires_ms: &mut Option<u64>,
    ttl_ms: u64,
    now_ms: u64,
) -> Answer {
    let remaining = expires_ms.map_or(0, |end| end.saturating_sub(now_ms));
    let remaining_ms = remaining.max(ttl_ms);
    *expires_ms = Some(now_ms + remaining_ms);
    Answer::Held {
        token,
        remaining_ms,
    }
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
