//! A client's request, and the most that a server does for one client.

use std::time::Duration;

use waggle_model::{
    Drafts, Excess, GenerateOptions, Input, Lengths, MAX_DRAFTED, ModelSpec, Reveal, check_draft, check_encoder,
    check_image, check_lengths, check_padding, check_texts, chunk_size, passes,
};
use waggle_mpcache::Padding;
use waggle_protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;

use crate::Error;
use crate::terms::Terms;

/// Most steps of planning ([`Request::planning_steps`]) for a session in two phases. They take half a minute at most,
/// and a GPT-2 XL needs fewer for all its positions. Either party refuses more, because its peer may make up a model
/// or a request to keep it busy.
pub const MAX_PLANNING_STEPS: usize = 1 << 16;

/// Most texts that a model reads side by side; below, the most positions of all texts together. Keys, values and
/// prompts are kept for each position, and no machine would finish with more positions.
const MAX_TEXTS: usize = 1 << 12;
const MAX_POSITIONS: usize = 1 << 20;

/// A client's request, which is public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Lengths of prompt and text; the text may be shorter with `stop_at_eos`.
    pub lengths: Lengths,
    /// Whether the text ends after an end-of-text token. The server then learns how many tokens there are.
    pub stop_at_eos: bool,
    /// Whether a text that ends at its end-of-text token is padded to the next [`bucket`](waggle_model::bucket) of
    /// tokens, so that the server learns no more than the bucket. A chat takes this with the policy `full` alone, and
    /// a draft excludes it.
    pub pad_answer: bool,
    /// Whether the first tokens of the prompt may be padding, see [`Prompt::padded`](crate::party::Prompt::padded).
    pub padded: bool,
    /// The number of texts of these lengths that are read side by side. They stop together, when the last of them has
    /// ended.
    pub texts: usize,
    /// Whether the client learns the logits of every position of the prompt, not only of its last: so it scores a
    /// given text. Excludes pools and chats.
    pub all_positions: bool,
    /// The guesses that each pass checks, if any. The server then learns how many tokens each pass keeps, and the
    /// client learns what the model says after wrong guesses, too; see [`Drafts`].
    pub draft: Option<Drafts>,
}

/// The most that a server does for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest prompt and longest text. Prompts that are read side by side count together, and so do the texts of a
    /// decoder.
    pub lengths: Lengths,
    /// Most positions of a conversation, over all of its turns; `None` allows no conversation.
    pub conversation: Option<usize>,
    /// The longest time of a session, which the client of a conversation is told.
    pub session: Option<Duration>,
    /// Whether sessions have two phases ([`waggle_protocols::Options::preprocess`]); `None` leaves it to the client.
    pub preprocess: Option<bool>,
    /// Most guesses in a pass; 0 allows no drafts.
    pub drafted: usize,
    /// Most public tokens that a client may have read before its texts.
    pub public: usize,
}

impl Default for Limits {
    /// 1024 tokens of prompt, of text and before them, conversations of 2048 positions, as many phases as the client
    /// likes, and eight guesses in a pass.
    fn default() -> Self {
        let lengths = Lengths { prompt: 1024, tokens: 1024 };
        Limits { lengths, conversation: Some(2048), drafted: 8, public: 1024, ..Limits::NONE }
    }
}

impl Limits {
    /// No limits but the model's own.
    pub const NONE: Limits = Limits {
        lengths: Lengths::MAX,
        conversation: Some(usize::MAX),
        session: None,
        preprocess: None,
        drafted: MAX_DRAFTED,
        public: usize::MAX,
    };

    /// Refuses a number of phases that the server does not offer.
    pub(crate) fn check_phases(&self, terms: &Terms) -> Result<(), Error> {
        let got = terms.protocol.preprocess;
        match self.preprocess {
            Some(expected) if expected != got => Err(Error::Phases { expected, got }),
            _ => Ok(()),
        }
    }
}

impl From<Lengths> for Request {
    /// A generation of one text of these lengths to the end, without padding or drafts.
    fn from(lengths: Lengths) -> Self {
        let [stop_at_eos, pad_answer, padded, all_positions] = [false; 4];
        Request { lengths, stop_at_eos, pad_answer, padded, texts: 1, all_positions, draft: None }
    }
}

