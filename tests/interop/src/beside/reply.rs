//! What an agent prints, in the protocol of tests/interop/README.md.

use std::time::Duration;

/// A line of an agent: the reply to a command, or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The number of the command; 0 for an event.
    pub(super) id: u64,
    /// When the command began, in microseconds since the epoch.
    pub(super) began: u64,
    /// When the command ended.
    pub(super) ended: u64,
    /// The result: `held`, `busy`, `done`, `gone`, `number` or `failed`; or the event.
    pub(super) result: String,
    /// What follows the result.
    pub(super) details: String,
}

impl Reply {
    /// Parses a line.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        let mut number = || words.next()?.parse().ok();
        let (id, began, ended) = (number()?, number()?, number()?);
        Some(Self {
            id,
            began,
            ended,
            result: words.next()?.to_owned(),
            details: words.next().unwrap_or_default().to_owned(),
        })
    }

    /// Checks the result.
    ///
    /// # Errors
    /// Fails if it is another one.
    pub(super) fn expect(self, result: &str) -> Result<Self, String> {
        if self.result == result {
            return Ok(self);
        }
        let Self {
            result: got,
            details,
            ..
        } = &self;
        Err(format!(
            "expected `{result}`, and the agent replied `{got} {details}`"
        ))
    }

    /// Returns whether a notification ended this wait of lock-core.
    pub(super) fn is_by_notification(&self) -> bool {
        self.details.ends_with(" notification")
    }

    /// Returns the fencing token of `held`.
    pub(super) fn token(&self) -> u64 {
        let token = self.details.split(' ').next();
        token.and_then(|token| token.parse().ok()).unwrap_or(0)
    }

    /// Returns the time from this moment to the end of the command.
    pub(super) fn since(&self, micros: u64) -> Duration {
        Duration::from_micros(self.ended.saturating_sub(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_has_its_times_and_its_result() {
        let reply = Reply::parse("7 1000 4500 held 12 notification").expect("a reply");
        assert_eq!(
            (reply.id, reply.result.as_str(), reply.token()),
            (7, "held", 12)
        );
        assert!(reply.is_by_notification());
        assert_eq!(reply.since(1500), Duration::from_millis(3));
        assert!(reply.expect("held").is_ok());
        let event = Reply::parse("0 5 5 waiting some:key").expect("an event");
        assert_eq!((event.id, event.details.as_str()), (0, "some:key"));
        assert!(event.expect("lost").is_err());
    }

    #[test]
    fn other_lines_are_no_replies() {
        for line in ["ready", "", "1 2 held", "1 2 x held"] {
            assert_eq!(Reply::parse(line), None, "{line}");
        }
    }
}
