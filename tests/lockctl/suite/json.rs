//! The outputs of `--json` match their schemas.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use test_support::fixtures::{NAME, SOON};
use test_support::{RedisServer, eventually};

use crate::admin::{hold, share, wait};
use crate::program::Lockctl;

/// The schemas by the texts in their field `schema`.
fn schemas() -> BTreeMap<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lock-cli/schemas");
    let files = std::fs::read_dir(folder).unwrap();
    files
        .map(|file| {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let mut schema: Value = serde_json::from_str(&text).unwrap();
            close(&mut schema);
            (schema["title"].as_str().unwrap().to_owned(), schema)
        })
        .collect()
}

/// Refuses fields that the schema does not name. For users, such a field may be one of a later version.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.contains_key("properties") {
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[test]
fn json_matches_schema() {
    let server = RedisServer::start();
    let mut lines = Vec::new();
    let mut collect = |arguments: &[&str]| {
        let outcome = Lockctl::on(&server, arguments).arg("--json").run();
        assert_eq!(outcome.stderr, "", "{arguments:?}");
        assert_ne!(outcome.stdout, "", "{arguments:?}");
        lines.extend(outcome.stdout.lines().map(ToOwned::to_owned));
    };
    let watch = Lockctl::on(&server, &["watch", "*", "--interval", "20ms", "--json"]).start();
    collect(&["show", NAME]);
    collect(&["release", NAME, "--yes"]);
    collect(&["run"]);
    let holder = hold(&server, NAME, "web-1:42");
    let waiter = wait(&server, "web-2:7");
    server.cli(&["SET", "lock:theirs", "uuid", "PX", "60000"]);
    server.cli(&["SET", "lock:for-ever", "uuid"]);
    server.cli(&["SADD", "lock:set", "member"]);
    collect(&["show", NAME]);
    collect(&["show", "theirs"]);
    collect(&["show", "for-ever"]);
    collect(&["show", "set"]);
    share(&server, "shared");
    collect(&["show", "shared"]);
    collect(&["list", "--all"]);
    let nightly = [
        "run",
        "--name",
        "nightly",
        "--min-hold",
        "20s",
        "--",
        "true",
    ];
    assert_eq!(Lockctl::on(&server, &nightly).run().code, Some(0));
    collect(&["show", "nightly"]);
    collect(&["list", "-q"]);
    collect(&["release", NAME, "--yes", "--token", "1"]);
    collect(&["release", NAME, "--yes", "--reason", "stuck import"]);
    collect(&["show", NAME]);
    collect(&["list", "-q"]);
    collect(&["doctor"]);
    // One of its servers is down.
    let second = RedisServer::start();
    let hosts = [server.address(), second.address()].map(|it| it.to_string());
    let quorum = format!("redis+quorum://{},127.0.0.1:1", hosts.join(","));
    collect(&["--url", &quorum, "doctor"]);
    collect(&["--url", "redis://127.0.0.1:1", "list", "-v"]);
    holder.wait();
    waiter.line("ran");
    waiter.signal(Signal::TERM);
    let key = |text: &str| watch.stdout().contains(text);
    eventually(SOON, || {
        key("\"change\":\"blocked\"") && key("\"change\":\"free\"")
    });
    watch.signal(Signal::TERM);
    lines.extend(watch.wait().stdout.lines().map(ToOwned::to_owned));

    let schemas = schemas();
    let mut seen = BTreeMap::<String, usize>::new();
    for line in &lines {
        let value: Value = serde_json::from_str(line).unwrap();
        let name = value["schema"].as_str().unwrap();
        assert!(line.starts_with("{\"schema\":\""), "{line}");
        let schema = schemas
            .get(name)
            .unwrap_or_else(|| panic!("no schema {name}"));
        let validator = jsonschema::validator_for(schema).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(&value)
            .map(|fault| fault.to_string())
            .collect();
        assert!(faults.is_empty(), "{line}: {faults:#?}");
        *seen.entry(name.to_owned()).or_default() += 1;
    }
    // Each schema has been used.
    assert_eq!(
        seen.keys().collect::<Vec<_>>(),
        schemas.keys().collect::<Vec<_>>()
    );
    let shared = lines.iter().find(|line| line.contains("\"holders\""));
    let shared: Value = serde_json::from_str(shared.expect("a shared lock")).unwrap();
    assert_eq!(
        (&shared["holding"], &shared["holder"]["kind"]),
        (&5.into(), &"8 permits".into())
    );
    assert_eq!(shared["holders"][0]["kind"], "4 of 8 permits");
    for state in ["free", "held", "kept", "blocked", "foreign"] {
        let state = format!("\"state\":\"{state}\"");
        assert!(lines.iter().any(|line| line.contains(&state)), "{state}");
    }
}
