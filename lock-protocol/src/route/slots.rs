//! The slot of a key, and the owners of all slots.

/// The number of a slot, below [`SLOTS`].
pub type HashSlot = u16;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;
/// No node owns the slot.
const NO_OWNER: u16 = u16::MAX;

/// Returns the slot of a key: the CRC16 of its hash tag, or of the whole key.
pub fn slot_of(key: &[u8]) -> HashSlot {
    crc16(hash_tag(key)) % SLOTS
}

/// Returns the hash tag of the channels of a slot: the first number in base 36 that has this slot. It has
/// at most four characters. The search takes milliseconds, so the caller keeps the result.
pub fn channel_tag(slot: HashSlot) -> String {
    let tags = (0..u32::MAX).map(base36);
    tags.into_iter()
        .find(|tag| crc16(tag.as_bytes()) % SLOTS == slot)
        .unwrap_or_default()
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// Returns what stands between the first `{` and the next `}`, if that is not empty; else the key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(start) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let tag = &key[start + 1..];
    match tag.iter().position(|byte| *byte == b'}') {
        Some(len) if len > 0 => &tag[..len],
        _ => key,
    }
}

/// The CRC16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let mut crc = crc ^ (u16::from(*byte) << 8);
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
        crc
    })
}

/// The owner of each slot.
#[derive(Clone, Debug)]
pub struct SlotMap<A> {
    owners: Vec<A>,
    /// The index of the owner, or [`NO_OWNER`].
    slots: Box<[u16]>,
}

impl<A> Default for SlotMap<A> {
    fn default() -> Self {
        Self {
            owners: Vec::new(),
            slots: vec![NO_OWNER; usize::from(SLOTS)].into(),
        }
    }
}

impl<A: PartialEq> SlotMap<A> {
    /// Makes a map of ranges, whose ends belong to them.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (HashSlot, HashSlot, A)>) -> Self {
        let mut map = Self::default();
        for (first, last, owner) in ranges {
            let index = map.index_of(owner);
            for slot in first..=last.min(SLOTS - 1) {
                map.slots[usize::from(slot)] = index;
            }
        }
        map
    }

    pub fn owner(&self, slot: HashSlot) -> Option<&A> {
        let index = *self.slots.get(usize::from(slot))?;
        self.owners.get(usize::from(index))
    }

    /// Returns how many slots have an owner.
    pub fn owned(&self) -> usize {
        (0..SLOTS)
            .filter(|slot| self.owner(*slot).is_some())
            .count()
    }

    /// Returns whether each slot that has an owner in another map has one here.
    pub fn covers(&self, other: &Self) -> bool {
        (0..SLOTS).all(|slot| self.owner(slot).is_some() || other.owner(slot).is_none())
    }

    /// Returns the first slot that has an owner.
    pub fn first_owned(&self) -> Option<(HashSlot, &A)> {
        (0..SLOTS).find_map(|slot| Some((slot, self.owner(slot)?)))
    }

    /// Changes the owner of one slot.
    pub fn set(&mut self, slot: HashSlot, owner: A) {
        let index = self.index_of(owner);
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = index;
        }
    }

    /// Returns the nodes that own a slot which they did not own in an earlier map.
    pub fn gained_since<'a>(&'a self, before: &Self) -> Vec<&'a A> {
        let index_before = |owner: &A| before.owners.iter().position(|known| known == owner);
        let indexes: Vec<_> = self.owners.iter().map(index_before).collect();
        let mut gained = vec![false; self.owners.len()];
        for (now, earlier) in self.slots.iter().zip(&before.slots) {
            let now = usize::from(*now);
            if let Some(index) = indexes.get(now) {
                gained[now] |= *index != Some(usize::from(*earlier));
            }
        }
        let owners = self.owners.iter().zip(gained);
        owners
            .filter_map(|(owner, gained)| gained.then_some(owner))
            .collect()
    }

    /// Returns the nodes that own slots. A node that has lost its last one is among them until the next
    /// map.
    pub fn owners(&self) -> impl Iterator<Item = &A> {
        self.owners.iter()
    }

    fn index_of(&mut self, owner: A) -> u16 {
        let known = self.owners.iter().position(|known| *known == owner);
        let index = known.unwrap_or_else(|| {
            self.owners.push(owner);
            self.owners.len() - 1
        });
        u16::try_from(index).unwrap_or(NO_OWNER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gained_slots_name_their_new_owners() {
        let map = |ranges: &[(HashSlot, HashSlot, &'static str)]| {
            SlotMap::from_ranges(ranges.iter().copied())
        };
        let first = map(&[(0, 99, "a"), (100, 16_383, "b")]);
        assert_eq!(first.gained_since(&SlotMap::default()), [&"a", &"b"]);
        assert_eq!(first.gained_since(&first), [&""; 0]);
        // Other numbers for the same owners, and one slot more.
        let second = map(&[(101, 16_383, "b"), (0, 100, "a")]);
        assert_eq!(second.gained_since(&first), [&"a"]);
        assert_eq!(first.gained_since(&second), [&"b"]);
        let fewer = map(&[(0, 50, "a"), (100, 16_383, "c")]);
        assert_eq!(fewer.gained_since(&first), [&"c"]);
    }

    #[test]
    fn slot_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    }

    #[test]
    fn channel_tag_has_the_slot_and_is_short() {
        for slot in (0..SLOTS).step_by(97).chain([SLOTS - 1]) {
            let tag = channel_tag(slot);
            assert!(tag.len() <= 4, "{tag}");
            assert_eq!(slot_of(format!("lk1:p:u{{{tag}}}").as_bytes()), slot);
        }
        assert_eq!(channel_tag(crc16(b"0") % SLOTS), "0");
    }

    #[test]
    fn owner_changes_for_one_slot_only() {
        let mut map = SlotMap::from_ranges([(0, 99, "a"), (100, 16_383, "b")]);
        assert_eq!((map.owner(99), map.owner(100)), (Some(&"a"), Some(&"b")));
        map.set(99, "c");
        assert_eq!((map.owner(98), map.owner(99)), (Some(&"a"), Some(&"c")));
        assert_eq!(map.owners().count(), 3);
        assert_eq!(SlotMap::<&str>::default().owner(0), None);
        assert_eq!(map.owner(u16::MAX), None);
    }

    proptest! {
        #[test]
        fn map_has_the_last_owner_of_each_slot(
            ranges in proptest::collection::vec((0..SLOTS, 0..SLOTS, 0..5_u8), 0..8),
            slot in 0..SLOTS,
        ) {
            let map = SlotMap::from_ranges(ranges.clone());
            let covers = |(first, last, _): &&(u16, u16, u8)| (*first..=*last).contains(&slot);
            let expected = ranges.iter().rev().find(covers).map(|(_, _, owner)| owner);
            prop_assert_eq!(map.owner(slot), expected);
        }
    }
}
