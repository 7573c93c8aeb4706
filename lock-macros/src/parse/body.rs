//! The body of the function. It is never parsed, so that a half-typed body still expands.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote;

use crate::parse::tokens;

/// The statements between the braces of a function.
pub(crate) struct FnBody {
    /// The `#![..]` at its beginning. They are only allowed at the beginning of a function's body.
    pub(crate) inner_attributes: TokenStream,
    pub(crate) statements: TokenStream,
    /// The braces.
    pub(crate) span: Span,
}

/// The call `Box::pin(async move { .. })` without the block.
pub(crate) struct BoxPin {
    /// The tokens before the parenthesis.
    path: TokenStream,
    parentheses: Span,
    keywords: [TokenTree; 2],
    /// The braces of the function.
    pub(crate) braces: Span,
}

/// Makes a block with braces of the user's span. The braces decide the edition of the block, and
/// with it the order in which the body drops its values. Other attributes reuse them.
pub(crate) fn block(tokens: TokenStream, span: Span) -> Group {
    tokens::group(Delimiter::Brace, tokens, span)
}

impl BoxPin {
    /// Writes the call around `tokens`, in the braces of `body`.
    pub(crate) fn around(&self, tokens: TokenStream, body: Span) -> TokenStream {
        let mut call: TokenStream = self.keywords.iter().cloned().collect();
        call.extend([TokenTree::Group(block(tokens, body))]);
        let call = tokens::group(Delimiter::Parenthesis, call, self.parentheses);
        let path = &self.path;
        quote!(#path #call)
    }
}

impl FnBody {
    pub(crate) fn new(braces: &Group) -> Self {
        let mut tokens: Vec<TokenTree> = braces.stream().into_iter().collect();
        let mut end = 0;
        while let [
            TokenTree::Punct(hash),
            TokenTree::Punct(bang),
            TokenTree::Group(group),
            ..,
        ] = &tokens[end..]
            && hash.as_char() == '#'
            && bang.as_char() == '!'
            && group.delimiter() == Delimiter::Bracket
        {
            end += 3;
        }
        let statements = tokens.split_off(end);
        Self {
            inner_attributes: tokens.into_iter().collect(),
            statements: statements.into_iter().collect(),
            span: braces.span(),
        }
    }

    /// Splits a body that consists of `Box::pin(async move { .. })` into the call and the block.
    pub(crate) fn unbox(&self) -> Option<(BoxPin, Self)> {
        let mut tokens: Vec<TokenTree> = self.statements.clone().into_iter().collect();
        let Some(TokenTree::Group(arguments)) = tokens.pop() else {
            return None;
        };
        let pin: TokenStream = tokens.into_iter().collect();
        let path: syn::Path = syn::parse2(pin.clone()).ok()?;
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|name| name.ident.to_string())
            .collect();
        let inside: Vec<TokenTree> = arguments.stream().into_iter().collect();
        match (names.as_slice(), inside.as_slice()) {
            (
                [.., owner, function],
                [
                    TokenTree::Ident(first),
                    TokenTree::Ident(second),
                    TokenTree::Group(block),
                ],
            ) if owner == "Box"
                && function == "pin"
                && first == "async"
                && second == "move"
                && block.delimiter() == Delimiter::Brace =>
            {
                let call = BoxPin {
                    path: pin,
                    parentheses: arguments.span(),
                    keywords: [first.clone().into(), second.clone().into()],
                    braces: self.span,
                };
                Some((call, Self::new(block)))
            }
            _ => None,
        }
    }

    /// Returns the place of the braces, for code around the body.
    pub(crate) fn site(&self) -> Span {
        Span::mixed_site().located_at(self.span)
    }
}
