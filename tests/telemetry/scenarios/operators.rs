//! What operators do: they revoke locks, write settings, and change logins.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use lock_core::config::{Credentials, Override};
use lock_core::{LockManager, LockName};
use test_support::fixtures::{LONG, NAME, current_thread_runtime, ms};
use test_support::tls::shown;
use test_support::{Authority, RedisServer, eventually_async};
use tests::{connect, lost_in_time};

use super::Proof;
use crate::subscriber;

const TEMPLATE: &str = "job:{operators}";

pub(super) async fn run(proof: &mut Proof) {
    let server = RedisServer::start();
    revoked(proof, &server).await;
    unused_override(proof).await;
    misspelt(proof);
    logged_out(proof, &server).await;
    unreadable_certificates(proof).await;
    expiring_certificates(proof).await;
}

async fn revoked(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let request = || {
        locks
            .lock(LockName::from(NAME).with_template(TEMPLATE))
            .ttl(ms(900))
    };
    let held = request().acquire().await.unwrap();
    locks.admin().inspect(NAME).await.unwrap();
    proof
        .metric(
            "distributed_lock.command.duration",
            &[("command", "inspect")],
        )
        .await;
    let operator = connect(server).await;
    let admin = operator.admin();
    admin.force_release(NAME).reason("stuck").await.unwrap();
    proof.event("lock.revoked", "WARN").await;
    proof
        .metric("distributed_lock.revocations", &[("mode", "revoke")])
        .await;
    lost_in_time(&held).await;
    proof
        .metric("distributed_lock.losses", &[("reason", "revoked")])
        .await;
    admin.force_release(NAME).free_at_once().await.unwrap();
    proof
        .metric("distributed_lock.revocations", &[("mode", "now")])
        .await;
    let audited = subscriber::events(|event| event.name == "lock.revoked");
    assert_eq!(audited[0].target, "lock_core::audit");
    assert_eq!(audited[0].fields.get("reason"), Some("stuck"));
}

async fn unused_override(proof: &mut Proof) {
    proof.begin();
    // On a clock of its own, because it takes ten minutes.
    let reported = std::thread::spawn(|| {
        current_thread_runtime().block_on(async {
            tokio::time::pause();
            let times = Override::new().ttl(Duration::from_secs(10));
            let builder = LockManager::builder().overrides([("ordr:{id}", times)]);
            let locks = builder.in_memory().unwrap();
            let request = || locks.lock(LockName::from("order:7").with_template("order:{id}"));
            drop(request().acquire().await.unwrap());
            tokio::time::advance(Duration::from_secs(601)).await;
            drop(request().acquire().await.unwrap());
        });
    });
    reported.join().unwrap();
    proof.event("lock.override_unused", "WARN").await;
    let events = subscriber::events(|event| event.name == "lock.override_unused");
    assert_eq!(events[0].fields.get("nearest"), Some("order:{id}"));
}

/// In a process of its own, because a test must not change the environment of the others.
fn misspelt(proof: &mut Proof) {
    let program = std::env::current_exe().unwrap();
    let test = "scenarios::operators::child_with_a_misspelt_variable";
    let output = Command::new(program)
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env("DISTRIBUTED_LOCK_URL", "memory://")
        .env("DISTRIBUTED_LOCK_LABLE", "s3cret")
        .env("DISTRIBUTED_LOCK_DIALECT", "s3cret")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let misspelt =
        "lock.unknown_variable WARN DISTRIBUTED_LOCK_LABLE Some(\"DISTRIBUTED_LOCK_LABEL\") None";
    let unlike =
        "lock.unknown_variable WARN DISTRIBUTED_LOCK_DIALECT None Some(\"DISTRIBUTED_LOCK_URL, ";
    for event in [misspelt, unlike] {
        // Once, although the program connects twice.
        assert_eq!(printed.matches(event).count(), 1, "{event}: {printed}");
    }
    assert!(!printed.contains("s3cret"), "{printed}");
    proof
        .events
        .insert(("lock.unknown_variable".into(), "WARN".into()));
}

#[test]
#[ignore = "`misspelt` runs it as a process of its own"]
fn child_with_a_misspelt_variable() {
    crate::alone(async {
        LockManager::from_env().await.unwrap();
        LockManager::from_env().await.unwrap();
        for event in subscriber::events(|event| event.name == "lock.unknown_variable") {
            let [variable, meant, known] =
                ["variable", "meant", "known"].map(|field| event.fields.get(field));
            let variable = variable.unwrap();
            println!(
                "{} {} {variable} {meant:?} {known:?}",
                event.name, event.level
            );
        }
    });
}

/// The provider fails when the login has to be renewed.
async fn logged_out(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let calls = AtomicU32::new(0);
    let provider = move || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move {
            if call > 2 {
                return Err("the vault is sealed");
            }
            let expires_at = SystemTime::now() + Duration::from_secs(2);
            Ok(Credentials::new("app", "pw").expires_at(expires_at))
        }
    };
    let builder = LockManager::builder().credentials(provider);
    let locks = builder.connect(&server.url()).await.unwrap();
    let held = locks.lock(NAME).ttl(LONG).acquire().await;
    drop(held.unwrap());
    proof.event("lock.login_failed", "WARN").await;
    eventually_async(LONG, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
}

/// A program that renews certificates has emptied a file. New connections use what was read before.
async fn unreadable_certificates(proof: &mut Proof) {
    proof.begin();
    let authority = Authority::new();
    let options = RedisServer::options().tls(&authority, &authority.server(), false);
    let server = options.start();
    let trusted = authority.ca().with_file_name("trusted.pem");
    fs::copy(authority.ca(), &trusted).unwrap();
    let url = format!("{}?ssl_ca_certs={}", server.tls_url(), shown(&trusted));
    let locks = LockManager::connect(&url).await.unwrap();
    fs::write(&trusted, "").unwrap();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually_async(LONG, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
    proof.event("lock.certificates_not_read", "WARN").await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually_async(LONG, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
    let events = subscriber::events(|event| event.name == "lock.certificates_not_read");
    assert_eq!(events.len(), 1, "{events:?}");
}

/// Both sides have a certificate that is valid for two more days.
async fn expiring_certificates(proof: &mut Proof) {
    proof.begin();
    let authority = Authority::new();
    let now = SystemTime::now();
    let day = Duration::from_secs(24 * 3600);
    let end = now + 2 * day;
    let (of_server, of_client) = (
        authority.server_valid(now - 30 * day, end),
        authority.client_until(end),
    );
    let options = RedisServer::options().tls(&authority, &of_server, true);
    let server = options.start();
    let (ca, files) = (shown(&authority.ca()), of_client.parameters());
    let url = format!("{}?ssl_ca_certs={ca}&{files}", server.tls_url());
    let locks = LockManager::connect(&url).await.unwrap();
    proof.event("lock.certificate_expires_soon", "WARN").await;
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually_async(LONG, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
    let events = subscriber::events(|event| event.name == "lock.certificate_expires_soon");
    let owners: Vec<_> = events
        .iter()
        .filter_map(|event| event.fields.get("owner"))
        .collect();
    assert_eq!(owners, ["client", "server"]);
    let file = of_client.certificate.display().to_string();
    assert_eq!(events[0].fields.get("location"), Some(&*file));
    assert_eq!(events[1].fields.get("location"), Some("localhost"));
}
