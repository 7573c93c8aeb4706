//! The option `lock`, and `#[derive(Lock)]`.

use std::time::Duration;

use lock_core::typed::{Holds, Permit, Read};
use lock_core::{Held, Kind, Lock, LockError, LockManager, distributed_lock};

use crate::{becomes_free, is_held};

const TTL: Duration = Duration::from_secs(9);

/// Guards one order.
#[derive(Lock)]
#[lock(name = "order:{order_id}", ttl = "7s", wait = "0s")]
struct OrderLock {
    order_id: u64,
}

#[derive(Lock, Clone, Copy)]
#[lock(name = "stock:{sku}:{depot.0}", mode = read_write, ttl = TTL)]
struct Stock<'a, T: std::fmt::Display> {
    sku: &'a str,
    depot: (T, u8),
}

#[derive(Lock)]
#[lock(name = "mailer", permits = 3, weight = 2, hash_tag = "{0}")]
struct Mailer(u8);

#[derive(Lock)]
#[lock(name = format!("page:{}", self.page), crate = ::lock_core)]
struct Page {
    page: u32,
}

#[derive(Lock)]
#[lock(name = "batch", ttl = dynamic(self.ttl), permits = SIZE)]
struct Batch<const SIZE: u32> {
    ttl: Duration,
}

async fn charge(order: &Held<OrderLock>) -> u64 {
    tokio::task::yield_now().await;
    order.order_id
}

fn price(stock: &impl Holds<Stock<'static, u8>>) -> (usize, Kind) {
    (stock.lock().sku.len(), stock.guard().kind())
}

#[distributed_lock(lock = OrderLock { order_id }, manager = locks, bind = order)]
async fn pay(locks: &LockManager, order_id: u64) -> Result<u64, LockError> {
    assert_eq!(order.remaining(), Duration::from_secs(7));
    let mut paid = charge(order).await;
    paid += order_id;
    Ok(paid)
}

#[distributed_lock(lock = Stock { sku, depot: (1, 2) }, mode = read, manager = locks, bind = stock)]
async fn read(locks: &LockManager, sku: &'static str) -> Result<(usize, Kind), LockError> {
    let stock: &Held<Stock<'_, u8>, Read> = stock;
    Ok(price(stock))
}

#[distributed_lock(lock = Stock { sku, depot: (1, 2) }, mode = write, manager = locks, bind = stock)]
async fn write(locks: &LockManager, sku: &'static str) -> Result<(usize, Kind), LockError> {
    Ok(price(stock))
}

/// The declared lock borrows from a parameter.
#[distributed_lock(lock = Stock { sku: &owner.0, depot: (1, 2) }, manager = locks, bind = stock)]
async fn borrowed(locks: &LockManager, owner: &(String, u8)) -> Result<usize, LockError> {
    Ok(stock.sku.len() + usize::from(owner.1))
}

#[distributed_lock(lock = Mailer(1), manager = locks, bind = mailer)]
async fn mail(locks: &LockManager) -> Result<String, LockError> {
    let mailer: &Held<Mailer, Permit> = mailer;
    assert_eq!(mailer.guard().key(), "lock:{1}:mailer");
    Ok(mailer.guard().kind().to_string())
}

#[distributed_lock(
    lock = Page { page },
    mode = exclusive,
    on_contended = |_| false,
    on_error = |_| false,
    wait = "0s",
    manager = locks,
)]
async fn render(locks: &LockManager, page: u32) -> bool {
    is_held(locks, &format!("page:{page}")).await
}

