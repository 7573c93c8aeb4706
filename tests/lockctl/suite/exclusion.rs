//! Many runs of one command, killed at random.

use rustix::process::Signal;
use test_support::fixtures::{KEY, NAME, SOON, queue_length};
use test_support::{Random, RedisServer, Scratch, eventually};

use crate::program::Lockctl;

const ROUNDS: usize = 50;

/// Each run writes `begin` and `end`. A run that ignores SIGTERM and was killed writes no `end`, so the
/// other runs check that it is dead.
const WORK: &str = r#"
trap '' TERM
echo "begin $RUN " >> "$LOG"
if [ -s "$BUSY" ]; then
  other=$(cat "$BUSY")
  # A zombie runs no more.
  if grep -qv ') [ZX] ' "/proc/$other/stat" 2>/dev/null; then echo "overlap $$ $other" >> "$LOG"; fi
fi
echo $$ > "$BUSY"
sleep "$SECTION"
[ "$(cat "$BUSY")" = $$ ] || echo "overlap $$" >> "$LOG"
: > "$BUSY"
echo "end $RUN " >> "$LOG"
"#;

/// A handover gives a lease of two seconds at most. The command begins with the whole ttl, so that it is
/// dead before the lease ends when its lockctl is killed.
#[test]
fn command_begins_with_the_whole_ttl() {
    let server = RedisServer::start();
    let holder = crate::admin::hold(&server, NAME, "web-1:42");
    let show = format!("redis-cli -p {} PTTL {KEY}; sleep 60", server.port());
    let flags = [
        "run", "--name", NAME, "--wait", "1m", "--", "sh", "-c", &show,
    ];
    let waiter = Lockctl::on(&server, &flags).start();
    eventually(SOON, || queue_length(&server) == 1);
    holder.signal(Signal::TERM);
    let left: u64 = waiter.line("").parse().unwrap();
    assert!(left > 20_000, "{left} ms");
}

#[test]
fn two_runs_never_overlap() {
    let server = RedisServer::start();
    let scratch = Scratch::new();
    let (log, busy) = (scratch.path().join("log"), scratch.path().join("busy"));
    let flags = [
        "run", "--name", NAME, "--ttl", "1500ms", "--wait", "1m", "--", "sh", "-c", WORK,
    ];
    let start = |round: usize, section: &str| {
        let program = Lockctl::on(&server, &flags).env("RUN", round.to_string());
        let program = program.env("LOG", &log).env("BUSY", &busy);
        program.env("SECTION", section).start()
    };
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let mut random = Random::new(7);
    let mut running = Vec::new();
    let mut killed = 0;
    for round in 0..ROUNDS {
        if round % 5 == 0 {
            // Its section is longer than its lease, so it would overlap if it were not ended.
            let victim = start(round, "4");
            running.push(start(ROUNDS + round, "0.05"));
            eventually(SOON, || read().contains(&format!("begin {round} ")));
            std::thread::sleep(random.millis(0, 120));
            victim.signal(Signal::KILL);
            killed += 1;
        } else {
            running.push(start(round, "0.05"));
            if random.chance(20) {
                // While it starts, waits or works.
                std::thread::sleep(random.millis(0, 60));
                running.pop().expect("just started").signal(Signal::KILL);
                killed += 1;
            }
        }
        while running.len() > 2 {
            running.remove(0).wait();
        }
    }
    for lockctl in running {
        lockctl.wait();
    }
    let log = read();
    assert!(!log.contains("overlap"), "{log}");
    assert!(killed >= ROUNDS / 5);
    // A run that was not killed ends its section. There is one more with each long section.
    let ends = log.matches("end ").count();
    assert!(
        ends >= ROUNDS + ROUNDS / 5 - killed,
        "{ends} ends, {killed} kills: {log}"
    );
}
