//! A recorder around a manager.

use std::fs::File;
use std::future::{Future, IntoFuture};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Dialect, LockError, LockGuard, LockManager, LockName, LockRequest, Renew, testing,
};
use tokio::runtime::Handle;

use crate::event::{Call, Kind, Nanos};
use crate::history::History;
use crate::record::{AcquisitionRecord, Sink};
use crate::recorder::guard::ReleaseRecord;
use crate::recorder::loss::LeaseRecord;

mod guard;
mod loss;
mod stalls;

pub use guard::RecordedGuard;
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
        RecordedRequest {
            recorder: self.clone(),
            request,
        }
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

/// How much later than its wait an acquire ends at the latest, as the guarantees say. A single
/// attempt ends within this time, or within the command timeout if that is longer.
const PROMISED_END: Duration = Duration::from_millis(250);

/// A request for a lock that is recorded. Made by [`Recorder::lock`].
///
/// The setters are those of [`LockRequest`]. Awaiting the request acquires the lock.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
pub struct RecordedRequest {
    recorder: Recorder,
    request: LockRequest,
}

impl RecordedRequest {
    fn map(self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        Self {
            recorder: self.recorder,
            request: change(self.request),
        }
    }

    /// Sets how long the lock outlives a holder that dies. Defaults to the manager's `default_ttl`.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.map(|request| request.ttl(ttl))
    }

    /// Sets how long `acquire` waits for the lock. Defaults to the manager's `default_wait`.
    pub fn wait(self, wait: Duration) -> Self {
        self.map(|request| request.wait(wait))
    }

    /// Sets whether and how often the lock is renewed. Defaults to [`Renew::Auto`].
    pub fn renew(self, renew: Renew) -> Self {
        self.map(|request| request.renew(renew))
    }

    /// Sets the format of the lock on the server. Defaults to the manager's dialect.
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.map(|request| request.dialect(dialect))
    }

    /// Sets the longest time for which the lock is held. Defaults to no limit.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map(|request| request.max_hold(max_hold))
    }

    /// Sets the shortest time for which the key stays locked. Defaults to zero.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.map(|request| request.min_hold(min_hold))
    }

    /// Acquires the lock and records it, as [`LockRequest::acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// As [`LockRequest::acquire`]. The record shows an acquire that was dropped.
    pub async fn acquire(self) -> Result<RecordedGuard, LockError> {
        let record = self.begin();
        let pending = record.pending(Call::Acquire);
        let acquired = self.request.acquire().await;
        pending.finish();
        match acquired {
            Ok(guard) => Ok(RecordedGuard::new(guard, record)),
            Err(error) => {
                record.failed(Call::Acquire, &error);
                Err(error)
            }
        }
    }

    /// Acquires the lock, runs `body`, releases the lock, and records it, as [`LockRequest::run`].
    ///
    /// The body gets the guard, and the record for accesses to a
    /// [`FencedRegister`](crate::FencedRegister).
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    ///
    /// # Cancel safety
    /// As [`LockRequest::run`]. The record shows a body that was dropped.
    pub async fn run<T>(
        self,
        body: impl AsyncFnOnce(&LockGuard, &AcquisitionRecord) -> T,
    ) -> Result<T, LockError> {
        let record = self.begin();
        let pending = record.pending(Call::Acquire);
        let mut is_granted = false;
        let outcome = self.request.run(async |guard| {
            pending.finish();
            is_granted = true;
            let watch = guard.watch();
            record.granted(&watch);
            let _lease = LeaseRecord::start(&record, &watch);
            // Records the release when the library drops this future.
            let mut release = ReleaseRecord::new(record.clone(), watch);
            let output = body(guard, &record).await;
            release.begin();
            output
        });
        let outcome = outcome.await;
        pending.finish();
        match &outcome {
            // The library does not return the outcome of the release.
            Ok(_) => record.step(Call::Release, Kind::Info),
            Err(error) if !is_granted => record.failed(Call::Acquire, error),
            Err(_) => {}
        }
        outcome
    }

    /// Begins the record of the acquire.
    fn begin(&self) -> AcquisitionRecord {
        let parts = testing::request_parts(&self.request);
        let limit = if parts.wait.is_zero() {
            parts.command_timeout.max(PROMISED_END)
        } else {
            parts.wait.saturating_add(PROMISED_END)
        };
        let record = self.recorder.begin(parts.key);
        record.invoked(limit);
        record
    }

    /// Makes one attempt to acquire the lock and records it, as [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<RecordedGuard>, LockError> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Contended { .. } | LockError::WouldDeadlock { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl IntoFuture for RecordedRequest {
    type Output = Result<RecordedGuard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// As [`acquire`](RecordedRequest::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
