//! Feeds random inputs to the pipeline: it drops, repeats, swaps and replaces tokens of valid
//! attributes and functions. For every input, the macro must return without a panic, expand or
//! report an error, and keep the function.
//!
//! Each run has the same inputs. For more and other ones run
//! `FUZZ_SEED=7 FUZZ_CASES=1000000 cargo test -p lock-macros fuzz`.

use std::panic::catch_unwind;
use std::str::FromStr;

use fastrand::Rng;
use proc_macro2::TokenStream;

/// Enough for some seconds in a build without optimization.
const CASES: usize = 12_000;

const ATTRIBUTES: [&str; 9] = [
    r#"name = "order:{order_id}", ttl = "30s", wait = "5s""#,
    r#"name = "a:{self.id.0}:{r#type}", hash_tag = "{user}", renew = never, min_hold = "1ms""#,
    r#"name = lock_name!("x:{}:{a.b}", f(a)?), ttl = dynamic(self.ttl), wait = dynamic(w)"#,
    r#"name = format!("{}", a), ttl = T::TTL, max_hold = Duration::from_secs(60), renew = "1s""#,
    r#"name = ["a", "{b}"], wait = "0s", on_contended = skip, crate = ::locks::core"#,
    r#"name = "{{tag}}:{a}", on_contended = |e| Err(e.into()), on_error = { let a = a.clone(); move |e| a.f(e) }"#,
    r"name = NAME, on_contended = skip, on_error = (|_| None), on_lost = continue, release = background",
    r#"name = "x", bind = held, manager = match a { 1 => &self.b, _ => &c }, key = "y", expire = 5min"#,
    r#"name = "größe:{größe}:{x}{y}", ttl = 1m30s, wait = "1h1s1ms", renew = auto"#,
];

const FUNCTIONS: [&str; 9] = [
    "pub async fn f(order_id: u64) -> Result<String, LockError> { Ok(format!(\"{order_id}\")) }",
    "async fn f(&self, user: &str, r#type: u8) -> Result<(), E> { self.g(user).await?; return Ok(()); }",
    "async fn f<'a, T: Fn(&mut u8) -> u8, const N: usize>(mut self, mut a: T, (b, mut c): (u8, u8), w: W) -> impl Fn(u8) -> u8 where T: 'a { a.x = 1; || b }",
    "#[instrument(err)] pub(crate) async unsafe fn f(S { a, b: [c, .., ref mut d], .. }: S, e @ 1: u8, _: u8) -> ! { #![allow(x)] loop {} }",
    "fn f<'l, 'async_trait>(&'l self, a: A) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> where 'l: 'async_trait { Box::pin(async move { let __self = self; let a = a; __self.g(a).await }) }",
    "const fn f() {}",
    "struct S { a: u8 }",
    "impl S { async fn f() {} }",
    "#[tokio::test] async fn f(größe: u8, x: u8, y: u8);",
];

/// The words that are inserted: keywords, options, and tokens that the parser looks for.
const WORDS: [&str; 56] = [
    "name",
    "ttl",
    "wait",
    "outage_wait",
    "renew",
    "max_hold",
    "min_hold",
    "once_per",
    "on_contended",
    "on_error",
    "on_lost",
    "release",
    "bind",
    "manager",
    "hash_tag",
    "crate",
    "self",
    "Self",
    "mut",
    "ref",
    "async",
    "await",
    "fn",
    "move",
    "impl",
    "dyn",
    "_",
    "r#fn",
    "gen",
    "dynamic",
    "lock_name",
    "auto",
    "never",
    "skip",
    "continue",
    "=",
    "==",
    ",",
    ";",
    ".",
    "..",
    ":",
    "::",
    "->",
    "=>",
    "|e|",
    "&",
    "<",
    ">",
    "!",
    "#",
    "1",
    "30s",
    "1.5",
    "\"\"",
    "'a",
];

/// The texts that are inserted into literals.
const TEXTS: [&str; 24] = [
    "{",
    "}",
    "{{",
    "}}",
    "{}",
    "{a}",
    "{a.b.0}",
    "{self}",
    "{r#fn}",
    "{a.await}",
    "{0}",
    "{a:?}",
    "{A::B}",
    "{Self}",
    "{_}",
    ":",
    ":q",
    "30",
    "s",
    "ms",
    "1h",
    "99999999999999999999",
    "\\u{301}",
    "\u{301}",
];

