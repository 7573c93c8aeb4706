//! `#[derive(Lock)]`: a type that declares a lock.
//!
//! It takes the steps of the attribute: the fields are the parameters, and `#[lock(..)]` has the options.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::{Attribute, Generics, Item, Meta};

use crate::check;
use crate::errors::Errors;
use crate::expand;
use crate::parse::args::Args;
use crate::parse::generics::GenericNames;
use crate::parse::kind::Mode;
use crate::parse::scope::Scope;

const MISSING: &str = "missing `#[lock(name = \"...\")]`";

/// Writes the implementation of `Lock` for a struct.
pub(crate) fn lock(input: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let item = match syn::parse2::<Item>(input) {
        Ok(Item::Struct(item)) => item,
        Ok(Item::Enum(item)) => return not_a_struct(&item.ident, &item.generics, &item.attrs),
        Ok(Item::Union(item)) => return not_a_struct(&item.ident, &item.generics, &item.attrs),
        Ok(other) => {
            errors.on(other, "`Lock` can be derived for structs");
            return errors.to_tokens();
        }
        Err(error) => return error.to_compile_error(),
    };
    let options = options(&item.ident, &item.attrs, &mut errors);
    let scope = Scope::of_fields(&item.fields);
    let args = match options {
        Some(options) => Args::parse_declaration(options, &mut errors),
        None => Args::default(),
    };
    check::declaration(&args, &scope, &mut errors);
    check::fields(&args, &item.fields, &mut errors);
    let body = if errors.is_empty() {
        let generics = GenericNames::of_struct(&item.generics);
        expand::declaration(&args, &scope, &generics)
    } else {
        // The type still is a lock, so that no other error follows.
        never(&args)
    };
    let mut output = errors.to_tokens();
    output.extend(implementation(&item.ident, &item.generics, &args, &body));
    output
}

fn not_a_struct(name: &Ident, generics: &Generics, attributes: &[Attribute]) -> TokenStream {
    let mut errors = Errors::default();
    errors.at(name.span(), "`Lock` can be derived for structs");
    // The options say where `lock_core` is. Their errors do not matter here.
    let ignored = &mut Errors::default();
    let options = options(name, attributes, ignored);
    let args = options.map_or_else(Args::default, |options| {
        Args::parse_declaration(options, ignored)
    });
    let mut output = errors.to_tokens();
    output.extend(implementation(name, generics, &args, &never(&args)));
    output
}

fn never(args: &Args) -> TokenStream {
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    quote_spanned! {site=>
        #krate::macro_support::typed_return(#krate::macro_support::ReturnType::new())
    }
}

/// Returns the options between the parentheses of `#[lock(..)]`.
fn options(name: &Ident, attributes: &[Attribute], errors: &mut Errors) -> Option<TokenStream> {
    let is_lock = |attribute: &&Attribute| attribute.path().is_ident("lock");
    let mut attributes = attributes.iter().filter(is_lock);
    let Some(first) = attributes.next() else {
        errors.at(name.span(), MISSING);
        return None;
    };
    for second in attributes {
        errors.on(second, "duplicate `#[lock]`; write all options into one");
    }
    if let Meta::List(list) = &first.meta {
        Some(list.tokens.clone())
    } else {
        errors.on(first, MISSING);
        None
    }
}

