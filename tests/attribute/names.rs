//! The name of the lock: placeholders, expressions and `lock_name!`.

#![allow(
    clippy::literal_string_with_formatting_args,
    reason = "templates of names look like format strings"
)]

use std::fmt;

use lock_core::error::{InvalidNameReason, InvalidSetting};
use lock_core::{Lock, LockError, LockManager, LockName, distributed_lock, lock_name};

use crate::is_held;

/// The key that a call locked.
type Key = Result<String, LockError>;

fn reason(answer: Key) -> InvalidNameReason {
    match answer.expect_err("an invalid name") {
        LockError::Invalid(InvalidSetting::Name { reason, .. }) => reason,
        other => unreachable!("{other}"),
    }
}

const LOCK_NAME: &str = "order:{order_id}";
const TENANT: &str = "acme";

#[distributed_lock(name = LOCK_NAME, bind = held, manager = LockManager::in_memory())]
async fn unexpanded(order_id: u64) -> Key {
    Ok(format!("{} {order_id}", held.key()))
}

#[distributed_lock(name = format!("{{{user}}}:cart"), bind = held, manager = LockManager::in_memory())]
async fn with_a_tag(user: &str) -> Key {
    Ok(held.key().into())
}

struct Shop {
    id: u64,
}

impl Shop {
    #[distributed_lock(name = "{self.id}".to_owned(), bind = held, manager = LockManager::in_memory())]
    async fn unexpanded(&self) -> Key {
        Ok(format!("{} {}", held.key(), self.id))
    }
}

#[tokio::test]
async fn template_in_a_constant_is_an_error_at_the_call() {
    let error = unexpanded(7)
        .await
        .expect_err("the constant is not a template");
    let text = error.to_string();
    assert!(text.contains("order:{order_id}"), "{text}");
    assert!(text.contains("lock_name!"), "{text}");
    assert_eq!(
        reason(unexpanded(7).await),
        InvalidNameReason::UnexpandedTemplate
    );
    let shop = Shop { id: 7 };
    assert_eq!(
        reason(shop.unexpanded().await),
        InvalidNameReason::UnexpandedTemplate
    );
    assert_eq!(
        reason(one_of_two_constants(1).await),
        InvalidNameReason::UnexpandedTemplate
    );
    assert_eq!(one_of_two_constants(0).await.expect("free"), "lock:order:0");
}

#[distributed_lock(
    name = if order_id > 0 { String::from(LOCK_NAME) } else { "order:0".to_owned() },
    bind = held,
    manager = LockManager::in_memory(),
)]
async fn one_of_two_constants(order_id: u64) -> Key {
    Ok(held.key().into())
}

#[distributed_lock(name = user, bind = held, manager = LockManager::in_memory())]
async fn given(user: &str) -> Key {
    Ok(held.key().into())
}

#[distributed_lock(name = [format!("{{{user}}}:cart"), user.clone()], bind = held, manager = LockManager::in_memory())]
async fn listed(user: String) -> Key {
    Ok(held
        .guards()
        .iter()
        .map(lock_core::LockGuard::key)
        .collect::<Vec<_>>()
        .join(" "))
}

#[distributed_lock(
    name = LOCK_NAME.replace("{order_id}", order_id),
    bind = held,
    manager = LockManager::in_memory(),
)]
async fn replaced(order_id: &str) -> Key {
    Ok(held.key().into())
}

impl Shop {
    fn tag(&self) -> String {
        format!("{{self}}:{}", self.id)
    }

    #[distributed_lock(name = self.tag(), bind = held, manager = LockManager::in_memory())]
    async fn tagged(&self) -> Key {
        Ok(held.key().into())
    }
}

#[derive(Lock)]
#[lock(name = format!("{{{}}}:cart", self.user))]
struct Cart<'a> {
    user: &'a str,
}

#[tokio::test]
async fn value_that_equals_the_name_of_a_parameter_is_a_name() {
    for user in ["u1", "user"] {
        let expected = format!("lock:{{{user}}}:cart");
        assert_eq!(with_a_tag(user).await.expect("free"), expected);
        let locks = LockManager::in_memory();
        let held = locks.hold(Cart { user }).acquire().await.expect("free");
        assert_eq!(held.guard().key(), expected);
    }
    assert_eq!(
        given("{user}:cart").await.expect("free"),
        "lock:{user}:cart"
    );
    let keys = listed("user".into()).await.expect("free");
    assert_eq!(keys, "lock:user lock:{user}:cart");
    let key = replaced("{order_id}").await;
    assert_eq!(key.expect("free"), "lock:order:{order_id}");
    let key = Shop { id: 7 }.tagged().await;
    assert_eq!(key.expect("free"), "lock:{self}:7");
}

#[derive(Clone)]
struct Order {
    customer: Option<u64>,
    r#gen: u32,
}

