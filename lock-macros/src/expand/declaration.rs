//! Writes what a type declares about its lock.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};

use super::timing::Contention;
use crate::crate_path::CratePath;
use crate::parse::args::Args;
use crate::parse::generics::GenericNames;
use crate::parse::scope::Scope;
use crate::parse::template::{PlaceholderHead, Template};
use crate::parse::values::NameArg;

/// Writes an expression of the type `macro_support::Declaration`. `scope` holds the fields of the type.
pub(crate) fn declaration(args: &Args, scope: &Scope, generics: &GenericNames) -> TokenStream {
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let names = args.names().iter().map(|name| match name {
        NameArg::Template(template) => template.expand_fields(&args.krate, scope),
        NameArg::Expression(name) => super::name_from_expression(name, &args.krate, scope),
    });
    // A declared lock has one name.
    let mut name: TokenStream = names.take(1).collect();
    if let Some(tag) = &args.hash_tag {
        let tag = tag.expand_fields(&args.krate, scope);
        name = quote_spanned!(site=> #krate::macro_support::name_with_hash_tag(#tag, #name));
    }
    let contention = Contention::Return;
    let options = args
        .timing
        .expand(&args.kind, contention, &args.krate, generics);
    quote_spanned!(site=> #krate::macro_support::declaration(#name, #options))
}

impl Template {
    /// Writes the name, with the fields of `self` as values.
    fn expand_fields(&self, krate: &CratePath, scope: &Scope) -> TokenStream {
        self.expand_with(krate, |head| {
            let PlaceholderHead::Named(name) = head else {
                return TokenStream::new();
            };
            let field = scope.find(name);
            let site = field.as_ref().map_or(self.span, TokenTree::span);
            let receiver = Ident::new("self", Span::call_site().located_at(site));
            match field {
                Some(field) if name != "self" => quote_spanned!(site=> #receiver.#field),
                _ => receiver.into_token_stream(),
            }
        })
    }
}
