//! Log-probabilities of the tokens of a text.
//!
//! The interface names tokens by their text, but a token may be a part of a character, or have no text. A part of a
//! character is named by its bytes, as OpenAI does, and a special token by its word in the tokenizer's file. No two
//! tokens of a position share a name.

use std::collections::{BTreeMap, HashMap};
use std::str::from_utf8;

use ndarray::{ArrayView1, ArrayView2};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use waggle_model::argmax;
use waggle_tokenizer::{Tokenizer, TokenizerError};

/// Log-probabilities of the tokens of a text, in the interface's form for completions, with the additional field
/// `bytes`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Logprobs {
    tokens: Vec<String>,
    /// The logarithm of each token's probability; `None` for a first token that no logits predict.
    token_logprobs: Vec<Option<f64>>,
    /// The likeliest tokens at each position, and the position's own token.
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// The index of the character in the text at which each token begins. A part of a character has that character's
    /// index.
    text_offset: Vec<usize>,
    /// The bytes that each token adds to the text.
    bytes: Vec<Vec<u8>>,
}

impl Logprobs {
    /// Drops the tokens that begin after this number of characters.
    pub(super) fn cut(&mut self, characters: usize) {
        let left = self.text_offset.partition_point(|offset| *offset < characters);
        self.tokens.truncate(left);
        self.token_logprobs.truncate(left);
        self.top_logprobs.truncate(left);
        self.text_offset.truncate(left);
        self.bytes.truncate(left);
    }
}

/// The name of a token and its bytes.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    name: String,
    bytes: Vec<u8>,
}

/// Names and bytes of the tokens of a vocabulary.
pub(super) struct Pieces {
    known: HashMap<u32, Piece>,
    /// Whether the decoder shows each byte that is not UTF-8 as a replacement character of its own.
    single: bool,
}

/// The parts of a `tokenizer.json` that are read.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Option<Vec<Added>>,
    #[serde(default)]
    decoder: Value,
    model: Vocabulary,
}

#[derive(Deserialize)]
struct Vocabulary {
    vocab: HashMap<String, u32>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

impl Pieces {
    /// Reads special tokens and tokens that are parts of characters from `file`, the bytes of a `tokenizer.json`.
    pub(super) fn new(file: &[u8]) -> Result<Self, TokenizerError> {
        let failed = |error: serde_json::Error| TokenizerError::Format { what: error.to_string() };
        let File { added_tokens, decoder, model } = serde_json::from_slice(file).map_err(failed)?;
        let stages = decoder["decoders"].as_array().map_or(std::slice::from_ref(&decoder), Vec::as_slice);
        let has = |kind: &str| stages.iter().any(|stage| stage["type"] == kind);
        let (level, single) = (has("ByteLevel"), has("ByteFallback"));
        let letters: HashMap<char, u8> = (0..=255).map(|byte| (letter(byte), byte)).collect();
        let bytes = |token: &str| -> Option<Vec<u8>> {
            if level {
                return token.chars().map(|letter| letters.get(&letter).copied()).collect();
            }
            let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|_| single)?;
            Some(vec![u8::from_str_radix(digits, 16).ok()?])
        };
        let part = |(token, id): (String, u32)| {
            let bytes = bytes(&token).filter(|bytes| from_utf8(bytes).is_err())?;
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            Some((id, Piece { name: format!("bytes:{digits}"), bytes }))
        };
        let mut known: HashMap<u32, Piece> = model.vocab.into_iter().filter_map(part).collect();
        // Special tokens add nothing to a text.
        let special = added_tokens.unwrap_or_default().into_iter().filter(|token| token.special);
        known.extend(special.map(|token| (token.id, Piece { name: token.content, bytes: Vec::new() })));
        Ok(Pieces { known, single })
    }

