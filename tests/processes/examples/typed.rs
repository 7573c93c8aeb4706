//! The example `typed`.

use test_support::fixtures::SOON;

use super::example;

#[test]
fn service_pays_each_order_under_its_declared_lock() {
    let shown = example("typed").spawn();
    assert!(shown.wait(SOON).success(), "{:#?}", shown.lines());
    assert_eq!(
        shown.lines(),
        ["order 7 has the payments [1, 2, 3]", "article 4 costs 40"]
    );
}
