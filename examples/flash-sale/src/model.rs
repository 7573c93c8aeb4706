//! The state that the page shows. It changes by events only, and does no IO.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::event::Event;
use crate::lock_panel::LockPanel;
use crate::plot::Plot;
use crate::shop::{Outcome, Reply};
use crate::store::Totals;
use crate::verdict::{Kind, Phase, Sale};

mod instance;
mod notice;

use self::instance::Freeze;
pub(crate) use self::instance::{Instance, State};
pub(crate) use self::notice::{EXPERIMENTS, Experiment, Finding, Notice, Tone};

/// How many notices the page shows.
pub(crate) const NOTICES: usize = 50;

/// The switches and the slider of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) lock: bool,
    pub(crate) fence: bool,
    pub(crate) slow: bool,
    pub(crate) rate: u32,
}

/// How many requests ended in which way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    pub(crate) sold_out: u64,
    pub(crate) busy: u64,
    pub(crate) failed: u64,
}

/// An instance that died with the lock.
#[derive(Clone, Copy, Debug)]
struct Death {
    number: usize,
    token: u64,
    at: Instant,
}

#[derive(Debug)]
pub(crate) struct Model {
    started: Instant,
    pub(crate) settings: Settings,
    pub(crate) number: u64,
    pub(crate) sale: Sale,
    pub(crate) counters: Counters,
    pub(crate) in_flight: u64,
    pub(crate) instances: Vec<Instance>,
    pub(crate) plot: Plot,
    pub(crate) notices: VecDeque<Notice>,
    next_notice: u64,
    /// The first token of each sale: the page counts tokens from it.
    first_tokens: BTreeMap<u64, u64>,
    death: Option<Death>,
    pub(crate) lock: LockPanel,
    pub(crate) results: [Option<Finding>; EXPERIMENTS],
}

impl Model {
    pub(crate) fn new(settings: Settings, items: u32, instances: usize) -> Self {
        Self {
            started: Instant::now(),
            settings,
            number: 0,
            sale: Sale {
                items,
                ..Sale::default()
            },
            counters: Counters::default(),
            in_flight: 0,
            instances: vec![Instance::default(); instances],
            plot: Plot::default(),
            notices: VecDeque::new(),
            next_notice: 1,
            first_tokens: BTreeMap::new(),
            death: None,
            lock: LockPanel::default(),
            results: Default::default(),
        }
    }

    /// Begins a sale with the whole stock.
    pub(crate) fn open_sale(&mut self, number: u64, phase: Phase) {
        let items = self.sale.items;
        self.number = number;
        self.sale = Sale {
            phase,
            items,
            totals: Totals {
                left: items.into(),
                sold: 0,
            },
            ..Sale::default()
        };
        self.counters = Counters::default();
        self.in_flight = 0;
        self.death = None;
        for instance in &mut self.instances {
            instance.grants = 0;
            instance.held = None;
            instance.last_token = None;
        }
    }

