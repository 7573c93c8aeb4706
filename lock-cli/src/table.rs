//! Tables without borders, as other tools of operators have them.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::page::{BOLD, Line, Page};

/// The space between two columns.
const GAP: u16 = 3;

/// Writes a table with a bold header.
pub(crate) fn write<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> Page {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        // Before the columns get their widths.
        table.add_row(row.each_ref().map(|cell| Line::new(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let mut page = Page::default();
    for (number, line) in table.lines().enumerate() {
        let line = line.trim_end();
        if number == 0 {
            page.painted(BOLD, line).end_line();
        } else {
            page.line(line);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let cell = |text: &str| text.to_owned();
        let rows = [
            [cell("order:1"), cell("a")],
            [cell("größe"), cell("web-1:42")],
            [cell("a\nb"), cell("\x1b[0m")],
        ];
        let text = write(["NAME", "HOLDER"], &rows);
        let text = text.as_str();
        let plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(
            plain,
            "NAME      HOLDER\norder:1   a\ngröße     web-1:42\na\\u{a}b   \\u{1b}[0m\n"
        );
        assert!(text.starts_with("\x1b[1mNAME"));
    }
}
