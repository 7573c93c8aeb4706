//! Path C of the guide's page `migrating`: from services that lock with Redisson to native locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lock_core::{LockError, LockManager};
use test_support::fixtures::{SOON, all_keys, ms};
use test_support::{Connection, RedisServer, eventually_async};
use tokio::task::JoinHandle;

use super::redisson::{FENCED, REDISSON};

/// The name in all services, and the key of Redisson's lock.
const NAME: &str = "stock:17";

/// Longer than the test: no lock ends by its lease.
const LEASE_MS: &str = "60000";

/// How many sections each running service completes in each stage.
const SHARE: u64 = 12;

/// What all services change: a number that is read and written in two steps.
#[derive(Default)]
struct Stock {
    sold: AtomicU64,
    is_in_use: AtomicBool,
}

impl Stock {
    /// Reads and checks. The caller waits before it calls [`end`](Self::end).
    fn begin(&self) -> u64 {
        let was_in_use = self.is_in_use.swap(true, Ordering::SeqCst);
        assert!(!was_in_use, "two services hold the lock");
        self.sold.load(Ordering::SeqCst)
    }

    fn end(&self, read: u64) {
        self.sold.store(read + 1, Ordering::SeqCst);
        self.is_in_use.store(false, Ordering::SeqCst);
    }
}

/// The orders to a service, and its sections.
#[derive(Default)]
struct Progress {
    sections: AtomicU64,
    stops: AtomicBool,
}

enum Running {
    Thread(thread::JoinHandle<()>),
    Task(JoinHandle<()>),
}

struct Service {
    progress: Arc<Progress>,
    running: Running,
}

impl Service {
    /// Starts a service that acts on the server as a Java service with Redisson does: the fields of its hash, the
    /// expiry and the message. Its waiter polls, as that of `RedissonSpinLock`.
    fn in_java(server: &RedisServer, stock: &Arc<Stock>, thread_id: u32) -> Self {
        let mut connection = server.connect().unwrap();
        let owner = format!("6f1c9a52-4a57-4f0b-8d3e-2b7a1c9d0e11:{thread_id}");
        let (progress, stock) = (Arc::<Progress>::default(), Arc::clone(stock));
        let seen = Arc::clone(&progress);
        let running = thread::spawn(move || {
            while !seen.stops.load(Ordering::SeqCst) {
                while !acquire(&mut connection, &owner) {
                    thread::sleep(ms(2));
                }
                let read = stock.begin();
                thread::sleep(ms(1));
                stock.end(read);
                release(&mut connection, &owner);
                seen.sections.fetch_add(1, Ordering::SeqCst);
            }
        });
        let running = Running::Thread(running);
        Self { progress, running }
    }

    /// Starts a service with this library.
    fn in_rust(locks: &Locks, stock: &Arc<Stock>) -> Self {
        let (progress, locks) = (Arc::<Progress>::default(), locks.clone());
        let (seen, stock) = (Arc::clone(&progress), Arc::clone(stock));
        let running = tokio::spawn(async move {
            while !seen.stops.load(Ordering::SeqCst) {
                locks.sell(&stock).await.unwrap();
                seen.sections.fetch_add(1, Ordering::SeqCst);
            }
        });
        let running = Running::Task(running);
        Self { progress, running }
    }

    fn sections(&self) -> u64 {
        self.progress.sections.load(Ordering::SeqCst)
    }

    /// Stops the service after its section, and returns the number of its sections.
    async fn stop(self) -> u64 {
        self.progress.stops.store(true, Ordering::SeqCst);
        match self.running {
            Running::Thread(thread) => tokio::task::spawn_blocking(|| thread.join().unwrap())
                .await
                .unwrap(),
            Running::Task(task) => task.await.unwrap(),
        }
        self.progress.sections.load(Ordering::SeqCst)
    }
}

/// Acquires `RLock` if it is free, with two commands of Redisson's script. Returns whether it was.
fn acquire(connection: &mut Connection, owner: &str) -> bool {
    let script = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
        redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
        return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
    let reply = connection.call(&["EVAL", script, "1", NAME, owner, LEASE_MS]);
    reply.unwrap().integer() == 1
}

fn release(connection: &mut Connection, owner: &str) {
    let script = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', ARGV[2], '0')
        return 1";
    let channel = format!("redisson_lock__channel:{{{NAME}}}");
    let reply = connection.call(&["EVAL", script, "1", NAME, owner, &channel]);
    assert_eq!(reply.unwrap().integer(), 1, "the lock was lost");
}

/// How a service with this library locks in a stage.
#[derive(Clone)]
enum Locks {
    Redisson(LockManager),
    Both {
        redisson: LockManager,
        native: LockManager,
    },
    Native(LockManager),
}

