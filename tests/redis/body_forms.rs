//! The forms in which users write the bodies of `lead` and `run`, and where they run them: each one compiles, and
//! its lock is free afterwards.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::request::Term;
use lock_core::{FencingToken, Held, Lock, LockError, LockManager, Renew};
use tokio::task::JoinSet;

const SECOND: Duration = Duration::from_secs(1);

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send + 'a>>;
type Body = dyn FnMut(Term) -> Pin<Box<dyn Future<Output = String> + Send>> + Send;

/// What a leader works on.
#[derive(Default)]
struct Bills {
    sent: AtomicUsize,
}

/// A body that is a function, and borrows what it works on.
async fn send(term: Term, bills: &Bills) -> Result<Option<FencingToken>, LockError> {
    tokio::task::yield_now().await;
    bills.sent.fetch_add(1, Ordering::SeqCst);
    assert!(term.is_held());
    Ok(term.fencing_token())
}

/// A function that leads, with everything borrowed: its future is `Send`.
async fn lead(locks: &LockManager, bills: &Bills) -> Result<Option<FencingToken>, LockError> {
    let election = locks.lock("k");
    election.lead(|term| send(term, bills)).await?
}

async fn assert_free(locks: &LockManager) {
    let free = locks.lock("k").try_acquire().await.unwrap();
    assert!(free.is_some());
}

#[tokio::test]
async fn lead_runs_in_a_spawned_task() {
    let locks = LockManager::in_memory();
    let bills = Arc::new(Bills::default());
    // The task owns what the body borrows.
    let owned = (locks.clone(), Arc::clone(&bills));
    let spawned = tokio::spawn(async move { lead(&owned.0, &owned.1).await });
    assert!(spawned.await.unwrap().unwrap().is_some());
    let owned = (locks.clone(), Arc::clone(&bills));
    let spawned = tokio::spawn(async move {
        let election = owned.0.lock("k").ttl(SECOND);
        election.lead(async |term| send(term, &owned.1).await).await
    });
    assert!(spawned.await.unwrap().unwrap().unwrap().is_some());
    // The body owns it.
    let owned = Arc::clone(&bills);
    let election = locks.lock("k").lead(move |term| {
        let bills = Arc::clone(&owned);
        async move { send(term, &bills).await }
    });
    assert!(tokio::spawn(election).await.unwrap().unwrap().is_ok());
    // The body owns nothing.
    let election = locks.lock("k").lead(async |term| term.fencing_token());
    assert!(tokio::spawn(election).await.unwrap().unwrap().is_some());
    assert_eq!(bills.sent.load(Ordering::SeqCst), 3);
    assert_free(&locks).await;
}

#[tokio::test]
async fn leads_run_in_a_join_set() {
    let locks = LockManager::in_memory();
    let bills = Arc::new(Bills::default());
    let mut candidates = JoinSet::new();
    for number in 0..3 {
        let (locks, bills) = (locks.clone(), Arc::clone(&bills));
        candidates.spawn(async move {
            let election = locks.lock("k");
            let led = election.lead(|term| {
                let bills = &bills;
                async move {
                    send(term, bills).await?;
                    Ok::<_, LockError>(number)
                }
            });
            led.await?
        });
    }
    let mut led = candidates.join_all().await;
    led.sort_by_key(|number| *number.as_ref().unwrap());
    assert_eq!(
        led.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(bills.sent.load(Ordering::SeqCst), 3);
    assert_free(&locks).await;
}

#[tokio::test]
async fn lead_is_a_boxed_future() {
    let locks = LockManager::in_memory();
    let bills = Bills::default();
    let boxed: Vec<Boxed<'_, Result<Option<FencingToken>, LockError>>> = vec![
        Box::pin(locks.lock("k").lead(|term| send(term, &bills))),
        Box::pin(locks.lock("k").lead(async |term| send(term, &bills).await)),
        Box::pin(async { Ok(lead(&locks, &bills).await) }),
    ];
    for leading in boxed {
        assert!(leading.await.unwrap().unwrap().is_some());
    }
    // The body itself in a box, as a struct keeps it.
    let body: Box<Body> = Box::new(|term| Box::pin(async move { term.key().to_owned() }));
    let leading = tokio::spawn(locks.lock("k").lead(body));
    assert_eq!(leading.await.unwrap().unwrap(), "lock:k");
    assert_free(&locks).await;
}

#[async_trait::async_trait]
trait Scheduler {
    async fn schedule(&self, job: &str) -> Result<String, LockError>;
}

struct Service {
    locks: LockManager,
    bills: Bills,
    name: String,
}

impl Service {
    async fn step(&self, term: &Term, job: &str) -> String {
        tokio::task::yield_now().await;
        format!("{}: {job} under {}", self.name, term.key())
    }
}

#[async_trait::async_trait]
impl Scheduler for Service {
    async fn schedule(&self, job: &str) -> Result<String, LockError> {
        send_all(self.locks.lock("k"), &self.bills).await?;
        let election = self.locks.lock("k");
        let done = election.lead(async |term| self.step(&term, job).await);
        done.await
    }
}

