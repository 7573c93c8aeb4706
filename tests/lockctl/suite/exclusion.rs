//! Many runs of one command, killed at random.

use std::time::Duration;

use rustix::process::Signal;
use test_support::fixtures::NAME;
use test_support::{Random, RedisServer, Scratch};

use crate::program::Lockctl;

const ROUNDS: usize = 50;

/// Each run writes `begin` and `end`. A run that ignores SIGTERM and was killed writes no `end`, so the
/// other runs check that it is dead.
const WORK: &str = r#"
trap '' TERM
echo "begin $$" >> "$LOG"
if [ -s "$BUSY" ]; then
  other=$(cat "$BUSY")
  # A zombie runs no more.
  if grep -qv ') [ZX] ' "/proc/$other/stat" 2>/dev/null; then echo "overlap $$ $other" >> "$LOG"; fi
fi
echo $$ > "$BUSY"
sleep 0.1
[ "$(cat "$BUSY")" = $$ ] || echo "overlap $$" >> "$LOG"
: > "$BUSY"
echo "end $$" >> "$LOG"
"#;

#[test]
fn two_runs_never_overlap() {
    let server = RedisServer::start();
    let scratch = Scratch::new();
    let (log, busy) = (scratch.path().join("log"), scratch.path().join("busy"));
    let flags = [
        "run", "--name", NAME, "--ttl", "1500ms", "--wait", "20s", "--", "sh", "-c", WORK,
    ];
    let start = || {
        let program = Lockctl::on(&server, &flags);
        program.env("LOG", &log).env("BUSY", &busy).start()
    };
    let mut random = Random::new(7);
    let mut running = Vec::new();
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    for round in 0..ROUNDS {
        running.push(start());
        if running.len() < 3 {
            continue;
        }
        let before = read().matches("begin").count();
        if round % 5 == 0 {
            // In the middle of a section, or while it waits.
            let has_begun = || read().matches("begin").count() > before;
            let _ = test_support::holds_within(Duration::from_secs(1), has_begun);
            std::thread::sleep(random.millis(0, 120));
            for lockctl in running.drain(..2) {
                lockctl.signal(Signal::KILL);
            }
        } else {
            let first = running.remove(0);
            first.wait();
        }
    }
    for lockctl in running {
        lockctl.wait();
    }
    let log = read();
    assert!(!log.contains("overlap"), "{log}");
    // Each run that was killed has one `end` less. More were not killed than were.
    assert!(log.matches("end").count() >= ROUNDS / 2, "{log}");
}
