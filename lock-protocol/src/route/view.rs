//! Which of the slot maps that nodes tell is used.
//!
//! Nodes learn of changes from each other. One that was cut off knows an earlier map, and one that has just joined may
//! know only a part of it. Calls that follow such a map may reach a primary that was replaced. So a map is used at once
//! only if it is of the same epoch at least and each slot keeps an owner. Otherwise the other nodes are asked first.

use super::slots::SlotMap;

/// What a node says of the cluster.
#[derive(Clone, Debug)]
pub struct ClusterView<A> {
    pub map: SlotMap<A>,
    /// `cluster_current_epoch` of `CLUSTER INFO`, read before the map; `None` if the node doesn't tell it. It grows with
    /// each failover, some moment before the slots have another owner, and with most moves of a slot. A later epoch
    /// doesn't show that the map has every change; an earlier one shows that a change may be missing.
    pub epoch: Option<u64>,
}

impl<A> Default for ClusterView<A> {
    fn default() -> Self {
        Self {
            map: SlotMap::default(),
            epoch: None,
        }
    }
}

impl<A: PartialEq> ClusterView<A> {
    /// Returns whether this view is used instead of the known one although other nodes may know more.
    pub fn replaces(&self, known: &Self) -> bool {
        !self.is_older_than(known) && self.map.covers(&known.map)
    }

    /// Returns whether the node may have missed a change that the known view has.
    pub fn is_older_than(&self, known: &Self) -> bool {
        match (self.epoch, known.epoch) {
            (Some(epoch), Some(known)) => epoch < known,
            _ => false,
        }
    }

    /// Returns whether this view is of a later epoch, or of the same one with more slots.
    pub fn knows_more_than(&self, other: &Self) -> bool {
        let rank = |view: &Self| (view.epoch, view.map.owned());
        rank(self) > rank(other)
    }

    /// Returns the view that is used from now on instead of the known one. If its node doesn't tell an epoch, that of
    /// the known view stays.
    #[must_use]
    pub fn in_place_of(self, known: &Self) -> Self {
        Self {
            epoch: self.epoch.max(known.epoch),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(u16, u16, &str); 2] = [(0, 99, "a"), (100, 16_383, "b")];

    fn view(
        epoch: impl Into<Option<u64>>,
        ranges: &[(u16, u16, &'static str)],
    ) -> ClusterView<&'static str> {
        ClusterView {
            map: SlotMap::from_ranges(ranges.iter().copied()),
            epoch: epoch.into(),
        }
    }

    #[test]
    fn map_of_a_node_that_missed_a_failover_is_not_used() {
        let known = view(7, &ALL);
        let stale = view(6, &[(0, 16_383, "a")]);
        assert!(stale.is_older_than(&known));
        assert!(!stale.replaces(&known));
        assert!(known.replaces(&stale));
    }

    #[test]
    fn map_in_which_slots_lose_their_owners_waits_for_a_better_one() {
        let known = view(7, &ALL);
        for part in [view(7, &ALL[..1]), view(9, &ALL[1..])] {
            assert!(!part.replaces(&known), "{part:?}");
            // If no node knows more, it is used.
            assert!(!part.is_older_than(&known), "{part:?}");
        }
        // The same slots have other owners.
        assert!(view(7, &[(0, 16_383, "c")]).replaces(&known));
        assert!(view(8, &ALL).replaces(&known));
    }

    #[test]
    fn any_map_replaces_none() {
        let none = ClusterView::default();
        for view in [view(0, &ALL[..1]), view(None, &ALL)] {
            assert!(view.replaces(&none), "{view:?}");
        }
    }

    #[test]
    fn later_epoch_counts_before_the_number_of_slots() {
        let views = [
            view(None, &ALL),
            view(6, &ALL),
            view(7, &ALL[..1]),
            view(7, &ALL[1..]),
        ];
        for (at, less) in views.iter().enumerate() {
            assert!(!less.knows_more_than(less));
            for more in &views[at + 1..] {
                assert!(more.knows_more_than(less) && !less.knows_more_than(more));
            }
        }
    }

    #[test]
    fn node_that_tells_no_epoch_does_not_make_older_maps_usable() {
        let known = view(7, &ALL);
        let silent = view(None, &ALL);
        assert!(silent.replaces(&known));
        let used = silent.in_place_of(&known);
        assert!(view(6, &ALL).is_older_than(&used));
        let used = view(8, &ALL).in_place_of(&used);
        assert_eq!(used.epoch, Some(8));
    }
}
