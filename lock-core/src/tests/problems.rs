//! Compares the guide's page about problems with the mapping of errors.

use std::fs;
use std::path::Path;

use tonic::Code;

use crate::web::mapping::ProblemKind;
use lock_protocol::loss::LossReason;

#[test]
fn problems_page_has_a_section_for_each_type() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/problems.md");
    let page = fs::read_to_string(page).expect("the page exists");
    let headings: Vec<_> = page.lines().filter_map(|l| l.strip_prefix("# ")).collect();
    assert_eq!(headings, ProblemKind::ALL.map(ProblemKind::slug));
    for kind in ProblemKind::ALL {
        let heading = format!("# {}", kind.slug());
        let section = page.lines().skip_while(|line| **line != heading).skip(1);
        let section: Vec<_> = section.take_while(|l| !l.starts_with("# ")).collect();
        let title = format!("{}.", kind.title());
        assert!(
            section.iter().any(|line| line.starts_with(&title)),
            "the section {} does not begin with its title",
            kind.slug()
        );
        let retry_after = match kind {
            ProblemKind::Contended | ProblemKind::Timeout | ProblemKind::QueueFull => {
                "estimated".to_owned()
            }
            // These do not depend on the error.
            _ => {
                let time = kind.retry_after(&crate::LockError::ShuttingDown);
                time.map_or("none".to_owned(), |time| time.as_secs().to_string())
            }
        };
        let code = match kind.code() {
            Code::Aborted => "ABORTED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::Unavailable => "UNAVAILABLE",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Internal => "INTERNAL",
            code => unreachable!("the page has no code {code:?}"),
        };
        let row = format!(
            "| {} | {retry_after} | `{code}` | `{}` |",
            kind.status(),
            kind.reason()
        );
        assert!(
            section.contains(&row.as_str()),
            "{row} is not in {section:#?}"
        );
    }
}

#[test]
fn problems_page_has_a_row_for_each_reason_of_a_loss() {
    let page = include_str!("../../docs/problems.md");
    let revoked = LossReason::revoked("..".into(), None);
    for reason in [
        LossReason::Expired,
        LossReason::Removed,
        LossReason::Replaced,
        revoked,
        LossReason::MaxHold,
        LossReason::ServerChanged,
    ] {
        let variant = format!("{reason:?}");
        let variant = variant.split(' ').next().unwrap();
        let row = format!("| {reason} | `{variant}` |");
        assert!(page.contains(&row), "{row} is missing");
    }
}
