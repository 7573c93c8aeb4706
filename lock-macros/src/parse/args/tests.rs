use quote::quote;

use super::*;

fn parse(tokens: TokenStream) -> (Args, Vec<String>) {
    let mut errors = Errors::default();
    let args = Args::parse(tokens, &mut errors);
    (args, errors.messages())
}

fn errors(tokens: TokenStream) -> Vec<String> {
    parse(tokens).1
}

fn valid(tokens: TokenStream) -> Args {
    let (args, errors) = parse(tokens);
    assert_eq!(errors, <[&str; 0]>::default());
    args
}

const MISSING: &str = "missing option `name`: `#[distributed_lock(name = \"...\", ttl = \"30s\")]`";

#[test]
fn every_option_is_read() {
    let args = valid(quote! {
        name = "order:{id}", ttl = "30s", wait = WAIT, renew = "5s", max_hold = "1h",
        min_hold = "1s", on_contended = |e| Err(e), on_error = |e| Err(e),
        on_lost = continue, release = background, mode = read, hash_tag = "{id}",
        bind = held, manager = self.locks, crate = ::other::lock_core,
    });
    let timing = &args.timing;
    assert!(matches!(
        args.name,
        Some(NamesArg::One(NameArg::Template(_)))
    ));
    assert!(timing.ttl.is_some() && timing.wait.is_some());
    assert!(matches!(timing.renew, Some(RenewArg::Every(_))));
    assert!(timing.max_hold.is_some() && timing.min_hold.is_some());
    assert!(args.hash_tag.is_some());
    assert_eq!(args.kind.mode, Some(Mode::Read));
    assert!(matches!(args.on_contended, OnContended::Closure(_)));
    assert!(args.on_lost == OnLostArg::Continue && args.release == ReleaseMode::Background);
    assert!(args.on_error.is_some() && args.manager.is_some());
    assert_eq!(
        args.bind.map(|bind| bind.to_string()).as_deref(),
        Some("held")
    );
    let import = args.krate.import().map(|import| import.to_string());
    let import = import.unwrap_or_default();
    assert!(
        import.starts_with("use :: other :: lock_core ::"),
        "{import}"
    );
}

#[test]
fn every_option_of_the_table_has_a_field() {
    // `set` reads an option that it does not know as `crate`.
    for (option, example) in OPTIONS.iter().filter(|(option, _)| *option != "crate") {
        let value = if example.contains("...") {
            "|e| \"x\""
        } else {
            example
        };
        let tokens: TokenStream = format!("{option} = {value}").parse().unwrap_or_default();
        let args = parse(tokens).0;
        assert!(args.krate.is_default(), "{option}");
    }
}

#[test]
fn only_name_is_required() {
    let args = valid(quote!(name = "x"));
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
        let args = valid(quote!(name = #value));
        assert!(
            matches!(args.name, Some(NamesArg::One(NameArg::Expression(_)))),
            "{value}"
        );
    }
}

#[test]
fn invisible_groups_are_removed() {
    let hidden = |inner: TokenStream| {
        let inner = proc_macro2::Group::new(proc_macro2::Delimiter::None, inner);
        proc_macro2::Group::new(proc_macro2::Delimiter::None, quote!(#inner))
    };
    let (name, ttl, bind) = (
        hidden(quote!("{a}")),
        hidden(quote!("1s")),
        hidden(quote!(g)),
    );
    let args = valid(quote!(name = #name, ttl = #ttl, bind = #bind));
    assert!(matches!(
        args.name,
        Some(NamesArg::One(NameArg::Template(_)))
    ));
    assert!(args.timing.ttl.is_some());
    assert!(args.bind.is_some());
}

#[test]
fn unknown_option_is_quoted() {
    assert_eq!(
        errors(quote!(name = "x", tll = "30s")),
        ["unknown option `tll`; did you mean `ttl`?"]
    );
    assert_eq!(
        errors(quote!(name = "x", x = |a, b| f::<A, B>(a, b), ttl = "30s")),
        [
            "unknown option `x`; expected one of: `name`, `lock`, `ttl`, `wait`, `outage_wait`, `renew`, `max_hold`, \
             `min_hold`, `once_per`, `mode`, `permits`, `weight`, `max_queue`, \
             `on_contended`, `on_error`, `on_lost`, \
             `release`, `bind`, `manager`, `hash_tag`, `crate`"
        ]
    );
}

#[test]
fn misspelt_name_is_one_error() {
    assert_eq!(
        errors(quote!(nane = "x")),
        ["unknown option `nane`; did you mean `name`?"]
    );
    assert_eq!(
        errors(quote!("x")),
        ["expected `option = value`; did you mean `name = \"...\"`?"]
    );
}

#[test]
fn second_of_two_options_is_rejected() {
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
            "duplicate option `name`; lock several names with a list: `name = [\"a:{x}\", \"b:{y}\"]`",
            "duplicate option `ttl`"
        ]
    );
}

#[test]
fn list_of_declared_locks_is_rejected() {
    let list = "`lock` takes one declared lock; lock several names with \
                `name = [\"a:{x}\", \"b:{y}\"]` or `LockManager::lock_all`";
    for value in [
        quote!([A, B]),
        quote!((A, B(id))),
        quote!(&[A, B]),
        quote!(([A, B])),
        quote!(vec![A, B]),
    ] {
        assert_eq!(errors(quote!(lock = #value)), [list], "{value}");
    }
    assert_eq!(
        errors(quote!(lock = A, lock = B)),
        [format!("duplicate option `lock`; {list}")]
    );
    for value in [quote!((A)), quote!([A, B].pick()), quote!((a, b).0)] {
        assert_eq!(errors(quote!(lock = #value)), <[&str; 0]>::default());
    }
}

#[test]
fn option_without_value_is_explained() {
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
fn missing_value_or_comma_is_found() {
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
fn half_typed_value_does_not_hide_other_errors() {
    let errors = errors(quote!(name = "x", manager = self., ttl = "30"));
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[1].starts_with("invalid duration"));
}

#[test]
fn values_of_another_kind_are_rejected() {
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
}

#[test]
fn word_options_take_only_their_words() {
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
    // `continue` is a keyword, but also a word of this option.
    assert!(valid(quote!(#name, on_lost = continue)).on_lost == OnLostArg::Continue);
    assert!(valid(quote!(#name, on_lost = cancel)).on_lost == OnLostArg::Cancel);
}

#[test]
fn name_and_manager_cannot_await() {
    assert_eq!(
        errors(quote!(name = a(b(c).await), manager = d.await)),
        [
            "`.await` is not allowed in `name`",
            "`.await` is not allowed in `manager`"
        ]
    );
}

#[test]
fn handlers_cannot_be_async() {
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
