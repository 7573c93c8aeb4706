//! The `#[distributed_lock]` attribute of `lock-core`, and the derive of declared locks. `lock-core` re-exports
//! both.
//!
//! The crate is a pipeline on tokens:
//!
//! 1. `parse` reads the options and the function.
//! 2. `check` checks them against each other.
//! 3. `expand` writes the function.
//!
//! The steps collect their errors in `errors`, so that one compilation reports all of them. After
//! an error, `expand` writes the function without a lock. `lock_name!` and `derive` take the same steps.

mod check;
mod crate_path;
mod derive;
mod errors;
mod expand;
mod nearest;
mod parse;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;

use crate::errors::Errors;
use crate::parse::args::Args;
use crate::parse::function::{FnItem, Function};

/// Runs an `async fn` under a distributed lock.
///
/// The call acquires the lock, runs the body, and releases the lock. It returns the result of the
/// body.
///
/// ```ignore
/// use lock_core::{LockError, distributed_lock};
///
/// #[distributed_lock(name = "order:{order_id}", ttl = "30s")]
/// async fn ship(order_id: u64) -> Result<String, LockError> {
///     Ok(format!("shipped {order_id}"))
/// }
/// ```
///
/// The guide `lock_core::guide::attribute` has an example for each option.
///
/// # Options
///
/// | Option | Value | Default |
/// |---|---|---|
/// | `name` | the lock's name: `"order:{order.id}"`, or an expression that is `Into<LockName>`; or a list of names | required |
/// | `lock` | a value of a type that derives `Lock`, in place of `name` | none |
/// | `ttl` | how long the lock outlives a crashed holder: `"30s"`, from 100 ms to 24 h, or `dynamic(expression)` | the manager's `default_ttl`, 30 s |
/// | `wait` | how long to wait while another holder has the lock: `"5s"`, or `dynamic(expression)`; `"0s"` tries once | the declared lock's `wait`; else the manager's `default_wait`, 5 s, or with `on_contended = skip` one attempt |
/// | `outage_wait` | how long to wait for a server that can't be reached, in addition to `wait`: `"10m"`, or `dynamic(expression)` | none: an outage is a part of `wait` |
/// | `renew` | `auto`, `never`, or the interval of renewal: `"10s"` | `auto`: a third of `ttl` |
/// | `max_hold` | the longest time for which the lock is held and renewed | the manager's `default_max_hold`; no limit unless that is set |
/// | `min_hold` | the shortest time for which the key stays locked, even when the body ends earlier | none |
/// | `once_per` | after a success, the name stays taken until this time since the start is over | none |
/// | `mode` | `read`, so that readers hold the lock together; `write` or `exclusive` | `exclusive` |
/// | `permits` | how many callers hold the lock together: 1 to 10,000 | none: one caller |
/// | `weight` | how many of the permits one call takes: 1 to 256 | 1 |
/// | `max_queue` | how many callers may wait already; a call that finds more is refused at once | no limit |
/// | `on_contended` | what to return when another holder has the lock, or has done its work: `error`, `skip`, or `\|e\| ..` | `error` |
/// | `on_error` | what to return for any other error: `\|e\| ..`, or an expression that gives such a closure | `From<LockError>` |
/// | `on_lost` | what happens to a running body when the lock is lost: `cancel` it at its next await, or `continue` it | `cancel` |
/// | `release` | `confirm` waits for the server's reply, `background` does not | `confirm` |
/// | `bind` | an identifier for the `&LockGuard` inside the body; with a list `&LockSet`, with `lock` `&Held<..>` | none |
/// | `manager` | the `LockManager`; parameters and `self` are in scope | the manager of the scope, the installed one, or `DISTRIBUTED_LOCK_URL` |
/// | `hash_tag` | a template for a hash tag before the name | none |
/// | `crate` | the absolute path of `lock_core` | `::lock_core` |
///
/// A duration is written as `"1h30m"`, `"90s"` or `"500ms"`, or is a constant expression of type
/// `Duration`. The compiler checks it. `dynamic(expression)` takes a `Duration` that is known at
/// run time; each call checks it.
///
/// # Guarantees
///
/// - The body runs only while the lock is held.
/// - The name and the manager are evaluated once, before the first await.
/// - The lock is released when the body ends: by its last expression, `?`, `return` or a panic.
///   A failed release is logged, and never replaces the result of the body.
/// - Inside the body, the same task cannot acquire the same lock again. It gets
///   `LockError::WouldDeadlock` at once.
///
/// # Errors
///
/// When the lock is not acquired, or is lost while the body runs, the function returns the
/// `LockError`. The return type of the function is `Result<_, E>` where `E: From<LockError>`. With
/// `on_error`, a closure makes the return value instead, and any return type is possible.
///
/// # Cancel safety
///
/// Dropping the future drops the body and releases the lock in the background. When the lock is
/// lost, the library drops the body at its next `.await`, unless `on_lost` is `continue`.
#[proc_macro_attribute]
pub fn distributed_lock(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    annotate(args.into(), item.into()).into()
}

/// Declares a lock: the type says its name, its kind and its times.
///
/// The fields are the parameters of the name. The table in the documentation of the trait lists the options. A field that
/// isn't in the name is a compile error, unless it is marked with `#[lock(not_in_name)]`.
#[proc_macro_derive(Lock, attributes(lock))]
pub fn derive_lock(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive::lock(input.into()).into()
}

/// Makes a lock name from a template and expressions. `lock_core::lock_name!` calls it with its
/// own path: `__lock_name!($crate, "order:{}", expression)`.
#[doc(hidden)]
#[proc_macro]
pub fn __lock_name(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand::lock_name(input.into()).into()
}

fn annotate(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let function = FnItem::parse(item.clone(), &mut errors)
        .filter(|function| check::function(function, &mut errors))
        .and_then(Function::new);
    let args = Args::parse(args, &mut errors);
    let Some(function) = function else {
        // The item stays as it is, so that the rest of the file keeps its types and its completion.
        let mut output = errors.to_tokens();
        output.extend(item);
        return output;
    };
    check::args(&args, &function.scope, &mut errors);
    if errors.is_empty() {
        return expand::function(&args, function);
    }
    let mut output = errors.to_tokens();
    output.extend(expand::without_lock(&args, &function));
    output
}