#[test]
fn fuzz_attribute_never_panics_and_keeps_the_function() {
    let read = |name, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().expect("a number"))
    };
    let mut rng = Rng::with_seed(read("FUZZ_SEED", 1));
    let cases = read("FUZZ_CASES", CASES as u64);
    let (mut expanded, mut rejected) = (0_u64, 0_u64);
    let mut found = None;
    while expanded + rejected < cases && found.is_none() {
        let attribute = mutated(ATTRIBUTES[rng.usize(..ATTRIBUTES.len())], &mut rng);
        let function = mutated(FUNCTIONS[rng.usize(..FUNCTIONS.len())], &mut rng);
        let (Ok(args), Ok(item)) = (
            TokenStream::from_str(&attribute),
            TokenStream::from_str(&function),
        ) else {
            continue;
        };
        match catch_unwind(|| check_output(args, item)) {
            Ok(Ok(true)) => expanded += 1,
            Ok(Ok(false)) => rejected += 1,
            Ok(Err(wrong)) => found = Some((wrong, attribute, function)),
            Err(_) => found = Some(("the macro panics".into(), attribute, function)),
        }
    }
    if let Some((wrong, attribute, function)) = found {
        panic!("{wrong}\n#[distributed_lock({attribute})]\n{function}");
    }
    // Otherwise the inputs do not reach both outcomes.
    assert!(expanded > cases / 20, "{expanded} of {cases} are expanded");
    assert!(rejected > cases / 20, "{rejected} of {cases} are rejected");
}

/// Returns whether the function was expanded, or how the output is wrong.
fn check_output(args: TokenStream, item: TokenStream) -> Result<bool, String> {
    let name = crate::expand::lock_name(quote::quote!(krate, #args));
    drop(syn::parse2::<syn::Expr>(name).map_err(|error| format!("`lock_name!`: {error}"))?);
    let head = head(&item);
    let output = crate::annotate(args, item).to_string();
    if !output.replace(' ', "").contains(&head) {
        return Err(format!("the output has no function: {head} in {output}"));
    }
    Ok(!output.contains("compile_error"))
}

/// Returns the beginning of an item, up to its name. After the name, a `mut` may have moved.
fn head(item: &TokenStream) -> String {
    let tokens: Vec<String> = item
        .clone()
        .into_iter()
        .map(|token| token.to_string())
        .collect();
    let name = tokens.iter().position(|token| token == "fn");
    let end = name.map_or(1, |name| name + 2).min(tokens.len());
    tokens[..end].concat().replace(' ', "")
}

fn mutated(text: &str, rng: &mut Rng) -> String {
    let mut parts = parts(text);
    // With many changes, nothing would be left to parse.
    for _ in 0..rng.usize(..4) {
        if parts.is_empty() {
            break;
        }
        let at = rng.usize(..parts.len());
        let other = rng.usize(..parts.len());
        match rng.u8(..7) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, parts[other].clone()),
            2 => parts.swap(at, other),
            3 => parts[at] = WORDS[rng.usize(..WORDS.len())].into(),
            4 => parts.insert(at, WORDS[rng.usize(..WORDS.len())].into()),
            _ => change_literal(&mut parts, rng),
        }
    }
    parts.join(" ")
}

fn change_literal(parts: &mut [String], rng: &mut Rng) {
    let literals: Vec<usize> = (0..parts.len())
        .filter(|at| parts[*at].starts_with('"'))
        .collect();
    if literals.is_empty() {
        return;
    }
    let literal = &mut parts[literals[rng.usize(..literals.len())]];
    let letters: Vec<usize> = literal.char_indices().map(|(at, _)| at).skip(1).collect();
    let at = letters[rng.usize(..letters.len())];
    if rng.bool() || literal[at..].starts_with('"') {
        literal.insert_str(at, TEXTS[rng.usize(..TEXTS.len())]);
    } else {
        literal.remove(at);
    }
}

/// Splits into words, literals and signs. Delimiters are signs, so that changes affect them, too.
fn parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c == '_' || c == '#' || c.is_alphanumeric();
        let length = if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else if first == '\'' || word(first) && first != '#' {
            let start = first.len_utf8();
            rest[start..]
                .find(|c| !word(c))
                .map_or(rest.len(), |end| end + start)
        } else if ["::", "->", "=>", "==", ".."]
            .iter()
            .any(|sign| rest.starts_with(sign))
        {
            2
        } else {
            first.len_utf8()
        };
        let (part, after) = rest.split_at(length);
        parts.push(part.to_owned());
        rest = after.trim_start();
    }
    parts
}
