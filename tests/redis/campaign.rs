//! Campaigns: elections in a loop, without a closure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::request::{Campaign, Leadership};
use lock_core::{Held, Lock, LockError, LockManager, Renew};
use test_support::fixtures::{KEY, NAME, SOON, ms, queue_length};
use test_support::{RedisServer, eventually_async};
use tests::{assert_nothing_left, in_time};
use tokio::task::JoinSet;

use super::connect;

const SECOND: Duration = Duration::from_secs(1);

/// The ttl of the leaders.
const TTL: Duration = SECOND;

fn token_of(term: &Leadership<'_>) -> u64 {
    let token = term.fencing_token();
    token.expect("every grant has a token").as_u64()
}

async fn work(term: &Leadership<'_>) -> u64 {
    tokio::task::yield_now().await;
    assert!(!term.is_lost());
    token_of(term)
}

/// Several processes, each of which leads, works and resigns, again and again. They lead in turn, and never two at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidates_lead_in_turn_and_never_two_at_once() {
    const TERMS: usize = 30;
    let server = RedisServer::start();
    let leading = Arc::new(AtomicUsize::new(0));
    let mut candidates = JoinSet::new();
    let mut managers = Vec::new();
    for _ in 0..3 {
        let locks = connect(&server).await;
        managers.push(locks.clone());
        let leading = Arc::clone(&leading);
        candidates.spawn(async move {
            let mut election = locks.lock(NAME).ttl(TTL).campaign();
            let mut tokens = Vec::new();
            while let Some(term) = election.next().await? {
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                tokens.push(work(&term).await);
                assert_eq!(leading.fetch_sub(1, Ordering::SeqCst), 1);
                if tokens.len() % 2 == 0 {
                    term.resign().await?;
                } else {
                    drop(term);
                }
                if tokens.len() == TERMS {
                    break;
                }
            }
            Ok::<_, LockError>(tokens)
        });
    }
    let mut all = Vec::new();
    while let Some(candidate) = candidates.join_next().await {
        let tokens = candidate.unwrap().unwrap();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        all.extend(tokens);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((count, all.len()), (3 * TERMS, 3 * TERMS));
    for locks in &managers {
        assert_nothing_left(&server, locks).await;
    }
}

/// After `resign` the key is free, without a wait for a background worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_free_when_resign_returns() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut election = locks.lock(NAME).campaign();
    for _ in 0..20 {
        let term = election.next().await.unwrap().unwrap();
        assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 1);
        term.resign().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
    }
    drop(election);
    assert_nothing_left(&server, &locks).await;
}

/// A leader whose server is down ends its term with the lease, and both candidates lead again when the server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaign_goes_on_after_an_outage_of_the_server() {
    let server = RedisServer::start();
    let [locks, others] = [connect(&server).await, connect(&server).await];
    let mut leader = locks.lock(NAME).ttl(TTL).campaign();
    let term = leader.next().await.unwrap().unwrap();
    let first = token_of(&term);
    let standby = tokio::spawn(async move {
        let mut standby = others.lock(NAME).ttl(TTL).campaign();
        let term = standby.next().await?.expect("no shutdown");
        let token = token_of(&term);
        term.resign().await?;
        Ok::<_, LockError>(token)
    });
    eventually_async(SOON, async || queue_length(&server) == 1).await;
    server.kill9();
    in_time(TTL, term.ended()).await;
    assert!(term.is_lost());
    drop(term);
    server.restart();
    let again = async {
        let term = leader.next().await.unwrap().unwrap();
        let token = token_of(&term);
        term.resign().await.unwrap();
        token
    };
    let again = tokio::time::timeout(SOON, again).await.unwrap();
    let standby = tokio::time::timeout(SOON, standby).await.unwrap();
    let standby = standby.unwrap().unwrap();
    assert!(again > first && standby > first && again != standby);
    drop(leader);
    assert_nothing_left(&server, &locks).await;
}

/// A branch of `select!` that loses each time, while two other candidates wait behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_next_keeps_its_place_in_the_queue() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let mut election = locks.lock(NAME).campaign();
    let tick = async |election: &mut Campaign| {
        tokio::select! {
            biased;
            term = election.next() => panic!("the lock is held: {term:?}"),
            () = tokio::time::sleep(ms(5)) => {}
        }
    };
    while queue_length(&server) < 1 {
        tick(&mut election).await;
    }
    let behind = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    while queue_length(&server) < 2 {
        tick(&mut election).await;
    }
    for _ in 0..10 {
        tick(&mut election).await;
    }
    assert_eq!(queue_length(&server), 2);
    held.release().await.unwrap();
    let term = tokio::time::timeout(SOON, election.next()).await;
    let term = term
        .expect("it is the first in the queue")
        .unwrap()
        .unwrap();
    assert!(!behind.is_finished());
    let token = term.fencing_token();
    term.resign().await.unwrap();
    assert!(behind.await.unwrap().unwrap().fencing_token() > token);
    drop(election);
    assert_nothing_left(&server, &locks).await;
}

