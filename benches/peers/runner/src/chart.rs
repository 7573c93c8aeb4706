//! A chart with one line for each library, as SVG.

mod axis;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use axis::Axis;

pub(crate) use axis::Scale;

/// In pixels of the SVG.
const WIDTH: i32 = 760;
/// Without a legend.
const TOP: i32 = 52;
const LEGEND: i32 = 24;
const BOTTOM: i32 = 58;
const LEFT: i32 = 166;
const RIGHT: i32 = 72;
const LINE: i32 = 27;

/// In points: the backend writes three quarters of it as pixels.
const LARGE: i32 = 21;
const MEDIUM: i32 = 17;
const SMALL: i32 = 16;

const TEXT: RGBColor = RGBColor(31, 41, 55);
const FAINT: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);
const BAND: RGBColor = RGBColor(239, 246, 255);
const OURS: RGBColor = RGBColor(29, 78, 216);

/// From the first to the last series.
const SHADES: [RGBColor; 3] = [
    RGBColor(203, 213, 225),
    RGBColor(148, 163, 184),
    RGBColor(71, 85, 105),
];
const SHADES_OF_OURS: [RGBColor; 3] = [
    RGBColor(147, 197, 253),
    RGBColor(96, 165, 250),
    RGBColor(29, 78, 216),
];

/// Why a line has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is greater than the text says.
    Longer(String),
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct ChartRow {
    pub(crate) label: String,
    pub(crate) is_ours: bool,
    /// For each series.
    pub(crate) values: Vec<Option<f64>>,
    pub(crate) missing: Option<Missing>,
}

impl ChartRow {
    /// Returns the value that sorts the lines: that of the last series.
    pub(crate) fn order(&self) -> f64 {
        self.values
            .last()
            .copied()
            .flatten()
            .unwrap_or(f64::INFINITY)
    }
}

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) axis: &'static str,
    pub(crate) scale: Scale,
    pub(crate) series: Vec<&'static str>,
    pub(crate) rows: Vec<ChartRow>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

impl Chart {
    pub(crate) fn draw(&self) -> Result<String, String> {
        let lines = i32::try_from(self.rows.len()).map_err(|e| e.to_string())?;
        let bottom = self.top() + lines * LINE;
        let mut svg = String::new();
        let size = (WIDTH.cast_unsigned(), (bottom + BOTTOM).cast_unsigned());
        self.draw_to(
            &SVGBackend::with_string(&mut svg, size).into_drawing_area(),
            bottom,
        )
        .map_err(|e| e.to_string())?;
        // In a page, the plot is not wider than the text.
        let style = format!(
            "<svg role=\"img\" aria-label=\"{}\" style=\"max-width:100%;height:auto\" ",
            self.title
        );
        let svg = svg.replacen("<svg ", &style, 1);
        let lines = svg
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        Ok(lines.fold(String::new(), |svg, line| svg + line + "\n"))
    }

