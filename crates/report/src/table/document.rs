//! Several tables as one document, and its layout for a paper.

use std::collections::BTreeSet;

use serde_json::Value;
use thiserror::Error;

use super::{Cell, Column, Format, Shown, Table, latex};

/// The largest number of columns for which a text column of a paper has room.
const MOST_COLUMNS: usize = 8;

/// The choice of a document's columns and rows, and its layout in LaTeX.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Keys of the columns to write, in this order. They are the names that CSV uses. An empty list stands for all
    /// columns.
    pub columns: Vec<String>,
    /// The rows to write: a column's key, and a value as CSV has it. A row must have one of the values that are named
    /// for each column.
    pub rows: Vec<(String, String)>,
    /// The caption in LaTeX. It replaces the document's own.
    pub caption: Option<String>,
    /// The label in LaTeX. If there are several tables, each table's title is appended to it.
    pub label: Option<String>,
    /// Whether a table in LaTeX is as wide as the page, and not as one text column.
    pub wide: bool,
}

/// Why a document cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// No table has a column that was asked for together with the other columns that were asked for.
    #[error("no table has all of these columns, such as `{name}`; there are {}", known.join(", "))]
    NoColumn {
        /// The key of the column that was asked for.
        name: String,
        /// The keys of all columns.
        known: Vec<String>,
    },
    /// No row has a value that was asked for.
    #[error("no row has `{value}` in the column `{name}`; there are {}", known.join(", "))]
    NoRow {
        /// The key of the column.
        name: String,
        /// The value that was asked for.
        value: String,
        /// The values of the column.
        known: Vec<String>,
    },
}

/// Several tables with titles, and remarks that stand before them.
#[derive(Clone, Debug, Default)]
pub struct Document {
    notes: Vec<String>,
    caption: Option<String>,
    /// Values that all rows share in columns that were not asked for, as remarks.
    settings: Vec<String>,
    label: Option<String>,
    wide: bool,
    tables: Vec<(String, Table)>,
}

/// Makes a document of one table, which needs no title.
impl From<Table> for Document {
    fn from(table: Table) -> Self {
        Document { tables: vec![(String::new(), table)], ..Document::default() }
    }
}

impl Document {
    /// Adds a remark, which stands before all tables. CSV and JSON leave it out.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Sets the remark that explains the numbers. LaTeX uses it as the caption of the tables.
    pub fn caption(&mut self, caption: impl Into<String>) {
        self.caption = Some(caption.into());
    }

    /// Adds a table with a title.
    pub fn table(&mut self, title: impl Into<String>, table: Table) {
        self.tables.push((title.into(), table));
    }

    /// This document in `layout`. A table is dropped if it lacks one of the layout's columns.
    ///
    /// # Errors
    /// [`LayoutError`] if no table has all of the layout's columns, or no row a value that it names.
    pub fn laid_out(mut self, layout: &Layout) -> Result<Self, LayoutError> {
        let Layout { columns, rows, caption, label, wide } = layout;
        let keys = |table: &Table| table.columns.iter().map(Column::key).collect::<Vec<_>>();
        let named = || columns.iter().chain(rows.iter().map(|(name, _)| name));
        let lacks = |(_, table): &(String, Table)| named().find(|name| !keys(table).contains(name)).cloned();
        if let Some(name) = self.tables.iter().map(lacks).min().flatten() {
            return Err(LayoutError::NoColumn {
                name,
                known: self.tables.iter().flat_map(|(_, table)| keys(table)).collect(),
            });
        }
        self.tables.retain(|named| lacks(named).is_none());
        for (name, value) in rows {
            let known: BTreeSet<String> = self.tables.iter().flat_map(|(_, table)| table.values(name)).collect();
            if !known.is_empty() && !known.contains(value) {
                let known = known.into_iter().collect();
                return Err(LayoutError::NoRow { name: name.clone(), value: value.clone(), known });
            }
        }
        self.tables.iter_mut().for_each(|(_, table)| table.filter(rows));
        if !columns.is_empty() {
            self.settings = self.settings(columns);
            self.tables.iter_mut().for_each(|(_, table)| table.choose(columns));
        }
        let caption = caption.clone().or(self.caption);
        Ok(Document { caption, label: label.clone(), wide: *wide, ..self })
    }

