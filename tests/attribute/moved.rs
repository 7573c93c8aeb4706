//! Options that move a parameter of which the body only repeats the word.

#![allow(
    clippy::literal_string_with_formatting_args,
    clippy::redundant_closure_for_method_calls,
    reason = "the bodies name parameters in closures and texts"
)]

use lock_core::{Lock, LockError, LockManager, distributed_lock};

#[derive(Lock)]
#[lock(name = "page:{path}", wait = "0s")]
struct PageLock {
    path: String,
}

#[derive(Clone)]
struct Page {
    path: String,
}

#[distributed_lock(lock = PageLock { path }, manager = locks)]
async fn field_and_variable(
    locks: &LockManager,
    path: String,
    page: Page,
) -> Result<usize, LockError> {
    let path = &page.path;
    tokio::task::yield_now().await;
    Ok(path.len())
}

#[distributed_lock(name = path, manager = locks)]
async fn key_of_a_macro(
    locks: &LockManager,
    path: String,
    page: Page,
) -> Result<String, LockError> {
    tracing::info!(path = %page.path, route = "/pages/{path}", "done");
    let json = serde_json::json!({ "path": page.path, "route": "/pages/{path}" });
    Ok(json.to_string())
}

#[distributed_lock(lock = PageLock { path }, manager = locks, bind = held)]
async fn closure_and_string(
    locks: &LockManager,
    path: String,
    pages: Vec<Page>,
) -> Result<Vec<String>, LockError> {
    assert_eq!(held.path, "a");
    let routes = ["/pages/{path}"].map(|path| path.len());
    let paths = pages.iter().map(|Page { path }| path.repeat(routes[0]));
    Ok(paths.collect())
}

#[distributed_lock(lock = PageLock { path }, on_contended = |_| Ok(0), manager = locks)]
async fn select_and_match(
    locks: &LockManager,
    path: String,
    page: Option<Page>,
) -> Result<usize, LockError> {
    let length = match page {
        Some(Page { path }) if !path.is_empty() => path.len(),
        _ => 0,
    };
    tokio::select! {
        path = tokio::task::yield_now() => { let () = path; Ok(length) }
    }
}

/// An option that borrows leaves the parameter to the body.
#[distributed_lock(lock = PageLock { path: path.clone() }, manager = locks)]
async fn both(locks: &LockManager, mut path: String) -> Result<String, LockError> {
    path.push('!');
    Ok(path)
}

#[tokio::test]
async fn body_may_repeat_the_word_of_a_parameter_that_an_option_moves() {
    let locks = LockManager::in_memory();
    let path = || "a".to_owned();
    let page = Page { path: path() };
    let length = field_and_variable(&locks, path(), page.clone()).await;
    assert_eq!(length.expect("free"), 1);
    let json = key_of_a_macro(&locks, path(), page.clone()).await;
    assert!(json.expect("free").contains("/pages/{path}"));
    let paths = closure_and_string(&locks, path(), vec![page.clone()]).await;
    assert_eq!(paths.expect("free"), ["a".repeat(13)]);
    let length = select_and_match(&locks, path(), Some(page)).await;
    assert_eq!(length.expect("free"), 1);
    assert_eq!(both(&locks, path()).await.expect("free"), "a!");
}
