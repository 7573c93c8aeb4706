//! The return type.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Path, PathArguments, ReturnType, Signature, Type, TypeParamBound};

use crate::parse::tokens::peel_type;

/// The type that the function returns.
pub(crate) enum FnOutput {
    Never(Span),
    /// The type of the signature, as far as a body can write it.
    Declared(TokenStream),
    /// The output of the boxed future that a function without `async` returns.
    Boxed(TokenStream),
}

impl FnOutput {
    pub(crate) fn new(signature: &Signature) -> Self {
        match &signature.output {
            // Without a type, the caret is under the function's name.
            ReturnType::Default => {
                let span = signature.ident.span();
                Self::Declared(quote_spanned!(span=> ()))
            }
            ReturnType::Type(_, written) if is_never(written) => Self::Never(written.span()),
            ReturnType::Type(_, written) => Self::Declared(without_impl(written.to_token_stream())),
        }
    }

    /// Returns the output of the boxed future that a function without `async` returns.
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

    /// Returns the place of the type, where its errors belong.
    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(match self {
            Self::Never(span) => *span,
            Self::Declared(written) | Self::Boxed(written) => written.span(),
        })
    }

    /// Returns whether the type is `!`.
    pub(crate) fn is_never(&self) -> bool {
        matches!(self, Self::Never(_))
    }
}

fn is_never(written: &Type) -> bool {
    matches!(peel_type(written), Type::Never(_))
}

/// Replaces `impl Trait` by `_`, because a body cannot write it.
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

/// Returns `T` of `wrapper<T>`.
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
    use quote::quote;

    use super::*;

    fn output(written: &TokenStream) -> FnOutput {
        let function = quote!(async fn f() -> #written {});
        let function: syn::ItemFn = syn::parse2(function).expect("a function");
        FnOutput::new(&function.sig)
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
            let FnOutput::Declared(found) = output(&written) else {
                unreachable!("it is not `!`");
            };
            let close = |tokens: TokenStream| tokens.to_string().replace(' ', "");
            assert_eq!(close(found), close(expected));
        }
    }

    #[test]
    fn never_is_found_inside_groups() {
        let hidden = Group::new(proc_macro2::Delimiter::None, quote!(!));
        for written in [quote!(!), quote!(#hidden), quote!((!))] {
            assert!(output(&written).is_never());
        }
        assert!(!output(&quote!(Result<T, E>)).is_never());
    }

    #[test]
    fn output_of_a_boxed_future_is_found() {
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
            (quote!(Pin<Box<dyn Future<Output = !>>>), Some("!")),
            (quote!(Pin<Box<R>>), None),
            (quote!(Pin<&mut dyn Future<Output = R>>), None),
            (quote!(Box<dyn Future<Output = R>>), None),
            (quote!(Pin<Box<dyn Stream<Item = R>>>), None),
            (quote!(R), None),
        ] {
            let function: syn::ItemFn =
                syn::parse2(quote!(fn f() -> #written {})).expect("a function");
            let output = FnOutput::of_boxed(&function.sig).map(|output| match output {
                FnOutput::Never(_) => "!".to_owned(),
                FnOutput::Declared(it) | FnOutput::Boxed(it) => it.to_string().replace(' ', ""),
            });
            assert_eq!(output.as_deref(), expected, "{written}");
        }
    }
}
