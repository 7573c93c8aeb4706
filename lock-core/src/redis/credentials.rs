//! Asks the provider of credentials, and renews the logins of live connections.
//!
//! Each connection remembers when its credentials have to be renewed. One task of the background worker
//! waits for the earliest of these times, asks the provider, and sends `AUTH` over all connections. So
//! a connection that opened meanwhile with older credentials has its turn too.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::errors::MAX_ERROR_TEXT;
use super::login::hide_password;
use crate::config::credentials::{CredentialFuture, CredentialProvider, Credentials};
use crate::error::{BackendErrorKind, LockError};
use crate::store::Boxed;
use crate::sync::{Mutex, Process, catch, caught};
use crate::telemetry::{LockEvent, PanicSource, Reporter};
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::op::Refusal;
use lock_protocol::resp::CommandBuf;
use lock_protocol::wire::tidy;

/// The shortest pause between two renewals, for credentials that are almost or entirely expired.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const NO_ADVICE: &str = "the provider is asked again at the next connection";

/// Credentials as the provider gave them.
pub(super) struct Issued {
    pub(super) user: String,
    pub(super) password: String,
    /// When four fifths of the lifetime have passed.
    pub(super) renew_at: Option<Moment>,
}

/// A connection whose login can be renewed.
pub(super) trait RenewLogin: Send + Sync {
    fn is_open(&self) -> bool;

    /// Returns when to log in with new credentials.
    fn renew_login_at(&self) -> Option<Moment>;

    /// Logs in with new credentials, within the limit. A connection that the server refuses is not used any more: it has
    /// the rights of credentials that expire.
    fn log_in<'a>(
        &'a self,
        issued: &'a Issued,
        limit: Duration,
    ) -> Boxed<'a, Result<(), LockError>>;
}

/// The provider, and the connections that logged in with its credentials.
pub(super) struct CredentialSource {
    provider: Arc<dyn CredentialProvider>,
    timeout: Duration,
    reporter: Arc<Reporter>,
    process: Process,
    /// The call that is under way.
    asking: Mutex<Option<Asking>>,
    connections: Mutex<Vec<Weak<dyn RenewLogin>>>,
    /// Notified when the earliest time of a renewal may have changed.
    changed: Notify,
}

/// The outcome of a call. The channel closes without one when the call is dropped.
type Asking = watch::Receiver<Option<Result<Arc<Issued>, LockError>>>;

