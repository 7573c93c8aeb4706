//! Real errors, and what clients must see of each.

use std::time::Duration;

use lock_core::error::InvalidSetting;
use lock_core::{LockError, LockManager, LockRequest, Renew, lock_name};
use test_support::RedisServer;

/// The label of the holder, and a part of each name.
pub(crate) const SECRET: &str = "SECRET";

/// One row of the mapping.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) error: LockError,
    pub(crate) status: u16,
    pub(crate) slug: &'static str,
    pub(crate) title: &'static str,
    pub(crate) retry_after: Option<u64>,
    pub(crate) code: &'static str,
    pub(crate) reason: &'static str,
}

/// What clients see of one kind of error: status, end of the type, title, `Retry-After`, gRPC code and
/// reason.
#[derive(Clone, Copy)]
struct Kind(
    u16,
    &'static str,
    &'static str,
    Option<u64>,
    &'static str,
    &'static str,
);

const CONTENDED: Kind = Kind(
    409,
    "contended",
    "The resource is in use",
    Some(1),
    "ABORTED",
    "LOCK_CONTENDED",
);
const TIMEOUT: Kind = Kind(
    409,
    "timeout",
    "The resource was not free in time",
    Some(1),
    "ABORTED",
    "LOCK_TIMEOUT",
);
const LOST: Kind = Kind(
    500,
    "lost",
    "The operation was interrupted",
    None,
    "ABORTED",
    "LOCK_LOST",
);
const SHUTTING_DOWN: Kind = Kind(
    503,
    "shutting-down",
    "The service is shutting down",
    Some(1),
    "UNAVAILABLE",
    "LOCK_SHUTTING_DOWN",
);
const UNAVAILABLE: Kind = Kind(
    503,
    "unavailable",
    "The lock service is not available",
    Some(2),
    "UNAVAILABLE",
    "LOCK_UNAVAILABLE",
);
const INVALID_NAME: Kind = Kind(
    400,
    "invalid-name",
    "A value in the request cannot name a resource",
    None,
    "INVALID_ARGUMENT",
    "LOCK_INVALID_NAME",
);
const MISCONFIGURED: Kind = Kind(
    500,
    "misconfigured",
    "The service is misconfigured",
    None,
    "INTERNAL",
    "LOCK_MISCONFIGURED",
);

impl Kind {
    fn row(self, error: LockError) -> Row {
        let Self(status, slug, title, retry_after, code, reason) = self;
        Row {
            error,
            status,
            slug,
            title,
            retry_after,
            code,
            reason,
        }
    }
}

async fn error_of(request: LockRequest) -> LockError {
    let acquired = request.wait(Duration::ZERO).acquire().await;
    acquired.expect_err("the test made it fail")
}

/// Makes an error of each kind. The first two have a holder whose label is [`SECRET`], the third has a
/// holder with the default label: host and process id.
pub(crate) async fn every_row(server: &RedisServer) -> Vec<Row> {
    let ms = Duration::from_millis;
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    let other = LockManager::builder().label(SECRET);
    let other = other.connect(&server.url()).await.expect("it runs");
    let with_default_label = LockManager::connect(&server.url()).await.expect("it runs");
    let holders = [
        other.lock("SECRET:1").acquire().await.expect("it is free"),
        with_default_label
            .lock("SECRET:2")
            .acquire()
            .await
            .expect("it is free"),
    ];
    let waited = locks.lock("SECRET:1").wait(ms(30)).acquire().await;
    let lost = locks.lock("SECRET:3").ttl(ms(100)).renew(Renew::Never);
    let lost = lost.run(async |_| std::future::pending::<()>().await).await;
    let nested = locks
        .lock("SECRET:4")
        .run(async |_| error_of(locks.lock("SECRET:4")).await);
    server.cli(&["RPUSH", "lock:SECRET:5", "SECRET"]);
    // Nothing listens on this port.
    let unreachable = LockManager::connect("redis://127.0.0.1:1").await;
    let url = LockManager::connect("http://SECRET").await;

    let rows = [
        (CONTENDED, error_of(locks.lock("SECRET:1")).await),
        (TIMEOUT, waited.expect_err("it is held")),
        (CONTENDED, error_of(locks.lock("SECRET:2")).await),
        (LOST, lost.expect_err("it is lost")),
        (SHUTTING_DOWN, LockError::ShuttingDown),
        (UNAVAILABLE, unreachable.expect_err("nothing listens there")),
        (
            INVALID_NAME,
            error_of(locks.lock(lock_name!("SECRET:{}", ""))).await,
        ),
        (INVALID_NAME, error_of(locks.lock(SECRET.repeat(200))).await),
        (MISCONFIGURED, error_of(locks.lock("SECRET:}")).await),
        (
            MISCONFIGURED,
            error_of(locks.lock("SECRET:6").ttl(ms(1))).await,
        ),
        (MISCONFIGURED, error_of(locks.lock("SECRET:5")).await),
        (MISCONFIGURED, nested.await.expect("it is free")),
        (
            MISCONFIGURED,
            url.expect_err("it is no URL of a lock server"),
        ),
        (MISCONFIGURED, LockError::NotConfigured),
        (MISCONFIGURED, LockError::AlreadyInstalled),
    ];
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(kind, error)| kind.row(error))
        .collect();
    drop(holders);
    assert_kinds(&rows);
    rows
}

/// The errors must be those that the table is about.
fn assert_kinds(rows: &[Row]) {
    use LockError as E;
    let label = |at: usize| &*rows[at].error.holder().expect("it is known").label;
    assert_eq!([label(0), label(1)], [SECRET; 2]);
    assert_ne!(label(2), SECRET);
    let is_kind = [
        matches!(rows[0].error, E::Contended { .. }),
        matches!(rows[1].error, E::Timeout { .. }),
        matches!(rows[2].error, E::Contended { .. }),
        rows[3].error.is_lost(),
        matches!(rows[4].error, E::ShuttingDown),
        matches!(&rows[5].error, E::Backend(error) if error.kind().is_retryable()),
        matches!(rows[6].error, E::Invalid(InvalidSetting::Name { .. })),
        matches!(rows[7].error, E::Invalid(InvalidSetting::Name { .. })),
        matches!(rows[8].error, E::Invalid(InvalidSetting::Name { .. })),
        matches!(rows[9].error, E::Invalid(InvalidSetting::Ttl { .. })),
        matches!(rows[10].error, E::ForeignKey { .. }),
        matches!(rows[11].error, E::WouldDeadlock { .. }),
        matches!(&rows[12].error, E::Backend(error) if !error.kind().is_retryable()),
    ];
    assert_eq!(is_kind, [true; 13], "{rows:#?}");
}
