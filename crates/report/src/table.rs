//! Tables of results, and the forms in which they are written.
//!
//! A cell has a text for readers and a value for programs. For example, a terminal and Markdown show `7.00 MB`, and
//! CSV and JSON `7000000`. CSV and JSON name a column by its key, which is made of its title and its unit. In LaTeX,
//! all cells in a column of bytes have the same unit, which the column's head names.

mod document;

use std::fmt::{self, Write};

use serde_json::{Map, Value};

pub use document::{Document, Layout, LayoutError};

/// A form in which results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A table framed by lines, no wider than the terminal.
    #[default]
    Terminal,
    /// A Markdown table.
    Markdown,
    /// Comma-separated values (RFC 4180), with the values for programs.
    Csv,
    /// A LaTeX `tabular` with the rules of the package booktabs.
    Latex,
    /// An array of JSON objects, one for each row, with the values for programs.
    Json,
}

impl Format {
    /// All forms by name.
    pub const NAMES: [(&'static str, Format); 5] = [
        ("terminal", Format::Terminal),
        ("markdown", Format::Markdown),
        ("csv", Format::Csv),
        ("latex", Format::Latex),
        ("json", Format::Json),
    ];
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    text: String,
    value: Value,
    /// Whether the text is the key of a work to cite.
    cites: bool,
}

impl Cell {
    /// A cell of words.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Cell { value: text.clone().into(), text, cites: false }
    }

    /// A cell with the key of a work in a bibliography. In LaTeX it cites the work.
    pub fn cite(key: impl Into<String>) -> Self {
        Cell { cites: true, ..Cell::text(key) }
    }

    /// A cell with the number `value`, which readers see as `text`.
    pub fn number(value: impl Into<Value>, text: impl Into<String>) -> Self {
        Cell { text: text.into(), value: value.into(), cites: false }
    }

    /// A cell with a count.
    pub fn count(count: u64) -> Self {
        Cell::number(count, count.to_string())
    }

    /// A cell with true or false.
    pub fn flag(flag: bool) -> Self {
        Cell::number(flag, if flag { "yes" } else { "no" })
    }

    /// A cell with a number of bytes.
    pub fn bytes(count: u64) -> Self {
        Cell::number(count, bytes(count))
    }

    /// A cell with seconds, to three digits after the point.
    pub fn seconds(seconds: f64) -> Self {
        Cell::number(seconds, format!("{seconds:.3}"))
    }

    /// A cell with a factor, to two digits after the point.
    pub fn times(times: f64) -> Self {
        Cell::number(times, format!("{times:.2}"))
    }

    /// A cell with cents, to four significant digits.
    pub fn cents(cents: f64) -> Self {
        Cell::number(cents, digits(cents))
    }

    /// A cell with joules, to four significant digits.
    pub fn joules(joules: f64) -> Self {
        Cell::number(joules, digits(joules))
    }

    /// A cell without a value: a dash for readers, null for programs.
    pub fn absent() -> Self {
        Cell { text: "-".into(), value: Value::Null, cites: false }
    }

    /// The cell that `cell` makes of `value`, or [`Cell::absent`] without a value.
    pub fn maybe<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Self {
        value.map_or_else(Cell::absent, cell)
    }

    /// The value as a text for CSV, before quoting.
    fn raw(&self) -> String {
        match &self.value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// When readers see a column. Programs, which read CSV and JSON, see all columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// If any row has a value in the column.
    #[default]
    Filled,
    /// If the rows differ in the column. If all rows share a value, readers see it before the table instead.
    Setting,
    /// If the column is asked for by name.
    Asked,
}

/// A column: its title, and the unit of its values. The unit is empty for words and plain numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    title: String,
    unit: String,
    shown: Shown,
}

impl Column {
    /// The title that readers see. It names the unit of seconds, because their cells do not.
    fn head(&self) -> String {
        match &*self.unit {
            SECONDS => format!("{} s", self.title),
            unit if NAMED.contains(&unit) => format!("{}, {unit}", self.title),
            _ => self.title.clone(),
        }
    }

    /// The column's name for programs: `client to server` in bytes is `client_to_server_bytes`.
    fn key(&self) -> String {
        let mut key = String::new();
        for c in self.title.chars().chain([' ']).chain(self.unit.chars()) {
            match c {
                c if c.is_alphanumeric() => key.extend(c.to_lowercase()),
                _ if key.ends_with('_') || key.is_empty() => {}
                _ => key.push('_'),
            }
        }
        key.trim_end_matches('_').to_owned()
    }
}

