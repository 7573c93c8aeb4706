//! Which node owns which slot.

use super::slot::HashSlot;

/// No node owns the slot.
const NO_OWNER: u16 = u16::MAX;

/// The owner of each slot, as the cluster last told it. `A` is the address of a node.
#[derive(Clone, Debug)]
pub(crate) struct SlotMap<A> {
    /// For each slot an index into `nodes`, or [`NO_OWNER`].
    owners: Vec<u16>,
    /// An entry without slots is reused, so there are never more entries than slots.
    nodes: Vec<MappedNode<A>>,
}

#[derive(Clone, Debug)]
struct MappedNode<A> {
    address: A,
    slots: u16,
}

impl<A: PartialEq> SlotMap<A> {
    /// A map in which no node owns a slot.
    pub(crate) fn empty() -> Self {
        Self {
            owners: vec![NO_OWNER; usize::from(HashSlot::COUNT)],
            nodes: Vec::new(),
        }
    }

    /// Builds the map from ranges of slots, both ends included. A later range wins. Numbers past the
    /// last slot are ignored.
    pub(crate) fn from_ranges(ranges: impl IntoIterator<Item = (u16, u16, A)>) -> Self {
        let mut map = Self::empty();
        for (start, end, address) in ranges {
            let mut slots = (start..=end).map_while(HashSlot::new);
            let Some(first) = slots.next() else {
                continue;
            };
            map.set(first, address);
            let node = map.index_of_owner(first);
            for slot in slots {
                map.assign(slot, node);
            }
        }
        map
    }

    /// Returns the owner of the slot.
    pub(crate) fn owner(&self, slot: HashSlot) -> Option<&A> {
        let node = self.nodes.get(usize::from(self.index_of_owner(slot)))?;
        Some(&node.address)
    }

    /// Makes the node at `address` the owner of the slot.
    pub(crate) fn set(&mut self, slot: HashSlot, address: A) {
        if self.owner(slot) == Some(&address) {
            return;
        }
        // First, so that the entry of a node that loses its last slot is reused.
        self.assign(slot, NO_OWNER);
        let node = self.node(address);
        self.assign(slot, node);
    }

    /// Returns each node that owns a slot, once.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &A> {
        let owning = self.nodes.iter().filter(|node| node.slots > 0);
        owning.map(|node| &node.address)
    }

    /// Returns the slots without an owner.
    pub(crate) fn unserved(&self) -> impl Iterator<Item = HashSlot> {
        HashSlot::all().filter(|slot| self.owner(*slot).is_none())
    }

    fn index_of_owner(&self, slot: HashSlot) -> u16 {
        self.owners.get(slot.index()).copied().unwrap_or(NO_OWNER)
    }

    fn assign(&mut self, slot: HashSlot, node: u16) {
        let Some(owner) = self.owners.get_mut(slot.index()) else {
            return;
        };
        let before = std::mem::replace(owner, node);
        if let Some(before) = self.nodes.get_mut(usize::from(before)) {
            before.slots -= 1;
        }
        if let Some(after) = self.nodes.get_mut(usize::from(node)) {
            after.slots += 1;
        }
    }

    /// The index of the node: its own entry, or one without slots, or a new entry.
    fn node(&mut self, address: A) -> u16 {
        let own = self.nodes.iter().position(|node| node.address == address);
        let free = || self.nodes.iter().position(|node| node.slots == 0);
        let index = own.or_else(free).unwrap_or(self.nodes.len());
        match self.nodes.get_mut(index) {
            Some(node) => node.address = address,
            None => self.nodes.push(MappedNode { address, slots: 0 }),
        }
        u16::try_from(index).unwrap_or(NO_OWNER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(number: u16) -> HashSlot {
        HashSlot::new(number).unwrap()
    }

    fn owners<A: PartialEq + Copy + Ord>(map: &SlotMap<A>) -> Vec<A> {
        let mut owners: Vec<_> = map.owners().copied().collect();
        owners.sort_unstable();
        owners
    }

    #[test]
    fn map_of_ranges_knows_owners_and_unserved_slots() {
        let map = SlotMap::from_ranges([(0, 5460, "a"), (5461, 10922, "b"), (10924, 16383, "a")]);
        assert_eq!(map.owner(slot(0)), Some(&"a"));
        assert_eq!(map.owner(slot(5461)), Some(&"b"));
        assert_eq!(map.owner(slot(16383)), Some(&"a"));
        assert_eq!(map.owner(slot(10923)), None);
        assert_eq!(map.unserved().collect::<Vec<_>>(), [slot(10923)]);
        assert_eq!(owners(&map), ["a", "b"]);
    }

    #[test]
    fn map_of_bad_ranges_ignores_what_is_no_slot() {
        let map = SlotMap::from_ranges([(9, 3, "a"), (16384, 20000, "b"), (16383, u16::MAX, "c")]);
        assert_eq!(owners(&map), ["c"]);
        assert_eq!(map.unserved().count(), 16383);
        assert_eq!(SlotMap::<u8>::empty().unserved().count(), 16384);
    }

    #[test]
    fn set_slot_again_and_again_keeps_the_list_short() {
        let mut map = SlotMap::from_ranges([(0, 16383, 0)]);
        for address in 1..100_000_u32 {
            map.set(slot(7), address);
        }
        assert_eq!(map.owner(slot(7)), Some(&99_999));
        assert_eq!(owners(&map), [0, 99_999]);
        assert!(map.nodes.len() <= 2);
    }

    #[test]
    fn map_with_an_owner_for_each_slot_keeps_all() {
        let map = SlotMap::from_ranges((0..16384).map(|number| (number, number, number)));
        assert!(HashSlot::all().all(|slot| map.owner(slot) == Some(&slot.as_u16())));
        assert_eq!(map.owners().count(), 16384);
    }

    proptest! {
        #[test]
        fn map_after_any_changes_is_like_a_plain_list(
            ranges in prop::collection::vec((0..17000_u16, 0..17000_u16, 0..9_u8), 0..9),
            changes in prop::collection::vec((0..16384_u16, 0..20_u8), 0..40),
        ) {
            let mut expected = vec![None; 16384];
            for (start, end, address) in &ranges {
                for number in (*start..=*end).filter(|number| *number < 16384) {
                    expected[usize::from(number)] = Some(*address);
                }
            }
            let mut map = SlotMap::from_ranges(ranges);
            for (number, address) in changes {
                expected[usize::from(number)] = Some(address);
                map.set(slot(number), address);
            }
            for (slot, owner) in HashSlot::all().zip(&expected) {
                prop_assert_eq!(map.owner(slot), owner.as_ref());
            }
            let mut distinct: Vec<_> = expected.into_iter().flatten().collect();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(owners(&map), distinct);
        }
    }
}
