//! Providers of credentials: passwords that rotate, tokens that expire, and providers that fail.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lock_core::config::{CredentialProvider, Credentials};
use lock_core::error::BackendErrorKind;
use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::{AT_ONCE, LONG, NAME, SOON, current_thread_runtime, ms};
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{Proxy, RedisServer, StandIn, completes_within, eventually_async};
use tests::{acquire_and_release, backend_error_kind, granted, one_attempt, start_waiter};
use tokio::task::JoinSet;

use super::probe;

const SECOND: Duration = Duration::from_secs(1);

/// A provider that a test controls.
#[derive(Clone, Default)]
struct Vault(Arc<VaultState>);

#[derive(Default)]
struct VaultState {
    /// The user, the password and the lifetime.
    current: Mutex<(String, String, Option<SystemTime>)>,
    calls: AtomicUsize,
    fails: AtomicBool,
    delay_ms: AtomicU64,
}

#[derive(Debug)]
struct Sealed;

impl Error for Sealed {}

impl std::fmt::Display for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the vault is sealed")
    }
}

impl Vault {
    fn new(user: &str, password: &str) -> Self {
        let vault = Self::default();
        vault.put(user, password, None);
        vault
    }

    fn put(&self, user: &str, password: &str, expires_at: Option<SystemTime>) {
        let mut current = self
            .0
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *current = (user.to_owned(), password.to_owned(), expires_at);
    }

    fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    fn fail(&self, fails: bool) {
        self.0.fails.store(fails, Ordering::Relaxed);
    }

    fn provider(&self) -> impl CredentialProvider {
        let state = Arc::clone(&self.0);
        move || {
            probe::check("a provider");
            let state = Arc::clone(&state);
            async move {
                state.calls.fetch_add(1, Ordering::Relaxed);
                // A real provider asks a server.
                let delay = 20 + state.delay_ms.load(Ordering::Relaxed);
                tokio::time::sleep(ms(delay)).await;
                if state.fails.load(Ordering::Relaxed) {
                    return Err(Sealed);
                }
                let current = state.current.lock().unwrap_or_else(PoisonError::into_inner);
                let (user, password, expires_at) = &*current;
                let credentials = Credentials::new(user, password);
                Ok(match expires_at {
                    Some(at) => credentials.expires_at(*at),
                    None => credentials,
                })
            }
        }
    }

    fn builder(&self) -> LockManagerBuilder {
        probe::install();
        LockManager::builder().credentials(self.provider())
    }
}

/// Creates a user with all rights on locks.
fn add_user(server: &RedisServer, user: &str, password: &str) {
    let password = format!(">{password}");
    let command = [
        "ACL",
        "SETUSER",
        user,
        "on",
        "resetpass",
        &password,
        "~*",
        "&*",
        "+@all",
    ];
    assert_eq!(server.cli(&command).error(), None);
}

fn url(server: &RedisServer) -> String {
    format!("redis://{}", server.address())
}

/// Each two seconds there is a new user. One second later, the server deletes the old one, and ends
/// all connections of it. Locks are held and waited for on two runtimes meanwhile. No connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotating_credentials() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let vault = Vault::default();
    let rotate = |number: usize| {
        let (user, password) = (format!("app{number}"), format!("secret{number}"));
        add_user(&server, &user, &password);
        vault.put(&user, &password, Some(SystemTime::now() + SECOND * 3));
    };
    rotate(0);
    let locks = vault.builder().connect(&proxy.url()).await.unwrap();
    let holder = |name: &'static str| locks.lock(name).ttl(SECOND * 2);
    let held = holder("held").acquire().await.unwrap();
    let request = holder("held-elsewhere");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let elsewhere = std::thread::spawn(move || {
        current_thread_runtime().block_on(async {
            let held = request.acquire().await.unwrap();
            let _stopped = stopped.await;
            held.release().await
        })
    });
    let end = Instant::now() + SECOND * 20;
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        waiters.spawn(async move {
            let mut sections = 0;
            while Instant::now() < end {
                let held = locks.lock(NAME).ttl(SECOND * 2).wait(SOON).acquire().await;
                tokio::time::sleep(ms(30)).await;
                held.unwrap().release().await.unwrap();
                sections += 1;
            }
            sections
        });
    }
    let mut connections = 0;
    for number in 1..10 {
        tokio::time::sleep(SECOND * 2).await;
        rotate(number);
        tokio::time::sleep(SECOND).await;
        let old = format!("app{}", number - 1);
        assert_eq!(server.cli(&["ACL", "DELUSER", &old]).integer(), 1);
        if number == 1 {
            connections = proxy.accepted();
        }
        if Instant::now() > end {
            break;
        }
    }
    let sections: usize = waiters.join_all().await.into_iter().sum();
    assert!(sections > 50, "{sections}");
    held.release().await.unwrap();
    drop(stop);
    elsewhere.join().unwrap().unwrap();
    let stats = locks.stats();
    assert_eq!((stats.lost, stats.panics), (0, 0), "{stats:?}");
    // Of the first runtime, and of the worker: no connection was made again.
    assert_eq!(proxy.accepted(), connections);
    assert_eq!(connections, 2);
    probe::assert_no_violation();
}

