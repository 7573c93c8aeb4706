//! Asks all Sentinels at once, when a manager connects.

use std::time::Duration;

use tokio::task::JoinSet;

use super::SentinelWatch;
use super::link::{REPLY, SentinelLink};
use crate::error::{BackendErrorKind, LockError};
use crate::redis::deployment::NodeAddress;
use crate::redis::errors::of_several;
use crate::redis::node::server_address;
use crate::telemetry::LockEvent;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::primary::{KnownPrimary, PrimaryChoice, choose};

impl SentinelWatch {
    /// Asks all known Sentinels. After the first reply, the others have as long as a question takes: one of them
    /// may know of a later failover.
    pub(in crate::redis) async fn discover(&self, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut asked = JoinSet::new();
        let addresses = self.state.lock().sentinels.addresses();
        for address in addresses {
            let access = self.sentinels.clone();
            let service = self.service.clone();
            asked.spawn(async move {
                let mut link = SentinelLink::new(address.clone(), access, service);
                let reply = tokio::time::timeout(deadline.left(), link.ask(limit)).await;
                let reply = reply.unwrap_or_else(|_elapsed| Err(link.timed_out()));
                (address, reply)
            });
        }
        let mut failures = Vec::new();
        let mut replies = Vec::new();
        let mut others: Option<Deadline> = None;
        loop {
            let joined = match others {
                // The limits of the questions end this wait.
                None => asked.join_next().await,
                Some(others) => {
                    let joined = tokio::time::timeout(others.left(), asked.join_next()).await;
                    joined.unwrap_or_default()
                }
            };
            let Some(joined) = joined else { break };
            match joined {
                Ok((address, Ok(reply))) => {
                    others = others.or_else(|| Some(Deadline::after(Clock::System, REPLY)));
                    replies.push((address, reply));
                }
                Ok((address, Err(error))) => failures.push((address, error)),
                Err(_ended) => return Err(LockError::NoRuntime),
            }
        }
        let now = Clock::System.now();
        let best = {
            let mut state = self.state.lock();
            for (address, reply) in replies {
                state.sentinels.replied(&address, Some(reply));
            }
            state.sentinels.replies(now)
        };
        let is_known = self.node().is_some();
        if !is_known && best.iter().any(Option::is_some) {
            self.report_unusable(&failures);
        }
        match choose(None, KnownPrimary::Usable, &best) {
            PrimaryChoice::Keep => Err(self.not_found(failures)),
            PrimaryChoice::Switch(_) | PrimaryChoice::Reset(_) => {
                self.decide(now);
                Ok(())
            }
        }
    }

    /// The error of a caller whose time ran out before a Sentinel had named a primary.
    pub(in crate::redis) fn unknown_primary(&self) -> LockError {
        LockError::backend(
            BackendErrorKind::NoPrimary,
            format!(
                "no Sentinel has named the primary of the service `{}` in time",
                self.service
            ),
        )
    }

    /// Returns the error of a service without a known primary, which quotes each Sentinel. It is retryable if one of
    /// them may reply later.
    fn not_found(&self, failures: Vec<(NodeAddress, LockError)>) -> LockError {
        let mut failures = failures;
        // A Sentinel that replies says more than one that cannot be reached.
        if let Some(at) = failures
            .iter()
            .position(|(_, error)| is_unknown_service(error))
        {
            return failures.swap_remove(at).1;
        }
        let is_silent = failures.iter().all(|(_, error)| error.is_retryable());
        // Each of the texts names its Sentinel.
        let label = |(_, error): (NodeAddress, _)| (String::new(), error);
        let context = format!("no Sentinel of the service `{}` can be used", self.service);
        match of_several(context, failures.into_iter().map(label).collect()) {
            Some(error) if is_silent => self.no_reply(error),
            Some(error) => error,
            None => LockError::backend(
                BackendErrorKind::NoPrimary,
                format!("the service `{}` has no Sentinel", self.service),
            ),
        }
    }

    /// Reports the Sentinels that an operator has to fix, although others reply.
    fn report_unusable(&self, failures: &[(NodeAddress, LockError)]) {
        for (address, error) in failures.iter().filter(|(_, error)| !error.is_retryable()) {
            self.sentinels
                .config
                .reporter
                .emit(&LockEvent::ServerRestricted {
                    server: &server_address(address),
                    command: "SENTINEL",
                    effect: "this Sentinel is not asked",
                    error: &error.to_string(),
                });
        }
    }

    /// Returns the error of Sentinels that do not reply. A wrong guess about TLS looks so.
    fn no_reply(&self, cause: LockError) -> LockError {
        let text = format!("no Sentinel of the service `{}` replies", self.service);
        let advice = if self.sentinels.tls.is_some() {
            "check the Sentinels; if they do not speak TLS, add `sentinel_tls=false` and `ssl_server_name` to the URL"
        } else {
            "check the Sentinels; if they speak TLS, use rediss+sentinel:// without `sentinel_tls=false`"
        };
        match LockError::caused(BackendErrorKind::NoPrimary, text, cause) {
            LockError::Backend(error) => LockError::Backend(error.with_advice(advice)),
            other => other,
        }
    }
}

fn is_unknown_service(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::NoPrimary)
}