fn implementation(
    name: &Ident,
    generics: &Generics,
    args: &Args,
    body: &TokenStream,
) -> TokenStream {
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let (in_impl, in_type, bounds) = generics.split_for_impl();
    let kind = if args.kind.permits.is_some() {
        quote_spanned!(site=> SemaphoreKind)
    } else if args.kind.mode == Some(Mode::ReadWrite) {
        quote_spanned!(site=> ReadWriteKind)
    } else {
        quote_spanned!(site=> ExclusiveKind)
    };
    // The fields of the name and the expressions of the user say `self`, too.
    let receiver = Ident::new("self", Span::call_site());
    let implementation = quote_spanned! {site=>
        #[automatically_derived]
        impl #in_impl #krate::Lock for #name #in_type #bounds {
            type Kind = #krate::macro_support::#kind;

            fn declaration(&#receiver) -> #krate::macro_support::Declaration {
                #body
            }
        }
    };
    match args.krate.import() {
        None => implementation,
        Some(import) => quote_spanned!(site=> const _: () = { #import #implementation };),
    }
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;
    use crate::parse::values::SEVERAL_NAMES;

    fn expanded(input: TokenStream) -> String {
        lock(input).to_string()
    }

    #[test]
    fn fields_are_the_parameters() {
        let text = expanded(quote! {
            #[lock(name = "stock:{sku}:{at.0}", ttl = "30s", mode = read_write, hash_tag = "{sku}")]
            pub struct Stock<'a, T: Display> where T: Sized { sku: &'a str, at: (u8, T) }
        });
        for expected in [
            "impl < 'a , T : Display > :: lock_core :: Lock for Stock < 'a , T > where T : Sized {",
            "type Kind = :: lock_core :: macro_support :: ReadWriteKind ;",
            "NamePart :: Value (& self . sku)",
            "match & self . at . 0 {",
            "macro_support :: name_with_hash_tag (",
            "macro_support :: declaration (",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("compile_error"), "{text}");
        let text = expanded(quote!(
            #[lock(name = "a:{0}:{1}", permits = 4)]
            struct A(u8, u8);
        ));
        assert!(text.contains("SemaphoreKind"), "{text}");
        assert!(text.contains("Value (& self . 1)"), "{text}");
        let text = expanded(quote!(
            #[lock(name = format!("{}", self.0))]
            struct A(u8);
        ));
        assert!(text.contains("ExclusiveKind"), "{text}");
        assert!(!text.contains("compile_error"), "{text}");
    }

    #[test]
    fn invalid_declarations_are_explained_and_stay_locks() {
        for (input, expected) in [
            (
                quote!(
                    enum A {}
                ),
                "`Lock` can be derived for structs",
            ),
            (
                quote!(union A { a: u8 }),
                "`Lock` can be derived for structs",
            ),
            (
                quote!(
                    struct A;
                ),
                MISSING,
            ),
            (
                quote!(
                    #[lock]
                    struct A;
                ),
                MISSING,
            ),
            (
                quote!(
                    #[lock(ttl = "1s")]
                    struct A;
                ),
                "missing option `name`: `#[lock(name = \"...\")]`",
            ),
            (
                quote!(
                    #[lock(name = "order:{ordr_id}")]
                    struct A {
                        order_id: u64,
                    }
                ),
                "no field named `ordr_id`; did you mean `order_id`?",
            ),
            (
                quote!(
                    #[lock(name = "order:{customer}")]
                    struct A {
                        order_id: u64,
                        r#type: u8,
                    }
                ),
                "no field named `customer`; fields: `order_id`, `type`",
            ),
            (
                quote!(
                    #[lock(name = "order:{1}")]
                    struct A(u8);
                ),
                "no field named `1`; fields: `0`",
            ),
            (
                quote!(
                    #[lock(name = "order:{id}")]
                    struct A;
                ),
                "no field named `id`; the struct has none",
            ),
            (
                quote!(
                    #[lock(name = "a", renew = never)]
                    struct A;
                ),
                "`renew` is not declared with the lock; write it where the lock is taken",
            ),
            (
                quote!(
                    #[lock(name = "a", mode = read)]
                    struct A;
                ),
                "unknown value `read` for `mode`; expected one of: `exclusive`, `read_write`",
            ),
            (
                quote!(
                    #[lock(name = ["a", "b"])]
                    struct A;
                ),
                SEVERAL_NAMES,
            ),
            (
                quote!(
                    #[lock(name = "a", mode = read_write, permits = 4)]
                    struct A;
                ),
                "`permits` cannot be combined with `mode`",
            ),
        ] {
            let text = expanded(input);
            let expected = proc_macro2::Literal::string(expected).to_string();
            assert!(text.contains(&expected), "{expected} in {text}");
            assert!(text.contains(":: Lock for A"), "{text}");
        }
    }

    #[test]
    fn enum_keeps_the_path_of_the_crate() {
        let text = expanded(quote!(
            #[lock(name = "a", crate = ::web::lock_core)]
            enum A {}
        ));
        let import = "use :: web :: lock_core :: macro_support :: lock_core as";
        assert_eq!(text.matches(import).count(), 1, "{text}");
        assert!(text.contains("crate :: Lock for A"), "{text}");
    }
}
