//! Works that a table cites, and their entries in BibTeX.

use serde::Deserialize;

use crate::table::latex;

/// A cited work. It is read from a JSON object whose keys are BibTeX's field names. Facts that are not known are
/// absent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reference {
    #[serde(rename = "type")]
    kind: Kind,
    title: String,
    /// The authors' names, with `and` between them.
    author: Option<String>,
    year: u16,
    booktitle: Option<String>,
    journal: Option<String>,
    volume: Option<String>,
    number: Option<String>,
    archive_prefix: Option<String>,
    eprint: Option<String>,
    howpublished: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Inproceedings,
    Article,
    Misc,
}

impl Reference {
    /// The work as a BibTeX entry with the key `key`, in UTF-8, with a line end after it.
    pub fn bibtex(&self, key: &str) -> String {
        let kind = match self.kind {
            Kind::Inproceedings => "inproceedings",
            Kind::Article => "article",
            Kind::Misc => "misc",
        };
        let text = |text: &Option<String>| text.as_deref().map(escaped);
        let fields = [
            ("author", text(&self.author)),
            // BibTeX's styles sort by the author or, without one, by this field.
            ("key", self.author.is_none().then(|| key.to_owned())),
            // The inner braces keep the capitals of a title.
            ("title", Some(format!("{{{}}}", escaped(&self.title)))),
            ("booktitle", text(&self.booktitle)),
            ("journal", text(&self.journal)),
            ("volume", text(&self.volume)),
            ("number", text(&self.number)),
            ("howpublished", text(&self.howpublished)),
            ("archivePrefix", text(&self.archive_prefix)),
            ("eprint", text(&self.eprint)),
            ("year", Some(self.year.to_string())),
        ];
        let known = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let lines: String = known.map(|(name, value)| format!("  {name} = {{{value}}},\n")).collect();
        format!("@{kind}{{{key},\n{lines}}}\n")
    }
}

/// `text` as the value of a field. Braces in it become commands, because BibTeX counts even escaped braces.
fn escaped(text: &str) -> String {
    latex(text).replace(r"\{", r"\textbraceleft{}").replace(r"\}", r"\textbraceright{}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_is_known() {
        let json =
            r#"{"type": "misc", "title": "A_B & 5 % of {", "year": 2026, "archivePrefix": "arXiv", "eprint": "1"}"#;
        let work: Reference = serde_json::from_str(json).unwrap();
        let title = r"  title = {{A\_B \& 5 \% of \textbraceleft{}}},";
        let rest = "  archivePrefix = {arXiv},\n  eprint = {1},\n  year = {2026},\n}\n";
        assert_eq!(work.bibtex("ab2026"), format!("@misc{{ab2026,\n  key = {{ab2026}},\n{title}\n{rest}"));
        let work = Reference { author: Some("Kurt Gödel and Čapek".into()), kind: Kind::Article, ..work };
        assert!(work.bibtex("g").starts_with("@article{g,\n  author = {Kurt Gödel and Čapek},\n  title"));
    }
}
