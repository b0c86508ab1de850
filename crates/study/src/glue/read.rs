//! Files in the forms in which GLUE's tasks are published.

use serde_json::{Map, Value};

use super::GlueError;

/// An example: one line of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The text, or the first of two texts.
    pub text: String,
    /// The second text, if an example has two.
    pub pair: Option<String>,
    /// The right answer: the number of a class of the model, or a score.
    pub gold: f64,
}

/// Names of the columns in GLUE's files that have an example's text and, if there is one, its second text. The first
/// entry that a file has counts.
const TEXTS: [(&str, Option<&str>); 7] = [
    ("sentence1", Some("sentence2")),
    ("question1", Some("question2")),
    ("premise", Some("hypothesis")),
    ("#1 string", Some("#2 string")),
    ("question", Some("sentence")),
    ("sentence", None),
    ("text", None),
];

/// Names of the columns that have the right answers. The first name that a file has counts.
const GOLD: [&str; 5] = ["gold_label", "label", "score", "quality", "is_duplicate"];

/// Names of the columns in CoLA's files, which have no line of names.
const COLA: [&str; 4] = ["source", "label", "mark", "sentence"];

/// Reads the examples of `file`. `labels` are the names of the model's classes, or the one name of a score.
///
/// The file has one of two forms. In GLUE's archives it has tab-separated columns under a line of names (which CoLA's
/// files lack). As the library `datasets` writes it, each line is a JSON object. A class is given by its name in
/// `labels` or by its number.
///
/// # Errors
/// [`GlueError::Line`] for the first line that lacks a text or a right answer.
pub fn read(file: &str, labels: &[String]) -> Result<Vec<Example>, GlueError> {
    let file = file.trim_start_matches('\u{feff}');
    let examples: Vec<Example> = if file.trim_start().starts_with(['{', '[']) {
        let of = |object: Map<String, Value>| example(&|name| object.get(name).cloned(), labels);
        let lines = waggle_files::json_lines(file);
        lines.map(|(at, object)| object.and_then(of).map_err(in_line(at))).collect::<Result<_, _>>()?
    } else {
        let mut lines = (1..).zip(file.lines()).filter(|(_, line)| !line.trim().is_empty()).peekable();
        let first: Vec<String> = lines.peek().map_or(Vec::new(), |(_, line)| cells(line)).into_iter().collect();
        let lower: Vec<String> = first.iter().map(|name| name.trim().to_lowercase()).collect();
        let columns: Vec<String> = if lower.iter().any(|name| GOLD.contains(&name.as_str())) {
            lines.next();
            lower
        } else if first.len() == COLA.len() {
            COLA.map(str::to_owned).to_vec()
        } else {
            return Err(GlueError::Line { line: 1, what: "no head that names a label or a score".into() });
        };
        let of = |line: &str| {
            let cells = cells(line);
            let cell = |name: &str| cells.get(columns.iter().position(|column| column == name)?);
            let field = |name: &str| cell(name).map(|text| Value::from(&**text));
            example(&field, labels)
        };
        lines.map(|(at, line)| of(line).map_err(in_line(at))).collect::<Result<_, _>>()?
    };
    if examples.is_empty() { Err(GlueError::Empty) } else { Ok(examples) }
}

fn in_line(line: usize) -> impl Fn(String) -> GlueError {
    move |what| GlueError::Line { line, what }
}

fn cells(line: &str) -> Vec<String> {
    line.split('\t').map(str::to_owned).collect()
}

