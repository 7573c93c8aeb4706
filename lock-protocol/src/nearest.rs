//! Finds the word that a misspelt word probably means.
//!
//! `lock-macros` and `lock-core` have a copy of this file each, for the same reason as for
//! `duration_text.rs`. A test compares the copies.

/// Finds the candidate that a misspelt `word` probably means.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One slip for every three letters. With more, all short words would resemble each other.
    let allowed = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(slips, candidate)| *slips <= allowed && *slips < candidate.chars().count())
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

/// Counts the slips between two words: insertions, deletions, replacements, and swaps of
/// neighbours.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut older: Vec<usize> = Vec::new();
    let mut old: Vec<usize> = (0..=to.len()).collect();
    let mut before = None;
    for (row, left) in from.chars().enumerate() {
        let mut new = vec![row + 1];
        for (column, right) in to.iter().enumerate() {
            let replaced = old[column] + usize::from(left != *right);
            let mut best = replaced.min(old[column + 1] + 1).min(new[column] + 1);
            let swapped = column > 0 && before == Some(*right) && to[column - 1] == left;
            if swapped {
                best = best.min(older[column - 1] + 1);
            }
            new.push(best);
        }
        older = std::mem::replace(&mut old, new);
        before = Some(left);
    }
    old[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_slips() {
        assert_eq!(distance("ttl", "ttl"), 0);
        assert_eq!(distance("tll", "ttl"), 1);
        assert_eq!(distance("tl", "ttl"), 1);
        assert_eq!(distance("ttll", "ttl"), 1);
        assert_eq!(distance("anme", "name"), 1, "a swap is one slip");
        assert_eq!(distance("", "ttl"), 3);
        assert_eq!(distance("ttl", ""), 3);
        assert_eq!(distance("größe", "grösse"), 2, "letters, not bytes");
    }

    #[test]
    fn nearest_finds_a_misspelt_word() {
        let known = ["name", "ttl", "wait", "on_error"];
        assert_eq!(nearest("tll", known), Some("ttl"));
        assert_eq!(nearest("nmae", known), Some("name"));
        assert_eq!(nearest("onerror", known), Some("on_error"));
        assert_eq!(nearest("on_err", known), Some("on_error"));
    }

    #[test]
    fn nearest_ignores_distant_words() {
        let known = ["name", "ttl", "wait", "on_error"];
        assert_eq!(nearest("x", known), None);
        assert_eq!(nearest("timeout", known), None);
        assert_eq!(
            nearest("a", ["b"]),
            None,
            "one letter is near to every letter"
        );
        assert_eq!(nearest("ttl", []), None);
    }

    #[test]
    fn nearest_prefers_the_smaller_distance() {
        assert_eq!(
            nearest("order_ids", ["order_is", "order_id"]),
            Some("order_is")
        );
        assert_eq!(
            nearest("order_idx", ["order", "order_id"]),
            Some("order_id")
        );
    }
}
