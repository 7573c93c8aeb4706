use proc_macro2::TokenStream;
use quote::quote;

use super::*;

fn errors(options: TokenStream) -> Vec<String> {
    let mut errors = Errors::default();
    let scope = Scope::sample(&["a", "r#type"], false);
    let options = Args::parse(options, &mut errors);
    args(&options, &scope, &mut errors);
    errors.messages()
}

#[test]
fn hash_tag_is_checked_as_a_template() {
    for (tag, expected) in [
        (
            quote!("{b}"),
            "no parameter named `b`; parameters: `a`, `type`",
        ),
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
        let found = errors(quote!(name = "x", hash_tag = #tag));
        assert_eq!(found, [expected]);
    }
    assert_eq!(
        errors(quote!(name = "{{b}}:cart", hash_tag = "{a}")),
        ["`hash_tag` cannot be combined with braces in `name`"]
    );
    assert_eq!(
        errors(quote!(name = "{a}:q", hash_tag = "{a}")),
        [
            "a lock name with a hash tag may not end in `:q`, `:f`, `:g` or `:h`; append another \
             word"
        ]
    );
}

#[test]
fn limit_of_the_queue_needs_a_wait() {
    let message = "`max_queue` needs a `wait`: a call that makes one attempt never waits";
    for (options, expected) in [
        (
            quote!(name = "x", wait = "0s", max_queue = 3),
            vec![message],
        ),
        (
            quote!(name = "x", on_contended = skip, max_queue = 3),
            vec![message],
        ),
        (quote!(name = "x", max_queue = 3), vec![]),
        (
            quote!(name = "x", on_contended = skip, wait = "1s", max_queue = 3),
            vec![],
        ),
        (quote!(name = "x", wait = dynamic(a), max_queue = 3), vec![]),
        // The declaration may have a wait.
        (
            quote!(lock = L { a }, on_contended = skip, max_queue = 3),
            vec![],
        ),
    ] {
        assert_eq!(errors(options), expected);
    }
}

#[test]
fn bound_guard_hides_no_parameter() {
    for (bind, expected) in [
        (quote!(a), vec!["`bind = a` hides the parameter `a`"]),
        (
            quote!(r#type),
            vec!["`bind = r#type` hides the parameter `r#type`"],
        ),
        (quote!(held), vec![]),
    ] {
        assert_eq!(errors(quote!(name = "x", bind = #bind)), expected);
    }
}
