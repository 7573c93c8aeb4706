//! The child of the harness's own tests: says what it is told to do, in JSON lines.

use std::io::{self, BufRead, Write};

use serde_json::json;
use tests::RedisServer;

fn main() -> io::Result<()> {
    let mut server = None;
    say(&json!({ "pid": std::process::id() }))?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "serve" => {
                let server = server.insert(RedisServer::start());
                say(&json!({
                    "server": server.pid(),
                    "port": server.port(),
                    "directory": server.directory(),
                }))?;
            }
            // A line and half of the next in one write, as a killed process leaves them.
            "stutter" => {
                let mut out = io::stdout().lock();
                out.write_all(b"{\"whole\":true}\n{\"half\":")?;
                out.flush()?;
            }
            other => say(&json!({ "echo": other }))?,
        }
    }
    Ok(())
}

fn say(record: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{record}")?;
    out.flush()
}
