//! A process that holds one lock and is asked about it, for tests that suspend, freeze, kill or
//! fork it. It says what happens in JSON lines.
//!
//! - `hold NAME TTL WAIT` gets the lock (times in milliseconds, a wait of zero is none) and says
//!   `{"held": TOKEN}`. Each line on stdin is then answered by `{"lost": .., "remaining_ms": ..}`;
//!   when the loss is told, it says `{"told": true}`.
//! - `fork HELD CHILDREN COUNT`, with the shim that forks preloaded, takes so many locks, forks so
//!   often, and takes `COUNT` more in the parent and in each child. A child first drops all that it
//!   has from its parent, and says how that was answered, `{"forked": [..]}`. All say
//!   `{"took": COUNT}` before they wait for the end of stdin.
//!
//! The server is that of LOCK_URL.

use std::fmt::Debug;
use std::io::{self, BufRead, Write};
use std::str::FromStr;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, Renew};
use serde_json::json;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("an argument is missing");
    match next().as_str() {
        "hold" => hold(&next(), millis(&next()), millis(&next())),
        "fork" => fork(number(&next()), number(&next()), number(&next())),
        other => panic!("`{other}` is not known here"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime can be had")
}

async fn connect() -> LockManager {
    let url = std::env::var("LOCK_URL").expect("LOCK_URL names the server");
    let connected = LockManager::connect(&url).await;
    connected.expect("the server is there")
}

fn hold(name: &str, ttl: Duration, wait: Duration) {
    runtime().block_on(async {
        let locks = connect().await;
        let mut request = locks.lock(name).ttl(ttl);
        if !wait.is_zero() {
            request = request.wait(wait);
        }
        let held = request.acquire().await.expect("the lock is to be had");
        let watch = held.watch();
        // Answers come from a thread that waits for nothing but the question.
        std::thread::spawn(move || {
            for _question in io::stdin().lock().lines() {
                say(&json!({
                    "lost": watch.is_lost(),
                    "remaining_ms": watch.remaining().as_millis().to_string(),
                }));
            }
            std::process::exit(0);
        });
        let token = held.fencing_token().expect("it has a token");
        say(&json!({ "held": token.as_u64() }));
        held.lost().await;
        say(&json!({ "told": true }));
        std::future::pending::<()>().await;
    });
}

fn fork(held: u32, children: u32, count: u32) {
    let runtime = runtime();
    let (locks, held) = runtime.block_on(async {
        let locks = connect().await;
        let mut guards = Vec::new();
        // Renewed so often that the keeper's thread is at work when the process forks, and not
        // where it would wait for work.
        for number in 0..held {
            let request = locks.lock(format!("held:{number}"));
            let request = request.renew(Renew::Every(Duration::from_millis(10)));
            guards.push(request.acquire().await.expect("the lock is free"));
        }
        (locks, guards)
    });
    let is_child = (0..children).any(|_| std::os::unix::process::parent_id() == 0);
    let own = if is_child {
        let said = runtime.block_on(ask_after_fork(locks, held));
        say(&json!({ "forked": said }));
        // The runtime's system handles are shared with the parent: nothing of it may end here.
        std::mem::forget(runtime);
        self::runtime()
    } else {
        std::mem::forget((locks, held));
        runtime
    };
    own.block_on(async {
        let locks = connect().await;
        let process = std::process::id();
        let mut kept = Vec::new();
        for number in 0..count {
            let guard = locks.lock(format!("{process}:{number}")).acquire().await;
            kept.push(guard.expect("the lock is free"));
        }
        say(&json!({ "took": count }));
        // Ends with the test, which closes it.
        for _line in io::stdin().lock().lines() {}
        std::process::exit(0);
    });
}

/// Everything that a child may try with what it has from its parent.
async fn ask_after_fork(locks: LockManager, mut held: Vec<LockGuard>) -> Vec<String> {
    fn said<T: Debug>(outcome: &Result<T, LockError>) -> String {
        format!("{outcome:?}")
    }
    let wait = Duration::from_secs(1);
    let said = vec![
        said(&locks.lock("other").acquire().await),
        said(&locks.lock("other").try_acquire().await),
        said(&locks.lock("other").wait(wait).acquire().await),
        said(&locks.lock("other").run(async |_| ()).await),
        said(&held[0].renew().await),
        said(&held.pop().expect("there are many").release().await),
    ];
    // Its parent has them still.
    drop((held, locks));
    said
}

fn number<T: FromStr>(text: &str) -> T {
    let parsed = text.parse().ok();
    parsed.expect("a number is expected")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(number(text))
}

fn say(record: &serde_json::Value) {
    let mut out = io::stdout().lock();
    writeln!(out, "{record}").expect("the test reads");
    out.flush().expect("the test reads");
}