    pub(crate) fn notice(&mut self, tone: Tone, text: String) {
        if self.notices.len() == NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice {
            id: self.next_notice,
            at: self.started.elapsed().as_secs_f64(),
            tone,
            text,
        });
        self.next_notice += 1;
    }

    /// The number of a token in this sale: 1 is the first grant. The tokens themselves begin with the
    /// server's time in microseconds.
    pub(crate) fn count(&self, token: u64) -> u64 {
        self.count_in(self.number, token)
    }

    fn count_in(&self, sale: u64, token: u64) -> u64 {
        let first = self.first_tokens.get(&sale).copied();
        token.saturating_sub(first.unwrap_or(token)) + 1
    }

    /// Adds a notice that is the result of an experiment.
    fn finding(&mut self, experiment: Experiment, tone: Tone, text: String) {
        self.results[experiment as usize] = Some(Finding {
            tone,
            text: text.clone(),
        });
        self.notice(tone, text);
    }

    /// The instance whose purchase got this token.
    pub(crate) fn holder_of(&self, token: Option<u64>) -> Option<usize> {
        let held = |instance: &Instance| token.is_some() && instance.last_token == token;
        Some(self.instances.iter().position(held)? + 1)
    }

    pub(crate) fn switch_lock(&mut self) {
        self.settings.lock = !self.settings.lock;
        self.on_switch("Lock", self.settings.lock);
    }

    pub(crate) fn switch_fence(&mut self) {
        self.settings.fence = !self.settings.fence;
        self.on_switch("Fencing token", self.settings.fence);
    }

    pub(crate) fn switch_slow(&mut self) {
        self.settings.slow = !self.settings.slow;
        self.on_switch("Slow payment", self.settings.slow);
    }

    fn on_switch(&mut self, name: &str, is_on: bool) {
        let state = if is_on { "on" } else { "off" };
        self.notice(Tone::Info, format!("{name}: {state}."));
    }

    pub(crate) fn instance(&mut self, number: usize) -> &mut Instance {
        // The callers check the number.
        &mut self.instances[number - 1]
    }

    pub(crate) fn serving(&self) -> usize {
        let serves = |instance: &&Instance| instance.state.serves();
        self.instances.iter().filter(serves).count()
    }

    /// Whether requests are sent: until the stock is sold out, and while an experiment runs.
    pub(crate) fn sends(&self) -> bool {
        let busy = |instance: &Instance| matches!(instance.state, State::Chosen | State::Frozen);
        self.sale.phase == Phase::Selling
            && (self.sale.totals.left > 0 || self.instances.iter().any(busy))
    }

    pub(crate) fn on_request(&mut self) {
        self.counters.requests += 1;
        self.in_flight += 1;
        self.plot.request();
        if !self.settings.lock {
            self.sale.without_lock = true;
        }
    }

    /// Counts a reply of this sale. `None` is a request without a reply.
    pub(crate) fn on_reply(&mut self, number: u64, reply: Option<Reply>) {
        if number != self.number {
            return;
        }
        self.in_flight -= 1;
        if let Some(waited) = reply.and_then(|reply| reply.waited_ms) {
            self.plot.wait(waited);
        }
        match reply.map(|reply| reply.outcome) {
            Some(Outcome::Sold | Outcome::Refused) => {}
            Some(Outcome::SoldOut) => self.counters.sold_out += 1,
            Some(Outcome::Busy) => self.counters.busy += 1,
            Some(Outcome::Failed) | None => self.counters.failed += 1,
        }
    }

    pub(crate) fn on_event(&mut self, number: usize, event: Event, now: Instant) {
        match event {
            Event::Ready { pid, address } => {
                let instance = self.instance(number);
                instance.pid = Some(pid);
                instance.address = Some(address);
                instance.state = State::Serving;
            }
            Event::Granted { sale, token } => {
                self.first_tokens.entry(sale).or_insert(token);
                let instance = self.instance(number);
                instance.held = Some(token);
                instance.last_token = Some(token);
                instance.grants += 1;
                self.on_grant(number, token, now);
            }
            Event::Paused { token } => {
                self.instance(number).freeze = Some(Freeze { token, slept: None });
            }
            Event::Ended { token } => {
                let instance = self.instance(number);
                if instance.held == token {
                    instance.held = None;
                }
                self.on_end(number, token);
            }
            Event::WroteLate {
                sale,
                token,
                late_ms,
            } => {
                self.take_freeze(number, Some(token));
                if sale == self.number {
                    self.sale.late_writer = Some(number);
                }
                let late = seconds(Duration::from_millis(late_ms));
                let text =
                    format!("Instance {number} wrote late: the lease had ended {late} before.");
                self.finding(Experiment::FrozenWithoutFence, Tone::Bad, text);
            }
            Event::Refused {
                sale,
                token,
                newest,
            } => {
                if sale == self.number {
                    self.sale.refused += 1;
                }
                let older = format!(
                    "token {} is older than {}",
                    self.count_in(sale, token),
                    self.count_in(sale, newest)
                );
                let text = match self.take_freeze(number, Some(token)) {
                    Some(slept) => format!(
                        "Instance {number} woke up after {}; its late write was refused: {older}.",
                        seconds(slept)
                    ),
                    None => format!("Instance {number}: a late write was refused: {older}."),
                };
                self.finding(Experiment::FrozenWithFence, Tone::Good, text);
            }
        }
    }

    /// The next purchase after a death got the lock.
    fn on_grant(&mut self, number: usize, token: u64, now: Instant) {
        if let Some(death) = self.death
            && death.number != number
            && death.token < token
        {
            self.death = None;
            let after = seconds(now.saturating_duration_since(death.at));
            let text = format!(
                "Instance {} died holding the lock; the next buyer got it after {after}.",
                death.number
            );
            self.finding(Experiment::Killed, Tone::Good, text);
        }
    }

    /// A purchase ended, and neither wrote late nor was refused.
    fn on_end(&mut self, number: usize, token: Option<u64>) {
        if let Some(slept) = self.take_freeze(number, token) {
            let reason = match token {
                None => "it wrote the stock that it had read before: there was no lock.",
                Some(_) => "its lease had not ended.",
            };
            let slept = seconds(slept);
            let text = format!("Instance {number} woke up after {slept}; {reason}");
            self.notice(Tone::Info, text);
        }
    }

    /// Returns how long the instance slept, once for each freeze, if it was in this purchase.
    fn take_freeze(&mut self, number: usize, token: Option<u64>) -> Option<Duration> {
        let freeze = &mut self.instance(number).freeze;
        let slept = freeze.filter(|freeze| freeze.token == token)?.slept?;
        *freeze = None;
        Some(slept)
    }

    pub(crate) fn on_frozen(&mut self, number: usize, token: Option<u64>) {
        self.instance(number).state = State::Frozen;
        let text = match token {
            Some(token) => format!(
                "Instance {number} is frozen while it holds the lock with token {}.",
                self.count(token)
            ),
            None => format!("Instance {number} is frozen in a purchase without a lock."),
        };
        self.notice(Tone::Info, text);
    }

    pub(crate) fn on_woken(&mut self, number: usize, slept: Duration) {
        let instance = self.instance(number);
        instance.state = State::Serving;
        if let Some(freeze) = &mut instance.freeze {
            freeze.slept = Some(slept);
        }
    }

    /// The demo killed an instance in a purchase.
    pub(crate) fn on_killed(&mut self, number: usize, token: Option<u64>, at: Instant) {
        // The next events of the process are its last.
        self.instance(number).state = State::Stopped;
        if let Some(token) = token {
            self.death = Some(Death { number, token, at });
            return;
        }
        let text = format!(
            "Instance {number} died in the middle of a purchase; there was no lock to free."
        );
        self.notice(Tone::Info, text);
    }

    /// All requests have ended, and nothing is left.
    pub(crate) fn on_over(&mut self) {
        self.sale.phase = Phase::Over;
        let verdict = self.sale.verdict();
        let tone = match verdict.kind {
            Kind::Bad => Tone::Bad,
            _ => Tone::Good,
        };
        let experiment = match self.sale {
            Sale {
                without_lock: true, ..
            } => Some(Experiment::LockOff),
            Sale {
                late_writer: None, ..
            } => Some(Experiment::LockOn),
            Sale { .. } => None,
        };
        if let Some(experiment) = experiment {
            let text = verdict.finding().to_owned();
            self.results[experiment as usize] = Some(Finding { tone, text });
        }
        self.notice(tone, format!("Sale {}: {}", self.number, verdict.text));
    }

    pub(crate) fn on_stopped(&mut self, number: usize) {
        *self.instance(number) = Instance {
            state: State::Stopped,
            ..Instance::default()
        };
    }
}

/// Formats a measured time, as in `1.9 s`.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests;
