//! The return type.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Path, PathArguments, ReturnType, Signature, Type, TypeParamBound};

use crate::value::Krate;

/// What the function returns, as a type that can be written inside its body.
pub(crate) enum Output {
    Never(Span),
    Type(TokenStream),
}

impl Output {
    pub(crate) fn new(signature: &Signature) -> Self {
        match &signature.output {
            // The name is all there is to put a caret under.
            ReturnType::Default => {
                let span = signature.ident.span();
                Self::Type(quote_spanned!(span=> ()))
            }
            ReturnType::Type(_, written) => Self::of(written),
        }
    }

    /// What the future gives that a function without `async` returns boxed.
    pub(crate) fn of_boxed(signature: &Signature) -> Option<Self> {
        let ReturnType::Type(_, written) = &signature.output else {
            return None;
        };
        let Type::TraitObject(object) = argument(argument(written, "Pin")?, "Box")? else {
            return None;
        };
        object.bounds.iter().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => match arguments(&bound.path, "Future")? {
                GenericArgument::AssocType(output) => Some(Self::of(&output.ty)),
                _ => None,
            },
            _ => None,
        })
    }

    fn of(written: &Type) -> Self {
        match written {
            Type::Never(_) => Self::Never(written.span()),
            _ => Self::Type(without_impl(written.to_token_stream())),
        }
    }

    /// The type, as it can be written inside the function.
    pub(crate) fn written(&self, krate: &Krate) -> TokenStream {
        match self {
            Self::Never(_) => {
                let site = self.site();
                let krate = krate.at(site);
                quote_spanned!(site=> #krate::macro_support::Never)
            }
            Self::Type(written) => written.clone(),
        }
    }

    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Never(span) => *span,
            Self::Type(written) => written.span(),
        })
    }

    /// Whether the type says anything about the value that the body must have.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Self::Never(_) => false,
            Self::Type(written) => written.to_string() != "_",
        }
    }
}

/// `impl Trait` cannot be written inside a body, so it becomes `_`.
fn without_impl(written: TokenStream) -> TokenStream {
    let mut output = TokenStream::new();
    let mut tokens = written.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(keyword) if keyword == "impl" => {
                let mut depth = 0_usize;
                let mut arrow = false;
                while let Some(next) = tokens.peek() {
                    let sign = match next {
                        TokenTree::Punct(punct) => punct.as_char(),
                        _ => ' ',
                    };
                    match sign {
                        '<' => depth += 1,
                        '>' if arrow => {}
                        ',' | '>' | ';' if depth == 0 => break,
                        '>' => depth -= 1,
                        _ => {}
                    }
                    arrow = sign == '-';
                    tokens.next();
                }
                let span = keyword.span();
                output.append_all(quote_spanned!(span=> _));
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_impl(group.stream()));
                inner.set_span(group.span());
                output.append(inner);
            }
            other => output.append(other),
        }
    }
    output
}

/// `T` of `wrapper<T>`.
fn argument<'a>(written: &'a Type, wrapper: &str) -> Option<&'a Type> {
    match written {
        Type::Path(written) => match arguments(&written.path, wrapper)? {
            GenericArgument::Type(inner) => Some(inner),
            _ => None,
        },
        Type::Group(written) => argument(&written.elem, wrapper),
        _ => None,
    }
}

fn arguments<'a>(path: &'a Path, wrapper: &str) -> Option<&'a GenericArgument> {
    let last = path.segments.last().filter(|last| last.ident == wrapper)?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.first(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn read(item: TokenStream) -> Output {
        let function: syn::ItemFn = syn::parse2(item).expect("a function");
        Output::new(&function.sig)
    }

    fn output(item: TokenStream) -> String {
        read(item).written(&Krate::default()).to_string()
    }

    #[test]
    fn return_types_can_be_written_in_the_body() {
        assert_eq!(
            output(quote!(
                async fn f() {}
            )),
            "()"
        );
        assert_eq!(
            output(quote!(
                async fn f() -> Result<T, E> {}
            )),
            "Result < T , E >"
        );
        assert_eq!(
            output(quote!(
                async fn f() -> ! {}
            )),
            ":: lock_core :: macro_support :: Never"
        );
    }

    #[test]
    fn impl_trait_becomes_an_underscore() {
        for (written, expected) in [
            (quote!(impl Copy), quote!(_)),
            (quote!(impl Fn(u8) -> Vec<u8> + Send + 'a), quote!(_)),
            (quote!(Result<impl Copy, E>), quote!(Result<_, E>)),
            (
                quote!(Result<impl Iterator<Item = Vec<u8>> + use<'a, T>, E>),
                quote!(Result<_, E>),
            ),
            (quote!(Result<impl Fn() -> u8, E>), quote!(Result<_, E>)),
            (quote!(R<Vec<impl Fn() -> Vec<u8>>>), quote!(R<Vec<_>>)),
            (quote!((impl A, Box<impl B<C>>)), quote!((_, Box<_>))),
            (quote!([impl A; 3]), quote!([_; 3])),
            (quote!(&'a impl A), quote!(&'a _)),
            (quote!(&'a (impl A + 'a)), quote!(&'a (_))),
            (quote!(Box<dyn Fn(u8) -> u8>), quote!(Box<dyn Fn(u8) -> u8>)),
        ] {
            let found = output(quote!(async fn f() -> #written {}));
            let close = |text: &str| text.replace(' ', "");
            assert_eq!(close(&found), close(&expected.to_string()), "{written}");
        }
    }

    #[test]
    fn an_output_that_says_nothing_is_known_as_such() {
        let known = |item| read(item).is_known();
        assert!(known(quote!(
            async fn f() {}
        )));
        assert!(known(quote!(
            async fn f() -> Result<impl A, E> {}
        )));
        assert!(!known(quote!(
            async fn f() -> impl A {}
        )));
        assert!(!known(quote!(
            async fn f() -> ! {}
        )));
    }

    #[test]
    fn a_boxed_future_has_an_output() {
        for (written, expected) in [
            (quote!(Pin<Box<dyn Future<Output = R> + Send>>), Some("R")),
            (
                quote!(::core::pin::Pin<Box<dyn ::core::future::Future<Output = Vec<u8>> + 'a>>),
                Some("Vec < u8 >"),
            ),
            (
                quote!(Pin<Box<dyn 'a + Send + Future<Output = ()>>>),
                Some("()"),
            ),
            (quote!(Pin<Box<R>>), None),
            (quote!(Pin<&mut dyn Future<Output = R>>), None),
            (quote!(Box<dyn Future<Output = R>>), None),
            (quote!(Pin<Box<dyn Stream<Item = R>>>), None),
            (quote!(R), None),
        ] {
            let function: syn::ItemFn =
                syn::parse2(quote!(fn f() -> #written {})).expect("a function");
            let output = Output::of_boxed(&function.sig);
            let output = output.map(|output| output.written(&Krate::default()).to_string());
            assert_eq!(output.as_deref(), expected, "{written}");
        }
    }
}
