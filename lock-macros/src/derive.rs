//! `#[derive(Lock)]`: a struct that names a lock.

mod fields;
mod options;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::{Attribute, Generics, Item, Meta};

pub(crate) use self::fields::Fields;
use self::options::{DeclaredKind, LockOptions};
use crate::check;
use crate::errors::Errors;
use crate::expand::Contention;
use crate::parse::generics::GenericNames;

/// Writes the implementation of `Lock` for a struct.
pub(crate) fn derive_lock(input: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let item = match syn::parse2::<Item>(input) {
        Ok(item) => item,
        Err(error) => return error.to_compile_error(),
    };
    let item = match item {
        Item::Struct(item) => item,
        Item::Enum(item) => return only_structs(item.enum_token.span),
        Item::Union(item) => return only_structs(item.union_token.span),
        _ => return only_structs(Span::call_site()),
    };
    let fields = Fields::new(&item.fields);
    let options = options(&item.attrs, &item.ident, &mut errors);
    if errors.is_empty() {
        check(&options, &fields, &mut errors);
    }
    if errors.is_empty() {
        return expand(&item.ident, &item.generics, &fields, &options);
    }
    let mut output = errors.to_tokens();
    // Without an implementation, each use of the lock would be an error of its own.
    output.extend(implementation(
        &item.ident,
        &item.generics,
        &options,
        &quote_spanned!(Span::mixed_site()=> ::core::unimplemented!()),
    ));
    output
}

fn only_structs(span: Span) -> TokenStream {
    syn::Error::new(span, "`Lock` can be derived for structs").to_compile_error()
}

/// Reads `#[lock(..)]`.
fn options(attributes: &[Attribute], name: &Ident, errors: &mut Errors) -> LockOptions {
    let mut found = attributes.iter().filter(|it| it.path().is_ident("lock"));
    let Some(attribute) = found.next() else {
        errors.on(name, "missing `#[lock(name = \"...\")]`");
        return LockOptions::default();
    };
    if let Some(second) = found.next() {
        errors.on(second, "duplicate `#[lock(...)]`; write all options in one");
    }
    match &attribute.meta {
        Meta::List(list) => LockOptions::parse(list.tokens.clone(), attribute, errors),
        Meta::Path(_) | Meta::NameValue(_) => {
            errors.on(attribute, "expected `#[lock(name = \"...\")]`");
            LockOptions::default()
        }
    }
}

fn check(options: &LockOptions, fields: &Fields, errors: &mut Errors) {
    let scope = fields.scope();
    check::declared(
        &options.timing,
        &options.kind,
        &options.written,
        scope,
        errors,
    );
    if let Some(name) = &options.name
        && check::form_of_name(name, options.hash_tag.is_some(), errors)
    {
        fields.check(name, errors);
    }
    if let Some(tag) = &options.hash_tag
        && check::form_of_hash_tag(tag, errors)
    {
        fields.check(tag, errors);
    }
}

fn expand(
    name: &Ident,
    generics: &Generics,
    fields: &Fields,
    options: &LockOptions,
) -> TokenStream {
    let site = Span::mixed_site();
    let krate = options.krate.at(site);
    let Some(template) = &options.name else {
        // A missing name is an error, so this is never written.
        return TokenStream::new();
    };
    let mut lock_name = template.expand_of_fields(&options.krate, fields);
    if let Some(tag) = &options.hash_tag {
        let tag = tag.expand_of_fields(&options.krate, fields);
        lock_name =
            quote_spanned!(site=> #krate::macro_support::name_with_hash_tag(#tag, #lock_name));
    }
    let names = GenericNames::of_type(generics);
    // Whether a caller waits is up to its request.
    let contention = Contention::Return;
    let settings = options
        .timing
        .expand(&options.kind, contention, &options.krate, &names);
    let body = quote_spanned! {site=>
        #krate::macro_support::declared(locks, #lock_name, #settings)
    };
    implementation(name, generics, options, &body)
}

fn implementation(
    name: &Ident,
    generics: &Generics,
    options: &LockOptions,
    body: &TokenStream,
) -> TokenStream {
    let site = Span::mixed_site();
    let krate = options.krate.at(site);
    let kind = match options.declared_kind() {
        DeclaredKind::Exclusive => quote_spanned!(site=> Exclusive),
        DeclaredKind::ReadWrite => quote_spanned!(site=> ReadWrite),
        DeclaredKind::Semaphore => quote_spanned!(site=> Semaphore),
    };
    let (of_impl, of_type, bounds) = generics.split_for_impl();
    quote_spanned! {site=>
        impl #of_impl #krate::Lock for #name #of_type #bounds {
            type Kind = #krate::typed::#kind;

            fn request(&self, locks: &#krate::LockManager) -> #krate::LockRequest {
                #body
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn struct_expands_to_an_implementation() {
        let text = derive_lock(quote! {
            #[lock(name = "order:{order_id}:{part.0}", ttl = "30s")]
            pub struct OrderLock<'a, T> { pub order_id: u64, part: &'a (T,) }
        })
        .to_string();
        for expected in [
            "impl < 'a , T > :: lock_core :: Lock for OrderLock < 'a , T >",
            "type Kind = :: lock_core :: typed :: Exclusive",
            "NamePart :: Value (& self . order_id)",
            "match & self . part . 0",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let text = derive_lock(quote! {
            #[lock(name = "mailer:{0}", permits = 4, weight = 2, crate = crate::reexport)]
            struct Mailer(u8);
        })
        .to_string();
        for expected in ["self . 0", "Semaphore", "crate :: reexport :: Lock"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
}
