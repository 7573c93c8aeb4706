//! The sentence at the top of the page: how the sale went.

use serde::Serialize;

use crate::store::Totals;

/// Where a sale is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Ready,
    Selling,
    Over,
}

/// What decides how a sale went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sale {
    pub(crate) phase: Phase,
    pub(crate) items: u32,
    pub(crate) totals: Totals,
    /// Requests were sent with the lock switched off.
    pub(crate) without_lock: bool,
    /// The number of the instance that wrote late.
    pub(crate) late_writer: Option<usize>,
    /// Late writes that the database refused.
    pub(crate) refused: u64,
    /// Instances that serve.
    pub(crate) serving: usize,
}

/// Chooses the colour and the icon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Ready,
    Running,
    Good,
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Verdict {
    /// The part behind the numbers of the sale.
    pub(crate) fn finding(&self) -> &str {
        self.text
            .rsplit_once(" · ")
            .map_or("", |(_, finding)| finding)
    }
}

impl Sale {
    /// The number of orders beyond the stock.
    pub(crate) fn oversold(&self) -> u64 {
        self.totals.sold.saturating_sub(self.items.into())
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let (items, sold, oversold) = (self.items, self.totals.sold, self.oversold());
        let numbers = format!("Stock {items} · Sold {sold}");
        let bad = |reason: String| Verdict {
            kind: Kind::Bad,
            text: format!("{numbers} · Oversold by {oversold}: {reason}"),
        };
        if oversold > 0 {
            return match self.late_writer {
                _ if self.without_lock => bad("two requests read the same stock.".to_owned()),
                Some(number) => bad(format!(
                    "instance {number} wrote after its lease had ended."
                )),
                None => bad("the database changed outside of this sale.".to_owned()),
            };
        }
        let (kind, text) = match self.phase {
            Phase::Ready => (
                Kind::Ready,
                format!("Stock {items} · Ready: press “Start sale”"),
            ),
            Phase::Selling if self.serving == 0 => (
                Kind::Running,
                format!("{numbers} · No instance serves: start one"),
            ),
            // Without numbers: this text is read out, and changes at most once per second.
            Phase::Selling => (Kind::Running, format!("Stock {items} · Selling …")),
            Phase::Over => {
                let reason = if self.without_lock {
                    "by luck: there was no lock"
                } else if self.late_writer.is_some() {
                    "by luck: a late write changed nothing"
                } else if self.refused > 0 {
                    "the fencing token held"
                } else {
                    "the lock held"
                };
                (Kind::Good, format!("{numbers} · Oversold 0 — {reason}"))
            }
        };
        Verdict { kind, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(sold: u64) -> Sale {
        Sale {
            phase: Phase::Over,
            items: 100,
            totals: Totals { left: 0, sold },
            serving: 2,
            ..Sale::default()
        }
    }

    #[track_caller]
    fn check(sale: Sale, kind: Kind, text: &str) {
        let text = text.to_owned();
        assert_eq!(sale.verdict(), Verdict { kind, text });
    }

    #[test]
    fn sold_stock_says_what_held() {
        let text = "Stock 100 · Sold 100 · Oversold 0 — the lock held";
        check(over(100), Kind::Good, text);
        let refused = Sale {
            refused: 1,
            ..over(100)
        };
        let text = "Stock 100 · Sold 100 · Oversold 0 — the fencing token held";
        check(refused, Kind::Good, text);
        let lucky = Sale {
            without_lock: true,
            ..over(100)
        };
        let text = "Stock 100 · Sold 100 · Oversold 0 — by luck: there was no lock";
        check(lucky, Kind::Good, text);
    }

    #[test]
    fn oversold_stock_names_the_cause() {
        let without_lock = Sale {
            without_lock: true,
            ..over(137)
        };
        let text = "Stock 100 · Sold 137 · Oversold by 37: two requests read the same stock.";
        check(without_lock, Kind::Bad, text);
        let late = Sale {
            late_writer: Some(2),
            ..over(160)
        };
        let text =
            "Stock 100 · Sold 160 · Oversold by 60: instance 2 wrote after its lease had ended.";
        check(late, Kind::Bad, text);
    }

    #[test]
    fn open_sales_say_what_comes_next() {
        let ready = Sale {
            phase: Phase::Ready,
            ..over(0)
        };
        check(ready, Kind::Ready, "Stock 100 · Ready: press “Start sale”");
        let selling = Sale {
            phase: Phase::Selling,
            ..over(40)
        };
        check(selling, Kind::Running, "Stock 100 · Selling …");
        let alone = Sale {
            serving: 0,
            ..selling
        };
        let text = "Stock 100 · Sold 40 · No instance serves: start one";
        check(alone, Kind::Running, text);
    }
}
