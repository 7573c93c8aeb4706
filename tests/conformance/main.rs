//! The contract of every store, written once and run against each store.
//!
//! A contract is a function of a [`Subject`]: two managers on the same locks, made by the store
//! under test. `conformance!` runs all contracts. A new store is one more line below. If a
//! dialect lacks a capability, the contract checks that [`Capabilities`](lock_core::dialect::Capabilities)
//! says so, and tests the rest.

use lock_core::dialect::{Dialect, RedissonLock, ReleaseMethod};

mod profiles;
mod suite;

use suite::conformance;
use suite::subject::Subject;

conformance!(memory, Subject::in_memory());
conformance!(redis, Subject::redis());
conformance!(redis_with_one_manager, Subject::redis_with_one_manager());
conformance!(setnx_expire, Subject::redis_in(Dialect::SetnxExpire));
conformance!(deadline_getset, Subject::redis_in(Dialect::DeadlineGetset));
conformance!(lua_setnx_expire, Subject::redis_in(Dialect::LuaSetnxExpire));
conformance!(set_nx_px, Subject::redis_in(SET_NX_PX));
conformance!(watch_multi, Subject::redis_in(WATCH_MULTI));
conformance!(set_nx_px_auto, Subject::redis_in(SET_NX_PX_AUTO));
conformance!(redisson, Subject::redis_in(REDISSON));
conformance!(redisson_fenced, Subject::redis_in(REDISSON_FENCED));

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};

const SET_NX_PX_AUTO: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Auto,
};
/// Not all servers support it. Where they do, `Auto` runs the same commands.
const SET_NX_PX_CONDITIONAL: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Conditional,
};

const REDISSON: Dialect = Dialect::Redisson {
    lock: RedissonLock::Plain,
};
const REDISSON_FENCED: Dialect = Dialect::Redisson {
    lock: RedissonLock::Fenced,
};

/// A dialect without a line above would not be tested.
#[test]
fn conformance_runs_every_dialect() {
    let run = [
        Dialect::Native,
        Dialect::SetnxExpire,
        Dialect::DeadlineGetset,
        Dialect::LuaSetnxExpire,
        SET_NX_PX,
        WATCH_MULTI,
        SET_NX_PX_CONDITIONAL,
        SET_NX_PX_AUTO,
        REDISSON,
        REDISSON_FENCED,
    ];
    assert_eq!(run, Dialect::all());
}

/// A contract that the macro does not list would never run.
#[test]
fn conformance_runs_every_contract() {
    let sources = [
        include_str!("suite/electing.rs"),
        include_str!("suite/holding.rs"),
        include_str!("suite/kinds.rs"),
        include_str!("suite/load.rs"),
        include_str!("suite/losing.rs"),
        include_str!("suite/once_per.rs"),
        include_str!("suite/operating.rs"),
        include_str!("suite/sets.rs"),
        include_str!("suite/tickets.rs"),
        include_str!("suite/waiting.rs"),
    ];
    let mut written: Vec<_> = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub(crate) async fn ")?.split('(').next())
        .collect();
    let mut run = memory::CONTRACTS.to_vec();
    written.sort_unstable();
    run.sort_unstable();
    assert_eq!(written, run);
}