impl CredentialSource {
    pub(super) fn new(
        provider: Arc<dyn CredentialProvider>,
        timeout: Duration,
        reporter: Arc<Reporter>,
    ) -> Self {
        Self {
            provider,
            timeout,
            reporter,
            process: Process::current(),
            asking: Mutex::default(),
            connections: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Asks the provider, for at most `limit`. Concurrent callers share one call.
    ///
    /// # Cancel safety
    /// When the caller that made the call is dropped, another caller makes a new one.
    pub(super) async fn ask(&self, limit: Duration) -> Result<Arc<Issued>, LockError> {
        let answer = tokio::time::timeout(limit, self.share_call()).await;
        answer.unwrap_or_else(|_elapsed| {
            Err(LockError::advised(
                BackendErrorKind::TimedOut,
                "the provider of credentials gave no answer in time",
                "make the provider faster, or raise `command_timeout`",
            ))
        })
    }

    async fn share_call(&self) -> Result<Arc<Issued>, LockError> {
        loop {
            let (sender, receiver) = watch::channel(None);
            let known = {
                let mut asking = self.asking.lock();
                let known = asking.clone();
                if known.is_none() {
                    *asking = Some(receiver);
                }
                known
            };
            let Some(mut known) = known else {
                let call = SharedCall { source: self };
                let outcome = self.call().await;
                drop(call);
                let shared = Some(outcome.clone());
                self.reporter.waking(|| drop(sender.send_replace(shared)));
                return outcome;
            };
            // The runtime of that caller may be blocked, and its timer with it.
            let patience = self.timeout / 2;
            let answered = async { known.wait_for(Option::is_some).await.map(|it| it.clone()) };
            match tokio::time::timeout(patience, answered).await {
                Ok(Ok(Some(outcome))) => return outcome,
                Ok(Ok(None) | Err(_)) => {}
                Err(_elapsed) => return self.call().await,
            }
        }
    }

    /// Calls the provider. It is foreign code: no mutex is held, and a panic is caught.
    async fn call(&self) -> Result<Arc<Issued>, LockError> {
        let credentials = match catch(|| self.provider.credentials()) {
            Ok(future) => {
                let mut call = ProviderCall {
                    future: Some(future),
                    reporter: &self.reporter,
                };
                match &mut call.future {
                    Some(future) => caught(future.as_mut()).await,
                    None => return Err(panicked()),
                }
            }
            Err(payload) => Err(payload),
        };
        match credentials {
            Ok(Ok(credentials)) => Ok(Arc::new(Issued::new(credentials))),
            Ok(Err(error)) => {
                // An observer may keep the error, and the reporter has the observer.
                let reporter = Arc::downgrade(&self.reporter);
                let on_panic = move |payload| {
                    // After the end of the manager, tracing still reports it.
                    let reporter = reporter.upgrade().unwrap_or_default();
                    reporter.panicked(PanicSource::Credentials, payload);
                };
                Err(LockError::from_provider(error, Box::new(on_panic)))
            }
            Err(payload) => {
                self.reporter.panicked(PanicSource::Credentials, payload);
                Err(panicked())
            }
        }
    }

    /// Returns the text of the provider's error. It is foreign code too.
    fn reason_of(&self, error: &LockError) -> Option<String> {
        let reason = std::error::Error::source(error)?;
        let text = || tidy(&reason.to_string(), MAX_ERROR_TEXT);
        self.reporter.guarded(PanicSource::Credentials, text)
    }

    /// Renews the login of this connection from now on.
    pub(super) fn register(&self, connection: Weak<dyn RenewLogin>) {
        {
            let mut connections = self.connections.lock();
            connections.retain(|known| known.strong_count() > 0);
            connections.push(connection);
        }
        self.reporter.waking(|| self.changed.notify_one());
    }

    fn live_connections(&self) -> Vec<Arc<dyn RenewLogin>> {
        let known = self.connections.lock().clone();
        let connections = known.iter().filter_map(Weak::upgrade);
        connections.filter(|it| it.is_open()).collect()
    }

    /// Returns the earliest time at which a login has to be renewed.
    fn next_renewal(&self) -> Option<Moment> {
        let connections = self.live_connections();
        connections
            .iter()
            .filter_map(|it| it.renew_login_at())
            .min()
    }

    /// Logs all live connections in again. A connection that the server refuses is not used any more.
    async fn log_in_again(&self, issued: &Arc<Issued>) {
        let mut logins = JoinSet::new();
        for connection in self.live_connections() {
            let (issued, timeout) = (Arc::clone(issued), self.timeout);
            logins.spawn(async move { connection.log_in(&issued, timeout).await });
        }
        while let Some(refused) = logins.join_next().await {
            if let Ok(Err(error)) = refused {
                self.reporter.emit(&LockEvent::LoginFailed {
                    error: &error,
                    reason: None,
                });
            }
        }
    }
}

/// Renews logins for as long as it is polled. A failure leaves the connections as they are.
pub(super) async fn renew_logins(source: Arc<CredentialSource>) {
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut not_before = Clock::System.now();
    loop {
        let changed = source.changed.notified();
        let Some(due) = source.next_renewal() else {
            changed.await;
            continue;
        };
        let pause = due.max(not_before).since(Clock::System.now());
        tokio::select! {
            () = changed => continue,
            () = tokio::time::sleep(pause) => {}
        }
        let mut pause = SHORTEST_PAUSE;
        match source.ask(source.timeout).await {
            Ok(issued) => {
                backoff.reset();
                source.log_in_again(&issued).await;
            }
            Err(error) => {
                pause += backoff.pause();
                let reason = source.reason_of(&error);
                source.reporter.emit(&LockEvent::LoginFailed {
                    error: &error,
                    reason: reason.as_deref(),
                });
            }
        }
        not_before = Clock::System.now().plus(pause);
    }
}

/// Forgets a call when it ends or is dropped.
struct SharedCall<'a> {
    source: &'a CredentialSource,
}

impl Drop for SharedCall<'_> {
    fn drop(&mut self) {
        // No thread of a forked child unlocks a mutex that was locked at the fork.
        if self.source.process.is_current() {
            let ended = self.source.asking.lock().take();
            drop(ended);
        }
    }
}

/// A call of the provider. The drop of the future is foreign code too.
struct ProviderCall<'a> {
    future: Option<CredentialFuture<'a>>,
    reporter: &'a Reporter,
}

impl Drop for ProviderCall<'_> {
    fn drop(&mut self) {
        let future = self.future.take();
        if let Err(payload) = catch(|| drop(future)) {
            self.reporter.panicked(PanicSource::Credentials, payload);
        }
    }
}

impl Issued {
    fn new(credentials: Credentials) -> Self {
        let now = Clock::System.now();
        let lifetime = credentials.expires_at.map(|at| {
            let left = at.duration_since(SystemTime::now());
            left.unwrap_or_default()
        });
        Self {
            user: credentials.user,
            password: credentials.password,
            renew_at: lifetime.map(|lifetime| now.plus(lifetime / 5 * 4)),
        }
    }

    /// Writes the command that logs in.
    pub(super) fn write_auth(&self, out: &mut CommandBuf<'_>) {
        out.command("AUTH").arg(&self.user).arg(&self.password);
    }
}

fn panicked() -> LockError {
    LockError::advised(
        BackendErrorKind::Authentication,
        "the provider of credentials panicked",
        NO_ADVICE,
    )
}

impl Issued {
    /// Returns the error of a server that refused these credentials.
    pub(super) fn refused(&self, refusal: Refusal) -> LockError {
        let refusal = hide_password(refusal, &self.password);
        LockError::refused_as("the lock server refused new credentials", &refusal)
    }
}
