//! Every backend keeps every contract of `tests::conformance`.

use lock_core::{Dialect, ReleaseBy};
use tests::conformance;
use tests::conformance::Subject;

conformance!(memory, Subject::in_memory());
conformance!(redis, Subject::redis());
conformance!(redis_with_one_manager, Subject::redis_with_one_manager());
conformance!(setnx_expire, Subject::redis_in(Dialect::SetnxExpire));
conformance!(deadline_getset, Subject::redis_in(Dialect::DeadlineGetset));
conformance!(lua_setnx_expire, Subject::redis_in(Dialect::LuaSetnxExpire));
conformance!(set_nx_px, Subject::redis_in(SET_NX_PX));
conformance!(watch_multi, Subject::redis_in(WATCH_MULTI));

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseBy::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseBy::WatchMulti,
};

/// A dialect without a line above would keep nothing.
#[test]
fn every_dialect_is_run() {
    let run = [
        Dialect::Native,
        Dialect::SetnxExpire,
        Dialect::DeadlineGetset,
        Dialect::LuaSetnxExpire,
        SET_NX_PX,
        WATCH_MULTI,
    ];
    assert_eq!(run, Dialect::ALL);
}

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
