//! The demo: it starts all parts, keeps the state of the page, and ends the parts in order.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{broadcast, watch};
use tokio::time::{interval, timeout};

use crate::event::Event;
use crate::lock_panel::LockPanel;
use crate::model::{Model, Settings, State, Tone};
use crate::options::{Database, Options};
use crate::processes::{Guarded, Instances};
use crate::store::{Store, StoreError};
use crate::verdict::Phase;
use crate::view::View;
use crate::{BoxError, PREFIX, load, page, redis_server, store, threads};

/// How often the sums of the sale are read.
const TOTALS_INTERVAL: Duration = Duration::from_millis(50);

/// The page gets a new state after this many reads: every 250 ms.
const READS_PER_VIEW: u32 = 5;

/// How long the instances may take to start.
const START: Duration = Duration::from_secs(10);

/// How long requests to the page have at the end.
const DRAIN: Duration = Duration::from_secs(1);

/// What the instances told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
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
    told: broadcast::Sender<Told>,
    view: watch::Sender<Arc<View>>,
    end: watch::Sender<bool>,
}

impl Demo {
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the stock's row. It differs between demos that share a database.
    #[expect(clippy::unused_self, reason = "the item belongs to the demo")]
    pub(crate) fn item(&self, number: u64) -> String {
        format!("{}-{number}", std::process::id())
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Told> {
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
            let _ = end.wait_for(|ended| *ended).await;
        }
    }

    pub(crate) fn on_event(&self, number: usize, event: Event, now: Instant) {
        self.model().on_event(number, event, now);
        // Fails when no experiment listens.
        let _ = self.told.send(Told::Event(number, event));
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
        let _ = self.told.send(Told::Stopped(number));
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
        let info = self.locks.inspect(name.as_str()).await;
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

/// Runs the demo until Ctrl-C.
pub(crate) async fn run(options: Options) -> Result<(), BoxError> {
    let mut signals = Signals::new()?;
    // First, because the port is what most often fails.
    let address = SocketAddr::from(([127, 0, 0, 1], options.port));
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let port = options.port;
        match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "port {port} is in use; choose another one with --port, or a free one with --port 0"
            ),
            _ => format!("cannot listen on port {port}: {error}"),
        }
    })?;
    let directory = Directory::new()?;
    let mut started = Parts::default();
    tokio::select! {
        serving = serve(&options, &directory, listener, &mut started) => serving?,
        () = signals.next() => {}
    }
    // A second signal ends the process at once. Then the guards end the others.
    tokio::select! {
        ended = started.end() => ended,
        () = signals.next() => Err("stopped before the end of all processes".into()),
    }
}

