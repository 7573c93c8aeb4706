//! One connection for each runtime that asks for locks.
//!
//! A connection's driver is a task of the runtime that made it and dies with it, so runtimes
//! never share one. A seat is given up when its runtime ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::connection::{Connection, Connector};
use super::fault::timed_out;
use crate::backend::Origin;
use crate::error::LockError;
use crate::inbox::locked;

/// The seats of all runtimes.
pub(super) struct Connections {
    pub(super) connector: Connector,
    seats: Arc<Mutex<HashMap<Id, Arc<Seat>>>>,
    /// The life of the server that was seen last; connections to an earlier one are dropped.
    incarnation: AtomicU64,
}

struct Seat {
    current: Mutex<Option<Arc<Connection>>>,
    /// One at a time connects, the others wait for what it gets.
    connecting: tokio::sync::Mutex<()>,
    /// Dropped with the seat: ends the task that waits for the end of the runtime.
    _open: oneshot::Sender<()>,
}

impl Connections {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector,
            seats: Arc::default(),
            incarnation: AtomicU64::new(0),
        }
    }

    /// The connection of the calling runtime, made where there is none that works.
    pub(super) async fn here(&self, limit: Duration) -> Result<Arc<Connection>, LockError> {
        let seat = self.seat();
        if let Some(connection) = self.usable(&seat) {
            return Ok(connection);
        }
        let started = tokio::time::Instant::now();
        let _turn = tokio::time::timeout(limit, seat.connecting.lock())
            .await
            .map_err(|_| timed_out("cannot connect to the lock server"))?;
        if let Some(connection) = self.usable(&seat) {
            return Ok(connection);
        }
        let left = limit.saturating_sub(started.elapsed());
        let connection = Arc::new(self.connector.connect(left).await?);
        self.seen(connection.first.incarnation);
        *locked(&seat.current) = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// That very connection, where it still works.
    pub(super) fn by_origin(&self, origin: Origin) -> Option<Arc<Connection>> {
        locked(&self.seats)
            .values()
            .filter_map(|seat| locked(&seat.current).clone())
            .find(|connection| connection.origin == origin && !connection.is_broken())
    }

    /// A connection of any kind met this life of the server.
    pub(super) fn seen(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Relaxed);
    }

    fn usable(&self, seat: &Seat) -> Option<Arc<Connection>> {
        let newest = self.incarnation.load(Ordering::Relaxed);
        locked(&seat.current)
            .as_ref()
            .filter(|connection| !connection.is_broken() && connection.first.incarnation == newest)
            .cloned()
    }

    fn seat(&self) -> Arc<Seat> {
        let runtime = Handle::current();
        let mut seats = locked(&self.seats);
        if let Some(seat) = seats.get(&runtime.id()) {
            return Arc::clone(seat);
        }
        let (open, closed) = oneshot::channel();
        let seat = Arc::new(Seat {
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            _open: open,
        });
        seats.insert(runtime.id(), Arc::clone(&seat));
        let leave = LeaveSeat {
            seats: Arc::downgrade(&self.seats),
            runtime: runtime.id(),
        };
        runtime.spawn(async move {
            let _leave = leave;
            let _closed = closed.await;
        });
        seat
    }
}

/// Held by a task of the runtime: dropped with it.
struct LeaveSeat {
    seats: Weak<Mutex<HashMap<Id, Arc<Seat>>>>,
    runtime: Id,
}

impl Drop for LeaveSeat {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.upgrade() {
            let seat = locked(&seats).remove(&self.runtime);
            // Outside of the lock: its connection's driver may go with it.
            drop(seat);
        }
    }
}
