//! `once_per`: a success keeps the name taken.

use std::fmt::Display;
use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use lock_core::error::InvalidSetting;
use lock_core::{Lock, LockError, LockManager, distributed_lock};
use test_support::RedisServer;
use tests::shut_down;
use tokio::time::{Instant, sleep};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An alias of a `Result`, which the attribute cannot see.
type Answer<T> = Result<T, LockError>;

const fn failure() -> LockError {
    LockError::NotConfigured
}

#[distributed_lock(name = "job", once_per = "24h", manager = locks)]
async fn aliased(locks: &LockManager, succeeds: bool) -> Answer<u32> {
    if !succeeds {
        return Err(failure());
    }
    Ok(7)
}

#[distributed_lock(name = "job", once_per = DAY, release = background, manager = locks)]
async fn in_background(locks: &LockManager, succeeds: bool) -> Answer<u32> {
    if succeeds { Ok(7) } else { Err(failure()) }
}

#[distributed_lock(name = "job", once_per = "24h", on_error = |e| Err(e.to_string()), manager = locks)]
async fn handled(locks: &LockManager, succeeds: bool) -> Result<u32, String> {
    succeeds.then_some(7).ok_or_else(|| "failed".to_owned())
}

#[distributed_lock(
    name = "job",
    once_per = "24h",
    on_contended = |e| Err(e),
    manager = locks,
)]
async fn generic<T: Send>(locks: &LockManager, value: Option<T>) -> Result<T, LockError> {
    value.ok_or_else(failure)
}

#[distributed_lock(name = "job", once_per = "24h", manager = locks)]
fn boxed<'a>(
    locks: &'a LockManager,
    succeeds: bool,
) -> Pin<Box<dyn Future<Output = Result<u32, LockError>> + Send + 'a>> {
    Box::pin(async move { if succeeds { Ok(7) } else { Err(failure()) } })
}

#[distributed_lock(name = ["job", "other"], once_per = "24h", manager = locks)]
async fn set(locks: &LockManager, succeeds: bool) -> Answer<u32> {
    if succeeds { Ok(7) } else { Err(failure()) }
}

#[derive(Lock)]
#[lock(name = "job")]
struct JobLock;

#[distributed_lock(lock = JobLock, once_per = "24h", bind = held, manager = locks)]
async fn declared(locks: &LockManager, succeeds: bool) -> Answer<u32> {
    let JobLock = **held;
    if succeeds { Ok(7) } else { Err(failure()) }
}

/// Calls the function in the memory of one process: a failure leaves nothing, and a success keeps the name.
macro_rules! check {
    ($($function:ident: $fails:expr, $succeeds:expr;)+) => {$(
        #[tokio::test]
        async fn $function() {
            let locks = LockManager::in_memory();
            let failed = super::$function(&locks, $fails).await;
            assert!(failed.is_err(), "{failed:?}");
            let succeeded = super::$function(&locks, $succeeds).await;
            assert_eq!(succeeded.unwrap(), 7);
            let done = locks.lock("job").acquire().await.unwrap_err();
            assert!(done.is_done(), "{done}");
            let again = super::$function(&locks, $succeeds).await.unwrap_err();
            assert!(again.to_string().contains("is done"), "{again}");
        }
    )+};
}

mod result {
    use super::*;

    check! {
        aliased: false, true;
        in_background: false, true;
        handled: false, true;
        generic: None::<u32>, Some(7_u32);
        boxed: false, true;
        set: false, true;
        declared: false, true;
    }
}

#[distributed_lock(name = "job", once_per = "24h", on_contended = skip, manager = locks)]
async fn skipped(locks: &LockManager) -> Result<Option<u32>, LockError> {
    Ok(Some(7))
}

#[tokio::test]
async fn done_work_is_skipped() {
    let locks = LockManager::in_memory();
    assert_eq!(skipped(&locks).await.unwrap(), Some(7));
    assert_eq!(skipped(&locks).await.unwrap(), None);
}

#[distributed_lock(name = "job", once_per = "24h", on_error = |_| {}, manager = locks)]
async fn unit(locks: &LockManager) {}

#[distributed_lock(name = "job", once_per = "24h", on_error = |_| None, manager = locks)]
async fn option(locks: &LockManager) -> Option<u32> {
    None
}

#[distributed_lock(name = "job", once_per = "24h", on_error = |_| fallback, manager = locks)]
async fn any<T: Clone>(locks: &LockManager, value: T, fallback: T) -> T {
    value
}

