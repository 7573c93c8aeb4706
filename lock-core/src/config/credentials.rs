//! Users and passwords that change while the program runs.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

/// A user and a password, and when they expire.
///
/// `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) expires_at: Option<SystemTime>,
}

impl Credentials {
    /// Makes credentials that do not expire. The user of a server without users of its own is
    /// `default`.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
            expires_at: None,
        }
    }

    /// Sets when the credentials expire. The manager asks its provider again when four fifths of the
    /// time until then have passed. Defaults to never.
    #[must_use]
    pub fn expires_at(mut self, at: SystemTime) -> Self {
        self.expires_at = Some(at);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("password", &"***")
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// The future of a [`CredentialProvider`].
pub type CredentialFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// Provides user and password for each connection, for
/// [`LockManagerBuilder::credentials`](crate::LockManagerBuilder::credentials). Use it for passwords
/// that rotate, and for tokens that expire.
///
/// A closure that returns a future is a provider. The manager calls it whenever it connects, and when
/// four fifths of the lifetime of the credentials have passed. Then it sends `AUTH` over all
/// connections. Connections that open at the same time share one call. A call may take as long as the
/// command timeout. The provider keeps its own cache, if a call is expensive.
///
/// When the provider fails, the connection is not made:
/// [`BackendErrorKind::Authentication`](crate::error::BackendErrorKind::Authentication), with the provider's
/// error as the source. Connections that exist already stay as they are, and so do held locks. The
/// library catches a panic of the provider and counts it in [`LockStats`](crate::health::LockStats).
///
/// A call runs on a runtime that uses locks, or on the runtime of the background worker. It must not block
/// the thread: the background worker renews all held locks on that thread.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use lock_core::LockManager;
/// # use lock_core::config::Credentials;
/// # async fn fetch_token() -> std::io::Result<String> { Ok(String::new()) }
/// let builder = LockManager::builder().credentials(async || {
///     let token = fetch_token().await?;
///     let expires_at = SystemTime::now() + Duration::from_secs(900);
///     Ok::<_, std::io::Error>(Credentials::new("app", token).expires_at(expires_at))
/// });
/// ```
pub trait CredentialProvider: Send + Sync + 'static {
    /// Returns the user and the password for a connection that opens now.
    ///
    /// # Errors
    /// Any error. It becomes the source of the [`LockError`](crate::LockError).
    ///
    /// # Cancel safety
    /// The library drops the future when the call takes too long.
    fn credentials(&self) -> CredentialFuture<'_>;
}

/// Shows nothing of the provider, which is foreign code.
impl fmt::Debug for dyn CredentialProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialProvider")
    }
}

impl<F, Fut, E> CredentialProvider for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn credentials(&self) -> CredentialFuture<'_> {
        let answer = self();
        Box::pin(async move { answer.await.map_err(Into::into) })
    }
}
