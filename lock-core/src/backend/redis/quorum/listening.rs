//! The tasks that listen to the servers.

use tokio::task::JoinSet;

/// Runs the tasks until all of them end. A panic of one goes to the caller, which reports it and starts all again.
pub(super) async fn until_panic(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::caught;

    /// The others run for ever, so only the panic ends the wait.
    #[tokio::test(start_paused = true)]
    async fn panic_of_one_listener_goes_to_the_caller_at_once() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending());
        tasks.spawn(async { panic!("one listener") });
        let day = Duration::from_secs(24 * 60 * 60);
        let ended = tokio::time::timeout(day, caught(until_panic(tasks))).await;
        let payload = ended.expect("the panic is passed on").unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"one listener"));
    }
}
