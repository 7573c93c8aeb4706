//! The database of the services. Two instances of a service share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A table of names and numbers. Reading and writing are separate steps, as in a service that has no
/// transaction around both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store(Arc<Mutex<BTreeMap<String, u64>>>);

impl Store {
    pub(crate) async fn read(&self, name: &str) -> u64 {
        // The network to the database.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let table = self.0.lock().expect("no panic holds it");
        table.get(name).copied().unwrap_or_default()
    }

    pub(crate) async fn write(&self, name: &str, value: u64) {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut table = self.0.lock().expect("no panic holds it");
        table.insert(name.to_owned(), value);
    }

    /// Adds one. Two concurrent calls for a name lose one of the two, unless a lock separates them.
    pub(crate) async fn add_one(&self, name: &str) -> u64 {
        let value = self.read(name).await + 1;
        self.write(name, value).await;
        value
    }
}
