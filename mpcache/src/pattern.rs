//! Which heads of a model keep every token: a pattern that both parties know.

use std::fmt;
use std::str::FromStr;

use crate::{HeadShape, UnknownValue};

/// Largest number of key/value heads that a pattern can name in a layer.
const MAX_HEADS: usize = u128::BITS as usize;

/// For every layer, the key/value heads that keep every token. The other heads keep a part of the tokens.
///
/// As a text a pattern is a hexadecimal number for each layer, with dots between the numbers. The bit of value 2^h
/// stands for head h: `3.0.8` keeps the heads 0 and 1 of the first layer and head 3 of the third. A single number
/// stands for all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadPattern {
    layers: Vec<u128>,
}

impl HeadPattern {
    /// The pattern that `keeps` describes: `keeps[layer][head]` says whether the head keeps every token.
    ///
    /// # Errors
    /// If a layer has more heads than a pattern can name, or there is no layer.
    pub fn new(keeps: &[Vec<bool>]) -> Result<Self, UnknownValue> {
        if keeps.is_empty() || keeps.iter().any(|heads| heads.len() > MAX_HEADS) {
            return Err(expected());
        }
        let bits = |heads: &Vec<bool>| {
            heads.iter().enumerate().filter(|(_, keeps)| **keeps).map(|(head, _)| 1 << head).sum()
        };
        Ok(HeadPattern { layers: keeps.iter().map(bits).collect() })
    }

    /// Whether the key/value head `head` of layer `layer` keeps every token.
    pub fn keeps(&self, layer: usize, head: usize) -> bool {
        let bits = self.layers[if self.layers.len() == 1 { 0 } else { layer % self.layers.len() }];
        head < MAX_HEADS && bits >> head & 1 == 1
    }

    /// The heads of `layer` that keep every token, and the other heads.
    pub fn split(&self, layer: usize, heads: usize) -> [Vec<usize>; 2] {
        let (keep, rest) = (0..heads).partition(|head| self.keeps(layer, *head));
        [keep, rest]
    }

    /// A description of the pattern that a model of `layers` layers of heads `shape` needs; `None` if this pattern
    /// fits.
    pub fn misfit(&self, layers: usize, shape: HeadShape) -> Option<String> {
        let heads = shape.kv_heads;
        let beyond = |bits: &u128| heads < MAX_HEADS && bits >> heads != 0;
        if heads > MAX_HEADS {
            return Some(format!("a model of at most {MAX_HEADS} key/value heads"));
        }
        if ![1, layers].contains(&self.layers.len()) {
            return Some(format!("a number for each of the model's {layers} layers, or one for all"));
        }
        self.layers.iter().any(beyond).then(|| format!("heads below {heads}, as many as a layer of the model has"))
    }
}

fn expected() -> UnknownValue {
    UnknownValue::new("hexadecimal numbers of the layers, with dots between them")
}

impl fmt::Display for HeadPattern {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, bits) in self.layers.iter().enumerate() {
            write!(f, "{}{bits:x}", if i == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl FromStr for HeadPattern {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        // Parsing a number would accept a sign, which is no digit.
        let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let layer = |text: &str| u128::from_str_radix(text, 16).ok().filter(|_| digits(text)).ok_or_else(expected);
        Ok(HeadPattern { layers: text.split('.').map(layer).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HeadShape = HeadShape { heads: 8, kv_heads: 4, head_dim: 2 };

    #[test]
    fn texts_name_heads_by_bits() {
        let pattern: HeadPattern = "3.0.8".parse().unwrap();
        assert_eq!(pattern.split(0, 4), [vec![0, 1], vec![2, 3]]);
        assert_eq!(pattern.split(1, 4), [vec![], vec![0, 1, 2, 3]]);
        assert_eq!(pattern.split(2, 4), [vec![3], vec![0, 1, 2]]);
        let one: HeadPattern = "0a".parse().unwrap();
        assert_eq!((one.split(5, 4), one.to_string()), ([vec![1, 3], vec![0, 2]], "a".into()));
        for text in ["", ".", "1.", "g", "+1", "0x1", "1 .2", &"f".repeat(33)] {
            assert!(text.parse::<HeadPattern>().is_err(), "{text}");
        }
        let keeps = [vec![true, true, false, false], vec![false; 4], vec![false, false, false, true]];
        assert_eq!(HeadPattern::new(&keeps), Ok(pattern));
        assert!(HeadPattern::new(&[]).is_err() && HeadPattern::new(&[vec![true; 129]]).is_err());
        let widest = HeadPattern::new(&[vec![true; 128]]).unwrap();
        assert_eq!((widest.to_string(), widest.keeps(7, 127), widest.keeps(7, 128)), ("f".repeat(32), true, false));
    }

    #[test]
    fn patterns_of_other_models_are_seen() {
        let misfit = |text: &str, layers| text.parse::<HeadPattern>().unwrap().misfit(layers, SHAPE);
        assert_eq!(misfit("f", 6), None);
        assert_eq!(misfit("f.0", 2), None);
        assert!(misfit("f.0", 3).unwrap().contains("3 layers"));
        assert!(misfit("1.10", 2).unwrap().contains("heads below 4"));
    }
}
