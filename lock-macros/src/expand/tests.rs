use proc_macro2::TokenStream;
use quote::quote;

use super::*;
use crate::check;
use crate::errors::Errors;
use crate::parse::function::FnItem;

fn expanded(args: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let item = FnItem::parse(item, &mut errors).expect("a function");
    let parsed = Function::new(item).expect("a body");
    let args = Args::parse(args, &mut errors);
    check::args(&args, &parsed.scope, &mut errors);
    assert_eq!(errors.messages(), <[&str; 0]>::default());
    function(&args, parsed)
}

pub(super) fn text(args: TokenStream, item: TokenStream) -> String {
    expanded(args, item).to_string()
}

/// Counts the occurrences of `part`, whatever the spaces are.
pub(super) fn count(text: &str, part: &TokenStream) -> usize {
    let close = |text: &str| text.replace(' ', "");
    close(text).matches(&close(&part.to_string())).count()
}

/// Asserts that `text` contains all `parts` in this order.
pub(super) fn assert_in_order(text: &str, parts: &[&str]) {
    let places: Vec<_> = parts.iter().map(|part| text.find(part)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?}"
    );
}

#[test]
fn attribute_writes_one_function() {
    let tokens = expanded(
        quote!(
            name = "x:{a}",
            ttl = TTL,
            wait = T::WAIT,
            bind = g,
            manager = self.m
        ),
        quote! {
            /// Documented.
            #[inline]
            pub async fn f<T: W>(&self, a: u8) -> Result<impl Copy, E> where T: Copy {
                Ok(a)
            }
        },
    );
    let file: syn::File = syn::parse2(tokens).expect("valid");
    assert_eq!(file.items.len(), 1);
    let Some(syn::Item::Fn(function)) = file.items.first() else {
        unreachable!("an attribute on a function gives a function");
    };
    assert_eq!(function.attrs.len(), 2);
    assert_eq!(function.sig.generics.params.len(), 1);
    assert!(function.sig.generics.where_clause.is_some());
    assert_eq!(function.sig.inputs.len(), 2);
}

#[test]
fn return_type_is_checked_in_one_place() {
    let text = text(
        quote!(name = "x"),
        quote!(
            async fn f() -> Result<T, E> {}
        ),
    );
    assert_eq!(count(&text, &quote!(return_error::<Result<T, E>>)), 1);
}

#[test]
fn on_error_replaces_the_default_handler() {
    let text = text(
        quote!(name = "x", on_error = |e| e.code()),
        quote!(
            async fn f() -> u8 {
                1
            }
        ),
    );
    let call = quote!(call_handler(
        __distributed_lock_output,
        |e: ::lock_core::LockError| e.code(),
        __distributed_lock_error
    ));
    assert_eq!(count(&text, &call), 1);
    assert_eq!(count(&text, &quote!(return_error)), 0);
}

#[test]
fn on_error_expression_is_evaluated_first() {
    let text = text(
        quote!(name = "x", on_error = handler(app)),
        quote!(
            async fn f(app: App) -> u8 {
                1
            }
        ),
    );
    assert_in_order(&text, &["handler (app)", "async move", "call_handler"]);
}

#[test]
fn on_contended_runs_before_the_body_exists() {
    let text = text(
        quote!(name = "x", on_contended = |e| busy(app, e)),
        quote!(
            async fn f(app: App) -> u8 {
                app.run()
            }
        ),
    );
    let places: Vec<_> = ["acquire_or_contended (", "async move", "busy (app"]
        .iter()
        .map(|part| text.find(part))
        .collect();
    assert!(places.iter().all(Option::is_some), "{places:?}");
    assert_eq!(
        count(
            &text,
            &quote!(acquire_or_contended(__distributed_lock_acquire).await)
        ),
        1
    );
}

#[test]
fn never_type_has_no_typed_return() {
    let text = text(
        quote!(name = "x", on_error = |e| panic!()),
        quote!(
            async fn f() -> ! {
                loop {}
            }
        ),
    );
    assert_eq!(count(&text, &quote!(typed_return)), 0);
}

#[test]
fn every_local_has_the_prefix() {
    let tokens = expanded(
        quote!(
            name = n(a),
            ttl = TTL,
            manager = m,
            bind = held,
            on_contended = |e| e,
            on_error = { |e| e }
        ),
        quote!(
            async fn f(a: A) -> R {
                a
            }
        ),
    );
    let text = tokens.to_string();
    for (at, _) in text.match_indices("let ") {
        let rest = &text[at + 4..];
        assert!(
            ["__distributed_lock_", "__guard_ends_", "_ = & a", "held :"]
                .iter()
                .any(|start| rest.starts_with(start)),
            "{rest}"
        );
    }
    for variant in ["Ok (", "Err ("] {
        for (at, _) in text.match_indices(variant) {
            let rest = &text[at + variant.len()..];
            assert!(rest.starts_with("__distributed_lock_"), "{rest}");
        }
    }
}