#[distributed_lock(lock = OrderLock { order_id: 1 }, renew = never, on_lost = cancel, manager = locks)]
async fn loses(locks: &LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

#[derive(Lock)]
#[lock(name = "invoice", wait = "3s")]
struct Invoice;

#[distributed_lock(lock = Invoice, on_contended = skip, manager = locks)]
async fn skips_after_the_declared_wait(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(lock = Invoice, on_contended = skip, wait = "1s", manager = locks)]
async fn skips_after_its_own_wait(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(lock = Page { page: 1 }, on_contended = skip, manager = locks)]
async fn skips_after_one_attempt(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn declared_lock_proves_that_it_is_held() {
    let locks = LockManager::in_memory();
    assert_eq!(pay(&locks, 7).await.expect("free"), 14);
    let busy = locks.hold(OrderLock { order_id: 7 }).acquire().await;
    let busy = busy.expect("the release was confirmed");
    let error = pay(&locks, 7).await.expect_err("held");
    assert!(error.is_contended(), "the declared wait is zero: {error}");
    assert_eq!(pay(&locks, 8).await.expect("another order"), 16);
    busy.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn one_attempt_of_skip_is_only_the_default() {
    let locks = LockManager::in_memory();
    let invoice = locks.hold(Invoice).acquire().await.expect("free");
    let page = locks.hold(Page { page: 1 }).acquire().await.expect("free");
    let started = tokio::time::Instant::now();
    skips_after_one_attempt(&locks).await.expect("skipped");
    assert_eq!(started.elapsed().as_secs(), 0);
    skips_after_its_own_wait(&locks).await.expect("skipped");
    assert_eq!(started.elapsed().as_secs(), 1);
    skips_after_the_declared_wait(&locks)
        .await
        .expect("skipped");
    assert_eq!(started.elapsed().as_secs(), 4);
    drop((invoice, page));
}

#[tokio::test]
async fn mode_chooses_how_a_read_write_lock_is_held() {
    let locks = LockManager::in_memory();
    let (sku, depot) = ("a-1", (1, 2));
    let reader = locks.hold_read(Stock { sku, depot }).acquire().await;
    let reader = reader.expect("free");
    assert_eq!(reader.guard().key(), "lock:stock:a-1:1");
    assert_eq!(read(&locks, sku).await.expect("shared"), (3, Kind::Read));
    drop(reader);
    assert_eq!(
        write(&locks, sku).await.expect("free"),
        (3, Kind::Exclusive)
    );
    let owner = ("four".to_owned(), 1);
    assert_eq!(borrowed(&locks, &owner).await.expect("free"), 5);
    let writer = locks.hold_write(Stock { sku, depot }).acquire().await;
    let reader = writer.expect("free").downgrade().await.expect("held");
    assert_eq!(read(&locks, sku).await.expect("shared"), (3, Kind::Read));
    assert_eq!(price(&reader), (3, Kind::Read));
}

#[tokio::test]
async fn declared_permits_are_counted_by_weight() {
    let locks = LockManager::in_memory();
    assert_eq!(mail(&locks).await.expect("free"), "2 of 3 permits");
    let one = locks.hold_permit(Mailer(1)).acquire().await.expect("free");
    assert!(
        locks
            .hold_permit(Mailer(1))
            .try_acquire()
            .await
            .expect("up")
            .is_none()
    );
    assert!(
        locks
            .hold_permit(Mailer(2))
            .try_acquire()
            .await
            .expect("up")
            .is_some()
    );
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn declared_values_may_depend_on_the_lock() {
    let locks = LockManager::in_memory();
    let batch = Batch::<2> { ttl: TTL };
    let held = locks.hold_permit(batch).await.expect("free");
    assert_eq!(held.remaining(), TTL);
    assert_eq!(held.guard().kind().to_string(), "2 permits");
}

#[tokio::test]
async fn declared_lock_can_be_contended_before_the_body_exists() {
    let locks = LockManager::in_memory();
    assert!(render(&locks, 3).await);
    let busy = locks.lock("page:3").acquire().await.expect("free");
    assert!(!render(&locks, 3).await);
    drop(busy);
    becomes_free(&locks, "page:3").await;
    assert!(render(&locks, 3).await);
}

#[tokio::test(start_paused = true)]
async fn body_of_a_declared_lock_is_dropped_at_the_loss() {
    let locks = LockManager::in_memory();
    let error = loses(&locks).await.expect_err("the lease ended");
    assert!(error.is_lost(), "{error}");
}

#[tokio::test]
async fn future_with_a_declared_lock_is_send() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let locks = LockManager::in_memory();
    let paid = is_send(pay(&locks, 1)).await;
    assert_eq!(paid.expect("free"), 2);
    assert!(is_send(read(&locks, "a")).await.is_ok());
}

/// A declared lock is nested as the lock of its name is.
#[tokio::test(start_paused = true)]
async fn declared_lock_inside_its_own_body_would_deadlock() {
    let locks = LockManager::in_memory();
    let (sku, depot) = ("a-1", (1, 2));
    let stock = || Stock { sku, depot };
    let inside = async |_: &Held<Stock<'_, u8>, Read>| {
        let annotated = read(&locks, sku).await.map(|_| ());
        let reader = locks.hold_read(stock()).acquire().await.map(|_| ());
        let writer = locks.hold_write(stock()).acquire().await.map(|_| ());
        [annotated, reader, writer]
    };
    let inner = locks.hold_read(stock()).run(inside).await.expect("free");
    for result in inner {
        let error = result.expect_err("it waits for itself");
        assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
    }
    let inside = async |_: &Held<Mailer, Permit>| {
        let lighter = locks.lock("{1}:mailer").permits(3).try_acquire().await;
        let same = locks.hold_permit(Mailer(1)).acquire().await;
        (lighter.map(|held| held.is_some()), same.map(|_| ()))
    };
    let (lighter, same) = locks
        .hold_permit(Mailer(1))
        .run(inside)
        .await
        .expect("free");
    assert!(lighter.expect("one permit is left"));
    let error = same.expect_err("it waits for itself");
    assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
}