fn example(field: &dyn Fn(&str) -> Option<Value>, labels: &[String]) -> Result<Example, String> {
    let text = |name: &str| match field(name)? {
        Value::String(text) => Some(Ok(text)),
        other => Some(Err(format!("`{name}` is {other}, and no text"))),
    };
    let texts = TEXTS.iter().find_map(|(first, second)| match second {
        Some(second) => Some((text(first)?, Some(text(second)?))),
        None => Some((text(first)?, None)),
    });
    let (text, pair) = texts.ok_or("no sentence, or no second one where one belongs")?;
    let answer = GOLD.iter().find_map(|name| Some((name, field(name)?))).ok_or("no label and no score")?;
    let answer = match answer {
        (_, Value::String(answer)) => answer,
        (_, Value::Number(answer)) => answer.to_string(),
        (name, other) => return Err(format!("`{name}` is {other}, and no class and no score")),
    };
    let number: Option<f64> = answer.trim().parse().ok();
    let gold = match labels {
        [_] => number.filter(|score| score.is_finite()),
        names => {
            let named = names.iter().position(|name| name.eq_ignore_ascii_case(answer.trim()));
            let class = |number: &f64| number.fract() == 0.0 && (0.0..names.len() as f64).contains(number);
            named.map(|class| class as f64).or(number.filter(class))
        }
    };
    let gold = gold.ok_or_else(|| match labels {
        [_] => format!("`{answer}` is no score"),
        names => format!("`{answer}` is none of the classes {} and no number of theirs", names.join(", ")),
    })?;
    Ok(Example { text: text?, pair: pair.transpose()?, gold })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(labels: &[&str]) -> Vec<String> {
        labels.iter().map(|label| (*label).to_owned()).collect()
    }

    #[test]
    fn every_tasks_file_is_read() {
        let two = names(&["no", "yes"]);
        let pair = |text: &str, second: &str, gold| Example { text: text.into(), pair: Some(second.into()), gold };
        let one = |text: &str, gold| Example { text: text.into(), pair: None, gold };
        let cases = [
            ("sentence\tlabel\na b\t1\nc\tno\n", vec![one("a b", 1.0), one("c", 0.0)]),
            ("gj04\t1\t\ta b.\nks08\t0\t*\tc\n", vec![one("a b.", 1.0), one("c", 0.0)]),
            ("\u{feff}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n", vec![pair("a", "b", 1.0)]),
            ("index\tquestion\tsentence\tlabel\n0\ta\tb\tyes\n", vec![pair("a", "b", 1.0)]),
            ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta\tb\t0\n", vec![pair("a", "b", 0.0)]),
            ("{\"premise\": \"a\", \"hypothesis\": \"b\", \"label\": 1}\n", vec![pair("a", "b", 1.0)]),
        ];
        for (file, want) in cases {
            assert_eq!(read(file, &two).unwrap(), want, "{file}");
        }
        let scores = read("index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.25\n", &names(&["score"])).unwrap();
        assert_eq!(scores, [pair("a", "b", 3.25)]);
    }

    #[test]
    fn a_line_that_lacks_something_is_named() {
        let two = names(&["no", "yes"]);
        let refused = |file: &str| read(file, &two).unwrap_err().to_string();
        assert_eq!(refused("sentence\tlabel\na\t1\nb\n"), "line 3: no label and no score");
        assert_eq!(
            refused("sentence1\tsentence2\tlabel\na\n"),
            "line 2: no sentence, or no second one where one belongs"
        );
        assert_eq!(
            refused("sentence\tlabel\na\t2\n"),
            "line 2: `2` is none of the classes no, yes and no number of theirs"
        );
        assert_eq!(refused("sentence\tlabel\n\n"), "no line of the file has an example");
        assert_eq!(refused("words\nx\n"), "line 1: no head that names a label or a score");
        assert!(refused("{\"sentence\": 1\n").starts_with("line 1: "));
        // In JSON only a string is a text, and a list of all lines is not a line.
        let good = "{\"sentence\": \"a\", \"label\": 1}\n";
        for (line, why) in [
            ("{\"sentence\": null, \"label\": 1}", "`sentence` is null, and no text"),
            ("{\"sentence\": [\"a\"], \"label\": 1}", "`sentence` is [\"a\"], and no text"),
            ("{\"question\": \"a\", \"sentence\": 7, \"label\": 1}", "`sentence` is 7, and no text"),
            ("{\"sentence\": \"a\", \"label\": null}", "`label` is null, and no class and no score"),
        ] {
            assert_eq!(refused(&format!("{good}\n{line}")), format!("line 3: {why}"));
        }
        assert!(refused("[\n{\"sentence\": \"a\", \"label\": 1}\n]").starts_with("line 1: an array"));
        assert_eq!(read(&format!("\u{feff}{good}"), &two).unwrap().len(), 1);
        let scores = read("sentence\tscore\na\tnan\n", &two[..1]).unwrap_err().to_string();
        assert_eq!(scores, "line 2: `nan` is no score");
    }
}
