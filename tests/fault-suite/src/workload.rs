//! The workloads of a process.

/// The workload of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A mix of all other workloads.
    Mixed,
    /// Read, think, and write under the lock.
    Modify,
    /// Short sections, all tasks on four locks.
    Storm,
    /// Sections of five times the ttl.
    Long,
    /// Acquisitions, guards and releases dropped at any time.
    Cancel,
    /// Some tasks wait, and some only try.
    Try,
    /// The same, by processes that connect lazily, with a time of their own for outages.
    Outage,
    /// Readers and writers of a pair of values, and writers that become readers.
    ReadWrite,
    /// Holders of permits, with weights.
    Permits,
    /// Transfers between two accounts, under a set of two locks.
    Sets,
    /// Candidates that lead in turn, and observers that follow who leads.
    Elections,
    /// The observers of the elections, which are no workload of a process.
    Observe,
    /// Locks that are handed over by tickets, which several processes try to resume.
    Tickets,
    /// Jobs that are done once in a period. Some fail, and some die.
    Once,
    /// The control: all tasks change one value slowly, and write even when the lock is lost.
    Late,
}

const WORKLOADS: [(Workload, &str); 14] = [
    (Workload::Mixed, "mixed"),
    (Workload::Modify, "modify"),
    (Workload::Storm, "storm"),
    (Workload::Long, "long"),
    (Workload::Cancel, "cancel"),
    (Workload::Try, "try"),
    (Workload::Outage, "outage"),
    (Workload::ReadWrite, "rw"),
    (Workload::Permits, "permits"),
    (Workload::Sets, "sets"),
    (Workload::Elections, "elections"),
    (Workload::Tickets, "tickets"),
    (Workload::Once, "once"),
    (Workload::Late, "late"),
];

impl Workload {
    /// Returns the workload with this name.
    pub fn named(name: &str) -> Option<Self> {
        let found = WORKLOADS.iter().find(|(_, known)| *known == name)?;
        Some(found.0)
    }

    /// Returns the workload's name.
    pub fn name(self) -> &'static str {
        let found = WORKLOADS.iter().find(|(known, _)| *known == self);
        found.expect("all workloads are listed").1
    }

    /// Returns all names.
    pub fn names() -> Vec<&'static str> {
        WORKLOADS.iter().map(|(_, name)| *name).collect()
    }

    /// Returns whether the workload needs kinds of locks, or sets, that only the native dialect has.
    pub fn is_native(self) -> bool {
        matches!(
            self,
            Self::ReadWrite | Self::Permits | Self::Sets | Self::Tickets | Self::Once
        )
    }

    /// Returns the workload of one task.
    pub(crate) fn of_task(self, task: u32) -> Self {
        match (self, task) {
            (Self::Mixed, 0..=2) => Self::Storm,
            (Self::Mixed, 3) => Self::Modify,
            (Self::Mixed, 4) => Self::Cancel,
            (Self::Mixed, 5) => Self::Try,
            // A task that holds a lock for a moment has no time to lose it.
            (Self::Mixed, 6)
            | (Self::Mixed | Self::Modify | Self::Cancel | Self::Try | Self::Outage, 7) => {
                Self::Long
            }
            (Self::Elections, 6..) => Self::Observe,
            (pure, _) => pure,
        }
    }
}
