//! Where the values of a chart are.

use super::{LEFT, RIGHT, WIDTH};

/// The place for the value beside a point at the left end.
const VALUE: i32 = 48;

/// The scale of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Bars from zero. A bar that is longer than this value is cut.
    FromZero(f64),
    /// Points.
    Logarithmic,
}

/// Where the values are.
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Axis {
    /// Returns the pixel of a value.
    pub(super) fn x(&self, value: f64) -> i32 {
        let value = value.clamp(self.low, self.high);
        let (left, part) = match self.scale {
            Scale::FromZero(_) => (LEFT, value / self.high),
            Scale::Logarithmic => {
                let low = self.low.ln();
                (LEFT + VALUE, (value.ln() - low) / (self.high.ln() - low))
            }
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a pixel is within the picture"
        )]
        let offset = (part * f64::from(WIDTH - RIGHT - left)).round() as i32;
        left + offset
    }

    /// Returns the values with a line: steps of 1, 2 and 5.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::FromZero(_) => {
                let steps =
                    (-3..9).flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(power)));
                let mut steps = steps.filter(|step| self.high / step <= 8.0);
                let step = steps.next().unwrap_or(self.high);
                (0..=8)
                    .map(|n| f64::from(n) * step)
                    .filter(|tick| *tick <= self.high)
                    .collect()
            }
            Scale::Logarithmic => {
                let within = |steps: &[f64]| {
                    let all = (-3..9)
                        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
                    let all = all.filter(|tick| (self.low..=self.high).contains(tick));
                    all.collect::<Vec<_>>()
                };
                let fine = within(&[1.0, 2.0, 5.0]);
                if fine.len() <= 9 {
                    fine
                } else {
                    within(&[1.0])
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, LEFT, RIGHT, Scale, VALUE, WIDTH};

    #[test]
    fn ticks_are_few_and_on_the_axis() {
        let linear = Axis {
            scale: Scale::FromZero(9.0),
            low: 0.0,
            high: 2.6,
        };
        assert_eq!(linear.ticks(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
        let wide = Axis {
            scale: Scale::Logarithmic,
            low: 0.8,
            high: 2e4,
        };
        let is_close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9 * b;
        assert!(
            wide.ticks()
                .iter()
                .zip([1.0, 10.0, 100.0, 1e3, 1e4])
                .all(is_close)
        );
        let narrow = Axis {
            scale: Scale::Logarithmic,
            low: 1.5,
            high: 30.0,
        };
        assert_eq!(narrow.ticks().len(), 4);
    }

    #[test]
    fn the_ends_of_the_axis_are_the_ends_of_the_picture() {
        let linear = Axis {
            scale: Scale::FromZero(9.0),
            low: 0.0,
            high: 2.6,
        };
        assert_eq!((linear.x(0.0), linear.x(2.6)), (LEFT, WIDTH - RIGHT));
        assert_eq!(linear.x(100.0), WIDTH - RIGHT);
        let logarithmic = Axis {
            scale: Scale::Logarithmic,
            low: 0.8,
            high: 2e4,
        };
        let ends = (logarithmic.x(0.8), logarithmic.x(2e4));
        assert_eq!(ends, (LEFT + VALUE, WIDTH - RIGHT));
    }
}
