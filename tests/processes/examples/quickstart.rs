//! The example `quickstart`.

use test_support::fixtures::SOON;

use super::example;

#[test]
fn order_is_charged_once_with_the_lock() {
    let shown = example("quickstart").spawn();
    assert!(shown.wait(SOON).success());
    let lines = shown.lines();
    let verdicts: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.trim().strip_prefix("=> "))
        .collect();
    assert_eq!(
        verdicts,
        [
            "order 41 was charged 3 x: WRONG",
            "order 42 was charged 1 x: right",
            "order 41 was charged 1 x: right",
            "order 42 was charged 1 x: right",
        ],
        "{lines:#?}"
    );
}