impl Request {
    /// The number of steps that it takes to plan two phases, from public numbers alone. The planner goes through the
    /// layers once for each token and each chunk of the prompt. A step takes half a millisecond if no two layers are
    /// alike, and a tenth or less of that where they are. Reading the shape of a layer costs as much as eight tokens.
    pub fn planning_steps(&self, spec: &ModelSpec, terms: &Terms) -> usize {
        self.steps_after(0, spec, terms)
    }

    /// [`planning_steps`](Self::planning_steps) of a turn after `before` positions.
    pub(crate) fn steps_after(&self, before: usize, spec: &ModelSpec, terms: &Terms) -> usize {
        let Lengths { prompt, tokens } = self.lengths;
        let chunk = chunk_size(spec, self.texts, before.saturating_add(prompt), terms.prefill_chunk);
        let chunks = passes(prompt, chunk, terms.policy.prefill());
        spec.layers().saturating_mul(tokens.saturating_add(chunks).saturating_add(8))
    }

    /// Refuses what the parties could not do with the model `spec` under `terms`, or what the server's `limits` do
    /// not allow. A plan, a client and a server all ask this of every request, so nobody else needs to.
    ///
    /// # Errors
    /// [`Error::Phases`] for a number of phases that the server does not offer; errors of
    /// [`ModelSpec::check_policy`]; [`waggle_model::Error::PaddedPolicy`] for padding under a policy that would
    /// choose among it; [`Error::PaddedDraft`]; [`Error::PromptLogits`] where the client learns tokens alone;
    /// [`waggle_model::Error::DraftPolicy`] for a draft under a policy that cannot take tokens back;
    /// [`waggle_model::Error::Nothing`]; [`Error::Limit`] beyond the limits, [`waggle_model::Error::TooLong`] beyond
    /// the model's positions, [`Error::TooWide`] beyond the columns of the softmax in fixed point, and
    /// [`Error::TooMany`] for more texts than fit any memory; [`Error::Planning`] for what would take too long to
    /// plan.
    pub fn validate(&self, spec: &ModelSpec, terms: &Terms, limits: &Limits) -> Result<(), Error> {
        limits.check_phases(terms)?;
        spec.check_policy(&terms.policy)?;
        check_padding(self.padded, &terms.policy)?;
        if self.pad_answer && self.draft.is_some() {
            return Err(Error::PaddedDraft);
        }
        if self.all_positions && terms.reveal == Reveal::Token {
            return Err(Error::PromptLogits);
        }
        check_draft(self.draft, &terms.policy, terms.policy.can_roll_back())?;
        let public = terms.prefix.as_ref().map_or(0, |prefix| prefix.ids().len());
        if let Some(prefix) = &terms.prefix {
            prefix.check(spec, terms)?;
            if self.padded {
                return Err(waggle_model::Error::PaddedPrefix.into());
            }
            let (got, limit) = (public, limits.public);
            if got > limit {
                return Err(Error::Limit { what: "public tokens", got, limit });
            }
        }
        check_encoder(spec, &self.options(terms))?;
        check_image(spec, self.lengths.prompt)?;
        check_texts(self.texts, &terms.policy, self.draft)?;
        check_bounded(self.lengths, limits.lengths, spec.max_positions() - public)?;
        let (got, limit) = (self.texts.saturating_mul(self.lengths.prompt), limits.lengths.prompt);
        if got > limit {
            return Err(Error::Limit { what: "tokens of all texts", got, limit });
        }
        // An encoder's single token keeps nothing in memory.
        let (got, limit) = (self.texts.saturating_mul(self.lengths.tokens), limits.lengths.tokens);
        if got > limit && !spec.is_encoder() {
            return Err(Error::Limit { what: "tokens to generate of all texts", got, limit });
        }
        let (got, limit) = (self.draft.map_or(0, Drafts::tokens), limits.drafted);
        if got > limit {
            return Err(Error::Limit { what: "guesses in a pass", got, limit });
        }
        let (got, limit) = (self.lengths.positions().saturating_add(public), MAX_SOFTMAX_COLUMNS);
        if got > limit {
            return Err(Error::TooWide { got, limit });
        }
        let all = self.texts.saturating_mul(got);
        if self.texts > MAX_TEXTS || self.texts > 1 && all > MAX_POSITIONS {
            let (texts, positions) = (self.texts, all);
            return Err(Error::TooMany { texts, positions, limits: [MAX_TEXTS, MAX_POSITIONS] });
        }
        let (steps, limit) = (self.planning_steps(spec, terms), MAX_PLANNING_STEPS);
        if terms.protocol.preprocess && steps > limit {
            return Err(Error::Planning { tokens: self.lengths.tokens, layers: spec.layers(), steps, limit });
        }
        Ok(())
    }

