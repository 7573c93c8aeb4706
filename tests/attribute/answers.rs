//! The return value of an annotated function whose body did not run, or did not complete.

use std::error::Error;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, distributed_lock};
use tokio::time::sleep;

use crate::{becomes_free, is_held};

async fn hold(locks: &LockManager) -> LockGuard {
    locks.lock("x").acquire().await.expect("free")
}

#[distributed_lock(name = "x", on_contended = skip, on_error = |e| drop(e), manager = locks)]
async fn unit(locks: &LockManager, ran: &mut bool) {
    *ran = true;
}

#[distributed_lock(name = "x", on_contended = skip, on_error = |_| None, manager = locks)]
async fn option(locks: &LockManager) -> Option<u8> {
    Some(1)
}

#[distributed_lock(name = "x", on_contended = skip, manager = locks)]
async fn result_of_unit(locks: &LockManager) -> Result<(), LockError> {
    sleep(Duration::from_millis(10)).await;
    Ok(())
}

#[distributed_lock(name = "x", on_contended = skip, manager = locks)]
async fn result_of_option(locks: &LockManager) -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}

type Nested<E> = Result<Result<Option<String>, u8>, E>;

#[distributed_lock(name = "x", on_contended = skip, manager = locks)]
async fn nested(locks: &LockManager) -> Nested<LockError> {
    Ok(Err(1))
}

#[distributed_lock(name = "x", on_contended = skip, wait = "20ms", manager = locks)]
async fn after_waiting(locks: &LockManager) -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}

#[tokio::test]
async fn skip_returns_the_empty_value_of_each_return_type() {
    let locks = LockManager::in_memory();
    let mut ran = false;
    let guard = hold(&locks).await;
    unit(&locks, &mut ran).await;
    assert!(!ran);
    assert_eq!(option(&locks).await, None);
    assert!(matches!(result_of_unit(&locks).await, Ok(())));
    assert!(matches!(result_of_option(&locks).await, Ok(None)));
    assert!(matches!(nested(&locks).await, Ok(Ok(None))));
    assert!(matches!(after_waiting(&locks).await, Ok(None)));
    drop(guard);
    unit(&locks, &mut ran).await;
    assert!(ran);
    assert_eq!(option(&locks).await, Some(1));
    assert!(matches!(result_of_option(&locks).await, Ok(Some(1))));
    assert!(matches!(nested(&locks).await, Ok(Err(1))));
}

#[distributed_lock(name = "{name}", on_contended = skip, on_error = |_| Some(0), manager = locks)]
async fn skips_contention_only(locks: &LockManager, name: &str) -> Option<u8> {
    Some(1)
}

#[tokio::test]
async fn skip_does_not_hide_other_errors() {
    let locks = LockManager::in_memory();
    assert_eq!(skips_contention_only(&locks, "").await, Some(0));
    let _guard = hold(&locks).await;
    assert_eq!(skips_contention_only(&locks, "x").await, None);
}

#[distributed_lock(
    name = "x",
    wait = "0s",
    ttl = "1s",
    renew = never,
    on_contended = |e| (format!("{payload}: {}", e.is_contended()), number),
    on_error = |e| (format!("not {}", e.is_contended()), number),
    manager = locks,
)]
async fn notified(
    locks: &LockManager,
    payload: String,
    number: u8,
    work: Duration,
) -> (String, u8) {
    sleep(work).await;
    (payload, number + 1)
}

#[tokio::test(start_paused = true)]
async fn on_contended_handler_sees_the_parameters() {
    let locks = LockManager::in_memory();
    let brief = Duration::from_millis(1);
    let done = notified(&locks, "a".into(), 1, brief).await;
    assert_eq!(done, ("a".into(), 2));
    let lost = notified(&locks, "a".into(), 1, Duration::from_secs(2)).await;
    assert_eq!(lost, ("not false".into(), 1), "`on_error` handles a loss");
    let _guard = hold(&locks).await;
    let contended = notified(&locks, "a".into(), 1, brief).await;
    assert_eq!(contended, ("a: true".into(), 1));
}

#[distributed_lock(name = "x", wait = "0s", on_contended = |_| { drop(owned); Ok(0) }, manager = locks)]
async fn takes_it(locks: &LockManager, owned: String) -> Result<usize, LockError> {
    Ok(owned.len())
}

#[distributed_lock(name = "x", wait = "20ms", on_contended = |e| match e {
    LockError::Timeout { .. } => Ok(0),
    other => Err(other),
}, manager = locks)]
async fn times_out(locks: &LockManager) -> Result<u8, LockError> {
    Ok(1)
}

#[tokio::test]
async fn on_contended_handler_may_move_what_the_body_moves() {
    let locks = LockManager::in_memory();
    assert!(matches!(takes_it(&locks, "abc".into()).await, Ok(3)));
    let _guard = hold(&locks).await;
    assert!(matches!(takes_it(&locks, "abc".into()).await, Ok(0)));
    assert!(matches!(times_out(&locks).await, Ok(0)));
}

#[distributed_lock(name = "x", wait = "0s", on_contended = error, on_error = |e| e.is_contended(), manager = locks)]
async fn error_is_the_default(locks: &LockManager) -> bool {
    false
}

#[tokio::test]
async fn on_contended_error_passes_the_error_to_on_error() {
    let locks = LockManager::in_memory();
    assert!(!error_is_the_default(&locks).await);
    let _guard = hold(&locks).await;
    assert!(error_is_the_default(&locks).await);
}

