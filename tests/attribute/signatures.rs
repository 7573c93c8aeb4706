//! Signatures of functions that can have the attribute.

use std::cell::Cell;
use std::fmt::Display;
use std::future::Future;
use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, distributed_lock};

use crate::{becomes_free, is_held};

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
async fn method_may_take_any_form_of_self() {
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
async fn function_may_be_generic() {
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
async fn parameters_may_be_patterns() {
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

    #[allow(async_fn_in_trait, reason = "no other crate implements the trait")]
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
async fn method_may_implement_a_trait() {
    let locks = LockManager::in_memory();
    assert_eq!(Ship::ship(&Van(3), &locks).await.expect("free"), 3);
    assert_eq!(Van(3).default(&locks).await.expect("free"), 1);
}

type Shipped<'a> = Pin<Box<dyn Future<Output = Result<String, LockError>> + Send + 'a>>;

trait BoxedShip {
    fn ship<'a>(&'a self, locks: &'a LockManager, id: u8) -> Shipped<'a>;
}

impl BoxedShip for Van {
    // The function that `#[async_trait]`, which expands first, generates from an `async fn`.
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
async fn function_may_be_generated_by_async_trait() {
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
async fn function_may_be_generated_by_a_macro() {
    let locks = LockManager::in_memory();
    assert_eq!(made(&locks, 6, 1, "abc").await.expect("free"), 4);
    assert_eq!(unmade((1, 2)).await.expect("free"), 3);
    assert_eq!(item(&locks, 8).await.expect("free"), 8);
}

/// The attribute keeps this documentation and the other attributes.
#[must_use]
#[distributed_lock(name = "inner", manager = locks, on_error = |_| 0)]
#[cfg_attr(all(), inline)]
pub(super) async fn attributes(locks: &LockManager) -> u8 {
    #![allow(
        clippy::items_after_statements,
        reason = "shows that the attribute keeps it"
    )]
    let answer = 1;
    const fn same(answer: u8) -> u8 {
        answer
    }
    same(answer)
}

#[tokio::test]
async fn function_keeps_its_attributes() {
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
async fn function_may_use_the_names_of_the_expansion() {
    let sum = shadows(&LockManager::in_memory(), 1, 2, 3, 4).await;
    assert_eq!(sum.expect("free"), 10);
}

#[distributed_lock(name = "never", manager = locks, on_error = |_| std::process::abort())]
async fn never(locks: &LockManager) -> ! {
    std::future::pending().await
}

#[tokio::test]
async fn function_may_never_return() {
    let locks = LockManager::in_memory();
    let running = tokio::time::timeout(Duration::from_millis(20), never(&locks));
    running.await.expect_err("never");
    becomes_free(&locks, "never").await;
}

#[allow(clippy::future_not_send, reason = "the test is about such a future")]
#[distributed_lock(name = "local", manager = locks)]
async fn not_send(locks: &LockManager, cell: &Cell<u8>) -> Result<(), LockError> {
    cell.set(1);
    tokio::task::yield_now().await;
    cell.set(cell.get() + 1);
    Ok(())
}

#[tokio::test]
async fn future_need_not_be_send() {
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
async fn future_is_send_if_the_body_is() {
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
    pub(super) use lock_core::*;
}

#[distributed_lock(name = "crate", manager = locks, bind = held, crate = crate::signatures::reexport)]
async fn reexported(locks: &LockManager) -> Result<(), LockError> {
    let _: &LockGuard = held;
    Ok(())
}

#[tokio::test]
async fn crate_option_names_a_renamed_crate() {
    renamed(&LockManager::in_memory()).await.expect("free");
    reexported(&LockManager::in_memory()).await.expect("free");
}