#[distributed_lock(
    name = lock_name!("{TENANT}:{}:{order.gen}:{N}", order.customer.map_or_else(|| "none".into(), |id| id.to_string())),
    bind = held,
    manager = LockManager::in_memory(),
)]
async fn by_expressions<const N: usize>(order: &Order) -> Key {
    Ok(held.key().into())
}

#[distributed_lock(name = "{order.gen}:{order.r#gen}:{r#gen}", bind = held, manager = LockManager::in_memory())]
async fn generation(order: &Order, r#gen: u8) -> Key {
    Ok(held.key().into())
}

#[tokio::test]
async fn lock_name_macro_accepts_constants_and_expressions() {
    let order = Order {
        customer: Some(3),
        r#gen: 4,
    };
    let key = by_expressions::<5>(&order).await;
    assert_eq!(key.expect("free"), "lock:acme:3:4:5");
    let no_customer = Order {
        customer: None,
        ..order.clone()
    };
    let key = by_expressions::<5>(&no_customer).await;
    assert_eq!(key.expect("free"), "lock:acme:none:4:5");
    let key = generation(&order, 6).await;
    assert_eq!(key.expect("free"), "lock:4:4:6");
}

#[tokio::test]
async fn lock_name_macro_works_with_a_request() {
    let locks = LockManager::in_memory();
    let (order, nothing) = (7, "");
    let guard = locks
        .lock(lock_name!("order:{order}:{}", "a:b c"))
        .acquire();
    assert_eq!(guard.await.expect("free").key(), "lock:order:7:a%3Ab%20c");
    let templated = lock_name!("order:{order}:{}", 7);
    let template = concat!("order:{", "order}:{}");
    assert_eq!(templated.template(), Some(template));
    let name: LockName = lock_name!("plain");
    assert_eq!(name.template(), Some("plain"));
    assert!(!is_held(&locks, name.as_str()).await);
    for empty in [
        lock_name!("order:{nothing}"),
        lock_name!("order:{}", nothing),
    ] {
        let error = locks
            .lock(empty)
            .acquire()
            .await
            .expect_err("an empty value");
        assert!(
            matches!(
                error,
                LockError::Invalid(InvalidSetting::Name {
                    reason: InvalidNameReason::EmptyValue,
                    ..
                })
            ),
            "{error:?}"
        );
    }
}

struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

#[distributed_lock(name = "x:{value}", bind = held, manager = LockManager::in_memory())]
async fn displayed<T: fmt::Display + Sync>(value: T) -> Key {
    Ok(held.key().into())
}

#[tokio::test]
async fn failing_display_is_not_reported_as_empty() {
    assert_eq!(
        reason(displayed(Broken).await),
        InvalidNameReason::BrokenValue
    );
    assert_eq!(reason(displayed("").await), InvalidNameReason::EmptyValue);
    assert_eq!(displayed(1).await.expect("free"), "lock:x:1");
}

// A letter with a combining mark that has no composed form.
#[distributed_lock(name = "{x̱}", bind = held, manager = LockManager::in_memory())]
async fn marked(x̱: u8) -> Key {
    Ok(held.key().into())
}

#[tokio::test]
async fn placeholder_may_be_any_identifier() {
    assert_eq!(marked(1).await.expect("free"), "lock:1");
}

const fn assert_send<T: Send>(future: T) -> T {
    future
}

async fn next() -> u8 {
    tokio::task::yield_now().await;
    2
}

#[tokio::test]
async fn lock_name_macro_may_be_used_before_an_await() {
    let locks = LockManager::in_memory();
    let counter = std::sync::Mutex::new(1_u8);
    let key = assert_send(async {
        let order = 7;
        let name = lock_name!("a:{}:{}", order, next().await);
        let guard = locks.lock(name).acquire().await?;
        drop(guard);
        // The finished name holds no value: neither a trait object nor the mutex guard.
        let guard = locks.lock(lock_name!("a:{order}:{}", counter.lock().expect("free")));
        let guard = guard.acquire().await?;
        *counter.lock().expect("free") += 1;
        Ok::<_, LockError>(guard.key().to_owned())
    });
    assert_eq!(key.await.expect("free"), "lock:a:7:1");
}

#[distributed_lock(
    name = if id > 0 { lock_name!("{{id}}:a:{id}") } else { LockName::from("b") },
    bind = held,
    manager = LockManager::in_memory(),
)]
async fn chosen(id: u8) -> Key {
    Ok(held.key().into())
}

#[tokio::test]
async fn lock_name_macro_may_have_a_hash_tag_named_like_a_parameter() {
    assert_eq!(chosen(1).await.expect("free"), "lock:{id}:a:1");
    assert_eq!(chosen(0).await.expect("free"), "lock:b");
}
