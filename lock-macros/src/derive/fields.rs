//! The fields of a struct: what a placeholder of its lock's name may begin with.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;

use crate::errors::{Errors, list};
use crate::nearest::nearest;
use crate::parse::scope::Scope;
use crate::parse::template::Template;

/// The fields of a struct.
pub(crate) struct Fields {
    names: Vec<FieldName>,
    /// A declaration has no parameters.
    scope: Scope,
}

enum FieldName {
    Named(Ident),
    Index(u32),
}

impl FieldName {
    /// Returns the name as a placeholder has it.
    fn text(&self) -> String {
        match self {
            Self::Named(name) => name.unraw().to_string(),
            Self::Index(index) => index.to_string(),
        }
    }
}

impl Fields {
    pub(super) fn new(fields: &syn::Fields) -> Self {
        let names = (0..).zip(fields).map(|(index, field)| match &field.ident {
            Some(name) => FieldName::Named(name.clone()),
            None => FieldName::Index(index),
        });
        Self {
            names: names.collect(),
            scope: Scope::empty(),
        }
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Checks that each placeholder begins with a field.
    pub(super) fn check(&self, template: &Template, errors: &mut Errors) {
        for head in template.heads() {
            if self.find(&head).is_none() {
                errors.at(template.span, self.unknown(&head));
            }
        }
    }

    fn find(&self, name: &str) -> Option<&FieldName> {
        self.names.iter().find(|known| known.text() == name)
    }

    fn unknown(&self, name: &str) -> String {
        let known: Vec<String> = self.names.iter().map(FieldName::text).collect();
        let known = known.iter().map(String::as_str);
        if let Some(meant) = nearest(name, known.clone()) {
            return format!("no field named `{name}`; did you mean `{meant}`?");
        }
        let all = list(known);
        if all.is_empty() {
            return format!("no field named `{name}`; the struct has none");
        }
        format!("no field named `{name}`; fields: {all}")
    }

    /// Writes the access to a field.
    pub(crate) fn access(&self, name: &str) -> TokenStream {
        match self.find(name) {
            Some(FieldName::Named(name)) => {
                // At the field, where the compiler reports a value that is not `Display`.
                let site = Span::mixed_site().located_at(name.span());
                quote_spanned!(site=> self.#name)
            }
            Some(FieldName::Index(index)) => {
                let index = Literal::u32_unsuffixed(*index).into_token_stream();
                quote_spanned!(Span::mixed_site()=> self.#index)
            }
            None => TokenStream::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn unknown(item: &syn::ItemStruct, name: &str) -> String {
        Fields::new(&item.fields).unknown(name)
    }

    #[test]
    fn unknown_field_is_compared_with_the_known_ones() {
        let named = parse_quote!(
            struct A {
                order_id: u64,
                r#type: u8,
            }
        );
        assert_eq!(
            unknown(&named, "ordr_id"),
            "no field named `ordr_id`; did you mean `order_id`?"
        );
        assert_eq!(
            unknown(&named, "colour"),
            "no field named `colour`; fields: `order_id`, `type`"
        );
        assert_eq!(
            unknown(
                &parse_quote!(
                    struct B(u64);
                ),
                "1"
            ),
            "no field named `1`; fields: `0`"
        );
        assert_eq!(
            unknown(
                &parse_quote!(
                    struct C;
                ),
                "id"
            ),
            "no field named `id`; the struct has none"
        );
    }
}
