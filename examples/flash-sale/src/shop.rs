//! One shop instance: the handler of `POST /buy`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use lock_core::{LockError, LockGuard, LockManager, distributed_lock};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, RwLock};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::event::Event;
use crate::store::{Fenced, Sale, Store, StoreError};

/// How long a payment takes, and a slow one.
const PAYMENT: Duration = Duration::from_millis(10);
const SLOW_PAYMENT: Duration = Duration::from_millis(150);

/// The longest pause of a chosen purchase. The demo ends each pause earlier.
const PAUSE: Duration = Duration::from_secs(20);

/// A request that takes longer was frozen: the wait for the lock and a command take 1 s each.
const FREEZE_AT_LEAST: Duration = Duration::from_secs(4);

/// How often an instance prints an error.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// How often a purchase notes the end of its lease while it pays.
const LEASE_CHECK: Duration = Duration::from_millis(10);

/// The body of `POST /buy`. The switches of the page come with each request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The number of the sale.
    pub(crate) sale: u64,
    pub(crate) item: String,
    pub(crate) buyer: u64,
    pub(crate) lock: bool,
    pub(crate) fence: bool,
    pub(crate) slow: bool,
}

/// The body of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    /// How long the purchase waited for the lock, if it got so far.
    pub(crate) waited_ms: Option<f64>,
}

/// How a request to buy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Sold,
    SoldOut,
    /// The lock was not free in time.
    Busy,
    /// The database refused the write, because a newer holder has read the stock.
    Refused,
    /// The lock server or the database failed.
    Failed,
}

impl Outcome {
    fn status(self) -> StatusCode {
        match self {
            Self::Sold => StatusCode::OK,
            Self::SoldOut => StatusCode::GONE,
            Self::Busy | Self::Refused => StatusCode::CONFLICT,
            Self::Failed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Why a purchase did not come to a result.
#[derive(Debug, thiserror::Error)]
enum BuyError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a newer holder of the lock has read the stock")]
    Refused,
}

/// What the handlers of one instance share.
pub(crate) struct Shop {
    number: usize,
    locks: LockManager,
    store: Arc<dyn Store>,
    events: UnboundedSender<Event>,
    pub(crate) pause: Pause,
    reported: Mutex<Option<Instant>>,
}

/// Lets the demo stop or kill the process in the middle of a purchase, where it matters: between the
/// read and the write.
#[derive(Default)]
pub(crate) struct Pause {
    armed: AtomicBool,
    ended: Notify,
    /// Each query shares this, and a paused purchase has it alone. A stopped process must not hold a
    /// lock of the database: then the other instances could not write at all.
    database: RwLock<()>,
}

impl Pause {
    /// Chooses the next purchase.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Chooses none.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Lets the chosen purchase continue.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
    }
}

impl Shop {
    pub(crate) fn new(
        number: usize,
        locks: LockManager,
        store: Arc<dyn Store>,
        events: UnboundedSender<Event>,
    ) -> Self {
        Self {
            number,
            locks,
            store,
            events,
            pause: Pause::default(),
            reported: Mutex::default(),
        }
    }

    /// The routes of the instance.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        let router = Router::new().route("/buy", post(buy));
        router.with_state(Arc::clone(self))
    }

    fn tell(&self, event: Event) {
        // Without a demo that listens, the process is about to end.
        let _ = self.events.send(event);
    }
}

/// The end of a purchase that got as far as reading the stock.
struct Bought {
    outcome: Outcome,
    /// When the purchase got the lock, or began without one.
    began: Instant,
}

/// Handles `POST /buy`.
async fn buy(State(shop): State<Arc<Shop>>, Json(order): Json<Order>) -> (StatusCode, Json<Reply>) {
    let asked = Instant::now();
    let bought = if order.lock {
        buy_with_lock(&shop, &order, &order.item).await
    } else {
        sell(shop.begin(&order, None)).await
    };
    let (outcome, waited) = match bought {
        Ok(bought) => (bought.outcome, Some(bought.began - asked)),
        Err(BuyError::Refused) => (Outcome::Refused, None),
        Err(BuyError::Lock(error)) if error.is_contended() => {
            (Outcome::Busy, Some(asked.elapsed()))
        }
        Err(error) => {
            shop.report(&error, asked);
            (Outcome::Failed, None)
        }
    };
    let waited_ms = waited.map(|waited| 1000.0 * waited.as_secs_f64());
    (outcome.status(), Json(Reply { outcome, waited_ms }))
}

