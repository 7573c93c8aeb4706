//! Knows the Sentinels of a service, and the latest reply of each.
//!
//! A Sentinel may have several addresses, for example a name in the URL and the number that it announces. Its run id
//! tells that they are one, which counts once. Sentinels that others list are learned, and forgotten again when they
//! are gone: in a container platform, each restart brings another address.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Announcement;
use crate::clock::Moment;

/// A reply counts for this long.
const FRESH: Duration = Duration::from_secs(3);
/// A learned Sentinel is remembered for this long after its last sign of life. That is more than a restart takes.
const REMEMBERED: Duration = Duration::from_secs(60);

/// How many Sentinels are learned. A service has three to seven, but a lying Sentinel may list any number.
const MOST_LEARNED: usize = 32;

/// The reply of one Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelReply<A> {
    pub announcement: Announcement<A>,
    /// When the question was sent.
    pub asked: Moment,
}

/// A Sentinel that another one lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSentinel<A> {
    pub address: A,
    pub run_id: Option<String>,
}

/// Which Sentinels may introduce others. A learned Sentinel gets the password of the Sentinels, and the server that it
/// names gets the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Introduction {
    /// Every Sentinel may: there is nothing to protect, or TLS protects it.
    ByAll,
    /// Only the Sentinels in the URL may.
    ByUrl,
}

/// All known Sentinels of a service.
#[derive(Debug)]
pub struct KnownSentinels<A> {
    introduction: Introduction,
    known: BTreeMap<A, KnownSentinel<A>>,
}

#[derive(Debug)]
struct KnownSentinel<A> {
    source: Source,
    run_id: Option<String>,
    reply: Option<SentinelReply<A>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Url,
    /// With its last sign of life: it replied, or a Sentinel that replies listed it.
    Learned(Moment),
}

/// What tells two Sentinels apart.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity<'a, A> {
    RunId(&'a str),
    /// Without the right to ask for the run id.
    Address(&'a A),
}

impl<A> KnownSentinel<A> {
    fn fresh_reply(&self, now: Moment) -> Option<&SentinelReply<A>> {
        let reply = self.reply.as_ref();
        reply.filter(|reply| now.since(reply.asked) <= FRESH)
    }
}

impl<A: Clone + Ord> KnownSentinels<A> {
    pub fn of_url(addresses: impl IntoIterator<Item = A>, introduction: Introduction) -> Self {
        let known = addresses.into_iter().map(|address| {
            let sentinel = KnownSentinel {
                source: Source::Url,
                run_id: None,
                reply: None,
            };
            (address, sentinel)
        });
        Self {
            introduction,
            known: known.collect(),
        }
    }

    /// Records the reply of a Sentinel; `None` if it did not reply.
    pub fn replied(&mut self, from: &A, reply: Option<SentinelReply<A>>) {
        // One that is forgotten stays so.
        let Some(sentinel) = self.known.get_mut(from) else {
            return;
        };
        if let (Source::Learned(_), Some(reply)) = (sentinel.source, &reply) {
            sentinel.source = Source::Learned(reply.asked);
        }
        sentinel.reply = reply;
    }

    /// Records the run id that a Sentinel has.
    pub fn identified(&mut self, address: &A, run_id: String) {
        if let Some(sentinel) = self.known.get_mut(address) {
            sentinel.run_id = Some(run_id);
        }
    }

    fn may_introduce(&self, address: &A) -> bool {
        let known = self.known.get(address);
        let is_of_url = known.is_some_and(|sentinel| sentinel.source == Source::Url);
        is_of_url || self.introduction == Introduction::ByAll
    }

    fn learned(&self) -> usize {
        let all = self.known.values();
        all.filter(|it| it.source != Source::Url).count()
    }

    /// Records the Sentinels that another one has listed in a reply. At most 32 are learned.
    pub fn listed(&mut self, from: &A, others: Vec<ListedSentinel<A>>, now: Moment) {
        if !self.may_introduce(from) {
            return;
        }
        for ListedSentinel { address, run_id } in others {
            if self.learned() >= MOST_LEARNED && !self.known.contains_key(&address) {
                continue;
            }
            let sentinel = self.known.entry(address).or_insert(KnownSentinel {
                source: Source::Learned(now),
                run_id: None,
                reply: None,
            });
            if sentinel.source != Source::Url {
                sentinel.source = Source::Learned(now);
            }
            if run_id.is_some() {
                sentinel.run_id = run_id;
            }
        }
    }

    /// Forgets learned Sentinels that gave no sign of life for long.
    pub fn forget_gone(&mut self, now: Moment) {
        self.known.retain(|_, sentinel| match sentinel.source {
            Source::Url => true,
            Source::Learned(at) => now.since(at) <= REMEMBERED,
        });
    }

    /// Returns all addresses.
    pub fn addresses(&self) -> Vec<A> {
        self.known.keys().cloned().collect()
    }

    /// Returns the addresses to ask regularly. A Sentinel that replies at an address of the URL is not asked at the
    /// address that the others list.
    pub fn followed(&self, now: Moment) -> Vec<A> {
        let replies_elsewhere = |sentinel: &KnownSentinel<A>| {
            sentinel.run_id.is_some()
                && self.known.values().any(|other| {
                    other.source == Source::Url
                        && other.run_id == sentinel.run_id
                        && other.fresh_reply(now).is_some()
                })
        };
        let is_followed = |sentinel: &KnownSentinel<A>| {
            sentinel.source == Source::Url || !replies_elsewhere(sentinel)
        };
        let followed = self.known.iter().filter(|(_, it)| is_followed(it));
        followed.map(|(address, _)| address.clone()).collect()
    }

    /// Returns the latest reply of each Sentinel; `None` for one that has not replied of late.
    pub fn replies(&self, now: Moment) -> Vec<Option<Announcement<A>>> {
        let mut latest: BTreeMap<Identity<'_, A>, Option<&SentinelReply<A>>> = BTreeMap::new();
        for (address, sentinel) in &self.known {
            let identity = match &sentinel.run_id {
                Some(run_id) => Identity::RunId(run_id),
                None => Identity::Address(address),
            };
            let known = latest.entry(identity).or_default();
            *known = (*known)
                .into_iter()
                .chain(sentinel.fresh_reply(now))
                .max_by_key(|reply| reply.asked);
        }
        let announced = |reply: Option<&SentinelReply<A>>| Some(reply?.announcement.clone());
        latest.into_values().map(announced).collect()
    }

    /// Returns whether a Sentinel that was asked after this moment knows this epoch, or a later one.
    pub fn know_since(&self, moment: Moment, epoch: u64) -> bool {
        let replies = self.known.values().filter_map(|it| it.reply.as_ref());
        let mut replies = replies.filter(|reply| reply.asked > moment);
        replies.any(|reply| reply.announcement.epoch >= epoch)
    }
}

#[cfg(test)]
mod tests;
