//! What an annotated function does. The lints are part of the test: an annotated function must
//! be as clean as its author left it.

#![deny(warnings, clippy::pedantic, clippy::nursery)]
#![allow(
    clippy::redundant_pub_crate,
    reason = "a visibility is kept, and rustc asks for this one"
)]

use std::cell::Cell;
use std::fmt::Display;
use std::future::Future;
use std::ops::AddAssign;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, LockName, distributed_lock};
use test_support::RedisServer;

/// Whether somebody holds `name`.
async fn is_held(locks: &LockManager, name: &str) -> bool {
    let free = locks.lock(name).try_acquire().await;
    free.expect("a memory backend is never down").is_none()
}

/// Waits until nobody holds `name`: a dropped guard releases in the background.
async fn becomes_free(locks: &LockManager, name: &str) {
    let guard = locks
        .lock(name)
        .wait(Duration::from_secs(5))
        .acquire()
        .await;
    drop(guard.expect("the lock is released"));
}

mod the_lock {
    use super::*;

    #[distributed_lock(name = "order:{id}", wait = "0s", manager = locks)]
    async fn held(locks: &LockManager, id: u64) -> Result<bool, LockError> {
        Ok(is_held(locks, "order:7").await && !is_held(locks, "order:8").await && id == 7)
    }

    #[tokio::test]
    async fn is_held_while_the_body_runs_and_released_after() {
        let locks = LockManager::in_memory();
        assert!(held(&locks, 7).await.expect("free"));
        assert!(!is_held(&locks, "order:7").await);
    }

    #[tokio::test]
    async fn keeps_the_body_from_running_when_another_holds_it() {
        let locks = LockManager::in_memory();
        let guard = locks.lock("order:7").acquire().await.expect("free");
        let answer = held(&locks, 7).await;
        assert!(answer.expect_err("held").is_contended());
        drop(guard);
    }

    #[distributed_lock(name = "slow", wait = "5s", ttl = "10s", manager = locks)]
    async fn patient(locks: &LockManager, ran: &AtomicBool) -> Result<(), LockError> {
        ran.store(true, Ordering::SeqCst);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn is_waited_for() {
        let locks = LockManager::in_memory();
        let guard = locks.lock("slow").acquire().await.expect("free");
        let ran = AtomicBool::new(false);
        let waiting = patient(&locks, &ran);
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!ran.load(Ordering::SeqCst), "the lock is held");
            guard.release().await.expect("held");
        };
        let (answer, ()) = tokio::join!(waiting, release);
        answer.expect("handed over");
        assert!(ran.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn is_not_waited_for_longer_than_asked() {
        let locks = LockManager::in_memory();
        let _guard = locks.lock("slow").acquire().await.expect("free");
        let ran = AtomicBool::new(false);
        let answer = patient(&locks, &ran).await;
        assert!(answer.expect_err("held").is_contended());
        assert!(!ran.load(Ordering::SeqCst));
    }

    #[distributed_lock(name = "order:{id}", wait = "60s", manager = locks)]
    async fn within(locks: &LockManager, id: u64) -> Result<LockError, LockError> {
        held(locks, id + 1).await?;
        Ok(held(locks, id).await.expect_err("held further up"))
    }

    #[tokio::test]
    async fn is_not_waited_for_by_who_holds_it() {
        let answer = within(&LockManager::in_memory(), 7).await;
        assert!(
            matches!(answer, Ok(LockError::WouldDeadlock { .. })),
            "{answer:?}"
        );
    }

    #[distributed_lock(name = "nobody")]
    async fn unmanaged() -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test]
    async fn is_never_done_without() {
        let answer = unmanaged().await;
        assert!(
            matches!(answer, Err(LockError::NotConfigured)),
            "{answer:?}"
        );
    }
}

mod documentation {
    use super::*;

    // The example of the attribute's documentation, which cannot depend on `lock_core`.
    #[distributed_lock(name = "order:{order_id}", ttl = "30s", wait = "5s")]
    async fn ship(order_id: u64) -> Result<String, LockError> {
        Ok(format!("shipped {order_id}"))
    }

    #[tokio::test]
    async fn shows_what_works() {
        let locks = LockManager::in_memory();
        let shipped = locks.scope(ship(7)).await;
        assert_eq!(shipped.expect("free"), "shipped 7");
    }
}

