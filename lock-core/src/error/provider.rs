//! The error of a provider of credentials, which is foreign code.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::telemetry::{PanicSource, Reporter};

/// An error of a provider. A panic of its drop is caught, because a task of the library may drop the
/// last copy.
pub(super) struct ProviderError {
    /// `None` only while it is dropped.
    error: Option<Box<dyn Error + Send + Sync>>,
    reporter: Arc<Reporter>,
}

impl ProviderError {
    pub(super) fn new(error: Box<dyn Error + Send + Sync>, reporter: Arc<Reporter>) -> Self {
        Self {
            error: Some(error),
            reporter,
        }
    }

    pub(super) fn get(&self) -> Option<&(dyn Error + 'static)> {
        let error = self.error.as_deref()?;
        Some(error)
    }
}

impl Drop for ProviderError {
    fn drop(&mut self) {
        let error = self.error.take();
        self.reporter
            .guarded(PanicSource::Credentials, || drop(error));
    }
}

impl fmt::Debug for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => fmt::Debug::fmt(error, f),
            None => f.write_str("dropped"),
        }
    }
}
