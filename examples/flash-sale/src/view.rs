//! The state of the page as JSON for the script, and as HTML for a page without a script.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::demo::Demo;
use crate::model::{EXPERIMENTS, Finding, Instance, Model, Notice, Settings, State};
use crate::plot::Point;
use crate::verdict::{Kind, Phase};

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

/// What to click for each experiment.
const INSTRUCTIONS: [(&str, &str); EXPERIMENTS] = [
    (
        "Sell without the lock",
        "Switch <em>Lock</em> off, and press <em>Start sale</em>.",
    ),
    (
        "Sell with the lock",
        "Switch <em>Lock</em> on, and press <em>Start sale</em>.",
    ),
    (
        "Freeze the holder",
        "With both switches on, press <em>Freeze 5 s</em>. The lock goes on to another instance after 2 s.",
    ),
    (
        "Freeze it without the token",
        "Switch <em>Fencing token</em> off, and press <em>Freeze 5 s</em>. Now nothing stops the late write.",
    ),
    (
        "Kill the holder",
        "Press <em>Kill</em>. The lock is free at the end of its lease. <em>Start</em> the instance again.",
    ),
];

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

    /// Fills the places of the page: `{{name}}`.
    pub(crate) fn fill(&self, page: &str) -> String {
        let mut out = String::with_capacity(2 * page.len());
        let mut rest = page;
        while let Some((before, behind)) = rest.split_once("{{") {
            let (name, after) = behind.split_once("}}").unwrap_or((behind, ""));
            out.push_str(before);
            out.push_str(&self.html(name));
            rest = after;
        }
        out.push_str(rest);
        out
    }

    fn html(&self, name: &str) -> String {
        match name {
            "kind" => word(self.kind),
            "lock" => self.switches.lock.to_string(),
            "fence" => self.switches.fence.to_string(),
            "slow" => self.switches.slow.to_string(),
            "rate" => self.rate.to_string(),
            "is_oversold" => (self.sold > self.items.into()).to_string(),
            "instances" => (1..).zip(&self.instances).map(card).collect(),
            "instance_count" => self.instances.len().to_string(),
            "items" => self.items.to_string(),
            "queue" => self
                .queue
                .iter()
                .map(|waiter| format!("<li>{}</li>", escaped(waiter)))
                .collect(),
            "rows" => self.rows.iter().map(row).collect(),
            "experiments" => INSTRUCTIONS
                .iter()
                .zip(&self.experiments)
                .map(experiment)
                .collect(),
            "log" => self.notices.iter().rev().map(log_line).collect(),
            "code" => escaped(shown_code()),
            _ => self
                .texts
                .get(name)
                .map(|text| escaped(text))
                .unwrap_or_default(),
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

fn card((number, view): (usize, &InstanceView)) -> String {
    let button = |verb: &str, text: &str, can: bool| {
        let disabled = !can;
        format!(
            "<button name=\"action\" value=\"{verb}-{number}\" aria-disabled=\"{disabled}\" \
             data-verb=\"{verb}\">{text}<span class=\"hidden\"> instance {number}</span></button>"
        )
    };
    let buttons = [
        button("freeze", "Freeze 5 s", view.freeze),
        button("kill", "Kill", view.kill),
        button("start", "Start", view.start),
    ];
    let (state, state_text) = (view.state, view.state_text);
    let (lock, grants, buttons) = (&view.lock, &view.grants, buttons.join(""));
    format!(
        "<div class=\"card\" data-state=\"{state}\"><h3>Instance {number}</h3>\
         <p class=\"state\">{state_text}</p><p class=\"tokens\">{lock}</p>\
         <p class=\"grants\">{grants}</p><div class=\"buttons\">{buttons}</div></div>\n"
    )
}

fn experiment(((title, what), result): (&(&str, &str), &Option<Finding>)) -> String {
    let tone = result
        .as_ref()
        .map_or_else(String::new, |result| word(result.tone));
    let result = result
        .as_ref()
        .map_or("Not tried yet", |result| &result.text);
    let result = escaped(result);
    format!(
        "<li data-tone=\"{tone}\"><h3>{title}</h3><p>{what}</p><p class=\"result\">{result}</p></li>\n"
    )
}

fn log_line(notice: &Notice) -> String {
    let (tone, text) = (word(notice.tone), escaped(&notice.text));
    format!(
        "<li data-tone=\"{tone}\"><span class=\"at\">{:.1} s</span><span>{text}</span></li>",
        notice.at
    )
}

fn row(row: &[String; 4]) -> String {
    let [ago, cells @ ..] = row;
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{cell}</td>"))
        .collect();
    format!("<tr><th scope=\"row\">{ago}</th>{cells}</tr>")
}

/// The word for a kind or a tone, as in the JSON.
fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The part of the shop's code that the page shows.
fn shown_code() -> &'static str {
    let code = include_str!("shop.rs");
    let begin = code.split_once("// begin of the shown code\n");
    let behind = begin.map_or("", |(_, behind)| behind);
    behind
        .split_once("// end of the shown code")
        .map_or("", |(shown, _)| shown)
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
