//! The state of the page, as JSON for the script.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::demo::Demo;
use crate::model::{EXPERIMENTS, Finding, Instance, Model, Notice, Settings, State};
use crate::plot::Point;
use crate::verdict::{Kind, Phase};

mod html;

/// The seconds between two rows of the table, and the points of one second.
const SECONDS_PER_ROW: usize = 5;
const POINTS_PER_SECOND: usize = 4;

/// What the page shows.
#[derive(Debug, Serialize)]
pub(crate) struct View {
    kind: Kind,
    /// Each text has a place in the page with this name.
    texts: BTreeMap<&'static str, String>,
    switches: Switches,
    rate: u32,
    can_start: bool,
    items: u32,
    sold: u64,
    queue: Vec<String>,
    lease: u32,
    instances: Vec<InstanceView>,
    experiments: [Option<Finding>; EXPERIMENTS],
    plot: Plot,
    rows: Vec<[String; 4]>,
    /// Sent as events of their own.
    #[serde(skip)]
    pub(crate) notices: Vec<Notice>,
}

#[derive(Debug, Serialize)]
struct Switches {
    lock: bool,
    fence: bool,
    slow: bool,
}

#[derive(Debug, Serialize)]
struct InstanceView {
    state: &'static str,
    state_text: &'static str,
    lock: String,
    grants: String,
    pid: Option<u32>,
    freeze: bool,
    kill: bool,
    start: bool,
}

#[derive(Debug, Default, Serialize)]
struct Plot {
    rate: Vec<u32>,
    p50: Vec<Option<f64>>,
    p99: Vec<Option<f64>>,
}

impl View {
    pub(crate) fn new(demo: &Demo) -> Self {
        let model = demo.model();
        let points: Vec<_> = model.plot.points().collect();
        Self {
            kind: model.sale.verdict().kind,
            texts: texts(demo, &model),
            switches: Switches {
                lock: model.settings.lock,
                fence: model.settings.fence,
                slow: model.settings.slow,
            },
            rate: model.settings.rate,
            can_start: model.sale.phase != Phase::Selling,
            items: model.sale.items,
            sold: model.sale.totals.sold,
            queue: model.lock.queue.clone(),
            lease: model.lock.left,
            instances: instances(demo, &model),
            experiments: model.results.clone(),
            plot: Plot {
                rate: points.iter().map(|point| point.rate).collect(),
                p50: points.iter().map(|point| point.p50.map(rounded)).collect(),
                p99: points.iter().map(|point| point.p99.map(rounded)).collect(),
            },
            rows: rows(&points),
            notices: model.notices.iter().cloned().collect(),
        }
    }
}

fn texts(demo: &Demo, model: &Model) -> BTreeMap<&'static str, String> {
    let now = model.plot.last();
    let note = match &demo.instances {
        Some(_) => {
            "Freeze stops the process for 5 s (SIGSTOP), kill ends it (SIGKILL): in the \
            middle of a purchase."
        }
        None => "Freeze and kill need processes; they are off with --in-process.",
    };
    BTreeMap::from([
        ("verdict", model.sale.verdict().text),
        ("next", next(model).to_owned()),
        ("left", model.sale.totals.left.to_string()),
        ("sold", model.sale.totals.sold.to_string()),
        ("oversold", model.sale.oversold().to_string()),
        ("busy", model.counters.busy.to_string()),
        ("sold_out", model.counters.sold_out.to_string()),
        ("failed", model.counters.failed.to_string()),
        ("rate_now", now.rate.to_string()),
        ("p50", milliseconds(now.p50)),
        ("p99", milliseconds(now.p99)),
        ("holder", model.lock.holder.clone()),
        ("lease", model.lock.lease.clone()),
        ("waiting", model.lock.waiting.clone()),
        ("note", note.to_owned()),
        ("lock_server", demo.lock_server.clone()),
        ("database", demo.database.to_owned()),
    ])
}

