//! Managers from configurations: files, the environment, overrides, endpoints and names of
//! connections.

use std::fs;
use std::time::Duration;

use lock_core::config::{Credentials, Endpoint, ManagerConfig, Override};
use lock_core::error::{BackendErrorKind, InvalidSetting};
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, NAME, SOON, all_keys, time_to_expiry};
use test_support::{Helper, RedisServer, ServerOptions};
use tests::{acquire_and_release, backend_error_kind};

mod names;
mod overrides;
mod secrets;
mod set_overrides;

/// Returns the text of the guide's code block that begins with these words.
fn example(language: &str) -> String {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../lock-core/docs/configuration.md"
    );
    let page = fs::read_to_string(page).expect("the page exists");
    let fence = format!("```{language}\n");
    let (_, block) = page.split_once(&fence).expect("the page has the example");
    let (block, _) = block.split_once("```").expect("the example ends");
    block.to_owned()
}

/// Returns what a process with these environment variables reads.
fn from_env(variables: &[(&str, &str)], job: &str) -> serde_json::Value {
    let mut process = Helper::new(env!("CARGO_BIN_EXE_lock-worker")).arg(job);
    for (name, value) in variables {
        process = process.env(*name, *value);
    }
    let process = process.spawn();
    assert!(process.wait(SOON).success());
    process.records().pop().expect("the process wrote a record")
}

/// The examples of the guide, in all three forms, say the same as far as they can.
#[test]
fn config_examples_parse() {
    #[derive(serde::Deserialize)]
    struct Settings {
        locks: ManagerConfig,
    }
    let toml: Settings = toml::from_str(&example("toml")).unwrap();
    let json: Settings = serde_json::from_str(&example("json")).unwrap();
    assert_eq!(toml.locks, json.locks);
    let locks = toml.locks;
    assert_eq!(locks.url.as_deref(), Some("redis://redis.internal:6379/2"));
    assert_eq!(locks.default_ttl, Some(Duration::from_secs(20)));
    let times = locks.overrides["order:{order_id}"];
    assert_eq!(times.ttl, Some(Duration::from_secs(10)));
    assert_eq!(times.max_hold, Some(Duration::from_secs(60)));

    let block = example("sh");
    let lines = block
        .lines()
        .filter_map(|line| line.strip_prefix("export "));
    let variables: Vec<_> = lines.filter_map(|line| line.split_once('=')).collect();
    assert_eq!(variables.len(), 10, "{block}");
    let of_env = &from_env(&variables, "config")["config"];
    // The environment has no overrides, dialect, handover and interval.
    let mut expected = ManagerConfig::default();
    (expected.url, expected.prefix) = (locks.url, locks.prefix);
    expected.default_ttl = locks.default_ttl;
    expected.default_wait = locks.default_wait;
    expected.default_max_hold = locks.default_max_hold;
    expected.command_timeout = locks.command_timeout;
    expected.shutdown_timeout = locks.shutdown_timeout;
    expected.lazy = locks.lazy;
    (expected.label, expected.client_name) = (locks.label, locks.client_name);
    assert_eq!(of_env, &format!("{expected:?}"));
}

#[test]
fn unknown_fields_are_named() {
    let error = toml::from_str::<ManagerConfig>("prefx = 'a'").unwrap_err();
    let text = error.to_string();
    let words = "unknown setting `prefx`; did you mean `prefix`?";
    assert!(text.contains(words), "{text}");
    let text = "[overrides.'order:{id}']\nmax_old = '1m'";
    let text = toml::from_str::<ManagerConfig>(text)
        .unwrap_err()
        .to_string();
    let words = "unknown setting `max_old`; did you mean `max_hold`?";
    assert!(text.contains(words), "{text}");
    let json = r#"{"colour": 1}"#;
    let error = serde_json::from_str::<ManagerConfig>(json).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("expected one of `url`, `prefix`"), "{text}");
    let text = toml::from_str::<ManagerConfig>("default_ttl = 30").unwrap_err();
    let text = text.to_string();
    let words = "invalid duration `30`: write it as \"30s\"";
    assert!(text.contains(words), "{text}");
}