/// The longest head of a column for which a paper has room, in bytes.
const LATEX_HEAD: usize = 8;

/// The unit of a column of bytes. Cells show its numbers in kB, MB or GB.
const BYTES: &str = "bytes";
const SECONDS: &str = "seconds";

/// The units that a column's head names after the title.
const NAMED: [&str; 4] = ["cents", "joules", "Mbit/s", "ms"];

/// Rows of cells, in columns with titles.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    names: usize,
}

impl Table {
    /// An empty table whose columns have these titles and units. The first `names` columns name a row. They are
    /// aligned left, as are all columns of words. If a table is too wide for its terminal, it is divided, and each
    /// part repeats these columns.
    pub fn new<T: Into<String>>(names: usize, columns: impl IntoIterator<Item = (T, &'static str)>) -> Self {
        let column =
            |(title, unit): (T, &str)| Column { title: title.into(), unit: unit.into(), shown: Shown::default() };
        Table { columns: columns.into_iter().map(column).collect(), rows: Vec::new(), names }
    }

    /// This table, in which readers see the columns with these keys as `shown` says.
    pub fn showing(mut self, shown: Shown, keys: &[&str]) -> Self {
        let named = self.columns.iter_mut().filter(|column| keys.contains(&&*column.key()));
        named.for_each(|column| column.shown = shown);
        self
    }

    /// Appends a column for each of `settings`: title, unit, and the cell for all rows that the table has by now.
    /// Readers see these values before the table.
    pub fn settle(&mut self, settings: impl IntoIterator<Item = (&'static str, &'static str, Cell)>) {
        for (title, unit, cell) in settings {
            self.columns.push(Column { title: title.into(), unit: unit.into(), shown: Shown::Setting });
            self.rows.iter_mut().for_each(|row| row.push(cell.clone()));
        }
    }

    /// The value that all rows share in column `i`, if there is one. Rows without a value in this column do not
    /// count.
    fn same(&self, i: usize) -> Option<&Cell> {
        let mut known = self.rows.iter().map(|row| &row[i]).filter(|cell| !cell.value.is_null());
        let first = known.next()?;
        known.all(|cell| cell.value == first.value).then_some(first)
    }

    /// The remarks that readers see before the table: the title and the value of each setting that all rows share.
    /// Settings whose keys are in `columns` are left out.
    fn settings(&self, columns: &[String]) -> Vec<String> {
        let said = |(i, column): (usize, &Column)| {
            let cell = self.same(i).filter(|_| column.shown == Shown::Setting && !columns.contains(&column.key()))?;
            if cell.value == Value::Bool(false) {
                return None;
            }
            let unit = match &*column.unit {
                BYTES | "" => String::new(),
                SECONDS => " s".to_owned(),
                unit => format!(" {unit}"),
            };
            Some(format!("{} {}{unit}", column.title, cell.text))
        };
        self.columns.iter().enumerate().filter_map(said).collect()
    }

    /// The table as readers see it, without hidden columns.
    fn for_readers(&self) -> Table {
        let tells = |i: &usize| match self.columns[*i].shown {
            Shown::Filled => *i < self.names || self.rows.iter().any(|row| !row[*i].value.is_null()),
            Shown::Setting => self.same(*i).is_none() && self.rows.iter().any(|row| !row[*i].value.is_null()),
            Shown::Asked => false,
        };
        let mut table = self.clone();
        table.keep((0..self.columns.len()).filter(|i| self.rows.is_empty() || tells(i)).collect());
        table
    }

    /// Keeps only the columns with the indices `chosen`, in this order.
    fn keep(&mut self, chosen: Vec<usize>) {
        self.names = chosen.iter().take_while(|i| **i < self.names).count();
        self.columns = chosen.iter().map(|&i| self.columns[i].clone()).collect();
        for row in &mut self.rows {
            *row = chosen.iter().map(|&i| row[i].clone()).collect();
        }
    }

    /// Adds a row with a cell for each column.
    pub fn add(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len(), "a cell for each column");
        row.resize(self.columns.len(), Cell::absent());
        self.rows.push(row);
    }

