//! The internals of a manager: acquiring, waiting, held locks and the background worker. It does
//! not know the public guard.

pub(crate) mod acquired;
pub(crate) mod activity;
pub(crate) mod background;
pub(crate) mod connecting;
pub(crate) mod deadlines;
pub(crate) mod held_lock;
pub(crate) mod inner;
pub(crate) mod notifications;
pub(crate) mod observing;
pub(crate) mod overrides;
pub(crate) mod paces;
pub(crate) mod pending;
pub(crate) mod probe;
pub(crate) mod records;
pub(crate) mod reentrancy;
pub(crate) mod set;
pub(crate) mod tracked;
pub(crate) mod waiter;
