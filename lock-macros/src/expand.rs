//! The function that is emitted.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, ExprBlock};

use crate::args::Args;
use crate::function::{FnKind, Function, names_in};
use crate::scope::{Parameter, Scope};
use crate::value::{Handler, NameArg, OnContended, OnLost, ReleaseMode};

/// One function with the signature of `function`, which holds the lock while the body runs.
///
/// Locals are hygienic (`mixed_site`), so no name of ours can meet one of the user's. Tokens that
/// serve an option or the return type are located at it, so that the compiler's own errors about it
/// point there.
pub(crate) fn expand(args: &Args, function: Function) -> TokenStream {
    let taken = taken_over(args, &function);
    let function = &function.without_mut(&taken);
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let [output, acquire] = ["output", "acquire"].map(|name| local(name, site));
    let slot = slot(args);

    let return_type = function.output.expand(&args.krate);
    let declared = declared(args, function);
    let manager = manager(args);
    let name = name(args, function);
    // A function that is skipped when the lock is held does not wait first, unless it says so.
    let tries_once = matches!(args.on_contended, OnContended::Skip(_));
    let options = args
        .timing
        .expand(&args.krate, &function.generics, tries_once);
    let handler = handler(args);
    let section = match &args.on_contended {
        OnContended::Closure(closure) => {
            let section = section(args, function);
            let answer = call(args, &Handler::Closure(closure.clone()), ErrorForm::Boxed);
            // Bound first, so that no temporary of the `.await` is left at the end.
            let acquired = local("acquired", site);
            quote_spanned! {site=>
                let #acquired = #krate::macro_support::acquire_or_contended(#acquire).await;
                match #acquired {
                    ::core::result::Result::Ok(#acquire) => #section,
                    #answer
                }
            }
        }
        OnContended::Error | OnContended::Skip(_) => section(args, function),
    };
    let steps = quote_spanned! {site=>
        let #output = #return_type;
        #declared
        let #slot = #krate::macro_support::GuardSlot::new();
        let #acquire = #krate::macro_support::acquire(#manager, #name, #options);
        #handler
        #section
    };
    function.with(steps)
}