    fn draw_to(&self, area: &Area<'_>, bottom: i32) -> Drawn {
        area.fill(&WHITE)?;
        let title = ("sans-serif", LARGE)
            .into_font()
            .style(FontStyle::Bold)
            .color(&TEXT);
        area.draw(&Text::new(self.title, (16, 14), title))?;
        let axis = self.axis();
        for tick in axis.ticks() {
            let x = axis.x(tick);
            area.draw(&PathElement::new(vec![(x, self.top()), (x, bottom)], GRID))?;
            text(area, &short(tick), (x, bottom + 14), HPos::Center, FAINT)?;
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2;
        text(area, self.axis, (middle, bottom + 38), HPos::Center, FAINT)?;
        self.legend(area)?;
        for (row, top) in self
            .rows
            .iter()
            .zip((self.top()..).step_by(LINE.cast_unsigned() as usize))
        {
            self.row(area, &axis, row, top)?;
        }
        area.present()
    }

    /// Returns where the first line begins.
    fn top(&self) -> i32 {
        let has_legend = self.series.len() > 1;
        TOP + if has_legend { LEGEND } else { 0 }
    }

    fn axis(&self) -> Axis {
        let values = self
            .rows
            .iter()
            .flat_map(|row| row.values.iter().flatten().copied());
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        match self.scale {
            Scale::FromZero(longest) => Axis {
                scale: self.scale,
                low: 0.0,
                high: high.min(longest),
            },
            // Zero has no place on this scale.
            Scale::Logarithmic => {
                let low = low.clamp(0.001, 1e9);
                Axis {
                    scale: self.scale,
                    low,
                    high: high.max(low * 2.0),
                }
            }
        }
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        if self.series.len() < 2 {
            return Ok(());
        }
        for (at, (number, name)) in (0..).zip(self.series.iter().enumerate()) {
            let x = LEFT + 6 + at * 120;
            area.draw(&Circle::new((x, 54), 5, self.shade(number, false).filled()))?;
            area.draw(&Circle::new(
                (x + 13, 54),
                5,
                self.shade(number, true).filled(),
            ))?;
            text(area, name, (x + 24, 54), HPos::Left, TEXT)?;
        }
        Ok(())
    }

    /// Returns the colour of a series: the last one is the darkest.
    fn shade(&self, series: usize, is_ours: bool) -> RGBColor {
        let shades = if is_ours { SHADES_OF_OURS } else { SHADES };
        // Of two series, the first has the lightest colour.
        let is_last = series + 1 == self.series.len();
        shades[if is_last { shades.len() - 1 } else { series }]
    }

    fn row(&self, area: &Area<'_>, axis: &Axis, row: &ChartRow, top: i32) -> Drawn {
        let y = top + LINE / 2;
        let color = if row.is_ours { OURS } else { TEXT };
        if row.is_ours {
            let band = [(8, top + 1), (WIDTH - 8, top + LINE - 1)];
            area.draw(&Rectangle::new(band, BAND.filled()))?;
        }
        let mut label = ("sans-serif", MEDIUM).into_font().color(&color);
        if row.is_ours {
            label = ("sans-serif", MEDIUM)
                .into_font()
                .style(FontStyle::Bold)
                .color(&color);
        }
        let label = label.pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(row.label.as_str(), (LEFT - 12, y), label))?;

        let points = row.values.iter().enumerate();
        let points = points.filter_map(|(series, value)| value.map(|value| (series, value)));
        let points: Vec<_> = points.collect();
        match self.scale {
            Scale::FromZero(_) => {
                for (series, value) in &points {
                    let end = axis.x(*value);
                    let bar = [(axis.x(0.0), y - 7), (end, y + 7)];
                    let shade = self.shade(*series, row.is_ours);
                    area.draw(&Rectangle::new(bar, shade.filled()))?;
                    if *value > axis.high {
                        // Shows that the bar is cut.
                        let cut = vec![(end - 18, y + 9), (end - 12, y - 9)];
                        area.draw(&PathElement::new(cut, WHITE.stroke_width(4)))?;
                    }
                }
            }
            Scale::Logarithmic => {
                if let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) {
                    let line = vec![(axis.x(*first), y), (axis.x(*last), y)];
                    area.draw(&PathElement::new(
                        line,
                        self.shade(0, row.is_ours).stroke_width(3),
                    ))?;
                }
                for (series, value) in &points {
                    let shade = self.shade(*series, row.is_ours);
                    area.draw(&Circle::new((axis.x(*value), y), 5, shade.filled()))?;
                }
            }
        }
        let values = || points.iter().map(|(_, value)| *value);
        let (least, most) = (values().reduce(f64::min), values().reduce(f64::max));
        if let Some(most) = most {
            text(
                area,
                &three_digits(most),
                (axis.x(most) + 10, y),
                HPos::Left,
                color,
            )?;
        }
        if let Some(least) = least.filter(|least| points.len() > 1 && Some(*least) != most) {
            text(
                area,
                &three_digits(least),
                (axis.x(least) - 10, y),
                HPos::Right,
                color,
            )?;
        }
        if let Some(Missing::Longer(limit)) = &row.missing {
            text(area, limit, (WIDTH - 16, y), HPos::Right, FAINT)?;
        }
        Ok(())
    }
}

fn text(area: &Area<'_>, text: &str, at: (i32, i32), side: HPos, color: RGBColor) -> Drawn {
    let style = ("sans-serif", SMALL).into_font().color(&color);
    area.draw(&Text::new(
        text,
        at,
        style.pos(Pos::new(side, VPos::Center)),
    ))
}

/// Returns a number with three digits, or more before the point.
fn three_digits(value: f64) -> String {
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// Returns a number without zeros at its end, for a line of the axis.
fn short(value: f64) -> String {
    let text = three_digits(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{short, three_digits};

    #[test]
    fn numbers_have_three_digits() {
        let values = [0.5, 1.234, 12.34, 1234.5].map(three_digits);
        assert_eq!(values, ["0.50", "1.23", "12.3", "1234"]);
        assert_eq!([0.5, 1.0, 100.0, 0.0].map(short), ["0.5", "1", "100", "0"]);
    }
}
