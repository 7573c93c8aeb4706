//! The options between the parentheses of the attribute.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Token};

use crate::duration::{DurationArg, DurationOption};
use crate::errors::{Errors, list, nearest};
use crate::function::names_in;
use crate::scope::Scope;
use crate::template::Template;
use crate::timing::{Renew, Timing};
use crate::value::{
    CratePath, Handler, NameArg, OnContended, OnLost, ReleaseMode, hash_tag, identifier, peel,
    refuse_await,
};

/// Every option, with a value to show in messages.
const OPTIONS: [(&str, &str); 14] = [
    ("name", "\"...\""),
    ("ttl", "\"30s\""),
    ("wait", "\"5s\""),
    ("renew", "auto"),
    ("max_hold", "\"1h\""),
    ("min_hold", "\"5s\""),
    ("on_contended", "skip"),
    ("on_error", "|e| ..."),
    ("on_lost", "cancel"),
    ("release", "confirm"),
    ("bind", "held"),
    ("manager", "..."),
    ("hash_tag", "\"...\""),
    ("crate", "::lock_core"),
];

/// What other libraries call our options, without capitals and underscores.
const ELSEWHERE: [(&str, &[&str]); 9] = [
    (
        "name",
        &[
            "key", "keys", "keyname", "lock", "lockname", "id", "resource", "lockkey",
        ],
    ),
    (
        "ttl",
        &[
            "expire",
            "expires",
            "expiry",
            "expiration",
            "lease",
            "leasetime",
            "leaseduration",
            "lockatmostfor",
            "timetolive",
            "px",
            "ex",
            "duration",
            "keyvalidity",
            "locktimeout",
        ],
    ),
    (
        "wait",
        &[
            "timeout",
            "acquiretimeout",
            "waittime",
            "waittimeout",
            "blockingtimeout",
            "maxwait",
            "retry",
            "retries",
            "retrycount",
            "retrydelay",
            "tries",
            "block",
            "blocking",
        ],
    ),
    (
        "renew",
        &[
            "autorenew",
            "renewal",
            "watchdog",
            "extend",
            "autoextend",
            "keepalive",
            "refresh",
        ],
    ),
    ("min_hold", &["lockatleastfor", "autorelease"]),
    (
        "on_contended",
        &[
            "onbusy",
            "onlocked",
            "locktimeoutstrategy",
            "skip",
            "failfast",
        ],
    ),
    (
        "on_error",
        &["onfail", "onfailure", "lockfailurestrategy", "onerr"],
    ),
    ("bind", &["guard", "held", "handle", "token"]),
    (
        "manager",
        &[
            "client",
            "redis",
            "pool",
            "locks",
            "lockmanager",
            "connection",
            "executor",
        ],
    ),
];

const NOT_A_PAIR: &str = "expected `option = value`; did you mean ";

/// What the user asked for. A field is `None` also when its value was wrong.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) name: Option<NameArg>,
    pub(crate) hash_tag: Option<Template>,
    pub(crate) timing: Timing,
    pub(crate) on_contended: OnContended,
    pub(crate) on_error: Option<Handler>,
    pub(crate) on_lost: OnLost,
    pub(crate) release: ReleaseMode,
    pub(crate) bind: Option<Ident>,
    pub(crate) manager: Option<Expr>,
    pub(crate) krate: CratePath,
}