    /// Keeps only the columns with these keys, in this order. Readers see each that has a value.
    fn choose(&mut self, keys: &[String]) {
        let at = |key: &String| self.columns.iter().position(|column| column.key() == *key);
        self.keep(keys.iter().filter_map(at).collect());
        self.columns.iter_mut().for_each(|column| column.shown = Shown::Filled);
    }

    /// The values of the column with this key, as CSV has them.
    fn values(&self, key: &str) -> Vec<String> {
        let at = self.columns.iter().position(|column| column.key() == key);
        at.map_or_else(Vec::new, |at| self.rows.iter().map(|row| row[at].raw()).collect())
    }

    /// Keeps the rows that have one of the `wanted` values of each column that is named, by its key.
    fn filter(&mut self, wanted: &[(String, String)]) {
        let keys: Vec<String> = self.columns.iter().map(Column::key).collect();
        self.rows.retain(|row| {
            let mut named = keys.iter().zip(row).filter(|(key, _)| wanted.iter().any(|(name, _)| name == *key));
            named.all(|(key, cell)| wanted.contains(&(key.clone(), cell.raw())))
        });
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The heads of the columns, then the texts of each row, as readers see them.
    pub fn read(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let Table { columns, rows, .. } = self.for_readers();
        let texts = rows.into_iter().map(|row| row.into_iter().map(|cell| cell.text).collect());
        (columns.iter().map(Column::head).collect(), texts.collect())
    }

    /// The table in `format`, without a line end after it. `width` is the terminal's width in characters, if it is
    /// known.
    pub fn render(&self, format: Format, width: Option<usize>) -> String {
        match format {
            Format::Terminal => self.for_readers().terminal(width),
            Format::Markdown => self.for_readers().markdown(),
            Format::Csv => self.csv(),
            Format::Latex => self.for_readers().latex(false),
            Format::Json => format!("{:#}", self.json()),
        }
    }

    /// The rows as an array of JSON objects.
    pub fn json(&self) -> Value {
        let keys: Vec<String> = self.columns.iter().map(Column::key).collect();
        let object = |row: &Vec<Cell>| {
            let pairs = keys.iter().cloned().zip(row.iter().map(|cell| cell.value.clone()));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    fn markdown(&self) -> String {
        // A bar in a text must not end the cell.
        let shown = |text: &str| text.replace('|', r"\|");
        let rows: Vec<Vec<String>> =
            std::iter::once(self.columns.iter().map(|column| shown(&column.head())).collect())
                .chain(self.rows.iter().map(|row| row.iter().map(|cell| shown(&cell.text)).collect()))
                .collect();
        let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let padded = |(i, text): (usize, &String)| match self.is_numeric(i) {
            true => format!(" {text:>0$} |", widths[i]),
            false => format!(" {text:0$} |", widths[i]),
        };
        let mut lines: Vec<String> =
            rows.iter().map(|row| format!("|{}", row.iter().enumerate().map(padded).collect::<String>())).collect();
        let rule = widths.iter().map(|width| "-".repeat(width + 2) + "|").collect::<String>();
        lines.insert(1, format!("|{rule}"));
        lines.join("\n")
    }

    /// The columns with the indices `columns`, in a frame for a terminal.
    fn framed(&self, columns: &[usize]) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
        table.set_header(columns.iter().map(|&i| self.columns[i].head()));
        for row in &self.rows {
            table.add_row(columns.iter().map(|&i| &row[i].text));
        }
        for (column, &i) in table.column_iter_mut().zip(columns) {
            if self.is_numeric(i) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        table
    }

    /// The table for a terminal of this width. If it is too wide, it becomes several tables below each other, each
    /// with the names of the rows.
    fn terminal(&self, width: Option<usize>) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = width else { return self.framed(&all).to_string() };
        let names: Vec<usize> = (0..self.names.min(self.columns.len())).collect();
        // Two spaces beside each cell, and the frame.
        let taken = |columns: &[usize]| 2 + columns.iter().map(|&i| self.width(i) + 3).sum::<usize>();
        let mut parts = vec![names.clone()];
        for column in names.len()..self.columns.len() {
            let part = parts.len() - 1;
            let wider = [&parts[part][..], &[column]].concat();
            if taken(&wider) <= width || parts[part].len() == names.len() {
                parts[part] = wider;
            } else {
                parts.push([&names[..], &[column]].concat());
            }
        }
        let part = |columns: &Vec<usize>| {
            let mut table = self.framed(columns);
            if taken(columns) > width {
                table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
                table.set_width(width.min(9999) as u16);
            }
            table.to_string()
        };
        parts.iter().map(part).collect::<Vec<_>>().join("\n")
    }

    /// Whether column `i` has numbers and not names or words. Numbers are aligned right.
    fn is_numeric(&self, i: usize) -> bool {
        i >= self.names && self.rows.iter().all(|row| !row[i].value.is_string())
    }

    /// Number of characters in the widest cell of column `i`, its head included.
    fn width(&self, i: usize) -> usize {
        let head = self.columns[i].head().chars().count();
        self.rows.iter().map(|row| row[i].text.chars().count()).fold(head, usize::max)
    }

    fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.iter().map(|cell| csv_cell(cell)).collect::<Vec<_>>().join(",");
        let head = line(self.columns.iter().map(Column::key).collect());
        let rows = self.rows.iter().map(|row| line(row.iter().map(Cell::raw).collect()));
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }

    /// The largest unit in which every number of bytes in column `i`, apart from zeros, is 1 or more. `None` if the
    /// column has no bytes.
    fn one_unit(&self, i: usize) -> Option<(f64, &'static str)> {
        let numbers = self.rows.iter().filter_map(|row| row[i].value.as_f64()).filter(|bytes| *bytes > 0.0);
        let least = numbers.fold(f64::INFINITY, f64::min);
        let unit = BYTE_UNITS.into_iter().find(|(size, _)| least >= *size).unwrap_or((1.0, "B"));
        (self.columns[i].unit == BYTES && least.is_finite()).then_some(unit)
    }

    /// The table as a `tabular`. If it must fit a paper (`fits`), the words of a long head over numbers stand below
    /// each other.
    fn latex(&self, fits: bool) -> String {
        let line = |cells: Vec<String>| cells.join(" & ") + r" \\";
        let mut text = String::from("\\begin{tabular}{");
        text.extend((0..self.columns.len()).map(|i| if self.is_numeric(i) { 'r' } else { 'l' }));
        text.push_str("}\n\\toprule\n");
        let units: Vec<_> = (0..self.columns.len()).map(|i| self.one_unit(i)).collect();
        let head = self.columns.iter().zip(&units).enumerate().map(|(i, (column, unit))| {
            let head = match unit {
                Some((_, unit)) => format!("{}, {unit}", column.head()),
                None => column.head(),
            };
            match (fits && head.len() > LATEX_HEAD, self.is_numeric(i)) {
                (true, true) => format!(r"\shortstack[r]{{{}}}", latex(&head).replace(' ', r"\\")),
                _ => latex(&head),
            }
        });
        let _ = writeln!(text, "{}\n\\midrule", line(head.collect()));
        for row in &self.rows {
            let cells = row.iter().zip(&units).map(|(cell, unit)| match (unit, cell.value.as_f64()) {
                (Some((size, _)), Some(bytes)) => format!("{:.2}", bytes / size),
                // A key is written as in the bibliography, without escapes.
                _ if cell.cites => format!(r"\cite{{{}}}", cell.text),
                _ => latex(&cell.text),
            });
            let _ = writeln!(text, "{}", line(cells.collect()));
        }
        text + "\\bottomrule\n\\end{tabular}"
    }
}

/// Writes the table as for a terminal of unlimited width.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.render(Format::Terminal, None))
    }
}

