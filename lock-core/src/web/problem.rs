//! The body of an error response.

use std::time::Duration;

use serde_json::Value;

use super::mapping::ProblemKind;
use super::retry_after::whole_seconds;
use crate::error::LockError;

/// Where `guide::problems` explains each type.
const TYPE_BASE: &str = "https://docs.rs/lock-core/latest/lock_core/guide/problems/index.html#";
/// The content type of RFC 9457.
pub(super) const CONTENT_TYPE: &str = "application/problem+json";

/// An error response for clients: "problem details" of [RFC 9457].
///
/// It has no key, no label, no host, no process id and no text of the error. Make it from a
/// [`LockError`], change it, and return it from a handler or from the `into_response` of your own error
/// type. [`guide::problems`](crate::guide::problems) explains the types.
///
/// ```
/// use lock_core::LockManager;
/// use lock_core::web::Problem;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// let locks = LockManager::in_memory();
/// let _paying = locks.lock("order:7").acquire().await?;
/// let error = locks.lock("order:7").wait(std::time::Duration::ZERO).acquire().await.unwrap_err();
///
/// let problem = Problem::from(&error)
///     .type_base("https://api.example.com/problems/")
///     .title("Order is being paid");
/// assert_eq!(
///     problem.to_json(),
///     r#"{"type":"https://api.example.com/problems/contended","title":"Order is being paid","status":409,"retry_after":1}"#
/// );
/// # Ok(())
/// # }
/// ```
///
/// [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a problem does nothing unless it is returned"]
pub struct Problem {
    /// The URI of the problem's type. A page at this address explains the type.
    pub type_uri: String,
    /// The summary for people, the same for all problems of the type.
    pub title: String,
    /// The status of the response.
    pub status: u16,
    /// The explanation of this occurrence. Clients see it.
    pub detail: Option<String>,
    /// The time after which the client should call again: the header `Retry-After`, in whole seconds.
    pub retry_after: Option<Duration>,
    extensions: Vec<(String, String)>,
    slug: &'static str,
    error: LockError,
}

impl Problem {
    /// Sets the URI of the problem's type. Defaults to the type's heading in
    /// [`guide::problems`](crate::guide::problems).
    pub fn type_uri(mut self, uri: impl Into<String>) -> Self {
        self.type_uri = uri.into();
        self
    }

    /// Sets the URI of the problem's type to `base` and the name of the type, such as `contended`. The
    /// names are the headings of [`guide::problems`](crate::guide::problems). End `base` with `/` or
    /// `#`. Defaults to that guide's address.
    pub fn type_base(self, base: &str) -> Self {
        let uri = [base, self.slug].concat();
        self.type_uri(uri)
    }

    /// Sets the summary of the problem's type. Defaults to the type's title in
    /// [`guide::problems`](crate::guide::problems).
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the status, from 100 to 999. Other values give a response with status 500. Defaults to the
    /// type's status in [`guide::problems`](crate::guide::problems).
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Sets the explanation of this occurrence. Clients see it. Defaults to none.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Sets the time after which the client should call again. The response rounds it up to whole
    /// seconds. Defaults to an estimate from the holder's age and lease for a busy lock, to 1 s at a shutdown, to 2 s
    /// when the lock server isn't available, and else to none.
    pub fn retry_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.retry_after = time.into();
        self
    }

    /// Adds a member to the body, or replaces an added member of the same name. The names `type`, `title`, `status`,
    /// `detail` and `retry_after` have no effect. Defaults to no members.
    pub fn extension(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        let name = name.into();
        self.extensions.retain(|(known, _)| *known != name);
        self.extensions.push((name, text.into()));
        self
    }

    /// Adds the label of the lock's holder, with its tag, as the member `holder`, if the error knows the holder.
    ///
    /// By default a label has a host name and a process id. This is the only way by which a label
    /// leaves the process. Use it for clients that may know your hosts.
    pub fn holder(self, error: &LockError) -> Self {
        match error.holder() {
            Some(holder) => self.extension("holder", holder.full_label()),
            None => self,
        }
    }

    /// Returns the body as JSON, in the order `type`, `title`, `status`, `detail`, `retry_after`, and
    /// then the extensions in the order of their addition.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut members = vec![
            ("type", Value::from(self.type_uri.as_str())),
            ("title", Value::from(self.title.as_str())),
            ("status", Value::from(self.status)),
        ];
        if let Some(detail) = &self.detail {
            members.push(("detail", Value::from(detail.as_str())));
        }
        if let Some(seconds) = self.retry_after_seconds() {
            members.push(("retry_after", Value::from(seconds)));
        }
        for (name, text) in &self.extensions {
            if !FIELDS.contains(&name.as_str()) {
                members.push((name, Value::from(text.as_str())));
            }
        }
        // By hand, because the order of a `serde_json::Map` depends on a feature of that crate.
        let members = members
            .into_iter()
            .map(|(name, value)| format!("{}:{value}", Value::from(name)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }

    /// The value of the header `Retry-After`.
    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|time| whole_seconds(time).as_secs())
    }

    /// The error that this problem reports.
    pub(super) fn error(&self) -> &LockError {
        &self.error
    }
}

/// The members that have a field. Two members of one name are not valid.
const FIELDS: [&str; 5] = ["type", "title", "status", "detail", "retry_after"];

impl From<&LockError> for Problem {
    /// Makes the problem that clients see for this error.
    fn from(error: &LockError) -> Self {
        let kind = ProblemKind::of(error);
        Self {
            type_uri: [TYPE_BASE, kind.slug()].concat(),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: None,
            retry_after: kind.retry_after(error),
            extensions: Vec::new(),
            slug: kind.slug(),
            error: error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_one_member_for_each_field_that_is_set() {
        let problem = Problem::from(&LockError::ShuttingDown);
        let base = TYPE_BASE;
        assert_eq!(
            problem.to_json(),
            format!(
                r#"{{"type":"{base}shutting-down","title":"The service is shutting down","status":503,"retry_after":1}}"#
            )
        );
        let changed = problem
            .type_uri("about:blank")
            .title("Stop \"now\"")
            .status(421)
            .detail("line\nbreak")
            .retry_after(Duration::from_millis(1_500))
            .extension("zone", "b")
            .extension("instance", "/orders/7")
            .extension("zone", "c");
        assert_eq!(
            changed.to_json(),
            r#"{"type":"about:blank","title":"Stop \"now\"","status":421,"detail":"line\nbreak","retry_after":2,"instance":"/orders/7","zone":"c"}"#
        );
        assert_eq!(changed.retry_after_seconds(), Some(2));
    }

    #[test]
    fn extension_never_repeats_a_field() {
        let mut problem = Problem::from(&LockError::NotConfigured).retry_after(None);
        let plain = problem.to_json();
        for field in FIELDS {
            problem = problem.extension(field, "forged");
        }
        assert_eq!(problem.to_json(), plain);
        // An error without a holder adds none.
        let problem = problem.holder(&LockError::NotConfigured);
        assert_eq!(problem.to_json(), plain);
    }
}
