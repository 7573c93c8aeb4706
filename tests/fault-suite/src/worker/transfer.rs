//! Transfers between two accounts, under a set of two locks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockSet, LockWatch};
use lock_testing::{AcquisitionRecord as Log, Call, Kind, nanos};

use super::record::{LastSafe, PendingHold};
use super::task::{AbortOnDrop, Task, drop_somewhere, record_loss, record_renewals};
use super::{SHORT_KEYS, Stop, TTL};
use crate::leftovers::PREFIX;
use crate::resource::{Answer, Client, Pass};

/// The largest amount of a transfer.
const AMOUNT: usize = 100;

/// One transfer.
struct Transfer {
    amount: u64,
    think: Duration,
}

impl Task {
    pub(super) async fn transfer(&mut self) {
        let from = self.random.below(SHORT_KEYS.len());
        let to = (from + 1 + self.random.below(SHORT_KEYS.len() - 1)) % SHORT_KEYS.len();
        let names = [SHORT_KEYS[from], SHORT_KEYS[to]];
        let logs = names.map(|name| self.recorder.begin(name));
        let tries = self.random.chance(5);
        let wait = if tries {
            Duration::ZERO
        } else {
            self.random.millis(100, 3_000)
        };
        for log in &logs {
            let mut invoke = log.event(Call::Acquire, Kind::Invoke);
            // Each name may need a command of its own.
            let limit = if tries {
                self.command_timeout * 2
            } else {
                wait
            };
            invoke.limit = Some(nanos(limit));
            log.write(invoke);
        }
        let transfer = Transfer {
            amount: u64::try_from(1 + self.random.below(AMOUNT)).unwrap_or(1),
            think: if self.random.chance(3) {
                TTL * 3 / 2
            } else {
                self.random.millis(0, 10)
            },
        };
        let request = self.locks.lock_all(names).ttl(TTL).wait(wait);
        let is_dropped = self.random.chance(15);
        let (resource, stop) = (&mut self.resource, &self.stop);
        let acquiring = logs.each_ref().map(|log| log.pending(Call::Acquire));
        let mut is_held = false;
        let run = Box::pin(request.run(async |set| {
            is_held = true;
            for acquiring in &acquiring {
                acquiring.finish();
            }
            under_set(&watches(set, &logs), &logs, &transfer, resource, stop).await;
        }));
        let outcome = if is_dropped {
            drop_somewhere(run, &mut self.random).await
        } else {
            Some(run.await)
        };
        match outcome {
            // What was dropped has recorded it.
            None => {}
            Some(Ok(())) => {
                for log in &logs {
                    log.step(Call::Release, Kind::Info);
                }
            }
            // So has the body, which is dropped at a loss.
            Some(Err(_)) if is_held => {}
            Some(Err(error)) => {
                for (log, acquiring) in logs.iter().zip(&acquiring) {
                    acquiring.finish();
                    log.failed(Call::Acquire, &error);
                }
                let pause = self.random.millis(1, 15);
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Returns the watch of each lock of the set, in the order of the records.
fn watches(set: &LockSet, logs: &[Log; 2]) -> [LockWatch; 2] {
    logs.each_ref().map(|log| {
        let key = format!("{PREFIX}{}", log.key());
        let guard = set.guards().iter().find(|guard| guard.key() == key);
        guard.expect("the set has a guard of each name").watch()
    })
}

/// Transfers the amount from the first account to the second one.
async fn under_set(
    held: &[LockWatch; 2],
    logs: &[Log; 2],
    transfer: &Transfer,
    resource: &mut Client,
    stop: &Stop,
) {
    let mut open = Vec::new();
    for (log, held) in logs.iter().zip(held) {
        log.granted(held);
        let safe = Arc::<LastSafe>::default();
        let renewals = record_renewals(log.clone(), held.clone(), Arc::clone(&safe));
        let renewals = AbortOnDrop(tokio::spawn(renewals));
        let lost = record_loss(log.clone(), held.clone(), safe);
        let lost = AbortOnDrop(tokio::spawn(lost));
        // The record of the drop comes first.
        let lost_at_end = LostAtEnd { log, held };
        open.push((PendingHold::new(log, held), renewals, lost, lost_at_end));
    }
    let pass = |log| Pass {
        key: Log::key(log),
        hold: log.number(),
        token: log.token(),
        part: 0,
    };
    let passes = logs.each_ref().map(pass);
    if post(resource, passes, transfer, stop).await.is_err() {
        // A worker without its runner has no work.
        std::process::exit(3);
    }
    for ((log, held), (hold, ..)) in logs.iter().zip(held).zip(&open) {
        hold.finish();
        log.lease(held);
        log.step(Call::Release, Kind::Invoke);
    }
}

/// Records a loss when it is dropped: a body that is dropped at a loss may not have recorded it.
struct LostAtEnd<'a> {
    log: &'a Log,
    held: &'a LockWatch,
}

impl Drop for LostAtEnd<'_> {
    fn drop(&mut self) {
        if self.held.is_lost() {
            self.log.lost(self.held);
        }
    }
}

/// Ends early when the resource refuses a token.
async fn post(
    resource: &mut Client,
    [from, to]: [Pass<'_>; 2],
    transfer: &Transfer,
    stop: &Stop,
) -> io::Result<()> {
    let (Answer::Values { fenced, unfenced }, Some(debit)) =
        (resource.read(from).await?, resource.balance(from).await?)
    else {
        return Ok(());
    };
    let Some(credit) = resource.balance(to).await? else {
        return Ok(());
    };
    stop.or_after(transfer.think).await;
    let amount = transfer.amount;
    if resource
        .post(from, from.hold, debit, debit - amount)
        .await?
        == Answer::Stale
    {
        return Ok(());
    }
    if resource
        .post(to, from.hold, credit, credit + amount)
        .await?
        == Answer::Stale
    {
        return Ok(());
    }
    resource.write(from, fenced + 1, unfenced + 1).await?;
    // The resource sees the other lock at the beginning and at the end too.
    resource.read(to).await?;
    Ok(())
}