/// The parts that must be ended.
#[derive(Default)]
struct Parts {
    demo: Option<Arc<Demo>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    redis: Option<Guarded>,
    serving: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

impl Parts {
    /// Stops accepting, drains the requests under a timeout, then ends the instances, the locks and the
    /// lock server.
    async fn end(self) -> Result<(), BoxError> {
        if let Some(demo) = &self.demo {
            demo.end.send_replace(true);
        }
        if let Some(serving) = self.serving {
            let _ = timeout(DRAIN, serving).await;
        }
        if let Some(demo) = &self.demo {
            if let Some(instances) = &demo.instances {
                instances.end().await;
            }
            let threads = self.threads;
            tokio::task::spawn_blocking(move || threads.into_iter().map(|t| t.join()).count())
                .await?;
            demo.locks.shutdown().await?;
        }
        if let Some(redis) = self.redis {
            redis.end().await;
        }
        Ok(())
    }
}

/// Starts all parts, and serves the page.
async fn serve(
    options: &Options,
    directory: &Directory,
    listener: TcpListener,
    parts: &mut Parts,
) -> Result<(), BoxError> {
    let (redis, lock_server) = match &options.redis {
        _ if options.in_process => (None, "locks in memory".to_owned()),
        // The URL may have a password.
        Some(url) => (Some(url.clone()), "the server of --redis".to_owned()),
        None => {
            let (server, url) = redis_server::start(&directory.0).await?;
            parts.redis = Some(server);
            let text = format!("redis-server on {}", url.trim_start_matches("redis://"));
            (Some(url), text)
        }
    };
    let locks = match &redis {
        Some(url) => {
            LockManager::builder()
                .prefix(PREFIX)
                .label("page")
                .connect(url)
                .await?
        }
        None => LockManager::builder().prefix(PREFIX).in_memory(),
    };
    let file = directory.0.join("stock.sqlite");
    let (database, database_text) = match &options.database {
        Some(Database::Postgres(url)) => (Database::Postgres(url.clone()), url.clone()),
        Some(Database::Sqlite(file)) => (
            Database::Sqlite(file.clone()),
            format!("sqlite:{}", file.display()),
        ),
        _ if options.in_process => (Database::SqliteInMemory, String::new()),
        _ => (
            Database::Sqlite(file.clone()),
            format!("sqlite:{}", file.display()),
        ),
    };
    let store = store::open(&database);
    let store = store
        .await
        .map_err(|error| format!("cannot open the database: {error}"))?;
    let settings = Settings {
        lock: true,
        fence: true,
        slow: false,
        rate: options.rate,
    };
    let instances = redis.map(|url| {
        let directory = Some(directory.0.clone());
        Instances::new(options.instances, url, database_text, directory)
    });
    let demo = Arc::new(Demo {
        locks,
        store,
        lock_server,
        database: database.kind(),
        instances,
        model: Mutex::new(Model::new(settings, options.items, options.instances)),
        opening: tokio::sync::Mutex::default(),
        told: broadcast::channel(1024).0,
        view: watch::channel(Arc::default()).0,
        end: watch::channel(false).0,
    });
    parts.demo = Some(Arc::clone(&demo));
    demo.open_sale(Phase::Ready).await?;
    start_instances(&demo, options.instances, &mut parts.threads).await?;
    demo.refresh();
    tokio::spawn(load::run(Arc::clone(&demo), options.seed));
    tokio::spawn(watch_sale(Arc::clone(&demo)));

    println!(
        "flash sale: http://{} ({} instances, {}, {}); Ctrl-C ends it",
        listener.local_addr()?,
        options.instances,
        demo.lock_server,
        demo.database
    );
    let serving = axum::serve(listener, page::router(&demo)).with_graceful_shutdown(demo.ended());
    parts.serving = Some(tokio::spawn(serving.into_future()));
    // Until a signal comes.
    std::future::pending().await
}

async fn start_instances(
    demo: &Arc<Demo>,
    count: usize,
    threads: &mut Vec<std::thread::JoinHandle<()>>,
) -> Result<(), BoxError> {
    let mut told = demo.subscribe();
    for number in 1..=count {
        match &demo.instances {
            Some(instances) => instances.start(demo, number).await?,
            None => threads.push(threads::start(demo, number)?),
        }
    }
    let all_serve = async {
        while demo.model().serving() < count {
            if let Told::Stopped(number) = told.recv().await? {
                return Err(format!("instance {number} could not start").into());
            }
        }
        Ok(())
    };
    let started = timeout(START, all_serve).await;
    started.map_err(|_| "the instances did not start in time")?
}

/// Reads the sums, and makes the states of the page.
async fn watch_sale(demo: Arc<Demo>) {
    let mut reads = interval(TOTALS_INTERVAL);
    reads.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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

/// The signals that end the demo.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self, BoxError> {
        Ok(Self([
            signal(SignalKind::hangup())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        ]))
    }

    async fn next(&mut self) {
        let [hangup, interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// A directory for the files of this demo. Removed on drop, or by a guard when the demo was killed.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, BoxError> {
        let path = std::env::temp_dir().join(format!("flash-sale-{}", std::process::id()));
        // Of an earlier process with this id.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
