//! The error of a provider of credentials, which is foreign code.

use std::any::Any;
use std::error::Error;
use std::fmt;

use crate::sync::catch;

/// Takes the payload of a panic in the drop of a provider's error.
pub(crate) type OnPanic = Box<dyn Fn(Box<dyn Any + Send>) + Send + Sync>;

/// An error of a provider. A panic of its drop is caught, because a task of the library may drop the
/// last copy.
pub(super) struct ProviderError {
    /// `None` only while it is dropped.
    error: Option<Box<dyn Error + Send + Sync>>,
    on_panic: OnPanic,
}

impl ProviderError {
    pub(super) fn new(error: Box<dyn Error + Send + Sync>, on_panic: OnPanic) -> Self {
        Self {
            error: Some(error),
            on_panic,
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
        if let Err(payload) = catch(|| drop(error)) {
            (self.on_panic)(payload);
        }
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
