//! Writers that become readers.

use lock_core::LockGuard;
use lock_testing::{AcquisitionRecord as Log, Call, Kind};

use super::section::Section;
use super::task::{Task, drop_somewhere};

impl Task {
    /// Turns a writer into a reader, and reads. The record has the reader as another acquisition.
    pub(super) async fn downgrade(&mut self, writer: &Log, guard: LockGuard) {
        let reader = self.recorder.begin(writer.key());
        reader.step(Call::Acquire, Kind::Invoke);
        writer.step(Call::Release, Kind::Invoke);
        let is_dropped = self.random.chance(10);
        let answer = if is_dropped {
            drop_somewhere(guard.downgrade(), &mut self.random).await
        } else {
            Some(guard.downgrade().await)
        };
        match answer {
            Some(Ok(guard)) => {
                writer.step(Call::Release, Kind::Ok);
                self.section = Section::ReadPair;
                Box::pin(self.hold(&reader, guard)).await;
            }
            Some(Err(error)) => {
                writer.failed(Call::Release, &error);
                self.refused(&reader, &error).await;
            }
            None => {
                writer.step(Call::Release, Kind::Dropped);
                reader.step(Call::Acquire, Kind::Dropped);
            }
        }
    }
}