impl Args {
    /// Reads `tokens`; what is wrong with them goes to `errors`.
    pub(crate) fn new(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut reader = OptionParser {
            args: Self::default(),
            errors,
            seen: BTreeSet::new(),
            meant_name: false,
        };
        let read = Parser::parse2(|input: ParseStream<'_>| reader.read(input), tokens);
        let OptionParser {
            args,
            seen,
            meant_name,
            ..
        } = reader;
        if let Err(error) = read {
            errors.push(error);
        }
        args.timing.check(errors);
        if !seen.contains("name") && !meant_name {
            errors.at(
                Span::call_site(),
                "missing option `name`: `#[distributed_lock(name = \"...\", ttl = \"30s\")]`",
            );
        }
        args
    }

    /// Checks what depends on the function.
    pub(crate) fn resolve(&self, scope: &Scope, errors: &mut Errors) {
        if let Some(name) = &self.name {
            name.resolve(scope, errors);
        }
        if let Some(tag) = &self.hash_tag {
            tag.resolve("hash_tag", scope, errors);
        }
        self.timing.resolve(scope, errors);
        if let (Some(NameArg::Template(name)), Some(_)) = (&self.name, &self.hash_tag) {
            name.check_behind_a_tag(errors);
        }
        if let Some(bind) = &self.bind
            && scope.has_parameter(bind)
        {
            errors.on(
                bind,
                format!("`bind = {bind}` hides the parameter `{bind}`"),
            );
        }
    }
}

impl Args {
    /// Every name in an expression of an option: a closure or a block may change what it names.
    pub(crate) fn names_in_expressions(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |tokens: TokenStream| names_in(tokens, &mut names);
        if let Some(NameArg::Expression(name)) = &self.name {
            add(name.to_token_stream());
        }
        if let Some(manager) = &self.manager {
            add(manager.to_token_stream());
        }
        if let OnContended::Closure(closure) = &self.on_contended {
            add(closure.to_token_stream());
        }
        match &self.on_error {
            Some(Handler::Closure(closure)) => add(closure.to_token_stream()),
            Some(Handler::Expression(expression)) => add(expression.to_token_stream()),
            None => {}
        }
        for dynamic in self.timing.dynamic() {
            add(dynamic.to_token_stream());
        }
        names
    }

    /// Every name in an option, also in a template.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = self.names_in_expressions();
        if let Some(NameArg::Template(name)) = &self.name {
            names.extend(name.heads());
        }
        if let Some(tag) = &self.hash_tag {
            names.extend(tag.heads());
        }
        names
    }
}

struct OptionParser<'a> {
    args: Args,
    errors: &'a mut Errors,
    seen: BTreeSet<String>,
    /// Whether an error already says how to write the name.
    meant_name: bool,
}

