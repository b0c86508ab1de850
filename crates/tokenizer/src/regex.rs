//! Checks the regular expressions of a file. Patterns that may take exponential time are refused before they are
//! compiled.
//!
//! A pattern without look-around and back-references takes time linear in the text. Other patterns backtrack. Of
//! those, only patterns whose one look-around is [`LOOK_AHEAD`], which most published tokenizers have, are accepted.
//! They must not have an unbounded repetition inside another repetition. Counted repetitions are bounded in all
//! patterns, because they multiply the size of the compiled program.

use regex_syntax::hir::{Hir, HirKind};

use super::error::{TokenizerError, at_most};

/// The longest pattern, in bytes. Also the largest number of bytes that a pattern's counted repetitions may demand of
/// a text. Some published patterns are long because they list scripts.
const MAX_PATTERN_BYTES: usize = 8192;
/// Matches white space, but not its last character if a word follows.
const LOOK_AHEAD: &str = r"\s+(?!\S)";

/// Refuses the pattern `regex`, which occurs in the part `part` of a file, if it may take too much time or memory.
pub(super) fn check_regex(part: &str, regex: &str) -> Result<(), TokenizerError> {
    let refused = |why: &str| Err(TokenizerError::refused(part, format!("pattern `{regex}`: {why}")));
    at_most("bytes of a pattern", regex.len(), MAX_PATTERN_BYTES)?;
    // For this check, the look-ahead costs as much as `\s+` alone.
    let plain = regex.replace(LOOK_AHEAD, r"(?:\s+)");
    match regex_syntax::parse(&plain) {
        Ok(_) if regex.is_empty() => refused("it is empty"),
        Ok(hir) if hir.properties().minimum_len().max(hir.properties().maximum_len()) > Some(MAX_PATTERN_BYTES) => {
            refused("it repeats too often")
        }
        Ok(hir) if plain != regex && endless(&hir).is_none() => refused("a repetition without end is repeated"),
        Ok(_) => Ok(()),
        Err(regex_syntax::Error::Parse(error)) => refused(&error.kind().to_string()),
        Err(error) => refused(&error.to_string()),
    }
}

/// Whether the parsed pattern `hir` has an unbounded repetition. `None` if it has one inside another repetition. The
/// parser has bounded the depth of `hir`.
fn endless(hir: &Hir) -> Option<bool> {
    let inner = match hir.kind() {
        HirKind::Repetition(repetition) => std::slice::from_ref(&*repetition.sub),
        HirKind::Capture(group) => std::slice::from_ref(&*group.sub),
        HirKind::Concat(all) | HirKind::Alternation(all) => all,
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => &[],
    };
    let inside = inner.iter().try_fold(false, |any, hir| Some(endless(hir)? | any))?;
    match hir.kind() {
        HirKind::Repetition(repetition) if repetition.max != Some(1) => (!inside).then_some(repetition.max.is_none()),
        _ => Some(inside),
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
            // This pattern is linear, as it has no look-around.
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
            (r"(a+b){3}|\s+(?!\S)", "without end"),
            (r"(?:a{100}){100}", "too often"),
            (r"\p{L}{0,1000000}", "too often"),
            (r"(a)\1", "backreferences"),
            (r"(?P<n>a)(?P=n)", ""),
            (r"(?>a)", ""),
            (r"a)", "unopened"),
            ("", "empty"),
        ] {
            let message = check_regex("p", pattern).expect_err(pattern).to_string();
            assert!(message.contains(why), "{pattern}: {message}");
        }
        let deep = format!("{}a{}", "(".repeat(1000), ")".repeat(1000));
        assert!(check_regex("p", &deep).is_err());
        assert!(matches!(check_regex("p", &"a".repeat(9000)), Err(TokenizerError::TooMuch { .. })));
    }
}
