//! The code blocks of a page, and the regions of a program.

/// A block of code.
pub(crate) struct Block {
    /// The number of the line with its first fence.
    pub(crate) line: usize,
    /// The words after the first fence. A block without words is Rust.
    pub(crate) tags: Vec<String>,
    /// The lines that a reader sees.
    pub(crate) lines: Vec<String>,
    /// The file and the region from which it is cut.
    pub(crate) source: Option<(String, String)>,
}

/// Returns all blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(words) = line.trim_start().strip_prefix("```") {
            let block = lines.by_ref().map(|(_, line)| line);
            let block = block.take_while(|line| !line.trim_start().starts_with("```"));
            let is_hidden = |line: &&str| *line == "#" || line.starts_with("# ");
            let words = if words.is_empty() { "rust" } else { words };
            blocks.push(Block {
                line: number + 1,
                tags: words.split([',', ' ']).map(str::to_owned).collect(),
                lines: block
                    .filter(|line| !is_hidden(line))
                    .map(str::to_owned)
                    .collect(),
                source: source(before),
            });
        }
        before = line;
    }
    blocks
}

/// Reads the comment before a cut block.
fn source(comment: &str) -> Option<(String, String)> {
    let text = comment.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    let (file, region) = text.split_once(": ")?;
    Some((file.to_owned(), region.to_owned()))
}

/// Returns the lines of a region, without the indentation that all of them have.
pub(crate) fn region(program: &str, name: &str) -> Option<Vec<String>> {
    let begin = format!("// region: {name}");
    let mut lines = program.lines().skip_while(|line| line.trim() != begin);
    lines.next()?;
    let lines: Vec<&str> = lines
        .take_while(|line| line.trim() != "// endregion")
        .collect();
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = indents
        .map(|line| line.len() - line.trim_start().len())
        .min()?;
    let cut = |line: &&str| line.get(indent..).unwrap_or_default().to_owned();
    Some(lines.iter().map(cut).collect())
}

#[test]
fn blocks_have_their_tags_their_source_and_their_visible_lines() {
    let page = "text\n\n<!-- a/b.rs: part -->\n```no_run\n# hidden\nlet a = 1;\n#[x]\n```\n\n```sh\nls\n```\n";
    let blocks = blocks(page);
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].line, 4);
    assert_eq!(blocks[0].tags, ["no_run"]);
    assert_eq!(blocks[0].lines, ["let a = 1;", "#[x]"]);
    let source = ("a/b.rs".to_owned(), "part".to_owned());
    assert_eq!(blocks[0].source, Some(source));
    assert_eq!((blocks[1].line, blocks[1].source.as_ref()), (10, None));
    assert_eq!(blocks[1].tags, ["sh"]);

    let program = "    // region: one\n    if x {\n\n        y\n    }\n    // endregion\n    z\n";
    let region = region(program, "one").expect("it is there");
    assert_eq!(region, ["if x {", "", "    y", "}"]);
    assert_eq!(super::region(program, "two"), None);
}
