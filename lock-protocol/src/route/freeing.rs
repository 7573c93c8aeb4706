//! The release of a lock whose slot moves to another node.
//!
//! A release touches several keys: the lock, its queue, its counter. While their slot moves key by key, no node has all
//! of them, and the release fails until the last one has moved. So the key of the lock is freed alone, which any node
//! with this key can do, and the next holder needn't wait for the end of the move. The release goes on afterwards,
//! because only it hands the lock over and cleans up.
//!
//! | State | Event | Next |
//! |---|---|---|
//! | the release is repeated | the slot was found moving twice | free the key |
//! | | a reply to the release | the end |
//! | free the key | freed, or not ours | only the release is repeated |
//! | | refused | the release is repeated, and then the key is freed again |
//! | | no reply: it may be free | as refused, but the end is known only if a later command still finds the key |

/// How often a release finds its slot moving before it frees the key alone. A slot that moves in one step is open for a
/// moment only.
const MOVES_BEFORE_FREE: u32 = 2;

/// What goes out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeingStep {
    Release,
    FreeKey,
}

/// What a command that freed the key alone has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFreed {
    /// The key is free. `was_owner` says whether the lock had it until then.
    Done { was_owner: bool },
    /// It may have run: only the reply is missing.
    Unknown,
}

/// What is known at the end of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseEnd {
    Known {
        was_owner: bool,
    },
    /// The release found nothing, perhaps because the key was freed by a command without a reply. The caller repeats
    /// the release, and knows whether the lock was valid.
    Unknown,
}

/// The steps of one release.
#[derive(Clone, Copy, Debug)]
pub struct Freeing {
    may_free: bool,
    /// The key was the lock's when it was freed alone.
    was_owner: bool,
    /// A command without a reply may have freed the key.
    may_be_freed: bool,
    moves: u32,
}

impl Freeing {
    /// Begins a release. Only the release of a native lock touches several keys.
    pub fn new(is_native: bool) -> Self {
        Self {
            may_free: is_native,
            was_owner: false,
            may_be_freed: false,
            moves: 0,
        }
    }

    /// The release found its slot moving.
    pub fn slot_moves(&mut self) {
        self.moves += 1;
    }

    /// Returns what goes out after an error of the release.
    pub fn next(&self) -> FreeingStep {
        if self.may_free && self.moves >= MOVES_BEFORE_FREE {
            FreeingStep::FreeKey
        } else {
            FreeingStep::Release
        }
    }

    /// Records what the command did that freed the key alone.
    pub fn freed(&mut self, freed: KeyFreed) {
        match freed {
            KeyFreed::Done { was_owner } => (self.may_free, self.was_owner) = (false, was_owner),
            KeyFreed::Unknown => self.may_be_freed = true,
        }
    }

    /// Returns the end of a release whose reply says whether the lock had the key.
    pub fn ended(&self, was_owner: bool) -> ReleaseEnd {
        let was_owner = was_owner || self.was_owner;
        if self.may_be_freed && !was_owner {
            return ReleaseEnd::Unknown;
        }
        ReleaseEnd::Known { was_owner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release that has found its slot moving twice.
    fn moving() -> Freeing {
        let mut freeing = Freeing::new(true);
        for _ in 0..2 {
            assert_eq!(freeing.next(), FreeingStep::Release);
            freeing.slot_moves();
        }
        assert_eq!(freeing.next(), FreeingStep::FreeKey);
        freeing
    }

    fn known(was_owner: bool) -> ReleaseEnd {
        ReleaseEnd::Known { was_owner }
    }

    #[test]
    fn release_in_a_slot_at_rest_says_what_its_reply_says() {
        for was_owner in [false, true] {
            assert_eq!(Freeing::new(true).ended(was_owner), known(was_owner));
        }
    }

    #[test]
    fn key_is_freed_once_and_its_owner_is_remembered() {
        for was_owner in [false, true] {
            let mut freeing = moving();
            freeing.freed(KeyFreed::Done { was_owner });
            freeing.slot_moves();
            assert_eq!(freeing.next(), FreeingStep::Release);
            // The key is gone when the release arrives.
            assert_eq!(freeing.ended(false), known(was_owner));
            assert_eq!(freeing.ended(true), known(true));
        }
    }

    #[test]
    fn refused_freeing_is_tried_again() {
        let freeing = moving();
        assert_eq!(freeing.ended(false), known(false));
        assert_eq!(freeing.next(), FreeingStep::FreeKey);
    }

    /// A later attempt to free the key doesn't find it, whether the first one did so or another client.
    #[test]
    fn freeing_without_a_reply_leaves_the_end_open() {
        let mut freeing = moving();
        freeing.freed(KeyFreed::Unknown);
        assert_eq!(freeing.next(), FreeingStep::FreeKey);
        assert_eq!(freeing.ended(false), ReleaseEnd::Unknown);
        freeing.freed(KeyFreed::Done { was_owner: false });
        assert_eq!(freeing.ended(false), ReleaseEnd::Unknown);
        // Only the lock itself can have had the key.
        assert_eq!(freeing.ended(true), known(true));
        freeing.freed(KeyFreed::Done { was_owner: true });
        assert_eq!(freeing.ended(false), known(true));
    }

    #[test]
    fn lock_of_another_dialect_has_one_key() {
        let mut freeing = Freeing::new(false);
        for _ in 0..9 {
            freeing.slot_moves();
            assert_eq!(freeing.next(), FreeingStep::Release);
        }
    }
}