    /// The settings that all rows of a table share, for all tables. Settings whose keys are in `columns` are left
    /// out.
    fn settings(&self, columns: &[String]) -> Vec<String> {
        let mut all = self.settings.clone();
        for setting in self.tables.iter().flat_map(|(_, table)| table.settings(columns)) {
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
        all
    }

    /// The remark that explains the numbers, followed by the settings that all rows share.
    pub fn remark(&self) -> Option<String> {
        let settings = self.settings(&[]);
        let shared = (!settings.is_empty()).then(|| format!("Everywhere: {}.", settings.join(", ")));
        match (&self.caption, shared) {
            (Some(caption), Some(shared)) => Some(format!("{}. {shared}", caption.trim_end_matches('.'))),
            (caption, shared) => caption.clone().or(shared),
        }
    }

    /// The document in `format`, without a line end after it. `width` is the terminal's width in characters, if it is
    /// known.
    pub fn render(&self, format: Format, width: Option<usize>) -> String {
        let table = |(_, table): &(String, Table)| table.render(format, width);
        let remarks = || self.remark().into_iter().chain(self.notes.iter().cloned());
        match format {
            Format::Json if self.is_untitled() => self.one_table().render(format, None),
            Format::Terminal | Format::Markdown if self.is_untitled() => {
                remarks().chain(self.tables.iter().map(table)).collect::<Vec<_>>().join("\n\n")
            }
            Format::Json => {
                let pairs = self.tables.iter().map(|(title, table)| (title.clone(), table.json()));
                format!("{:#}", Value::Object(pairs.collect()))
            }
            Format::Csv => self.one_table().csv(),
            Format::Terminal => {
                let titled = self.tables.iter().map(|named| format!("{}\n{}", named.0, table(named)));
                remarks().chain(titled).collect::<Vec<_>>().join("\n")
            }
            Format::Markdown => {
                let titled = self.tables.iter().map(|named| format!("**{}**\n\n{}", named.0, table(named)));
                remarks().chain(titled).collect::<Vec<_>>().join("\n\n")
            }
            Format::Latex if self.caption.is_none() && self.label.is_none() => {
                let notes = remarks().map(|note| format!("% {note}"));
                let comment = |title: &str| if title.is_empty() { String::new() } else { format!("% {title}\n") };
                let titled = self.tables.iter().map(|named| comment(&named.0) + &table(named));
                notes.chain(titled).collect::<Vec<_>>().join("\n")
            }
            Format::Latex => {
                let last = self.tables.len().saturating_sub(1);
                let notes = |i| if i == last { &self.notes[..] } else { &[] };
                let tables = self.tables.iter().enumerate();
                tables.map(|(i, (title, table))| self.float(title, table, notes(i))).collect::<Vec<_>>().join("\n")
            }
        }
    }

    fn is_untitled(&self) -> bool {
        matches!(&self.tables[..], [(title, _)] if title.is_empty())
    }

    /// A floating table in LaTeX: a caption, the label, `table` in small letters, and `notes` below it.
    fn float(&self, title: &str, table: &Table, notes: &[String]) -> String {
        let environment = if self.wide { "table*" } else { "table" };
        let several = self.tables.len() > 1;
        let mut lines =
            vec![format!("\\begin{{{environment}}}\n\\centering\\footnotesize\\setlength{{\\tabcolsep}}{{3pt}}")];
        let remark = self.remark();
        let caption = [Some(title).filter(|_| several), remark.as_deref()].into_iter().flatten();
        lines.push(format!("\\caption{{{}}}", latex(&caption.collect::<Vec<_>>().join(": "))));
        if let Some(label) = &self.label {
            let end = if several { format!("-{title}") } else { String::new() };
            lines.push(format!("\\label{{{label}{end}}}"));
        }
        let table = table.for_readers();
        let tabular = table.latex(true);
        // LaTeX's package graphics then scales the table to a text column.
        let small = !self.wide && table.columns.len() > MOST_COLUMNS;
        lines.push(if small { format!("\\resizebox{{\\columnwidth}}{{!}}{{%\n{tabular}}}") } else { tabular });
        lines.extend(notes.iter().map(|note| format!("\n\\smallskip {}", latex(note))));
        lines.push(format!("\\end{{{environment}}}"));
        lines.join("\n")
    }

    /// All tables as one table, for programs that read a single table from a file. Its first column has the titles of
    /// the tables. A row has no value in columns that its own table lacks.
    fn one_table(&self) -> Table {
        if let [(_, table)] = &self.tables[..] {
            return table.clone();
        }
        let mut columns = vec![Column { title: "table".into(), unit: String::new(), shown: Shown::default() }];
        for column in self.tables.iter().flat_map(|(_, table)| &table.columns) {
            if !columns[1..].contains(column) {
                columns.push(column.clone());
            }
        }
        let cell = |table: &Table, row: &[Cell], column: &Column| {
            let own = table.columns.iter().position(|own| own == column);
            own.map_or_else(Cell::absent, |own| row[own].clone())
        };
        let rows = self.tables.iter().flat_map(|(title, table)| {
            let of = |row: &Vec<Cell>| {
                let cells = columns[1..].iter().map(|column| cell(table, row, column));
                std::iter::once(Cell::text(title)).chain(cells).collect()
            };
            table.rows.iter().map(of).collect::<Vec<_>>()
        });
        Table { rows: rows.collect(), columns, names: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;

    #[test]
    fn documents_name_their_tables() {
        let mut document = Document::default();
        document.note("exact");
        document.table("phases", table());
        document.table("operations", table());
        let json: Value = serde_json::from_str(&document.render(Format::Json, None)).unwrap();
        assert_eq!(json["operations"][1]["faster"], 2.5);
        assert!(document.render(Format::Markdown, None).starts_with("exact\n\n**phases**\n\n| policy"));
        assert!(document.render(Format::Latex, None).starts_with("% exact\n% phases\n\\begin"));
    }

    #[test]
    fn csv_is_one_table() {
        let mut other = Table::new(1, [("operation", ""), ("faster", ""), ("network", "seconds"), ("random", "")]);
        other.add([Cell::text("softmax"), Cell::times(3.0), Cell::seconds(0.25), Cell::flag(true)]);
        assert!(other.render(Format::Markdown, None).contains("| network s |"));
        let mut document = Document::default();
        document.caption("exact");
        document.table("phases", table());
        assert_eq!(document.render(Format::Csv, None), table().render(Format::Csv, None));
        assert!(document.render(Format::Latex, None).contains("{3pt}\n\\caption{exact}\n\\begin{tab"));
        document.table("operations", other);
        let csv = document.render(Format::Csv, None);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "table,policy,client_to_server_bytes,faster,note,operation,network_seconds,random");
        assert_eq!((lines[1], lines[3]), ("phases,full,7000000,1.0,,,,", "operations,,,3.0,,softmax,0.25,true"));
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_document_is_laid_out_for_a_paper() {
        let document = || {
            let mut document = Document::default();
            document.note("50 %");
            document.table("phases", table());
            document
        };
        let columns = ["faster", "policy"].map(String::from).to_vec();
        let (caption, label) = (Some("A & B".into()), Some("tab:x".into()));
        let layout = Layout { columns, caption, label, wide: true, ..Layout::default() };
        let text = document().laid_out(&layout).unwrap().render(Format::Latex, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[2], lines[3]), (r"\begin{table*}", r"\caption{A \& B}", r"\label{tab:x}"));
        assert_eq!((lines[4], lines[6]), (r"\begin{tabular}{rl}", r"faster & policy \\"));
        assert!(text.ends_with("\\end{tabular}\n\n\\smallskip 50 \\%\n\\end{table*}"), "{text}");
        let mut several = document();
        several.table("operations", table());
        let text = several.laid_out(&layout).unwrap().render(Format::Latex, None);
        assert!(text.contains("\\caption{operations: A \\& B}\n\\label{tab:x-operations}"), "{text}");
        let unknown = Layout { columns: vec!["slower".into()], ..Layout::default() };
        let error = document().laid_out(&unknown).unwrap_err().to_string();
        assert_eq!(
            error,
            "no table has all of these columns, such as `slower`; there are policy, client_to_server_bytes, faster, note"
        );
        let rows = |value: &str| Layout { rows: vec![("policy".into(), value.into())], ..Layout::default() };
        let chosen = document().laid_out(&rows("full")).unwrap().render(Format::Csv, None);
        assert_eq!(chosen.lines().skip(1).collect::<Vec<_>>(), ["full,7000000,1.0,"]);
        let error = document().laid_out(&rows("none")).unwrap_err();
        assert!(matches!(&error, LayoutError::NoRow { known, .. } if known.contains(&"full".into())), "{error}");
        let alone = Document::from(table());
        assert_eq!(alone.render(Format::Json, None), table().render(Format::Json, None));
        assert_eq!(alone.render(Format::Latex, None), table().render(Format::Latex, None));
    }
}
