//! What `#[distributed_lock]` expands to. Not an interface: it changes with the attribute.
//!
//! Little here is generic: what an annotated function adds to a program is its own body and a
//! few calls.

use std::fmt::{self, Display, Write};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::debug;

use crate::error::LockError;
use crate::guard::{self, LockGuard, Lost};
use crate::key::{LockName, NameFault};
use crate::manager::LockManager;
use crate::options::{MIN_RENEWAL, Renew};
use crate::request::LockRequest;
use crate::shared::check_runtime;
use crate::ttl::{MAX_TTL, MIN_TTL};

/// Enough to make `LockName` refuse a name: there is no use in writing more of it.
const LONGER_THAN_ANY_NAME: usize = 1025;

/// A piece of a name template.
#[derive(Clone, Copy)]
pub enum Part<'a> {
    /// Stands verbatim.
    Text(&'a str),
    /// Is percent-encoded.
    Value(&'a dyn Display),
}

/// A name, or why there is none: `acquire` reports it, as it does with every invalid name.
pub type Named = Result<LockName, LockError>;

/// Writes a name template.
///
/// # Errors
///
/// When a value is empty or its `Display` fails.
pub fn template(parts: &[Part<'_>]) -> Named {
    let mut name = Encoder(String::new());
    for part in parts {
        match part {
            Part::Text(text) => name.0.push_str(text),
            Part::Value(value) => {
                let before = name.0.len();
                let written = write!(name, "{value}");
                if name.0.len() >= LONGER_THAN_ANY_NAME {
                    break;
                }
                if written.is_err() || name.0.len() == before {
                    // All calls with an empty value would share a lock that none of them means.
                    name.0.push_str("{}");
                    return Err(LockError::InvalidName {
                        name: name.0.into(),
                        fault: NameFault::EmptyValue,
                    });
                }
            }
        }
    }
    Ok(name.0.into())
}

/// What `name = ..` may be, when it is no template.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot name a lock",
    label = "is not `Into<LockName>`",
    note = "write a template, such as `name = \"order:{{id}}\"`, or `name = format!(...)`"
)]
pub trait Name {
    /// The name, which `acquire` checks.
    fn into_name(self) -> LockName;
}

#[diagnostic::do_not_recommend]
impl<N: Into<LockName>> Name for N {
    fn into_name(self) -> LockName {
        self.into()
    }
}

/// Puts a hash tag before a name: `{tag}:name`. The tag holds no brace: the attribute refuses one
/// in its text, and values are encoded.
///
/// # Errors
///
/// Those of the tag and the name, and when the name is empty.
pub fn tagged(tag: Named, name: Named) -> Named {
    let (tag, name) = (tag?, name?);
    if name.as_str().is_empty() {
        return Err(LockError::InvalidName {
            name: "".into(),
            fault: NameFault::Empty,
        });
    }
    Ok(format!("{{{tag}}}:{name}").into())
}

/// Takes a name as the user computed it.
///
/// # Errors
///
/// None: `acquire` checks it.
pub fn name(name: impl Name) -> Named {
    Ok(name.into_name())
}

/// Percent-encodes what is written to it.
struct Encoder(String);

impl Write for Encoder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if stands_for_itself(letter) {
                self.0.push(letter);
            } else {
                for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                    write!(self.0, "%{byte:02X}")?;
                }
            }
            if self.0.len() >= LONGER_THAN_ANY_NAME {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// The attribute demands another letter than these between two placeholders.
fn stands_for_itself(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '-' | '_' | '.')
        || (!c.is_ascii() && c.is_alphabetic())
}

/// The manager that `manager = ..` names.
#[must_use]
pub fn manager(manager: &LockManager) -> Option<LockManager> {
    Some(manager.clone())
}

/// The options of one annotated function.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    ttl: Option<Duration>,
    wait: Option<Duration>,
    renew: Renew,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
}

impl Options {
    /// The manager's defaults, and one attempt.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ttl: None,
            wait: None,
            renew: Renew::Auto,
            max_hold: None,
            min_hold: None,
        }
    }

    /// `ttl = ..`
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// `wait = ..`
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// `renew = never`
    #[must_use]
    pub const fn renew_never(mut self) -> Self {
        self.renew = Renew::Never;
        self
    }

    /// `renew = ..`
    #[must_use]
    pub const fn renew_every(mut self, every: Duration) -> Self {
        self.renew = Renew::Every(every);
        self
    }

    /// `max_hold = ..`
    #[must_use]
    pub const fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// `min_hold = ..`
    #[must_use]
    pub const fn min_hold(mut self, shortest: Duration) -> Self {
        self.min_hold = Some(shortest);
        self
    }

    fn apply(self, mut request: LockRequest) -> LockRequest {
        request = request.renew(self.renew);
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        if let Some(longest) = self.max_hold {
            request = request.max_hold(longest);
        }
        if let Some(shortest) = self.min_hold {
            request = request.min_hold(shortest);
        }
        request
    }
}

