//! Regular expressions of a file: expensive ones are refused before they are compiled.
//!
//! A pattern without look-around and back-references runs in time linear in the text. Of the others, which backtrack,
//! only [`LOOK_AHEAD`] passes, which most published tokenizers have, and only where nothing that repeats without end
//! is repeated without end: that can take exponential time. Counted repetitions multiply the size of the compiled
//! program.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use super::error::{TokenizerError, at_most};

/// Longest pattern, in bytes. Lists of scripts make some published ones long.
const MAX_PATTERN_BYTES: usize = 8192;
/// The largest product of counted repetitions within one another.
const MAX_REPEATS: usize = 1000;
/// Most groups within one another.
const MAX_DEPTH: u32 = 32;
/// White space, but for the last of it before a word.
const LOOK_AHEAD: &str = r"\s+(?!\S)";

/// Refuses the pattern `regex` of `part` if it may be expensive.
pub(super) fn check_regex(part: &str, regex: &str) -> Result<(), TokenizerError> {
    let refused = |why: &str| Err(TokenizerError::refused(part, format!("pattern `{regex}`: {why}")));
    if regex.is_empty() {
        return refused("it is empty");
    }
    at_most("bytes of a pattern", regex.len(), MAX_PATTERN_BYTES)?;
    // Where the look-ahead stands, `\s+` costs what it costs.
    let plain = regex.replace(LOOK_AHEAD, r"(?:\s+)");
    let hir = match ParserBuilder::new().nest_limit(MAX_DEPTH).build().parse(&plain) {
        Ok(hir) => hir,
        Err(regex_syntax::Error::Parse(error)) => return refused(&error.kind().to_string()),
        Err(error) => return refused(&error.to_string()),
    };
    let cost = Cost::of(&hir);
    if cost.repeats > MAX_REPEATS {
        return refused("it repeats too often");
    }
    if plain != regex && cost.nested {
        return refused("a repetition without end is repeated without end");
    }
    Ok(())
}

/// The repetitions of a pattern.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// The largest product of counts.
    repeats: usize,
    endless: bool,
    /// Whether one without end lies in another.
    nested: bool,
}

impl Cost {
    /// The parser bounds the depth.
    fn of(hir: &Hir) -> Cost {
        let inner = match hir.kind() {
            HirKind::Repetition(repetition) => std::slice::from_ref(&*repetition.sub),
            HirKind::Capture(group) => std::slice::from_ref(&*group.sub),
            HirKind::Concat(all) | HirKind::Alternation(all) => all,
            HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => &[],
        };
        let mut cost = inner.iter().map(Cost::of).fold(Cost { repeats: 1, ..Cost::default() }, |a, b| Cost {
            repeats: a.repeats.max(b.repeats),
            endless: a.endless || b.endless,
            nested: a.nested || b.nested,
        });
        if let HirKind::Repetition(repetition) = hir.kind() {
            let most = repetition.max.unwrap_or(repetition.min).max(1);
            cost.repeats = cost.repeats.saturating_mul(most as usize);
            let endless = repetition.max.is_none();
            cost.nested |= cost.endless && (endless || most > 1);
            cost.endless |= endless;
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_published_tokenizers_pass() {
        for pattern in [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[!-/:-~]|[\]\[]+|\s?[^\s]+",
            r"[\s\S]",
            " {2,}",
            r"(?:\r?\n)+x",
            // Linear without look-around.
            r"(a+)+b",
        ] {
            check_regex("p", pattern).unwrap();
        }
    }

    #[test]
    fn costly_patterns_are_refused() {
        for (pattern, why) in [
            (r"(a+)+(?!b)", "look-around"),
            (r"(?:(?:a|b*)c?)*(?=d)", "look-around"),
            (r"(?<=a)b|\s+(?!\S)", "look-around"),
            (r"(\s+(?!\S))+x", "without end"),
            (r"((a+)b){2,}|\s+(?!\S)", "without end"),
            (r"(?:a{100}){100}", "too often"),
            (r"\p{L}{1000000}", "too often"),
            (r"(a)\1", "backreferences"),
            (r"(?P<n>a)(?P=n)", ""),
            (r"(?>a)", ""),
            (r"a)", "unopened"),
            ("", "empty"),
        ] {
            let message = check_regex("p", pattern).expect_err(pattern).to_string();
            assert!(message.contains(why), "{pattern}: {message}");
        }
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        assert!(check_regex("p", &deep).is_err());
        assert!(matches!(check_regex("p", &"a".repeat(9000)), Err(TokenizerError::TooMuch { .. })));
    }
}
