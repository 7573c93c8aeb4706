//! The effect of each option while the lock is held and when it ends.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::error::InvalidSetting;
use lock_core::{LockError, LockManager, distributed_lock};
use test_support::RedisServer;
use tests::shut_down;
use tokio::time::{Instant, sleep};

use crate::{becomes_free, is_held};

const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(name = "job", ttl = "1s", renew = never, manager = locks)]
async fn never_renewed(locks: &LockManager, work: Duration) -> Result<u8, LockError> {
    sleep(work).await;
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn renew_never_loses_the_lock_at_its_ttl() {
    let locks = LockManager::in_memory();
    let half = SECOND / 2;
    assert!(matches!(never_renewed(&locks, half).await, Ok(1)));
    let answer = never_renewed(&locks, 2 * SECOND).await;
    assert!(matches!(answer, Err(LockError::Lost { .. })), "{answer:?}");
}

#[distributed_lock(name = "job", ttl = "1s", renew = auto, manager = locks)]
async fn renewed(locks: &LockManager, work: Duration) -> Result<u8, LockError> {
    sleep(work).await;
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn renew_auto_keeps_the_lock_beyond_its_ttl() {
    let locks = LockManager::in_memory();
    assert!(matches!(renewed(&locks, 60 * SECOND).await, Ok(1)));
}

const EVERY: Duration = Duration::from_millis(100);

#[distributed_lock(name = "job", ttl = "400ms", renew = EVERY, manager = locks)]
async fn renewed_often(locks: &LockManager, server: &RedisServer) -> Result<u64, LockError> {
    // By default the first renewal is after 133 ms.
    let until = Instant::now() + SECOND;
    let mut longest = 0;
    while Instant::now() < until {
        sleep(Duration::from_millis(5)).await;
        let left = server.cli(&["PTTL", "lock:job"]).integer();
        longest = longest.max(400 - left);
    }
    Ok(u64::try_from(longest).expect("the lock has an expiry"))
}

#[tokio::test(flavor = "multi_thread")]
async fn renew_duration_keeps_the_lock_beyond_its_ttl() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is running");
    let unrenewed = renewed_often(&locks, &server)
        .await
        .expect("the lock stays held");
    assert!(
        unrenewed >= 90,
        "the lock was renewed too often: {unrenewed} ms"
    );
}

#[distributed_lock(name = "job", ttl = "1s", max_hold = "5s", manager = locks)]
async fn limited(locks: &LockManager) -> Result<(), LockError> {
    pending().await
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_body_as_a_loss() {
    let locks = LockManager::in_memory();
    let before = Instant::now();
    let answer = limited(&locks).await;
    assert!(matches!(answer, Err(LockError::Lost { .. })), "{answer:?}");
    assert!((5 * SECOND..6 * SECOND).contains(&before.elapsed()));
    assert!(!is_held(&locks, "job").await);
}

#[distributed_lock(name = "cron", wait = "0s", ttl = "30s", min_hold = "10s", manager = locks)]
async fn nightly(locks: &LockManager, work: Duration) -> Result<Instant, LockError> {
    sleep(work).await;
    Ok(Instant::now())
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_key_but_not_the_caller() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    nightly(&locks, SECOND).await.expect("free");
    assert_eq!(begun.elapsed(), SECOND, "the caller did not wait");
    assert!(nightly(&locks, SECOND).await.is_err(), "the key stays");
    sleep(8 * SECOND).await;
    assert!(is_held(&locks, "cron").await);
    sleep(SECOND + Duration::from_millis(10)).await;
    nightly(&locks, SECOND)
        .await
        .expect("the minimum hold is over");
}

#[tokio::test(start_paused = true)]
async fn min_hold_adds_nothing_to_a_longer_section() {
    let locks = LockManager::in_memory();
    nightly(&locks, 11 * SECOND).await.expect("free");
    assert!(!is_held(&locks, "cron").await);
}

#[distributed_lock(name = "cron", ttl = "30s", wait = "20s", manager = locks)]
async fn after_nightly(locks: &LockManager) -> Result<Instant, LockError> {
    Ok(Instant::now())
}

#[tokio::test(start_paused = true)]
async fn waiter_waits_for_the_end_of_min_hold() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    let late = async {
        sleep(SECOND / 2).await;
        after_nightly(&locks).await
    };
    let (first, next) = tokio::join!(nightly(&locks, SECOND), late);
    first.expect("free");
    let passed = next.expect("the wait is long enough").duration_since(begun);
    assert!((10 * SECOND..11 * SECOND).contains(&passed), "{passed:?}");
}

#[distributed_lock(name = "cron", wait = "0s", ttl = "5s", min_hold = "800ms", manager = locks)]
async fn short(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "cron", wait = "0s", ttl = "5s", min_hold = "800ms", manager = locks)]
async fn dropped(locks: &LockManager) -> Result<(), LockError> {
    pending().await
}