mod leaving_the_body {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Failure {
        Ours(u8),
        Lock(String),
    }

    impl From<LockError> for Failure {
        fn from(error: LockError) -> Self {
            Self::Lock(error.to_string())
        }
    }

    const fn fails(code: u8) -> Result<u8, Failure> {
        if code == 0 {
            Ok(1)
        } else {
            Err(Failure::Ours(code))
        }
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn question_mark(locks: &LockManager, code: u8) -> Result<u8, Failure> {
        let one = fails(code)?;
        tokio::task::yield_now().await;
        Ok(one + 1)
    }

    #[distributed_lock(name = "leave", wait = "0s", manager = locks)]
    async fn early(locks: &LockManager, early: bool) -> Result<u8, Failure> {
        if early {
            return Ok(1);
        }
        Ok(2)
    }

    #[tokio::test]
    async fn by_its_end_question_mark_or_return_keeps_the_result() {
        let locks = LockManager::in_memory();
        assert_eq!(question_mark(&locks, 0).await, Ok(2));
        assert!(!is_held(&locks, "leave").await);
        assert_eq!(question_mark(&locks, 9).await, Err(Failure::Ours(9)));
        assert!(!is_held(&locks, "leave").await);
        assert_eq!(early(&locks, true).await, Ok(1));
        assert!(!is_held(&locks, "leave").await);
        assert_eq!(early(&locks, false).await, Ok(2));
        assert!(!is_held(&locks, "leave").await);
    }

    #[tokio::test]
    async fn never_entering_it_converts_the_error() {
        let locks = LockManager::in_memory();
        let _guard = locks.lock("leave").acquire().await.expect("free");
        assert!(matches!(early(&locks, true).await, Err(Failure::Lock(_))));
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn panics(locks: &LockManager) -> Result<(), LockError> {
        tokio::task::yield_now().await;
        assert!(!is_held(locks, "leave").await, "on purpose");
        Ok(())
    }

    #[tokio::test]
    async fn by_a_panic_releases() {
        let locks = LockManager::in_memory();
        let caught = {
            let mut running = pin!(panics(&locks));
            std::future::poll_fn(move |context| {
                let poll = || running.as_mut().poll(context);
                let poll = std::panic::catch_unwind(AssertUnwindSafe(poll));
                poll.map_or(Poll::Ready(true), |poll| poll.map(|_| false))
            })
            .await
        };
        assert!(caught);
        becomes_free(&locks, "leave").await;
    }

    struct Dropped<'a>(&'a AtomicBool);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn endless(locks: &LockManager, dropped: &AtomicBool) -> Result<(), LockError> {
        let _dropped = Dropped(dropped);
        std::future::pending().await
    }

    #[tokio::test]
    async fn by_dropping_the_future_releases() {
        let locks = LockManager::in_memory();
        let dropped = AtomicBool::new(false);
        {
            let running =
                tokio::time::timeout(Duration::from_millis(50), endless(&locks, &dropped));
            running.await.expect_err("endless");
        }
        assert!(dropped.load(Ordering::SeqCst));
        becomes_free(&locks, "leave").await;
    }

    #[distributed_lock(name = "leave", ttl = "300ms", manager = locks)]
    async fn robbed(
        locks: &LockManager,
        server: &RedisServer,
        dropped: &AtomicBool,
    ) -> Result<(), LockError> {
        let _dropped = Dropped(dropped);
        server.cli(&["DEL", "lock:leave"]);
        std::future::pending().await
    }

    #[distributed_lock(name = "leave", ttl = "300ms", manager = locks, on_error = |e| Some(e))]
    async fn robbed_of_another(locks: &LockManager, server: &RedisServer) -> Option<LockError> {
        server.cli(&["DEL", "lock:leave"]);
        std::future::pending().await
    }

    #[tokio::test]
    async fn when_the_lock_is_lost() {
        let server = RedisServer::start();
        let locks = LockManager::connect(&server.url()).await.expect("it runs");
        let dropped = AtomicBool::new(false);
        let soon = Duration::from_secs(10);
        let answer = tokio::time::timeout(soon, robbed(&locks, &server, &dropped)).await;
        assert!(
            matches!(answer, Ok(Err(LockError::Lost { .. }))),
            "{answer:?}"
        );
        assert!(dropped.load(Ordering::SeqCst));
        let answer = tokio::time::timeout(soon, robbed_of_another(&locks, &server)).await;
        assert!(
            matches!(answer, Ok(Some(LockError::Lost { .. }))),
            "{answer:?}"
        );
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn takes<'a>(
        locks: &LockManager,
        used: Dropped<'a>,
        _unused: Dropped<'a>,
    ) -> Result<(), LockError> {
        drop(used);
        Ok(())
    }

    #[tokio::test]
    async fn drops_its_arguments() {
        let locks = LockManager::in_memory();
        let (used, unused) = (AtomicBool::new(false), AtomicBool::new(false));
        takes(&locks, Dropped(&used), Dropped(&unused))
            .await
            .expect("free");
        assert!(used.load(Ordering::SeqCst) && unused.load(Ordering::SeqCst));
    }

    struct WhenDropped<'a>(&'a LockManager, &'a AtomicBool);

    impl WhenDropped<'_> {
        fn was_held(&self) -> bool {
            self.1.load(Ordering::SeqCst)
        }
    }

