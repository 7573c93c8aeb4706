//! Compares the tables in the guide's protocol page with the headers of the scripts.
//!
//! A header lists the inputs and the replies of a script. The text between `]` and two spaces is the
//! name of an input. A reply is indented by three spaces, and its second field is `now`:
//!
//! ```text
//! -- KEYS[1] lock key            a string with an expiry
//! -- ARGV[9...] earlier entries  that the same owner id may have in the queue
//! --   held     now  token  remaining   the caller holds the lock
//! ```
//!
//! The page has the same names and fields in tables, below a heading with the script's path.

use std::fs;
use std::path::{Path, PathBuf};

/// The possible fields of a reply. The first other word begins its description.
const FIELDS: [&str; 20] = [
    "refused",
    "now",
    "holder",
    "found",
    "receivers",
    "token",
    "remaining",
    "rank",
    "value",
    "type",
    "total",
    "entries",
    "digest",
    "granted",
    "members",
    "shown",
    "ends",
    "each",
    "index",
    "reply",
];

/// The inputs and the replies of a script.
#[derive(Debug, Default, PartialEq, Eq)]
struct Interface {
    /// The input, as `KEYS[1]`, and its name.
    inputs: Vec<(String, String)>,
    /// The first word of the reply, and the fields after it.
    replies: Vec<(String, Vec<String>)>,
}

/// Reads the interface from the comment at the top of a script.
fn of_header(source: &str) -> Interface {
    let mut interface = Interface::default();
    for line in source.lines().map_while(|line| line.strip_prefix("--")) {
        let text = line.trim_start();
        if text.starts_with("KEYS[") || text.starts_with("ARGV[") {
            let (input, rest) = text.split_once(']').expect("an index ends with `]`");
            let name = rest.trim_start().split("  ").next().unwrap_or_default();
            interface
                .inputs
                .push((format!("{input}]"), name.trim_end().to_owned()));
        } else if let Some(reply) = line.strip_prefix("   ") {
            let mut words = reply.split_whitespace().map(str::to_owned);
            let word = words.next().unwrap_or_default();
            let fields: Vec<_> = words.take_while(|w| FIELDS.contains(&&**w)).collect();
            let begins = |first: &String| ["now", "each", "index"].contains(&first.as_str());
            if fields.first().is_some_and(begins) {
                interface.replies.push((word, fields));
            }
        }
    }
    interface
}

/// Reads the interface from the page's section for the script.
fn of_page(page: &str, script: &str) -> Interface {
    let mut interface = Interface::default();
    let heading = format!("# `{script}`");
    let section = page.lines().skip_while(|line| !line.ends_with(&heading));
    let section = section.skip(1).take_while(|line| !line.starts_with('#'));
    for row in section.filter_map(|line| line.strip_prefix("| `")) {
        let mut cells = row.split(" | ").map(|cell| cell.trim_matches('`'));
        let first = cells.next().unwrap_or_default().to_owned();
        let second = cells.next().unwrap_or_default();
        if first.contains('[') {
            interface.inputs.push((first, second.to_owned()));
        } else {
            let fields = second.split(' ').map(str::to_owned).collect();
            interface.replies.push((first, fields));
        }
    }
    interface
}

/// Lists the scripts in a folder and its subfolders.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the scripts' folder exists") {
        let path = entry.expect("its entries are readable").path();
        if path.is_dir() {
            // First lines and constants, which have neither inputs nor replies.
            if !path.ends_with("first") && !path.ends_with("head") {
                found.extend(scripts(&path));
            }
        } else if path.extension().is_some_and(|end| end == "lua") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn protocol_page_has_the_tables_of_the_script_headers() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(package.join("docs/protocol.md")).expect("the page exists");
    let folder = package.join("../lock-protocol/src/lua");
    let scripts = scripts(&folder);
    assert!(scripts.len() >= 10, "{scripts:?}");
    for path in scripts {
        let name = path.strip_prefix(&folder).expect("it is in the folder");
        let name = name.to_str().expect("its name is text").replace('\\', "/");
        let source = fs::read_to_string(&path).expect("the script is readable");
        assert!(
            page.lines()
                .any(|line| line.ends_with(&format!("# `{name}`"))),
            "docs/protocol.md has no section `{name}`"
        );
        let (header, page) = (of_header(&source), of_page(&page, &name));
        assert_eq!(
            header, page,
            "left: the header of {name}; right: docs/protocol.md"
        );
        let is_script = !source.contains("\n-- A part, not a script of its own: ");
        assert_eq!(is_script, !header.inputs.is_empty(), "{name}: inputs");
        assert_eq!(is_script, !header.replies.is_empty(), "{name}: replies");
    }
}

#[test]
fn header_columns_give_inputs_and_replies() {
    let header = "-- KEYS[1] lock key     a string\n\
                  -- ARGV[2...] entries  that wait\n\
                  -- Replies:\n\
                  --   held  now  token   the caller has it now\n\
                  --                      since before\n\
                  --   queued now  rank   it waits\n\
                  \n\
                  -- KEYS[9] not in the header\n";
    let text = |text: &str| text.to_owned();
    let expected = Interface {
        inputs: vec![
            (text("KEYS[1]"), text("lock key")),
            (text("ARGV[2...]"), text("entries")),
        ],
        replies: vec![
            (text("held"), vec![text("now"), text("token")]),
            (text("queued"), vec![text("now"), text("rank")]),
        ],
    };
    assert_eq!(of_header(header), expected);
}