/// The function as it was, for an attribute with errors: the rest of the file keeps its types and
/// its completion. What only the attribute would use is not reported as unused, nor the bound
/// guard as unknown.
pub(crate) fn without_lock(args: &Args, function: &Function) -> TokenStream {
    let site = Span::mixed_site();
    let bound = args.bind.as_ref().map(|bind| {
        let krate = args.krate.at(site);
        let never = quote_spanned! {site=>
            #krate::macro_support::typed_return(#krate::macro_support::ReturnType::new())
        };
        quote_spanned!(site=> let #bind: &#krate::LockGuard = #never;)
    });
    let function = function.as_it_was(bound);
    quote_spanned!(site=> #[allow(unused_variables, unused_mut)] #function)
}

/// A local of the expansion. Hygiene keeps it apart from the locals of the user, but not from the
/// user's items, which a pattern would mean: so it has a prefix that no item has.
fn local(name: &str, site: Span) -> Ident {
    Ident::new(&format!("__distributed_lock_{name}"), site)
}

/// What tells the compiler, in code that never runs, how the function would be without the
/// attribute: which type it returns, and which parameters the boxed future of `#[async_trait]`
/// takes first.
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
            let words = function.names_in_the_body();
            let receiver = function.scope.find("self").map(|it| (it, [].as_slice()));
            let parameters = function.scope.parameters().iter();
            let parameters =
                parameters.map(|it| (TokenTree::Ident(it.name.clone()), it.attributes.as_slice()));
            let named = receiver
                .into_iter()
                .chain(parameters)
                .filter(|(it, _)| match it {
                    TokenTree::Ident(name) => words.contains(&name.unraw().to_string()),
                    _ => false,
                });
            let named = named.map(|(name, attributes)| {
                let cfg = attributes.iter().filter(|it| it.path().is_ident("cfg"));
                quote_spanned!(site=> #(#cfg)* { let _ = &#name; })
            });
            let named: TokenStream = named.collect();
            (!named.is_empty()).then(|| quote_spanned!(site=> if false { #named }))
        }
    }
}

/// How the body takes the parameters that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capture {
    /// They are bound anew, as the compiler does in a plain `async fn`: the body takes them whole, and
    /// not only the fields that it names, drops them in the order of a plain function, and the compiler
    /// says of them what it says there.
    Bound,
    /// They are named in code that never runs, so that the block around takes them whole: in the order
    /// in which it is to drop them.
    Named(Order),
    /// `#[async_trait]` has the body begin with bindings.
    AsWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As parameters are dropped.
    Reverse,
    /// Of their first use: so does the block of `#[instrument]`, which is around ours then.
    FirstUse,
}

impl Capture {
    fn new(args: &Args, function: &Function) -> Self {
        let in_the_body = function.names_in_the_body();
        let in_options = args.names_in_expressions();
        let is_in = |names: &[String], name: &Ident| names.contains(&name.unraw().to_string());
        // A binding that is changed by an option and by the body stays one.
        let is_shared = |parameter: &Parameter| {
            is_in(&in_the_body, &parameter.name)
                && ((parameter.mutability.is_some() && is_in(&in_options, &parameter.name))
                    || parameter.expects_a_lint())
        };
        if matches!(function.kind, FnKind::BoxPin(_)) {
            Self::AsWritten
        } else if function.is_instrumented() {
            Self::Named(Order::FirstUse)
        } else if matches!(args.on_contended, OnContended::Closure(_))
            || function.scope.parameters().iter().any(is_shared)
        {
            // Where the closure of `on_contended` may see them they are kept until then, and one more
            // binding would be one more copy.
            Self::Named(Order::Reverse)
        } else {
            Self::Bound
        }
    }
}

/// What the body begins with.
struct Parameters {
    /// In code that never runs.
    named: Option<TokenStream>,
    bound: TokenStream,
}

fn parameters(args: &Args, function: &Function) -> Parameters {
    let site = function.body.site();
    let taking = Capture::new(args, function);
    let words = function.names_in_the_body();
    let place = |name: &Ident| {
        let name = name.unraw().to_string();
        words.iter().position(|word| *word == name)
    };
    let mut named: Vec<(usize, TokenStream)> = Vec::new();
    let (mut bound, mut used) = (TokenStream::new(), TokenStream::new());
    if let Some(TokenTree::Ident(receiver)) = function.scope.find("self")
        && function.takes_self()
        && taking != Capture::AsWritten
        && let Some(place) = place(&receiver)
    {
        // It cannot be bound anew.
        named.push((place, quote_spanned!(site=> { let _ = &#receiver; })));
    }
    let in_options = args.names();
    for parameter in function.scope.parameters() {
        let Parameter {
            name,
            mutability,
            attributes,
            is_reference,
        } = parameter;
        // A reference is taken whole in any case.
        let Some(place) = place(name).filter(|_| !is_reference || mutability.is_some()) else {
            continue;
        };
        match taking {
            Capture::AsWritten => {}
            Capture::Named(_) => {
                let cfg = attributes.iter().filter(|it| it.path().is_ident("cfg"));
                named.push((place, quote_spanned!(site=> #(#cfg)* { let _ = &#name; })));
            }
            Capture::Bound => {
                // A value that is never read is reported where the parameter's pattern begins.
                let mut value = name.clone();
                if let Some(token) = mutability {
                    value.set_span(name.span().located_at(token.span));
                }
                bound.extend(quote_spanned! {site=>
                    #(#attributes)*
                    let #mutability #name = #value;
                });
                // What an option uses is used, also where the body only seems to name it.
                if in_options.contains(&name.unraw().to_string()) {
                    let cfg = attributes.iter().filter(|it| it.path().is_ident("cfg"));
                    used.extend(quote_spanned!(site=> #(#cfg)* { let _ = &#name; }));
                }
            }
        }
    }
    if !used.is_empty() {
        bound.extend(quote_spanned!(site=> if false { #used }));
    }
    match taking {
        Capture::Named(Order::FirstUse) => named.sort_by_key(|(place, _)| *place),
        Capture::Named(Order::Reverse) => named.reverse(),
        Capture::Bound | Capture::AsWritten => {}
    }
    let named = (!named.is_empty()).then(|| named.into_iter().map(|(_, named)| named).collect());
    Parameters { named, bound }
}

/// The parameters whose `mut` the bindings of the body take over.
fn taken_over(args: &Args, function: &Function) -> BTreeSet<String> {
    if Capture::new(args, function) != Capture::Bound {
        return BTreeSet::new();
    }
    let words = function.names_in_the_body();
    let parameters = function.scope.parameters().iter();
    parameters
        .filter(|parameter| parameter.mutability.is_some())
        .map(|parameter| parameter.name.unraw().to_string())
        .filter(|name| words.contains(name))
        .collect()
}

/// Acquires, runs the body and releases, and returns what became of it.
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
        OnLost::Cancel => quote_spanned!(site=> Cancel),
        OnLost::Continue => quote_spanned!(site=> Continue),
    };
    // `core::pin::pin!` binds a name of its own, which an item of the user may have.
    let krate = args.krate.at(site);
    let body = quote_spanned! {site=>
        #bound
        let #body_name = #body;
        #krate::macro_support::pin!(#body_name);
    };
    // Where the compiler says of this future that it is not `Send`, the return type is why.
    let site = function.output.site();
    let krate = args.krate.at(site);
    let [acquire, body_name] = ["acquire", "body"].map(|name| local(name, site));
    let answered = |answer: TokenStream| {
        quote_spanned! {site=>
            #krate::macro_support::#run(
                &#slot,
                #acquire,
                #krate::macro_support::OnLost::#on_lost,
                #body_name,
                #answer,
            ).await
        }
    };
    match &args.on_error {
        None => {
            let section = answered(answer(args, function));
            quote_spanned!(site=> { #body #section })
        }
        // The body is dropped before the handler is called, which may need what the body holds.
        Some(handler) => {
            let section = answered(quote_spanned!(site=> #krate::macro_support::ReturnOutcome));
            let skipped = skipped(args, function);
            let failed = call(args, handler, ErrorForm::Plain);
            let value = local("value", function.body.site());
            quote_spanned! {site=>
                match { #body #section } {
                    ::core::result::Result::Ok(#value) => #value,
                    #skipped
                    #failed
                }
            }
        }
    }
}

/// The local that holds the guard. Where the body may borrow the guard, the compiler says this name
/// when a body moves it into a spawned task; it says no name that is not written in the user's
/// crate.
fn slot(args: &Args) -> Ident {
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

/// The body's future. `?` and `return` leave this block only, so the release always runs.
fn body(args: &Args, function: &Function) -> TokenStream {
    let block = function.body.block();
    let site = function.body.site();
    let Parameters { named, bound } = parameters(args, function);
    // Tells the compiler the type before it reads the body: its errors then land on the tokens
    // of the user that have another type.
    let typed = (!function.output.is_never()).then(|| {
        let site = function.output.site();
        let krate = args.krate.at(site);
        let output = local("output", site);
        quote_spanned!(site=> return #krate::macro_support::typed_return(#output);)
    });
    let never_run = (named.is_some() || typed.is_some())
        .then(|| quote_spanned!(site=> if false { #named #typed }));
    let bind = bind(args);
    // As an arm: elsewhere the compiler would find the braces of a short body superfluous. Nothing
    // of ours may be a part of the block, such as a label: it would get the edition of this crate,
    // and that decides in which order the block drops what it holds.
    // Of what is captured the compiler finds assignments superfluous that a parameter may have.
    let captured = named
        .is_some()
        .then(|| quote_spanned!(site=> #[allow(unused_assignments)]));
    quote_spanned!(site=> async move {
        #never_run
        #bound
        #bind
        match () { #captured () => #block }
    })
}

fn bind(args: &Args) -> Option<TokenStream> {
    let bind = args.bind.as_ref()?;
    let site = Span::mixed_site().located_at(bind.span());
    let krate = args.krate.at(site);
    let bound = local("bound", site);
    Some(quote_spanned! {site=>
        use #krate::macro_support::BoundGuard as _;
        let #bind: &#krate::LockGuard = #krate::macro_support::guard(#bound);
    })
}

fn manager(args: &Args) -> TokenStream {
    let Some(manager) = &args.manager else {
        return quote_spanned!(Span::mixed_site()=> ::core::option::Option::None);
    };
    let site = Span::mixed_site().located_at(manager.span());
    let krate = args.krate.at(site);
    let found = local("manager", site);
    // In two steps, or the arms of a `match` would have to be references to a manager.
    quote_spanned!(site=> {
        let #found = &#manager;
        #krate::macro_support::manager(#found)
    })
}

fn name(args: &Args, function: &Function) -> TokenStream {
    let name = match &args.name {
        Some(NameArg::Template(template)) => template.expand(&args.krate, &function.scope),
        Some(NameArg::Expression(name)) => {
            let site = Span::mixed_site().located_at(name.span());
            let krate = args.krate.at(site);
            let parameters = placeholders(name, &function.scope);
            quote_spanned!(site=> #krate::macro_support::name_from_expression(#name, &[#(#parameters),*]))
        }
        // Without a name there is an error, and nothing is expanded.
        None => TokenStream::new(),
    };
    let Some(tag) = &args.hash_tag else {
        return name;
    };
    let site = Span::mixed_site();
    let krate = args.krate.at(site);
    let tag = tag.expand(&args.krate, &function.scope);
    quote_spanned!(site=> #krate::macro_support::name_with_hash_tag(#tag, #name))
}

/// The names whose placeholders the value of `name` may not hold: an expression is not read as a
/// template, but for `lock_name!`, which replaced its placeholders.
fn placeholders(name: &Expr, scope: &Scope) -> Vec<String> {
    let mut words = Vec::new();
    names_in(name.to_token_stream(), &mut words);
    if words.iter().any(|word| word == "lock_name") {
        return Vec::new();
    }
    scope.names().collect()
}

/// Evaluates an `on_error` that is no closure as written: before anything is awaited, so that it
/// can take what the body takes, too.
fn handler(args: &Args) -> Option<TokenStream> {
    let Some(Handler::Expression(handler)) = &args.on_error else {
        return None;
    };
    let site = Span::mixed_site().located_at(handler.span());
    let krate = args.krate.at(site);
    let [name, output] = ["handler", "output"].map(|name| local(name, site));
    // Braces around a single closure are not superfluous here: they say when it is evaluated.
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

/// The arm for a lock that is skipped because it has another holder.
fn skipped(args: &Args, function: &Function) -> Option<TokenStream> {
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

/// A function that says what is returned where there is no `on_error`. The only place that asks
/// whether the return type can hold a `LockError`: each place would report the same error again.
fn answer(args: &Args, function: &Function) -> TokenStream {
    let site = function.output.site();
    let krate = args.krate.at(site);
    let written = function.output.written(&args.krate);
    let answer = match &args.on_contended {
        OnContended::Skip(_) => quote_spanned!(site=> return_skipped_or_error),
        OnContended::Error | OnContended::Closure(_) => quote_spanned!(site=> return_error),
    };
    quote_spanned! {site=>
        #krate::macro_support::map_error_with(#krate::macro_support::#answer::<#written>)
    }
}

/// What an arm gets.
#[derive(Clone, Copy)]
enum ErrorForm {
    Plain,
    Boxed,
}

/// The arm for an error that a handler answers.
fn call(args: &Args, handler: &Handler, given: ErrorForm) -> TokenStream {
    let site = Span::mixed_site().located_at(handler.span());
    let krate = args.krate.at(site);
    let [output, name] = ["output", "error"].map(|name| local(name, site));
    let error = match given {
        ErrorForm::Plain => name.to_token_stream(),
        ErrorForm::Boxed => quote_spanned!(site=> *#name),
    };
    let handler = match handler {
        Handler::Closure(closure) => closure.to_token_stream(),
        Handler::Expression(_) => local("handler", site).into_token_stream(),
    };
    // Where a closure is asked for, its author cannot follow clippy's advice.
    quote_spanned! {site=>
        #[allow(clippy::redundant_closure, clippy::redundant_closure_for_method_calls)]
        ::core::result::Result::Err(#name) => {
            #krate::macro_support::call_handler(#output, #handler, #error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Errors;
    use quote::quote;

    fn expanded(args: TokenStream, item: TokenStream) -> TokenStream {
        let mut errors = Errors::default();
        let function = Function::new(item, &mut errors);
        let args = Args::new(args, &mut errors);
        let function = function.expect("a function");
        args.resolve(&function.scope, &mut errors);
        assert_eq!(errors.messages(), <[&str; 0]>::default());
        expand(&args, function)
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
        assert_eq!(count(&text, &quote!(return_error::<Result<T, E>>)), 1);
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
        let call = quote!(call_handler(
            __distributed_lock_output,
            |e| e.code(),
            __distributed_lock_error
        ));
        assert_eq!(count(&text, &call), 1);
        assert_eq!(count(&text, &quote!(return_error)), 0);
    }

    #[test]
    fn an_on_error_that_is_no_closure_is_evaluated_first() {
        let text = text(
            quote!(name = "x", on_error = handler(app)),
            quote!(
                async fn f(app: App) -> u8 {
                    1
                }
            ),
        );
        let places: Vec<_> = ["handler (app)", "async move", "call_handler"]
            .iter()
            .map(|part| text.find(part))
            .collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{places:?}"
        );
    }

    #[test]
    fn on_contended_is_answered_before_the_body_exists() {
        let text = text(
            quote!(name = "x", on_contended = |e| busy(app, e)),
            quote!(
                async fn f(app: App) -> u8 {
                    app.run()
                }
            ),
        );
        let places: Vec<_> = ["acquire_or_contended (", "async move", "busy (app"]
            .iter()
            .map(|part| text.find(part))
            .collect();
        assert!(places.iter().all(Option::is_some), "{places:?}");
        assert_eq!(
            count(
                &text,
                &quote!(acquire_or_contended(__distributed_lock_acquire).await)
            ),
            1
        );
    }

    /// The bindings at the beginning of the body.
    fn bound(item: TokenStream, args: TokenStream) -> Vec<String> {
        let text = text(args, item);
        let (_, body) = text.split_once("async move {").expect("a body");
        let (bound, _) = body.split_once("match () {").expect("a block");
        bound
            .split("let ")
            .skip(1)
            .map(|rest| rest.split(" ;").next().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn the_body_binds_the_parameters_that_it_names_anew() {
        let all = quote!(
            async fn f(self, a: A, (b, _): (B, C), mut d: D, e: E) -> R {
                d.x = a.y;
                log!("{b} {e:?}");
                self.e()
            }
        );
        assert_eq!(
            bound(all.clone(), quote!(name = "{a}")),
            // The last one, because the name uses it.
            [
                "_ = & self",
                "a = a",
                "b = b",
                "mut d = d",
                "e = e",
                "_ = & a"
            ]
        );
        let all = text(quote!(name = "{a}"), all);
        assert!(all.contains(", d : D"), "{all}");
        let fields = quote!(
            async fn f(a: A, b: B, c: C) -> R {
                x.a + x.b() + [0; 3][..c].len()
            }
        );
        assert_eq!(bound(fields, quote!(name = "{a}")), ["c = c"]);
        let attributes = quote!(
            async fn f(
                #[cfg(x)]
                #[doc = "y"]
                #[deny(z)]
                a: A,
                b: &B,
                S {
                    #[cfg(x)]
                    c,
                    ..
                }: S,
            ) -> R {
                g(a, b, c)
            }
        );
        let attributes = text(quote!(name = "x"), attributes);
        assert_eq!(
            count(&attributes, &quote!(#[cfg(x)] #[deny(z)] let a = a;)),
            1
        );
        assert_eq!(count(&attributes, &quote!(let b = b)), 0);
        assert_eq!(count(&attributes, &quote!(#[cfg(x)] let c = c;)), 1);
    }

    #[test]
    fn what_only_looks_like_a_parameter_is_none() {
        let item = quote!(
            async fn f(a: A, b: B, c: C, d: D, e: E, g: G) -> R {
                let S { a: x } = S { a: 1 };
                b::run(self::c::run(), |d: u8| x.e);
                [0; 3][..g]
            }
        );
        assert_eq!(bound(item, quote!(name = "x")), ["g = g"]);
    }

    #[test]
    fn parameters_that_cannot_be_bound_anew_are_named() {
        let item = |attribute: TokenStream| {
            quote!(
                #attribute
                async fn f(a: A, mut b: B, #[cfg(x)] c: C) -> R {
                    b.x = a.y(c);
                }
            )
        };
        let plain = item(TokenStream::new());
        let reverse = ["_ = & c", "_ = & b", "_ = & a"];
        for args in [
            quote!(name = "x", on_contended = |e| Err(e)),
            quote!(name = b.name()),
            quote!(name = "x", ttl = dynamic(b.ttl)),
        ] {
            assert_eq!(bound(plain.clone(), args.clone()), reverse, "{args}");
            let text = text(args, plain.clone());
            assert!(text.contains("mut b : B"), "{text}");
            assert_eq!(
                count(
                    &text,
                    &quote!(
                        #[cfg(x)]
                        {
                            let _ = &c;
                        }
                    )
                ),
                1
            );
        }
        // It is instrumented after this attribute.
        let instrumented = item(quote!(#[tracing::instrument(skip_all)]));
        let first_use = ["_ = & b", "_ = & a", "_ = & c"];
        assert_eq!(bound(instrumented, quote!(name = "x")), first_use);
    }

    #[test]
    fn nothing_is_returned_where_nothing_returns() {
        let text = text(
            quote!(name = "x", on_error = |e| panic!()),
            quote!(
                async fn f() -> ! {
                    loop {}
                }
            ),
        );
        assert_eq!(count(&text, &quote!(typed_return)), 0);
    }

    #[test]
    fn every_local_has_the_prefix() {
        let tokens = expanded(
            quote!(
                name = n(a),
                ttl = TTL,
                manager = m,
                bind = held,
                on_contended = |e| e,
                on_error = { |e| e }
            ),
            quote!(
                async fn f(a: A) -> R {
                    a
                }
            ),
        );
        let text = tokens.to_string();
        for (at, _) in text.match_indices("let ") {
            let rest = &text[at + 4..];
            assert!(
                ["__distributed_lock_", "__guard_ends_", "_ = & a", "held :"]
                    .iter()
                    .any(|start| rest.starts_with(start)),
                "{rest}"
            );
        }
        for variant in ["Ok (", "Err ("] {
            for (at, _) in text.match_indices(variant) {
                let rest = &text[at + variant.len()..];
                assert!(rest.starts_with("__distributed_lock_"), "{rest}");
            }
        }
    }

    #[test]
    fn a_function_with_errors_is_warned_of_nothing() {
        let mut errors = Errors::default();
        let item = quote!(
            pub async fn f(id: u8) -> R {
                #![allow(x)]
                held.key()
            }
        );
        let function = Function::new(item, &mut errors).expect("a function");
        let args = Args::new(quote!(name = "{ide}", bind = held), &mut errors);
        let text = without_lock(&args, &function).to_string();
        let head = quote!(#[allow(unused_variables, unused_mut)] pub async fn f(id: u8) -> R);
        let first = quote!(#![allow(x)] let held: &::lock_core::LockGuard =);
        assert!(text.starts_with(&format!("{head} {{ {first}")), "{text}");
        assert!(text.ends_with("; held . key () }"), "{text}");
    }

    #[test]
    fn the_manager_comes_before_the_name_and_the_name_before_the_lock() {
        let text = text(
            quote!(name = make(id), manager = find(id)),
            quote!(
                async fn f(id: u8) -> R {}
            ),
        );
        let places: Vec<_> = [
            "macro_support :: acquire (",
            "find (id)",
            "make (id)",
            "async move",
        ]
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
        assert_eq!(count(&text, &quote!(let g: &::x::y::LockGuard =)), 1);
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
        let paths = ["Result ::", "Option ::", "Duration ::", "pin !"];
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
        assert_eq!(count(&text, &quote!(ReturnType::<Result<T, E>>::new())), 1);
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
        let start = quote!(#![allow(a)] let __distributed_lock_output).to_string();
        assert!(text.contains(&format!("-> R {{ {start}")), "{text}");
    }
}