    impl Drop for WhenDropped<'_> {
        fn drop(&mut self) {
            let mut asking = pin!(is_held(self.0, "leave"));
            let mut context = Context::from_waker(Waker::noop());
            let held = loop {
                if let Poll::Ready(held) = asking.as_mut().poll(&mut context) {
                    break held;
                }
            };
            self.1.store(held, Ordering::SeqCst);
        }
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn uses(locks: &LockManager, argument: WhenDropped<'_>) -> Result<bool, LockError> {
        Ok(argument.was_held())
    }

    #[tokio::test]
    async fn drops_what_it_used_before_the_release() {
        let locks = LockManager::in_memory();
        let held = AtomicBool::new(false);
        assert!(
            !uses(&locks, WhenDropped(&locks, &held))
                .await
                .expect("free")
        );
        assert!(
            held.load(Ordering::SeqCst),
            "the lock was held when the argument was dropped"
        );
    }

    #[distributed_lock(name = "leave", manager = locks)]
    async fn one_expression(locks: &LockManager) -> Result<u8, LockError> {
        Ok(1)
    }

    #[tokio::test]
    async fn of_one_expression() {
        assert_eq!(
            one_expression(&LockManager::in_memory())
                .await
                .expect("free"),
            1
        );
    }
}

mod names {
    use super::*;