/// Another attempt would fail in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_returns_an_error_that_stays() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["RPUSH", KEY, "x"]);
    let mut election = locks.lock(NAME).campaign();
    for _ in 0..2 {
        let error = in_time(ms(100), election.next()).await.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    }
    server.cli(&["DEL", KEY]);
    assert!(election.next().await.unwrap().is_some());
}

#[derive(Clone, Lock)]
#[lock(name = "order:{id}", ttl = "1s", wait = "10ms")]
struct Region<'a> {
    id: &'a str,
}

#[derive(Clone, Lock)]
#[lock(name = "region:{id}", mode = read_write)]
struct Shared {
    id: u32,
}

async fn bill(region: &Held<Region<'_>>) -> usize {
    tokio::task::yield_now().await;
    assert!(!region.is_lost());
    region.id.len()
}

/// The term is the proof of a declared lock. The declared wait is that of its calls, not of its candidates.
#[tokio::test]
async fn term_of_a_declared_lock_is_its_proof() {
    let locks = LockManager::in_memory();
    let holder = locks.hold(Region { id: "eu" }).acquire().await.unwrap();
    let candidates = locks.clone();
    let spawned = tokio::spawn(async move {
        let id = String::from("eu");
        let mut election = candidates.hold(Region { id: &id }).campaign();
        let term = election.next().await?.expect("no shutdown");
        let billed = bill(&term).await;
        term.resign().await?;
        let led = candidates.hold(Region { id: &id });
        let led = led.lead(|term| async move { term.name().to_owned() });
        Ok::<_, LockError>((billed, led.await?))
    });
    // Longer than the declared wait.
    tokio::time::sleep(ms(50)).await;
    assert!(!spawned.is_finished());
    holder.release().await.unwrap();
    assert_eq!(spawned.await.unwrap().unwrap(), (2, "order:eu".into()));
    let error = locks.hold_read(Shared { id: 7 }).campaign();
    let error = { error }.next().await.unwrap_err();
    assert_eq!(error.code(), "invalid_kind");
    let waits = locks.hold(Region { id: "eu" }).wait(SECOND);
    let error = waits.campaign().next().await.unwrap_err();
    assert_eq!(error.code(), "invalid_wait");
    let mut writer = locks.hold_write(Shared { id: 7 }).campaign();
    assert_eq!(writer.next().await.unwrap().unwrap().id, 7);
}

#[async_trait::async_trait]
trait Scheduler {
    async fn schedule(&self) -> Result<usize, LockError>;
}

struct Service {
    locks: LockManager,
    sent: AtomicUsize,
}

#[async_trait::async_trait]
impl Scheduler for Service {
    async fn schedule(&self) -> Result<usize, LockError> {
        let mut election = self.locks.lock("k").campaign();
        while let Some(term) = election.next().await? {
            tokio::select! {
                () = term.ended() => {}
                token = work(&term) => {
                    assert!(token > 0);
                    if self.sent.fetch_add(1, Ordering::SeqCst) == 2 {
                        break;
                    }
                }
            }
        }
        Ok(self.sent.load(Ordering::SeqCst))
    }
}

/// The loop compiles in each place in which a service runs it.
#[tokio::test]
async fn campaign_runs_wherever_a_future_has_to_be_send() {
    let service: Arc<dyn Scheduler + Send + Sync> = Arc::new(Service {
        locks: LockManager::in_memory(),
        sent: AtomicUsize::new(0),
    });
    let other = Arc::clone(&service);
    assert_eq!(
        tokio::spawn(async move { other.schedule().await })
            .await
            .unwrap()
            .unwrap(),
        3
    );
    let boxed: std::pin::Pin<Box<dyn Future<Output = _> + Send + '_>> =
        Box::pin(service.schedule());
    drop(boxed);
    // A campaign can be kept, and moved to another task.
    let locks = LockManager::in_memory();
    let mut election: Campaign = locks.lock("k").ttl(TTL).renew(Renew::Never).campaign();
    drop(election.next().await.unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let term = election.next().await.unwrap().unwrap();
        // A task of the leader gets the watch.
        let watch = term.watch();
        tokio::spawn(async move { watch.is_held() }).await.unwrap()
    });
    assert!(tasks.join_next().await.unwrap().unwrap());
}
