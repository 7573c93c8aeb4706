//! The way of docs/migrating.md, walked with services that go on all the time: only old ones, old
//! ones beside ours in their dialect, dialect beside native, native alone.

use std::time::Duration;

use crate::clients::{ClientKind, ClientProcess, Done, GuardedCounter};
use crate::race::Figures;
use test_support::RedisServer;
use test_support::holds_within;

/// Services of each kind.
const EACH: usize = 2;

/// What a stage may take besides its sections.
const SLACK: Duration = Duration::from_secs(30);

/// What a section may take for each of four that poll.
const SECTION: Duration = Duration::from_millis(600);

/// Who takes part, in the order of their coming.
#[derive(Debug)]
pub struct Sides {
    /// Services with another library.
    pub old: ClientKind,
    /// OurSide, in the old ones' dialect.
    pub dialect: ClientKind,
    /// Native, sharing with those that poll.
    pub shared: ClientKind,
    /// Native, after all others have stopped.
    pub native: ClientKind,
}

/// Migrates, with about that many sections, and says what was done in each stage.
///
/// # Errors
/// A service that did what it must not do, or came to nothing in a stage.
pub fn migrate(
    server: &RedisServer,
    key: &str,
    sides: &Sides,
    sections: u64,
) -> Result<(Figures, String), String> {
    let mut services = Services {
        counter: GuardedCounter::new(server, key),
        running: Vec::new(),
        // All move on seven times in which two to four take part.
        share: sections.div_ceil(24),
        before: 0,
        stages: Vec::new(),
        old: Vec::new(),
        ours: Vec::new(),
    };

    services.start(&sides.old)?;
    services.all_move_on("old only")?;
    services.end_stage("old");

    services.start(&sides.dialect)?;
    services.all_move_on("old beside dialect")?;
    for _ in 0..EACH {
        let gone = services.stop_first()?;
        services.old.push(gone);
        services.all_move_on("one old service less")?;
    }
    services.end_stage("old and dialect");

    services.replace_all(&sides.shared, "dialect beside native")?;
    services.end_stage("dialect and native");

    services.all_move_on("native only")?;
    services.replace_all(&sides.native, "native, not sharing")?;
    services.end_stage("native");

    while !services.running.is_empty() {
        let gone = services.stop_first()?;
        services.ours.push(gone);
    }
    let figures = Figures::new(&services.old, &services.ours, services.counter.count()?);
    Ok((figures, services.stages.join(", ")))
}

struct Services {
    counter: GuardedCounter,
    /// The oldest first.
    running: Vec<ClientProcess>,
    /// Sections of each service whenever all are to move on.
    share: u64,
    /// Sections of the stages that are over.
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

    /// A rolling deployment: the new one runs before an old one goes.
    fn replace_all(&mut self, side: &ClientKind, stage: &str) -> Result<(), String> {
        for number in 1..=EACH {
            let new = self.counter.start(side, number);
            self.join(new)?;
            self.all_move_on(stage)?;
            let gone = self.stop_first()?;
            self.ours.push(gone);
            self.all_move_on(stage)?;
        }
        Ok(())
    }

    fn stop_first(&mut self) -> Result<Done, String> {
        let member = self.running.remove(0);
        member.stop();
        member.done()
    }

    /// Waits until each service that runs has had its share.
    fn all_move_on(&self, stage: &str) -> Result<(), String> {
        let from: Vec<u64> = self.running.iter().map(ClientProcess::sections).collect();
        let had = || self.running.iter().zip(&from);
        let limit = SLACK + SECTION * u32::try_from(self.share).unwrap_or(u32::MAX);
        let came = holds_within(limit, || {
            had().all(|(member, from)| member.sections() >= from + self.share)
                || self.running.iter().any(ClientProcess::has_ended)
        });
        if let Some(member) = self.running.iter().find(|member| member.has_ended()) {
            member.done()?;
            return Err(format!("{stage}: {} left by itself", member.name()));
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
        let gone = self.old.iter().chain(&self.ours);
        let all = gone.map(|done| done.sections).sum::<u64>()
            + self
                .running
                .iter()
                .map(ClientProcess::sections)
                .sum::<u64>();
        self.stages.push(format!("{stage} {}", all - self.before));
        self.before = all;
    }
}
