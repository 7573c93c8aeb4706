//! The migration of docs/migrating.md with continuously running services. The stages: only old
//! services; old services beside lock-core in their dialect; dialect beside native; only native.

use std::time::Duration;

use crate::clients::{ClientKind, ClientProcess, Done, GuardedCounter};
use crate::race::Figures;
use test_support::RedisServer;
use test_support::holds_within;

/// The number of services of each kind.
const EACH: usize = 2;

/// The time that a stage may take besides its sections.
const SLACK: Duration = Duration::from_secs(30);

/// The time that a section may take with four polling services.
const SECTION: Duration = Duration::from_millis(600);

/// The sides, in the order in which they join.
#[derive(Debug)]
pub struct Sides {
    /// Services with another library.
    pub old: ClientKind,
    /// lock-core, in the old services' dialect.
    pub dialect: ClientKind,
    /// Native, sharing the lock with polling clients.
    pub shared: ClientKind,
    /// Native, after all others have stopped.
    pub native: ClientKind,
}

/// Runs the migration with about this many sections, and returns the work of each stage.
///
/// # Errors
/// Fails if a service broke the protocol or made no progress in a stage.
pub fn migrate(
    servers: &[RedisServer],
    key: &str,
    sides: &Sides,
    sections: u64,
) -> Result<(Figures, String), String> {
    let mut services = Services {
        counter: GuardedCounter::new(servers, key),
        running: Vec::new(),
        // All services make progress seven times, with two to four services running.
        share: sections.div_ceil(24),
        before: 0,
        stages: Vec::new(),
        old: Vec::new(),
        ours: Vec::new(),
    };

    services.start(&sides.old)?;
    services.await_progress("old only")?;
    services.end_stage("old");

    services.start(&sides.dialect)?;
    services.await_progress("old beside dialect")?;
    for _ in 0..EACH {
        let stopped = services.stop_first()?;
        services.old.push(stopped);
        services.await_progress("one old service less")?;
    }
    services.end_stage("old and dialect");

    services.replace_all(&sides.shared, "dialect beside native")?;
    services.end_stage("dialect and native");

    services.await_progress("native only")?;
    services.replace_all(&sides.native, "native, not sharing")?;
    services.end_stage("native");

    while !services.running.is_empty() {
        let stopped = services.stop_first()?;
        services.ours.push(stopped);
    }
    let figures = Figures::new(&services.old, &services.ours, services.counter.count()?);
    Ok((figures, services.stages.join(", ")))
}

struct Services {
    counter: GuardedCounter,
    /// The oldest service first.
    running: Vec<ClientProcess>,
    /// The sections that each service must complete in one step.
    share: u64,
    /// The sections of the completed stages.
    before: u64,
    stages: Vec<String>,
    old: Vec<Done>,
    ours: Vec<Done>,
}

impl Services {
    fn start(&mut self, side: &ClientKind) -> Result<(), String> {
        let joining: Vec<ClientProcess> = (1..=EACH)
            .map(|number| self.counter.start(side, number))
            .collect();
        for member in joining {
            self.join(member)?;
        }
        Ok(())
    }

    fn join(&mut self, member: ClientProcess) -> Result<(), String> {
        member.ready()?;
        member.go();
        self.running.push(member);
        Ok(())
    }

    /// A rolling deployment: the new service runs before an old one stops.
    fn replace_all(&mut self, side: &ClientKind, stage: &str) -> Result<(), String> {
        for number in 1..=EACH {
            let new = self.counter.start(side, number);
            self.join(new)?;
            self.await_progress(stage)?;
            let stopped = self.stop_first()?;
            self.ours.push(stopped);
            self.await_progress(stage)?;
        }
        Ok(())
    }

    fn stop_first(&mut self) -> Result<Done, String> {
        let member = self.running.remove(0);
        member.stop();
        member.done()
    }

    /// Waits until each running service has completed its share.
    fn await_progress(&self, stage: &str) -> Result<(), String> {
        let from: Vec<u64> = self.running.iter().map(ClientProcess::sections).collect();
        let had = || self.running.iter().zip(&from);
        let limit = SLACK + SECTION * u32::try_from(self.share).unwrap_or(u32::MAX);
        let came = holds_within(limit, || {
            had().all(|(member, from)| member.sections() >= from + self.share)
                || self.running.iter().any(ClientProcess::has_ended)
        });
        if let Some(member) = self.running.iter().find(|member| member.has_ended()) {
            member.done()?;
            return Err(format!("{stage}: {} ended by itself", member.name()));
        }
        if came {
            return Ok(());
        }
        let got: Vec<String> = had()
            .map(|(member, from)| format!("{} {}", member.name(), member.sections() - from))
            .collect();
        let (share, got) = (self.share, got.join(", "));
        Err(format!(
            "{stage}: not all had {share} sections within {limit:?}: {got}"
        ))
    }

    fn end_stage(&mut self, stage: &str) {
        let stopped = self.old.iter().chain(&self.ours);
        let all = stopped.map(|done| done.sections).sum::<u64>()
            + self
                .running
                .iter()
                .map(ClientProcess::sections)
                .sum::<u64>();
        self.stages.push(format!("{stage} {}", all - self.before));
        self.before = all;
    }
}