/// The attribute reads the same variables as `from_env`.
#[test]
fn attribute_and_from_env_use_all_variables() {
    let server = RedisServer::start();
    let url = server.url();
    let variables = [
        ("DISTRIBUTED_LOCK_URL", url.as_str()),
        ("DISTRIBUTED_LOCK_PREFIX", "shop:"),
        ("DISTRIBUTED_LOCK_DEFAULT_TTL", "10s"),
        ("DISTRIBUTED_LOCK_LABLE", "misspelt"),
    ];
    let record = from_env(&variables, "call");
    assert_eq!(record["done"], true, "{record}");
    assert_eq!(all_keys(&server), ["{shop:called}:f"]);
    let record = from_env(&variables, "from-env");
    assert_eq!(record["key"], "shop:from-env", "{record}");
    let left = record["remaining_ms"].as_u64().unwrap();
    assert!((1..=10_000).contains(&left), "{record}");
    let warning = "did you mean the one in `meant`? variable=\"DISTRIBUTED_LOCK_LABLE\" \
                   meant=\"DISTRIBUTED_LOCK_LABEL\"";
    let trace = record["trace"].as_str().unwrap();
    assert_eq!(trace.matches(warning).count(), 1, "{trace}");
    let broken = [variables[0], ("DISTRIBUTED_LOCK_DEFAULT_WAIT", "5")];
    let record = from_env(&broken, "call");
    let error = record["error"].as_str().unwrap();
    assert!(error.contains("write it as \"5s\""), "{error}");
}

#[tokio::test]
async fn build_needs_exactly_one_server() {
    let server = RedisServer::start();
    let mut config = ManagerConfig::default();
    config.url = Some(server.url());
    config.default_ttl = Some(Duration::from_secs(7));
    let builder = LockManager::builder().config(config);
    let locks = builder.clone().build().await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(time_to_expiry(&server, KEY) <= Duration::from_secs(7));
    held.release().await.unwrap();
    let endpoint = Endpoint::tcp("127.0.0.1", server.port());
    for (built, advice) in [
        (
            LockManager::builder().build().await,
            "set `url` in the configuration",
        ),
        (
            builder.connect_to(endpoint).await,
            "either a URL or an endpoint",
        ),
    ] {
        let error = built.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Manager { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(advice), "{error}");
    }
    // The URL of `connect` replaces that of the configuration.
    let mut config = ManagerConfig::default();
    config.url = Some("redis://nowhere.invalid".into());
    let builder = LockManager::builder().config(config);
    acquire_and_release(&builder.connect(&server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn endpoint_connects_over_tcp_and_a_unix_socket() {
    let server = ServerOptions::default()
        .password("secret")
        .unix_socket()
        .start();
    let url = server.unix_url();
    let path = url.strip_prefix("unix://").unwrap();
    let (path, _) = path.split_once('?').unwrap();
    for endpoint in [
        Endpoint::tcp("localhost", server.port()),
        Endpoint::unix(path),
    ] {
        let right = endpoint.clone().password("secret").db(1);
        let locks = LockManager::builder().connect_to(right).await;
        acquire_and_release(&locks.unwrap()).await;
        let wrong = endpoint.user("app").password("wrong");
        let refused = LockManager::builder().connect_to(wrong).await;
        assert_eq!(
            backend_error_kind(refused),
            BackendErrorKind::Authentication
        );
    }
}

#[tokio::test]
async fn two_sources_of_credentials_are_refused() {
    let provider = || async { Ok::<_, LockError>(Credentials::new("app", "x")) };
    let builder = LockManager::builder().credentials(provider);
    for url in [
        "redis://:secret@h",
        "redis://app@h",
        "unix:///s?pass=secret",
    ] {
        let error = builder.clone().connect(url).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("two sources of credentials"), "{text}");
        let kind = backend_error_kind(Err::<(), _>(error));
        assert_eq!(kind, BackendErrorKind::InvalidUrl);
    }
    let endpoint = Endpoint::tcp("h", 1).password("secret");
    let error = builder.connect_to(endpoint).await.unwrap_err();
    assert!(error.to_string().contains("two sources"), "{error}");
}

#[tokio::test]
async fn invalid_override_is_refused_at_connect() {
    let times = Override::new().ttl(Duration::from_millis(50));
    let builder = LockManager::builder().overrides([("order:{id}", times)]);
    let error = builder.connect("memory://").await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Override { .. })),
        "{text}"
    );
    assert!(
        text.contains("`order:{id}`") && text.contains("100 ms"),
        "{text}"
    );
}

/// Control characters are removed from a label, so nothing may be left of it.
#[tokio::test]
async fn label_without_text_is_refused() {
    let server = RedisServer::start();
    for label in ["", "\u{1b}\n"] {
        let builder = LockManager::builder().label(label);
        for error in [
            builder.clone().connect(&server.url()).await.map(drop),
            builder.in_memory().map(drop),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("invalid setting `label`"), "{error}");
            assert!(error.contains("use the name of the service"), "{error}");
        }
    }
}
