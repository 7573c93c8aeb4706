//! The clocks of the processes, which run at different rates.

use lock_testing::Nanos;
use test_support::Random;

use super::sabotage::Sabotage;
use crate::clock::Moment;

/// The server's clock is the true time. A client's clock is less than 1 % faster or slower.
const WORST_PPM: i64 = 9_900;
/// More than the margin of the leases allows.
const WILD_PPM: i64 = 80_000;
const MILLION: i128 = 1_000_000;

/// The clock of one process: an offset and a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct SkewedClock {
    offset: u64,
    /// How much faster than the true time it runs, in millionths.
    ppm: i64,
}

impl SkewedClock {
    pub(super) fn new(random: &mut Random, sabotage: Option<Sabotage>) -> Self {
        let worst = match sabotage {
            Some(Sabotage::WildClocks) => WILD_PPM,
            _ => WORST_PPM,
        };
        // The extreme rates find more than those between.
        let ppm = *random.pick(&[worst, -worst, 0, worst / 10, -worst / 10]);
        let offset = random.number() % 1_000_000_000_000_000;
        Self { offset, ppm }
    }

    /// Returns what the clock shows at a true time.
    pub(super) fn at(&self, now: Nanos) -> Moment {
        Moment::from_nanos(self.offset + self.elapsed(now))
    }

    fn elapsed(&self, now: Nanos) -> u64 {
        let scaled = i128::from(now) * (MILLION + i128::from(self.ppm)) / MILLION;
        u64::try_from(scaled).unwrap_or(u64::MAX / 4)
    }

    /// Returns the first true time at which the clock shows this moment.
    pub(super) fn when(&self, moment: Moment) -> Nanos {
        let elapsed = i128::from(moment.as_nanos().saturating_sub(self.offset));
        let rate = MILLION + i128::from(self.ppm);
        let scaled = elapsed * MILLION / rate;
        let mut when = u64::try_from(scaled)
            .unwrap_or(u64::MAX / 4)
            .min(u64::MAX / 4);
        while self.at(when) < moment && when < u64::MAX / 8 {
            when += 1;
        }
        when
    }
}

#[test]
fn clock_shows_a_moment_not_before_its_time() {
    let mut random = Random::new(3);
    for _ in 0..1_000 {
        let clock = SkewedClock::new(&mut random, None);
        let moment = Moment::from_nanos(clock.offset + random.number() % 1_000_000_000_000);
        let when = clock.when(moment);
        assert!(clock.at(when) >= moment);
        assert!(when == 0 || clock.at(when - 1) < moment);
    }
}
