//! Whether and how often a held lock is renewed.

use std::time::Duration;

use crate::ttl::Ttl;

/// Whether and how often a held lock is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Renew {
    /// Renews after every third of the ttl, so that two renewals may fail before the lock is lost.
    #[default]
    Auto,
    /// Never renews: the lock is lost after its ttl.
    Never,
    /// Renews at this interval, from 10 ms to half of the ttl.
    Every(Duration),
}

/// More frequent renewals would load the server without a benefit.
pub const MIN_RENEWAL: Duration = Duration::from_millis(10);

impl Renew {
    /// Returns whether the interval fits the ttl.
    #[doc(hidden)]
    pub fn fits(self, ttl: Ttl) -> bool {
        match self {
            Self::Every(every) => (MIN_RENEWAL..=ttl.as_duration() / 2).contains(&every),
            Self::Auto | Self::Never => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_interval_is_at_most_half_of_the_ttl() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let every = |ms| Renew::Every(Duration::from_millis(ms));
        for fits in [Renew::Auto, Renew::Never, every(500), every(10)] {
            assert!(fits.fits(ttl), "{fits:?}");
        }
        for unfit in [501, 9, 0] {
            assert!(!every(unfit).fits(ttl), "{unfit} ms");
        }
    }
}
