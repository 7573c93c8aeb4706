//! The parts that all shapes share: a value that logs its drop, and the report of a shape.
#![deny(warnings)]

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug, Display};
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::task::Poll;

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static PARKED: Cell<bool> = const { Cell::new(false) };
}

/// A value with a name, which logs when it is dropped.
#[derive(Debug)]
pub(crate) struct Tracked(pub(crate) &'static str);

impl Tracked {
    pub(crate) fn length(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        log(self.0);
    }
}

impl Display for Tracked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

/// Logs a step of a shape, in one line with its drops.
pub(crate) fn log(step: &str) {
    LOG.with(|log| log.borrow_mut().push(step.to_owned()));
}

/// Parks a body for ever, so that it can only be dropped.
pub(crate) async fn park() {
    PARKED.with(|parked| parked.set(true));
    std::future::pending().await
}

/// Suspends a body once.
pub(crate) async fn pause() {
    tokio::task::yield_now().await;
}

/// The return value of a shape that cannot return an error. No lock of this suite is refused.
#[cfg(feature = "attribute")]
pub(crate) fn refused<T>(error: lock_core::LockError) -> T {
    panic!("{}", error)
}

/// Runs a shape to its end.
pub(crate) async fn finish<F>(name: &str, shape: F)
where
    F: Future,
    F::Output: Debug,
{
    let outcome = shape.await;
    log("<returned>");
    let text = format!("{:?}", outcome);
    drop(outcome);
    report(name, &text);
}

/// Drops a shape that was never polled.
pub(crate) fn abandon<F: Future>(name: &str, shape: F) {
    drop(shape);
    report(name, "never polled");
}

/// Polls a shape until it parks, and drops it there.
pub(crate) async fn cancel<F: Future>(name: &str, shape: F) {
    let mut shape = Box::pin(shape);
    PARKED.with(|parked| parked.set(false));
    std::future::poll_fn(|context| {
        let done = shape.as_mut().poll(context).is_ready();
        assert!(!done, "{} ended before it parked", name);
        if PARKED.with(Cell::get) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    log("<cancelled>");
    drop(shape);
    report(name, "cancelled");
}

/// Runs a shape that panics.
pub(crate) async fn panicking<F: Future>(name: &str, shape: F) {
    let mut shape = Box::pin(shape);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let caught = std::future::poll_fn(|context| {
        let polled = AssertUnwindSafe(|| shape.as_mut().poll(context));
        match panic::catch_unwind(polled) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(_)) => Poll::Ready(None),
            Err(panic) => Poll::Ready(Some(panic)),
        }
    })
    .await;
    panic::set_hook(hook);
    log("<caught>");
    drop(shape);
    let text = match caught {
        None => "no panic".to_owned(),
        Some(panic) => match panic.downcast_ref::<&str>() {
            Some(message) => format!("panic: {}", message),
            None => "another panic".to_owned(),
        },
    };
    report(name, &text);
}

/// Prints one line about one shape.
pub(crate) fn report(name: &str, outcome: &str) {
    let log = LOG.with(|log| log.borrow_mut().split_off(0));
    // The module path without the crate, whose name contains the edition.
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    println!("{}: {}; {}", name, outcome, log.join(", "));
}

/// `show!(shape(arguments))` runs a shape and reports it. A word in front changes the run:
/// `cancel`, `abandon` or `panicking`. An expression can follow the name: `show!(name =>
/// expression)`.
macro_rules! show {
    (abandon $name:ident $($rest:tt)*) => {
        $crate::support::abandon(
            concat!(module_path!(), "::", stringify!($name), " (abandon)"),
            show!(@future $name $($rest)*),
        )
    };
    (cancel $name:ident $($rest:tt)*) => {
        $crate::support::cancel(
            concat!(module_path!(), "::", stringify!($name), " (cancel)"),
            show!(@future $name $($rest)*),
        ).await
    };
    (panicking $name:ident $($rest:tt)*) => {
        $crate::support::panicking(
            concat!(module_path!(), "::", stringify!($name), " (panicking)"),
            show!(@future $name $($rest)*),
        ).await
    };
    (@future $name:ident => $future:expr) => { $future };
    (@future $name:ident ($($arguments:tt)*)) => { $name($($arguments)*) };
    ($name:ident $($rest:tt)*) => {
        $crate::support::finish(
            concat!(module_path!(), "::", stringify!($name)),
            show!(@future $name $($rest)*),
        ).await
    };
}
