//! What the parts of the demo share: the state of the page, and what changes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::event::Event;
use crate::lock_panel::LockPanel;
use crate::model::{Model, State, Tone};
use crate::processes::Instances;
use crate::store::{Store, StoreError};
use crate::verdict::Phase;
use crate::view::View;

/// How often the sums of the sale are read.
const TOTALS_INTERVAL: Duration = Duration::from_millis(50);

/// The page gets a new state after this many reads: every 250 ms.
const READS_PER_VIEW: u32 = 5;

/// How many events an experiment may be behind: some seconds.
const TOLD: usize = 1024;

/// What the instances told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    Event(usize, Event),
    Stopped(usize),
}

/// What the parts of the demo share.
pub(crate) struct Demo {
    pub(crate) locks: LockManager,
    pub(crate) store: Arc<dyn Store>,
    /// Where the locks and the stock are, for the page.
    pub(crate) lock_server: String,
    pub(crate) database: &'static str,
    /// Missing with `--in-process`.
    pub(crate) instances: Option<Instances>,
    model: Mutex<Model>,
    opening: tokio::sync::Mutex<()>,
    told: broadcast::Sender<Report>,
    view: watch::Sender<Arc<View>>,
    end: watch::Sender<bool>,
}

impl Demo {
    /// `about` names the lock server and the database for the page.
    pub(crate) fn new(
        locks: LockManager,
        store: Arc<dyn Store>,
        about: (String, &'static str),
        instances: Option<Instances>,
        model: Model,
    ) -> Self {
        let (lock_server, database) = about;
        Self {
            locks,
            store,
            lock_server,
            database,
            instances,
            model: Mutex::new(model),
            opening: tokio::sync::Mutex::default(),
            told: broadcast::channel(TOLD).0,
            view: watch::channel(Arc::default()).0,
            end: watch::channel(false).0,
        }
    }

    /// Ends the requests, the streams of events and the threads.
    pub(crate) fn end(&self) {
        self.end.send_replace(true);
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the stock's row. It differs between demos that share a database.
    #[expect(clippy::unused_self, reason = "the item belongs to the demo")]
    pub(crate) fn item(&self, number: u64) -> String {
        format!("{}-{number}", std::process::id())
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Report> {
        self.told.subscribe()
    }

    /// The states of the page, four in a second.
    pub(crate) fn view(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    /// Makes a new state of the page at once, and returns it.
    pub(crate) fn refresh(&self) -> Arc<View> {
        let view = Arc::new(View::new(self));
        self.view.send_replace(Arc::clone(&view));
        view
    }

    /// Completes when the demo ends.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.end.subscribe();
        async move {
            // Fails when the demo was dropped, which is its end too.
            let _ = end.wait_for(|ended| *ended).await;
        }
    }

    pub(crate) fn on_event(&self, number: usize, event: Event, now: Instant) {
        self.model().on_event(number, event, now);
        // Fails when no experiment listens.
        let _ = self.told.send(Report::Event(number, event));
    }

    pub(crate) fn on_stopped(&self, number: usize) {
        let is_ending = *self.end.borrow();
        let mut model = self.model();
        if !is_ending && model.instance(number).state != State::Stopped {
            let text = format!("Instance {number} has ended; its last words are on the terminal.");
            model.notice(Tone::Bad, text);
        }
        model.on_stopped(number);
        drop(model);
        // Fails when no experiment listens.
        let _ = self.told.send(Report::Stopped(number));
    }

    /// Opens a sale with a new row, so that late writes of an earlier sale do not change it.
    pub(crate) async fn open_sale(&self, phase: Phase) -> Result<(), StoreError> {
        let _opening = self.opening.lock().await;
        let (number, items) = {
            let model = self.model();
            (model.number + 1, model.sale.items)
        };
        self.store.open_sale(&self.item(number), items).await?;
        self.model().open_sale(number, phase);
        Ok(())
    }

    /// Reads the sums of the sale, and ends the sale when it is over.
    async fn read_totals(&self) -> Result<(), StoreError> {
        let (number, is_quiet) = {
            let model = self.model();
            let is_quiet = model.in_flight == 0 && !model.sends();
            (model.number, is_quiet && model.sale.phase == Phase::Selling)
        };
        let totals = self.store.totals(&self.item(number)).await?;
        let mut model = self.model();
        if model.number != number {
            return Ok(());
        }
        model.sale.totals = totals;
        model.sale.serving = model.serving();
        // The sums were read after the last reply, so that no request can change them.
        if is_quiet && totals.left <= 0 {
            model.on_over();
        }
        Ok(())
    }

    /// Reads the holder and the queue of the lock.
    async fn inspect(&self) {
        let (number, is_on) = {
            let model = self.model();
            (model.number, model.settings.lock)
        };
        let name = format!("stock:{}", self.item(number));
        let info = self.locks.admin().inspect(name.as_str()).await;
        let mut model = self.model();
        model.lock = match info {
            Ok(info) if is_on || info.holder().is_some() => LockPanel::new(&info, &model),
            Ok(_) => LockPanel::off(),
            Err(error) => LockPanel {
                holder: error.to_string(),
                ..LockPanel::default()
            },
        };
    }
}

/// Reads the sums, and makes the states of the page.
pub(crate) async fn watch_sale(demo: Arc<Demo>) {
    let mut reads = interval(TOTALS_INTERVAL);
    reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u32.. {
        reads.tick().await;
        if let Err(error) = demo.read_totals().await {
            eprintln!("flash-sale: {error}");
        }
        if number % READS_PER_VIEW == 0 {
            demo.inspect().await;
            demo.model().plot.advance();
            demo.refresh();
        }
    }
}
