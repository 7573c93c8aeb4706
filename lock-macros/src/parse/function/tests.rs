use proc_macro2::{Delimiter, Group};
use quote::quote;

use super::*;

fn parse(item: TokenStream) -> (Option<Function>, Vec<String>) {
    let mut errors = Errors::default();
    let function = FnItem::parse(item, &mut errors).and_then(Function::new);
    (function, errors.messages())
}

fn valid(item: TokenStream) -> Function {
    let (function, errors) = parse(item);
    assert_eq!(errors, <[&str; 0]>::default());
    function.expect("no error")
}

fn error(item: TokenStream) -> String {
    let (function, errors) = parse(item);
    assert!(function.is_none());
    errors.join("\n")
}

fn hidden(inner: TokenStream) -> Group {
    Group::new(Delimiter::None, inner)
}

#[test]
fn head_and_body_keep_their_tokens() {
    let head = quote! {
        /// Documented.
        #[inline]
        pub(crate) async unsafe fn f<'a, T: Copy>(&'a self, mut a: T) -> R<T> where T: Send
    };
    let body = quote!(let x = half typed ; x .);
    let function = valid(quote!(#head { #body }));
    assert_eq!(function.head.to_string(), head.to_string());
    assert_eq!(function.body.statements.to_string(), body.to_string());
    assert!(function.body.inner_attributes.is_empty());
    assert_eq!(
        block(function.body.statements.clone(), function.body.span).to_string(),
        quote!({ #body }).to_string()
    );
}

#[test]
fn inner_attributes_are_separated_from_statements() {
    let function = valid(quote! {
        async fn f() { #![allow(a)] #![warn(b)] #[c] let d = !e; }
    });
    assert_eq!(
        function.body.inner_attributes.to_string(),
        quote!(#![allow(a)] #![warn(b)]).to_string()
    );
    assert_eq!(
        function.body.statements.to_string(),
        quote!(#[c] let d = !e;).to_string()
    );
}

#[test]
fn invisible_groups_are_removed() {
    let body = hidden(quote!({ 1 }));
    let visibility = hidden(quote!(pub));
    let ty = hidden(quote!(u8));
    let pattern = hidden(quote!((a, b)));
    let function = hidden(quote!(#visibility async fn f(#pattern: (#ty, #ty)) -> #ty #body));
    let function = valid(quote!(#function));
    assert!(function.scope.find("b").is_some());
    assert_eq!(function.body.statements.to_string(), "1");
}

#[test]
fn other_items_are_rejected() {
    for item in [
        quote!(
            struct S;
        ),
        quote!(
            pub struct S {
                a: u8,
            }
        ),
        quote!(
            pub(crate) enum E {}
        ),
        quote!(impl S { async fn f() {} }),
        quote!(
            unsafe impl Send for S {}
        ),
        quote!(
            trait T {
                async fn f();
            }
        ),
        quote!(
            #[cfg(a)]
            mod m {
                fn f() {}
            }
        ),
        quote!(
            const C: u8 = 1;
        ),
        quote!(
            static S: u8 = 1;
        ),
        quote!(
            use a::b;
        ),
        quote!(
            type T = fn();
        ),
        quote!(
            extern crate a;
        ),
        quote!(
            macro_rules! m {
                () => {};
            }
        ),
    ] {
        assert_eq!(
            error(item.clone()),
            "`#[distributed_lock]` belongs on a function; annotate each method",
            "{item}"
        );
    }
}

#[test]
fn invalid_signature_is_an_error() {
    assert_ne!(error(quote!(async fn f(a) {})), "");
    assert_ne!(error(quote!(async fn {})), "");
    assert_ne!(error(quote!()), "");
}

#[test]
fn function_of_async_trait_is_unboxed() {
    let function = valid(quote! {
        fn f<'life0, 'async_trait>(&'life0 self, id: u8)
            -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
        {
            ::std::boxed::Box::pin(async move { let id = id; g(id) })
        }
    });
    assert!(matches!(function.kind, FnKind::BoxPin(_)));
    assert_eq!(
        function.body.statements.to_string(),
        quote!(let id = id; g(id)).to_string()
    );
    assert!(matches!(function.output, FnOutput::Boxed(_)));
}