#[distributed_lock(name = "x", wait = "0s", manager = locks)]
async fn generic_error<E: From<LockError>>(locks: &LockManager) -> Result<u8, E> {
    Ok(1)
}

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[distributed_lock(name = "x", wait = "0s", manager = locks)]
async fn alias(locks: &LockManager) -> Fallible<u8> {
    Ok("1".parse()?)
}

#[distributed_lock(name = "x", wait = "0s", manager = locks)]
async fn io(locks: &LockManager) -> Result<impl Sized + Display, Box<dyn Error + Send + Sync>> {
    Ok(1)
}

#[distributed_lock(name = "x", wait = "0s", on_contended = |_| 0, on_error = |_| 2, manager = locks)]
async fn hidden(locks: &LockManager) -> impl Display + Copy {
    1
}

#[distributed_lock(
    name = "x",
    on_contended = |_| std::process::abort(),
    on_error = |_| std::process::abort(),
    manager = locks,
)]
async fn never(locks: &LockManager) -> ! {
    std::future::pending().await
}

#[tokio::test]
async fn return_type_may_be_an_alias_generic_opaque_or_never() {
    let locks = LockManager::in_memory();
    assert!(matches!(generic_error::<LockError>(&locks).await, Ok(1)));
    assert_eq!(alias(&locks).await.expect("free"), 1);
    assert_eq!(io(&locks).await.expect("free").to_string(), "1");
    assert_eq!(hidden(&locks).await.to_string(), "1");
    let brief = Duration::from_millis(20);
    let running = tokio::time::timeout(brief, never(&locks));
    running.await.expect_err("the function never returns");
    becomes_free(&locks, "x").await;
    let guard = hold(&locks).await;
    assert!(generic_error::<LockError>(&locks).await.is_err());
    assert!(alias(&locks).await.is_err());
    assert!(io(&locks).await.is_err());
    assert_eq!(hidden(&locks).await.to_string(), "0");
    drop(guard);
}

#[derive(Debug)]
struct Local {
    reason: Rc<str>,
}

impl From<LockError> for Local {
    fn from(error: LockError) -> Self {
        Self {
            reason: error.to_string().into(),
        }
    }
}

#[distributed_lock(name = "x", wait = "0s", release = background, manager = locks)]
async fn not_send(locks: LockManager) -> Result<u8, Local> {
    tokio::task::yield_now().await;
    Ok(1)
}

#[tokio::test]
async fn error_that_is_not_send_works_with_background_release() {
    const fn assert_send<T: Send>(future: T) -> T {
        future
    }
    let locks = LockManager::in_memory();
    assert_eq!(assert_send(not_send(locks.clone())).await.expect("free"), 1);
    becomes_free(&locks, "x").await;
    let _guard = hold(&locks).await;
    let error = not_send(locks.clone()).await.expect_err("held");
    assert!(!error.reason.is_empty());
    assert!(is_held(&locks, "x").await);
}

#[derive(Default)]
struct App {
    failed: std::sync::Mutex<Vec<String>>,
}

impl App {
    fn failed(&self, error: &LockError) -> usize {
        let mut failed = self.failed.lock().expect("no panic");
        failed.push(error.to_string());
        failed.len()
    }
}

#[distributed_lock(
    name = "x",
    wait = "0s",
    on_error = {
        let app = std::sync::Arc::clone(&app);
        move |error| app.failed(&error)
    },
    manager = locks,
)]
async fn captured(locks: &LockManager, app: std::sync::Arc<App>) -> usize {
    drop(app);
    0
}

fn answer(error: &LockError) -> u8 {
    u8::from(error.is_contended())
}

fn handler(code: u8) -> impl FnOnce(LockError) -> u8 {
    move |error| code + answer(&error)
}

#[distributed_lock(name = "x", wait = "0s", on_error = handler(code), manager = locks)]
async fn made_by_a_function(locks: &LockManager, code: u8) -> u8 {
    code
}

#[distributed_lock(name = "x", wait = "0s", on_error = (|error| answer(&error)), manager = locks)]
async fn in_parentheses(locks: &LockManager) -> u8 {
    0
}

#[distributed_lock(
    name = "x",
    wait = "0s",
    on_error = {
        let failed = failed.clone();
        move |error| {
            let text = error.to_string();
            drop(tokio::spawn(async move { failed.send(text).await }));
        }
    },
    manager = locks,
)]
async fn spawns(locks: &LockManager, failed: tokio::sync::mpsc::Sender<String>) {
    drop(failed);
}

#[tokio::test]
async fn on_error_handler_may_spawn_a_task() {
    let locks = LockManager::in_memory();
    let (sender, mut failed) = tokio::sync::mpsc::channel(1);
    let guard = hold(&locks).await;
    spawns(&locks, sender).await;
    assert!(failed.recv().await.is_some());
    drop(guard);
}

#[tokio::test]
async fn on_error_may_be_an_expression_that_returns_a_closure() {
    let locks = LockManager::in_memory();
    let app = std::sync::Arc::new(App::default());
    assert_eq!(captured(&locks, std::sync::Arc::clone(&app)).await, 0);
    assert_eq!(made_by_a_function(&locks, 4).await, 4);
    let guard = hold(&locks).await;
    assert_eq!(captured(&locks, std::sync::Arc::clone(&app)).await, 1);
    assert_eq!(made_by_a_function(&locks, 4).await, 5);
    assert_eq!(in_parentheses(&locks).await, 1);
    drop(guard);
}
