//! A recorder around a manager.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::{LockManager, LockName, LockRequest, testing};
use tokio::runtime::Handle;

use crate::event::Nanos;
use crate::history::History;
use crate::record::AcquisitionRecord;
use crate::sink::Sink;

mod guard;
mod loss;
mod request;
mod stalls;

pub use guard::RecordedGuard;
pub use request::RecordedRequest;
pub use stalls::StallWatch;

/// The clock of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordClock {
    /// The clock by which the manager counts its leases.
    ///
    /// For a manager in memory this is tokio's clock, which tests may pause. For others it is the
    /// boot-time clock on Linux and Android: all processes of the machine share it. On other
    /// systems each process has its own clock, so the records of two processes cannot be merged.
    #[default]
    Lease,
    /// The wall clock, for records of several machines. Set the largest difference between their
    /// clocks with [`Checker::clock_error`](crate::Checker::clock_error).
    Wall,
}

/// Records what happens to the locks of a [`LockManager`]. Clones write the same record.
///
/// For a manager on a server it also records [stalls](Self::watch_stalls) of this process, when it
/// is made in a tokio runtime. So a process that was stopped breaks no promise.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::LockManager;
/// use lock_testing::{Checker, Recorder};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// let recorder = Recorder::new(LockManager::in_memory());
/// let guard = recorder.lock("orders").wait(Duration::from_secs(1)).acquire().await?;
/// // The guard derefs to a `LockGuard`.
/// assert!(!guard.is_lost());
/// guard.release().await?;
/// Checker::new().check(&recorder.history()).assert_ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder {
    pub(crate) sink: Arc<Sink>,
    task: u32,
    /// Ends with the last clone.
    _stalls: Option<Arc<StallWatch>>,
}

impl Recorder {
    /// Makes a recorder that keeps the history in memory, with the process id as the number of the
    /// process.
    #[must_use]
    pub fn new(locks: LockManager) -> Self {
        Self::builder(locks).build_with(None)
    }

    /// Returns a builder, to write a file or to change the default settings.
    pub fn builder(locks: LockManager) -> RecorderBuilder {
        RecorderBuilder {
            locks,
            process: std::process::id(),
            clock: RecordClock::default(),
            keeps_history: true,
            file: None,
            existing_file: ExistingFile::Replace,
        }
    }

    /// Returns the manager.
    #[must_use]
    pub fn locks(&self) -> &LockManager {
        &self.sink.locks
    }

    /// Returns a recorder of the same record, whose events have this task number.
    #[must_use]
    pub fn for_task(&self, task: u32) -> Self {
        Self {
            task,
            ..self.clone()
        }
    }

    /// Makes a request for the lock with this name, as [`LockManager::lock`].
    pub fn lock(&self, name: impl Into<LockName>) -> RecordedRequest {
        self.record(self.locks().lock(name))
    }

    /// Records what happens to this request.
    pub fn record(&self, request: LockRequest) -> RecordedRequest {
        RecordedRequest::new(self.clone(), request)
    }

    /// Begins the record of one acquisition of this lock. The caller records its events.
    #[must_use]
    pub fn begin(&self, key: impl Into<Arc<str>>) -> AcquisitionRecord {
        AcquisitionRecord::new(Arc::clone(&self.sink), self.task, key.into())
    }

    /// Returns the current moment on the clock of the record.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.sink.now()
    }

    /// Returns a copy of the history up to now. Returns an empty history when the recorder only
    /// [writes a file](RecorderBuilder::only_file).
    #[must_use]
    pub fn history(&self) -> History {
        self.sink.history().unwrap_or_default()
    }

    /// Writes the end of the record. Call it once, when all guards are released. A record without
    /// its end is that of a process that was killed.
    ///
    /// # Errors
    /// The first error of a write to the file. The record is then incomplete.
    pub fn finish(&self) -> io::Result<()> {
        self.sink.end()
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("process", &self.sink.process)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Recorder`]. Made by [`Recorder::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is recorded before `build`"]
pub struct RecorderBuilder {
    locks: LockManager,
    process: u32,
    clock: RecordClock,
    keeps_history: bool,
    file: Option<PathBuf>,
    existing_file: ExistingFile,
}

/// What happens to a file that exists.
#[derive(Clone, Copy, Debug)]
enum ExistingFile {
    Replace,
    Append,
}

impl ExistingFile {
    fn open(self, path: PathBuf) -> io::Result<File> {
        match self {
            Self::Replace => File::create(path),
            Self::Append => {
                let mut options = File::options();
                let mut file = options.create(true).read(true).append(true).open(path)?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let last_end = bytes.iter().rposition(|byte| *byte == b'\n');
                bytes.truncate(last_end.map_or(0, |end| end + 1));
                // A process that was killed may have left a partial line.
                file.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
                Ok(file)
            }
        }
    }
}

impl RecorderBuilder {
    /// Sets the number of this process. Processes whose records are merged need different numbers.
    /// Defaults to the process id.
    pub fn process(mut self, number: u32) -> Self {
        self.process = number;
        self
    }

    /// Sets the clock of the record. Defaults to [`RecordClock::Lease`].
    pub fn clock(mut self, clock: RecordClock) -> Self {
        self.clock = clock;
        self
    }

    /// Writes the events to a file too, one JSON object in each line. Replaces a file that exists,
    /// unless [`append`](Self::append) is set. Defaults to no file.
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().to_owned());
        self
    }

    /// Writes the events to a file, and keeps none of them in memory. Use it for long runs.
    /// Defaults to a history in memory.
    pub fn only_file(self, path: impl AsRef<Path>) -> Self {
        Self {
            keeps_history: false,
            ..self.file(path)
        }
    }

    /// Appends to a file that exists, without its last line if a kill left it incomplete.
    ///
    /// Only records of one run may share a file. They need different numbers of the process and one
    /// clock, so the machine must not restart in between. Defaults to a new file.
    pub fn append(self) -> Self {
        Self {
            existing_file: ExistingFile::Append,
            ..self
        }
    }

    /// Makes the recorder.
    ///
    /// # Errors
    /// The error of a file that cannot be opened.
    pub fn build(mut self) -> io::Result<Recorder> {
        let existing = self.existing_file;
        let file = self.file.take().map(|path| existing.open(path));
        Ok(self.build_with(file.transpose()?))
    }

    fn build_with(self, file: Option<File>) -> Recorder {
        let has_real_clock = testing::has_server(&self.locks);
        let history = self.keeps_history.then(History::default);
        let sink = Sink::new(self.locks, self.process, self.clock, history, file);
        let sink = Arc::new(sink);
        let watches_stalls = has_real_clock && Handle::try_current().is_ok();
        let stalls = watches_stalls.then(|| Arc::new(StallWatch::start(&sink)));
        Recorder {
            sink,
            task: 0,
            _stalls: stalls,
        }
    }
}