/// Holds a constant `ttl` to the rule that the attribute holds literals to.
///
/// # Panics
///
/// When the rule is broken; it is only called while the program is compiled.
#[must_use]
#[track_caller]
pub const fn checked_ttl(ttl: Duration) -> Duration {
    // In nanoseconds: a part of a millisecond over the limit is over the limit.
    assert!(
        ttl.as_nanos() >= MIN_TTL.as_nanos(),
        "`ttl` must be at least 100 ms"
    );
    assert!(
        ttl.as_nanos() <= MAX_TTL.as_nanos(),
        "`ttl` must be at most 24 h"
    );
    ttl
}

/// Holds a constant `wait` to the rule that the attribute holds literals to.
///
/// # Panics
///
/// When the rule is broken; it is only called while the program is compiled.
#[must_use]
#[track_caller]
pub const fn checked_wait(wait: Duration) -> Duration {
    assert!(
        !wait.is_zero(),
        "`wait` must be longer than zero; leave it out to try once"
    );
    wait
}

/// Holds a constant `renew` to the rules that the attribute holds literals to.
///
/// # Panics
///
/// As [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_renew(every: Duration, ttl: Option<Duration>) -> Duration {
    assert!(
        every.as_nanos() >= MIN_RENEWAL.as_nanos(),
        "`renew` must be at least 10 ms"
    );
    if let Some(ttl) = ttl {
        assert!(
            every.as_nanos() <= ttl.as_nanos() / 2,
            "`renew` must be at most half of `ttl`"
        );
    }
    every
}

/// Holds a constant `max_hold` to the rule that the attribute holds literals to.
///
/// # Panics
///
/// As [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_max_hold(longest: Duration, ttl: Option<Duration>) -> Duration {
    if let Some(ttl) = ttl {
        assert!(
            longest.as_nanos() > ttl.as_nanos(),
            "`max_hold` must be longer than `ttl`"
        );
    }
    longest
}

/// Holds a constant `min_hold` to the rule that the attribute holds literals to.
///
/// # Panics
///
/// As [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_min_hold(shortest: Duration, ttl: Option<Duration>) -> Duration {
    if let Some(ttl) = ttl {
        assert!(
            shortest.as_nanos() < ttl.as_nanos(),
            "`min_hold` must be shorter than `ttl`"
        );
    }
    shortest
}

/// A future of this crate's own, boxed so that annotated functions stay small.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Acquires the lock of an annotated function.
#[must_use]
pub fn acquire(
    manager: Option<LockManager>,
    name: Named,
    options: Options,
) -> Boxed<Result<LockGuard, LockError>> {
    Box::pin(async move {
        let name = name?;
        let (manager, spent) = match manager {
            Some(manager) => (manager, Duration::ZERO),
            None => current(options.wait).await?,
        };
        let request = options.apply(manager.lock(name));
        request.spent(spent).acquire().await
    })
}

/// The manager of the caller, and how long it took to connect it. That counts as waiting.
async fn current(wait: Option<Duration>) -> Result<(LockManager, Duration), LockError> {
    check_runtime()?;
    let asked = tokio::time::Instant::now();
    // Connecting takes no longer than the command timeout.
    let wait = wait.unwrap_or(Duration::MAX);
    let connected = tokio::time::timeout(wait, LockManager::current()).await;
    let manager = connected.unwrap_or_else(|_elapsed| Err(LockManager::not_in_time()))?;
    Ok((manager, asked.elapsed()))
}

/// Polls the body of an annotated function, unless its lock is lost: then the caller drops it.
///
/// The body is a trait object only here, so that the function that holds it stays `Send`
/// exactly when the body is.
pub fn poll_body<T>(
    guard: &LockGuard,
    lost: Pin<&mut Lost>,
    body: Pin<&mut dyn Future<Output = T>>,
    context: &mut Context<'_>,
) -> Poll<Result<T, LockError>> {
    guard::poll_under(guard, lost, body, context)
}

/// As [`poll_body`], for a body that is to run on when its lock is lost: `on_lost = continue`.
pub fn poll_on<T>(
    guard: &LockGuard,
    body: Pin<&mut dyn Future<Output = T>>,
    context: &mut Context<'_>,
) -> Poll<Result<T, LockError>> {
    guard.inside(|| body.poll(context)).map(Ok)
}

