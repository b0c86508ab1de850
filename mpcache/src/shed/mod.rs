//! Rows of a prompt that end at a layer, so that later layers compute and cache fewer of them.
//!
//! **Function.** Before a layer of [`Shed`], the rows of the prompt are ranked by the attention that they received in
//! the layer before it, summed over heads: from the last rows in a decoder, as [`snapkv`](crate::policies) votes, and
//! from all rows in an encoder. The best rows go on in their order. They are gathered obliviously with their residual
//! stream ([`Select::gather`](waggle_engine::Select::gather)), and their tokens are the only ones in the caches of
//! the layers that follow.
//!
//! **Source.** Token pruning between layers, as the publications of [`PublishedShed`] do it in the clear.
//!
//! **What always stays.** In a decoder the rows that vote, among them the last row, whose output gives the next
//! token. In an encoder the first row, whose output is the text's. Padding ranks last.
//!
//! **Positions.** Learned positions are part of the residual stream. Rotary ones are not, and nobody knows where a
//! row that stays has stood. [`ShedPositions`] says what these rows take.
//!
//! **Public.** The layers, and how many rows stay. **Revealed.** Nothing: rows are ranked by
//! [`TopK::Rank`](waggle_engine::TopK::Rank). **Range.** Entries of the residual stream are below
//! 2^[`RESIDUAL_MAGNITUDE`] -> the same entries. **Error.** That of a gathering: a few units in the last place.
//!
//! **Beside the text.** Only the prompt with which a text begins sheds rows. Later turns of a conversation do not. A
//! layer with a window counts the rows that it holds, not their distance in the text.

mod published;
mod rows;

use std::fmt;
use std::str::FromStr;

pub use self::published::PublishedShed;
pub(crate) use self::rows::{Cut, GoOn, Gone, go_on};
use crate::{Budget, UnknownValue};

/// log2 of a bound on entries of the residual stream: what norms take.
pub const RESIDUAL_MAGNITUDE: u32 = 11;

/// The layers at which rows of a prompt end, and how many go on: the text `4:0.5,8:0.25`, or the name of a
/// [published schedule](PublishedShed). With `/own` at its end, rows keep their own rotary positions.
///
/// In the text of a policy, `+` stands for the comma: `full:shed=4:0.5+8:0.25`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shed {
    schedule: Schedule,
    positions: ShedPositions,
}

#[derive(Clone, Debug, PartialEq)]
enum Schedule {
    Published(PublishedShed),
    Stated(Vec<Step>),
}

/// From layer `layer` on, which is counted from 0, the share `share` of the prompt's rows is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The first layer that computes fewer rows.
    pub layer: usize,
    /// The share of the rows of the whole prompt, above 0 and up to 1.
    pub share: f64,
}

/// The rotary positions of rows that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShedPositions {
    /// The last positions of the prompt, in order: rows are numbered anew, as StreamingLLM numbers its cache (Xiao et
    /// al., arXiv 2309.17453, section 3.2). Costs nothing.
    #[default]
    Anew,
    /// Their own. Cosines and sines are gathered with the rows, and rotations are products of shared numbers.
    Own,
}

impl Shed {
    /// The steps in a model of `layers` layers, in the order of the layers.
    pub fn steps(&self, layers: usize) -> Vec<Step> {
        match &self.schedule {
            Schedule::Published(published) => published.steps(layers),
            Schedule::Stated(steps) => steps.clone(),
        }
    }

    /// The rotary positions of rows that go on.
    pub fn positions(&self) -> ShedPositions {
        self.positions
    }
}

/// The text of a layer and a share.
const EXPECTED: &str = "LAYER:SHARE,LAYER:SHARE with layers from 1 that rise and shares up to 1 that fall, such as \
                        4:0.5,8:0.25, or pyramidinfer, lazyllm, spatten, bolt or cipherprune; /own may follow";

impl FromStr for Shed {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let (schedule, positions) = match text.strip_suffix("/own") {
            Some(schedule) => (schedule, ShedPositions::Own),
            None => (text, ShedPositions::Anew),
        };
        if let Some(published) = PublishedShed::ALL.into_iter().find(|known| known.name() == schedule) {
            return Ok(Shed { schedule: Schedule::Published(published), positions });
        }
        let step = |step: &str| -> Option<Step> {
            let (layer, share) = step.split_once(':')?;
            let share: Budget = share.parse().ok()?;
            let Budget::Share(share) = share else { return None };
            Some(Step { layer: layer.parse().ok().filter(|layer| (1..1 << 16).contains(layer))?, share })
        };
        let steps: Option<Vec<Step>> = schedule.split(['+', ',']).map(step).collect();
        let falls = |steps: &Vec<Step>| {
            steps.windows(2).all(|pair| pair[0].layer < pair[1].layer && pair[0].share > pair[1].share)
        };
        let steps = steps.filter(falls).ok_or_else(|| UnknownValue::new(EXPECTED))?;
        Ok(Shed { schedule: Schedule::Stated(steps), positions })
    }
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.schedule {
            Schedule::Published(published) => f.write_str(published.name())?,
            Schedule::Stated(steps) => {
                for (i, Step { layer, share }) in steps.iter().enumerate() {
                    write!(f, "{}{layer}:{share}", if i == 0 { "" } else { "+" })?;
                }
            }
        }
        f.write_str(if self.positions == ShedPositions::Own { "/own" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_reads_as_it_is_written() {
        for text in ["4:0.5+8:0.25", "1:0.5", "2:1+3:0.5/own", "bolt", "spatten/own"] {
            assert_eq!(text.parse::<Shed>().unwrap().to_string(), text);
        }
        assert_eq!("4:0.5,8:0.25".parse::<Shed>().unwrap().to_string(), "4:0.5+8:0.25");
        for text in ["", "4", "0:0.5", "4:2", "4:0", "4:0.5,4:0.25", "8:0.5,4:0.25", "4:0.25,8:0.5", "tome", "/own"] {
            assert_eq!(text.parse::<Shed>().unwrap_err().expected, EXPECTED, "{text}");
        }
    }

    #[test]
    fn published_schedules_fit_models_of_every_depth() {
        for published in PublishedShed::ALL {
            for layers in 1..80 {
                let steps = published.steps(layers);
                assert!(steps.iter().all(|step| (1..layers).contains(&step.layer)), "{published:?} {layers}");
                assert!(steps.windows(2).all(|s| s[0].layer < s[1].layer && s[0].share > s[1].share));
            }
            assert!(EXPECTED.contains(published.name()));
            assert!(!published.steps(12).is_empty());
        }
        assert_eq!(PublishedShed::Bolt.steps(12), [Step { layer: 1, share: 0.5 }]);
    }
}
