//! The example `gallery`.

use test_support::fixtures::{LONG, SOON};

use super::example;

/// A row of the table: the lock written by hand, and the library.
struct Row {
    by_hand: String,
    library: String,
}

fn table(lines: &[String]) -> Vec<Row> {
    let rows = lines.iter().filter(|line| line.starts_with("| "));
    rows.skip(1)
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let [_, by_hand, library] = cells[..] else {
                panic!("not three cells: {row}");
            };
            let [by_hand, library] = [by_hand, library].map(|cell| cell.trim().to_owned());
            Row { by_hand, library }
        })
        .collect()
}

/// Returns the numbers in a cell.
fn figures(cell: &str) -> Vec<u64> {
    let words = cell.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn mistakes_happen_by_hand_and_not_with_the_library() {
    let shown = example("gallery").spawn();
    assert!(shown.wait(LONG).success());
    let lines = shown.lines();
    let table = table(&lines);
    assert_eq!(table.len(), 11, "{lines:#?}");
    for (row, act) in table.iter().zip(1..) {
        let (by_hand, library) = (figures(&row.by_hand), figures(&row.library));
        let shown = format!("act {act}: {} | {}", row.by_hand, row.library);
        assert!(by_hand[0] > 0, "{shown}");
        match act {
            // Free after the ttl, and still locked without a ttl.
            1 | 9 => {
                assert!(row.by_hand.starts_with("still locked"), "{shown}");
                assert!(row.library.starts_with("free after"), "{shown}");
                assert!(library[0] < by_hand[0], "{shown}");
            }
            2 => {
                assert!(row.by_hand.contains("TTL -1"), "{shown}");
                // The key expires, and isn't locked after the release.
                assert_eq!(library.len(), 2, "{shown}");
                assert_eq!(library[0], 0, "{shown}");
            }
            // Both runs have waiters. In one of them the waiters get the lock in turn.
            7 | 10 => {
                assert!(library[0] < by_hand[0], "{shown}");
                assert!(library[1] < by_hand[1], "{shown}");
            }
            _ => assert_eq!(library[0], 0, "{shown}"),
        }
    }
    assert!(table[2].library.ends_with("says `Lost`"), "{lines:#?}");
}

#[test]
fn example_fails_without_a_server() {
    let shown = example("gallery").env("PATH", "nowhere").spawn();
    assert!(!shown.wait(SOON).success());
    assert_eq!(shown.lines(), [""; 0]);
}
