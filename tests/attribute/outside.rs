//! A crate outside of this workspace, without network access, with `lock-core` under another name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MANIFEST: &str = r#"
[package]
name = "outside"
version = "0.0.0"
edition = "2021"
rust-version = "ROOT_RUST_VERSION"

[dependencies]
locks = { package = "lock-core", path = "ROOT/lock-core", default-features = false, features = ["macros"] }
tokio = { version = "1", default-features = false, features = ["macros", "rt", "time"] }

# Fast to build, and small.
[profile.dev]
debug = false
incremental = false

[workspace]
"#;

const PROGRAM: &str = r#"
#![deny(warnings)]

use std::sync::Arc;
use std::time::Duration;

use locks::{distributed_lock, LockError, LockManager};

const LEASE: Duration = Duration::from_secs(5);

struct Shop {
    id: u64,
}

impl Shop {
    #[distributed_lock(
        name = "shop:{self.id}:{order.id}",
        ttl = LEASE,
        wait = "1s",
        bind = held,
        crate = ::locks
    )]
    async fn ship(self: Arc<Self>, order: Order) -> Result<String, LockError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(format!("{} {}", held.key(), order.id))
    }
}

struct Order {
    id: u64,
}

#[distributed_lock(name = "job", on_contended = skip, crate = ::locks)]
async fn job() -> Result<Option<u8>, LockError> {
    // The body holds the same lock already.
    Ok(Box::pin(again()).await.err().map(|_| 1))
}

#[distributed_lock(name = "job", crate = ::locks)]
async fn again() -> Result<(), LockError> {
    Ok(())
}

/// # Safety
///
/// No handler is needed; the option is here for its signature.
#[distributed_lock(name = "unsafe", crate = ::locks)]
async unsafe fn careful(pointer: &u8) -> Result<u8, LockError> {
    let pointer: *const u8 = pointer;
    Ok(unsafe { *pointer })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    LockManager::in_memory().install_global()?;
    let shipped = Arc::new(Shop { id: 1 }).ship(Order { id: 2 }).await?;
    let job = job().await?;
    let careful = unsafe { careful(&7) }.await?;
    println!("{shipped} {job:?} {careful}");
    Ok(())
}
"#;

/// An error that `cargo check` does not detect: the value of a generic constant is known only where
/// the function is used.
const FAULTY: &str = r#"
use std::future::Future;
use std::time::Duration;

trait Lease {
    const TTL: Duration;
}

struct Short;

impl Lease for Short {
    const TTL: Duration = Duration::from_millis(50);
}

#[locks::distributed_lock(name = "x", ttl = L::TTL, crate = ::locks)]
async fn f<L: Lease>() -> Result<(), locks::LockError> {
    Ok(())
}

fn main() {
    let mut f = Box::pin(f::<Short>());
    let waker = std::task::Waker::noop();
    let _ = f.as_mut().poll(&mut std::task::Context::from_waker(waker));
}
"#;

/// Edition 2021: the temporaries of a tail expression outlive the locals, as in all editions before
/// 2024.
const DROPS: &str = r#"
struct Tracked(&'static str);

impl Tracked {
    fn with(&self, _: &Tracked) -> u8 {
        1
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        print!("{} ", self.0);
    }
}

async fn plain() -> Result<u8, locks::LockError> {
    let local = Tracked("local");
    Ok(Tracked("tail").with(&local))
}

#[locks::distributed_lock(name = "x", manager = locks::LockManager::in_memory(), crate = ::locks)]
async fn annotated() -> Result<u8, locks::LockError> {
    let local = Tracked("local");
    Ok(Tracked("tail").with(&local))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    plain().await.unwrap();
    annotated().await.unwrap();
}
"#;

/// Edition 2018: declared locks, and a list of names.
const DECLARED: &str = r#"
#![deny(warnings)]

use locks::typed::Read;
use locks::{distributed_lock, Held, Lock, LockError, LockManager, LockSet};

/// The derive takes the crate's other name from its own options.
#[derive(Lock)]
#[lock(name = "stock:{sku}:{async}", mode = read_write, ttl = "9s", crate = ::locks)]
struct Stock<'a> {
    sku: &'a str,
    r#async: u8,
}

#[derive(locks::Lock)]
#[lock(name = locks::lock_name!("depot:{}", self.0), permits = 4, weight = 2, crate = ::locks)]
struct Depot(u8);

#[distributed_lock(lock = Stock { sku, r#async: 1 }, mode = read, bind = held, crate = ::locks)]
async fn read(sku: &str) -> Result<String, LockError> {
    let held: &Held<Stock<'_>, Read> = held;
    Ok(format!("{} {}", held.guard().key(), held.sku))
}

