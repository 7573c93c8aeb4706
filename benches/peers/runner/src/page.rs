//! The part of the page that a run replaces.

/// Begins the part of the page that a run replaces.
pub const BEGIN: &str = "<!-- ./scripts/peers writes this part -->";
/// Ends the part of the page that a run replaces.
pub const END: &str = "<!-- the end of what ./scripts/peers writes -->";

/// Returns the page with another text between the marks.
///
/// # Errors
///
/// Fails if a mark is missing.
pub fn replace_results(page: &str, text: &str) -> Result<String, String> {
    let missing = |mark: &str| format!("the page has no line `{mark}`");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    Ok(format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        text.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::{BEGIN, END, replace_results};

    #[test]
    fn replace_results_keeps_the_rest_of_the_page() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let replaced = replace_results(&page, "new\n").unwrap();
        assert_eq!(replaced, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(replace_results(&replaced, "new\n").unwrap(), replaced);
        assert!(replace_results(BEGIN, "new").is_err());
    }
}
