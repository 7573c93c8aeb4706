//! Checks whether the function can hold a lock.

use syn::Attribute;

use crate::errors::Errors;
use crate::parse::function::{FnItem, is_called};

/// Checks that the function is async and has a body. Returns whether it is.
pub(crate) fn function(item: &FnItem, errors: &mut Errors) -> bool {
    let valid = item.is_boxed() || can_await(item, errors);
    if item.body.is_none() {
        errors.at(
            item.signature.fn_token.span,
            "method has no body; annotate the implementation",
        );
    }
    valid && item.body.is_some()
}

fn can_await(item: &FnItem, errors: &mut Errors) -> bool {
    let signature = &item.signature;
    if let Some(constness) = &signature.constness {
        errors.on(constness, "`const fn` cannot hold a lock");
        return false;
    }
    if signature.asyncness.is_some() {
        return true;
    }
    let mut message = "`#[distributed_lock]` needs an `async fn`".to_owned();
    // An attribute for tests or `main` above this one has removed the `async`, and has left
    // another attribute. `#[test_case]` leaves one that is not expanded yet.
    if item.attributes.iter().any(is_test_of_a_framework) {
        message.push_str("; put it above `#[test_case]`");
    } else if item.has_attribute("test") {
        message.push_str("; put it above `#[tokio::test]`");
    } else if signature.ident == "main" {
        message.push_str("; put it above `#[tokio::main]`");
    } else if item.runs_a_future() {
        message.push_str(
            "; put it above the attribute that runs the function, such as `#[sqlx::test]` or \
             `#[actix_web::test]`",
        );
    }
    errors.on(signature.fn_token, message);
    false
}

/// Returns whether the attribute is `#[tokio::test]` or similar, but not
/// `#[::core::prelude::v1::test]`.
fn is_test_of_a_framework(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    let first = segments.first().map(|segment| segment.ident.to_string());
    is_called(attribute, "test")
        && segments.len() > 1
        && !matches!(first.as_deref(), Some("core" | "std"))
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::quote;

    use super::*;

    fn error(item: TokenStream) -> String {
        let mut errors = Errors::default();
        let item = FnItem::parse(item, &mut errors).expect("a function");
        assert!(!function(&item, &mut errors));
        errors.messages().join("\n")
    }

    #[test]
    fn only_an_async_function_can_hold_a_lock() {
        let plain = "`#[distributed_lock]` needs an `async fn`";
        assert_eq!(
            error(quote!(
                fn f() {}
            )),
            plain
        );
        assert_eq!(
            error(quote!(
                pub unsafe extern "C" fn f() {}
            )),
            plain
        );
        assert_eq!(
            error(quote!(
                fn f();
            )),
            format!(
                "{plain}\n{}",
                "method has no body; annotate the implementation"
            )
        );
        assert_eq!(
            error(quote!(
                #[test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            error(quote!(
                #[doc = "x"]
                #[::core::prelude::v1::test]
                fn f() {}
            )),
            format!("{plain}; put it above `#[tokio::test]`")
        );
        assert_eq!(
            error(quote!(
                #[tokio::test]
                fn case_1() {}
            )),
            format!("{plain}; put it above `#[test_case]`")
        );
        assert_eq!(
            error(quote!(
                fn main() {}
            )),
            format!("{plain}; put it above `#[tokio::main]`")
        );
        let above = format!(
            "{plain}; put it above the attribute that runs the function, such as `#[sqlx::test]` or \
             `#[actix_web::test]`"
        );
        for body in [
            quote!({ <::actix_web::rt::System>::new().block_on(async { 1 }) }),
            quote!({
                async fn f(pool: PgPool) {}
                ::sqlx::testing::TestFn::run_test(f)
            }),
        ] {
            assert_eq!(error(quote!(fn f() #body)), above);
        }
        assert_eq!(
            error(quote!(
                const fn f() {}
            )),
            "`const fn` cannot hold a lock"
        );
        assert_eq!(
            error(quote!(
                async fn f();
            )),
            "method has no body; annotate the implementation"
        );
    }

    #[test]
    fn other_boxed_futures_are_rejected() {
        for body in [
            quote!(Box::pin(async { 1 })),
            quote!(Box::pin(self.g())),
            quote!(let x = 1; Box::pin(async move { x })),
            quote!(Box::pin(async move { 1 }, 2)),
            quote!(Rc::pin(async move { 1 })),
            quote!(Box::new(async move { 1 })),
            quote!(Box::pin(async move { 1 });),
            quote!(),
        ] {
            assert_eq!(
                error(quote!(fn f() -> Pin<Box<dyn Future<Output = R>>> { #body })),
                "`#[distributed_lock]` needs an `async fn`",
                "{body}"
            );
        }
    }
}
