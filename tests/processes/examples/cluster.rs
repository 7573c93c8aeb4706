//! The example `cluster`.

use test_support::fixtures::LONG;

use super::example;

#[test]
fn lock_survives_the_move_of_its_slot_and_the_end_of_its_node() {
    let shown = example("cluster").spawn();
    assert!(shown.wait(LONG).success(), "{:#?}", shown.lines());
    let lines = shown.lines();
    let steps = [
        "six nodes run",
        "acquired at node",
        "slot moved to node",
        "killed",
        "took over",
        "nobody else got it",
        "the waiting call ran",
    ];
    assert_eq!(lines.len(), steps.len(), "{lines:#?}");
    for (line, step) in lines.iter().zip(steps) {
        assert!(line.contains(step), "{step}: {lines:#?}");
    }
}
