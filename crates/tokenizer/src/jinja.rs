//! Translates chat templates from the Jinja dialect of transformers 5 to the dialect of the library `minijinja`.
//!
//! - Line ends are `\n`, in the template and in its texts.
//! - `{% generation %}` marks an assistant's words for training. The block changes nothing.
//! - `'..' % values` is Python's old way to format values.
//! - `tojson` writes as `json.dumps` does, with the arguments `ensure_ascii`, `indent`, `separators` and `sort_keys`.
//! - `strftime_now(format)` gives the time; here it is the time at which a conversation began, on the client's clock.
//! - Texts have the methods of Python's `str` that templates use.
//!
//! Unknown statements and undefined names are errors, as they are in transformers.

use std::io;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter};

/// The largest number of the library's instructions in one rendering. A template of 20 kB takes some thousands of
/// them for each message.
const FUEL: u64 = 10_000_000;

/// The longest text to which a method pads, in characters.
const MAX_WIDTH: usize = 1 << 16;

/// Renders `template` with the variables in `context`. `now` is the time that the template may ask for: a date and a
/// time in ISO 8601.
pub(super) fn render(template: &str, context: Value, now: &str) -> Result<String, Error> {
    let mut environment = Environment::new();
    // Texts are not escaped for HTML.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(method);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(false);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> { Err(invalid(why)) });
    let now = now.to_owned();
    environment.add_function("strftime_now", move |format: String| strftime(&now, &format));
    environment.add_filter("tojson", to_json);
    environment.add_filter("format", format);
    environment.set_formatter(|out, _, value| match value.kind() {
        ValueKind::Seq | ValueKind::Map => out.write_str(&repr(value)).map_err(Error::from),
        _ => write!(out, "{value}").map_err(Error::from),
    });
    environment.render_str(&translated(template), context)
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// The time `now`, formatted as Python's `strftime` does.
fn strftime(now: &str, format: &str) -> Result<String, Error> {
    let now: jiff::civil::DateTime = now.parse().map_err(|_| invalid("the time is not known"))?;
    jiff::fmt::strtime::format(format, now).map_err(|e| invalid(e.to_string()))
}

/// The template in the library's dialect.
fn translated(template: &str) -> String {
    let text = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = &text[..];
    let mut raw = false;
    while let Some(at) = rest.find("{").filter(|_| !rest.is_empty()) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match rest.as_bytes().get(1) {
            Some(b'#') if !raw => rest.find("#}").map(|end| end + 2),
            Some(b'%') => inside(rest, "%}"),
            Some(b'{') if !raw => inside(rest, "}}"),
            _ => None,
        };
        let Some(end) = end else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        let tag = &rest[..end];
        rest = &rest[end..];
        let statement = tag.strip_prefix("{%").map(|tag| tag.trim_end_matches("%}").trim_matches(['-', '+']).trim());
        match statement {
            Some("raw") => raw = true,
            Some("endraw") => raw = false,
            _ => {}
        }
        match statement {
            // The block has a scope of its own, like the call block that transformers turns it into.
            Some("generation") if !raw => out.push_str(&tag.replace("generation", "with")),
            Some("endgeneration") if !raw => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ if raw || tag.starts_with("{#") => out.push_str(tag),
            _ => formatted(tag, &mut out),
        }
    }
    out + rest
}