#[tokio::test]
async fn min_hold_keeps_the_key_on_a_server() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is running");
    let begun = Instant::now();
    short(&locks).await.expect("free");
    let left = server.cli(&["PTTL", "lock:cron"]).integer();
    assert!((1..=800).contains(&left), "{left} ms are left");
    assert!(short(&locks).await.expect_err("kept").is_contended());
    let waiting = locks.lock("cron").wait(5 * SECOND).acquire().await;
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(800), "{waited:?}");
    assert!(waited < 3 * SECOND, "{waited:?}");
    waiting
        .expect("the lock is free")
        .release()
        .await
        .expect("held");

    let running = tokio::time::timeout(SECOND / 10, dropped(&locks));
    running.await.expect_err("the function never returns");
    shut_down(&locks).await;
    let left = server.cli(&["PTTL", "lock:cron"]).integer();
    assert!((1..=800).contains(&left), "{left} ms are left");
}

#[distributed_lock(name = "shortest", min_hold = "30s", manager = locks)]
async fn too_long_for_the_default(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", max_hold = "30s", manager = locks)]
async fn too_short_for_the_default(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "renewal", renew = "20s", manager = locks)]
async fn too_seldom_for_the_default(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn options_are_checked_against_the_default_ttl_at_run_time() {
    let locks = LockManager::in_memory();
    let answer = too_long_for_the_default(&locks).await;
    assert!(matches!(
        answer,
        Err(LockError::Invalid(InvalidSetting::MinHold { .. }))
    ));
    let answer = too_short_for_the_default(&locks).await;
    assert!(matches!(
        answer,
        Err(LockError::Invalid(InvalidSetting::MaxHold { .. }))
    ));
    let answer = too_seldom_for_the_default(&locks).await;
    assert!(matches!(
        answer,
        Err(LockError::Invalid(InvalidSetting::Renewal { .. }))
    ));
    let longer = LockManager::builder()
        .default_ttl(40 * SECOND)
        .in_memory()
        .unwrap();
    too_long_for_the_default(&longer).await.expect("free");
    too_seldom_for_the_default(&longer).await.expect("free");
}

#[distributed_lock(name = "job", ttl = "1s", renew = never, on_lost = continue, manager = locks)]
async fn goes_on(locks: &LockManager, other_holds: &AtomicBool) -> Result<u8, LockError> {
    sleep(2 * SECOND).await;
    let other = locks.lock("job").acquire().await?;
    other_holds.store(true, Ordering::SeqCst);
    drop(other);
    Ok(7)
}

#[tokio::test(start_paused = true)]
async fn on_lost_continue_runs_the_body_to_its_end() {
    let locks = LockManager::in_memory();
    let other_holds = AtomicBool::new(false);
    let answer = goes_on(&locks, &other_holds).await;
    // The body requested its own lock, which is an error even if the lock is lost.
    assert!(
        matches!(answer, Err(LockError::WouldDeadlock { .. })),
        "{answer:?}"
    );
    let elsewhere = async {
        sleep(3 * SECOND / 2).await;
        is_held(&locks, "job").await
    };
    let (answer, held) = tokio::join!(patient(&locks), elsewhere);
    assert!(matches!(answer, Ok(7)), "{answer:?}");
    assert!(!held, "the lock was lost meanwhile");
}

#[distributed_lock(name = "job", ttl = "1s", renew = never, on_lost = continue, manager = locks)]
async fn patient(locks: &LockManager) -> Result<u8, LockError> {
    sleep(2 * SECOND).await;
    Ok(7)
}

#[distributed_lock(name = "job", on_lost = cancel, release = confirm, manager = locks)]
async fn by_the_defaults(locks: &LockManager) -> Result<bool, LockError> {
    Ok(is_held(locks, "job").await)
}

#[tokio::test]
async fn default_values_may_be_written() {
    let locks = LockManager::in_memory();
    assert!(by_the_defaults(&locks).await.expect("free"));
    assert!(!is_held(&locks, "job").await);
}

#[distributed_lock(name = "job", release = background, manager = locks)]
async fn in_the_background(locks: &LockManager) -> Result<u8, LockError> {
    Ok(1)
}

#[tokio::test]
async fn release_background_releases_the_lock() {
    let server = RedisServer::start();
    for locks in [
        LockManager::in_memory(),
        LockManager::connect(&server.url())
            .await
            .expect("the server is running"),
    ] {
        assert!(matches!(in_the_background(&locks).await, Ok(1)));
        becomes_free(&locks, "job").await;
    }
}

struct User {
    id: u32,
}

#[distributed_lock(name = "cart", hash_tag = "user:{user.id}", manager = locks)]
async fn tagged(locks: &LockManager, user: &User) -> Result<bool, LockError> {
    Ok(is_held(locks, "{user:5}:cart").await && user.id == 5)
}

#[distributed_lock(name = format!("cart:{}", user.id), hash_tag = "{user.id}", manager = locks)]
async fn tagged_expression(locks: &LockManager, user: &User) -> Result<bool, LockError> {
    Ok(is_held(locks, "{5}:cart:5").await && user.id == 5)
}

#[distributed_lock(name = name, hash_tag = "{tag}", manager = locks)]
async fn tagged_by(locks: &LockManager, name: &str, tag: &str) -> Result<bool, LockError> {
    Ok(is_held(locks, "{a%7Db}:x").await)
}

#[tokio::test]
async fn hash_tag_is_put_before_the_name() {
    let locks = LockManager::in_memory();
    let user = User { id: 5 };
    assert!(tagged(&locks, &user).await.expect("free"));
    assert!(tagged_expression(&locks, &user).await.expect("free"));
    assert!(
        tagged_by(&locks, "x", "a}b").await.expect("free"),
        "encoded"
    );
    for (name, tag) in [("", "t"), ("x", ""), ("{x}", "t"), ("x:q", "t")] {
        let answer = tagged_by(&locks, name, tag).await;
        assert!(
            matches!(answer, Err(LockError::Invalid(InvalidSetting::Name { .. }))),
            "{name} {tag} {answer:?}"
        );
    }
}

struct Regions {
    eu: LockManager,
    us: LockManager,
    ttl: Duration,
}

impl Regions {
    #[distributed_lock(
        name = "order",
        ttl = dynamic(self.ttl),
        wait = dynamic(wait),
        manager = match region { 1 => &self.eu, _ => &self.us },
    )]
    async fn by_match(&self, region: u8, wait: Duration) -> Result<bool, LockError> {
        Ok(is_held(&self.eu, "order").await)
    }

    #[distributed_lock(name = "order", manager = if region == 1 { &self.eu } else { &self.us })]
    async fn by_if(&self, region: u8) -> Result<bool, LockError> {
        Ok(is_held(&self.eu, "order").await)
    }
}