#[distributed_lock(name = "job", once_per = "24h", on_error = |e| e.to_string(), manager = locks)]
async fn opaque(locks: &LockManager) -> impl Display {
    String::from("written")
}

/// The body of such a function has succeeded when it ends.
#[tokio::test]
async fn value_of_another_type_is_a_success() {
    let is_done = async |locks: &LockManager| {
        let error = locks.lock("job").acquire().await.unwrap_err();
        assert!(error.is_done(), "{error}");
    };
    let locks = LockManager::in_memory();
    unit(&locks).await;
    is_done(&locks).await;
    let locks = LockManager::in_memory();
    assert_eq!(option(&locks).await, None);
    is_done(&locks).await;
    let locks = LockManager::in_memory();
    // A type parameter is no `Result`, whatever it stands for: the attribute sees the function alone.
    let value: Result<u32, u32> = any(&locks, Err(1), Ok(2)).await;
    assert_eq!(value, Err(1));
    is_done(&locks).await;
    let locks = LockManager::in_memory();
    assert_eq!(format!("{}", opaque(&locks).await), "written");
    is_done(&locks).await;
}

#[distributed_lock(name = "job", once_per = "10s", manager = locks)]
async fn slow(locks: &LockManager, takes: Duration) -> Answer<u32> {
    sleep(takes).await;
    Ok(7)
}

#[distributed_lock(name = "job", once_per = "24h", manager = locks)]
async fn hangs(locks: &LockManager) -> Answer<u32> {
    pending().await
}

#[distributed_lock(name = "job", once_per = "24h", manager = locks)]
async fn panics(locks: &LockManager) -> Answer<u32> {
    panic!("the body of job in {locks:?}")
}

#[tokio::test(start_paused = true)]
async fn period_counts_from_the_start_of_the_body() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    let second = Duration::from_secs(1);
    slow(&locks, 4 * second).await.unwrap();
    sleep(5 * second).await;
    assert!(slow(&locks, second).await.unwrap_err().is_done());
    sleep(second + Duration::from_millis(10)).await;
    slow(&locks, second).await.expect("the period is over");
    assert!(begun.elapsed() < 12 * second);
}

#[tokio::test(start_paused = true)]
async fn dropped_and_panicking_bodies_leave_nothing() {
    let locks = LockManager::in_memory();
    let hanging = tokio::time::timeout(Duration::from_secs(1), hangs(&locks));
    hanging.await.expect_err("the function never returns");
    let shared = locks.clone();
    let panicked = tokio::spawn(async move { panics(&shared).await }).await;
    assert!(panicked.unwrap_err().is_panic());
    aliased(&locks, true).await.expect("the name is free");
}

#[distributed_lock(name = "job", once_per = "24h", manager = locks)]
async fn pauses_the_server(locks: &LockManager, server: &RedisServer) -> Result<(), LockError> {
    server.cli(&["CLIENT", "PAUSE", "500", "ALL"]);
    Ok(())
}

/// The future is dropped while it waits for the reply to the release. The drop of the guard sends another one, which
/// has to say the same.
#[tokio::test]
async fn success_stays_when_the_call_is_dropped_during_the_release() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let call = pauses_the_server(&locks, &server);
    let dropped = tokio::time::timeout(Duration::from_millis(100), call).await;
    dropped.expect_err("the server does not reply");
    shut_down(&locks).await;
    let value = server.cli(&["GET", "lock:job"]);
    let value = value.text();
    assert!(
        value.starts_with("lk1:ffffffff-ffff-ffff-ffff-ffffffffffff "),
        "{value}"
    );
}

#[tokio::test]
async fn key_on_a_server_lives_for_the_rest_of_the_period() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    aliased(&locks, true).await.unwrap();
    let left = server.cli(&["PTTL", "lock:job"]).integer();
    let day = i64::try_from(DAY.as_millis()).unwrap();
    assert!((day - 60_000..=day).contains(&left), "{left} ms are left");
    shut_down(&locks).await;
}

#[derive(Lock)]
#[lock(name = "mailer", permits = 2)]
struct Mailer;

#[distributed_lock(lock = Mailer, once_per = "24h", manager = locks)]
async fn of_permits(locks: &LockManager) -> Answer<()> {
    Ok(())
}

/// The attribute doesn't see the kind of a declared lock.
#[tokio::test]
async fn declared_permits_are_refused_at_run_time() {
    let locks = LockManager::in_memory();
    let error = of_permits(&locks).await.unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Kind { .. })),
        "{error}"
    );
}
