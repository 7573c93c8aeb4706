//! The parameters that the body captures, and the order of drops: both as in the function without
//! the attribute.

use std::cell::RefCell;

use lock_core::{LockError, LockManager, distributed_lock};

thread_local! {
    static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Logs its name when it is dropped.
struct Tracked(&'static str);

impl Drop for Tracked {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| dropped.push(self.0));
    }
}

fn dropped() -> Vec<&'static str> {
    DROPPED.take()
}

type Pair = (Tracked, u8);

async fn plain(first: Tracked, second: Pair, third: Tracked) -> Result<u8, LockError> {
    let _local = Tracked("local");
    tokio::task::yield_now().await;
    let _ = &third.0;
    Ok(second.1 + u8::try_from(first.0.len()).unwrap_or_default())
}

#[distributed_lock(name = "{second.1}", manager = LockManager::in_memory())]
async fn annotated(first: Tracked, second: Pair, third: Tracked) -> Result<u8, LockError> {
    let _local = Tracked("local");
    tokio::task::yield_now().await;
    let _ = &third.0;
    Ok(second.1 + u8::try_from(first.0.len()).unwrap_or_default())
}

#[tokio::test]
async fn parameters_are_dropped_in_the_order_of_the_plain_function() {
    let expected = ["local", "third", "second", "first"];
    for annotate in [false, true] {
        let first = Tracked("first");
        let second = (Tracked("second"), 1);
        let third = Tracked("third");
        let sum = if annotate {
            annotated(first, second, third).await
        } else {
            plain(first, second, third).await
        };
        assert_eq!(sum.expect("free"), 6);
        assert_eq!(dropped(), expected, "annotated: {annotate}");
    }
}

struct Product {
    price: u64,
    name: String,
}

#[distributed_lock(name = "product:{product.name}", manager = LockManager::in_memory())]
async fn reprice(mut product: Product) -> Result<u64, LockError> {
    product.price = 7;
    Ok(product.price)
}

#[distributed_lock(name = "product:{product.name}", manager = LockManager::in_memory())]
async fn rename(mut product: Product) -> Result<String, LockError> {
    product.name = "b".into();
    Ok(product.name)
}

#[distributed_lock(name = "pair:{pair.0}", manager = LockManager::in_memory())]
async fn change(mut pair: (u8, u8), (mut left, right): (u8, u8)) -> Result<u8, LockError> {
    pair.0 = 1;
    left += right;
    Ok(pair.0 + left)
}

#[tokio::test]
async fn parameter_field_may_be_assigned_without_a_warning() {
    let product = || Product {
        price: 1,
        name: "a".into(),
    };
    assert_eq!(reprice(product()).await.expect("free"), 7);
    assert_eq!(rename(product()).await.expect("free"), "b");
    assert_eq!(change((2, 3), (4, 5)).await.expect("free"), 10);
}

#[distributed_lock(
    name = "x",
    wait = "0s",
    on_contended = |_| {
        count += 1;
        Ok(count)
    },
    manager = locks,
)]
async fn counted(locks: &LockManager, mut count: u8) -> Result<u8, LockError> {
    count += 10;
    Ok(count)
}

#[tokio::test]
async fn option_expression_may_change_a_parameter_of_the_body() {
    let locks = LockManager::in_memory();
    assert_eq!(counted(&locks, 1).await.expect("free"), 11);
    let _guard = locks.lock("x").acquire().await.expect("free");
    assert_eq!(counted(&locks, 1).await.expect("answered"), 2);
}

#[distributed_lock(name = "x", wait = "0s", on_error = |_| 0, manager = locks)]
async fn answers_after_the_body(locks: &LockManager, argument: Tracked) -> u8 {
    let _ = &argument.0;
    std::future::pending().await
}

#[distributed_lock(
    name = "x",
    ttl = "100ms",
    renew = never,
    on_error = |_| u8::try_from(dropped().len()).unwrap_or_default(),
    manager = locks,
)]
async fn loses(locks: &LockManager, argument: Tracked) -> u8 {
    let _ = &argument.0;
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn body_is_dropped_before_the_loss_handler_runs() {
    let locks = LockManager::in_memory();
    assert_eq!(loses(&locks, Tracked("argument")).await, 1);
    let guard = locks.lock("x").acquire().await.expect("free");
    assert_eq!(answers_after_the_body(&locks, Tracked("unused")).await, 0);
    assert_eq!(dropped(), ["unused"]);
    drop(guard);
}

/// A type whose fields have the names of parameters.
struct Named {
    id: u64,
    locks: u8,
}

#[distributed_lock(name = "field:{id}", manager = locks)]
async fn named_as_a_field(locks: LockManager, id: u64) -> Result<Named, LockError> {
    Ok(Named { id: 1, locks: 2 })
}

#[distributed_lock(name = "shadowed:{id}", manager = locks)]
async fn named_as_a_local(locks: &LockManager, id: u64) -> Result<u64, LockError> {
    let id = 3;
    Ok(id)
}

#[allow(
    clippy::literal_string_with_formatting_args,
    reason = "the text only looks like a template"
)]
#[distributed_lock(name = "text:{id}", manager = locks)]
async fn named_in_a_text(locks: &LockManager, id: u64) -> Result<usize, LockError> {
    Ok(["/orders/{id}"].len())
}

#[distributed_lock(name = id, manager = LockManager::in_memory())]
async fn moved_by_the_name(id: String) -> Result<Named, LockError> {
    Ok(Named { id: 4, locks: 5 })
}

#[tokio::test]
async fn name_of_a_parameter_may_mean_something_else_in_the_body() {
    let locks = LockManager::in_memory();
    let named = named_as_a_field(locks.clone(), 7).await.expect("free");
    assert_eq!((named.id, named.locks), (1, 2));
    assert_eq!(named_as_a_local(&locks, 7).await.expect("free"), 3);
    assert_eq!(named_in_a_text(&locks, 7).await.expect("free"), 1);
    assert_eq!(moved_by_the_name("a".into()).await.expect("free").id, 4);
}