#[tokio::test(start_paused = true)]
async fn manager_may_depend_on_the_arguments() {
    let regions = Regions {
        eu: LockManager::in_memory(),
        us: LockManager::in_memory(),
        ttl: SECOND,
    };
    assert!(regions.by_match(1, SECOND).await.expect("free"));
    assert!(!regions.by_match(2, SECOND).await.expect("free"));
    assert!(regions.by_if(1).await.expect("free"));
    assert!(!regions.by_if(2).await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn dynamic_durations_are_checked_at_the_call() {
    let regions = |ttl| Regions {
        eu: LockManager::in_memory(),
        us: LockManager::in_memory(),
        ttl,
    };
    let short = regions(Duration::from_millis(99)).by_match(1, SECOND).await;
    assert!(
        matches!(short, Err(LockError::Invalid(InvalidSetting::Ttl { ttl, .. })) if ttl.as_millis() == 99)
    );
    let regions = regions(SECOND);
    let once = regions.by_match(1, Duration::ZERO).await;
    assert!(once.expect("one attempt acquires a free lock"));
    let _guard = regions.eu.lock("order").acquire().await.expect("free");
    let begun = Instant::now();
    let once = regions.by_match(1, Duration::ZERO).await;
    assert!(matches!(once, Err(LockError::Contended { .. })), "{once:?}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let contended = regions.by_match(1, 2 * SECOND).await;
    assert!(
        matches!(contended, Err(LockError::Timeout { .. })),
        "{contended:?}"
    );
    assert_eq!(begun.elapsed(), 2 * SECOND);
}

trait Conf {
    const TTL: Duration;
    const LONG: Duration = Duration::from_secs(60);
}

struct Brief;

impl Conf for Brief {
    const TTL: Duration = Duration::from_secs(1);
}

struct Repo<C>(LockManager, std::marker::PhantomData<C>);

impl<C: Conf + Sync> Repo<C> {
    #[distributed_lock(name = "repo", ttl = C::TTL, bind = held, manager = self.0)]
    async fn of_the_impl(&self) -> Result<Duration, LockError> {
        Ok(held.remaining())
    }

    #[distributed_lock(name = "repo", ttl = C::TTL, max_hold = C::LONG, manager = self.0)]
    async fn at_most(&self) -> Result<(), LockError> {
        pending().await
    }

    #[distributed_lock(name = "repo", ttl = <C as Conf>::TTL, bind = held, manager = locks)]
    async fn without_self(locks: &LockManager) -> Result<Duration, LockError> {
        Ok(held.remaining())
    }
}

#[tokio::test(start_paused = true)]
async fn durations_may_be_constants_of_the_generics_of_an_impl() {
    let repo = Repo::<Brief>(LockManager::in_memory(), std::marker::PhantomData);
    assert_eq!(repo.of_the_impl().await.expect("free"), SECOND);
    let begun = Instant::now();
    let lost = repo.at_most().await;
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    assert_eq!(begun.elapsed(), Brief::LONG);
    let held = Repo::<Brief>::without_self(&repo.0).await;
    assert_eq!(held.expect("free"), SECOND);
}

const OUTAGE: Duration = Duration::from_secs(20);

#[distributed_lock(name = "report", on_contended = skip, outage_wait = "20s", manager = locks)]
async fn report(locks: &LockManager) -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}

#[distributed_lock(name = "report", wait = "300ms", outage_wait = OUTAGE, manager = locks)]
async fn by_constant(locks: &LockManager) -> Result<u8, LockError> {
    Ok(2)
}

#[distributed_lock(name = ["report", "b"], wait = "0s", outage_wait = dynamic(limit), manager = locks)]
async fn by_list(locks: &LockManager, limit: Duration) -> Result<u8, LockError> {
    Ok(3)
}

/// A job that starts while the server is away waits for it, and not for another machine.
#[tokio::test(flavor = "multi_thread")]
async fn outage_wait_is_for_the_server_and_not_for_the_holder() {
    let server = RedisServer::start();
    server.kill9();
    let locks = LockManager::builder().connect_lazy(server.url()).unwrap();
    let began = Instant::now();
    let limit = SECOND;
    let failed = by_list(&locks, limit).await.unwrap_err();
    assert!(failed.is_retryable(), "{failed}");
    assert!(began.elapsed() >= limit / 2, "{:?}", began.elapsed());
    let back = async {
        sleep(SECOND).await;
        server.restart();
    };
    let (ran, ()) = tokio::join!(report(&locks), back);
    assert_eq!(ran.unwrap(), Some(1));
    assert_eq!(by_constant(&locks).await.unwrap(), 2);
    assert_eq!(by_list(&locks, OUTAGE).await.unwrap(), 3);
    let held = locks.lock("report").acquire().await.unwrap();
    let began = Instant::now();
    assert_eq!(report(&locks).await.unwrap(), None);
    assert!(by_constant(&locks).await.unwrap_err().is_contended());
    assert!(by_list(&locks, OUTAGE).await.unwrap_err().is_contended());
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    held.release().await.unwrap();
    // A closed manager refuses the call. It is no skip: the work may be undone.
    locks.close();
    let refused = report(&locks).await.unwrap_err();
    assert!(matches!(refused, LockError::ShuttingDown), "{refused}");
    shut_down(&locks).await;
}

const WAITERS: u32 = 1;

#[distributed_lock(name = "report", wait = "60s", max_queue = WAITERS, manager = locks)]
async fn queues(locks: &LockManager) -> Result<(), LockError> {
    sleep(SECOND).await;
    Ok(())
}

#[distributed_lock(
    name = "report",
    wait = "60s",
    max_queue = 1,
    on_contended = |e| Ok(e.code()),
    manager = locks
)]
async fn answers(locks: &LockManager) -> Result<&'static str, LockError> {
    sleep(SECOND).await;
    Ok("made")
}

#[tokio::test(start_paused = true)]
async fn full_queue_refuses_the_call() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    let holder_and_waiter = async { tokio::join!(queues(&locks), queues(&locks)) };
    let refused = async {
        sleep(SECOND / 2).await;
        let error = queues(&locks).await.unwrap_err();
        assert!(
            matches!(error, LockError::QueueFull { position: 1, .. }),
            "{error}"
        );
        assert_eq!(answers(&locks).await.expect("an answer"), "queue_full");
        assert_eq!(begun.elapsed(), SECOND / 2, "both are refused at once");
    };
    let ((holder, waiter), ()) = tokio::join!(holder_and_waiter, refused);
    holder.and(waiter).expect("both make a report");
    assert_eq!(answers(&locks).await.expect("free"), "made");
}
