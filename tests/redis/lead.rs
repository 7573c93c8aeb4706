//! Leadership: outages of the server, and the pauses between campaigns.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::config::Override;
use lock_core::error::BackendErrorKind;
use lock_core::request::Term;
use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager, LockName, Renew};
use test_support::fixtures::{KEY, NAME, SOON, ms, queue_length};
use test_support::{RedisServer, eventually_async};
use tests::{assert_nothing_left, in_time};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::connect;

const SECOND: Duration = Duration::from_secs(1);

/// The ttl of the leaders. A leader learns of an outage when it has passed.
const TTL: Duration = SECOND;

/// The terms of all candidates.
#[derive(Default)]
struct Terms {
    tokens: Mutex<Vec<u64>>,
    leading: AtomicUsize,
}

/// A running body. Dropping it ends the count, even when the library drops the body.
struct Leading<'a>(&'a Terms);

impl<'a> Leading<'a> {
    fn begin(terms: &'a Terms, token: u64) -> Self {
        let others = terms.leading.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two leaders at once");
        terms.tokens.lock().unwrap().push(token);
        Self(terms)
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.leading.fetch_sub(1, Ordering::SeqCst);
    }
}

fn token_of(term: &Term) -> u64 {
    let token = term.fencing_token();
    token.expect("every grant has a token").as_u64()
}

impl Terms {
    fn count(&self) -> usize {
        self.tokens.lock().unwrap().len()
    }

    fn leaders(&self) -> usize {
        self.leading.load(Ordering::SeqCst)
    }
}

/// Starts a candidate. The first term of all never ends by itself, and each later one returns its token.
fn start_candidate(locks: &LockManager, terms: &Arc<Terms>) -> JoinHandle<Result<u64, LockError>> {
    let (request, terms) = (locks.lock(NAME).ttl(TTL), Arc::clone(terms));
    tokio::spawn(async move {
        let campaign = request.lead(async |term| {
            let _leading = Leading::begin(&terms, token_of(&term));
            if terms.count() == 1 {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            token_of(&term)
        });
        campaign.await
    })
}

/// The leader and the candidate in the queue go on after the outage. The leader's body is dropped when its lease
/// ends, and not when the server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidates_lead_again_after_an_outage_of_the_server() {
    let server = RedisServer::start();
    let [locks, others] = [connect(&server).await, connect(&server).await];
    let terms = Arc::new(Terms::default());
    let leader = start_candidate(&locks, &terms);
    eventually_async(SOON, async || terms.leaders() == 1).await;
    let standby = start_candidate(&others, &terms);
    eventually_async(SOON, async || queue_length(&server) == 1).await;

    server.kill9();
    let is_dropped = async || {
        while terms.leaders() > 0 {
            tokio::time::sleep(ms(1)).await;
        }
    };
    let dropped = tokio::time::timeout(SOON, in_time(TTL, is_dropped())).await;
    dropped.expect("the body is dropped when the lease ends");
    assert!(!leader.is_finished() && !standby.is_finished());
    assert_eq!(terms.count(), 1, "the server is down");

    server.restart();
    let mut led = Vec::new();
    for candidate in [leader, standby] {
        let term = tokio::time::timeout(SOON, candidate).await;
        led.push(term.expect("the server is back").unwrap().unwrap());
    }
    led.sort_unstable();
    let tokens = terms.tokens.lock().unwrap().clone();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(tokens[1..], led);
    assert_nothing_left(&server, &locks).await;
    assert_nothing_left(&server, &others).await;
}

/// A server that refuses for a moment, as one without memory does, ends no campaign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidate_waits_for_a_server_that_refuses() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    // Sends the scripts.
    tests::acquire_and_release(&locks).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = locks.lock(NAME).acquire().await.unwrap_err();
    let kind = tests::backend_error_kind(Err::<(), _>(error));
    assert_eq!(kind, BackendErrorKind::OutOfMemory);
    let refused = || {
        let errors = server.cli(&["INFO", "errorstats"]);
        let line = errors.text().lines().find(|line| line.contains("_OOM:"));
        line.unwrap_or_default().to_owned()
    };
    let before = refused();
    let leader = tokio::spawn(locks.lock(NAME).lead(async |_| ()));
    eventually_async(SOON, async || refused() != before).await;
    assert!(!leader.is_finished());
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let led = tokio::time::timeout(SOON, in_time(SECOND, leader)).await;
    led.expect("the server accepts again").unwrap().unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Another campaign would fail in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_returns_an_error_that_stays() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["RPUSH", KEY, "x"]);
    let body = async |_| -> () { panic!("the body runs without the lock") };
    let campaign = in_time(ms(100), locks.lock(NAME).lead(body));
    let outcome = tokio::time::timeout(SOON, campaign).await;
    let error = outcome.expect("the campaign ends").unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
}

/// With an override of the wait, a campaign fails after one attempt. The pauses double from 50 ms to 5 s, and each
/// one is up to a quarter shorter.
#[tokio::test(start_paused = true)]
async fn pauses_between_failed_campaigns_end_at_five_seconds() {
    const TEMPLATE: &str = "scheduler:{region}";
    let failed = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&failed);
    let observer = move |event: &LockEvent<'_>| {
        if let LockEvent::NotAcquired { .. } = event {
            seen.lock().unwrap().push(Instant::now());
        }
    };
    let locks = LockManager::builder()
        .overrides([(TEMPLATE, Override::new().wait(Duration::ZERO))])
        .observer(observer)
        .in_memory()
        .unwrap();
    let leader = locks.lock(NAME).acquire().await.unwrap();
    let candidate = locks.lock(LockName::from(NAME).with_template(TEMPLATE));
    let candidate = tokio::spawn(candidate.lead(async |_| Instant::now()));
    tokio::time::sleep(60 * SECOND).await;
    let resigned = Instant::now();
    leader.release().await.unwrap();
    let led = candidate.await.unwrap().unwrap();
    assert!(led - resigned <= 5 * SECOND, "{:?}", led - resigned);
    let failed = failed.lock().unwrap().clone();
    let pauses: Vec<_> = failed.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.len() > 15, "{pauses:?}");
    let mut longest = ms(50);
    for pause in &pauses {
        // A timer of tokio rounds up to a millisecond.
        let range = longest * 3 / 4..=longest + ms(1);
        assert!(range.contains(pause), "{longest:?}: {pauses:?}");
        longest = (longest * 2).min(5 * SECOND);
    }
}

/// Records when it is dropped.
struct Ended<'a>(&'a RefCell<Vec<Instant>>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().push(Instant::now());
    }
}

/// A leader that loses its term is back at once, however often that happens: a success ends the doubling.
#[tokio::test(start_paused = true)]
async fn campaign_after_each_lost_term_begins_within_50_ms() {
    let locks = LockManager::in_memory();
    let (begun, ended) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let request = locks.lock(NAME).ttl(TTL).renew(Renew::Never);
    let campaign = request.lead(async |_| {
        begun.borrow_mut().push(Instant::now());
        let _ended = Ended(&ended);
        if begun.borrow().len() < 12 {
            std::future::pending::<()>().await;
        }
    });
    campaign.await.unwrap();
    let (begun, ended) = (begun.into_inner(), ended.into_inner());
    for (ended, next) in ended.iter().zip(&begun[1..]) {
        let pause = *next - *ended;
        assert!((ms(37)..=ms(51)).contains(&pause), "{pause:?}");
    }
}
