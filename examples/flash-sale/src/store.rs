//! The database of the shop: one row of stock for each sale, and the orders.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::options::Database;

mod postgres;
mod sqlite;

/// The error of a database. It becomes a reply or a line on stderr, so a text is enough.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StoreError(String);

impl StoreError {
    fn new(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self(text)
    }
}

/// The future of a method of [`Store`].
pub(crate) type StoreFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What a write or a read with a token gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fenced<T> {
    /// The database accepted the token, or there was none.
    Accepted(T),
    /// The database has seen this token, which is newer.
    Refused { newest: u64 },
}

/// One purchase, ready to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sale {
    pub(crate) buyer: u64,
    /// The new stock: what the purchase read, minus one.
    pub(crate) left: i64,
    /// The fencing token. Without it, the write is always accepted.
    pub(crate) token: Option<u64>,
}

/// The sums of one sale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// The stock that is left.
    pub(crate) left: i64,
    /// The number of orders.
    pub(crate) sold: u64,
}

/// A database with the stock and the orders. Its read and its write are separate on purpose: what
/// happens in between is what the lock protects.
pub(crate) trait Store: Send + Sync {
    /// Makes the row of a new sale.
    fn open_sale<'a>(&'a self, item: &'a str, items: u32) -> StoreFuture<'a, ()>;

    /// Returns the stock. With a token, records that this token has read it.
    fn read<'a>(&'a self, item: &'a str, token: Option<u64>) -> StoreFuture<'a, Fenced<i64>>;

    /// Writes the stock and one order, in one transaction.
    fn write<'a>(&'a self, item: &'a str, sale: Sale) -> StoreFuture<'a, Fenced<()>>;

    /// Returns the sums of a sale.
    fn totals<'a>(&'a self, item: &'a str) -> StoreFuture<'a, Totals>;
}

/// Opens the database, and makes its tables if they are missing.
///
/// # Errors
/// Fails when the database cannot be opened.
pub(crate) async fn open(database: &Database) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match database {
        Database::Sqlite(file) => Arc::new(sqlite::SqliteStore::open(Some(file))?),
        Database::SqliteInMemory => Arc::new(sqlite::SqliteStore::open(None)?),
        Database::Postgres(url) => Arc::new(postgres::PostgresStore::open(url).await?),
    })
}

/// Both databases store signed numbers.
fn signed(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}
