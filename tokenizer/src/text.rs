//! Words of a peer, before they reach a terminal.

/// `text` without control characters, cut to `max` bytes: it may end up on the peer's terminal.
pub fn printable(text: &str, max: usize) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if out.len() + c.len_utf8() > max {
            break;
        }
        out.push(c);
    }
    out
}
