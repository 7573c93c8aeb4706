//! Tables without borders, as other tools of operators have them.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::output::BOLD;

/// The space between two columns.
const GAP: u16 = 3;

/// Writes a table with a bold header.
pub(crate) fn write<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let mut text = String::new();
    for (number, line) in table.lines().enumerate() {
        let line = line.trim_end();
        if number == 0 {
            text.push_str(&BOLD.on(line));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
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
        ];
        let text = write(["NAME", "HOLDER"], &rows);
        let plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(plain, "NAME      HOLDER\norder:1   a\ngröße     web-1:42\n");
        assert!(text.starts_with("\x1b[1mNAME"));
    }
}