/// The server keeps connections whose credentials have expired, or ends them. A held lock survives
/// both, as long as its lease lasts.
#[tokio::test]
async fn expired_credentials_break_no_held_lease() {
    let server = RedisServer::start();
    add_user(&server, "app", "first");
    let vault = Vault::default();
    vault.put("app", "first", Some(SystemTime::now() + SECOND));
    let locks = vault.builder().connect(&url(&server)).await.unwrap();
    let short = locks.lock("short").ttl(SECOND).acquire().await.unwrap();
    let long = locks.lock("long").ttl(LONG).acquire().await.unwrap();
    // The worker connects while the provider still works.
    let has_worker = async || {
        let list = server.cli(&["CLIENT", "LIST"]);
        list.text().contains(":worker")
    };
    eventually_async(SOON, has_worker).await;
    vault.fail(true);
    let calls = vault.calls();
    tokio::time::sleep(SECOND * 3).await;
    assert!(vault.calls() > calls, "the provider is asked again");
    short.renew().await.unwrap();
    assert!(!short.is_lost() && !long.is_lost());
    acquire_and_release(&locks).await;

    // Without a connection, calls fail by the provider, and the long lease goes on.
    add_user(&server, "app", "second");
    assert!(server.cli(&["CLIENT", "KILL", "USER", "app"]).integer() >= 1);
    let error = eventually_error(&locks, BackendErrorKind::Authentication).await;
    let text = error.to_string();
    assert!(
        text.contains("the provider of credentials failed"),
        "{text}"
    );
    let source = error.source().expect("the provider's error");
    assert!(source.downcast_ref::<Sealed>().is_some(), "{source:?}");
    assert!(!long.is_lost());
    vault.put("app", "second", None);
    vault.fail(false);
    eventually_async(SOON, async || long.renew().await.is_ok()).await;
    long.release().await.unwrap();
    probe::assert_no_violation();
}

/// Tries until an attempt fails in this way.
async fn eventually_error(locks: &LockManager, kind: BackendErrorKind) -> LockError {
    let until = Instant::now() + SOON;
    while Instant::now() < until {
        let outcome = locks.lock("other").try_acquire().await;
        if let Err(error) = outcome
            && backend_error_kind(Err::<(), _>(error.clone())) == kind
        {
            return error;
        }
        tokio::time::sleep(ms(20)).await;
    }
    panic!("no attempt failed with {kind:?}");
}

/// The connections have the rights of the old credentials. Those for commands and for the subscription are
/// replaced.
#[tokio::test]
async fn refused_login_replaces_its_connection() {
    let server = RedisServer::start();
    add_user(&server, "app", "first");
    let vault = Vault::default();
    vault.put("app", "first", Some(SystemTime::now() + SECOND * 2));
    let builder = one_attempt(vault.builder());
    let locks = builder.connect(&url(&server)).await.unwrap();
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    // The first waiter subscribes. No waiter polls while the password is wrong: its call would fail.
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    held.release().await.unwrap();
    let held = granted(SOON, waiting).await;
    let old = subscriptions(&server);
    assert_eq!(old.len(), 1);
    // The provider gives a password that the server does not know. It refuses the renewal of the login,
    // and then the next connection. The right password cures it.
    vault.put("app", "wrong", None);
    eventually_error(&locks, BackendErrorKind::Authentication).await;
    vault.put("app", "first", None);
    eventually_async(SOON, async || held.renew().await.is_ok()).await;
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    assert_eq!(locks.stats().lost, 0);
    let is_replaced = async || {
        let now = subscriptions(&server);
        now.len() == 1 && now != old
    };
    eventually_async(SOON, is_replaced).await;
}

/// A server may repeat the command in its refusal, with escapes.
#[tokio::test]
async fn refusal_of_a_renewed_login_is_told_without_the_password() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let server = RedisServer::start();
    add_user(&server, "app", "first");
    let stand_in = StandIn::start(&server, []);
    let vault = Vault::default();
    vault.put("app", "first", Some(SystemTime::now() + SECOND * 2));
    let builder = one_attempt(vault.builder()).observer(move |event: &LockEvent<'_>| {
        if let LockEvent::LoginFailed { error, .. } = event {
            let cause = error.source().map(ToString::to_string);
            seen.lock().unwrap().push(format!("{error}: {cause:?}"));
        }
    });
    let locks = builder.connect(&stand_in.url()).await.unwrap();
    vault.put("app", "ses\"ame", None);
    let echo = r#"ERR cannot parse AUTH app ses\"ame"#;
    stand_in.set([Quirk::Replies(
        Target::Command("AUTH"),
        Answer::Error(echo.into()),
    )]);
    eventually_async(SOON, async || !told.lock().unwrap().is_empty()).await;
    for text in told.lock().unwrap().iter() {
        assert!(text.contains("cannot parse AUTH app ***"), "{text}");
        assert!(!text.contains("\"ame"), "{text}");
    }
    drop(locks);
}

