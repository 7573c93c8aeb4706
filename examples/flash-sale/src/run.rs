//! Starts all parts of the demo, and ends them in order.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockManager;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::demo::{self, Demo, Report};
use crate::model::{Model, Settings};
use crate::options::{Database, Options};
use crate::processes::{Guarded, Instances};
use crate::verdict::Phase;
use crate::{BoxError, PREFIX, load, page, redis_server, store, threads};

/// How long the instances may take to start.
const START: Duration = Duration::from_secs(10);

/// How long requests to the page have at the end.
const DRAIN: Duration = Duration::from_secs(1);

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
    let mut directory = Directory::default();
    let mut started = Parts::default();
    tokio::select! {
        serving = serve(&options, &mut directory, listener, &mut started) => serving?,
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
            demo.end();
        }
        if let Some(serving) = self.serving {
            let served = timeout(DRAIN, serving).await;
            if !matches!(served, Ok(Ok(Ok(())))) {
                eprintln!("flash-sale: the page did not end in order: {served:?}");
            }
        }
        if let Some(demo) = &self.demo {
            if let Some(instances) = &demo.instances {
                instances.end().await;
            }
            tokio::task::spawn_blocking(move || {
                for thread in self.threads {
                    // A panic was printed when it happened.
                    let _ = thread.join();
                }
            })
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
    directory: &mut Directory,
    listener: TcpListener,
    parts: &mut Parts,
) -> Result<(), BoxError> {
    let (redis, lock_server) = match &options.redis {
        _ if options.in_process => (None, "locks in memory".to_owned()),
        // The URL may have a password.
        Some(url) => (Some(url.clone()), "the server of --redis".to_owned()),
        None => {
            let (server, url) = redis_server::start(directory.path()?).await?;
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
        None => LockManager::builder().prefix(PREFIX).in_memory()?,
    };
    let database = match &options.database {
        Some(database) => database.clone(),
        None if options.in_process => Database::SqliteInMemory,
        None => Database::Sqlite(directory.path()?.join("stock.sqlite")),
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
        let directory = directory.0.clone();
        Instances::new(options.instances, url, database.url(), directory)
    });
    let demo = Arc::new(Demo::new(
        locks,
        store,
        (lock_server, database.kind()),
        instances,
        Model::new(settings, options.items, options.instances),
    ));
    parts.demo = Some(Arc::clone(&demo));
    demo.open_sale(Phase::Ready).await?;
    start_instances(&demo, options.instances, &mut parts.threads).await?;
    demo.refresh();
    tokio::spawn(load::run(Arc::clone(&demo), options.seed));
    tokio::spawn(demo::watch_sale(Arc::clone(&demo)));

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
            if let Report::Stopped(number) = told.recv().await? {
                return Err(format!("instance {number} could not start").into());
            }
        }
        Ok(())
    };
    let started = timeout(START, all_serve).await;
    started.map_err(|_| "the instances did not start in time")?
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

/// A directory for the files of this demo, made when the first file needs it. Removed on drop, or by a
/// guard when the demo was killed.
#[derive(Default)]
struct Directory(Option<PathBuf>);

impl Directory {
    fn path(&mut self) -> Result<&Path, BoxError> {
        let path = if let Some(path) = self.0.take() {
            path
        } else {
            let path = std::env::temp_dir().join(format!("flash-sale-{}", std::process::id()));
            // Of an earlier process with this id.
            let _ = std::fs::remove_dir_all(&path);
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            path
        };
        Ok(self.0.insert(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Fails when a guard has removed it already.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