/// What to do or to look at next.
fn next(model: &Model) -> &'static str {
    let Settings { lock, fence, .. } = model.settings;
    let frozen = model.instances.iter().any(|i| i.state == State::Frozen);
    match (model.sale.verdict().kind, model.sale.phase) {
        _ if frozen && lock => {
            "The frozen instance believes that it holds the lock. Its lease ends after 2 s, and another \
             instance goes on."
        }
        (Kind::Bad, _) if model.sale.without_lock => {
            "Each of these buyers paid, and the stock was counted down once for several of them. Switch the \
             lock on, and sell again."
        }
        (Kind::Bad, _) => {
            "The late write put stock back that was sold already. Switch the fencing token on, and freeze \
             again."
        }
        (_, Phase::Ready) if lock => "Sell with the lock first. Then switch it off, and compare.",
        (_, Phase::Ready) => "The lock is off. Watch “Oversold”.",
        (_, Phase::Selling) if !lock => {
            "The lock is off: requests read the stock while others sell."
        }
        (_, Phase::Selling) => "One purchase at a time has the lock. The others wait in a queue.",
        (_, Phase::Over) if model.sale.without_lock => "Sell again: luck does not last.",
        (_, Phase::Over) if model.results[0].is_none() => {
            "Now switch the lock off, and sell again."
        }
        (_, Phase::Over) if model.results[2].is_none() && fence => {
            "Now freeze an instance in the middle of a purchase: “Freeze 5 s”."
        }
        (_, Phase::Over) if model.results[4].is_none() => {
            "Now kill an instance in the middle of a purchase: “Kill”."
        }
        (_, Phase::Over) if model.results.iter().any(Option::is_none) => {
            "Try the other experiments below."
        }
        (_, Phase::Over) => "You have seen all five experiments. Their results are below.",
    }
}

fn instances(demo: &Demo, model: &Model) -> Vec<InstanceView> {
    let has_processes = demo.instances.is_some();
    let view = |instance: &Instance| {
        let (state, state_text) = match instance.state {
            State::Starting => ("starting", "Starting"),
            State::Serving => ("serving", "Serving"),
            State::Chosen => ("chosen", "Waiting for its next purchase"),
            State::Frozen => ("frozen", "Frozen"),
            State::Stopped => ("stopped", "Stopped"),
        };
        let lock = match (instance.state, instance.held, instance.last_token) {
            (State::Frozen, Some(token), _) => {
                format!("believes that it holds token {}", model.count(token))
            }
            (_, Some(token), _) => format!("holds the lock, token {}", model.count(token)),
            (_, None, Some(token)) => format!("last token {}", model.count(token)),
            (_, None, None) => "no token yet".to_owned(),
        };
        let process = match instance.pid {
            Some(pid) if has_processes => format!(" · process {pid}"),
            _ => String::new(),
        };
        InstanceView {
            state,
            state_text,
            lock,
            grants: format!("{} times the holder{process}", instance.grants),
            pid: instance.pid.filter(|_| has_processes),
            freeze: has_processes && instance.state == State::Serving,
            kill: has_processes && instance.state.can_die(),
            start: has_processes && instance.state == State::Stopped,
        }
    };
    model.instances.iter().map(view).collect()
}

/// The rows of the table, newest first.
fn rows(points: &[Point]) -> Vec<[String; 4]> {
    let newest_first = points
        .iter()
        .rev()
        .step_by(SECONDS_PER_ROW * POINTS_PER_SECOND);
    let row = |(number, point): (usize, &Point)| {
        [
            (number * SECONDS_PER_ROW).to_string(),
            point.rate.to_string(),
            milliseconds(point.p50),
            milliseconds(point.p99),
        ]
    };
    newest_first.enumerate().map(row).collect()
}

fn rounded(ms: f64) -> f64 {
    (ms * 10.0).round() / 10.0
}

fn milliseconds(ms: Option<f64>) -> String {
    match ms {
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) => format!("{ms:.0} ms"),
        None => "–".to_owned(),
    }
}

impl Default for View {
    fn default() -> Self {
        Self {
            kind: Kind::Ready,
            texts: BTreeMap::new(),
            switches: Switches {
                lock: true,
                fence: true,
                slow: false,
            },
            rate: 0,
            can_start: false,
            items: 0,
            sold: 0,
            queue: Vec::new(),
            lease: 0,
            instances: Vec::new(),
            experiments: Default::default(),
            plot: Plot::default(),
            rows: Vec::new(),
            notices: Vec::new(),
        }
    }
}
