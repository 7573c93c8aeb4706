//! Decides which primary the Sentinels of a service name.
//!
//! Each failover gets a configuration epoch of its own, and grows it. So the reply with the highest epoch
//! counts, and not the first one: a Sentinel that was cut off still names the old primary.

use std::cmp::Reverse;

mod sentinels;

pub use sentinels::{Introduction, KnownSentinels, ListedSentinel, SentinelReply};

/// What one Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement<A> {
    pub epoch: u64,
    pub address: A,
}

/// Whether the primary that is known still takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownPrimary {
    Usable,
    /// It cannot be reached, or it is no primary.
    Unusable,
}

/// What to do after the latest replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrimaryChoice<A> {
    Keep,
    /// Use this primary from now on.
    Switch(Announcement<A>),
    /// As `Switch`, to a lower epoch: the Sentinels have lost their state.
    Reset(Announcement<A>),
}

/// Chooses among the latest replies of all known Sentinels; `None` for a Sentinel that does not reply.
pub fn choose<A: Clone + PartialEq>(
    known: Option<&Announcement<A>>,
    state: KnownPrimary,
    replies: &[Option<Announcement<A>>],
) -> PrimaryChoice<A> {
    let Some(newest) = newest(known, replies) else {
        return PrimaryChoice::Keep;
    };
    let Some(known) = known else {
        return PrimaryChoice::Switch(newest.clone());
    };
    if newest.epoch > known.epoch {
        return PrimaryChoice::Switch(newest.clone());
    }
    let majority = replies.len() / 2 + 1;
    let agreeing = replies.iter().flatten().filter(|reply| *reply == newest);
    let is_agreed = agreeing.count() >= majority && newest != known;
    if !is_agreed || state == KnownPrimary::Usable {
        return PrimaryChoice::Keep;
    }
    if newest.epoch == known.epoch {
        // The address of the same primary has changed, for example from a name to a number.
        PrimaryChoice::Switch(newest.clone())
    } else {
        PrimaryChoice::Reset(newest.clone())
    }
}

/// Returns the announcement with the highest epoch. Among several addresses, the one that most Sentinels name counts,
/// then that of the known primary, and then the first one.
fn newest<'a, A: PartialEq>(
    known: Option<&Announcement<A>>,
    replies: &'a [Option<Announcement<A>>],
) -> Option<&'a Announcement<A>> {
    let replies = || replies.iter().flatten();
    let highest = replies().map(|reply| reply.epoch).max()?;
    let newest = replies().filter(|reply| reply.epoch == highest);
    newest.min_by_key(|reply| {
        let supporters = replies().filter(|other| other == reply).count();
        (Reverse(supporters), known != Some(*reply))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(epoch: u64, address: &'static str) -> Announcement<&'static str> {
        Announcement { epoch, address }
    }

    #[test]
    fn highest_epoch_counts_and_not_the_first_reply() {
        let replies = [Some(says(1, "old")), None, Some(says(2, "new"))];
        let new = PrimaryChoice::Switch(says(2, "new"));
        assert_eq!(choose(None, KnownPrimary::Usable, &replies), new);
        let known = says(1, "old");
        assert_eq!(choose(Some(&known), KnownPrimary::Usable, &replies), new);
    }

    /// A name and numbers, or a Sentinel that lies: the order of the replies must not decide.
    #[test]
    fn among_equal_epochs_the_address_that_most_sentinels_name_counts() {
        let (liar, other) = (Some(says(3, "liar")), Some(says(3, "other")));
        let most = PrimaryChoice::Switch(says(3, "other"));
        for replies in [
            [other.clone(), other.clone(), liar.clone()],
            [other.clone(), liar.clone(), other.clone()],
            [liar.clone(), other.clone(), other.clone()],
        ] {
            assert_eq!(choose(None, KnownPrimary::Usable, &replies), most);
            let known = says(2, "before");
            let choice = choose(Some(&known), KnownPrimary::Usable, &replies);
            assert_eq!(choice, most);
        }
        // The known primary decides between two.
        let known = says(3, "other");
        for replies in [[other.clone(), liar.clone()], [liar, other]] {
            let choice = choose(Some(&known), KnownPrimary::Unusable, &replies);
            assert_eq!(choice, PrimaryChoice::Keep);
        }
    }

    #[test]
    fn known_primary_is_kept_without_a_newer_epoch() {
        let known = says(2, "new");
        for replies in [
            vec![None, None, None],
            vec![Some(says(2, "new")); 3],
            vec![Some(says(1, "old")); 3],
            vec![Some(says(1, "old")), None, None],
        ] {
            let choice = choose(Some(&known), KnownPrimary::Usable, &replies);
            assert_eq!(choice, PrimaryChoice::Keep);
        }
    }

    #[test]
    fn lower_epoch_needs_a_majority_and_an_unusable_primary() {
        let known = says(7, "gone");
        let fresh = says(0, "fresh");
        let unusable = KnownPrimary::Unusable;
        let two = [Some(fresh.clone()), Some(fresh.clone()), None];
        let choice = choose(Some(&known), unusable, &two);
        assert_eq!(choice, PrimaryChoice::Reset(fresh.clone()));
        let one = [Some(fresh.clone()), None, None];
        assert_eq!(choose(Some(&known), unusable, &one), PrimaryChoice::Keep);
        // One of them still knows the epoch.
        let mixed = [Some(fresh.clone()), Some(fresh), Some(known.clone())];
        let choice = choose(Some(&known), unusable, &mixed);
        assert_eq!(choice, PrimaryChoice::Keep);
    }

    #[test]
    fn equal_epoch_may_change_the_address_of_an_unusable_primary() {
        let known = says(3, "name");
        let moved = vec![Some(says(3, "number")); 3];
        let keeps = choose(Some(&known), KnownPrimary::Usable, &moved);
        assert_eq!(keeps, PrimaryChoice::Keep);
        let switches = choose(Some(&known), KnownPrimary::Unusable, &moved);
        assert_eq!(switches, PrimaryChoice::Switch(says(3, "number")));
    }
}