impl OptionParser<'_> {
    fn read(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        while !input.is_empty() {
            self.option(input);
            // Whatever was wrong with this option, the next one is read.
            let unread = input.span();
            let rest = skip_to_comma(input)?;
            if rest {
                self.errors.at(unread, "expected `,` between options");
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(())
    }

    fn option(&mut self, input: ParseStream<'_>) {
        let Ok(key) = input.call(Ident::parse_any) else {
            self.not_a_pair(input, None);
            return;
        };
        if !input.peek(Token![=]) || input.peek(Token![==]) {
            self.not_a_pair(input, Some(&key));
            return;
        }
        if let Err(error) = input.parse::<Token![=]>() {
            self.errors.push(error);
            return;
        }
        let option = key.to_string();
        let known = OPTIONS.iter().find(|(known, _)| *known == option);
        let Some((_, example)) = known else {
            self.unknown(&key);
            skip_value(input);
            return;
        };
        if !self.seen.insert(option.clone()) {
            self.errors.on(&key, format!("duplicate option `{option}`"));
            skip_value(input);
            return;
        }
        if input.is_empty() || input.peek(Token![,]) {
            let message = format!("expected a value: `{option} = {example}`");
            self.errors.on(&key, message);
            return;
        }
        match input.parse() {
            Ok(value) => self.set(&option, peel(value)),
            Err(error) => {
                self.errors.push(error);
                drop(skip_to_comma(input));
            }
        }
    }

    fn set(&mut self, option: &str, value: Expr) {
        let errors = &mut *self.errors;
        let args = &mut self.args;
        match option {
            "name" => args.name = NameArg::new(value, errors),
            "ttl" => args.timing.ttl = DurationArg::new(value, DurationOption::Ttl, errors),
            "wait" => args.timing.wait = DurationArg::new(value, DurationOption::Wait, errors),
            "renew" => args.timing.renew = Renew::new(value, errors),
            "max_hold" => {
                args.timing.max_hold = DurationArg::new(value, DurationOption::MaxHold, errors)
            }
            "min_hold" => {
                args.timing.min_hold = DurationArg::new(value, DurationOption::MinHold, errors)
            }
            "on_contended" => args.on_contended = OnContended::new(value, errors),
            "on_lost" => args.on_lost = OnLost::new(&value, errors),
            "release" => args.release = ReleaseMode::new(&value, errors),
            "hash_tag" => args.hash_tag = hash_tag(&value, errors),
            "on_error" => args.on_error = Handler::new(value, errors),
            "bind" => args.bind = identifier(&value, errors),
            "manager" => {
                refuse_await(option, &value, errors);
                args.manager = Some(value);
            }
            // The table was asked before: what is left is `crate`.
            _ => args.krate = CratePath::new(value, errors),
        }
    }

    fn unknown(&mut self, key: &Ident) {
        let known = OPTIONS.iter().map(|(known, _)| *known);
        let meant = meant(&key.to_string());
        let advice = meant.map_or_else(
            || format!("expected one of: {}", list(known)),
            |meant| format!("did you mean `{meant}`?"),
        );
        self.meant_name |= meant == Some("name");
        self.errors
            .on(key, format!("unknown option `{key}`; {advice}"));
    }

    /// `"order"`, `name: "order"` or `ttl`: the advice is the option that was probably meant.
    fn not_a_pair(&mut self, input: ParseStream<'_>, key: Option<&Ident>) {
        let meant = key.and_then(|key| meant(&key.to_string()));
        let (option, example) = OPTIONS
            .iter()
            .find(|(known, _)| Some(*known) == meant)
            .unwrap_or(&OPTIONS[0]);
        self.meant_name |= *option == "name";
        let span = key.map_or_else(|| input.span(), Ident::span);
        self.errors
            .at(span, format!("{NOT_A_PAIR}`{option} = {example}`?"));
        drop(skip_to_comma(input));
    }
}

/// The option that was probably meant: by a slip, or as other libraries call it.
fn meant(key: &str) -> Option<&'static str> {
    let known = OPTIONS.iter().map(|(known, _)| *known);
    let key = key.to_lowercase();
    let plain = key.replace('_', "");
    let elsewhere = ELSEWHERE
        .iter()
        .find(|(_, words)| words.contains(&plain.as_str()));
    elsewhere
        .map(|(option, _)| *option)
        .or_else(|| nearest(&key, known))
}

/// An expression may hold commas of its own; what is no expression ends at the next one.
fn skip_value(input: ParseStream<'_>) {
    if input.parse::<Expr>().is_err() {
        drop(skip_to_comma(input));
    }
}

