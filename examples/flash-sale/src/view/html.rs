//! The state of the page as HTML, for a page without a script.

use serde::Serialize;

use super::{InstanceView, View};
use crate::model::{EXPERIMENTS, Finding, Notice};

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
            "instances" => list((1..).zip(&self.instances).map(card)),
            "instance_count" => self.instances.len().to_string(),
            "items" => self.items.to_string(),
            "queue" => list(
                self.queue
                    .iter()
                    .map(|waiter| format!("<li>{}</li>", escaped(waiter))),
            ),
            "rows" => list(self.rows.iter().map(row)),
            "experiments" => list(INSTRUCTIONS.iter().zip(&self.experiments).map(experiment)),
            "log" => list(self.notices.iter().rev().map(log_line)),
            "code" => escaped(shown_code()),
            _ => self
                .texts
                .get(name)
                .map(|text| escaped(text))
                .unwrap_or_default(),
        }
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
    let cells = list(cells.iter().map(|cell| format!("<td>{cell}</td>")));
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
    let code = include_str!("../shop.rs");
    let begin = code.split_once("// begin of the shown code\n");
    let behind = begin.map_or("", |(_, behind)| behind);
    behind
        .split_once("// end of the shown code")
        .map_or("", |(shown, _)| shown)
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().concat()
}
