//! The stock in a SQLite file in WAL mode, which all instances open.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{Fenced, Sale, Store, StoreError, StoreFuture, Totals, signed};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS stock (
        item TEXT PRIMARY KEY, \"left\" INTEGER NOT NULL, token INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS orders (item TEXT NOT NULL, buyer INTEGER NOT NULL);
    CREATE INDEX IF NOT EXISTS orders_of_item ON orders (item);";

/// How long a connection waits while another instance writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::new(&error)
    }
}

/// One connection. SQLite has one writer at a time anyway.
pub(crate) struct SqliteStore {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteStore {
    /// Opens the file, or a database in memory.
    pub(crate) fn open(file: Option<&Path>) -> Result<Self, StoreError> {
        let connection = match file {
            Some(file) => Connection::open(file)?,
            None => Connection::open_in_memory()?,
        };
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // The demo does not have to survive a power failure.
        connection.pragma_update(None, "synchronous", "off")?;
        connection.execute_batch(TABLES)?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
        })
    }

    /// Runs a query on a thread that may block.
    fn query<'a, T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'a, T> {
        let connection = Arc::clone(&self.connection);
        Box::pin(async move {
            let blocking = tokio::task::spawn_blocking(move || {
                query(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
            });
            Ok(blocking.await.map_err(|error| StoreError::new(&error))??)
        })
    }
}

impl Store for SqliteStore {
    fn open_sale<'a>(&'a self, item: &'a str, items: u32) -> StoreFuture<'a, ()> {
        let item = item.to_owned();
        self.query(move |connection| {
            let insert = "INSERT INTO stock (item, \"left\", token) VALUES (?1, ?2, 0)";
            connection.execute(insert, params![item, items])?;
            Ok(())
        })
    }

    fn read<'a>(&'a self, item: &'a str, token: Option<u64>) -> StoreFuture<'a, Fenced<i64>> {
        let item = item.to_owned();
        self.query(move |connection| {
            let Some(token) = token.map(signed) else {
                let read = "SELECT \"left\" FROM stock WHERE item = ?1";
                let left = connection.query_row(read, params![item], |row| row.get(0))?;
                return Ok(Fenced::Accepted(left));
            };
            let read = "UPDATE stock SET token = ?1 WHERE item = ?2 AND token <= ?1
                RETURNING \"left\"";
            let row = connection.query_row(read, params![token, item], |row| row.get(0));
            match row.optional()? {
                Some(left) => Ok(Fenced::Accepted(left)),
                None => refused(connection, &item),
            }
        })
    }

    fn write<'a>(&'a self, item: &'a str, sale: Sale) -> StoreFuture<'a, Fenced<()>> {
        let item = item.to_owned();
        let buyer = signed(sale.buyer);
        self.query(move |connection| {
            // IMMEDIATE waits for its turn at the beginning.
            let write = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let rows = if let Some(token) = sale.token.map(signed) {
                write.execute(
                    "UPDATE stock SET \"left\" = ?1, token = ?2 WHERE item = ?3 AND token <= ?2",
                    params![sale.left, token, item],
                )?
            } else {
                let update = "UPDATE stock SET \"left\" = ?1 WHERE item = ?2";
                write.execute(update, params![sale.left, item])?
            };
            if rows == 0 {
                return refused(&write, &item);
            }
            let insert = "INSERT INTO orders (item, buyer) VALUES (?1, ?2)";
            write.execute(insert, params![item, buyer])?;
            write.commit()?;
            Ok(Fenced::Accepted(()))
        })
    }

    fn totals<'a>(&'a self, item: &'a str) -> StoreFuture<'a, Totals> {
        let item = item.to_owned();
        self.query(move |connection| {
            let totals = "SELECT \"left\", (SELECT count(*) FROM orders WHERE item = ?1)
                FROM stock WHERE item = ?1";
            connection.query_row(totals, params![item], |row| {
                let sold: i64 = row.get(1)?;
                Ok(Totals {
                    left: row.get(0)?,
                    sold: sold.unsigned_abs(),
                })
            })
        })
    }
}

fn refused<T>(connection: &Connection, item: &str) -> rusqlite::Result<Fenced<T>> {
    let newest: i64 = connection.query_row(
        "SELECT token FROM stock WHERE item = ?1",
        params![item],
        |row| row.get(0),
    )?;
    Ok(Fenced::Refused {
        newest: newest.unsigned_abs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn older_tokens_are_refused_and_leave_no_order() {
        let store = SqliteStore::open(None).unwrap();
        store.open_sale("lamp", 2).await.unwrap();
        assert_eq!(
            store.read("lamp", Some(7)).await.unwrap(),
            Fenced::Accepted(2)
        );
        let purchase = |token| Sale {
            buyer: 1,
            left: 1,
            token,
        };
        let newest = Fenced::Refused { newest: 7 };
        assert_eq!(
            store.write("lamp", purchase(Some(6))).await.unwrap(),
            newest
        );
        let read = store.read("lamp", Some(6)).await.unwrap();
        assert_eq!(read, Fenced::Refused { newest: 7 });
        let totals = |left, sold| Totals { left, sold };
        assert_eq!(store.totals("lamp").await.unwrap(), totals(2, 0));
        // Without a token, every write is accepted.
        for token in [Some(7), None] {
            let written = store.write("lamp", purchase(token)).await.unwrap();
            assert_eq!(written, Fenced::Accepted(()));
        }
        assert_eq!(store.totals("lamp").await.unwrap(), totals(1, 2));
    }
}
