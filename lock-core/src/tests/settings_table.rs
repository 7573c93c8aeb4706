//! Compares the table of settings in the guide with the code.

use std::time::Duration;

use crate::config::Settings;
use crate::config::environment::SETTINGS;
use crate::config::manager_config::ManagerConfig;
use lock_protocol::key::MAX_PREFIX;
use lock_protocol::ttl::{MAX_TTL, MIN_TTL};
use lock_protocol::wire::MAX_LABEL;

/// Writes a duration as the attribute does.
fn written(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (0, ms) => format!("{ms}ms"),
        (secs, 0) if secs % 3600 == 0 => format!("{}h", secs / 3600),
        (secs, 0) => format!("{secs}s"),
        (secs, ms) => format!("{secs}s{ms}ms"),
    }
}

/// Returns the shortest duration that the settings accept.
fn shortest(set: fn(&mut Settings, Duration)) -> String {
    let accepts = |duration| {
        let mut settings = Settings::default();
        set(&mut settings, duration);
        settings.check().is_ok()
    };
    let nanosecond = Duration::from_nanos(1);
    let all = [0, 1, 10, 100].map(Duration::from_millis);
    let shortest = all.into_iter().find(|it| accepts(*it)).unwrap();
    assert!(shortest.is_zero() || !accepts(shortest.saturating_sub(nanosecond)));
    match shortest {
        Duration::ZERO => "any".to_owned(),
        shortest => format!("at least {}", written(shortest)),
    }
}

/// The names of the fields, as `Debug` shows them.
fn fields() -> Vec<String> {
    let shown = format!("{:#?}", ManagerConfig::default());
    let lines = shown.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(field, _)| field.trim().to_owned()).collect()
}

/// Returns the variable of a field.
fn variable_of(field: &str) -> Option<String> {
    let variable = format!("DISTRIBUTED_LOCK_{}", field.to_uppercase());
    let is_known = SETTINGS.iter().any(|(name, _)| *name == variable);
    is_known.then_some(variable)
}

#[test]
#[expect(clippy::too_many_lines, reason = "one row for each setting")]
fn guide_has_all_settings_with_their_defaults_and_ranges() {
    let default = Settings::default();
    let shown = (default.dialect, default.handover);
    assert_eq!(format!("{shown:?}"), "(Native, Immediate)");
    let rows = [
        (
            "url",
            "none".into(),
            "see [URLs](crate::guide::redis#urls)".into(),
        ),
        (
            "prefix",
            format!("`{}`", default.prefix),
            format!("at most {MAX_PREFIX} bytes, no brace"),
        ),
        (
            "default_ttl",
            written(default.default_ttl),
            format!("{} to {}", written(MIN_TTL), written(MAX_TTL)),
        ),
        (
            "default_wait",
            written(default.default_wait),
            shortest(|it, wait| it.default_wait = wait) + "; 0s means one attempt",
        ),
        (
            "default_max_hold",
            default.default_max_hold.map_or("none".into(), written),
            "more than `default_ttl`".to_owned(),
        ),
        (
            "command_timeout",
            written(default.command_timeout),
            shortest(|it, timeout| it.command_timeout = timeout),
        ),
        (
            "shutdown_timeout",
            written(default.shutdown_timeout),
            shortest(|it, timeout| it.shutdown_timeout = timeout),
        ),
        (
            "retry_interval",
            written(default.retry_interval),
            shortest(|it, interval| it.retry_interval = interval),
        ),
        (
            "resolve_interval",
            written(default.resolve_interval),
            shortest(|it, interval| it.resolve_interval = interval.max(Duration::from_nanos(1)))
                + "; 0s means never again",
        ),
        (
            "address_map",
            "none".to_owned(),
            "`host:port` to `host:port`, or a host to a host".to_owned(),
        ),
        (
            "label",
            "host and process id".to_owned(),
            format!("at most {MAX_LABEL} bytes; longer ones are cut; must not begin with `revoked by `"),
        ),
        (
            "client_name",
            "`lock:` and the label".to_owned(),
            "visible ASCII; other characters become `_`".to_owned(),
        ),
        (
            "dialect",
            "`native`".to_owned(),
            "`native`, `setnx_expire`, `deadline_getset`, `lua_setnx_expire`, `set_nx_px`, \
             `set_nx_px_watch_multi`, `set_nx_px_conditional`, `set_nx_px_auto`, `redisson`, `redisson_fenced`"
                .to_owned(),
        ),
        (
            "handover",
            "`immediate`".to_owned(),
            "`immediate`, `yield_to_others`".to_owned(),
        ),
        (
            "redact_keys",
            default.redact_keys.to_string(),
            "true, false".to_owned(),
        ),
        (
            "lazy",
            default.lazy.to_string(),
            "true, false".to_owned(),
        ),
        ("overrides", "none".into(), "see [overrides](#overrides)".into()),
    ];
    assert_eq!(rows.each_ref().map(|(field, ..)| *field)[..], fields());
    let row = |(field, default, range): &(&str, String, String)| {
        let variable = variable_of(field).map_or_else(String::new, |it| format!(" `{it}`"));
        format!("| `{field}` |{variable} | {default} | {range} |\n")
    };
    let head = "| Setting | Variable | Default | Range |\n|---|---|---|---|\n";
    let table = format!("{head}{}", rows.each_ref().map(row).concat());
    assert!(
        include_str!("../../docs/configuration.md").contains(&table),
        "docs/configuration.md has an outdated table; replace it with:\n\n{table}"
    );
    let variables = rows.iter().filter_map(|(field, ..)| variable_of(field));
    assert_eq!(variables.count(), SETTINGS.len(), "a variable has no field");
}

#[test]
fn builder_has_a_method_for_each_field_but_the_url() {
    let builder = concat!(
        include_str!("../manager.rs"),
        include_str!("../manager/configured.rs")
    );
    for field in &fields()[1..] {
        let method = match field.as_str() {
            "lazy" => "pub fn connect_lazy(".to_owned(),
            field => format!("pub fn {field}("),
        };
        assert!(builder.contains(&method), "the builder has no `{field}`");
    }
}
