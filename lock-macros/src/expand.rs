//! The function that is emitted.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;

use crate::args::Args;
use crate::function::{Function, Shell};
use crate::output::Output;
use crate::value::{Contended, Name, OnLost, Release};

/// One function with the signature of `function`, which holds the lock while the body runs.
///
/// Locals and labels are hygienic (`mixed_site`), so no name of ours can meet one of the user's.
/// Tokens that serve an option or the return type are located at it, so that the compiler's own
/// errors about it point there.
pub(crate) fn expand(args: &Args, function: &Function) -> TokenStream {
    let head = &function.head;
    let inner_attributes = &function.body.inner_attributes;
    let manager = manager(args);
    let name = name(args, function);
    let options = args.terms.expand(&args.krate, &function.generics);
    let contended = contended(args, function);
    let hold = hold(args, function);
    let refusal = refusal(args, function);

    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let steps = quote_spanned! {site=>
        let manager = #manager;
        let name = #name;
        let outcome = 'held: {
            let guard = match #krate::macro_support::acquire(manager, name, #options).await {
                ::core::result::Result::Ok(guard) => guard,
                #contended
                // In two steps: syn takes `break 'held ::core..`, in an attribute that comes after
                // this one, for the label of a loop.
                ::core::result::Result::Err(error) => {
                    let failed = ::core::result::Result::Err(error);
                    break 'held failed
                }
            };
            #hold
        };
        match outcome {
            ::core::result::Result::Ok(value) => value,
            #refusal
        }
    };
    let steps = match &function.shell {
        Shell::AsyncFn => steps,
        Shell::Boxed(pin) => quote_spanned!(site=> #pin(async move { #steps })),
    };
    let block = quote_spanned!(function.body.site()=> { #inner_attributes #steps });
    quote!(#head #block)
}

/// Runs the body under the guard, and ends the guard.
fn hold(args: &Args, function: &Function) -> TokenStream {
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let bind = bind(args);
    let body = body(args, function);
    let watched = args.on_lost == OnLost::Cancel;
    let lost =
        watched.then(|| quote_spanned!(site=> let mut lost = ::core::pin::pin!(guard.lost());));
    let poll = if watched {
        quote_spanned! {site=> #krate::macro_support::poll_body(
            &guard,
            lost.as_mut(),
            body.as_mut(),
            context,
        )}
    } else {
        quote_spanned!(site=> #krate::macro_support::poll_on(&guard, body.as_mut(), context))
    };
    // What must be `Send` for the function to be.
    let outcome = quote_spanned!(function.output.site()=> outcome);
    // A lost lock is not released: the guard only tidies up as it is dropped.
    let release = match args.release {
        Release::Confirm => quote_spanned! {site=>
            if ::core::result::Result::is_ok(&#outcome) {
                #krate::macro_support::release(guard).await;
            }
        },
        Release::Background => quote_spanned!(site=> ::core::mem::drop(guard);),
    };
    quote_spanned! {site=>
        let #outcome = {
            #lost
            #bind
            let mut body = ::core::pin::pin!(#body);
            ::core::future::poll_fn(|context| #poll).await
        };
        #release
        #outcome
    }
}

fn manager(args: &Args) -> TokenStream {
    let Some(manager) = &args.manager else {
        return quote_spanned!(Span::mixed_site()=> ::core::option::Option::None);
    };
    let site = Span::mixed_site().located_at(manager.span());
    let krate = args.krate.at(site);
    quote_spanned!(site=> #krate::macro_support::manager(&#manager))
}

fn name(args: &Args, function: &Function) -> TokenStream {
    let name = match &args.name {
        Some(Name::Template(template)) => template.expand(&args.krate, &function.scope),
        Some(Name::Expression(name)) => {
            let site = Span::mixed_site().located_at(name.span());
            let krate = args.krate.at(site);
            quote_spanned!(site=> #krate::macro_support::name(#name))
        }
        // With a list or without a name there is a fault, and nothing is expanded.
        Some(Name::List(..)) | None => TokenStream::new(),
    };
    let Some(tag) = &args.hash_tag else {
        return name;
    };
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let tag = tag.expand(&args.krate, &function.scope);
    quote_spanned!(site=> #krate::macro_support::tagged(#tag, #name))
}

/// The arm for a lock that somebody else holds, where that is no error like others.
fn contended(args: &Args, function: &Function) -> Option<TokenStream> {
    let output = function.output.written(&args.krate);
    let (site, answer) = match &args.on_contended {
        Contended::Error => return None,
        Contended::Skip(word) => {
            let site = Span::mixed_site().located_at(word.span());
            let krate = args.krate.at(site);
            let skip = quote_spanned!(site=> #krate::macro_support::skip::<#output>(&error));
            (site, skip)
        }
        Contended::Answer(closure) => {
            let site = Span::mixed_site().located_at(closure.span());
            let krate = args.krate.at(site);
            let answer = quote_spanned! {site=>
                #krate::macro_support::answer::<#output>(#closure, error)
            };
            (site, answer)
        }
    };
    let krate = args.krate.at(site);
    // What never comes back cannot be returned, either: rustc would find that unreachable.
    let leave = match &function.output {
        Output::Never(_) => None,
        Output::Type(_) => Some(quote_spanned!(site=> return)),
    };
    Some(quote_spanned! {site=>
        #[allow(clippy::redundant_closure, clippy::redundant_closure_for_method_calls)]
        ::core::result::Result::Err(error) if #krate::macro_support::is_contended(&error) => {
            #leave #answer
        }
    })
}

fn bind(args: &Args) -> Option<TokenStream> {
    let bind = args.bind.as_ref()?;
    let site = Span::mixed_site().located_at(bind.span());
    let krate = args.krate.at(site);
    Some(quote_spanned!(site=> let #bind: &#krate::LockGuard = &guard;))
}

/// The body's future. `?` and `return` leave this block only, so the release always runs.
fn body(args: &Args, function: &Function) -> TokenStream {
    let block = function.body.block();
    // Tells the compiler the type before it reads the body: its errors then land on the tokens
    // of the user that have another type.
    let edge = function.output.is_known().then(|| {
        let site = function.output.site();
        let krate = args.krate.at(site);
        let output = function.output.written(&args.krate);
        quote_spanned!(site=> if false { return #krate::macro_support::edge::<#output>(); })
    });
    quote_spanned!(function.body.site()=> async move { #edge #block })
}

/// The arm for everything that kept the body from running to its end. The only place that asks
/// whether the return type can hold a `LockError`: each place would report the same error again.
fn refusal(args: &Args, function: &Function) -> TokenStream {
    let output = function.output.written(&args.krate);
    if let Some(closure) = &args.on_error {
        let site = Span::mixed_site().located_at(closure.span());
        let krate = args.krate.at(site);
        // Only a closure is accepted, so its author cannot follow clippy's advice.
        return quote_spanned! {site=>
            #[allow(clippy::redundant_closure, clippy::redundant_closure_for_method_calls)]
            ::core::result::Result::Err(error) => {
                #krate::macro_support::answer::<#output>(#closure, error)
            }
        };
    }
    let site = function.output.site();
    let krate = args.krate.at(site);
    quote_spanned! {site=>
        ::core::result::Result::Err(error) => #krate::macro_support::refuse::<#output>(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Faults;

    fn expanded(args: TokenStream, item: TokenStream) -> TokenStream {
        let mut faults = Faults::default();
        let function = Function::new(item, &mut faults);
        let args = Args::new(args, &mut faults);
        let function = function.expect("a function");
        args.resolve(&function.scope, &mut faults);
        assert_eq!(faults.messages(), <[&str; 0]>::default());
        expand(&args, &function)
    }

    fn text(args: TokenStream, item: TokenStream) -> String {
        expanded(args, item).to_string()
    }

    fn count(text: &str, part: &TokenStream) -> usize {
        // Whether `>>` stands apart is no matter.
        let close = |text: &str| text.replace(' ', "");
        close(text).matches(&close(&part.to_string())).count()
    }

    #[test]
    fn one_function_is_emitted() {
        let tokens = expanded(
            quote!(
                name = "x:{a}",
                ttl = TTL,
                wait = T::WAIT,
                bind = g,
                manager = self.m
            ),
            quote! {
                /// Documented.
                #[inline]
                pub async fn f<T: W>(&self, a: u8) -> Result<impl Copy, E> where T: Copy {
                    Ok(a)
                }
            },
        );
        let file: syn::File = syn::parse2(tokens).expect("valid");
        assert_eq!(file.items.len(), 1);
        let Some(syn::Item::Fn(function)) = file.items.first() else {
            unreachable!("an attribute on a function gives a function");
        };
        assert_eq!(function.attrs.len(), 2);
        assert_eq!(function.sig.generics.params.len(), 1);
        assert!(function.sig.generics.where_clause.is_some());
        assert_eq!(function.sig.inputs.len(), 2);
    }

    #[test]
    fn the_return_type_is_asked_in_one_place() {
        let text = text(
            quote!(name = "x"),
            quote!(
                async fn f() -> Result<T, E> {}
            ),
        );
        assert_eq!(count(&text, &quote!(refuse::<Result<T, E>>)), 1);
        assert_eq!(count(&text, &quote!(edge::<Result<T, E>>)), 1);
    }

    #[test]
    fn on_error_takes_the_place_of_the_question() {
        let text = text(
            quote!(name = "x", on_error = |e| e.code()),
            quote!(
                async fn f() -> u8 {
                    1
                }
            ),
        );
        assert_eq!(count(&text, &quote!(answer::<u8>(|e| e.code(), error))), 1);
        assert_eq!(count(&text, &quote!(refuse)), 0);
    }

    #[test]
    fn a_body_without_a_known_type_has_no_edge() {
        for item in [
            quote!(
                async fn f() -> ! {
                    loop {}
                }
            ),
            quote!(
                async fn f() -> impl Copy {}
            ),
        ] {
            let text = text(quote!(name = "x", on_error = |e| panic!()), item);
            assert_eq!(count(&text, &quote!(edge)), 0);
        }
    }

    #[test]
    fn the_manager_comes_before_the_name_and_the_name_before_the_lock() {
        let text = text(
            quote!(name = make(id), manager = find(id)),
            quote!(
                async fn f(id: u8) -> R {}
            ),
        );
        let places: Vec<_> = ["find (id)", "make (id)", "acquire (manager , name"]
            .iter()
            .map(|part| text.find(part))
            .collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{places:?}"
        );
    }

    #[test]
    fn the_crate_is_found_by_its_path() {
        let text = text(
            quote!(name = "{a}", ttl = C, bind = g, manager = m, crate = ::x::y),
            quote!(
                async fn f(a: u8) -> ! {}
            ),
        );
        assert_eq!(count(&text, &quote!(lock_core)), 0);
        assert!(count(&text, &quote!(::x::y::macro_support)) >= 8);
        assert_eq!(
            count(&text, &quote!(let g: &::x::y::LockGuard = &guard;)),
            1
        );
    }

    #[test]
    fn nothing_else_is_taken_from_the_scope_of_the_user() {
        // Every path begins at a crate: a user's own `Option` or `Ok` is never meant.
        let text = text(
            quote!(name = "x", ttl = "1s"),
            quote!(
                async fn f() -> R {}
            ),
        );
        let paths = ["Result ::", "Option ::", "Duration ::", "pin !", "poll_fn"];
        for path in paths {
            for (at, _) in text.match_indices(path) {
                assert!(text[..at].ends_with(":: "), "{path} in {text}");
            }
        }
    }

    #[test]
    fn a_boxed_body_stays_in_its_box() {
        let text = text(
            quote!(name = "{id}"),
            quote! {
                fn f(&self, id: u8) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> {
                    Box::pin(async move { Ok(id) })
                }
            },
        );
        assert_eq!(count(&text, &quote!(Box::pin)), 1);
        assert_eq!(count(&text, &quote!(refuse::<Result<T, E>>)), 1);
        assert_eq!(count(&text, &quote!({ Ok(id) })), 1);
    }

    #[test]
    fn inner_attributes_stay_first() {
        let text = text(
            quote!(name = "x"),
            quote!(
                async fn f() -> R {
                    #![allow(a)]
                    b
                }
            ),
        );
        let start = quote!(#![allow(a)] let manager).to_string();
        assert!(text.contains(&format!("-> R {{ {start}")), "{text}");
    }
}