/// Whether there was anything before the comma.
fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<bool> {
    let mut any = false;
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<TokenTree>()?;
        any = true;
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn read(tokens: TokenStream) -> (Args, Vec<String>) {
        let mut errors = Errors::default();
        let args = Args::new(tokens, &mut errors);
        (args, errors.messages())
    }

    fn errors(tokens: TokenStream) -> Vec<String> {
        read(tokens).1
    }

    fn good(tokens: TokenStream) -> Args {
        let (args, errors) = read(tokens);
        assert_eq!(errors, <[&str; 0]>::default());
        args
    }

    const MISSING: &str =
        "missing option `name`: `#[distributed_lock(name = \"...\", ttl = \"30s\")]`";

    #[test]
    fn every_option_is_read() {
        let args = good(quote! {
            name = "order:{id}", ttl = "30s", wait = WAIT, renew = "5s", max_hold = "1h",
            min_hold = "1s", on_contended = |e| Err(e), on_error = |e| Err(e),
            on_lost = continue, release = background, hash_tag = "{id}",
            bind = held, manager = self.locks, crate = ::other::lock_core,
        });
        let timing = &args.timing;
        assert!(matches!(args.name, Some(NameArg::Template(_))));
        assert!(timing.ttl.is_some() && timing.wait.is_some());
        assert!(matches!(timing.renew, Some(Renew::Every(_))));
        assert!(timing.max_hold.is_some() && timing.min_hold.is_some());
        assert!(args.hash_tag.is_some());
        assert!(matches!(args.on_contended, OnContended::Closure(_)));
        assert!(args.on_lost == OnLost::Continue && args.release == ReleaseMode::Background);
        assert!(args.on_error.is_some() && args.manager.is_some());
        assert_eq!(
            args.bind.map(|bind| bind.to_string()).as_deref(),
            Some("held")
        );
        let krate = args.krate.at(Span::call_site()).to_string();
        assert_eq!(krate, ":: other :: lock_core");
    }

    #[test]
    fn every_option_of_the_table_is_set() {
        // `set` takes what it does not know for `crate`.
        for (option, example) in OPTIONS.iter().filter(|(option, _)| *option != "crate") {
            let value = if example.contains("...") {
                "|e| \"x\""
            } else {
                example
            };
            let tokens: TokenStream = format!("{option} = {value}").parse().unwrap_or_default();
            let args = read(tokens).0;
            let krate = args.krate.at(Span::call_site()).to_string();
            assert_eq!(
                krate,
                CratePath::default().at(Span::call_site()).to_string(),
                "{option}"
            );
        }
    }

    #[test]
    fn only_a_name_is_required() {
        let args = good(quote!(name = "x"));
        assert!(args.timing.ttl.is_none() && args.timing.wait.is_none() && args.bind.is_none());
        assert_eq!(args.krate.at(Span::call_site()).to_string(), ":: lock_core");
        assert_eq!(errors(quote!()), [MISSING]);
        assert_eq!(errors(quote!(ttl = "30s")), [MISSING]);
    }

    #[test]
    fn expressions_are_not_read_as_templates() {
        for value in [
            quote!(format!("{id}")),
            quote!(NAME),
            quote!(name(id)),
            quote!(("{")),
        ] {
            let args = good(quote!(name = #value));
            assert!(matches!(args.name, Some(NameArg::Expression(_))), "{value}");
        }
    }

    #[test]
    fn invisible_groups_are_peeled() {
        let hidden = |inner: TokenStream| {
            let inner = proc_macro2::Group::new(proc_macro2::Delimiter::None, inner);
            proc_macro2::Group::new(proc_macro2::Delimiter::None, quote!(#inner))
        };
        let (name, ttl, bind) = (
            hidden(quote!("{a}")),
            hidden(quote!("1s")),
            hidden(quote!(g)),
        );
        let args = good(quote!(name = #name, ttl = #ttl, bind = #bind));
        assert!(matches!(args.name, Some(NameArg::Template(_))));
        assert!(args.timing.ttl.is_some());
        assert!(args.bind.is_some());
    }

    #[test]
    fn unknown_options_are_named() {
        assert_eq!(
            errors(quote!(name = "x", tll = "30s")),
            ["unknown option `tll`; did you mean `ttl`?"]
        );
        assert_eq!(
            errors(quote!(name = "x", x = |a, b| f::<A, B>(a, b), ttl = "30s")),
            [
                "unknown option `x`; expected one of: `name`, `ttl`, `wait`, `renew`, `max_hold`, \
                 `min_hold`, `on_contended`, `on_error`, `on_lost`, \
                 `release`, `bind`, `manager`, `hash_tag`, `crate`"
            ]
        );
    }

    #[test]
    fn a_misspelt_name_is_one_error() {
        assert_eq!(
            errors(quote!(nane = "x")),
            ["unknown option `nane`; did you mean `name`?"]
        );
        assert_eq!(
            errors(quote!("x")),
            ["expected `option = value`; did you mean `name = \"...\"`?"]
        );
        assert_eq!(errors(quote!(name = "")), ["lock name is empty"]);
    }

    #[test]
    fn the_second_of_two_is_refused() {
        assert_eq!(
            errors(quote!(
                name = "x",
                ttl = "1s",
                ttl = "2s",
                name = "y",
                ttl = "3s"
            )),
            [
                "duplicate option `ttl`",
                "duplicate option `name`",
                "duplicate option `ttl`"
            ]
        );
    }

    #[test]
    fn what_is_no_pair_is_explained() {
        let name = "expected `option = value`; did you mean `name = \"...\"`?";
        let ttl = "expected `option = value`; did you mean `ttl = \"30s\"`?";
        assert_eq!(errors(quote!("order", ttl)), [name, ttl]);
        assert_eq!(errors(quote!(order_id)), [name]);
        assert_eq!(errors(quote!(name: "x", ttl: "30s")), [name, ttl]);
        assert_eq!(errors(quote!(name("x"))), [name]);
        assert_eq!(errors(quote!(name == "x")), [name]);
        assert_eq!(errors(quote!(,)), [name]);
    }

    #[test]
    fn a_missing_value_or_comma_is_found() {
        assert_eq!(
            errors(quote!(name = "x", wait = , ttl =)),
            [
                "expected a value: `wait = \"5s\"`",
                "expected a value: `ttl = \"30s\"`"
            ]
        );
        assert_eq!(
            errors(quote!(name = "x" ttl = "30s")),
            ["expected `,` between options"]
        );
    }

    #[test]
    fn a_half_typed_value_does_not_hide_the_rest() {
        let errors = errors(quote!(name = "x", manager = self., ttl = "30"));
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[1].starts_with("invalid duration"));
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused() {
        assert_eq!(
            errors(quote!(
                name = concat!("a", "{b}"),
                on_error = "handler",
                bind = a.b,
                crate = lock_core
            )),
            [
                "write one literal; `concat!` is not read as a template",
                "`on_error` takes a closure: `on_error = |e| ...`",
                "`bind` takes an identifier, such as `bind = held`",
                "`crate` must be an absolute path, such as `::lock_core`",
            ]
        );
        for bind in [
            quote!("g"),
            quote!(self),
            quote!(_),
            quote!(a::b),
            quote!(1),
        ] {
            assert_eq!(
                errors(quote!(name = "x", bind = #bind)),
                ["`bind` takes an identifier, such as `bind = held`"]
            );
        }
        for krate in [
            quote!("::lock_core"),
            quote!(<T>::x),
            quote!(self::x),
            quote!(f()),
        ] {
            assert_eq!(
                errors(quote!(name = "x", crate = #krate)),
                ["`crate` must be an absolute path, such as `::lock_core`"]
            );
        }
        good(quote!(name = "x", crate = crate::reexport));
    }

    #[test]
    fn word_options_take_their_words_only() {
        let name = quote!(name = "x");
        for (tokens, expected) in [
            (
                quote!(on_contended = wait),
                "unknown value `wait` for `on_contended`; expected one of: `error`, `skip`, \
                 `|e| wait(e)`",
            ),
            (
                quote!(on_contended = 409),
                "unknown value `409` for `on_contended`; expected one of: `error`, `skip`, \
                 `|e| ...`",
            ),
            (
                quote!(renew = false),
                "unknown value `false` for `renew`; did you mean `never`?",
            ),
            (
                quote!(renew = true),
                "unknown value `true` for `renew`; did you mean `auto`?",
            ),
            (
                quote!(on_lost = a::b),
                "unknown value `a::b` for `on_lost`; expected one of: `cancel`, `continue`",
            ),
            (
                quote!(release = true),
                "unknown value `true` for `release`; expected one of: `confirm`, `background`",
            ),
        ] {
            assert_eq!(errors(quote!(#name, #tokens)), [expected]);
        }
        // `continue` is a keyword, and read as a word all the same.
        assert!(good(quote!(#name, on_lost = continue)).on_lost == OnLost::Continue);
        assert!(good(quote!(#name, on_lost = cancel)).on_lost == OnLost::Cancel);
    }

    fn resolved(tokens: TokenStream) -> Vec<String> {
        let mut errors = Errors::default();
        let scope = Scope::sample(&["a"], false);
        Args::new(tokens, &mut errors).resolve(&scope, &mut errors);
        errors.messages()
    }

    #[test]
    fn a_hash_tag_is_a_template_of_its_own() {
        for (tag, expected) in [
            (quote!("{b}"), "no parameter named `b`; parameters: `a`"),
            (quote!(""), "`hash_tag` is empty"),
            (
                quote!("{{user}}"),
                "write `hash_tag` without its braces, such as `hash_tag = \"user1\"`",
            ),
            (
                quote!(format!("x")),
                "`hash_tag` takes a template, such as `hash_tag = \"{user_id}\"`",
            ),
        ] {
            let found = resolved(quote!(name = "x", hash_tag = #tag));
            assert_eq!(found, [expected]);
        }
        assert_eq!(
            resolved(quote!(name = "{{b}}:cart", hash_tag = "{a}")),
            ["`hash_tag` cannot be combined with braces in `name`"]
        );
        assert_eq!(
            resolved(quote!(name = "{a}:q", hash_tag = "{a}")),
            [
                "a lock name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`; append another \
                 word"
            ]
        );
    }

    #[test]
    fn durations_are_held_to_each_other() {
        assert_eq!(
            errors(quote!(
                name = "x",
                ttl = "30s",
                renew = "20s",
                max_hold = "10s",
                min_hold = "40s"
            )),
            [
                "`renew` (\"20s\") must be at most half of `ttl` (\"30s\")",
                "`max_hold` (\"10s\") must be longer than `ttl` (\"30s\")",
                "`min_hold` (\"40s\") must be shorter than `ttl` (\"30s\")",
            ]
        );
        assert_eq!(
            errors(quote!(name = "x", max_hold = "1h", renew = never)),
            ["`max_hold` needs renewal; remove `renew = never`"]
        );
    }

    #[test]
    fn nothing_is_awaited_for_the_name() {
        assert_eq!(
            errors(quote!(name = a(b(c).await), manager = d.await)),
            [
                "`.await` is not allowed in `name`",
                "`.await` is not allowed in `manager`"
            ]
        );
    }

    #[test]
    fn nothing_is_awaited_for_an_answer() {
        assert_eq!(
            errors(quote!(
                name = "x",
                on_error = async |e| f(e),
                on_contended = async move |e| f(e)
            )),
            [
                "`on_error` cannot await; leave out `async`",
                "`on_contended` cannot await; leave out `async`"
            ]
        );
    }

    #[test]
    fn a_bound_guard_hides_no_parameter() {
        let scope = Scope::sample(&["g", "r#type"], false);
        for (bind, expected) in [
            (quote!(g), vec!["`bind = g` hides the parameter `g`"]),
            (
                quote!(r#type),
                vec!["`bind = r#type` hides the parameter `r#type`"],
            ),
            (quote!(held), vec![]),
        ] {
            let mut errors = Errors::default();
            Args::new(quote!(name = "x", bind = #bind), &mut errors).resolve(&scope, &mut errors);
            assert_eq!(errors.messages(), expected);
        }
    }

    #[test]
    fn a_path_is_located_where_it_serves() {
        let given = good(quote!(name = "x", crate = ::a::b)).krate;
        assert_eq!(given.at(Span::mixed_site()).to_string(), ":: a :: b");
    }
}
