//! The hash slot of a key, and a short text for each slot.

use std::fmt;

/// A hash slot of a Redis Cluster. It is below 16384.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HashSlot(u16);

impl HashSlot {
    /// How many slots a cluster has.
    pub(crate) const COUNT: u16 = 16384;

    /// Returns `None` for a number that is not a slot.
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    pub(crate) const fn as_u16(self) -> u16 {
        self.0
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The slot of bytes that have no hash tag.
    fn of_bytes(bytes: &[u8]) -> Self {
        Self(crc16(bytes) % Self::COUNT)
    }
}

impl fmt::Display for HashSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Returns the slot of a key: CRC16 of its hash tag, or of the whole key when it has none.
pub(crate) fn slot_of(key: &[u8]) -> HashSlot {
    HashSlot::of_bytes(hash_tag(key).unwrap_or(key))
}

/// The bytes between the first `{` and the first `}` after it. Redis ignores an empty tag, and then
/// looks for no other.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// Returns the hash tag of the channels of `slot`: the first number in base 36 that has this slot.
///
/// It has at most four characters. The search takes up to some hundred thousand steps, so the caller
/// keeps the result.
pub(crate) fn channel_tag(slot: HashSlot) -> String {
    numbers()
        .find(|number| HashSlot::of_bytes(number.as_bytes()) == slot)
        .map(|number| number.as_str().to_owned())
        .unwrap_or_default()
}

/// The numbers 0, 1, 2 and so on in base 36, up to those with five digits.
fn numbers() -> impl Iterator<Item = Base36> {
    (0..Base36::END).map(Base36::new)
}

/// A number in base 36, as text.
struct Base36 {
    digits: [u8; Self::LONGEST],
    start: usize,
}

impl Base36 {
    const LONGEST: usize = 5;
    const END: u32 = 36_u32.pow(5);

    fn new(mut number: u32) -> Self {
        let mut digits = [b'0'; Self::LONGEST];
        let mut start = Self::LONGEST - 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            let value = u8::try_from(number % 36).unwrap_or(0);
            *digit = if value < 10 {
                b'0' + value
            } else {
                b'a' + (value - 10)
            };
            start = place;
            number /= 36;
            if number == 0 {
                break;
            }
        }
        Self { digits, start }
    }

    fn as_bytes(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// CRC16 as the cluster specification of Redis has it: XMODEM, polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        (crc << 8) ^ CRC16[usize::from(high ^ byte)]
    })
}

const CRC16: [u16; 256] = crc16_table();

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(key: &str) -> u16 {
        slot_of(key.as_bytes()).as_u16()
    }

    #[test]
    fn crc16_of_known_texts_is_xmodem() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("bar"), 5061);
        assert_eq!(slot(""), 0);
    }

    #[test]
    fn slot_of_key_with_tag_is_slot_of_tag() {
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("{user1000}.following"), slot("user1000"));
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("}{bar}"), slot("bar"));
    }

    #[test]
    fn slot_of_key_without_a_full_tag_is_slot_of_whole_key() {
        for key in ["foo{}{bar}", "foo{bar", "foo}bar", "{}", "{"] {
            assert_eq!(slot_of(key.as_bytes()), HashSlot::of_bytes(key.as_bytes()));
        }
    }

    #[test]
    fn new_slot_past_the_last_is_none() {
        assert_eq!(HashSlot::new(16383).map(HashSlot::as_u16), Some(16383));
        assert_eq!(HashSlot::new(16384), None);
        assert_eq!(HashSlot::all().count(), 16384);
    }

    #[test]
    fn numbers_in_base_36_count_from_zero_without_leading_zeros() {
        let first: Vec<_> = numbers().take(38).collect();
        let texts: Vec<_> = first.iter().map(Base36::as_str).collect();
        assert_eq!(
            texts[..11],
            "0123456789a".split("").collect::<Vec<_>>()[1..12]
        );
        assert_eq!(texts[35..], ["z", "10", "11"]);
        assert_eq!(Base36::new(Base36::END - 1).as_str(), "zzzzz");
    }

    #[test]
    fn channel_tag_of_every_slot_has_at_most_four_characters() {
        let mut tags = vec![None; usize::from(HashSlot::COUNT)];
        for number in numbers().take(36_usize.pow(4)) {
            let entry = &mut tags[HashSlot::of_bytes(number.as_bytes()).index()];
            entry.get_or_insert_with(|| number.as_str().to_owned());
        }
        for (slot, tag) in HashSlot::all().zip(&tags) {
            let tag = tag.as_deref().expect("a tag of four characters");
            assert_eq!(slot_of(format!("lk1:p:id{{{tag}}}").as_bytes()), slot);
            if slot.as_u16() % 61 == 0 {
                assert_eq!(channel_tag(slot), tag);
            }
        }
    }

    proptest! {
        #[test]
        fn slot_of_any_key_is_below_the_count(key: Vec<u8>) {
            prop_assert!(HashSlot::new(slot_of(&key).as_u16()).is_some());
        }

        #[test]
        fn slot_of_tagged_key_ignores_the_rest(
            before in "[^{]{0,8}", tag in "[^}]{1,8}", after in ".{0,8}",
        ) {
            let key = format!("{before}{{{tag}}}{after}");
            prop_assert_eq!(slot_of(key.as_bytes()), HashSlot::of_bytes(tag.as_bytes()));
        }
    }
}
