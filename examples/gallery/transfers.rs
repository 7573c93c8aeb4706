//! Two transfers between the same accounts, in opposite directions.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockError;
use tokio::sync::Barrier;
use tokio::time::timeout;
use tokio::{join, try_join};

use crate::by_hand::{self, POLL};
use crate::stage::{ActResult, BoxError, LONG, Server, ms};

const ACCOUNTS: [&str; 2] = ["account:1", "account:2"];

/// The time after which a transfer gives up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Locks the same two accounts in opposite orders.
pub async fn deadlock(server: &Server) -> Result<ActResult, BoxError> {
    let [first, second] = ACCOUNTS;
    // Each transfer holds its first lock before it asks for the other one.
    let both = Arc::new(Barrier::new(2));
    let by_hand = async |from, to| {
        let mut redis = server.connect().await?;
        by_hand::poll_set_nx_px(&mut redis, from, "mine", LONG, POLL).await?;
        both.wait().await;
        let rest = by_hand::poll_set_nx_px(&mut redis, to, "mine", LONG, POLL);
        match timeout(PATIENCE, rest).await {
            Ok(acquired) => acquired?,
            Err(_elapsed) => return Ok(true),
        }
        Ok::<bool, BoxError>(false)
    };
    let library = async |from, to| {
        let locks = server.locks().await?;
        both.wait().await;
        match locks.lock_all([from, to]).wait(PATIENCE).acquire().await {
            Ok(accounts) => accounts.release().await?,
            Err(LockError::Timeout { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        Ok::<bool, BoxError>(false)
    };
    let (one, two) = try_join!(by_hand(first, second), by_hand(second, first))?;
    let blocked_by_hand = u32::from(one) + u32::from(two);
    // The keys of the library have a prefix, so the locks by hand are not in the way.
    let (one, two) = join!(library(first, second), library(second, first));
    let blocked = u32::from(one?) + u32::from(two?);
    Ok(ActResult {
        mistake: "two transfers lock two accounts in opposite orders",
        by_hand: format!(
            "{blocked_by_hand} of 2 transfers blocked after {}",
            ms(PATIENCE)
        ),
        library: format!("{blocked} of 2 transfers blocked: a set has one order"),
    })
}
