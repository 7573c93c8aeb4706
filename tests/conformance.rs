//! Every backend keeps every contract of `tests::conformance`.

use tests::conformance;
use tests::conformance::Subject;

conformance!(memory, Subject::in_memory());
conformance!(redis, Subject::redis());
conformance!(redis_with_one_manager, Subject::redis_with_one_manager());

/// A contract that the macro does not list would never run.
#[test]
fn every_contract_is_run() {
    let sources = [
        include_str!("src/conformance/holding.rs"),
        include_str!("src/conformance/load.rs"),
        include_str!("src/conformance/losing.rs"),
        include_str!("src/conformance/waiting.rs"),
    ];
    let mut written: Vec<_> = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next())
        .collect();
    let mut run = memory::CONTRACTS.to_vec();
    written.sort_unstable();
    run.sort_unstable();
    assert_eq!(written, run);
}