impl Locks {
    async fn sell(&self, stock: &Stock) -> Result<(), LockError> {
        let section = async |_: &_| {
            let read = stock.begin();
            tokio::time::sleep(ms(1)).await;
            stock.end(read);
        };
        match self {
            Self::Redisson(locks) | Self::Native(locks) => {
                locks.lock(NAME).wait(SOON).run(section).await
            }
            Self::Both { redisson, native } => {
                let outer = redisson.lock(NAME).wait(SOON);
                let inner = || native.lock(NAME).wait(SOON);
                outer.run(async |_| inner().run(section).await).await?
            }
        }
    }
}

/// Waits until each service has completed its share.
async fn await_progress(services: &[Service]) {
    let before: Vec<u64> = services.iter().map(Service::sections).collect();
    eventually_async(SOON, async || {
        let mut pairs = services.iter().zip(&before);
        pairs.all(|(service, before)| service.sections() >= before + SHARE)
    })
    .await;
}

/// Replaces the services one after another. Returns the sections of those that stopped.
async fn replace_all(services: &mut Vec<Service>, new: impl Fn() -> Service) -> u64 {
    let mut sections = 0;
    for _ in 0..services.len() {
        services.push(new());
        await_progress(services).await;
        sections += services.remove(0).stop().await;
        await_progress(services).await;
    }
    sections
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_on_the_way_from_redisson_to_the_native_lock() {
    let server = RedisServer::start();
    let stock = Arc::<Stock>::default();
    let builder = || LockManager::builder().prefix("").dialect(REDISSON);
    let redisson = builder().connect(&server.url()).await.unwrap();
    let native = LockManager::connect(&server.url()).await.unwrap();

    // Before: services in Java only.
    let java = |number| Service::in_java(&server, &stock, number);
    let mut services = vec![java(41), java(42)];
    await_progress(&services).await;

    // 1. Services in Rust beside them.
    let in_dialect = Locks::Redisson(redisson.clone());
    for _ in 0..2 {
        services.push(Service::in_rust(&in_dialect, &stock));
    }
    await_progress(&services).await;

    // 2. The services in Java stop, one after another.
    let mut sections = 0;
    for _ in 0..2 {
        sections += services.remove(0).stop().await;
        await_progress(&services).await;
    }

    // 3. The native lock inside of the lock of Redisson.
    let both = Locks::Both {
        redisson: redisson.clone(),
        native: native.clone(),
    };
    sections += replace_all(&mut services, || Service::in_rust(&both, &stock)).await;

    // 4. The native lock only.
    let only = Locks::Native(native.clone());
    sections += replace_all(&mut services, || Service::in_rust(&only, &stock)).await;

    for service in services {
        sections += service.stop().await;
    }
    assert_eq!(stock.sold.load(Ordering::SeqCst), sections);
    assert_eq!(redisson.stats().lost + native.stats().lost, 0);
    // The last stage has nothing of Redisson on the server.
    eventually_async(SOON, async || {
        let keys = all_keys(&server);
        keys.iter().all(|key| key.contains("lock:stock:17"))
    })
    .await;
}

/// Why step 4 needs another key than step 1.
#[tokio::test]
async fn a_redisson_lock_and_a_native_lock_on_one_key_refuse_each_other() {
    let server = RedisServer::start();
    let builder = || LockManager::builder().prefix("");
    let redisson = builder().dialect(REDISSON).connect(&server.url()).await;
    let native = builder().connect(&server.url()).await.unwrap();
    let redisson = redisson.unwrap();
    for (holder, other) in [(&redisson, &native), (&native, &redisson)] {
        let held = holder.lock(NAME).acquire().await.unwrap();
        // At once, and not after the wait.
        let acquire = other.lock(NAME).wait(SOON).acquire();
        let error = tokio::time::timeout(SOON / 4, acquire).await.unwrap();
        let error = error.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        held.renew().await.unwrap();
        held.release().await.unwrap();
        let held = other.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    }
}

/// What step 4 means for a resource that compares tokens.
#[tokio::test]
async fn native_tokens_are_greater_than_those_of_redisson() {
    let server = RedisServer::start();
    let builder = LockManager::builder().prefix("").dialect(FENCED);
    let redisson = builder.connect(&server.url()).await.unwrap();
    let native = LockManager::connect(&server.url()).await.unwrap();
    let mut tokens = Vec::new();
    for locks in [&redisson, &redisson, &native] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        tokens.push(held.fencing_token().unwrap().as_u64());
        held.release().await.unwrap();
    }
    assert_eq!(tokens[..2], [1, 2]);
    assert!(tokens[2] > u64::from(u32::MAX), "{tokens:?}");
    // The counter outlives the lock. Its number can be raised above that of the native lock.
    let counter = format!("redisson_lock_token:{{{NAME}}}");
    assert_eq!(server.cli(&["GET", &counter]).text(), "2");
    assert_eq!(server.cli(&["TTL", &counter]).integer(), -1);
    server.cli(&["SET", &counter, &tokens[2].to_string()]);
    let held = redisson.lock(NAME).acquire().await.unwrap();
    let raised = held.fencing_token().unwrap().as_u64();
    assert_eq!(raised, tokens[2] + 1);
    held.release().await.unwrap();
}
