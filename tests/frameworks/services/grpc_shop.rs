//! A shop with tonic. No method has an `on_error`, and no manager is global.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use frameworks::orders::orders_server::{Orders, OrdersServer};
use frameworks::orders::{PayReply, PayRequest, ShipReply, ShipRequest, SweepReply, SweepRequest};
use lock_core::web::ScopeLayer;
use lock_core::{LockError, LockManager, distributed_lock, lock_name};
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::store::Store;

pub(crate) struct Shop {
    pub(crate) store: Store,
}

#[tonic::async_trait]
impl Orders for Shop {
    /// Waits for a call that works on the same order. Then the reply is definite.
    #[distributed_lock(
        name = lock_name!("order:{}", request.get_ref().order),
        ttl = "10s",
        wait = "100ms",
    )]
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
        let order = request.into_inner().order;
        let payment = self.store.add_one(&format!("payments:{order}")).await;
        Ok(Response::new(PayReply { payment }))
    }

    async fn ship(&self, request: Request<ShipRequest>) -> Result<Response<ShipReply>, Status> {
        // The service's own error type, also for a part of a method.
        let parcel = self.book(&request.get_ref().order).await?;
        Ok(Response::new(ShipReply { parcel }))
    }

    /// A scheduler calls all instances. One of them works. The others reply with the metadata
    /// `lock-outcome: skipped`.
    #[distributed_lock(name = "sweep", ttl = "10s", on_contended = skip)]
    async fn sweep(&self, _: Request<SweepRequest>) -> Result<Response<SweepReply>, Status> {
        let removed = Some(self.store.add_one("sweeps").await);
        Ok(Response::new(SweepReply { removed }))
    }
}

impl Shop {
    #[distributed_lock(name = "order:{order}", ttl = "10s", wait = "0s")]
    async fn book(&self, order: &str) -> Result<u64, ShopError> {
        if self.store.read(&format!("payments:{order}")).await == 0 {
            return Err(ShopError::NotPaid);
        }
        Ok(self.store.add_one("parcels").await)
    }
}

/// The service's own error type.
enum ShopError {
    Lock(LockError),
    NotPaid,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<ShopError> for Status {
    fn from(error: ShopError) -> Self {
        match error {
            ShopError::Lock(error) => error.into(),
            ShopError::NotPaid => Self::failed_precondition("the order is not paid"),
        }
    }
}

/// The time for running calls after the signal to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Serves until `stop`. Then it accepts no more calls, lets the running ones end, and releases the
/// locks.
pub(crate) async fn serve(
    incoming: TcpIncoming,
    locks: LockManager,
    store: Store,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (sender, stopping) = oneshot::channel();
    let stop = async move {
        stop.await;
        // The receiver exists as long as the server does.
        _ = sender.send(());
    };
    let server = Server::builder()
        .layer(ScopeLayer::new(locks.clone()))
        .add_service(OrdersServer::new(Shop { store }))
        .serve_with_incoming_shutdown(incoming, stop);
    let deadline = async {
        _ = stopping.await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = server => ended?,
        () = deadline => tracing::warn!("some calls did not end in time"),
    }
    locks.shutdown().await?;
    Ok(())
}