/// A number to four significant digits, without an exponent.
fn digits(number: f64) -> String {
    let before = if number > 0.0 { number.log10().floor() as i32 } else { 0 };
    format!("{number:.*}", (3 - before).max(0) as usize)
}

/// A cell of CSV, in quotes if needed.
fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// `text` with the characters escaped that LaTeX treats specially. Text between backticks becomes code.
pub fn latex(text: &str) -> String {
    let mut out = String::new();
    let (mut code, mut left) = (false, text.matches('`').count());
    for c in text.chars() {
        match c {
            // The last backtick of an odd number is an ordinary character.
            '`' if code || left > 1 => {
                out.push_str(if code { "}" } else { r"\texttt{" });
                (code, left) = (!code, left - 1);
            }
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '~' => out.push_str(r"\textasciitilde{}"),
            '^' => out.push_str(r"\textasciicircum{}"),
            '\\' => out.push_str(r"\textbackslash{}"),
            '<' => out.push_str(r"\textless{}"),
            '>' => out.push_str(r"\textgreater{}"),
            '|' => out.push_str(r"\textbar{}"),
            '*' => out.push_str(r"\textasteriskcentered{}"),
            '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Decimal units of bytes, the largest first.
const BYTE_UNITS: [(f64, &str); 4] = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")];

/// `n` bytes in decimal units, as is usual for networks.
pub fn bytes(n: u64) -> String {
    let of = n as f64;
    match BYTE_UNITS.into_iter().find(|(size, _)| of >= *size) {
        Some((size, unit)) if size > 1.0 => format!("{:.2} {unit}", of / size),
        _ => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn table() -> Table {
        let mut table = Table::new(1, [("policy", ""), ("client to server", "bytes"), ("faster", ""), ("note", "")]);
        table.add([Cell::text("full"), Cell::bytes(7_000_000), Cell::times(1.0), Cell::absent()]);
        table.add([Cell::text("a_b, 50 %"), Cell::bytes(12_000), Cell::times(2.5), Cell::text("say \"no\"")]);
        table
    }

    #[test]
    fn programs_read_values_and_readers_texts() {
        let csv = table().render(Format::Csv, None);
        let expected = "policy,client_to_server_bytes,faster,note\nfull,7000000,1.0,\n\"a_b, 50 %\",12000,2.5,\"say \"\"no\"\"\"";
        assert_eq!(csv, expected);
        let json: Value = serde_json::from_str(&table().render(Format::Json, None)).unwrap();
        assert_eq!(json[0]["client_to_server_bytes"], 7_000_000);
        assert_eq!((&json[0]["note"], &json[1]["note"]), (&Value::Null, &"say \"no\"".into()));
        let markdown = table().render(Format::Markdown, None);
        assert_eq!(markdown.lines().count(), 4, "{markdown}");
        assert!(markdown.contains("7.00 MB") && !markdown.contains("7000000"), "{markdown}");
    }

    #[test]
    fn latex_has_rules_and_escapes() {
        let text = table().render(Format::Latex, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r"\begin{tabular}{lrrl}");
        // Each column has one unit, that of its smallest number.
        assert_eq!(lines[2], r"policy & client to server, kB & faster & note \\");
        assert_eq!(lines[4], r"full & 7000.00 & 1.00 & - \\");
        assert_eq!(lines[5], "a\\_b, 50 \\% & 12.00 & 2.50 & say \"no\" \\\\");
        assert_eq!(
            [lines[1], lines[3], lines[6], lines[7]],
            [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
        );
        assert_eq!(latex(r"x^2 \ {~}"), r"x\textasciicircum{}2 \textbackslash{} \{\textasciitilde{}\}");
    }

    #[test]
    fn latex_cites_keys() {
        let mut table = Table::new(1, [("row", ""), ("cite", "")]);
        table.add([Cell::text("a_b"), Cell::cite("a_b2026")]);
        assert!(table.render(Format::Latex, None).contains("\na\\_b & \\cite{a_b2026} \\\\\n"));
        assert!(table.render(Format::Markdown, None).contains("| a_b2026 |"));
        assert_eq!(table.json()[0]["cite"], "a_b2026");
    }

    #[test]
    fn a_narrow_terminal_gets_several_tables_with_the_names_of_the_rows() {
        let wide = table().render(Format::Terminal, Some(200));
        assert_eq!(wide, table().to_string());
        let narrow = table().render(Format::Terminal, Some(36));
        assert_eq!(narrow.matches("a_b, 50 %").count(), 2, "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 36), "{narrow}");
        let cells = ["7.00 MB", "2.50", "say \"no\""];
        assert!(cells.iter().all(|cell| narrow.contains(cell)), "{narrow}");
        // A single column may be wider than the terminal. Its words then go on lines of their own.
        let tiny = table().render(Format::Terminal, Some(20));
        assert!(tiny.lines().all(|line| line.chars().count() <= 20), "{tiny}");
    }

    #[test]
    fn small_prices_keep_their_digits() {
        let shown = [0.0, 0.000_123_45, 1.5, 123.456, 98_765.4].map(digits);
        assert_eq!(shown, ["0.000", "0.0001234", "1.500", "123.5", "98765"]);
    }

    #[test]
    fn a_bar_in_a_cell_does_not_end_it() {
        let mut table = Table::new(1, [("a", "")]);
        table.add([Cell::text("x|y")]);
        assert!(table.render(Format::Markdown, None).contains(r"x\|y"));
        assert!(table.to_string().contains("x|y"));
    }
}
