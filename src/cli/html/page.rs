//! A page as a list of sections; the template makes HTML of it and escapes every word.

use minijinja::{Environment, UndefinedBehavior};
use report::table::Table;
use serde::Serialize;

use crate::cli::plot::{Scene, Theme, svg};

/// A page of its own: no script, and nothing that is loaded.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    pub(super) kind: &'static str,
    pub(super) title: String,
    pub(super) lead: String,
    /// Name and number of what matters most.
    pub(super) cards: Vec<(String, String)>,
    pub(super) sections: Vec<Section>,
    pub(super) footer: String,
}

/// Blocks below a heading.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    title: String,
    blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Block {
    /// A paragraph.
    Text(String),
    /// Text as it came from a session.
    Quote(String),
    Table(Rows),
    /// A table that opens on demand.
    Folded {
        name: String,
        table: Rows,
    },
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// A drawing: an SVG element.
    Svg(String),
}

/// A table.
#[derive(Debug, Serialize)]
pub(super) struct Rows {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl From<&Table> for Rows {
    fn from(table: &Table) -> Self {
        let cells = |row: Vec<&str>| row.into_iter().map(str::to_owned).collect();
        Rows { head: table.heads().collect(), rows: table.texts().map(cells).collect() }
    }
}

impl Section {
    /// A section of what there is; `None` if there is nothing.
    pub(super) fn new(title: &str, blocks: impl IntoIterator<Item = Block>) -> Option<Self> {
        let blocks: Vec<Block> = blocks.into_iter().collect();
        (!blocks.is_empty()).then(|| Section { title: title.into(), blocks })
    }
}

impl Block {
    /// A drawing.
    pub(super) fn drawing(scene: &Scene) -> Self {
        Block::Svg(svg(scene, Theme::Page))
    }
}

impl Page {
    /// The page as HTML.
    pub(super) fn html(&self) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        // The ending of the name turns on escaping.
        environment.add_template("page.html", include_str!("page.html"))?;
        let context =
            minijinja::context! { style => include_str!("style.css"), ..minijinja::Value::from_serialize(self) };
        environment.get_template("page.html")?.render(context)
    }
}
