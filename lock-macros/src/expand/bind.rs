//! Writes what `bind` names: the guard, the set or the proof that the body sees.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt;

use super::{AcquireCall, acquire_call, local};
use crate::parse::args::Args;
use crate::parse::function::Function;

/// Returns the local that holds the guard. When a body with `bind` moves the guard into a spawned
/// task, the compiler names this local, and no name that is not in the user's crate. So its name
/// says what to do.
pub(super) fn slot(args: &Args) -> Ident {
    match &args.bind {
        None => local("slot", Span::mixed_site()),
        Some(bind) => Ident::new(
            &format!(
                "__guard_ends_with_the_body_a_spawned_task_takes_{}_watch",
                bind.unraw().to_string().trim_matches('_')
            ),
            bind.span(),
        ),
    }
}

/// Writes the statement of the body that binds the name.
pub(super) fn bind(args: &Args) -> Option<TokenStream> {
    let bind = args.bind.as_ref()?;
    let site = Span::mixed_site().located_at(bind.span());
    let krate = args.krate.at(site);
    let bound = local("bound", site);
    let ty = bound_type(args, &krate, site);
    let (bound_trait, found) = match (&args.lock, args.has_list) {
        (Some(_), _) => ("BoundHeld", "held"),
        (None, true) => ("BoundSet", "guard"),
        (None, false) => ("BoundGuard", "guard"),
    };
    let [bound_trait, found] = [bound_trait, found].map(|name| Ident::new(name, site));
    Some(quote_spanned! {site=>
        use #krate::macro_support::#bound_trait as _;
        let #bind: &#ty = #krate::macro_support::#found(#bound);
    })
}

/// Writes what `bind` names, without a lock. The compiler infers which lock it is from the value of `lock`, so that
/// the body has no errors of its own.
pub(super) fn without_lock(bind: &Ident, args: &Args, function: &Function) -> TokenStream {
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let support = quote_spanned!(site=> #krate::macro_support);
    let ty = bound_type(args, &krate, site);
    let import = args.krate.import();
    if args.lock.is_none() {
        return quote_spanned! {site=>
            #import
            let #bind: &#ty = #support::typed_return(#support::ReturnType::new());
        };
    }
    let slot = slot(args);
    let AcquireCall { path, name } = acquire_call(args, function);
    let options = quote_spanned!(site=> #support::Options::DEFAULT);
    let acquire = quote_spanned!(site=> #path(::core::option::Option::None, #name, #options));
    // After the loop the body still has the values that `lock` moves.
    quote_spanned! {site=>
        #import
        let #slot = #support::GuardSlot::new();
        if false { #slot.is_for(&#acquire); loop {} }
        let #bind: &#ty = #support::held(&#slot);
    }
}

/// Writes the type of what `bind` names, behind its `&`.
fn bound_type(args: &Args, krate: &TokenStream, site: Span) -> TokenStream {
    if args.lock.is_some() {
        quote_spanned!(site=> #krate::Held<_, _>)
    } else if args.has_list {
        quote_spanned!(site=> #krate::LockSet)
    } else {
        quote_spanned!(site=> #krate::LockGuard)
    }
}