    /// The most positions that go through the model: those of the prompts without their last ones, padding among
    /// them, and one for each token that is generated or guessed. The last position of a prompt gives a token, and
    /// counts with it.
    pub fn positions(&self) -> u64 {
        let prompt = self.lengths.prompt.saturating_sub(1) as u64;
        (self.texts as u64).saturating_mul(prompt.saturating_add(Drafts::positions(self.draft, self.lengths.tokens)))
    }

    /// The prompt as the server knows it.
    pub(crate) fn input(&self) -> Input<'static> {
        Input { texts: self.texts, ..Input::unknown(self.lengths.prompt) }
    }

    /// The options of the generation under `terms`, as far as both parties know them.
    pub(crate) fn options(&self, terms: &Terms) -> GenerateOptions {
        GenerateOptions {
            tokens: self.lengths.tokens,
            reveal: terms.reveal,
            logit_bits: terms.logit_bits,
            stop_at_eos: self.stop_at_eos,
            pad_answer: self.pad_answer,
            all_positions: self.all_positions,
            policy: terms.policy.clone(),
            prefill_chunk: terms.prefill_chunk,
            padding: self.padded.then_some(Padding { tokens: None }),
            draft: self.draft,
        }
    }
}

/// Refuses a generation of nothing ([`waggle_model::Error::Nothing`]), beyond `bound` ([`Error::Limit`]) or over more
/// than `limit` positions ([`waggle_model::Error::TooLong`]).
pub(crate) fn check_bounded(lengths: Lengths, bound: Lengths, limit: usize) -> Result<(), Error> {
    if let Some(Excess { what, got, limit }) = lengths.beyond(bound) {
        return Err(Error::Limit { what, got, limit });
    }
    Ok(check_lengths(lengths, limit)?)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    /// A tiny model of `layers` layers.
    pub(crate) fn llama(layers: usize) -> ModelSpec {
        let config = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": {layers}, "hidden_size": 8, "intermediate_size": 8,
                 "num_attention_heads": 2, "vocab_size": 11}}"#
        );
        ModelSpec::from_config_json(config.as_bytes()).unwrap()
    }

    /// The default terms in two phases.
    pub(crate) fn two_phases() -> Terms {
        let mut terms = Terms::default();
        terms.protocol.preprocess = true;
        terms
    }

    #[test]
    fn more_texts_than_fit_any_memory_are_refused() {
        let check = |texts, prompt| {
            let request = Request { texts, ..Request::from(Lengths { prompt, tokens: 1 }) };
            request.validate(&llama(1), &Terms::default(), &Limits::NONE)
        };
        check(MAX_TEXTS, 1).unwrap();
        check(512, 2048).unwrap();
        for (texts, prompt) in [(MAX_TEXTS + 1, 1), (513, 2048), (usize::MAX, 2)] {
            let refused = check(texts, prompt).unwrap_err();
            assert!(matches!(refused, Error::TooMany { texts: got, .. } if got == texts), "{refused}");
        }
    }

    /// The errors tell the model's limit from that of this program.
    #[test]
    fn long_requests_are_refused_for_the_reason_that_holds() {
        let spec = |positions: usize, scaling: &str| {
            let config = format!(
                r#"{{"model_type": "llama", "max_position_embeddings": {positions}, "rope_scaling": {scaling}}}"#
            );
            ModelSpec::from_config_json(config.as_bytes()).unwrap()
        };
        let check = |spec: &ModelSpec, prompt| {
            Request::from(Lengths { prompt, tokens: 2 }).validate(spec, &Terms::default(), &Limits::NONE)
        };
        let short = spec(8192, "null");
        check(&short, 8191).unwrap();
        let refused = check(&short, 8192).unwrap_err();
        assert!(
            matches!(refused, Error::Model(waggle_model::Error::TooLong { positions: 8193, limit: 8192 })),
            "{refused}"
        );
        assert_eq!(refused.to_string(), "8193 positions would go through a model that has 8192");

        // Trained for 4096 positions, which the scaling makes 16384.
        let stretched = spec(4096, r#"{"rope_type": "linear", "factor": 4.0}"#);
        check(&stretched, 16_383).unwrap();
        let refused = check(&stretched, 16_384).unwrap_err();
        assert!(
            matches!(refused, Error::Model(waggle_model::Error::TooLong { positions: 16_385, limit: 16_384 })),
            "{refused}"
        );

        let long = spec(1 << 20, "null");
        check(&long, MAX_SOFTMAX_COLUMNS - 1).unwrap();
        let refused = check(&long, MAX_SOFTMAX_COLUMNS).unwrap_err();
        assert!(matches!(refused, Error::TooWide { got: 131_073, limit: MAX_SOFTMAX_COLUMNS }), "{refused}");
        assert_eq!(refused.to_string(), "131073 positions are more than the 131072 that this program can attend to");
        assert!(matches!(
            check(&long, usize::MAX),
            Err(Error::Model(waggle_model::Error::TooLong { limit: 1_048_576, .. }))
        ));
    }

    #[test]
    fn what_would_take_minutes_to_plan_is_refused_before() {
        let request = |tokens| Request::from(Lengths { prompt: 1024, tokens });
        let check = |layers, tokens| request(tokens).validate(&llama(layers), &two_phases(), &Limits::NONE);
        check(48, 1024).unwrap();
        check(80, 512).unwrap();
        for (layers, tokens) in [(4096, 32), (126, 1024)] {
            let refused = check(layers, tokens).unwrap_err();
            assert!(matches!(refused, Error::Planning { limit: MAX_PLANNING_STEPS, .. }), "{refused}");
        }
        // Chunks of a prompt are passes, too.
        let terms = Terms { prefill_chunk: NonZeroUsize::new(1), ..two_phases() };
        let refused = request(1024).validate(&llama(48), &terms, &Limits::NONE).unwrap_err();
        assert!(matches!(refused, Error::Planning { .. }), "{refused}");
        // One phase plans nothing.
        request(1024).validate(&llama(4096), &Terms::default(), &Limits::NONE).unwrap();
    }

    #[test]
    fn several_texts_are_bounded_together() {
        let request = Request { texts: 8, ..Lengths { prompt: 100, tokens: 200 }.into() };
        let refused = request.validate(&llama(1), &Terms::default(), &Limits::default());
        assert!(matches!(refused, Err(Error::Limit { got: 1600, limit: 1024, .. })), "{refused:?}");
        request.validate(&llama(1), &Terms::default(), &Limits::NONE).unwrap();
    }

    #[test]
    fn each_length_has_its_own_bound_and_both_share_the_positions() {
        let bound = Lengths { prompt: 8, tokens: 4 };
        let check = |prompt, tokens| check_bounded(Lengths { prompt, tokens }, bound, 10);
        assert_eq!(Lengths { prompt: 8, tokens: 3 }.positions(), 10);
        check(8, 3).unwrap();
        check(7, 4).unwrap();
        assert!(matches!(check(0, 4), Err(Error::Model(waggle_model::Error::Nothing))));
        assert!(matches!(check(8, 0), Err(Error::Model(waggle_model::Error::Nothing))));
        assert!(matches!(check(9, 5), Err(Error::Limit { what: "tokens of a prompt", got: 9, limit: 8 })));
        assert!(matches!(check(8, 5), Err(Error::Limit { what: "tokens to generate", got: 5, limit: 4 })));
        assert!(matches!(check(8, 4), Err(Error::Model(waggle_model::Error::TooLong { positions: 11, limit: 10 }))));
        assert_eq!(Lengths::MAX.positions(), usize::MAX);
    }
}
