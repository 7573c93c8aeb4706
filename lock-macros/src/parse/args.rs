//! The options between the parentheses of the attribute.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::token::Bracket;
use syn::{Expr, Token};

use crate::crate_path::CratePath;
use crate::errors::{Errors, list};
use crate::parse::duration::{DurationArg, DurationOption};
use crate::parse::kind::{KindArgs, Mode, NumberArg, NumberOption, Written};
use crate::parse::option_names::{self, DECLARED, OPTIONS};
use crate::parse::template::Template;
use crate::parse::timing::{RenewArg, Timing};
use crate::parse::tokens::{peel, variables};
use crate::parse::values::{
    Handler, NameArg, NamesArg, OnContended, OnLostArg, ReleaseMode, SEVERAL_LOCKS, SEVERAL_NAMES,
    choice, hash_tag, identifier, is_list, lists_locks, reject_await,
};

/// The options of one attribute. A field also stays `None` when its value cannot be read.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) name: Option<NamesArg>,
    /// Whether `name` is a list, also one that cannot be read.
    pub(crate) has_list: bool,
    /// A value of a type that declares a lock.
    pub(crate) lock: Option<Expr>,
    pub(crate) hash_tag: Option<Template>,
    pub(crate) timing: Timing,
    pub(crate) kind: KindArgs,
    pub(crate) on_contended: OnContended,
    pub(crate) on_error: Option<Handler>,
    pub(crate) on_lost: OnLostArg,
    pub(crate) release: ReleaseMode,
    pub(crate) bind: Option<Ident>,
    pub(crate) manager: Option<Expr>,
    pub(crate) krate: CratePath,
    /// The names of all options, with their places.
    pub(crate) written: Written,
}

impl Args {
    /// Reads the options of a function. After an error it continues with the next option.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        Self::parse_as(Grammar::Function, tokens, errors)
    }

    /// Reads the options of a declared lock.
    pub(crate) fn parse_declaration(tokens: TokenStream, errors: &mut Errors) -> Self {
        Self::parse_as(Grammar::Declaration, tokens, errors)
    }

    fn parse_as(grammar: Grammar, tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut parser = OptionParser {
            grammar,
            args: Self::default(),
            errors,
            advised_name: false,
        };
        let parsed = Parser::parse2(|input: ParseStream<'_>| parser.options(input), tokens);
        let OptionParser {
            args, advised_name, ..
        } = parser;
        if let Err(error) = parsed {
            errors.push(error);
        }
        let is_named = args.has_lock() || args.written.find("name").is_some();
        if !is_named && !advised_name {
            errors.at(Span::call_site(), grammar.missing_name());
        }
        args
    }

    /// Returns whether the lock is a declared one, also when its value cannot be read.
    pub(crate) fn has_lock(&self) -> bool {
        self.written.find("lock").is_some()
    }

    /// Returns all names, in the order in which they were written.
    pub(crate) fn names(&self) -> &[NameArg] {
        self.name.as_ref().map_or(&[], NamesArg::all)
    }

    /// Returns every variable in an expression of an option. A closure or a block may change what
    /// it names.
    pub(crate) fn variables_in_expressions(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |tokens: TokenStream| variables(tokens, &mut names);
        for name in self.names() {
            if let NameArg::Expression(name) = name {
                add(name.to_token_stream());
            }
        }
        if let Some(lock) = &self.lock {
            add(lock.to_token_stream());
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
        for dynamic in self.timing.dynamic_values() {
            add(dynamic.to_token_stream());
        }
        names
    }

    /// Returns every variable in an option, also in a template.
    pub(crate) fn variables(&self) -> Vec<String> {
        let mut names = self.variables_in_expressions();
        for name in self.names() {
            if let NameArg::Template(name) = name {
                names.extend(name.heads());
            }
        }
        if let Some(tag) = &self.hash_tag {
            names.extend(tag.heads());
        }
        names
    }
}

/// The place of the options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grammar {
    /// `#[distributed_lock(..)]`
    Function,
    /// `#[lock(..)]`
    Declaration,
}

impl Grammar {
    fn options(self) -> option_names::Options {
        match self {
            Self::Function => &OPTIONS,
            Self::Declaration => &DECLARED,
        }
    }

