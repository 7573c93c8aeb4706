//! The `#[distributed_lock]` attribute of `lock-core`, which re-exports it.
//!
//! The crate is a pipeline of functions on tokens: `args` reads the options (`duration`, `timing`,
//! `template`, `value`), `function` the function (`scope`, `output`), `expand` writes. Errors are
//! collected on the way (`errors`), so that one compile reports all of them. `manifest` looks into the
//! user's Cargo.toml for the name of `lock-core`. `lock_name` is the template for the builder.

mod args;
mod duration;
mod errors;
mod expand;
mod function;
#[cfg(test)]
mod fuzz;
mod lock_name;
mod manifest;
mod output;
mod scope;
#[cfg(test)]
mod snapshots;
mod template;
mod timing;
mod value;

use proc_macro2::{Span, TokenStream};

use crate::args::Args;
use crate::errors::Errors;
use crate::function::Function;

/// Runs an `async fn` under a distributed lock.
///
/// The body runs only while the lock is held; its result is returned as it is. The lock is
/// released when the body ends, also by `?`, `return` or a panic, or when the function's future
/// is dropped.
///
/// ```ignore
/// use lock_core::{LockError, distributed_lock};
///
/// #[distributed_lock(name = "order:{order_id}", ttl = "30s", wait = "5s")]
/// async fn ship(order_id: u64) -> Result<String, LockError> {
///     Ok(format!("shipped {order_id}"))
/// }
/// ```
///
/// The page `lock_core::attribute` has an example for each option and says which to choose.
///
/// | Option | Value | Without it |
/// |---|---|---|
/// | `name` | `"order:{order.id}"`, or an expression that is `Into<LockName>` | required |
/// | `ttl` | how long the lock outlives a crashed holder: `"30s"`, 100 ms to 24 h, or `dynamic(expression)` | the manager's |
/// | `wait` | how long to wait for another holder: `"5s"`, or `dynamic(expression)`; `"0s"` tries once | the manager's `default_wait`, 5 s; with `on_contended = skip` one attempt |
/// | `renew` | `auto`, `never`, or how often while the body runs: `"10s"` | `auto` |
/// | `max_hold` | the longest time the lock is held, however it is renewed | no limit |
/// | `min_hold` | the shortest time the key stays, also after the body | none |
/// | `on_contended` | when another holds the lock: `error`, `skip`, `\|e\| ..` | `error` |
/// | `on_error` | what to return when the body did not run to its end: `\|e\| ..`, or an expression that gives such a closure | `From<LockError>` |
/// | `on_lost` | `cancel` the body at its next await, or `continue` it | `cancel` |
/// | `release` | `confirm`: wait for the server's word, or `background` | `confirm` |
/// | `bind` | an identifier for the `&LockGuard` inside the body | none |
/// | `manager` | the `LockManager` to use; parameters and `self` are in scope | the scope's, the global, `LOCK_URL` |
/// | `hash_tag` | a template for a hash tag before the name | none |
/// | `crate` | the absolute path of `lock_core` | `::lock_core` |
///
/// A duration is written as `"1h30m"`, `"90s"` or `"500ms"`, or is a constant expression of type
/// `Duration`. It is checked when the code is compiled. `dynamic(expression)` is a `Duration` that is
/// known at run time, and is checked at the call.
///
/// # Errors
///
/// When the lock is not obtained, or is lost while the body runs, the function returns the
/// `LockError`: its return type is `Result<_, E>` where `E: From<LockError>`, or `on_error` says
/// what to return.
///
/// # Cancel safety
///
/// When the future is dropped the body is dropped and the lock is released in the background.
/// When the lock is lost the body is dropped at its next `.await`.
#[proc_macro_attribute]
pub fn distributed_lock(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    annotate(args.into(), item.into()).into()
}

/// A lock name from a template and expressions. Made for `lock_core::lock_name!`, which says
/// where `lock_core` is: `__lock_name!($crate, "order:{}", expression)`.
#[doc(hidden)]
#[proc_macro]
pub fn __lock_name(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    lock_name::expand(input.into()).into()
}

fn annotate(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let function = Function::new(item.clone(), &mut errors);
    let args = Args::new(args, &mut errors);
    let Some(function) = function else {
        // It is left as it was: the rest of the file keeps its types and its completion.
        let mut output = errors.to_tokens();
        output.extend(item);
        return output;
    };
    args.resolve(&function.scope, &mut errors);
    if args.krate.is_default()
        && let Some(error) = manifest::error()
    {
        errors.at(Span::call_site(), error);
    }
    if errors.is_empty() {
        return expand::expand(&args, function);
    }
    let mut output = errors.to_tokens();
    output.extend(expand::without_lock(&args, &function));
    output
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn a_sound_function_is_wrapped() {
        let output = annotate(
            quote!(name = "x"),
            quote!(
                async fn f() -> R {
                    g()
                }
            ),
        )
        .to_string();
        assert!(output.starts_with("async fn f () -> R {"), "{output}");
        assert!(
            output.contains("{ g () }") && output.contains("acquire"),
            "{output}"
        );
    }

    #[test]
    fn a_function_with_errors_is_left_as_it_was() {
        for item in [
            quote!(async fn f(a: u8) -> R { half typed . }),
            quote!(
                fn f() {}
            ),
            quote!(
                struct S {
                    a: u8,
                }
            ),
            quote!(async fn f(a) {}),
            quote!(
                async fn f();
            ),
        ] {
            let output = annotate(quote!(name = "{b}", ttl = 1), item.clone()).to_string();
            assert!(output.ends_with(&item.to_string()), "{output}");
            assert!(output.contains("compile_error"), "{output}");
        }
    }

    #[test]
    fn a_half_typed_body_keeps_its_function() {
        // What an editor sees while it is typed: the signature is there, and the body as it is.
        let head = quote!(pub(crate) async fn f<'a, T>(&'a self, a: T, (b, _): (u8, u8)) -> R<T> where T: Send);
        for body in [
            quote!(let x =),
            quote!(self.),
            quote!(match a { Some(x) => }),
            quote!(if let Some(x) = a. { x. }),
            quote!(format!("{}", ) ; ; +),
        ] {
            for args in [
                quote!(name = "x:{b}", ttl = "1s"),
                quote!(name = "x:{b"),
                quote!(na),
            ] {
                let output = annotate(args, quote!(#head { #body })).to_string();
                assert!(output.contains(&head.to_string()), "{output}");
                assert!(output.contains(&body.to_string()), "{output}");
                assert_eq!(output.matches(" fn f ").count(), 1, "{output}");
            }
        }
    }

    #[test]
    fn faults_of_function_and_options_come_together() {
        let output = annotate(
            quote!(ttl = 1, x = 2),
            quote!(
                fn f() {}
            ),
        )
        .to_string();
        assert_eq!(output.matches("compile_error").count(), 4, "{output}");
    }
}
