//! Checks that the name of a declared lock has all fields of its type.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Attribute, Fields, Ident, Meta, Type};

use crate::errors::Errors;
use crate::parse::args::Args;
use crate::parse::template::{FieldAccess, PlaceholderHead, Template, TemplatePart};
use crate::parse::tokens::peel_type;
use crate::parse::values::NameArg;

const MARK: &str = "not_in_name";

/// Checks the fields of a declared lock. Two values that differ in a field which the name lacks would be
/// one lock, and a proof for one of them would be taken as a proof for the other.
pub(crate) fn fields(args: &Args, fields: &Fields, errors: &mut Errors) {
    let marks: Vec<_> = fields
        .iter()
        .map(|field| mark(&field.attrs, errors))
        .collect();
    if !errors.is_empty() {
        // The name may lack a field that it was meant to have.
        return;
    }
    let used = used_fields(args);
    for ((number, field), mark) in fields.iter().enumerate().zip(marks) {
        let name = field.ident.as_ref();
        let name = name.map_or_else(|| number.to_string(), |name| name.unraw().to_string());
        let is_named = used.in_the_name.contains(&name);
        if let (Some(mark), true) = (mark, is_named) {
            errors.on(
                mark,
                format!("`{name}` is in the name; remove `#[lock({MARK})]`"),
            );
        }
        if mark.is_none() && !is_named && !used.anywhere.contains(&name) && has_a_value(&field.ty) {
            let message = format!(
                "field `{name}` is not in the name, so locks that differ only in `{name}` are the same \
                 lock; add `{{{name}}}` to `name`, or mark the field: `#[lock({MARK})]`"
            );
            match &field.ident {
                Some(ident) => errors.on(ident, message),
                None => errors.on(&field.ty, message),
            }
        }
    }
}

/// Returns the `#[lock(not_in_name)]` of a field, if it has one.
fn mark<'a>(attributes: &'a [Attribute], errors: &mut Errors) -> Option<&'a Attribute> {
    let is_lock = |attribute: &&Attribute| attribute.path().is_ident("lock");
    let mut mark = None;
    for attribute in attributes.iter().filter(is_lock) {
        let word = match &attribute.meta {
            Meta::List(list) => list.parse_args::<Ident>().ok(),
            Meta::Path(_) | Meta::NameValue(_) => None,
        };
        if word.is_some_and(|word| word == MARK) {
            mark = Some(attribute);
        } else {
            errors.on(attribute, format!("a field takes only `#[lock({MARK})]`"));
        }
    }
    mark
}

/// Returns whether values of this type can differ.
fn has_a_value(written: &Type) -> bool {
    match peel_type(written) {
        Type::Path(path) => {
            let last = path.path.segments.last();
            last.is_none_or(|last| last.ident != "PhantomData")
        }
        Type::Tuple(tuple) => tuple.elems.iter().any(has_a_value),
        _ => true,
    }
}

#[derive(Default)]
struct UsedFields {
    in_the_name: FieldSet,
    /// The name or another option.
    anywhere: FieldSet,
}

#[derive(Default)]
struct FieldSet {
    names: BTreeSet<String>,
    /// Whether something uses the whole value, and so perhaps all fields.
    all: bool,
}

impl FieldSet {
    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    fn add_template(&mut self, template: &Template) {
        for part in &template.parts {
            let TemplatePart::Value {
                head: PlaceholderHead::Named(head),
                fields,
                ..
            } = part
            else {
                continue;
            };
            match fields.first() {
                _ if head != "self" => drop(self.names.insert(head.clone())),
                Some(FieldAccess::Named(name)) => drop(self.names.insert(name.clone())),
                Some(FieldAccess::Index(index)) => drop(self.names.insert(index.to_string())),
                None => self.all = true,
            }
        }
    }