/// Returns the ids of the connections that are subscribed.
fn subscriptions(server: &RedisServer) -> Vec<String> {
    let list = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let ids = list
        .text()
        .lines()
        .filter_map(|line| line.split(' ').next());
    ids.map(str::to_owned).collect()
}

/// Many runtimes connect at once, and the provider is called once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_dials_share_one_call() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    add_user(&server, "app", "first");
    let vault = Vault::new("app", "first");
    vault.0.delay_ms.store(200, Ordering::Relaxed);
    let builder = vault.builder();
    let locks = builder.connect(&proxy.url()).await.unwrap();
    assert_eq!(vault.calls(), 1);
    let barrier = Arc::new(std::sync::Barrier::new(5));
    let threads: Vec<_> = (0..5)
        .map(|number| {
            let (locks, barrier) = (locks.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let name = format!("job{number}");
                current_thread_runtime().block_on(async {
                    let held = locks.lock(name).acquire().await.unwrap();
                    held.release().await.unwrap();
                });
            })
        })
        .collect();
    let joined = tokio::task::spawn_blocking(|| {
        for thread in threads {
            thread.join().unwrap();
        }
    });
    joined.await.unwrap();
    // The five runtimes share the worker's.
    assert_eq!(proxy.accepted(), 2);
    assert!(vault.calls() <= 3, "{}", vault.calls());
}

#[tokio::test]
async fn provider_that_panics_or_is_slow_fails_the_connection() {
    let server = RedisServer::start();
    let at_the_call: fn() -> std::future::Ready<io::Result<Credentials>> = || panic!("at the call");
    let in_the_future = || async {
        let answer: io::Result<Credentials> = std::future::poll_fn(|_| panic!("in it")).await;
        answer
    };
    for builder in [
        LockManager::builder().credentials(at_the_call),
        LockManager::builder().credentials(in_the_future),
    ] {
        let error = builder.connect(&url(&server)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("provider of credentials panicked"), "{text}");
        let kind = backend_error_kind(Err::<(), _>(error));
        assert_eq!(kind, BackendErrorKind::Authentication);
    }
    let silent = || std::future::pending::<io::Result<Credentials>>();
    let builder = LockManager::builder().credentials(silent);
    let url = url(&server);
    let connecting = builder.command_timeout(ms(200)).connect(&url);
    let error = completes_within(AT_ONCE, connecting).await;
    let error = error
        .expect("it ends with the command timeout")
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("provider of credentials gave no answer"),
        "{text}"
    );
    let kind = backend_error_kind(Err::<(), _>(error));
    assert_eq!(kind, BackendErrorKind::TimedOut);
}

/// An error that panics when it is shown, and when it is dropped.
#[derive(Debug)]
struct Explosive;

impl Error for Explosive {}

impl std::fmt::Display for Explosive {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        probe::check("the text of a provider's error");
        panic!("the text of the error");
    }
}

impl Drop for Explosive {
    fn drop(&mut self) {
        probe::check("the drop of a provider's error");
        assert!(std::thread::panicking(), "the drop of the error");
    }
}

/// The task that renews logins lives on, and asks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_a_provider_that_panics_ends_no_task() {
    probe::install();
    let server = RedisServer::start();
    add_user(&server, "app", "secret");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let provider = move || {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match call {
                0 => {
                    let credentials = Credentials::new("app", "secret");
                    Ok(credentials.expires_at(SystemTime::now() + SECOND))
                }
                1 => Err(Explosive),
                _ => Ok(Credentials::new("app", "secret")),
            }
        }
    };
    let builder = LockManager::builder().credentials(provider);
    let locks = builder.connect(&url(&server)).await.unwrap();
    eventually_async(SOON, async || calls.load(Ordering::Relaxed) == 3).await;
    assert_eq!(locks.stats().panics, 2, "its text, and its drop");
    acquire_and_release(&locks).await;
    locks.shutdown().await.unwrap();
    probe::assert_no_violation();
}

/// An error whose drop panics with a payload whose drop panics.
#[derive(Debug)]
struct Loaded;

impl Error for Loaded {}

impl std::fmt::Display for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no credentials")
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        std::panic::panic_any(Payload);
    }
}

struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("the drop of the payload");
    }
}

/// The caller may keep the error for longer than anything of the manager lives.
#[tokio::test]
async fn error_of_a_provider_may_be_dropped_after_its_manager() {
    let server = RedisServer::start();
    let provider = || std::future::ready(Err::<Credentials, _>(Loaded));
    let builder = LockManager::builder().credentials(provider);
    let error = builder.connect(&url(&server)).await.unwrap_err();
    let cause = error.source().expect("the cause");
    assert!(cause.to_string().contains("no credentials"), "{cause}");
    drop(error);
}