    fn missing_name(self) -> &'static str {
        match self {
            Self::Function => {
                "missing option `name`: `#[distributed_lock(name = \"...\", ttl = \"30s\")]`"
            }
            Self::Declaration => "missing option `name`: `#[lock(name = \"...\")]`",
        }
    }
}

struct OptionParser<'a> {
    grammar: Grammar,
    args: Args,
    errors: &'a mut Errors,
    /// Whether an error already says how to write `name`.
    advised_name: bool,
}

impl OptionParser<'_> {
    fn options(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        while !input.is_empty() {
            self.option(input);
            let unread = input.span();
            if !input.is_empty() && !input.peek(Token![,]) {
                self.errors.at(unread, "expected `,` between options");
                if input.peek(Ident::peek_any) && input.peek2(Token![=]) {
                    // The next option may be what another option needs.
                    continue;
                }
                skip_to_comma(input)?;
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
        let known = self
            .grammar
            .options()
            .iter()
            .find(|(known, _)| *known == option);
        let Some((_, example)) = known else {
            let value: Option<Expr> = input.fork().parse().ok();
            self.unknown(&key, value.as_ref());
            skip_value(input);
            return;
        };
        if !self.args.written.add(&key) {
            let advice = match (option.as_str(), self.grammar) {
                ("name", Grammar::Function) => {
                    "; lock several names with a list: `name = [\"a:{x}\", \"b:{y}\"]`".into()
                }
                ("name", Grammar::Declaration) => format!("; {SEVERAL_NAMES}"),
                ("lock", _) => format!("; {SEVERAL_LOCKS}"),
                _ => String::new(),
            };
            let message = format!("duplicate option `{option}`{advice}");
            self.errors.on(&key, message);
            skip_value(input);
            return;
        }
        if input.is_empty() || input.peek(Token![,]) {
            let message = format!("expected a value: `{option} = {example}`");
            self.errors.on(&key, message);
            return;
        }
        let in_brackets = input.peek(Bracket);
        // After an error in a group, `input` would report the rest of the group, too.
        let fork = input.fork();
        match fork.parse() {
            Ok(value) => {
                input.advance_to(&fork);
                self.set(&option, peel(value));
            }
            Err(error) => {
                self.args.has_list |= option == "name" && in_brackets;
                self.errors.push(error);
                while input.cursor() < fork.cursor() && input.parse::<TokenTree>().is_ok() {}
                drop(skip_to_comma(input));
            }
        }
    }

    fn set(&mut self, option: &str, value: Expr) {
        let errors = &mut *self.errors;
        let args = &mut self.args;
        let timing = &mut args.timing;
        match option {
            "name" if self.grammar == Grammar::Declaration => {
                args.name = NameArg::parse_declared(value, errors).map(NamesArg::One);
            }
            "name" => {
                args.has_list = is_list(&value);
                args.name = NamesArg::parse(value, errors);
            }
            "lock" => {
                if lists_locks(&value) {
                    errors.on(value, SEVERAL_LOCKS);
                } else {
                    reject_await(option, &value, errors);
                    args.lock = Some(value);
                }
            }
            "ttl" => timing.ttl = DurationArg::parse(value, DurationOption::Ttl, errors),
            "wait" => timing.wait = DurationArg::parse(value, DurationOption::Wait, errors),
            "outage_wait" => {
                timing.outage_wait = DurationArg::parse(value, DurationOption::OutageWait, errors);
            }
            "renew" => timing.renew = RenewArg::parse(value, errors),
            "max_hold" => {
                timing.max_hold = DurationArg::parse(value, DurationOption::MaxHold, errors);
            }
            "min_hold" => {
                timing.min_hold = DurationArg::parse(value, DurationOption::MinHold, errors);
            }
            "once_per" => {
                timing.once_per = DurationArg::parse(value, DurationOption::OncePer, errors);
            }
            "mode" if self.grammar == Grammar::Declaration => {
                args.kind.mode = choice(option, &value, Mode::OF_A_DECLARATION, errors);
            }
            "mode" => args.kind.mode = choice(option, &value, Mode::OF_A_FUNCTION, errors),
            "permits" => {
                args.kind.permits = NumberArg::parse(value, NumberOption::Permits, errors);
            }
            "weight" => {
                args.kind.weight = NumberArg::parse(value, NumberOption::Weight, errors);
            }
            "max_queue" => {
                args.kind.max_queue = NumberArg::parse(value, NumberOption::MaxQueue, errors);
            }
            "on_contended" => args.on_contended = OnContended::parse(value, errors),
            "on_lost" => {
                let words = [
                    ("cancel", OnLostArg::Cancel),
                    ("continue", OnLostArg::Continue),
                ];
                args.on_lost = choice(option, &value, words, errors).unwrap_or_default();
            }
            "release" => {
                let words = [
                    ("confirm", ReleaseMode::Confirm),
                    ("background", ReleaseMode::Background),
                ];
                args.release = choice(option, &value, words, errors).unwrap_or_default();
            }
            "hash_tag" if self.grammar == Grammar::Declaration => {
                args.hash_tag = hash_tag(&value, Template::of_declaration, errors);
            }
            "hash_tag" => args.hash_tag = hash_tag(&value, Template::of_hash_tag, errors),
            "on_error" => args.on_error = Handler::parse(value, errors),
            "bind" => args.bind = identifier(&value, errors),
            "manager" => {
                reject_await(option, &value, errors);
                args.manager = Some(value);
            }
            // The table holds only one more option: `crate`.
            _ => args.krate = CratePath::parse(value, errors),
        }
    }

    fn unknown(&mut self, key: &Ident, value: Option<&Expr>) {
        let written = key.to_string();
        let options = self.grammar.options();
        let at_the_call = self.grammar == Grammar::Declaration
            && option_names::all(&OPTIONS).any(|option| option == written);
        if at_the_call {
            let message =
                format!("`{key}` is not declared with the lock; write it where the lock is taken");
            self.errors.on(key, message);
            return;
        }
        let mut meant = option_names::meant(&written, options);
        if meant == Some("manager") && value.is_some_and(makes_a_struct) {
            // `locks = OrderLock { id }`
            meant = Some("lock");
        }
        let advice = meant.map_or_else(
            || format!("expected one of: {}", list(option_names::all(options))),
            |meant| format!("did you mean `{meant}`?"),
        );
        self.advised_name |= matches!(meant, Some("name" | "lock"));
        self.errors
            .on(key, format!("unknown option `{key}`; {advice}"));
    }

    /// Reports `"order"`, `name: "order"` or `ttl`, and suggests the most likely option.
    fn not_a_pair(&mut self, input: ParseStream<'_>, key: Option<&Ident>) {
        let options = self.grammar.options();
        let word = key.map(Ident::to_string).unwrap_or_default();
        let of_a_word = option_names::with_word(&word, options);
        if let (Some(option), Some(key)) = (of_a_word, key) {
            let message = format!("expected `option = value`; did you mean `{option} = {word}`?");
            self.errors.on(key, message);
            drop(skip_to_comma(input));
            return;
        }
        let meant = option_names::meant(&word, options);
        if let Some(key) = key.filter(|_| meant == Some(word.as_str())) {
            // The option is there, so that no other error asks for it.
            self.args.written.add(key);
        }
        let (option, example) = options
            .iter()
            .find(|(known, _)| Some(*known) == meant)
            .unwrap_or(&OPTIONS[0]);
        self.advised_name |= *option == "name";
        let span = key.map_or_else(|| input.span(), Ident::span);
        let message = format!("expected `option = value`; did you mean `{option} = {example}`?");
        self.errors.at(span, message);
        self.args.has_list |= *option == "name" && input.peek(Bracket);
        drop(skip_to_comma(input));
    }
}

/// Returns whether an expression is `OrderLock { id }` or `OrderLock(id)`.
fn makes_a_struct(value: &Expr) -> bool {
    match value {
        Expr::Struct(_) => true,
        Expr::Call(call) => match &*call.func {
            Expr::Path(callee) => callee.path.segments.last().is_some_and(|last| {
                let name = last.ident.to_string();
                name.starts_with(char::is_uppercase)
            }),
            _ => false,
        },
        _ => false,
    }
}

/// Skips a value. An expression may contain commas; anything else ends at the next comma.
fn skip_value(input: ParseStream<'_>) {
    if input.parse::<Expr>().is_err() {
        drop(skip_to_comma(input));
    }
}

/// Returns whether there was anything before the comma.
fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<bool> {
    let mut any = false;
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<TokenTree>()?;
        any = true;
    }
    Ok(any)
}

#[cfg(test)]
mod tests;