// The page shows the code between the two marks.
// begin of the shown code
#[distributed_lock(
    name = "stock:{item}", ttl = "2s", wait = "1s",
    on_lost = continue, bind = held, manager = shop.locks,
)]
async fn buy_with_lock(shop: &Shop, order: &Order, item: &str) -> Result<Bought, BuyError> {
    sell(shop.begin(order, Some(held))).await
}

async fn sell(mut purchase: Purchase<'_>) -> Result<Bought, BuyError> {
    let left = purchase.read_stock().await?;
    if left <= 0 {
        return Ok(purchase.end(Outcome::SoldOut));
    }
    purchase.pay().await;
    // Without the lock, another request may have sold since the read.
    purchase.write_stock_and_order(left - 1).await?;
    Ok(purchase.end(Outcome::Sold))
}
// end of the shown code

impl Shop {
    /// Prints an error. Its text names hosts and processes, so that the reply does not have it.
    fn report(&self, error: &BuyError, asked: Instant) {
        // Requests that were frozen fail because of that, and the others fail in numbers.
        let mut last = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.is_none_or(|last| last.elapsed() > REPORT_INTERVAL);
        if is_new && asked.elapsed() < FREEZE_AT_LEAST {
            *last = Some(Instant::now());
            eprintln!("flash-sale: instance {}: {error}", self.number);
        }
    }

    fn begin<'a>(&'a self, order: &'a Order, held: Option<&'a LockGuard>) -> Purchase<'a> {
        let token = held.and_then(LockGuard::fencing_token).map(u64::from);
        if let Some(token) = token {
            self.tell(Event::Granted {
                sale: order.sale,
                token,
            });
        }
        Purchase {
            shop: self,
            order,
            held,
            token,
            began: Instant::now(),
            late: None,
        }
    }
}

/// One request that buys.
struct Purchase<'a> {
    shop: &'a Shop,
    order: &'a Order,
    held: Option<&'a LockGuard>,
    token: Option<u64>,
    began: Instant,
    /// For how long the lease had ended when the payment was done.
    late: Option<Duration>,
}

impl Purchase<'_> {
    /// Returns the token that the database checks.
    fn fence(&self) -> Option<u64> {
        self.token.filter(|_| self.order.fence)
    }

    async fn read_stock(&self) -> Result<i64, BuyError> {
        let _query = self.shop.pause.database.read().await;
        let read = self.shop.store.read(&self.order.item, self.fence());
        self.accepted(read.await?)
    }

    async fn pay(&mut self) {
        let shop = self.shop;
        let payment = async {
            if shop.pause.armed.swap(false, Ordering::SeqCst) {
                let _alone = shop.pause.database.write().await;
                shop.tell(Event::Paused { token: self.token });
                tokio::select! {
                    () = shop.pause.ended.notified() => {}
                    () = sleep(PAUSE) => {}
                }
            } else {
                sleep(if self.order.slow {
                    SLOW_PAYMENT
                } else {
                    PAYMENT
                })
                .await;
            }
        };
        let mut lease_end = Instant::now();
        let mut checks = interval(LEASE_CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut payment = std::pin::pin!(payment);
        loop {
            let lease = self.held.map(LockGuard::remaining).unwrap_or_default();
            if !lease.is_zero() {
                lease_end = Instant::now() + lease;
            }
            tokio::select! {
                () = &mut payment => break,
                _ = checks.tick() => {}
            }
        }
        let is_lost = self.held.is_some_and(LockGuard::is_lost);
        self.late = is_lost.then(|| lease_end.elapsed());
    }

    async fn write_stock_and_order(&self, left: i64) -> Result<(), BuyError> {
        let _query = self.shop.pause.database.read().await;
        let sale = Sale {
            buyer: self.order.buyer,
            left,
            token: self.fence(),
        };
        let written = self.shop.store.write(&self.order.item, sale).await?;
        self.accepted(written)?;
        if let (Some(token), Some(late)) = (self.token, self.late) {
            let late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
            self.shop.tell(Event::WroteLate {
                sale: self.order.sale,
                token,
                late_ms,
            });
        }
        Ok(())
    }

    fn accepted<T>(&self, fenced: Fenced<T>) -> Result<T, BuyError> {
        match (fenced, self.token) {
            (Fenced::Accepted(value), _) => Ok(value),
            (Fenced::Refused { newest }, token) => {
                let token = token.unwrap_or_default();
                self.shop.tell(Event::Refused {
                    sale: self.order.sale,
                    token,
                    newest,
                });
                Err(BuyError::Refused)
            }
        }
    }

    fn end(&self, outcome: Outcome) -> Bought {
        Bought {
            outcome,
            began: self.began,
        }
    }
}

impl Drop for Purchase<'_> {
    fn drop(&mut self) {
        self.shop.tell(Event::Ended { token: self.token });
    }
}
