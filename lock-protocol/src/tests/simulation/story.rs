//! What happened in an episode, for people. Only a replay tells it.

use std::fmt::Write as _;

use lock_testing::Nanos;

use super::Simulation;
use crate::tests::virtual_client::Request;

/// Lines of the story, with the lock that they are about.
#[derive(Debug, Default)]
pub(super) struct Story {
    lines: Vec<(Nanos, Option<usize>, String)>,
}

impl Story {
    /// Returns the last lines about a lock until a moment.
    pub(super) fn excerpt(&self, key: Option<usize>, until: Nanos, most: usize) -> String {
        let about = |line: &&(Nanos, Option<usize>, String)| {
            line.0 <= until && (key.is_none() || line.1.is_none() || line.1 == key)
        };
        let lines: Vec<_> = self.lines.iter().filter(about).collect();
        let mut text = String::new();
        for (at, _, line) in &lines[lines.len().saturating_sub(most)..] {
            let (ms, us) = (at / 1_000_000, at / 1_000 % 1_000);
            let _ = writeln!(text, "  {ms:>9}.{us:03} ms  {line}");
        }
        text
    }
}

impl Simulation {
    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.lines.push((self.now, None, line()));
        }
    }

    pub(super) fn tell_about(&mut self, key: usize, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.lines.push((self.now, Some(key), line()));
        }
    }
}

/// Describes a command.
pub(super) fn named(request: &Request) -> String {
    match request {
        Request::Acquire {
            ttl_ms,
            not_after_ms,
            entry,
            ..
        } => match entry {
            Some(entry) => format!(
                "acquires for {ttl_ms} ms, not after {not_after_ms}, mode {:?}, expires {}",
                entry.mode, entry.expires_at_ms
            ),
            None => format!("tries to acquire for {ttl_ms} ms, not after {not_after_ms}"),
        },
        Request::Renew { ttl_ms, .. } => format!("renews for {ttl_ms} ms"),
        Request::Release {
            min_hold_ms,
            entries,
            ..
        } => {
            format!(
                "releases, min_hold {min_hold_ms} ms, {} entries",
                entries.len()
            )
        }
    }
}
