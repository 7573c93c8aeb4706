//! A child process of the tests, with an environment of its own. Connects to the URL of its argument, uses a lock,
//! and says what happened in one line.

use lock_core::{LockError, LockManager};
use test_support::child::{Arguments, say_line};
use test_support::fixtures::{NAME, current_thread_runtime};

fn main() {
    let url = Arguments::new().text();
    match current_thread_runtime().block_on(use_a_lock(&url)) {
        Ok(()) => say_line("used a lock"),
        Err(LockError::Backend(error)) => say_line(&format!("{:?}: {error}", error.kind())),
        Err(error) => say_line(&error.to_string()),
    }
}

async fn use_a_lock(url: &str) -> Result<(), LockError> {
    let locks = LockManager::connect(url).await?;
    locks.lock(NAME).acquire().await?.release().await
}
