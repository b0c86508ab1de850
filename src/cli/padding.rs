//! How much of a prompt's length is hidden.

use std::str::FromStr;

use clap::Args;
use model::bucket;
use session::party::Prompt;

use super::Error;

/// The lengths to which prompts are padded.
#[derive(Args, Clone, Debug)]
pub(super) struct PaddingArgs {
    /// Hide how long the prompt is. It is padded to the next power of two from 16 on, or to the next of these
    /// lengths. No token attends to the padding, so the text stays the same; the longer prompt costs more. Needs the
    /// policy `full`.
    #[arg(long, value_name = "LENGTHS", num_args = 0..=1, default_missing_value = "auto")]
    pad_prompt: Option<Lengths>,
    /// With --stop-at-eos: let the text go on behind its end, unseen, to the next power of two from 16 on or to
    /// --tokens. The server learns that number in the place of the text's length. Takes no draft.
    #[arg(long, requires = "stop_at_eos")]
    pub(super) pad_answer: bool,
}

/// Lengths that anybody may know.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lengths {
    /// Powers of two.
    Auto,
    /// These, ascending.
    List(Vec<usize>),
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Lengths::Auto);
        }
        let lengths: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        let mut lengths = lengths.map_err(|_| "give `auto` or lengths, for example 32,128,512".to_owned())?;
        lengths.sort_unstable();
        Ok(Lengths::List(lengths))
    }
}

impl Lengths {
    /// The length that a prompt of `tokens` tokens gets where the model has room for `room`.
    fn of(&self, tokens: usize, room: usize) -> Result<usize, Error> {
        let next = match self {
            // What the model has room for is public too.
            Lengths::Auto => Some(bucket(tokens).min(room.max(tokens))),
            Lengths::List(lengths) => lengths.iter().copied().find(|length| *length >= tokens),
        };
        next.ok_or_else(|| Error::NoLength {
            tokens,
            longest: match self {
                Lengths::Auto => room,
                Lengths::List(lengths) => lengths.last().copied().unwrap_or_default(),
            },
        })
    }
}

impl PaddingArgs {
    /// The prompt `ids`, padded if that was asked for; `room` is the longest prompt that the model takes.
    pub(super) fn prompt(&self, ids: &[u32], room: usize) -> Result<Prompt, Error> {
        match &self.pad_prompt {
            None => Ok(ids.into()),
            Some(lengths) => {
                let length = lengths.of(ids.len(), room)?;
                Ok(Prompt::padded(ids, length)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_padded_length_tells_no_more_than_its_list() {
        let of = |text: &str, tokens, room| text.parse::<Lengths>().unwrap().of(tokens, room).ok();
        assert_eq!([1, 16, 17, 100].map(|tokens| of("auto", tokens, 1000)), [16, 16, 32, 128].map(Some));
        assert_eq!([of("auto", 90, 100), of("auto", 5, 100)], [Some(100), Some(16)]);
        assert_eq!([1, 8, 9, 40].map(|tokens| of("40,8", tokens, 1000)), [8, 8, 40, 40].map(Some));
        assert_eq!(of("40,8", 41, 1000), None);
        assert!("8,x".parse::<Lengths>().is_err());
    }
}