    /// Adds what follows each `self`.
    fn add_expression(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "self" => self.add_member(&tokens[at + 1..]),
                TokenTree::Group(group) => self.add_expression(group.stream()),
                // `lock_name!("{self.id}")`
                TokenTree::Literal(text) => {
                    let text = text.to_string();
                    for inside in text.split('{').skip(1) {
                        if let Some(after) = inside.trim_start().strip_prefix("self") {
                            self.add_path(after);
                        }
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    fn add_member(&mut self, after: &[TokenTree]) {
        match after {
            [
                TokenTree::Punct(dot),
                TokenTree::Ident(_),
                TokenTree::Group(arguments),
                ..,
            ] if dot.as_char() == '.' && arguments.delimiter() == Delimiter::Parenthesis => {
                self.all = true;
            }
            [TokenTree::Punct(dot), TokenTree::Ident(name), ..] if dot.as_char() == '.' => {
                self.names.insert(name.unraw().to_string());
            }
            // `self.0.1` has the number `0.1`.
            [TokenTree::Punct(dot), TokenTree::Literal(index), ..] if dot.as_char() == '.' => {
                self.add_path(&format!(".{index}"));
            }
            _ => self.all = true,
        }
    }

    /// Adds the first step of `.id.0`.
    fn add_path(&mut self, path: &str) {
        let step = path.strip_prefix('.').and_then(|path| {
            let end = path.find(|letter| !unicode_ident::is_xid_continue(letter) && letter != '#');
            path.get(..end.unwrap_or(path.len()))
        });
        match step.map(|step| step.strip_prefix("r#").unwrap_or(step)) {
            Some(step) if !step.is_empty() => drop(self.names.insert(step.into())),
            _ => self.all = true,
        }
    }
}

fn used_fields(args: &Args) -> UsedFields {
    let mut used = UsedFields::default();
    for set in [&mut used.in_the_name, &mut used.anywhere] {
        for name in args.names() {
            match name {
                NameArg::Template(template) => set.add_template(template),
                NameArg::Expression(name) => set.add_expression(name.to_token_stream()),
            }
        }
        if let Some(tag) = &args.hash_tag {
            set.add_template(tag);
        }
    }
    for dynamic in args.timing.dynamic_values() {
        used.anywhere.add_expression(dynamic.to_token_stream());
    }
    used
}

#[cfg(test)]
mod tests {
    use quote::quote;
    use syn::ItemStruct;

    use super::*;

    fn errors(options: TokenStream, item: TokenStream) -> Vec<String> {
        let mut errors = Errors::default();
        let item: ItemStruct = syn::parse2(item).expect("a struct");
        let args = Args::parse_declaration(options, &mut errors);
        fields(&args, &item.fields, &mut errors);
        errors.messages()
    }

    #[test]
    fn field_that_is_not_in_the_name_is_an_error() {
        let message = |name: &str| {
            format!(
                "field `{name}` is not in the name, so locks that differ only in `{name}` are the same \
                 lock; add `{{{name}}}` to `name`, or mark the field: `#[lock(not_in_name)]`"
            )
        };
        let named = quote!(
            struct A {
                id: u8,
                r#type: u8,
            }
        );
        let tuple = quote!(
            struct A(u8, (u8, u8));
        );
        for (options, item, missing) in [
            (quote!(name = "a"), &named, vec!["id", "type"]),
            (quote!(name = "a:{id}"), &named, vec!["type"]),
            (quote!(name = "a:{type}"), &named, vec!["id"]),
            (quote!(name = "a:{self.r#type}"), &named, vec!["id"]),
            (
                quote!(name = format!("a:{}", self.id)),
                &named,
                vec!["type"],
            ),
            (
                quote!(name = lock_name!("a:{self.id}")),
                &named,
                vec!["type"],
            ),
            (quote!(name = NAME), &named, vec!["id", "type"]),
            (quote!(name = "a:{1.0}"), &tuple, vec!["0"]),
            (quote!(name = format!("a:{}", self.1.0)), &tuple, vec!["0"]),
        ] {
            let expected: Vec<String> = missing.into_iter().map(message).collect();
            assert_eq!(errors(options, item.clone()), expected, "{item}");
        }
    }

    #[test]
    fn field_of_the_name_or_with_a_mark_is_accepted() {
        for (options, item) in [
            (
                quote!(name = "a:{id}"),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = "a:{self.id}"),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = "a:{self}"),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = "a", hash_tag = "{0}"),
                quote!(
                    struct A(u8);
                ),
            ),
            (
                quote!(name = self.key()),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = key(self)),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = format!("{self}")),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(
                    name = {
                        let Self { id } = self;
                        id
                    }
                ),
                quote!(
                    struct A {
                        id: u8,
                    }
                ),
            ),
            (
                quote!(name = "a", ttl = dynamic(self.ttl)),
                quote!(
                    struct A {
                        ttl: Duration,
                    }
                ),
            ),
            (
                quote!(name = "a"),
                quote!(
                    struct A<T>(PhantomData<T>, marker::PhantomData<(T,)>, ());
                ),
            ),
            (
                quote!(name = "a:{0}"),
                quote!(
                    struct A(u8, #[lock(not_in_name)] u8);
                ),
            ),
        ] {
            assert_eq!(
                errors(options, item.clone()),
                <[&str; 0]>::default(),
                "{item}"
            );
        }
    }

    #[test]
    fn mark_of_a_field_is_checked() {
        assert_eq!(
            errors(
                quote!(name = "a:{id}"),
                quote!(
                    struct A {
                        #[lock(not_in_name)]
                        id: u8,
                    }
                )
            ),
            ["`id` is in the name; remove `#[lock(not_in_name)]`"]
        );
        for item in [
            quote!(
                struct A {
                    #[lock(skip)]
                    id: u8,
                }
            ),
            quote!(
                struct A {
                    #[lock]
                    id: u8,
                }
            ),
            quote!(
                struct A {
                    #[lock(not_in_name, skip)]
                    id: u8,
                }
            ),
            quote!(
                struct A {
                    #[lock(name = "id")]
                    id: u8,
                }
            ),
        ] {
            let found = errors(quote!(name = "a:{id}"), item);
            assert_eq!(found, ["a field takes only `#[lock(not_in_name)]`"]);
        }
    }
}
