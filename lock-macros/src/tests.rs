//! The whole pipeline.

mod fuzz;
mod snapshots;

use quote::quote;

use super::*;

#[test]
fn valid_function_is_wrapped() {
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
fn invalid_function_is_not_changed() {
    for item in [
        quote!(async fn f() -> R { half typed . }),
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
fn half_typed_body_is_kept() {
    // An editor expands the attribute while the user types.
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
fn errors_of_function_and_options_are_reported_together() {
    let output = annotate(
        quote!(ttl = 1, x = 2),
        quote!(
            fn f() {}
        ),
    )
    .to_string();
    assert_eq!(output.matches("compile_error").count(), 4, "{output}");
}
