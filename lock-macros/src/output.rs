//! The return type.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Path, PathArguments, ReturnType, Signature, Type, TypeParamBound};

use crate::value::CratePath;

/// What the function returns.
pub(crate) enum FnOutput {
    Never(Span),
    /// As the signature says. The tokens are those of the type, as far as it can be written in a
    /// body.
    Declared(TokenStream),
    /// What the boxed future gives that a function without `async` returns.
    Boxed(TokenStream),
}

impl FnOutput {
    pub(crate) fn new(signature: &Signature) -> Self {
        match &signature.output {
            // The name is all there is to put a caret under.
            ReturnType::Default => {
                let span = signature.ident.span();
                Self::Declared(quote_spanned!(span=> ()))
            }
            ReturnType::Type(_, written) if is_never(written) => Self::Never(written.span()),
            ReturnType::Type(_, written) => Self::Declared(without_impl(written.to_token_stream())),
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
                GenericArgument::AssocType(output) if is_never(&output.ty) => {
                    Some(Self::Never(output.ty.span()))
                }
                GenericArgument::AssocType(output) => {
                    Some(Self::Boxed(output.ty.to_token_stream()))
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// An expression of the type `macro_support::ReturnType`.
    pub(crate) fn expand(&self, krate: &CratePath) -> TokenStream {
        let site = self.site();
        let support = krate.at(site);
        let written = match self {
            // The compiler finds it, also where it cannot be written.
            Self::Declared(_) => quote_spanned!(site=> _),
            Self::Never(_) | Self::Boxed(_) => self.written(krate),
        };
        quote_spanned!(site=> #support::macro_support::ReturnType::<#written>::new())
    }

    /// The type in the author's own tokens, for questions that may have an error as the answer:
    /// the compiler points at them.
    pub(crate) fn written(&self, krate: &CratePath) -> TokenStream {
        match self {
            Self::Never(_) => {
                let site = self.site();
                let krate = krate.at(site);
                quote_spanned!(site=> #krate::macro_support::Never)
            }
            Self::Declared(written) | Self::Boxed(written) => written.clone(),
        }
    }

    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Never(span) => *span,
            Self::Declared(written) | Self::Boxed(written) => written.span(),
        })
    }

    /// Whether the function returns at all.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self, Self::Never(_))
    }
}

fn is_never(written: &Type) -> bool {
    match written {
        Type::Never(_) => true,
        // `$t:ty` of a `macro_rules!` macro arrives inside an invisible group.
        Type::Group(group) => is_never(&group.elem),
        Type::Paren(inner) => is_never(&inner.elem),
        _ => false,
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
    use proc_macro2::Delimiter;
    use quote::quote;

    fn expanded(output: &FnOutput) -> String {
        output
            .expand(&CratePath::default())
            .to_string()
            .replace(' ', "")
    }

    #[test]
    fn the_compiler_knows_a_declared_type() {
        for item in [
            quote!(
                async fn f() {}
            ),
            quote!(
                async fn f() -> Result<T, E> {}
            ),
            quote!(
                async fn f() -> impl Fn(u8) -> u8 {}
            ),
        ] {
            let function: syn::ItemFn = syn::parse2(item).expect("a function");
            let output = FnOutput::new(&function.sig);
            assert!(!output.is_never());
            assert_eq!(
                expanded(&output),
                "::lock_core::macro_support::ReturnType::<_>::new()"
            );
        }
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
            let item = quote!(async fn f() -> #written {});
            let function: syn::ItemFn = syn::parse2(item).expect("a function");
            let found = FnOutput::new(&function.sig).written(&CratePath::default());
            let found = found.to_string();
            let close = |text: &str| text.replace(' ', "");
            assert_eq!(close(&found), close(&expected.to_string()), "{written}");
        }
    }

    #[test]
    fn a_function_that_never_returns_is_known_as_such() {
        let hidden = Group::new(Delimiter::None, quote!(!));
        for written in [quote!(!), quote!(#hidden), quote!((!))] {
            let item = quote!(async fn f() -> #written {});
            let function: syn::ItemFn = syn::parse2(item).expect("a function");
            let output = FnOutput::new(&function.sig);
            assert!(output.is_never());
            assert!(expanded(&output).contains("::Never>"), "{written}");
        }
    }

    #[test]
    fn a_boxed_future_has_an_output() {
        for (written, expected) in [
            (quote!(Pin<Box<dyn Future<Output = R> + Send>>), Some("R")),
            (
                quote!(::core::pin::Pin<Box<dyn ::core::future::Future<Output = Vec<u8>> + 'a>>),
                Some("Vec<u8>"),
            ),
            (
                quote!(Pin<Box<dyn 'a + Send + Future<Output = ()>>>),
                Some("()"),
            ),
            (
                quote!(Pin<Box<dyn Future<Output = !>>>),
                Some("::lock_core::macro_support::Never"),
            ),
            (quote!(Pin<Box<R>>), None),
            (quote!(Pin<&mut dyn Future<Output = R>>), None),
            (quote!(Box<dyn Future<Output = R>>), None),
            (quote!(Pin<Box<dyn Stream<Item = R>>>), None),
            (quote!(R), None),
        ] {
            let function: syn::ItemFn =
                syn::parse2(quote!(fn f() -> #written {})).expect("a function");
            let output = FnOutput::of_boxed(&function.sig).as_ref().map(expanded);
            let expected = expected
                .map(|inner| format!("::lock_core::macro_support::ReturnType::<{inner}>::new()"));
            assert_eq!(output, expected, "{written}");
        }
    }
}
