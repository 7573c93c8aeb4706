//! Candidates that lead in a loop, and observers that follow who leads.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use lock_testing::{Call, Kind};

use super::record::PendingHold;
use super::task::{End, Task};
use super::{SHORT_KEYS, TTL};
use crate::clock::now;
use crate::history::{Observation, WAITS};

/// Few, so that each has several candidates.
const KEYS: &[&str] = SHORT_KEYS.split_at(2).0;

/// The longest time for which a candidate waits for its turn before it drops the future of `next`, and calls it again.
const LONGEST_POLL_MS: u64 = 60;

impl Task {
    /// Leads a few times in one campaign. At the end of the round, after all faults, each candidate leads once more: a
    /// candidate that starves keeps its process from ending.
    pub(super) async fn campaign(&mut self) {
        let key = *self.random.pick(KEYS);
        let mut election = self.locks.lock(key).ttl(TTL).campaign();
        for _ in 0..=self.random.below(20) {
            let is_last = self.stop.is_set();
            let log = self.recorder.begin(key);
            let mut invoke = log.event(Call::Acquire, Kind::Invoke);
            invoke.note = Some(WAITS.into());
            log.write(invoke);
            let term = loop {
                let span = self.random.millis(1, LONGEST_POLL_MS);
                if let Ok(term) = tokio::time::timeout(span, election.next()).await {
                    break term;
                }
            };
            let term = match term {
                Ok(Some(term)) => term,
                Ok(None) => panic!("nothing shuts the manager down"),
                Err(error) => return self.refused(&log, &error).await,
            };
            let held = term.watch();
            log.granted(&held);
            let end = {
                let open = PendingHold::new(&log, &held);
                let end = self.section(&log, &held, Some(&term)).await;
                open.finish();
                end
            };
            log.lease(&held);
            log.step(Call::Release, Kind::Invoke);
            if self.random.chance(50) {
                drop(term);
                log.step(Call::Release, Kind::Dropped);
            } else {
                match term.resign().await {
                    Ok(()) => log.step(Call::Release, Kind::Ok),
                    Err(error) => log.failed(Call::Release, &error),
                }
            }
            if end == End::Lost {
                tokio::time::sleep(self.random.millis(1, 15)).await;
            }
            if is_last {
                return;
            }
        }
    }

    /// Records what an observer says, until the end of the round. After all faults it has to read the lock again.
    pub(super) async fn observe(&mut self) {
        let key = *self.random.pick(KEYS);
        let path = self.record.with_extension("observed");
        let file = File::options().create(true).append(true).open(path);
        let mut file = file.expect("the runner created the folder");
        let interval = self.random.millis(10, 60);
        let mut observer = self.locks.observe(key).interval(interval);
        while !self.stop.is_set() {
            let Ok(next) = tokio::time::timeout(interval * 3, observer.next()).await else {
                continue;
            };
            let holder = next.ok().and_then(|seen| seen.holder().cloned());
            if let Some(token) = holder.and_then(|holder| holder.token) {
                let observation = Observation {
                    at: now(),
                    worker: self.worker,
                    key: key.to_owned(),
                    token: token.as_u64(),
                };
                // One write for each line.
                let written = file.write_all(observation.line().as_bytes());
                written.expect("the record can be written");
            }
        }
        while observer.current().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
