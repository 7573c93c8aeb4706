//! The last step: writes the function.

mod bind;
mod declaration;
mod kind;
mod lock_name;
mod output;
mod parameters;
mod template;
mod timing;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprBlock, ExprClosure, Pat, PatType, Token, Type};

use crate::crate_path::CratePath;
use crate::expand::bind::slot;
use crate::expand::parameters::ParameterCode;
use crate::expand::timing::Contention;
use crate::parse::args::Args;
use crate::parse::body::block;
use crate::parse::function::{FnKind, Function};
use crate::parse::kind::Mode;
use crate::parse::scope::Scope;
use crate::parse::text_of_code::is_text_of_code;
use crate::parse::values::{Handler, NameArg, NamesArg, OnContended, OnLostArg, ReleaseMode};

pub(crate) use self::declaration::declaration;
pub(crate) use self::lock_name::lock_name;

/// Writes one function with the signature of `function`, which holds the lock while the body runs.
///
/// Locals are hygienic (`mixed_site`), so their names never meet a name of the user. Tokens that
/// belong to an option or to the return type are located there. So the compiler's errors about
/// them point there, too.
pub(crate) fn function(args: &Args, mut function: Function) -> TokenStream {
    parameters::find_uses(args, &mut function);
    let mut_in_the_body = parameters::mut_in_the_body(args, &function);
    let function = &function.without_mut(&mut_in_the_body);
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let [output, acquire] = ["output", "acquire"].map(|name| local(name, site));
    let slot = slot(args);

    let return_type = function.output.expand(&args.krate);
    let declared = declared(args, function);
    let manager = manager(args);
    let contention = match &args.on_contended {
        OnContended::Skip(_) => Contention::Skip,
        OnContended::Error | OnContended::Closure(_) => Contention::Return,
    };
    let generics = &function.generics;
    let options = args
        .timing
        .expand(&args.kind, contention, &args.krate, generics);
    let AcquireCall { path, name } = acquire_call(args, function);
    let acquired = quote_spanned!(site=> #path(#manager, #name, #options));
    let new_slot = quote_spanned!(site=> let #slot = #krate::macro_support::GuardSlot::new(););
    let acquire_into_slot = match (&args.lock, &args.bind) {
        // The guard is dropped before the declared lock, so it comes last.
        (Some(_), None) => {
            let declared = local("declared", site);
            quote_spanned! {site=>
                let (#acquire, #declared) = #krate::macro_support::without_proof(#acquired);
                #new_slot
            }
        }
        // The body may use what is held before the compiler knows the type of the acquire.
        (Some(_), Some(_)) => quote_spanned! {site=>
            #new_slot
            let #acquire = #acquired;
            #slot.is_for(&#acquire);
        },
        (None, _) => quote_spanned!(site=> #new_slot let #acquire = #acquired;),
    };
    let handler = handler(args);
    // clippy can demand it, and then does so for an expansion too.
    let returned = (!function.output.is_never()).then(|| quote_spanned!(site=> return));
    let section = match &args.on_contended {
        OnContended::Closure(closure) => {
            let section = section(args, function);
            let contended = handler_arm(args, &Handler::Closure(closure.clone()), ErrorForm::Boxed);
            // A binding, so that no temporary of the `.await` lives on.
            let acquired = local("acquired", site);
            quote_spanned! {site=>
                let #acquired = #krate::macro_support::acquire_or_contended(#acquire).await;
                #returned match #acquired {
                    ::core::result::Result::Ok(#acquire) => #section,
                    #contended
                }
            }
        }
        OnContended::Error | OnContended::Skip(_) => {
            let section = section(args, function);
            quote_spanned!(site=> #returned #section)
        }
    };
    let import = args.krate.import();
    let steps = quote_spanned! {site=>
        #import
        let #output = #return_type;
        #declared
        #acquire_into_slot
        #handler
        #section
    };
    function.with(steps)
}

/// Writes the function without a lock, after an error in the attribute. So the rest of the file
/// keeps its types and its completion. What `bind` names exists, and variables that only the
/// attribute uses are not reported as unused.
pub(crate) fn without_lock(args: &Args, function: &Function) -> TokenStream {
    let (used, statements) = parameters::all_used(function);
    let site = Span::mixed_site();
    function.with(match &args.bind {
        // Nothing says which lock the body uses.
        Some(_) if args.has_lock() && args.lock.is_none() => {
            quote_spanned!(site=> #used loop {})
        }
        bind => {
            let bound = bind.as_ref();
            let bound = bound.map(|bind| bind::without_lock(bind, args, function));
            quote_spanned!(site=> #used #bound #statements)
        }
    })
}

/// Makes a local of the expansion. Hygiene separates it from the user's locals, but a pattern could
/// still name a user's item. So the name has a prefix that no item has.
fn local(name: &str, site: Span) -> Ident {
    Ident::new(&format!("__distributed_lock_{name}"), site)
}

/// Writes code that never runs, and shows the compiler two properties of the function without the
/// attribute: its return type, and the order in which the boxed future of `#[async_trait]`
/// captures.
fn declared(args: &Args, function: &Function) -> Option<TokenStream> {
    match &function.kind {
        FnKind::AsyncFn if function.output.is_never() => None,
        FnKind::AsyncFn => {
            let site = function.output.site();
            let krate = args.krate.at(site);
            let output = local("output", site);
            Some(quote_spanned! {site=>
                if false { return #krate::macro_support::typed_return(#output); }
            })
        }
        FnKind::BoxPin(_) => {
            let site = function.body.site();
            let mentions = parameters::mention_all(function);
            (!mentions.is_empty()).then(|| quote_spanned!(site=> if false { #mentions }))
        }
    }
}

/// Writes the acquire, the body and the release, and the return value.
fn section(args: &Args, function: &Function) -> TokenStream {
    let site = Span::mixed_site();
    let [body_name, bound] = ["body", "bound"].map(|name| local(name, site));
    let slot = slot(args);
    let bound = args.bind.as_ref().map(|bind| {
        let site = site.located_at(bind.span());
        quote_spanned!(site=> let #bound = &#slot;)
    });
    let body = body(args, function);
    let run = match args.release {
        ReleaseMode::Confirm => quote_spanned!(site=> run_body_then_release),
        ReleaseMode::Background => quote_spanned!(site=> run_body),
    };
    let on_lost = match args.on_lost {
        OnLostArg::Cancel => quote_spanned!(site=> Cancel),
        OnLostArg::Continue => quote_spanned!(site=> Continue),
    };
    // `core::pin::pin!` binds the name `pinned`. A constant or a unit struct of the user with this name would not let it;
    // a function does. Other macros that pin contain an `allow`, which the user may forbid.
    let body = quote_spanned! {site=>
        #bound
        let #body_name = #body;
        let #body_name = { fn pinned() {} ::core::pin::pin!(#body_name) };
    };
    // When this future is not `Send`, the reason is the return type. The compiler points at it.
    let site = function.output.site();
    let krate = args.krate.at(site);
    let [acquire, body_name] = ["acquire", "body"].map(|name| local(name, site));
    let run = |map_outcome: TokenStream| {
        let map_outcome = completing(args, function, map_outcome);
        quote_spanned! {site=>
            #krate::macro_support::#run(
                &#slot,
                #acquire,
                #krate::macro_support::OnLost::#on_lost,
                #body_name,
                #map_outcome,
            ).await
        }
    };
    match &args.on_error {
        None => {
            let run = run(default_handler(args, function));
            quote_spanned!(site=> { #body #run })
        }
        // The body is dropped before the handler runs. The handler may need what the body holds.
        Some(handler) => {
            let run = run(quote_spanned!(site=> #krate::macro_support::ReturnOutcome));
            let skipped = skipped_arm(args, function);
            let failed = handler_arm(args, handler, ErrorForm::Plain);
            let value = local("value", function.body.site());
            quote_spanned! {site=>
                match { #body #run } {
                    ::core::result::Result::Ok(#value) => #value,
                    #skipped
                    #failed
                }
            }
        }
    }
}

/// Lets the result of a function with `once_per` say whether it has succeeded. The method that the closure calls is
/// chosen by the type of the result.
fn completing(args: &Args, function: &Function, map_outcome: TokenStream) -> TokenStream {
    if args.timing.once_per.is_none() || function.output.is_never() {
        return map_outcome;
    }
    let site = function.output.site();
    let krate = args.krate.at(site);
    let [output, value] = ["output", "value"].map(|name| local(name, site));
    quote_spanned! {site=>
        #krate::macro_support::completing(
            #output,
            #map_outcome,
            |#value| #krate::macro_support::Success(#value).has_succeeded(),
        )
    }
}

/// Writes the body's future. `?` and `return` leave only this block, so the release always runs.
fn body(args: &Args, function: &Function) -> TokenStream {
    let block = block(parameters::statements(args, function), function.body.span);
    let site = function.body.site();
    let ParameterCode { mentions, bindings } = parameters::capture(args, function);
    // The compiler reads the type before the body. So its type errors point at the user's tokens.
    let typed = (!function.output.is_never()).then(|| {
        let site = function.output.site();
        let krate = args.krate.at(site);
        let output = local("output", site);
        quote_spanned!(site=> return #krate::macro_support::typed_return(#output);)
    });
    let never_run = (mentions.is_some() || typed.is_some())
        .then(|| quote_spanned!(site=> if false { #mentions #typed }));
    let bind = bind::bind(args);
    // The compiler reports an assignment to a captured `self` that nothing reads, but not one to the receiver of a plain
    // function. No code in place of this `allow` can avoid that: the body cannot bind `self` again, a use behind the
    // body is not reached by its `return`s, and a body that only borrowed `self` would drop it after the release.
    let captured = (mentions.is_some() && function.can_assign_self)
        .then(|| quote_spanned!(site=> #[allow(unused_assignments)]));
    // The block is a match arm, because elsewhere the compiler reports the braces of a short body as
    // unused. The block must contain no token of this crate, such as a label. Otherwise it would
    // get this crate's edition, which decides in which order the block drops its values.
    quote_spanned!(site=> async move {
        #never_run
        #bindings
        #bind
        match () { #captured () => #block }
    })
}

fn manager(args: &Args) -> TokenStream {
    let Some(manager) = &args.manager else {
        return quote_spanned!(Span::mixed_site()=> ::core::option::Option::None);
    };
    let site = Span::mixed_site().located_at(manager.span());
    let krate = args.krate.at(site);
    let found = local("manager", site);
    // With one step, the arms of a `match` would have to be references to a manager.
    quote_spanned!(site=> {
        let #found = &#manager;
        #krate::macro_support::manager(#found)
    })
}

/// The function that acquires, and what it acquires.
struct AcquireCall {
    path: TokenStream,
    name: TokenStream,
}

fn acquire_call(args: &Args, function: &Function) -> AcquireCall {
    let call = |site, called: &str, name| {
        let (krate, called) = (args.krate.at(site), Ident::new(called, site));
        let path = quote_spanned!(site=> #krate::macro_support::#called);
        AcquireCall { path, name }
    };
    if let Some(lock) = &args.lock {
        let called = match args.kind.mode {
            None | Some(Mode::ReadWrite) => "acquire_held",
            Some(Mode::Exclusive) => "acquire_exclusive",
            Some(Mode::Read) => "acquire_read",
            Some(Mode::Write) => "acquire_write",
        };
        let site = Span::mixed_site().located_at(lock.span());
        return call(site, called, lock.to_token_stream());
    }
    let site = Span::mixed_site();
    match &args.name {
        Some(NamesArg::One(one)) => call(site, "acquire", name(one, args, function)),
        Some(NamesArg::List(names, _)) => {
            // The elements of an array are evaluated in the order in which they are written.
            let names = names.iter().map(|one| name(one, args, function));
            call(site, "acquire_all", quote_spanned!(site=> [#(#names),*]))
        }
        // A missing name is an error, so this is never written.
        None => call(site, "acquire", TokenStream::new()),
    }
}

fn name_from_expression(name: &Expr, krate: &CratePath, scope: &Scope) -> TokenStream {
    let site = Span::mixed_site().located_at(name.span());
    let krate = krate.at(site);
    let parameters = parameters_not_in_the_value(name, scope);
    quote_spanned!(site=> #krate::macro_support::name_from_expression(#name, &[#(#parameters),*]))
}

fn name(name: &NameArg, args: &Args, function: &Function) -> TokenStream {
    let name = match name {
        NameArg::Template(template) => template.expand(&args.krate, &function.scope),
        NameArg::Expression(name) => name_from_expression(name, &args.krate, &function.scope),
    };
    let Some(tag) = &args.hash_tag else {
        return name;
    };
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let tag = tag.expand(&args.krate, &function.scope);
    quote_spanned!(site=> #krate::macro_support::name_with_hash_tag(#tag, #name))
}

/// Returns the parameters whose placeholders the value of an expression must not contain. The
/// attribute does not read an expression as a template, so a template in a constant would not be
/// expanded. Any other value may contain braces and the name of a parameter by chance.
fn parameters_not_in_the_value(name: &Expr, scope: &Scope) -> Vec<String> {
    if is_text_of_code(name) {
        scope.names().collect()
    } else {
        Vec::new()
    }
}

/// Writes an `on_error` that is no closure. It is evaluated before the first `.await`, so that it
/// can use values that the body moves.
fn handler(args: &Args) -> Option<TokenStream> {
    let Some(Handler::Expression(handler)) = &args.on_error else {
        return None;
    };
    let site = Span::mixed_site().located_at(handler.span());
    let krate = args.krate.at(site);
    let [name, output] = ["handler", "output"].map(|name| local(name, site));
    // The item prevents a warning about braces around a single closure. They are needed here:
    // they say when it is evaluated.
    let handler = match handler {
        Expr::Block(ExprBlock {
            attrs,
            label: None,
            block,
        }) if attrs.is_empty() => {
            let statements = &block.stmts;
            quote_spanned!(site=> { const _: () = (); #(#statements)* })
        }
        other => other.to_token_stream(),
    };
    Some(quote_spanned! {site=>
        let #name = #krate::macro_support::handler(#output, #handler);
    })
}

/// Writes the match arm that skips a held lock.
fn skipped_arm(args: &Args, function: &Function) -> Option<TokenStream> {
    let OnContended::Skip(word) = &args.on_contended else {
        return None;
    };
    let site = Span::mixed_site().located_at(word.span());
    let krate = args.krate.at(site);
    let error = local("error", site);
    let written = function.output.written(&args.krate);
    Some(quote_spanned! {site=>
        ::core::result::Result::Err(#error) if #krate::macro_support::is_contended(&#error) => {
            #krate::macro_support::return_skipped::<#written>(&#error)
        }
    })
}

/// Writes the function that makes a return value from an error without `on_error`. Only here the
/// return type must be able to hold a `LockError`: every other place would repeat the same error.
fn default_handler(args: &Args, function: &Function) -> TokenStream {
    let site = function.output.site();
    let krate = args.krate.at(site);
    let written = function.output.written(&args.krate);
    let handler = match &args.on_contended {
        OnContended::Skip(_) => quote_spanned!(site=> return_skipped_or_error),
        OnContended::Error | OnContended::Closure(_) => quote_spanned!(site=> return_error),
    };
    quote_spanned! {site=>
        #krate::macro_support::map_error_with(#krate::macro_support::#handler::<#written>)
    }
}

/// The form of the error in a match arm.
#[derive(Clone, Copy)]
enum ErrorForm {
    Plain,
    Boxed,
}

/// Writes the match arm that calls a handler with the error.
fn handler_arm(args: &Args, handler: &Handler, form: ErrorForm) -> TokenStream {
    let site = Span::mixed_site().located_at(handler.span());
    let krate = args.krate.at(site);
    let [output, name] = ["output", "error"].map(|name| local(name, site));
    let error = match form {
        ErrorForm::Plain => name.to_token_stream(),
        ErrorForm::Boxed => quote_spanned!(site=> *#name),
    };
    let handler = match handler {
        Handler::Closure(closure) => with_type(closure.clone(), &krate, site).into_token_stream(),
        Handler::Expression(_) => local("handler", site).into_token_stream(),
    };
    quote_spanned! {site=>
        ::core::result::Result::Err(#name) => {
            #krate::macro_support::call_handler(#output, #handler, #error)
        }
    }
}

/// Writes the type of the closure's parameter. Clippy then does not call the closure redundant: the option requires
/// one, so the user could not follow that advice.
fn with_type(mut closure: ExprClosure, krate: &TokenStream, site: Span) -> ExprClosure {
    if let Some(input) = closure.inputs.first_mut()
        && !matches!(input, Pat::Type(_))
    {
        *input = Pat::Type(PatType {
            attrs: Vec::new(),
            pat: Box::new(input.clone()),
            colon_token: Token![:](site),
            ty: Box::new(Type::Verbatim(quote_spanned!(site=> #krate::LockError))),
        });
    }
    closure
}

#[cfg(test)]
mod tests;
