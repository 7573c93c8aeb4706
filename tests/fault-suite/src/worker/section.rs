//! What a task does in a critical section.

use std::io;
use std::time::Duration;

use lock_core::Kind as LockKind;
use test_support::Random;

use super::Stop;
use crate::resource::{Answer, Client, Pass};
use crate::workload::Workload;

/// How many permits each lock of the workload `permits` has.
const PERMITS: u32 = 6;

/// What a task does in a critical section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// Reads the counter, and writes it.
    Update,
    /// Reads both parts. They must be equal.
    ReadPair,
    /// Writes both parts, so that they are equal again.
    WritePair,
    /// Reads at the beginning and at the end, so that the resource knows who is there.
    Stay,
}

impl Section {
    /// Chooses the kind of the lock, and what to do under it.
    pub(super) fn choose(workload: Workload, random: &mut Random) -> (LockKind, Self) {
        match workload {
            Workload::ReadWrite if random.chance(70) => (LockKind::Read, Self::ReadPair),
            Workload::ReadWrite => (LockKind::Exclusive, Self::WritePair),
            Workload::Permits => {
                // Another number now and then, as during the rollout of a new version. And a few exclusive
                // holders, because a write counts as proof that something was checked.
                let kind = match random.below(20) {
                    0 => return (LockKind::Exclusive, Self::Update),
                    1 => LockKind::Permits { of: 4, weight: 1 },
                    2..6 => LockKind::Permits {
                        of: PERMITS,
                        weight: 3,
                    },
                    6..9 => LockKind::Permits {
                        of: PERMITS,
                        weight: 2,
                    },
                    _ => LockKind::Permits {
                        of: PERMITS,
                        weight: 1,
                    },
                };
                (kind, Self::Stay)
            }
            _ => (LockKind::Exclusive, Self::Update),
        }
    }

    /// Uses the resource. Returns `false` if it refused the token.
    pub(super) async fn work(
        self,
        resource: &mut Client,
        pass: Pass<'_>,
        think: Duration,
        stop: &Stop,
    ) -> io::Result<bool> {
        let second = Pass { part: 1, ..pass };
        let Answer::Values { fenced, unfenced } = resource.read(pass).await? else {
            return Ok(false);
        };
        match self {
            Self::Update => {
                pause(think, stop).await;
                let answer = resource.write(pass, fenced + 1, unfenced + 1).await?;
                Ok(answer != Answer::Stale)
            }
            Self::ReadPair => {
                pause(think, stop).await;
                Ok(resource.read(second).await? != Answer::Stale)
            }
            Self::WritePair => {
                let Answer::Values {
                    fenced: other,
                    unfenced: other_unfenced,
                } = resource.read(second).await?
                else {
                    return Ok(false);
                };
                // A writer that died or lost its lock left the pair half-written. The next one completes it.
                if fenced == other
                    && resource.write(pass, fenced + 1, unfenced + 1).await? == Answer::Stale
                {
                    return Ok(false);
                }
                pause(think, stop).await;
                let answer = resource
                    .write(second, other + 1, other_unfenced + 1)
                    .await?;
                Ok(answer != Answer::Stale)
            }
            Self::Stay => {
                pause(think, stop).await;
                Ok(resource.read(pass).await? != Answer::Stale)
            }
        }
    }
}

async fn pause(think: Duration, stop: &Stop) {
    if !think.is_zero() {
        stop.or_after(think).await;
    }
}
