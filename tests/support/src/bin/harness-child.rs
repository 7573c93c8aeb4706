//! The child process of this package's tests. It replies to each line with a JSON line.

use std::io::{self, BufRead, Write};

use serde_json::json;
use test_support::RedisServer;
use test_support::child::say;

fn main() -> io::Result<()> {
    let mut server = None;
    say(&json!({ "pid": std::process::id() }));
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "serve" => {
                let server = server.insert(RedisServer::start());
                say(&json!({
                    "server": server.pid(),
                    "port": server.port(),
                    "directory": server.directory(),
                }));
            }
            // Writes a line and half of the next one in one call, as a killed process leaves them.
            "stutter" => {
                let mut out = io::stdout().lock();
                out.write_all(b"{\"whole\":true}\n{\"half\":")?;
                out.flush()?;
            }
            other => say(&json!({ "echo": other })),
        }
    }
    Ok(())
}