    struct Loud<'a>(&'a AtomicUsize);

    impl Display for Loud<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.fetch_add(1, Ordering::SeqCst);
            f.write_str("loud")
        }
    }

    fn counted(count: &AtomicUsize) -> String {
        count.fetch_add(1, Ordering::SeqCst);
        "counted".into()
    }

    #[distributed_lock(name = "{loud}", manager = locks)]
    async fn template(locks: &LockManager, loud: &Loud<'_>) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(name = counted(count), manager = locks)]
    async fn expression(locks: &LockManager, count: &AtomicUsize) -> Result<(), LockError> {
        Ok(())
    }

    #[test]
    fn are_computed_once_at_the_first_poll() {
        let locks = LockManager::in_memory();
        let count = AtomicUsize::new(0);
        let loud = Loud(&count);
        let context = &mut Context::from_waker(Waker::noop());
        let mut running = pin!(template(&locks, &loud));
        assert_eq!(count.load(Ordering::SeqCst), 0);
        let _ = running.as_mut().poll(context);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let mut running = pin!(expression(&locks, &count));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let _ = running.as_mut().poll(context);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[distributed_lock(name = "a:{left}:{right}", manager = locks)]
    async fn holds(
        locks: &LockManager,
        left: &str,
        right: &str,
        expected: &str,
    ) -> Result<bool, LockError> {
        Ok(is_held(locks, expected).await)
    }

    #[tokio::test]
    async fn encode_their_values() {
        let locks = LockManager::in_memory();
        for (left, right, expected) in [
            ("x", "y", "a:x:y"),
            ("x:y", "z", "a:x%3Ay:z"),
            ("x", "y:z", "a:x:y%3Az"),
            ("{x}", "%", "a:%7Bx%7D:%25"),
            ("a b/c", "A-_.9", "a:a%20b%2Fc:A-_.9"),
            ("größe", "東京", "a:größe:東京"),
            ("\u{1f512}", "\0", "a:%F0%9F%94%92:%00"),
            ("–", "é", "a:%E2%80%93:é"),
        ] {
            assert!(
                holds(&locks, left, right, expected).await.expect("free"),
                "{expected}"
            );
        }
    }

    #[tokio::test]
    async fn with_an_empty_value_are_refused() {
        let locks = LockManager::in_memory();
        assert!(holds(&locks, "", "y", "a::y").await.is_err());
        assert!(holds(&locks, "x", "", "a:x:").await.is_err());
    }

    #[tokio::test]
    async fn over_one_kibibyte_are_refused() {
        let locks = LockManager::in_memory();
        let long = "x".repeat(1020);
        assert!(
            holds(&locks, &long, "y", "a").await.is_ok(),
            "a:, long, :, y are 1024 bytes"
        );
        assert!(holds(&locks, &long, "yy", "a").await.is_err());
        let encoded = ":".repeat(400);
        assert!(
            holds(&locks, &encoded, "y", "a").await.is_err(),
            "three bytes each"
        );
    }

    struct Address {
        r#type: u8,
        pair: (u8, (u8, u8)),
    }

    #[distributed_lock(name = "{at.type}:{at.pair.1.0}:{r#type}", manager = locks)]
    async fn paths(locks: &LockManager, at: &Address, r#type: u8) -> Result<bool, LockError> {
        Ok(is_held(locks, "1:3:9").await && at.pair.0 == 2 && at.r#type == 1)
    }

    #[tokio::test]
    async fn follow_fields() {
        let at = Address {
            r#type: 1,
            pair: (2, (3, 4)),
        };
        assert_eq!(at.pair.1.1, 4);
        assert!(
            paths(&LockManager::in_memory(), &at, 9)
                .await
                .expect("free")
        );
    }

    #[distributed_lock(name = "{{user{id}}}:cart", manager = locks)]
    async fn tagged(locks: &LockManager, id: u8) -> Result<bool, LockError> {
        Ok(is_held(locks, "{user4}:cart").await)
    }

    #[tokio::test]
    async fn may_have_a_hash_tag() {
        assert!(tagged(&LockManager::in_memory(), 4).await.expect("free"));
    }

    fn name_of(id: u8) -> LockName {
        format!("own:{id}").into()
    }

    #[distributed_lock(name = name_of(id), manager = locks)]
    async fn own(locks: &LockManager, id: u8) -> Result<bool, LockError> {
        Ok(is_held(locks, "own:4").await)
    }

    #[distributed_lock(name = format!("{}:{}", id, id + 1), manager = locks)]
    async fn formatted(locks: &LockManager, id: u8) -> Result<bool, LockError> {
        Ok(is_held(locks, "4:5").await)
    }

    const NAME: &str = "{not a template}";

    #[distributed_lock(name = NAME, manager = locks)]
    async fn constant(locks: &LockManager) -> Result<bool, LockError> {
        Ok(is_held(locks, "{not a template}").await)
    }

    #[tokio::test]
    async fn may_be_expressions() {
        let locks = LockManager::in_memory();
        assert!(own(&locks, 4).await.expect("free"));
        assert!(formatted(&locks, 4).await.expect("free"));
        assert!(constant(&locks).await.expect("free"));
    }

    #[distributed_lock(name = "moved:{owned}", manager = locks)]
    async fn moved(locks: LockManager, owned: String) -> Result<String, LockError> {
        drop(locks);
        Ok(owned)
    }

    #[tokio::test]
    async fn do_not_take_what_the_body_takes() {
        let moved = moved(LockManager::in_memory(), "x".into()).await;
        assert_eq!(moved.expect("free"), "x");
    }
}

mod durations {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);

    const fn minutes(count: u64) -> Duration {
        Duration::from_secs(60 * count)
    }

    #[distributed_lock(name = "c", ttl = TTL, wait = minutes(1), manager = locks)]
    async fn constant(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    struct Short;

    trait Lease {
        const TTL: Duration;
    }

    impl Lease for Short {
        const TTL: Duration = Duration::from_millis(100);
    }

    impl Short {
        const WAIT: Duration = Duration::from_millis(1);

        #[distributed_lock(name = "c", ttl = <Self as Lease>::TTL, wait = Self::WAIT, manager = locks)]
        async fn own(&self, locks: &LockManager) -> Result<(), LockError> {
            Ok(())
        }
    }

    #[distributed_lock(name = "c", ttl = L::TTL, wait = Duration::from_millis(W), manager = locks)]
    async fn generic<L: Lease, const W: u64>(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[tokio::test]
    async fn may_be_constants() {
        let locks = LockManager::in_memory();
        constant(&locks).await.expect("free");
        Short.own(&locks).await.expect("free");
        generic::<Short, 1>(&locks).await.expect("free");
    }
}

mod signatures {
    use super::*;

    struct Shop {
        locks: LockManager,
        id: u8,
        sold: u32,
    }

    fn shop() -> Shop {
        Shop {
            locks: LockManager::in_memory(),
            id: 5,
            sold: 0,
        }
    }

    impl Shop {
        #[distributed_lock(name = "shop:{self.id}", manager = self.locks)]
        async fn by_ref(&self) -> Result<bool, LockError> {
            Ok(is_held(&self.locks, "shop:5").await)
        }

        #[distributed_lock(name = "shop:{self.id}", manager = &self.locks)]
        async fn by_mut(&mut self, count: u32) -> Result<&u32, LockError> {
            self.sold += count;
            Ok(&self.sold)
        }

        #[distributed_lock(name = "shop:{self.id}", manager = self.locks)]
        async fn by_value(mut self) -> Result<Self, LockError> {
            self.sold += 1;
            Ok(self)
        }

        #[distributed_lock(name = "shop:{self.id}", manager = self.locks)]
        async fn by_arc(self: Arc<Self>) -> Result<u8, LockError> {
            tokio::task::yield_now().await;
            Ok(self.id)
        }

        #[distributed_lock(name = "shop:{self.id}", manager = self.locks)]
        async fn by_pin(self: Pin<&mut Self>) -> Result<u8, LockError> {
            Ok(self.id)
        }

        #[distributed_lock(name = "shop", manager = Self::manager())]
        async fn without() -> Result<u8, LockError> {
            Ok(1)
        }

        fn manager() -> LockManager {
            LockManager::in_memory()
        }
    }

    #[tokio::test]
    async fn take_self_in_all_forms() {
        let mut shop = shop();
        assert!(shop.by_ref().await.expect("free"));
        assert_eq!(*shop.by_mut(3).await.expect("free"), 3);
        assert_eq!(Pin::new(&mut shop).by_pin().await.expect("free"), 5);
        let shop = shop.by_value().await.expect("free");
        assert_eq!(shop.sold, 4);
        assert_eq!(Arc::new(shop).by_arc().await.expect("free"), 5);
        assert_eq!(Shop::without().await.expect("free"), 1);
    }

    #[distributed_lock(name = "{key}", manager = locks)]
    async fn generic<'a, K, T, const N: usize>(
        locks: &LockManager,
        key: K,
        items: &'a mut [T; N],
        more: T,
    ) -> Result<&'a T, LockError>
    where
        K: Display + Send,
        T: AddAssign + Copy + Send + Sync,
    {
        for item in &mut *items {
            *item += more;
        }
        Ok(&items[N - 1])
    }

    #[distributed_lock(name = "{key}", manager = locks)]
    async fn impl_trait(
        locks: &LockManager,
        key: impl Display + Send,
    ) -> Result<impl Iterator<Item = u8>, LockError> {
        Ok((0..3).map(|n: u8| n + 1))
    }

    #[distributed_lock(name = "n", manager = locks, on_error = |e| Err(e.to_string()))]
    async fn nested_impl(
        locks: &LockManager,
    ) -> Result<(impl Display, Box<impl Fn(u8) -> u8>), String> {
        Ok(("x", Box::new(|n| n + 1)))
    }

    #[distributed_lock(name = "n", manager = locks, on_error = |_| "none".to_owned())]
    async fn only_impl(locks: &LockManager, number: u8) -> impl Display + use<> {
        number.to_string()
    }

    #[tokio::test]
    async fn are_generic() {
        let locks = LockManager::in_memory();
        let mut items = [1, 2, 3];
        assert_eq!(*generic(&locks, "k", &mut items, 4).await.expect("free"), 7);
        assert_eq!(items, [5, 6, 7]);
        let all: Vec<u8> = impl_trait(&locks, 'c').await.expect("free").collect();
        assert_eq!(all, [1, 2, 3]);
        let (shown, add) = nested_impl(&locks).await.expect("free");
        assert_eq!((shown.to_string(), add(1)), ("x".to_owned(), 2));
        assert_eq!(format!("{:>2}", only_impl(&locks, 7).await), " 7");
    }

    struct Point {
        x: u8,
        rest: (u8, [u8; 2]),
    }

    #[distributed_lock(name = "{x}:{second}:{one}:{whole}", manager = locks)]
    async fn patterns(
        locks: &LockManager,
        Point {
            x,
            rest: (_, [one, _]),
        }: Point,
        (_, mut second): (u8, u8),
        whole @ 0..=u8::MAX: u8,
        _: u8,
        &by_ref: &u8,
        mut owned: Vec<u8>,
    ) -> Result<Vec<u8>, LockError> {
        second += 1;
        owned.extend([x, one, second, whole, by_ref]);
        Ok(owned)
    }

    #[tokio::test]
    async fn take_patterns() {
        let locks = LockManager::in_memory();
        let point = Point {
            x: 1,
            rest: (2, [3, 4]),
        };
        let all = patterns(&locks, point, (5, 6), 7, 8, &9, vec![0]).await;
        assert_eq!(all.expect("free"), [0, 1, 3, 7, 7, 9]);
    }

    trait Ship {
        fn ship(&self, locks: &LockManager) -> impl Future<Output = Result<u8, LockError>> + Send;

        #[allow(async_fn_in_trait, reason = "nothing outside implements it")]
        #[distributed_lock(name = "default", manager = locks)]
        async fn default(&self, locks: &LockManager) -> Result<u8, LockError> {
            Ok(1)
        }
    }

    struct Van(u8);

    impl Ship for Van {
        #[distributed_lock(name = "van:{self.0}", manager = locks)]
        async fn ship(&self, locks: &LockManager) -> Result<u8, LockError> {
            Ok(self.0)
        }
    }

    #[tokio::test]
    async fn implement_traits() {
        let locks = LockManager::in_memory();
        assert_eq!(Ship::ship(&Van(3), &locks).await.expect("free"), 3);
        assert_eq!(Van(3).default(&locks).await.expect("free"), 1);
    }

    type Shipped<'a> = Pin<Box<dyn Future<Output = Result<String, LockError>> + Send + 'a>>;

    trait BoxedShip {
        fn ship<'a>(&'a self, locks: &'a LockManager, id: u8) -> Shipped<'a>;
    }

    impl BoxedShip for Van {
        // What `#[async_trait]`, which is expanded first, makes of an `async fn`.
        #[distributed_lock(name = "van:{self.0}:{id}", manager = locks)]
        fn ship<'a>(
            &'a self,
            locks: &'a LockManager,
            id: u8,
        ) -> Pin<Box<dyn Future<Output = Result<String, LockError>> + Send + 'a>> {
            Box::pin(async move {
                let __self = self;
                let locks = locks;
                let id = id;
                let __ret: Result<String, LockError> = {
                    let held = is_held(locks, "van:3:4").await;
                    Ok(format!("{held} {} {id}", __self.0))
                };
                __ret
            })
        }
    }

    #[tokio::test]
    async fn are_what_async_trait_makes() {
        let locks = LockManager::in_memory();
        let ship: &dyn BoxedShip = &Van(3);
        assert_eq!(
            assert_send(ship.ship(&locks, 4)).await.expect("free"),
            "true 3 4"
        );
        assert!(!is_held(&locks, "van:3:4").await);
    }

    macro_rules! locked {
        ($vis:vis $name:ident($locks:ident, $($arg:ident: $type:ty),*) -> $output:ty $body:block) => {
            #[distributed_lock(name = "made:{hidden}", manager = $locks)]
            $vis async fn $name(
                $locks: &LockManager,
                hidden: u8,
                $($arg: $type),*
            ) -> Result<$output, LockError> {
                let inner: $output = $body;
                assert_eq!(hidden, 6);
                Ok(inner)
            }
        };
        (whole $name:ident $template:literal $key:expr, $pattern:pat, $body:block) => {
            #[distributed_lock(name = $template, manager = $key)]
            async fn $name($pattern: (u8, u8)) -> Result<u8, LockError> $body
        };
        (item $locks:expr, $item:item) => {
            #[distributed_lock(name = "item:{id}", manager = $locks)]
            $item
        };
    }

    locked!(pub(super) made(locks, a: u8, b: &str) -> usize { usize::from(a) + b.len() });
    locked!(whole unmade "made:{left}" LockManager::in_memory(), (left, right), { Ok(left + right) });
    locked!(item locks, async fn item(locks: &LockManager, id: u8) -> Result<u8, LockError> { Ok(id) });

    #[tokio::test]
    async fn are_made_by_macros() {
        let locks = LockManager::in_memory();
        assert_eq!(made(&locks, 6, 1, "abc").await.expect("free"), 4);
        assert_eq!(unmade((1, 2)).await.expect("free"), 3);
        assert_eq!(item(&locks, 8).await.expect("free"), 8);
    }

    /// Its documentation and attributes stay.
    #[must_use]
    #[distributed_lock(name = "inner", manager = locks, on_error = |_| 0)]
    #[cfg_attr(all(), inline)]
    pub(super) async fn attributes(locks: &LockManager) -> u8 {
        #![allow(clippy::items_after_statements, reason = "to see that it is heeded")]
        let answer = 1;
        const fn same(answer: u8) -> u8 {
            answer
        }
        same(answer)
    }

    #[tokio::test]
    async fn have_attributes() {
        assert_eq!(attributes(&LockManager::in_memory()).await, 1);
    }

    #[distributed_lock(name = "shadow", manager = manager)]
    async fn shadows(
        manager: &LockManager,
        name: u8,
        guard: u8,
        body: u8,
        lost: u8,
    ) -> Result<u8, LockError> {
        struct LockError;
        let outcome = LockError;
        let LockError = outcome;
        Ok(name + guard + body + lost)
    }

    #[tokio::test]
    async fn may_use_the_names_that_the_expansion_uses() {
        let sum = shadows(&LockManager::in_memory(), 1, 2, 3, 4).await;
        assert_eq!(sum.expect("free"), 10);
    }

    #[distributed_lock(name = "never", manager = locks, on_error = |_| std::process::abort())]
    async fn never(locks: &LockManager) -> ! {
        std::future::pending().await
    }

    #[tokio::test]
    async fn may_never_return() {
        let locks = LockManager::in_memory();
        let running = tokio::time::timeout(Duration::from_millis(20), never(&locks));
        running.await.expect_err("never");
        becomes_free(&locks, "never").await;
    }

    #[allow(clippy::future_not_send, reason = "it is what the test is about")]
    #[distributed_lock(name = "local", manager = locks)]
    async fn not_send(locks: &LockManager, cell: &Cell<u8>) -> Result<(), LockError> {
        cell.set(1);
        tokio::task::yield_now().await;
        cell.set(cell.get() + 1);
        Ok(())
    }

    #[tokio::test]
    async fn need_not_be_send() {
        let cell = Cell::new(0);
        not_send(&LockManager::in_memory(), &cell)
            .await
            .expect("free");
        assert_eq!(cell.get(), 2);
    }

    const fn assert_send<T: Send>(future: T) -> T {
        future
    }

    #[tokio::test]
    async fn are_send_when_the_body_is() {
        let locks = LockManager::in_memory();
        let shop = shop();
        assert_send(shop.by_ref()).await.expect("free");
        assert_send(generic(&locks, 1, &mut [1], 1))
            .await
            .expect("free");
        tokio::spawn(Arc::new(shop).by_arc())
            .await
            .expect("no panic")
            .expect("free");
    }

    #[distributed_lock(name = "crate", manager = locks, crate = ::lock_core)]
    async fn renamed(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    mod reexport {
        pub(super) use lock_core::{LockGuard, macro_support};
    }

    #[distributed_lock(name = "crate", manager = locks, bind = held, crate = crate::signatures::reexport)]
    async fn reexported(locks: &LockManager) -> Result<(), LockError> {
        let _: &LockGuard = held;
        Ok(())
    }

    #[tokio::test]
    async fn find_a_renamed_crate() {
        renamed(&LockManager::in_memory()).await.expect("free");
        reexported(&LockManager::in_memory()).await.expect("free");
    }
}

mod size {
    use super::*;

    type Bytes<const N: usize> = [u8; N];

    async fn plain<const A: usize, const B: usize, const R: usize>(
        locks: &LockManager,
        argument: Bytes<A>,
    ) -> Result<Bytes<R>, LockError> {
        let local = [argument[0]; B];
        tokio::task::yield_now().await;
        let held = is_held(locks, "size").await;
        Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
    }

    #[distributed_lock(name = "size", ttl = "1s", wait = "1s", manager = locks)]
    async fn annotated<const A: usize, const B: usize, const R: usize>(
        locks: &LockManager,
        argument: Bytes<A>,
    ) -> Result<Bytes<R>, LockError> {
        let local = [argument[0]; B];
        tokio::task::yield_now().await;
        let held = is_held(locks, "size").await;
        Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
    }

    #[distributed_lock(name = "size", on_contended = |_| Ok([0; R]), manager = locks)]
    async fn answered<const A: usize, const B: usize, const R: usize>(
        locks: &LockManager,
        argument: Bytes<A>,
    ) -> Result<Bytes<R>, LockError> {
        let local = [argument[0]; B];
        tokio::task::yield_now().await;
        let held = is_held(locks, "size").await;
        Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
    }

    fn grows<const A: usize, const B: usize, const R: usize>(locks: &LockManager) {
        let plain = size_of_val(&plain::<A, B, R>(locks, [0; A]));
        let answered = size_of_val(&answered::<A, B, R>(locks, [0; A]));
        assert!(
            answered <= plain + 512 + A + R,
            "{A} bytes of arguments, {B} of locals, {R} of result: {plain} became {answered}"
        );
        let annotated = size_of_val(&annotated::<A, B, R>(locks, [0; A]));
        assert!(
            annotated <= plain + 512 + A + R,
            "{A} bytes of arguments, {B} of locals, {R} of result: {plain} became {annotated}"
        );
    }

    #[tokio::test]
    async fn grows_by_the_arguments_and_the_result_only() {
        let locks = LockManager::in_memory();
        assert!(annotated::<1, 1, 1>(&locks, [0]).await.is_ok());
        grows::<1, 1, 1>(&locks);
        grows::<1, 10_000, 1>(&locks);
        grows::<5_000, 1, 1>(&locks);
        grows::<1, 1, 3_000>(&locks);
        grows::<5_000, 10_000, 3_000>(&locks);
    }
}

mod bind {
    use super::*;

    #[distributed_lock(name = "bound", manager = locks, bind = held)]
    async fn bound(locks: &LockManager) -> Result<bool, LockError> {
        let held: &LockGuard = held;
        tokio::task::yield_now().await;
        Ok(!held.is_lost())
    }

    #[tokio::test]
    async fn gives_the_guard() {
        assert!(bound(&LockManager::in_memory()).await.expect("free"));
    }
}

mod on_error {
    use super::*;

    #[distributed_lock(
        name = "mapped",
        wait = "0s",
        manager = locks,
        on_error = |e| if e.is_contended() { code } else { 0 },
    )]
    async fn mapped(locks: &LockManager, code: u16, owned: String) -> u16 {
        drop(owned);
        code + 1
    }

    #[tokio::test]
    async fn says_what_to_return() {
        let locks = LockManager::in_memory();
        assert_eq!(mapped(&locks, 409, String::new()).await, 410);
        let _guard = locks.lock("mapped").acquire().await.expect("free");
        assert_eq!(mapped(&locks, 409, String::new()).await, 409);
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Status {
        Done,
        Busy,
    }

    fn busy(_: LockError) -> Status {
        Status::Busy
    }

    #[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| busy(e))]
    async fn without_a_result(locks: &LockManager) -> Status {
        Status::Done
    }

    #[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| drop(e))]
    async fn nothing(locks: &LockManager, ran: &AtomicBool) {
        ran.store(true, Ordering::SeqCst);
    }

    #[tokio::test]
    async fn is_for_any_type() {
        let locks = LockManager::in_memory();
        let ran = AtomicBool::new(false);
        let guard = locks.lock("mapped").acquire().await.expect("free");
        assert_eq!(without_a_result(&locks).await, Status::Busy);
        nothing(&locks, &ran).await;
        assert!(!ran.load(Ordering::SeqCst));
        guard.release().await.expect("held");
        assert_eq!(without_a_result(&locks).await, Status::Done);
        nothing(&locks, &ran).await;
        assert!(ran.load(Ordering::SeqCst));
    }

    #[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| Err(format!("{e}!"))?)]
    async fn question(locks: &LockManager) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
        Ok(1)
    }

    #[tokio::test]
    async fn may_use_question_marks() {
        let locks = LockManager::in_memory();
        let _guard = locks.lock("mapped").acquire().await.expect("free");
        let error = question(&locks).await.expect_err("held");
        assert!(error.to_string().ends_with('!'));
    }
}
