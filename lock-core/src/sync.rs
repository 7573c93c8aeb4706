//! The mutexes of this library, and the code that must never run under one of them.
//!
//! No user code, spawn, waker, tracing event or drop of a foreign value runs while a thread holds a
//! mutex of this library: each of them may call the library again and lock the same mutex. So a
//! critical section only moves data. Values to drop, wake or spawn are moved out of it first.
//! Debug builds count the mutexes that each thread holds, and the places that call foreign code
//! check that the count is zero.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::task::Poll;

/// A mutex that a panic does not poison: its critical sections cannot leave the data half-written.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

/// Gives access to the data of a [`Mutex`].
pub(crate) struct MutexGuard<'a, T> {
    data: std::sync::MutexGuard<'a, T>,
    #[cfg(debug_assertions)]
    _counted: counting::Counted,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(std::sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let data = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard {
            data,
            #[cfg(debug_assertions)]
            _counted: counting::Counted::new(),
        }
    }

    /// Returns the data without locking: the exclusive reference shows that no other thread has it.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

#[cfg(debug_assertions)]
mod counting {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) struct Counted;

    impl Counted {
        pub(super) fn new() -> Self {
            HELD.set(HELD.get() + 1);
            Self
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }

    pub(super) fn held() -> usize {
        HELD.get()
    }
}

/// Returns how many mutexes of this library the calling thread holds. Only in debug builds, for the
/// tests of this project.
#[cfg(all(debug_assertions, feature = "testing"))]
#[must_use]
pub fn held_mutexes() -> usize {
    counting::held()
}

/// The process that made a value. A forked child has a copy of the value, and of the mutexes that
/// other threads held at the moment of the fork: no thread of the child unlocks those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether this is still the process that made the value. A drop has to check this before it
    /// locks a mutex, because the user cannot prevent a drop in a forked child.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// The data of a static, once for each process.
///
/// In a forked child a static of its parent may be locked forever, and what it holds belongs to the parent. So the
/// child gets data of its own.
pub(crate) struct PerProcess<T> {
    /// The process that the data belongs to; zero until a process has used it.
    process: AtomicU32,
    data: Mutex<T>,
    of_child: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self {
            process: AtomicU32::new(0),
            data: Mutex::new(data),
            of_child: OnceLock::new(),
        }
    }
}

impl<T: Default> PerProcess<T> {
    /// Locks the data of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let Process(current) = Process::current();
        let mut own = self;
        loop {
            let claim =
                own.process
                    .compare_exchange(0, current, Ordering::AcqRel, Ordering::Acquire);
            match claim {
                Err(known) if known != current => {
                    own = own
                        .of_child
                        .get_or_init(|| Box::new(Self::new(T::default())));
                }
                _ => return own.data.lock(),
            }
        }
    }
}

/// Checks, in debug builds, that the thread holds no mutex before it runs foreign code.
#[track_caller]
pub(crate) fn assert_no_mutex_held() {
    #[cfg(debug_assertions)]
    debug_assert_eq!(counting::held(), 0, "foreign code would run under a mutex");
}

/// Runs foreign code, such as a tracing subscriber or a waker. Returns the payload of its panic.
pub(crate) fn catch<T>(foreign: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    assert_no_mutex_held();
    catch_unwind(AssertUnwindSafe(foreign))
}

/// As [`catch`], for a future.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    })
    .await
}

/// Returns the message of a panic and drops its payload, which is foreign and may panic again.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    if let Err(again) = catch(|| drop(payload)) {
        std::mem::forget(again);
    }
    message
}
