//! The flash sale with its stock in PostgreSQL. It needs no browser, but a server that the other tests
//! do not have.

use browser::demo::Demo;
use serde_json::Value;
use test_support::fixtures::SOON;
use test_support::{PostgresServer, eventually, eventually_some};

fn text(state: &Value, name: &str) -> String {
    state["texts"][name].as_str().unwrap_or_default().to_owned()
}

/// Starts a sale, and returns its verdict.
fn sell(demo: &Demo) -> String {
    demo.press("start");
    let is_over = || demo.state()["can_start"] == true;
    eventually(SOON, is_over);
    text(&demo.state(), "verdict")
}

#[test]
fn stock_in_postgres_has_the_same_results() {
    let server = PostgresServer::start();
    let demo = Demo::start(&["--database", &server.url()]);
    assert!(
        demo.line.ends_with(", PostgreSQL); Ctrl-C ends it"),
        "{}",
        demo.line
    );
    demo.press("lock");
    let verdict = sell(&demo);
    assert!(
        verdict.ends_with(": two requests read the same stock."),
        "{verdict}"
    );
    demo.press("lock");
    assert_eq!(
        sell(&demo),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );

    let result = |experiment: usize| {
        eventually_some(SOON, || {
            let state = demo.state();
            let text = state["experiments"][experiment]["text"].as_str();
            text.map(ToOwned::to_owned)
        })
    };
    demo.press("freeze-1");
    let refused = result(2);
    assert!(
        refused.contains("its late write was refused: token "),
        "{refused}"
    );
    let is_over = || demo.state()["can_start"] == true;
    eventually(SOON, is_over);
    let verdict = text(&demo.state(), "verdict");
    assert_eq!(
        verdict,
        "Stock 100 · Sold 100 · Oversold 0 — the fencing token held"
    );
    demo.press("fence");
    demo.press("freeze-2");
    let late = result(3);
    assert!(
        late.starts_with("Instance 2 wrote late: the lease had ended "),
        "{late}"
    );

    // A second demo on the same server has its own stock.
    let other = Demo::start(&["--database", &server.url()]);
    assert_eq!(
        sell(&other),
        "Stock 100 · Sold 100 · Oversold 0 — the lock held"
    );
}
