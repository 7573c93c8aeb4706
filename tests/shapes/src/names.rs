//! Constants, statics, unit structs and functions whose names a wrapper might use for its locals.
//! Where such a name is in scope, `let` does not bind it.
#![deny(warnings)]
#![allow(non_upper_case_globals, non_camel_case_types, dead_code)]

/// Passes the names to a macro.
macro_rules! each_name {
    ($item:ident) => {
        $item!(
            manager outcome guard failed lost name body value error context slot options witness
            e f w a b c x this inner output result future poll cx task pinned waker answer site
            state hold held_by lock locks key named request refused request_name part parts text
            release acquire skip edge manager_of func function args arg run_body done ready
            pending drop pin boxed returned ret res err ok some none val v r t k n g
        );
    };
}

macro_rules! constants {
    ($($name:ident)*) => { $(const $name: u8 = 1;)* };
}

macro_rules! statics {
    ($($name:ident)*) => { $(static $name: u8 = 1;)* };
}

macro_rules! unit_structs {
    ($($name:ident)*) => { $(struct $name;)* };
}

macro_rules! tuple_structs {
    ($($name:ident)*) => { $(struct $name(u8);)* };
}

macro_rules! functions {
    ($($name:ident)*) => { $(fn $name() {})* };
}

macro_rules! modules {
    ($($name:ident)*) => { $(mod $name {})* };
}

macro_rules! macros {
    ($($name:ident)*) => { $(
        #[allow(unused_macros)]
        macro_rules! $name { () => { compile_error!("the wrapper called a macro of the user") }; }
    )* };
}

/// The same functions in each module, among names of another kind.
// rustfmt moves these attributes to the right at each run.
#[rustfmt::skip]
macro_rules! shapes {
    ($plain:literal, $configured:literal, $skipped:literal $(,)?) => {
        use lock_core::LockError;

        use crate::support::Tracked;

        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $plain))]
        async fn plain(given: Tracked) -> Result<usize, LockError> {
            Ok(given.length())
        }

        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(
                name = $configured,
                hash_tag = "{id}",
                ttl = "10s",
                wait = "1s",
                renew = "1s",
                max_hold = "20s",
                min_hold = "1ms",
                on_contended = |_| Ok(0),
                on_error = |_| Ok(0),
                bind = held,
                on_lost = continue,
                release = background,
            )
        )]
        async fn configured(id: usize, given: Tracked) -> Result<usize, LockError> {
            #[cfg(feature = "attribute")]
            assert!(!held.is_lost());
            Ok(given.length() + id)
        }

        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(
                name = $skipped,
                on_contended = skip,
                on_error = |_| None,
            )
        )]
        async fn skipped((given, other): (Tracked, Tracked)) -> Option<usize> {
            Some(given.length() + other.length())
        }

        pub(super) async fn run() {
            show!(plain(Tracked("given")));
            show!(configured(1, Tracked("given")));
            show!(skipped((Tracked("given"), Tracked("other"))));
        }
    };
}

mod constants {
    each_name!(constants);
    shapes!(
        "names:plain:constants",
        "names:configured:constants:{id}",
        "names:skipped:constants",
    );
}

mod statics {
    each_name!(statics);
    shapes!(
        "names:plain:statics",
        "names:configured:statics:{id}",
        "names:skipped:statics",
    );
}

mod unit_structs {
    each_name!(unit_structs);
    shapes!(
        "names:plain:unit_structs",
        "names:configured:unit_structs:{id}",
        "names:skipped:unit_structs",
    );
}

mod tuple_structs {
    each_name!(tuple_structs);
    shapes!(
        "names:plain:tuple_structs",
        "names:configured:tuple_structs:{id}",
        "names:skipped:tuple_structs",
    );
}

mod functions {
    each_name!(functions);
    shapes!(
        "names:plain:functions",
        "names:configured:functions:{id}",
        "names:skipped:functions",
    );
}

mod modules {
    each_name!(modules);
    shapes!(
        "names:plain:modules",
        "names:configured:modules:{id}",
        "names:skipped:modules",
    );
}

mod macros {
    each_name!(macros);
    shapes!(
        "names:plain:macros",
        "names:configured:macros:{id}",
        "names:skipped:macros",
    );
}

/// The same names as arguments and as locals of the body.
mod arguments {
    use lock_core::LockError;

    use crate::support::Tracked;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "names:arguments:{name}:{error}")
    )]
    #[allow(clippy::too_many_arguments)]
    async fn arguments(
        manager: Tracked,
        outcome: Tracked,
        guard: u8,
        failed: u8,
        lost: u8,
        name: u8,
        body: u8,
        value: u8,
        error: u8,
        context: u8,
    ) -> Result<usize, LockError> {
        let slot = guard + failed + lost + name + body + value + error + context;
        Ok(usize::from(slot) + outcome.length() + manager.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "names:locals")
    )]
    async fn locals() -> Result<usize, LockError> {
        let manager = Tracked("manager");
        let guard = Tracked("guard");
        let (body, outcome) = (Tracked("body"), Tracked("outcome"));
        let name = |e: u8| usize::from(e);
        let error = manager.length() + guard.length() + body.length() + outcome.length();
        Ok(name(1) + error)
    }

    pub(super) async fn run() {
        show!(arguments(
            Tracked("manager"),
            Tracked("outcome"),
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8
        ));
        show!(locals());
    }
}

pub(crate) async fn run() {
    constants::run().await;
    statics::run().await;
    unit_structs::run().await;
    tuple_structs::run().await;
    functions::run().await;
    modules::run().await;
    macros::run().await;
    arguments::run().await;
}