/// Releases the lock after a body that ran to its end. Never fails: the body's result stands.
#[must_use]
pub fn release(guard: LockGuard) -> Boxed<()> {
    Box::pin(guard::release_after(guard))
}

/// Whether somebody else holds the lock: what `on_contended` answers.
#[must_use]
pub fn is_contended(error: &LockError) -> bool {
    error.is_contended()
}

/// A return type that can hold a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "a failed lock cannot be returned as `{Self}`",
    label = "cannot hold a `LockError`",
    note = "return `Result<T, E>` where `E: From<LockError>`, or say what to return with `on_error = |e| ...`"
)]
pub trait FromLockError {
    /// The value that says what `error` says.
    fn from_lock_error(error: LockError) -> Self;
}

// Else the compiler names the `From` that is missing, and not what to do about it.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(error.into())
    }
}

/// Returns `error` from an annotated function.
#[must_use]
pub fn refuse<R: FromLockError>(error: LockError) -> R {
    R::from_lock_error(error)
}

/// A return type that can say that the body was left out.
#[diagnostic::on_unimplemented(
    message = "`on_contended = skip` has nothing to return for `{Self}`",
    label = "has no value that says that the body was left out",
    note = "return `()`, `Option<_>` or a `Result` of these, or say what to return with `on_contended = |e| ...`"
)]
pub trait Skipped {
    /// The value of a function whose body was left out.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<T> Skipped for Option<T> {
    fn skipped() -> Self {
        None
    }
}

impl<T: Skipped, E> Skipped for Result<T, E> {
    fn skipped() -> Self {
        Ok(T::skipped())
    }
}

/// Returns from an annotated function whose lock somebody else holds.
#[must_use]
pub fn skip<R: Skipped>(error: &LockError) -> R {
    debug!(%error, "left out: somebody else holds the lock");
    R::skipped()
}

/// Returns what `on_error` makes of `error`. Carries the return type to the closure.
pub fn answer<R>(on_error: impl FnOnce(LockError) -> R, error: LockError) -> R {
    on_error(error)
}

/// Gives a block its type. Never called.
#[must_use]
pub fn edge<R>() -> R {
    unreachable!("the attribute writes this call where it is not reached")
}

/// `!`, which can only be written as a return type.
pub type Never = <fn() -> ! as Returns>::Type;

/// Names what a function returns.
pub trait Returns {
    /// What it returns.
    type Type;
}

impl<R> Returns for fn() -> R {
    type Type = R;
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn written(parts: &[Part<'_>]) -> String {
        template(parts).unwrap().as_str().to_owned()
    }

    #[test]
    fn text_stands_verbatim_and_values_are_encoded() {
        let parts = [Part::Text("a{%:"), Part::Value(&"a{%:")];
        assert_eq!(written(&parts), "a{%:a%7B%25%3A");
        for (value, expected) in [
            ("AZaz09-_.", "AZaz09-_."),
            ("größe東京", "größe東京"),
            ("a b\n", "a%20b%0A"),
            ("–\u{1f512}", "%E2%80%93%F0%9F%94%92"),
            ("%3A", "%253A"),
        ] {
            assert_eq!(written(&[Part::Value(&value)]), expected);
        }
        assert_eq!(written(&[Part::Value(&-1.5)]), "-1.5");
    }

    #[test]
    fn different_values_make_different_names() {
        let values = ["a", "a:", ":a", "a%3A", "%3Aa", "a%", "%", ":", "{a}", "a}"];
        let mut names = Vec::new();
        for left in values {
            for right in values {
                names.push(written(&[
                    Part::Value(&left),
                    Part::Text(":"),
                    Part::Value(&right),
                ]));
            }
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    proptest! {
        /// The separators are those that the attribute accepts: with a letter in them that would
        /// be encoded in a value.
        #[test]
        fn no_value_forges_another_name(
            left in vec(any_value(), 1..5),
            other in vec(any_value(), 1..5),
            separators in vec("[a-z%{}]{0,2}[:/ %{}#][-_.a-z]{0,2}", 5),
        ) {
            let name = |values: &[String]| {
                let mut parts = vec![Part::Text(&separators[4])];
                for (value, separator) in values.iter().zip(&separators) {
                    parts.push(Part::Value(value));
                    parts.push(Part::Text(separator));
                }
                written(&parts)
            };
            // One template has as many values in every call.
            let count = left.len().min(other.len());
            let (left, other) = (&left[..count], &other[..count]);
            prop_assert_eq!(name(left) == name(other), left == other);
            // Nor does a value bring a brace or a separator into the name.
            let of_templates: usize = separators[..count].iter().chain(&separators[4..])
                .map(|text| text.matches(['{', '}', ':', '/', ' ', '#']).count())
                .sum();
            let found = name(left).matches(['{', '}', ':', '/', ' ', '#']).count();
            prop_assert_eq!(found, of_templates);
        }
    }

    /// Mostly of letters that templates use, so that names nearly meet.
    fn any_value() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a:%]{1,3}",
            "[-_.a-z0-9:/{}%ü]{1,6}",
            "%(3A|25|7B){1,2}",
            "\\PC{1,8}",
        ]
    }