async fn send_all(election: lock_core::LockRequest, bills: &Bills) -> Result<(), LockError> {
    let sent = election.lead(|term| send(term, bills)).await?;
    sent.map(drop)
}

#[tokio::test]
async fn lead_runs_under_async_trait() {
    let service: Arc<dyn Scheduler + Send + Sync> = Arc::new(Service {
        locks: LockManager::in_memory(),
        bills: Bills::default(),
        name: "billing".into(),
    });
    let other = Arc::clone(&service);
    let spawned = tokio::spawn(async move { other.schedule("close").await });
    assert_eq!(
        spawned.await.unwrap().unwrap(),
        "billing: close under lock:k"
    );
    assert!(service.schedule("open").await.is_ok());
}

/// The part of the closure before its future may change what it borrows.
#[tokio::test(start_paused = true)]
async fn lead_counts_its_terms_by_a_mutable_borrow() {
    let locks = LockManager::in_memory();
    let request = locks.lock("k").ttl(SECOND).renew(Renew::Never);
    let counted = tokio::spawn(async move {
        let mut terms = 0;
        let mut tokens = Vec::new();
        let election = request.lead(|term| {
            terms += 1;
            tokens.extend(term.fencing_token());
            let is_last = terms == 3;
            async move {
                if !is_last {
                    std::future::pending::<()>().await;
                }
            }
        });
        election.await.map(|()| (terms, tokens))
    });
    let (terms, tokens) = counted.await.unwrap().unwrap();
    assert_eq!(terms, 3);
    assert!(tokens.is_sorted() && tokens.len() == 3, "{tokens:?}");
    assert_free(&locks).await;
}

/// A future that is not `Send` needs no form of its own.
#[tokio::test]
async fn lead_borrows_its_environment_where_it_is_not_spawned() {
    let locks = LockManager::in_memory();
    let seen = std::cell::RefCell::new(Vec::new());
    let word = String::from("leads");
    let led = locks.lock("k").lead(async |term| {
        seen.borrow_mut().push(word.as_str());
        tokio::task::yield_now().await;
        term.fencing_token()
    });
    assert!(led.await.unwrap().is_some());
    assert_eq!(seen.into_inner(), [word.as_str()]);
    assert_free(&locks).await;
}

/// A clone of the term may outlive the body. It holds nothing, and cannot get the lock back.
#[tokio::test]
async fn term_that_outlives_its_body_holds_no_lock() {
    let locks = LockManager::in_memory();
    let kept = locks.lock("k").lead(async |term| term).await.unwrap();
    let next = locks.lock("k").try_acquire().await.unwrap();
    let next = next.expect("the end of the body released the lock");
    assert!(!kept.is_held() && !kept.is_lost());
    let error = kept.renew().await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    drop(kept);
    assert!(!next.is_lost());
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
}

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OrderLock<'a> {
    id: &'a str,
}

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OwnedLock {
    id: String,
}

async fn charge(order: &Held<OrderLock<'_>>) -> usize {
    tokio::task::yield_now().await;
    assert!(!order.is_lost());
    order.id.len()
}

/// The bodies of `run` borrow what they need, also in a spawned task.
#[tokio::test]
async fn run_borrows_its_environment_in_a_spawned_task() {
    let locks = LockManager::in_memory();
    let spawned = tokio::spawn(async move {
        let word = String::from("seven");
        let mut calls = 0;
        let one = locks.lock("k").run(async |held| {
            tokio::task::yield_now().await;
            calls += 1;
            word.len() + held.key().len()
        });
        let one = one.await?;
        let both = locks.lock_all(["a", "b"]).run(async |both| {
            tokio::task::yield_now().await;
            calls += 1;
            both.guards().len() + word.len()
        });
        let both = both.await?;
        let id = "seven".to_owned();
        let owned = locks.hold(OwnedLock { id }).run(async |order| {
            tokio::task::yield_now().await;
            calls += 1;
            order.id.len() + word.len()
        });
        Ok::<_, LockError>((one, both, owned.await?, calls))
    });
    assert_eq!(spawned.await.unwrap().unwrap(), (11, 7, 10, 3));
}

/// A body over a declared lock that borrows: a variable with the type of its parameter, or a function.
#[tokio::test]
async fn run_of_a_declared_lock_that_borrows_is_spawned() {
    let locks = LockManager::in_memory();
    let spawned = tokio::spawn(async move {
        let (id, mut word) = (String::from("seven"), String::from("x"));
        let by_name = locks.hold(OrderLock { id: &id }).run(charge).await?;
        let body = async |order: &Held<OrderLock<'_>>| {
            let length = charge(order).await;
            word.push('y');
            length + word.len()
        };
        let by_variable = locks.hold(OrderLock { id: &id }).run(body).await?;
        Ok::<_, LockError>((by_name, by_variable, word))
    });
    let done = spawned.await.unwrap().unwrap();
    assert_eq!(done, (5, 7, "xy".to_owned()));
}
