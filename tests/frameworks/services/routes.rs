//! The routes of a service, and what each of them replies.

use std::net::SocketAddr;

use frameworks::client::{self, Reply, contended, send, timeout, unavailable};
use lock_core::LockManager;
use tokio::task::JoinSet;

/// What a route replies while another holder has its lock.
pub(crate) enum Busy {
    /// 409 at once.
    Contended,
    /// 409 after the wait.
    Timeout,
    /// 409 with a title of the service.
    Title(&'static str),
    /// 202, with the header `lock-outcome` or without it, and a body.
    Skipped(Option<&'static str>, &'static str),
}

pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) json: &'static str,
    /// The lock that it needs.
    pub(crate) lock: &'static str,
    /// Its status while the lock is free.
    pub(crate) status: u16,
    pub(crate) busy: Busy,
}

impl Route {
    pub(crate) const fn new(
        method: &'static str,
        path: &'static str,
        lock: &'static str,
        status: u16,
        busy: Busy,
    ) -> Self {
        Self {
            method,
            path,
            json: "",
            lock,
            status,
            busy,
        }
    }

    pub(crate) const fn with_json(mut self, json: &'static str) -> Self {
        self.json = json;
        self
    }

    async fn send(&self, to: SocketAddr) -> Reply {
        send(to, self.method, self.path, self.json).await
    }

    /// Sends the request to each instance, while the lock is free and while `other` has it.
    pub(crate) async fn check(&self, instances: &[SocketAddr], other: &LockManager) {
        let name = format!("{} {}", self.method, self.path);
        let free = self.send(instances[0]).await;
        assert_eq!(free.status, self.status, "{name}: {free:?}");
        let held = other.lock(self.lock).acquire().await.expect("it is free");
        for instance in instances {
            let reply = self.send(*instance).await;
            let (status, body, outcome) = match self.busy {
                Busy::Contended => (409, contended(), None),
                Busy::Timeout => (409, timeout(), None),
                Busy::Title(title) => {
                    let body = client::problem("contended", title, 409, Some(1));
                    (409, body, None)
                }
                Busy::Skipped(outcome, body) => (202, body.to_owned(), outcome),
            };
            assert_eq!((reply.status, &reply.body), (status, &body), "{name}");
            assert_eq!(reply.header("lock-outcome"), outcome, "{name}");
            if status == 409 {
                assert_problem_headers(&reply, Some("1"));
            }
        }
        held.release().await.expect("it is held");
    }
}

/// Sends each request to an instance without a server for its locks.
pub(crate) async fn check_without_a_server(routes: &'static [Route], instance: SocketAddr) {
    let mut requests = JoinSet::new();
    for route in routes {
        requests.spawn(async move { (route.path, route.send(instance).await) });
    }
    for (path, reply) in requests.join_all().await {
        assert_eq!((reply.status, &reply.body), (503, &unavailable()), "{path}");
        assert_problem_headers(&reply, Some("2"));
    }
}

pub(crate) fn assert_problem_headers(reply: &Reply, retry_after: Option<&str>) {
    let header = |name| reply.header(name);
    assert_eq!(header("content-type"), Some("application/problem+json"));
    assert_eq!(header("cache-control"), Some("no-store"));
    assert_eq!(header("retry-after"), retry_after);
}

/// Sends payments of one order to all instances at once. Returns how many were made.
pub(crate) async fn pay_at_the_same_time(instances: &[SocketAddr]) -> u64 {
    let mut payments = JoinSet::new();
    for round in 0..20 {
        let instance = instances[round % instances.len()];
        payments.spawn(async move {
            let paid = send(instance, "POST", "/orders/77/payment", "").await;
            match paid.status {
                200 => 1,
                409 => 0,
                _ => panic!("{paid:?}"),
            }
        });
    }
    payments.join_all().await.into_iter().sum()
}