    /// The name and the bytes that the token `id` has after another token. The tokenizer is asked only once for each
    /// token.
    fn of(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<Piece, TokenizerError> {
        if let Some(piece) = self.known.get(&id) {
            return Ok(piece.clone());
        }
        // The token is decoded after itself, because many decoders leave out the space before a first token.
        let mut stream = tokenizer.stream(&[id]);
        let name = stream.push(id)? + &stream.finish()?;
        let piece = Piece { bytes: name.clone().into_bytes(), name };
        self.known.insert(id, piece.clone());
        Ok(piece)
    }
}

/// The letter that stands for `byte` in a vocabulary of GPT-2's kind. Bytes that are not printable in Latin-1 have
/// letters from U+0100 on, in order.
fn letter(byte: u8) -> char {
    let is_letter = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let hidden = || (0..byte).filter(|byte| !is_letter(byte)).count() as u32;
    let code = if is_letter(&byte) { u32::from(byte) } else { 0x100 + hidden() };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Counts the characters of a text that comes as bytes.
#[derive(Default)]
struct Characters {
    whole: usize,
    /// The last bytes, which may still become a character.
    open: Vec<u8>,
}

impl Characters {
    /// Appends `bytes`, and returns the index of the character at which they begin. `single` is as in [`Pieces`].
    fn push(&mut self, bytes: &[u8], single: bool) -> usize {
        let mut begins = None;
        for byte in bytes {
            self.open.push(*byte);
            while let Err(error) = from_utf8(&self.open)
                && let Some(bad) = error.error_len()
            {
                self.whole += if single { bad } else { 1 };
                self.open.drain(..bad);
            }
            if !self.open.is_empty() && from_utf8(&self.open).is_ok() {
                self.whole += 1;
                self.open.clear();
            }
            // A byte that ends a character belongs to the last character.
            begins.get_or_insert(self.whole - usize::from(self.open.is_empty()));
        }
        begins.unwrap_or(self.whole)
    }
}

/// The log-probabilities of the tokens `ids`, from their rows of logits. The last of `rows` belongs to the last
/// token. If there is one row fewer than there are tokens, the first token has no log-probability. At each position,
/// the `likeliest` likeliest tokens are named. `begins` says whether the text begins with these tokens.
pub(super) fn logprobs(
    tokenizer: &Tokenizer,
    pieces: &mut Pieces,
    ids: &[u32],
    rows: ArrayView2<f32>,
    likeliest: usize,
    begins: bool,
) -> Result<Logprobs, TokenizerError> {
    let mut out = Logprobs::default();
    let mut text = Characters::default();
    let mut empty = begins;
    let unseen = ids.len() - rows.nrows().min(ids.len());
    for (at, id) in ids.iter().enumerate() {
        let mut piece = pieces.of(tokenizer, *id)?;
        if empty && from_utf8(&piece.bytes).is_ok_and(|text| !text.is_empty()) {
            // The first token's text, without the space that a decoder leaves out at the beginning.
            let first = tokenizer.decode(&ids[..=at])?;
            piece.bytes = first.clone().into_bytes();
            piece.name = if first.is_empty() { piece.name } else { first };
        }
        empty &= piece.bytes.is_empty();
        let (own, top) = match at.checked_sub(unseen).map(|row| rows.row(row)) {
            Some(row) => {
                let total = log_sum(row);
                let worth = |id: usize| f64::from(row[id]) - total;
                let own = worth(*id as usize);
                let mut top = BTreeMap::from([(piece.name.clone(), own)]);
                for other in largest(row, likeliest).into_iter().filter(|other| other != &(*id as usize)) {
                    let name = pieces.of(tokenizer, other as u32)?.name;
                    let name = if top.contains_key(&name) { format!("token_id:{other}") } else { name };
                    top.insert(name, worth(other));
                }
                (Some(own), Some(top))
            }
            None => (None, None),
        };
        out.text_offset.push(text.push(&piece.bytes, pieces.single));
        out.tokens.push(piece.name);
        out.token_logprobs.push(own);
        out.top_logprobs.push(top);
        out.bytes.push(piece.bytes);
    }
    Ok(out)
}

/// The logarithm of the sum of the exponentials of `row`.
fn log_sum(row: ArrayView1<f32>) -> f64 {
    let most = f64::from(row[argmax(row)]);
    most + row.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

/// The indices of the `count` largest entries. Of equal entries, the first ones are taken.
fn largest(row: ArrayView1<f32>, count: usize) -> Vec<usize> {
    let order = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
    let mut places: Vec<usize> = (0..row.len()).collect();
    if count < places.len() {
        places.select_nth_unstable_by(count, order);
        places.truncate(count);
    }
    places.sort_by(order);
    places
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};
    use serde_json::json;

    use super::*;

    /// The log-probabilities of `ids` with a tokenizer of these parts, with the three likeliest of seven tokens at
    /// each position.
    fn named(decoder: Value, vocab: Value, ids: &[u32], begins: bool) -> Logprobs {
        let file = json!({
            "added_tokens": [{"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "decoder": decoder,
            "model": {"type": "WordLevel", "unk_token": "?", "vocab": vocab},
        });
        let file = file.to_string();
        let tokenizer = Tokenizer::from_bytes(file.as_bytes()).unwrap();
        let rows = Array2::from_shape_fn((ids.len(), 7), |(_, token)| token as f32);
        let mut pieces = Pieces::new(file.as_bytes()).unwrap();
        logprobs(&tokenizer, &mut pieces, ids, rows.view(), 7, begins).unwrap()
    }

    #[test]
    fn parts_of_characters_are_told_apart() {
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        // U+1F600 in two parts, a byte that is not UTF-8, U+FFFD itself, and two tokens without a text.
        let vocab = json!({"a": 0, "\u{f0}\u{141}": 1, "\u{13a}\u{122}": 2, "\u{ff}": 3, "\u{ef}\u{bf}\u{bd}": 4,
            "?": 5, "<s>": 6});
        let found = named(level, vocab, &[6, 0, 1, 2, 3, 4, 1, 0], true);
        let parts = [r"bytes:\xf0\x9f", r"bytes:\x98\x80", r"bytes:\xff"];
        assert_eq!(found.tokens, ["<s>", "a", parts[0], parts[1], parts[2], "\u{fffd}", parts[0], "a"]);
        assert_eq!(found.bytes.concat(), b"a\xf0\x9f\x98\x80\xff\xef\xbf\xbd\xf0\x9fa");
        assert_eq!(found.text_offset, [0, 0, 1, 1, 2, 3, 4, 5]);
        assert!(found.top_logprobs.iter().flatten().all(|top| top.len() == 7), "{found:?}");
        let mut cut = found.clone();
        cut.cut(2);
        assert_eq!((&cut.tokens[..], cut.bytes.len()), (&found.tokens[..4], 4));
    }

    #[test]
    fn bytes_and_words_of_one_text_are_told_apart() {
        let decoder = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let vocab = json!({"\u{2581}Once": 0, "\u{2581}upon": 1, "x": 2, "<0x78>": 3, "<0xE4>": 4, "?": 5, "<s>": 6});
        // A text does not begin with the first token's space, but a continued text does.
        let found = named(decoder.clone(), vocab.clone(), &[6, 0, 1, 2, 4, 4, 3], true);
        assert_eq!(found.tokens, ["<s>", "Once", " upon", "x", r"bytes:\xe4", r"bytes:\xe4", "x"]);
        assert_eq!(found.text_offset, [0, 0, 4, 9, 10, 11, 12]);
        let top = found.top_logprobs[3].as_ref().unwrap();
        assert_eq!((top.len(), top["token_id:3"] > top["x"]), (7, true), "{top:?}");
        assert_eq!(named(decoder, vocab, &[0, 1], false).text_offset, [0, 5]);
    }

    #[test]
    fn probabilities_of_a_row_sum_to_one() {
        let row = array![1.0f32, -2.0, 0.5, 3.0, 3.0];
        let sum: f64 = row.iter().map(|x| (f64::from(*x) - log_sum(row.view())).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert_eq!(largest(row.view(), 3), [3, 4, 0]);
        assert_eq!(largest(row.view(), 9).len(), 5);
    }
}