/// `text` begins with a tag that ends with `end`. Returns the position after the tag. An `end` inside the tag's
/// quotes does not count.
fn inside(text: &str, end: &str) -> Option<usize> {
    let mut at = 2;
    // The brace of a map may stand right before the end of the tag.
    let mut depth = 0_usize;
    while at < text.len() {
        let rest = &text[at..];
        if depth == 0 && rest.starts_with(end) {
            return Some(at + end.len());
        }
        let c = rest.chars().next()?;
        match c {
            '\'' | '"' => at += quoted(rest)?,
            _ => at += c.len_utf8(),
        }
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The length of the quoted text with which `text` begins, quotes included.
fn quoted(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Appends `tag` to `out`, with every `'text' % value` in it written as `'text'|format(value)`.
fn formatted(tag: &str, out: &mut String) {
    let (mut rest, mut text_before) = (&tag[2..], false);
    out.push_str(&tag[..2]);
    while let Some(c) = rest.chars().next() {
        let operator = text_before && c == '%' && !rest.starts_with("%}");
        if let Some((values, after)) = operator.then(|| operand(&rest[1..])).flatten() {
            out.push_str("|format(");
            // The values of a tuple stand for themselves.
            let tuple =
                values.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).filter(|inner| is_list(inner));
            let mut inner = String::new();
            formatted(&format!("{{{{{}", tuple.unwrap_or(values)), &mut inner);
            out.push_str(&inner[2..]);
            out.push(')');
            rest = after;
            text_before = false;
            continue;
        }
        let length = match c {
            '\'' | '"' => quoted(rest).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        text_before = matches!(c, '\'' | '"') || text_before && c.is_whitespace();
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
}

/// The operand with which `text` begins, and the rest of `text`.
fn operand(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut at = 0;
    let mut before = None;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let ends_a_value = before.is_some_and(|c: char| c.is_alphanumeric() || "_)]}'\"".contains(c));
        let length = match c {
            '\'' | '"' if !ends_a_value => quoted(rest)?,
            '(' | '[' | '{' if ends_a_value || before.is_none() || before == Some('|') => bracketed(rest)?,
            '.' | '|' | '-' if c != '-' || before.is_none() => 1,
            c if c.is_alphanumeric() || c == '_' => c.len_utf8(),
            ' ' if before == Some('|') || rest.trim_start().starts_with('|') => 1,
            _ => break,
        };
        at += length;
        before = text[..at].trim_end().chars().next_back();
    }
    (at > 0).then(|| (text[..at].trim_end(), &text[at..]))
}

/// The length of the expression in brackets with which `text` begins, brackets included.
fn bracketed(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(c) = text[at..].chars().next() {
        match c {
            '\'' | '"' => at += quoted(&text[at..])?,
            _ => at += c.len_utf8(),
        }
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Whether `text`, which stood between brackets, is a list. It is one if it has a comma outside inner brackets.
fn is_list(text: &str) -> bool {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let length = match c {
            ',' => return true,
            '\'' | '"' => quoted(&text[at..]),
            '(' | '[' | '{' => bracketed(&text[at..]),
            c => Some(c.len_utf8()),
        };
        match length {
            Some(length) => at += length,
            None => return false,
        }
    }
    false
}

/// Calls a method of Python's texts, lists or maps on `value`.
fn method(state: &State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let known = minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments);
    match (known, value.as_str()) {
        (Err(error), Some(text)) if error.kind() == ErrorKind::UnknownMethod => text_method(text, name, arguments),
        (known, _) => known,
    }
}

fn text_method(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    use minijinja::value::from_args;
    let padded = |left: fn(usize) -> usize| -> Result<Value, Error> {
        let (width, fill): (usize, Option<char>) = from_args(arguments)?;
        if width > MAX_WIDTH {
            return Err(invalid(format!("a text of {width} characters")));
        }
        let missing = width.saturating_sub(text.chars().count());
        let (left, fill) = (left(missing), fill.unwrap_or(' '));
        let fill = |count| std::iter::repeat_n(fill, count).collect::<String>();
        Ok(Value::from(format!("{}{text}{}", fill(left), fill(missing - left))))
    };
    let list = |parts: &[&str]| Value::from(parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
    let parted = |at: usize, separator: &str| list(&[&text[..at], separator, &text[at + separator.len()..]]);
    match name {
        "rjust" => padded(|missing| missing),
        "ljust" => padded(|_| 0),
        // If both the padding and the width are odd, Python puts the larger half left. That is ignored here, as
        // templates pad by spaces.
        "center" => padded(|missing| missing / 2),
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let missing = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
            Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
        }
        "removeprefix" => {
            let (part,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(part).unwrap_or(text)))
        }
        "removesuffix" => {
            let (part,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(part).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            Ok(text.find(separator).map_or_else(|| list(&[text, "", ""]), |at| parted(at, separator)))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            Ok(text.rfind(separator).map_or_else(|| list(&["", "", text]), |at| parted(at, separator)))
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1) + 1;
            let mut parts: Vec<&str> = match separator {
                Some(separator) => text.rsplitn(most, separator).collect(),
                None if most > text.len() => text.split_whitespace().rev().collect(),
                None => return Err(invalid("rsplit by white space takes no number of parts")),
            };
            parts.reverse();
            Ok(list(&parts))
        }
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "swapcase" => {
            let swapped = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            Ok(Value::from(text.chars().map(swapped).collect::<String>()))
        }
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let at = text.find(part).ok_or_else(|| invalid("substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `value` as Python's `repr` writes it.
fn repr(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut out = String::from(quote);
            for c in text.chars() {
                match c {
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    '\\' => out.push_str("\\\\"),
                    c if c == quote => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            out.push(quote);
            out
        }
        (ValueKind::Seq, _) => {
            format!("[{}]", joined(value.try_iter().into_iter().flatten().map(|one| repr(&one)).collect()))
        }
        (ValueKind::Map, _) => {
            let entry = |key: Value| {
                let of = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&of))
            };
            format!("{{{}}}", joined(value.try_iter().into_iter().flatten().map(entry).collect()))
        }
        _ => value.to_string(),
    }
}

/// Formats `values` into `text` as Python's `%` does. Unlike the library's filter, it knows `%r` and writes lists as
/// Python does.
fn format(state: &State<'_, '_>, text: String, values: Rest<Value>) -> Result<Value, Error> {
    let mut values = values.0;
    let (mut out, mut place, mut rest) = (String::new(), 0, &text[..]);
    while let Some(at) = rest.find('%') {
        let kind = rest[at + 1..].find(|c: char| c.is_alphabetic() || c == '%').map(|end| at + 1 + end);
        let Some(kind) = kind else { break };
        let conversion = &rest[kind..=kind];
        out.push_str(&rest[..kind]);
        out.push_str(if conversion == "r" { "s" } else { conversion });
        let listed = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Map);
        if let Some(value) = values.get_mut(place).filter(|value| conversion == "r" || listed(value)) {
            *value = Value::from(repr(value));
        }
        place += usize::from(conversion != "%");
        rest = &rest[kind + conversion.len()..];
    }
    out.push_str(rest);
    minijinja::filters::format(state, &Value::from(out), Rest(values))
}

/// Writes `value` as Python's `json.dumps` does.
fn to_json(value: &Value, arguments: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(invalid("Object of type Undefined is not JSON serializable"));
    }
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = arguments.get(place).cloned();
        let value = match value {
            Some(value) => Some(value),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
        Some(indent) => Some(" ".repeat(usize::try_from(indent)?.min(MAX_WIDTH))),
        None => None,
    };
    let separators = match argument(2, "separators")? {
        Some(both) => {
            let both: Vec<String> = both.try_iter()?.map(|one| one.to_string()).collect();
            <[String; 2]>::try_from(both).map_err(|_| invalid("separators are two texts"))?
        }
        None => [if indent.is_some() { "," } else { ", " }.into(), ": ".into()],
    };
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let failed = |error: serde_json::Error| invalid(format!("not JSON serializable: {error}"));
    // JSON maps of this type keep their keys sorted.
    let sorted = sort_keys.then(|| serde_json::to_value(value)).transpose().map_err(failed)?.map(sorted);
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(
        &mut out,
        Python { ensure_ascii, indent, separators, depth: 0, any: false },
    );
    match sorted {
        Some(sorted) => sorted.serialize(&mut serializer),
        None => value.serialize(&mut serializer),
    }
    .map_err(failed)?;
    String::from_utf8(out).map(Value::from).map_err(|e| invalid(e.to_string()))
}

/// `value` with the keys of all its maps sorted. The library's maps may have any order.
fn sorted(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(object) => {
            let ordered: std::collections::BTreeMap<_, _> =
                object.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            ordered.into_iter().collect::<serde_json::Map<_, _>>().into()
        }
        serde_json::Value::Array(all) => all.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// A JSON formatter that writes as Python's `json` does.
struct Python {
    ensure_ascii: bool,
    indent: Option<String>,
    separators: [String; 2],
    depth: usize,
    /// Whether the innermost list or map that is being written has an entry yet.
    any: bool,
}

impl Python {
    fn begin<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.any) = (self.depth + 1, false);
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.any {
            self.line(writer)?;
        }
        self.any = true;
        writer.write_all(bracket)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match &self.indent {
            Some(indent) => write!(writer, "\n{}", indent.repeat(self.depth)),
            None => Ok(()),
        }
    }

    fn item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.separators[0].as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.any = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.separators[1].as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.any = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for c in fragment.chars() {
            match c {
                c if c.is_ascii() => writer.write_all(&[c as u8])?,
                c => c.encode_utf16(&mut units).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?,
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            // Python does not escape a slash, and nor does this library.
            CharEscape::Solidus => writer.write_all(b"/"),
            escape => serde_json::ser::CompactFormatter.write_char_escape(writer, escape),
        }
    }
}
