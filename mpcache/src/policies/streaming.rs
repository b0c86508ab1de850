//! `streaming`: the first tokens and the latest, after StreamingLLM (Xiao et al., arXiv 2309.17453).
//!
//! **Blocks.** A store that is cut is rewritten, and in two phases all of its rows then need fresh masks. A full
//! store therefore drops a block of its oldest tokens at once; the default block of a budget in tokens is a quarter
//! of it. With a share the default is 1: such a cache grows, so three of four steps drop a token and one does not.
//!
//! **Public.** The whole pattern. **Revealed.** Nothing: no protocol runs.

use engine::{Error, Select, Tensor};

use super::DEFAULT_SINKS;
use crate::attention;
use crate::schedule::Later;
use crate::stream::Window;
use crate::{Facts, HeadShape, NamedPolicy, Policy, PolicyFamily, Schedule, Setting, Store};

/// Keeps the first tokens and the latest, and evicts all others. Tokens keep the positions at which they were
/// encoded.
///
/// The pattern is public: the policy needs no protocol and reveals nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// How much is kept, of all tokens seen, and when the rest goes.
    pub schedule: Schedule,
    /// How many of the tokens kept stand at the start of the text.
    pub sinks: usize,
}

impl PolicyFamily for Streaming {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "streaming",
        keys: &["budget", "block", "prefill", "sinks"],
        about: "StreamingLLM: the first tokens and the latest",
        read: |options| {
            Ok(Streaming {
                schedule: Schedule::read(options, Later::Always)?,
                sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
            })
        },
    }];

    fn settings(&self) -> Vec<Setting> {
        let mut settings = self.schedule.settings(Later::Always);
        settings.push(Setting::new("sinks", self.sinks));
        settings
    }

    fn facts(&self) -> Facts {
        Facts { prefill: self.schedule.prefill, ..Facts::shows("the whole pattern, which follows from lengths") }
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(*self)
    }
}

impl Streaming {
    fn window(&self) -> Window {
        Window { schedule: self.schedule, sinks: self.sinks, merges: false }
    }

    fn cut_prompt<E: Select>(&self, store: &mut Store<E>) {
        if let Some(left) = self.window().after(store, 0) {
            store.keep_rows(0, &left.rows());
        }
    }
}

impl<E: Select> Policy<E> for Streaming {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(*self))
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.schedule.prefill
    }

    fn layer_class(&self, _layer: usize) -> usize {
        0
    }

    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        // The prompt, or each chunk of it, sees itself whole and is cut afterwards; later tokens see what is kept.
        if let Some(left) = self.window().before(store, 0, q.shape()[1]) {
            store.keep_rows(0, &left.rows());
        }
        let output = attention::causal(engine, q, store)?.output;
        self.cut_prompt(store);
        Ok(output)
    }

    fn appended(&mut self, _engine: &mut E, _layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.cut_prompt(store);
        Ok(())
    }
}
