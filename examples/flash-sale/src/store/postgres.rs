//! The stock in PostgreSQL, in a schema of its own.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_postgres::{Client, GenericClient, NoTls};

use super::{Fenced, Sale, Store, StoreError, StoreFuture, Totals, signed};

/// `left` is a keyword of PostgreSQL, so that it has quotes.
const TABLES: &str = "
    CREATE SCHEMA IF NOT EXISTS flash_sale;
    SET search_path TO flash_sale;
    CREATE TABLE IF NOT EXISTS stock (
        item TEXT PRIMARY KEY, \"left\" BIGINT NOT NULL, token BIGINT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS orders (item TEXT NOT NULL, buyer BIGINT NOT NULL);
    CREATE INDEX IF NOT EXISTS orders_of_item ON orders (item);";

/// Only one process at a time makes the tables: two `CREATE .. IF NOT EXISTS` at once can fail.
const TABLES_LOCK: i64 = 0x666c_6173;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::new(&error)
    }
}

/// One connection, which a transaction has for itself.
pub(crate) struct PostgresStore {
    client: Mutex<Client>,
}

impl PostgresStore {
    /// Connects to the server in the URL.
    pub(crate) async fn open(url: &str) -> Result<Self, StoreError> {
        let connecting = timeout(CONNECT_TIMEOUT, tokio_postgres::connect(url, NoTls));
        let connected = connecting.await;
        let (mut client, connection) =
            connected.map_err(|_| StoreError("the server does not reply".to_owned()))??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("flash-sale: PostgreSQL: {error}");
            }
        });
        let setup = client.transaction().await?;
        let lock = "SELECT pg_advisory_xact_lock($1)";
        setup.execute(lock, &[&TABLES_LOCK]).await?;
        // A notice for each table that exists would be noise.
        setup
            .batch_execute("SET LOCAL client_min_messages TO warning")
            .await?;
        setup.batch_execute(TABLES).await?;
        setup.commit().await?;
        Ok(Self {
            client: Mutex::new(client),
        })
    }
}

impl Store for PostgresStore {
    fn open_sale<'a>(&'a self, item: &'a str, items: u32) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let insert = "INSERT INTO stock (item, \"left\", token) VALUES ($1, $2, 0)";
            let client = self.client.lock().await;
            client.execute(insert, &[&item, &i64::from(items)]).await?;
            Ok(())
        })
    }

    fn read<'a>(&'a self, item: &'a str, token: Option<u64>) -> StoreFuture<'a, Fenced<i64>> {
        Box::pin(async move {
            let client = self.client.lock().await;
            let Some(token) = token.map(signed) else {
                let read = "SELECT \"left\" FROM stock WHERE item = $1";
                return Ok(Fenced::Accepted(
                    client.query_one(read, &[&item]).await?.get(0),
                ));
            };
            let read = "UPDATE stock SET token = $1 WHERE item = $2 AND token <= $1
                RETURNING \"left\"";
            match client.query_opt(read, &[&token, &item]).await? {
                Some(row) => Ok(Fenced::Accepted(row.get(0))),
                None => refused(&*client, item).await,
            }
        })
    }

    fn write<'a>(&'a self, item: &'a str, sale: Sale) -> StoreFuture<'a, Fenced<()>> {
        Box::pin(async move {
            let mut client = self.client.lock().await;
            let write = client.transaction().await?;
            let left = sale.left;
            let rows = if let Some(token) = sale.token.map(signed) {
                let update = "UPDATE stock SET \"left\" = $1, token = $2
                    WHERE item = $3 AND token <= $2";
                write.execute(update, &[&left, &token, &item]).await?
            } else {
                let update = "UPDATE stock SET \"left\" = $1 WHERE item = $2";
                write.execute(update, &[&left, &item]).await?
            };
            if rows == 0 {
                return refused(&write, item).await;
            }
            let insert = "INSERT INTO orders (item, buyer) VALUES ($1, $2)";
            write.execute(insert, &[&item, &signed(sale.buyer)]).await?;
            write.commit().await?;
            Ok(Fenced::Accepted(()))
        })
    }

    fn totals<'a>(&'a self, item: &'a str) -> StoreFuture<'a, Totals> {
        Box::pin(async move {
            let totals = "SELECT \"left\", (SELECT count(*) FROM orders WHERE item = $1)
                FROM stock WHERE item = $1";
            let client = self.client.lock().await;
            let row = client.query_one(totals, &[&item]).await?;
            Ok(Totals {
                left: row.get(0),
                sold: row.get::<_, i64>(1).unsigned_abs(),
            })
        })
    }
}

async fn refused<T>(client: &impl GenericClient, item: &str) -> Result<Fenced<T>, StoreError> {
    let newest = "SELECT token FROM stock WHERE item = $1";
    let newest: i64 = client.query_one(newest, &[&item]).await?.get(0);
    Ok(Fenced::Refused {
        newest: newest.unsigned_abs(),
    })
}
