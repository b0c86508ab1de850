//! Regular expressions of a file: expensive ones are refused before they are compiled.
//!
//! A pattern without look-around runs in time linear in the text. A pattern with look-around backtracks, and a
//! repetition of something that itself repeats without end can then take exponential time. Counted repetitions
//! multiply the size of the compiled program. Published tokenizers have neither.

use super::error::{TokenizerError, at_most};

/// Longest pattern, in bytes. Lists of scripts make some published ones long.
const MAX_PATTERN_BYTES: usize = 8192;
/// The largest product of all counted repetitions of a pattern.
const MAX_REPEATS: usize = 1000;
/// Most groups within one another.
const MAX_DEPTH: usize = 16;

/// Refuses the pattern `regex` of `part` if it may be expensive.
pub(super) fn check_regex(part: &str, regex: &str) -> Result<(), TokenizerError> {
    let refused = |why: &str| Err(TokenizerError::refused(part, format!("pattern `{regex}`: {why}")));
    if regex.is_empty() {
        return refused("it is empty");
    }
    at_most("bytes of a pattern", regex.len(), MAX_PATTERN_BYTES)?;
    // Whether each open group holds a repetition without end, the pattern itself first.
    let mut open = vec![false];
    // Whether what the next repetition would repeat is a group that holds one.
    let mut endless = false;
    let mut repeats = 1usize;
    let mut rest = regex.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        let endless_before = std::mem::take(&mut endless);
        match c {
            '\\' => match rest.next() {
                Some((_, '1'..='9' | 'g' | 'k')) => return refused("back-references are not supported"),
                Some((_, 'p' | 'P' | 'x' | 'u' | 'U')) if rest.peek().is_some_and(|(_, c)| *c == '{') => {
                    rest.by_ref().find(|(_, c)| *c == '}');
                }
                Some(_) => {}
                None => return refused("it ends in a backslash"),
            },
            '[' => skip_class(&mut rest),
            '(' => {
                if regex[at..].starts_with("(?(") || regex[at..].starts_with("(?P=") || regex[at..].starts_with("(?>")
                {
                    return refused("conditions, back-references and atomic groups are not supported");
                }
                if regex[at..].starts_with("(?") {
                    rest.next();
                }
                open.push(false);
                if open.len() > MAX_DEPTH {
                    return refused("too many groups within one another");
                }
            }
            ')' => match (open.len() > 1).then(|| open.pop()).flatten() {
                Some(inner) => {
                    endless = inner;
                    if let Some(outer) = open.last_mut() {
                        *outer |= inner;
                    }
                }
                None => return refused("a closing parenthesis has no opening one"),
            },
            '*' | '+' => {
                if endless_before {
                    return refused("a repetition without end is repeated without end");
                }
                if let Some(group) = open.last_mut() {
                    *group = true;
                }
            }
            '{' => {
                let counts: String = rest.by_ref().map(|(_, c)| c).take_while(|c| *c != '}').collect();
                let most = counts.split(',').filter_map(|n| n.trim().parse::<usize>().ok()).max();
                let Some(most) = most else { return refused("a brace without a number") };
                repeats = repeats.saturating_mul(most.max(1));
                if repeats > MAX_REPEATS || endless_before {
                    return refused("it repeats too often");
                }
                if counts.trim_end().ends_with(',')
                    && let Some(group) = open.last_mut()
                {
                    *group = true;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Skips a class after its bracket, with the classes inside it.
fn skip_class(rest: &mut std::iter::Peekable<std::str::CharIndices>) {
    let mut depth = 1;
    // A bracket right after the opening one, or after its `^`, is an element.
    rest.next_if(|(_, c)| *c == '^');
    rest.next_if(|(_, c)| *c == ']');
    while depth > 0 {
        match rest.next() {
            Some((_, '\\')) => {
                rest.next();
            }
            Some((_, '[')) => depth += 1,
            Some((_, ']')) => depth -= 1,
            Some(_) => {}
            None => return,
        }
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
        ] {
            check_regex("p", pattern).unwrap();
        }
    }

    #[test]
    fn costly_patterns_are_refused() {
        for (pattern, why) in [
            (r"(a+)+(?!b)", "without end"),
            (r"(?:(?:a|b*)c?)*(?=d)", "without end"),
            (r"((a+)b){2,}(?!x)", "too often"),
            (r"(?:a{100}){100}", "too often"),
            (r"\p{L}{1000000}", "too often"),
            (r"(a)\1", "back-references"),
            (r"(?P<n>a)(?P=n)", "back-references"),
            (r"a)", "no opening"),
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