#[test]
fn function_with_errors_has_no_warnings() {
    let mut errors = Errors::default();
    let item = quote!(
        pub async fn f(#[cfg(y)] id: u8, (mut a, ref mut b): (A, B)) -> R {
            #![allow(x)]
            held.key()
        }
    );
    let item = FnItem::parse(item, &mut errors).expect("a function");
    let function = Function::new(item).expect("a body");
    let args = Args::parse(quote!(name = "{ide}", bind = held), &mut errors);
    let text = without_lock(&args, &function).to_string();
    let used = quote!(#![allow(x)] if false {
        #[cfg(y)]
        {
            let _ = &id;
        }
        {
            let _ = &mut a;
        }
        {
            let _ = &b;
        }
    });
    let bound = quote!(let held: &::lock_core::LockGuard =);
    assert!(text.starts_with("pub async fn f"), "{text}");
    assert!(text.contains(&format!("-> R {{ {used} {bound}")), "{text}");
    assert!(text.ends_with("; held . key () }"), "{text}");
}

#[test]
fn manager_is_evaluated_before_the_name_and_the_name_before_the_acquire() {
    let text = text(
        quote!(name = make(id), manager = find(id)),
        quote!(
            async fn f(id: u8) -> R {}
        ),
    );
    assert_in_order(
        &text,
        &[
            "macro_support :: acquire (",
            "find (id)",
            "make (id)",
            "async move",
        ],
    );
}

#[test]
fn every_path_begins_with_the_crate_option() {
    let text = text(
        quote!(name = "{a}", ttl = C, bind = g, manager = m, crate = ::x::y),
        quote!(
            async fn f(a: u8) -> ! {}
        ),
    );
    let import = quote!(
        use ::x::y::macro_support::lock_core as __distributed_lock_crate;
    );
    assert_eq!(count(&text, &import), 1);
    assert_eq!(count(&text, &quote!(lock_core)), 1);
    assert!(count(&text, &quote!(__distributed_lock_crate::macro_support)) >= 8);
    let bound = quote!(let g: &__distributed_lock_crate::LockGuard =);
    assert_eq!(count(&text, &bound), 1);
}

#[test]
fn every_path_begins_at_a_crate() {
    // So a path never names an `Option` or `Ok` of the user.
    let text = text(
        quote!(name = "x", ttl = "1s"),
        quote!(
            async fn f() -> R {}
        ),
    );
    let paths = ["Result ::", "Option ::", "Duration ::", "pin !"];
    for path in paths {
        for (at, _) in text.match_indices(path) {
            assert!(text[..at].ends_with(":: "), "{path} in {text}");
        }
    }
}

#[test]
fn boxed_body_stays_in_its_box() {
    let text = text(
        quote!(name = "{id}"),
        quote! {
            fn f(&self, id: u8) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> {
                Box::pin(async move { Ok(id) })
            }
        },
    );
    assert_eq!(count(&text, &quote!(Box::pin)), 1);
    assert_eq!(count(&text, &quote!(ReturnType::<Result<T, E>>::new())), 1);
    assert_eq!(count(&text, &quote!({ Ok(id) })), 1);
}

#[test]
fn inner_attributes_stay_first() {
    let item = quote!(
        async fn f() -> R {
            #![allow(a)]
            b
        }
    );
    let text = text(quote!(name = "x"), item);
    let start = quote!(#![allow(a)] let __distributed_lock_output).to_string();
    assert!(text.contains(&format!("-> R {{ {start}")), "{text}");
}

/// An `allow` inside would collide with a `forbid` of the user.
#[test]
fn expansion_allows_no_lints_of_the_compiler() {
    for (args, item) in [
        (
            quote!(name = "x:{a}", on_error = |e| e.code()),
            quote!(
                async fn f(mut a: A) -> u8 {
                    a.x = 1;
                    1
                }
            ),
        ),
        (
            quote!(name = "x:{self.a}", on_contended = |e| busy(e)),
            quote!(
                async fn f(self, mut a: A) -> u8 {
                    a.x = self.a;
                    1
                }
            ),
        ),
        (
            quote!(
                lock = L { a },
                on_contended = |e| busy(e),
                on_error = |e| e.code()
            ),
            quote!(
                async fn f(a: A, b: B) -> u8 {
                    b.run(a)
                }
            ),
        ),
    ] {
        let text = text(args, item);
        let of_clippy = quote!(#[cfg_attr(clippy, allow(clippy::shadow_same))]).to_string();
        assert!(!text.replace(&of_clippy, "").contains("allow"), "{text}");
    }
}

/// With a search through all names for each name, this took minutes.
#[test]
fn expansion_of_a_long_body_takes_seconds() {
    let names = (0..200_000).map(|number| quote::format_ident!("name_{number}"));
    let begun = std::time::Instant::now();
    let expanded = expanded(
        quote!(name = "x"),
        quote!(async fn f(a: A) -> R { #(#names;)* a }),
    );
    assert!(!expanded.is_empty());
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}
