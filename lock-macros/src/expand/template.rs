//! Writes templates: an expression of the type `LockName`.

use proc_macro2::{Ident, Literal, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};

use crate::crate_path::CratePath;
use crate::parse::scope::Scope;
use crate::parse::template::{FieldAccess, PlaceholderHead, Template, TemplatePart};

impl Template {
    /// Writes an expression of the type that `macro_support::acquire` takes as a name.
    pub(super) fn expand(&self, krate: &CratePath, scope: &Scope) -> TokenStream {
        // Uses the token of the parameter itself: only that one finds a parameter that a
        // `macro_rules!` macro named.
        self.expand_with(krate, |head| match head {
            PlaceholderHead::Named(name) if scope.is_generic(name) => {
                let found = scope.find(name);
                let site = found.as_ref().map_or(self.span, TokenTree::span);
                let site = Span::mixed_site().located_at(site);
                let krate = krate.at(site);
                // The compiler then advises the bound `Display` rather than a hidden trait.
                quote_spanned!(site=> *#krate::macro_support::displayed(&#found))
            }
            PlaceholderHead::Named(name) => scope.find(name).into_token_stream(),
            PlaceholderHead::Next => TokenStream::new(),
        })
    }

    /// Writes the name for `lock_name!`. Placeholders name the variables at its place, and each
    /// `{}` takes the next of `expressions`.
    pub(super) fn expand_lock_name(
        &self,
        krate: &CratePath,
        expressions: impl IntoIterator<Item = TokenStream>,
    ) -> TokenStream {
        let mut expressions = expressions.into_iter();
        let site = Span::mixed_site().located_at(self.span);
        let (mut values, mut names) = (Vec::new(), Vec::new());
        let name = self.expand_with(krate, |head| match head {
            PlaceholderHead::Named(name) if name == "self" => {
                Ident::new("self", self.span).into_token_stream()
            }
            PlaceholderHead::Named(name) => identifier(name, self.span).into_token_stream(),
            PlaceholderHead::Next => {
                let value = expressions.next().unwrap_or_default();
                let first: Option<TokenTree> = value.clone().into_iter().next();
                let site = first.map_or(site, |first| site.located_at(first.span()));
                let number = names.len();
                let name = Ident::new(&format!("__distributed_lock_value_{number}"), site);
                values.push(value);
                names.push(name.clone());
                quote_spanned!(site=> *#name)
            }
        });
        // The same as `format!` does: the values are evaluated before they become trait objects.
        // No value lives longer than this expression, so it may precede an `.await`.
        let result = Ident::new("__distributed_lock_name", site);
        quote_spanned! {site=> {
            let #result = match (#(&#values,)*) {
                (#(#names,)*) => #name,
            };
            #result
        }}
    }

    pub(super) fn expand_with(
        &self,
        krate: &CratePath,
        mut value: impl FnMut(&PlaceholderHead) -> TokenStream,
    ) -> TokenStream {
        let site = Span::mixed_site().located_at(self.span);
        let krate = krate.at(site);
        let parts = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => {
                let mut text = Literal::string(text);
                text.set_span(site);
                quote_spanned!(site=> #krate::macro_support::NamePart::Text(#text))
            }
            TemplatePart::Value { head, fields, .. } => {
                let head = value(head);
                // When the value is not `Display`, the compiler points at the whole expression.
                // With this span it points at the parameter, and not at the template.
                let first: Option<TokenTree> = head.clone().into_iter().next();
                let head_site = first.map_or(site, |first| site.located_at(first.span()));
                let part = quote_spanned!(head_site=> #krate::macro_support::NamePart::Value);
                if fields.is_empty() {
                    return quote_spanned!(head_site=> #part(&#head));
                }
                let fields = fields.iter().map(|field| field.expand(site));
                let value = Ident::new("__distributed_lock_value", head_site);
                quote_spanned!(head_site=> match &#head #(.#fields)* { #value => #part(#value) })
            }
        });
        let mut template = Literal::string(&self.written);
        template.set_span(site);
        quote_spanned! {site=>
            #krate::macro_support::name_from_template(#template, &[#(#parts),*])
        }
    }
}

impl FieldAccess {
    fn expand(&self, site: Span) -> TokenStream {
        match self {
            Self::Index(index) => {
                let mut index = Literal::u32_unsuffixed(*index);
                index.set_span(site);
                index.into_token_stream()
            }
            Self::Named(name) => identifier(name, site).into_token_stream(),
        }
    }
}

/// Makes an identifier, raw where the name is a keyword in any edition. The span decides which
/// edition applies, and it may be the edition of this crate.
fn identifier(name: &str, site: Span) -> Ident {
    if name != "gen" && syn::parse_str::<Ident>(name).is_ok() {
        Ident::new(name, site)
    } else {
        Ident::new_raw(name, site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Errors;

    #[test]
    fn template_expands_to_its_parts() {
        let scope = Scope::sample(&["id", "r#type"], true);
        let mut errors = Errors::default();
        let literal = syn::parse_quote!("a:{id}:{type.0}:{self.r#fn}");
        let template = Template::of_name(&literal, &mut errors);
        let template = template.expect("it is well formed");
        let tokens = template.expand(&CratePath::default(), &scope).to_string();
        for expected in [
            ":: lock_core :: macro_support :: name_from_template \
             (\"a:{id}:{type.0}:{self.r#fn}\" , & [",
            "NamePart :: Text (\"a:\")",
            "NamePart :: Value (& id)",
            "match & r#type . 0 { __distributed_lock_value =>",
            "match & self . r#fn { __distributed_lock_value =>",
        ] {
            assert!(tokens.contains(expected), "{expected} in {tokens}");
        }
    }
}
