use super::*;

fn text(text: &str) -> TemplatePart {
    TemplatePart::Text(text.into())
}

fn value(path: &str) -> TemplatePart {
    let mut steps = path.split('.');
    TemplatePart::Value {
        head: PlaceholderHead::Named(steps.next().map(Into::into).unwrap_or_default()),
        fields: steps.filter_map(FieldAccess::parse).collect(),
        written: String::new(),
    }
}

/// Returns the parts of a template, without the source of its placeholders.
fn parts(template: &str) -> Vec<TemplatePart> {
    let (parts, messages) = parse(template, TemplateKind::Name);
    assert_eq!(messages, <[String; 0]>::default(), "{template}");
    let without = |part| match part {
        TemplatePart::Value { head, fields, .. } => TemplatePart::Value {
            head,
            fields,
            written: String::new(),
        },
        text @ TemplatePart::Text(_) => text,
    };
    parts.into_iter().map(without).collect()
}

fn errors(template: &str) -> Vec<String> {
    parse(template, TemplateKind::Name).1
}

#[test]
fn text_is_kept_verbatim() {
    assert_eq!(parts("nightly"), [text("nightly")]);
    assert_eq!(parts("a b/ü%20"), [text("a b/ü%20")]);
}

#[test]
fn placeholders_are_paths() {
    assert_eq!(parts("order:{id}"), [text("order:"), value("id")]);
    assert_eq!(parts("{id}"), [value("id")]);
    assert_eq!(parts("{ id }"), [value("id")]);
    assert_eq!(parts("{self.shop.0}:x"), [value("self.shop.0"), text(":x")]);
    assert_eq!(
        parts("{a.0.1.b}"),
        [TemplatePart::Value {
            head: PlaceholderHead::Named("a".into()),
            fields: vec![
                FieldAccess::Index(0),
                FieldAccess::Index(1),
                FieldAccess::Named("b".into())
            ],
            written: String::new(),
        }]
    );
    assert_eq!(parts("{größe}"), [value("größe")]);
}

#[test]
fn raw_identifiers_lose_their_prefix() {
    assert_eq!(parts("{r#type}"), [value("type")]);
    assert_eq!(parts("{type}"), [value("type")]);
    assert_eq!(parts("{a.r#type}"), [value("a.type")]);
}

#[test]
fn doubled_braces_are_literal() {
    assert_eq!(parts("{{u}}:cart"), [text("{u}:cart")]);
    assert_eq!(parts("{{{u}}}:c"), [text("{"), value("u"), text("}:c")]);
}

#[test]
fn single_brace_is_unmatched() {
    let open = "unmatched `{`; write `{{` for a literal brace";
    let close = "unmatched `}`; write `}}` for a literal brace";
    assert_eq!(errors("a{"), [open]);
    assert_eq!(errors("a{b"), [open]);
    assert_eq!(errors("a}"), [close]);
    assert_eq!(errors("{a}}"), [close]);
    assert_eq!(errors("{{a}"), [close]);
    assert_eq!(errors("{a{b}"), [open]);
    assert_eq!(errors("}{"), [close, open]);
}

#[test]
fn other_format_placeholders_are_rejected() {
    assert_eq!(errors("{}"), ["empty `{}`; name a parameter"]);
    assert_eq!(errors("{ }"), ["empty `{}`; name a parameter"]);
    assert_eq!(
        errors("{0}"),
        ["positional `{0}` is not supported; name a parameter"]
    );
    assert_eq!(
        errors("{0.a}"),
        ["positional `{0.a}` is not supported; name a parameter"]
    );
    assert_eq!(
        errors("{x:?}"),
        ["format spec `:?` is not allowed in a lock name"]
    );
    assert_eq!(
        errors("{x.y:>8}"),
        ["format spec `:>8` is not allowed in a lock name"]
    );
    assert_eq!(
        errors("{:?}"),
        ["format spec `:?` is not allowed in a lock name"]
    );
}

#[test]
fn placeholder_takes_only_field_paths() {
    for template in [
        "{a.b()}",
        "{a + b}",
        "{a[0]}",
        "{*a}",
        "{a::B}",
        "{a.}",
        "{.a}",
        "{a..b}",
        "{&a}",
        "{a.01}",
        "{a.self}",
        "{a b}",
        "{a!}",
        "{\"a\"}",
        "{r#}",
        "{a.99999999999}",
        "{1a}",
    ] {
        assert_eq!(
            errors(template),
            [TemplateKind::Name.only_field_paths()],
            "{template}"
        );
    }
}

#[test]
fn placeholders_need_a_separator() {
    assert_eq!(
        errors("{a}{b}"),
        ["nothing separates `{a}` from `{b}`; put `:` between them"]
    );
    for text in ["x", "-", "_._", "ü", "%", "%2", "a%", "%25", "-%20x"] {
        assert_eq!(
            errors(&format!("{{a}}{text}{{b}}")),
            [format!(
                "nothing separates `{{a}}` from `{{b}}`, because a value can contain `{text}`; put \
                 `:` between them"
            )],
        );
    }
    for template in [
        "{a}:{b}",
        "{a}x/y{b}",
        "{a} {b}",
        "%{a}:{b}%",
        "{a}%:{b}",
        "{a}%%{b}",
        "{a}%-{b}",
        "{a}…{b}",
        "{a}{{x}}{b}",
    ] {
        assert_eq!(errors(template), <[String; 0]>::default(), "{template}");
    }
    assert_eq!(
        errors("{a.b}{ c }{d}"),
        [
            "nothing separates `{a.b}` from `{c}`; put `:` between them",
            "nothing separates `{c}` from `{d}`; put `:` between them"
        ]
    );
}

#[test]
fn every_error_of_a_template_is_reported() {
    assert_eq!(errors("{}:{0}:{x:?}:{a()}:}").len(), 5);
}