    struct Broken;

    impl Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }

    #[test]
    fn an_empty_or_broken_value_makes_no_name() {
        for value in [&"" as &dyn Display, &Broken] {
            let name = template(&[Part::Text("a:"), Part::Value(value)]);
            assert!(
                matches!(
                    name,
                    Err(LockError::InvalidName {
                        fault: NameFault::EmptyValue,
                        ..
                    })
                ),
                "{name:?}"
            );
        }
    }

    struct Endless;

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("xyz:")?;
            }
        }
    }

    #[test]
    fn an_endless_value_is_cut() {
        let name = written(&[Part::Value(&Endless), Part::Text("more")]);
        assert!((LONGER_THAN_ANY_NAME..2 * LONGER_THAN_ANY_NAME).contains(&name.len()));
    }

    #[test]
    fn constants_are_held_to_the_rules_of_literals() {
        for ttl in [Duration::from_millis(100), Duration::from_secs(24 * 3600)] {
            assert_eq!(checked_ttl(ttl), ttl);
            assert_eq!(checked_wait(ttl), ttl);
        }
        let breaks = |check: fn(Duration) -> Duration, value| {
            std::panic::catch_unwind(|| check(value)).is_err()
        };
        assert!(breaks(checked_ttl, Duration::from_micros(99_999)));
        assert!(breaks(checked_ttl, Duration::new(24 * 3600, 1)));
        assert!(breaks(checked_wait, Duration::ZERO));
    }

    struct Dropped<'a>(&'a AtomicBool);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn related_constants_are_held_to_the_ttl() {
        let second = Duration::from_secs(1);
        let half = second / 2;
        for ttl in [None, Some(second)] {
            assert_eq!(checked_renew(half, ttl), half);
            assert_eq!(checked_min_hold(half, ttl), half);
            assert_eq!(checked_max_hold(2 * second, ttl), 2 * second);
        }
        let breaks = |check: fn(Duration, Option<Duration>) -> Duration, value| {
            std::panic::catch_unwind(|| check(value, Some(second))).is_err()
        };
        assert!(breaks(checked_renew, half + Duration::from_nanos(1)));
        assert!(breaks(checked_renew, Duration::from_millis(9)));
        assert!(breaks(checked_min_hold, second));
        assert!(breaks(checked_max_hold, second));
    }

    #[test]
    fn a_hash_tag_stands_before_the_name() {
        let tagged = |tag: &str, name: &str| tagged(Ok(tag.into()), Ok(name.into()));
        assert_eq!(tagged("a", "b").unwrap().as_str(), "{a}:b");
        assert!(tagged("a", "").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_polled_after_the_loss() {
        let locks = LockManager::in_memory();
        let ttl = Duration::from_millis(100);
        let request = locks.lock("x").ttl(ttl).renew(Renew::Never);
        let guard = request.acquire().await.unwrap();
        let dropped = AtomicBool::new(false);
        let outcome = {
            let mut lost = pin!(guard.lost());
            let mut body = pin!(async {
                let _dropped = Dropped(&dropped);
                tokio::time::sleep(2 * ttl).await;
                unreachable!("the lock was lost long ago");
            });
            let outcome: Result<(), _> =
                poll_fn(|cx| poll_body(&guard, lost.as_mut(), body.as_mut(), cx)).await;
            assert!(!dropped.load(Ordering::SeqCst), "the caller drops it");
            outcome
        };
        assert!(matches!(outcome, Err(LockError::Lost)));
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_done_before_its_next_await_keeps_its_result() {
        let locks = LockManager::in_memory();
        let request = locks
            .lock("x")
            .ttl(Duration::from_millis(100))
            .renew(Renew::Never);
        let guard = request.acquire().await.unwrap();
        let mut lost = pin!(guard.lost());
        let mut body = pin!(async { 7 });
        let outcome = poll_fn(|cx| poll_body(&guard, lost.as_mut(), body.as_mut(), cx)).await;
        assert!(matches!(outcome, Ok(7)));
        tokio::time::advance(Duration::from_secs(1)).await;
        release(guard).await;
    }
}