#[distributed_lock(lock = Depot(id), bind = held, crate = ::locks)]
async fn ship(id: u8) -> Result<String, LockError> {
    Ok(format!("{} {}", held.guard().key(), held.guard().kind()))
}

#[distributed_lock(name = ["account:{from}", "account:{to}"], bind = both, crate = ::locks)]
async fn transfer(from: u8, to: u8) -> Result<usize, LockError> {
    let both: &LockSet = both;
    Ok(both.guards().len())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    LockManager::in_memory().install_global()?;
    let (read, ship) = (read("a").await?, ship(2).await?);
    println!("{}; {}; {}", read, ship, transfer(1, 2).await?);
    Ok(())
}
"#;

/// Without `crate = ..`, so that the error text must suggest it.
const UNNAMED: &str = r#"
#[locks::distributed_lock(name = "x")]
async fn f() -> Result<(), locks::LockError> {
    Ok(())
}

fn main() {}
"#;

/// The same manifest. The source makes the path `::lock_core` known, so no `crate = ..` is needed.
const RENAMED_IN_THE_SOURCE: &str = r#"
#![deny(warnings)]

extern crate locks as lock_core;

use lock_core::{distributed_lock, Held, Lock, LockError, LockManager};

mod shop {
    #[derive(lock_core::Lock)]
    #[lock(name = "shop:{0}")]
    pub(crate) struct Shop(pub(crate) u8);
}

#[derive(Lock)]
#[lock(name = lock_core::lock_name!("order:{}", self.0), permits = 2)]
struct Order(u8);

#[distributed_lock(lock = shop::Shop(shop), bind = held)]
async fn open(shop: u8) -> Result<String, LockError> {
    let held: &Held<shop::Shop> = held;
    Ok(format!("{} {}", held.guard().key(), ship(shop, 2).await?))
}

#[distributed_lock(name = ["shop:{shop}:orders", "order:{order}"], ttl = "5s", wait = "1s")]
async fn ship(shop: u8, order: u8) -> Result<String, LockError> {
    pack(order).await
}

#[distributed_lock(lock = Order(order + 1), bind = held)]
async fn pack(order: u8) -> Result<String, LockError> {
    Ok(held.guard().key().to_string())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    LockManager::in_memory().install_global()?;
    println!("{}", open(1).await?);
    Ok(())
}
"#;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that remain in a temporary folder do no harm.
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn crate_outside_of_the_workspace_compiles_and_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let folder = format!("lock-core-outside-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(folder));
    fs::create_dir_all(folder.0.join("src")).expect("a folder");
    let manifest = MANIFEST
        .replace("ROOT_RUST_VERSION", env!("CARGO_PKG_RUST_VERSION"))
        .replace("ROOT", root.to_str().expect("the path is UTF-8"));
    fs::write(folder.0.join("Cargo.toml"), &manifest).expect("written");
    fs::write(folder.0.join("src/main.rs"), PROGRAM).expect("written");
    // The versions of the other tests, which are already downloaded.
    fs::copy(root.join("Cargo.lock"), folder.0.join("Cargo.lock")).expect("copied");

    let output = run(&folder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.trim(), "lock:shop:1:2 2 Some(1) 7", "{stderr}");

    fs::write(folder.0.join("src/main.rs"), FAULTY).expect("written");
    let stderr = run(&folder).stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("`ttl` must be at least 100 ms"), "{stderr}");

    fs::write(folder.0.join("src/main.rs"), DROPS).expect("written");
    let output = run(&folder);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.trim(), "local tail local tail");

    let manifest = manifest.replace("edition = \"2021\"", "edition = \"2018\"");
    fs::write(folder.0.join("Cargo.toml"), manifest).expect("written");
    fs::write(folder.0.join("src/main.rs"), DECLARED).expect("written");
    let output = run(&folder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let expected = "lock:stock:a:1 a; lock:depot:2 2 of 4 permits; 2";
    assert_eq!(stdout.trim(), expected, "{stderr}");

    fs::write(folder.0.join("src/main.rs"), RENAMED_IN_THE_SOURCE).expect("written");
    let output = run(&folder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout.trim(), "lock:shop:1 lock:order:3", "{stderr}");

    fs::write(folder.0.join("src/main.rs"), UNNAMED).expect("written");
    let stderr = run(&folder).stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        stderr.contains("`lock-core` is called `locks` in Cargo.toml; add `crate = ::locks`"),
        "{stderr}"
    );
}

fn run(folder: &Folder) -> Output {
    Command::new(env!("CARGO"))
        .args(["run", "--offline", "--quiet", "--target-dir"])
        // Kept between runs, so that the dependencies are compiled once.
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"))
        .current_dir(&folder.0)
        .env_remove("DISTRIBUTED_LOCK_URL")
        .output()
        .expect("cargo runs")
}
