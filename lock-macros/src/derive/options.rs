//! The options of `#[lock(..)]`.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Lit, Token};

use crate::crate_path::CratePath;
use crate::errors::{Errors, list};
use crate::nearest::nearest;
use crate::parse::duration::{DurationArg, DurationOption, DurationValue};
use crate::parse::kind::{KindArgs, NumberArg, NumberOption, Written};
use crate::parse::template::Template;
use crate::parse::timing::Timing;
use crate::parse::tokens::peel;
use crate::parse::values::choice;

/// The options, with a value to show in messages.
const OPTIONS: [(&str, &str); 8] = [
    ("name", "\"...\""),
    ("ttl", "\"30s\""),
    ("wait", "\"5s\""),
    ("mode", "read_write"),
    ("permits", "4"),
    ("weight", "2"),
    ("hash_tag", "\"...\""),
    ("crate", "::lock_core"),
];

/// The options that a call sets, and not the declaration.
const OF_A_CALL: [&str; 3] = ["renew", "max_hold", "min_hold"];

/// The options of one declaration.
#[derive(Default)]
pub(super) struct LockOptions {
    pub(super) name: Option<Template>,
    pub(super) hash_tag: Option<Template>,
    pub(super) timing: Timing,
    pub(super) kind: KindArgs,
    pub(super) krate: CratePath,
    pub(super) written: Written,
    is_read_write: bool,
}

/// How a declared lock is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeclaredKind {
    Exclusive,
    ReadWrite,
    Semaphore,
}

impl LockOptions {
    /// Reads the options. `attribute` is where a missing option is reported.
    pub(super) fn parse(
        tokens: TokenStream,
        attribute: impl ToTokens,
        errors: &mut Errors,
    ) -> Self {
        let mut options = Self::default();
        let parsed = Parser::parse2(
            |input: ParseStream<'_>| {
                while !input.is_empty() {
                    options.option(input, errors)?;
                    if !input.is_empty() {
                        input.parse::<Token![,]>()?;
                    }
                }
                Ok(())
            },
            tokens,
        );
        let is_read = parsed.is_ok();
        if let Err(error) = parsed {
            errors.push(error);
        }
        if is_read && options.written.find("name").is_none() {
            errors.on(
                attribute,
                "missing option `name`: `#[lock(name = \"...\")]`",
            );
        }
        options
    }

    pub(super) fn declared_kind(&self) -> DeclaredKind {
        if self.is_read_write {
            DeclaredKind::ReadWrite
        } else if self.written.find("permits").is_some() {
            DeclaredKind::Semaphore
        } else {
            DeclaredKind::Exclusive
        }
    }

    fn option(&mut self, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        let key = input.call(Ident::parse_any)?;
        let option = key.to_string();
        let known = OPTIONS.iter().find(|(known, _)| *known == option);
        let Some((_, example)) = known else {
            errors.on(&key, unknown(&option));
            if input.parse::<Option<Token![=]>>()?.is_some() {
                input.parse::<Expr>()?;
            }
            return Ok(());
        };
        if !input.peek(Token![=]) {
            let message = format!("expected `{option} = {example}`");
            return Err(syn::Error::new(key.span(), message));
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            let message = format!("expected a value: `{option} = {example}`");
            return Err(syn::Error::new(key.span(), message));
        }
        let value = peel(input.parse()?);
        if self.written.add(&key) {
            self.set(&option, value, errors);
        } else {
            errors.on(&key, format!("duplicate option `{option}`"));
        }
        Ok(())
    }

    fn set(&mut self, option: &str, value: Expr, errors: &mut Errors) {
        match option {
            "name" => self.name = template(option, &value, errors),
            "hash_tag" => self.hash_tag = template(option, &value, errors),
            "ttl" => self.timing.ttl = duration(value, DurationOption::Ttl, errors),
            "wait" => self.timing.wait = duration(value, DurationOption::Wait, errors),
            "mode" => {
                let words = [("exclusive", false), ("read_write", true)];
                self.is_read_write = choice(option, &value, words, errors).unwrap_or_default();
            }
            "permits" => {
                self.kind.permits = NumberArg::parse(value, NumberOption::Permits, errors);
            }
            "weight" => {
                self.kind.weight = NumberArg::parse(value, NumberOption::Weight, errors);
            }
            // The table holds only one more option: `crate`.
            _ => self.krate = CratePath::parse(value, errors),
        }
    }
}

/// Reads a template. Its placeholders name fields.
fn template(option: &str, value: &Expr, errors: &mut Errors) -> Option<Template> {
    if let Expr::Lit(literal) = value
        && let Lit::Str(text) = &literal.lit
    {
        return Template::of_fields(text, errors);
    }
    let message = format!("`{option}` takes a template, such as `{option} = \"order:{{id}}\"`");
    errors.on(value, message);
    None
}

fn duration(value: Expr, option: DurationOption, errors: &mut Errors) -> Option<DurationArg> {
    let parsed = DurationArg::parse(value, option, errors)?;
    if let DurationValue::Dynamic(value) = &parsed.value {
        let message =
            "`dynamic(..)` is not allowed here; a declaration is the same for all callers";
        errors.on(value, message);
        return None;
    }
    Some(parsed)
}

fn unknown(option: &str) -> String {
    if OF_A_CALL.contains(&option) {
        return format!("`{option}` belongs to a call: `locks.hold(..).{option}(..)`");
    }
    let all = OPTIONS.map(|(known, _)| known);
    match nearest(option, all) {
        Some(meant) => format!("unknown option `{option}`; did you mean `{meant}`?"),
        None => format!("unknown option `{option}`; expected one of: {}", list(all)),
    }
}
