//! The overrides of a manager, and which of them calls have used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::overrides::Override;
use crate::sync::Mutex;
use crate::telemetry::{LockEvent, Reporter};
use lock_protocol::clock::Moment;
use lock_protocol::nearest::nearest;
use lock_protocol::wire::escaped;

/// After this time, an override without a call is most likely misspelt. Jobs that run every few
/// minutes have run by then.
const UNUSED_AFTER: Duration = Duration::from_secs(10 * 60);

/// The current overrides of a manager.
pub(crate) struct CurrentOverrides {
    /// Without overrides, a call reads only this.
    are_set: AtomicBool,
    table: Mutex<Arc<OverrideTable>>,
}

#[derive(Default)]
struct OverrideTable {
    overrides: BTreeMap<String, Arc<OverrideEntry>>,
    /// The templates of calls without an override. The code has a limited number of templates.
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
}

struct OverrideEntry {
    times: Override,
    usage: Arc<OverrideUsage>,
}

/// What is known about one template. It survives a change of the times.
struct OverrideUsage {
    since: Moment,
    is_used: AtomicBool,
    is_reported: AtomicBool,
}

impl CurrentOverrides {
    pub(crate) fn new(overrides: BTreeMap<String, Override>, now: Moment) -> Self {
        let new = Self {
            are_set: AtomicBool::new(false),
            table: Mutex::default(),
        };
        new.replace(overrides, now);
        new
    }

    /// Replaces all overrides. They have to be checked.
    pub(crate) fn replace(&self, overrides: BTreeMap<String, Override>, now: Moment) {
        let are_set = !overrides.is_empty();
        let old = self.table();
        let entry = |(template, times)| {
            let known: Option<&Arc<OverrideEntry>> = old.overrides.get(&template);
            let usage = known.map_or_else(
                || {
                    Arc::new(OverrideUsage {
                        since: now,
                        is_used: AtomicBool::new(false),
                        is_reported: AtomicBool::new(false),
                    })
                },
                |known| Arc::clone(&known.usage),
            );
            (template, Arc::new(OverrideEntry { times, usage }))
        };
        let table = Arc::new(OverrideTable {
            overrides: overrides.into_iter().map(entry).collect(),
            seen: Arc::clone(&old.seen),
        });
        let replaced = {
            let mut current = self.table.lock();
            self.are_set.store(are_set, Ordering::Release);
            std::mem::replace(&mut *current, table)
        };
        drop((replaced, old));
    }

    /// Returns the times of all templates.
    pub(crate) fn all(&self) -> BTreeMap<String, Override> {
        let table = self.table();
        let all = table.overrides.iter();
        all.map(|(template, entry)| (template.clone(), entry.times))
            .collect()
    }

    fn table(&self) -> Arc<OverrideTable> {
        Arc::clone(&self.table.lock())
    }

    /// Returns whether there are overrides at all.
    pub(crate) fn are_set(&self) -> bool {
        self.are_set.load(Ordering::Acquire)
    }

    /// Returns the override for a call, and records that it was used. Warns about overrides that no
    /// call has used for long.
    pub(crate) fn of_call(
        &self,
        template: Option<&'static str>,
        now: Moment,
        reporter: &Reporter,
    ) -> Option<Override> {
        let table = self.table();
        let entry = template.and_then(|template| table.overrides.get(template));
        if let Some(entry) = entry {
            entry.usage.is_used.store(true, Ordering::Relaxed);
        } else if let Some(template) = template {
            table.seen.lock().insert(template);
        }
        table.report(now, reporter);
        entry.map(|entry| entry.times)
    }

    /// Returns the templates of the overrides that no call has used for ten minutes.
    pub(crate) fn unused(&self, now: Moment) -> Vec<String> {
        if !self.are_set() {
            return Vec::new();
        }
        let table = self.table();
        let unused = table.unused(now);
        unused.map(|(template, _)| template.clone()).collect()
    }
}

impl OverrideTable {
    fn unused(&self, now: Moment) -> impl Iterator<Item = (&String, &OverrideUsage)> {
        let usages = self.overrides.iter();
        let usages = usages.map(|(template, entry)| (template, &*entry.usage));
        usages.filter(move |(_, usage)| {
            !usage.is_used.load(Ordering::Relaxed) && now.since(usage.since) >= UNUSED_AFTER
        })
    }

    /// Reports each unused override once.
    fn report(&self, now: Moment, reporter: &Reporter) {
        for (template, usage) in self.unused(now) {
            if usage.is_reported.swap(true, Ordering::Relaxed) {
                continue;
            }
            let nearest = {
                let seen = self.seen.lock();
                nearest(template, seen.iter().copied()).map(str::to_owned)
            };
            report_unused(reporter, template, nearest.as_deref());
        }
    }
}

/// The event `lock.override_unused`.
fn report_unused(reporter: &Reporter, template: &str, nearest: Option<&str>) {
    let template = &escaped(template);
    reporter.emit(&LockEvent::OverrideUnused { template, nearest });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TIMES: Override = Override::new().wait(Duration::ZERO);

    fn overrides<const N: usize>(templates: [&str; N]) -> BTreeMap<String, Override> {
        templates.map(|it| (it.to_owned(), TIMES)).into()
    }

    fn minutes(minutes: u64) -> Moment {
        Moment::from_millis(minutes * 60_000)
    }

    #[test]
    fn override_without_a_call_for_ten_minutes_is_unused() {
        let reporter = Reporter::default();
        let current = CurrentOverrides::new(overrides(["a:{id}", "b"]), minutes(0));
        assert_eq!(
            current.of_call(Some("b"), minutes(1), &reporter),
            Some(TIMES)
        );
        assert_eq!(current.of_call(Some("c"), minutes(1), &reporter), None);
        assert_eq!(current.of_call(None, minutes(1), &reporter), None);
        assert!(current.unused(minutes(9)).is_empty());
        assert_eq!(current.unused(minutes(10)), ["a:{id}"]);
        // A change of the times does not begin the ten minutes again.
        current.replace(overrides(["a:{id}", "new"]), minutes(9));
        assert_eq!(current.unused(minutes(10)), ["a:{id}"]);
        current.of_call(Some("a:{id}"), minutes(11), &reporter);
        assert_eq!(current.unused(minutes(30)), ["new"]);
        current.replace(BTreeMap::new(), minutes(30));
        assert!(!current.are_set());
    }
}
