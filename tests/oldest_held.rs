//! The gauge of the oldest held locks, as Prometheus reads it.
//!
//! A program of its own, because the recorder is that of the process, and all managers share the gauge.

use std::time::Duration;

use lock_core::{LockManager, LockName};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use test_support::fixtures::{SOON, ms, multi_thread_runtime};
use test_support::{RedisServer, eventually_async};
use tests::connect;

/// A few times the interval of the worker.
const WRITTEN: Duration = Duration::from_secs(20);

/// Returns the age that the page of metrics shows for this template.
fn age(page: &PrometheusHandle, template: &str) -> Option<f64> {
    let series = format!("distributed_lock_held_oldest{{distributed_lock_name=\"{template}\"}} ");
    let page = page.render();
    let value = page.lines().find_map(|line| line.strip_prefix(&series))?;
    Some(value.parse().unwrap())
}

fn request(
    locks: &LockManager,
    name: &'static str,
    template: &'static str,
) -> lock_core::LockRequest {
    let name = LockName::from(name).with_template(template);
    locks.lock(name).ttl(ms(900))
}

#[test]
fn gauge_shows_the_age_of_the_oldest_lock_of_each_template() {
    let page = PrometheusBuilder::new().install_recorder().unwrap();
    multi_thread_runtime(2).block_on(async {
        let server = RedisServer::start();
        let locks = [connect(&server).await, connect(&server).await];
        let leading = tokio::spawn({
            let request = request(&locks[0], "leader", "leader");
            async move {
                request
                    .lead(async |_| std::future::pending::<()>().await)
                    .await
            }
        });
        let old = request(&locks[0], "order:1", "order:{id}")
            .acquire()
            .await
            .unwrap();
        tokio::time::sleep(ms(1_500)).await;
        let young = request(&locks[1], "order:2", "order:{id}")
            .acquire()
            .await
            .unwrap();
        let other = request(&locks[1], "bill:1", "bill:{id}")
            .acquire()
            .await
            .unwrap();
        let shown = async |template, is_right: &dyn Fn(f64) -> bool| {
            println!("{template}");
            let is_right = || age(&page, template).is_some_and(is_right);
            eventually_async(WRITTEN, async || is_right()).await;
        };
        shown("bill:{id}", &|age| (0.3..60.0).contains(&age)).await;
        shown("order:{id}", &|age| age > 1.5).await;
        let [first, second] = locks.each_ref().map(|locks| locks.health().oldest_held);
        assert!(first > Some(ms(1_500)) && second > Some(ms(0)) && first > second);

        old.release().await.unwrap();
        young.release().await.unwrap();
        shown("order:{id}", &|age| age == 0.0).await;
        assert!(age(&page, "bill:{id}").unwrap() > 0.0);
        drop(other);
        assert_eq!(age(&page, "leader"), None, "a leader has no bound");
        eventually_async(SOON, async || locks[1].health().oldest_held.is_none()).await;
        // The end of a manager takes its ages back.
        drop(locks);
        shown("bill:{id}", &|age| age == 0.0).await;
        leading.abort();
    });
}
