//! What the tasks of a process do.

/// What the tasks of a process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Some of each of the others.
    Mixed,
    /// Read, think, and write under the lock.
    Modify,
    /// Short sections, all tasks on four locks.
    Storm,
    /// Sections of five times the ttl.
    Long,
    /// Acquisitions, guards and releases dropped at any time.
    Cancel,
    /// Some wait, some only try.
    Try,
    /// The control: everybody changes one thing slowly, and writes also when the lock is lost.
    Late,
}

const WORKLOADS: [(Workload, &str); 7] = [
    (Workload::Mixed, "mixed"),
    (Workload::Modify, "modify"),
    (Workload::Storm, "storm"),
    (Workload::Long, "long"),
    (Workload::Cancel, "cancel"),
    (Workload::Try, "try"),
    (Workload::Late, "late"),
];

impl Workload {
    /// The workload of that name.
    pub fn named(name: &str) -> Option<Self> {
        let found = WORKLOADS.iter().find(|(_, known)| *known == name)?;
        Some(found.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = WORKLOADS.iter().find(|(known, _)| *known == self);
        found.expect("all workloads are listed").1
    }

    /// All names.
    pub fn names() -> Vec<&'static str> {
        WORKLOADS.iter().map(|(_, name)| *name).collect()
    }

    /// What one task does.
    pub(crate) fn of_task(self, task: u32) -> Self {
        match (self, task) {
            (Self::Mixed, 0..=2) => Self::Storm,
            (Self::Mixed, 3) => Self::Modify,
            (Self::Mixed, 4) => Self::Cancel,
            (Self::Mixed, 5) => Self::Try,
            // Who holds a lock for a moment has no time to lose it.
            (Self::Mixed, 6) | (Self::Mixed | Self::Modify | Self::Cancel | Self::Try, 7) => {
                Self::Long
            }
            (pure, _) => pure,
        }
    }
}
