//! Reads the replies of the scripts.

use redis::{FromRedisValue, Value};

use crate::error::{BackendErrorKind, LockError};
use lock_protocol::inspection::FoundText;

/// The value of a reply, and the server's time in microseconds when the script ran.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScriptReply<T> {
    pub(crate) value: T,
    pub(crate) server_us: u64,
}

/// Reads the reply to TIME, in microseconds.
pub(crate) fn server_time(reply: Value) -> Result<u64, LockError> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply).map_err(|_| unexpected())?;
    Ok(micros_of(seconds, micros))
}

/// Combines the two numbers of TIME.
pub(crate) fn micros_of(seconds: u64, micros: u64) -> u64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

pub(crate) fn unexpected() -> LockError {
    LockError::backend(
        BackendErrorKind::Unsupported,
        "the server sent a reply that no script of this library returns",
    )
}

pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub(super) fn of(reply: Value) -> Result<Self, LockError> {
        match reply {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(unexpected()),
        }
    }

    fn next<T: FromRedisValue>(&mut self) -> Result<T, LockError> {
        let part = self.0.next().ok_or_else(unexpected)?;
        T::from_redis_value(part).map_err(|_| unexpected())
    }

    pub(super) fn text(&mut self) -> Result<String, LockError> {
        // A foreign client may write a value that is not text.
        let bytes: Vec<u8> = self.next()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, LockError> {
        let mut texts = Vec::with_capacity(self.0.len());
        while self.0.len() > 0 {
            texts.push(self.text()?);
        }
        Ok(texts)
    }

    pub(super) fn number(&mut self) -> Result<u64, LockError> {
        self.next()
    }

    pub(super) fn found_text(&mut self) -> Result<FoundText, LockError> {
        let remaining: i64 = self.next()?;
        Ok(FoundText::new(u64::try_from(remaining).ok(), self.next()?))
    }
}
