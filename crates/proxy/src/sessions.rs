//! Sessions with the server: one that stays open, and others that end with their texts.

use std::sync::Arc;

use ndarray::Axis;
use waggle::PromptError;
use waggle_model::{Generation, Lengths, Next, Sampler};
use waggle_session::party::{ClientOptions, Prompt, PublicModel, Terms, nobody};
use waggle_tokenizer::{Tokenizer, TokenizerError};

use crate::api::Talk;
use crate::kept::Kept;
use crate::logprobs::{Logprobs, Pieces, logprobs};
use crate::pass::{Member, Pass};
use crate::refusal::Failure;
use crate::spent::{Own, Spent};
use crate::text::{Growing, Text};
use crate::{Before, ProxyConfig, Shared};

/// The kind of session in which texts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In the session that stays open. It takes a single text.
    Kept,
    /// In a session of their own, side by side.
    Own,
}

impl Way {
    /// The kind of session for `texts`. `talks` says whether the server has sessions of several turns, which give no
    /// logits of prompts.
    pub(super) fn of(texts: &[Text], talks: bool) -> Self {
        match texts {
            [text] if talks && !text.scores() => Way::Kept,
            _ => Way::Own,
        }
    }
}

/// The data that sessions with the server need, and the open session.
pub(super) struct Sessions {
    pub(super) config: ProxyConfig,
    pub(super) terms: Terms,
    pub(super) model: PublicModel,
    pub(super) public: Before,
    pub(super) tokenizer: Arc<Tokenizer>,
    pieces: Pieces,
    pub(super) kept: Option<Kept>,
    /// Whether the server has sessions of several turns.
    pub(super) talks: bool,
    shared: Arc<Shared>,
}

impl Sessions {
    pub(super) fn new(
        config: ProxyConfig,
        (terms, model, public): (Terms, PublicModel, Before),
        tokenizer: Tokenizer,
        kept: Option<Kept>,
        shared: Arc<Shared>,
    ) -> Result<Self, TokenizerError> {
        let pieces = Pieces::new(model.tokenizer.as_deref().unwrap_or_default())?;
        let talks = kept.is_some();
        Ok(Sessions { config, terms, model, public, tokenizer: Arc::new(tokenizer), pieces, kept, talks, shared })
    }

    /// Answers `texts` in a session of the kind `way`. After a failure, only those without an answer are left in
    /// `texts`.
    pub(super) fn read(&mut self, way: Way, texts: &mut Vec<Text>) -> Result<(), Failure> {
        let lengths = self.lengths(texts).map_err(Failure::of)?;
        let samplers = texts.iter().map(|text| text.sampler(&self.terms));
        let mut samplers = samplers.collect::<Result<Vec<Sampler>, _>>().map_err(Failure::of)?;
        match (way, &texts[..], &mut samplers[..]) {
            (Way::Kept, [text], [sampler]) => {
                let (who, ids) = (text.who, text.ids.clone());
                self.read_in_kept(texts, who, &ids, sampler, lengths)
            }
            _ => self.read_in_own(texts, &mut samplers, lengths),
        }
    }

    /// Reads a single text in the session that stays open.
    fn read_in_kept(
        &mut self,
        texts: &mut Vec<Text>,
        who: usize,
        ids: &[u32],
        sampler: &mut Sampler,
        lengths: Lengths,
    ) -> Result<(), Failure> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let ends = self.model.spec.eos();
        let kept = self.ensure(lengths, false)?;
        let mut pass = Pass::new(texts.drain(..), &tokenizer, ends);
        let done = kept.complete(who, ids, lengths.tokens, sampler, &mut pass);
        if done.is_ok() {
            self.shared.metrics.tokens.inc_by(pass.tokens() as u64);
        }
        self.kept.take_if(|kept| !kept.chat.is_open());
        self.finish(texts, pass, ids.len(), done)?;
        if let Some(kept) = &mut self.kept {
            kept.opening = None;
        }
        Ok(())
    }

    /// Reads `texts` side by side in a session of their own.
    fn read_in_own(
        &mut self,
        texts: &mut Vec<Text>,
        samplers: &mut [Sampler],
        lengths: Lengths,
    ) -> Result<(), Failure> {
        self.close();
        let prompts: Vec<Prompt> = texts.iter().map(|text| Prompt::from(&text.ids)).collect();
        let padded = self.config.pad_prompt.is_some().then_some(lengths.prompt);
        let whole = Prompt::side_by_side(&prompts, padded, false).map_err(Failure::of)?;
        let length = whole.input().count;
        let without_offer = self.config.public.is_some();
        let wanted = ClientOptions { expected: Some(&self.model.spec), without_offer, ..ClientOptions::default() };
        let session = self.config.client.open(&self.terms, wanted, &mut nobody).map_err(Failure::of)?;
        let session = session.behind(self.public.prefix.clone()).stopping_at_eos();
        let session = if self.config.pad_answer == Some(true) { session.padding_answers() } else { session };
        let session = if texts.iter().any(Text::scores) { session.scoring_prompt() } else { session };
        let tokenizer = Arc::clone(&self.tokenizer);
        let shared = !texts.iter().all(|text| text.growing.is_of_the_request_of(&texts[0].growing));
        let own = Own::new(shared, length);
        let mut pass = Pass::new(texts.drain(..), &tokenizer, self.model.spec.eos()).in_own(own);
        let next = Next::Each(samplers.iter_mut().map(Next::Pick).collect());
        let done = session.generate(whole, lengths.tokens, next, &mut |event| pass.hear(event));
        self.shared.metrics.tokens.inc_by(pass.tokens() as u64);
        let done = match done {
            Ok(outcome) => Ok((Spent::of_pass(own, &outcome, samplers.len()), outcome.generation)),
            Err(error) if pass.tokens() == 0 => Err(Failure::of(error)),
            // Text that was sent cannot be sent again.
            Err(error) => Err(Failure::Broken(error.into())),
        };
        self.finish(texts, pass, length, done)
    }

    /// Answers the texts of `pass` with the result `done` of their session. Each prompt has `length` tokens. If the
    /// session failed, the texts without an answer go back into `texts`, and the failure is returned.
    fn finish(
        &mut self,
        texts: &mut Vec<Text>,
        Pass { members, .. }: Pass,
        length: usize,
        done: Result<(Spent, Generation), Failure>,
    ) -> Result<(), Failure> {
        let worth = done.and_then(|(spent, generation)| {
            let worth = self.worth(&members, &generation, length);
            Ok((spent, worth.map_err(|error| Failure::Broken(error.into()))?))
        });
        match worth {
            Ok((spent, worth)) => {
                let spent = self.shared.paid(spent, members.len());
                for (member, worth) in members.into_iter().zip(worth) {
                    if let Some(text) = member.text {
                        text.finish(member.ids.len(), worth, Some(Arc::clone(&spent)));
                    }
                }
                Ok(())
            }
            Err(failure) => {
                texts.extend(members.into_iter().filter_map(|member| member.text));
                Err(failure)
            }
        }
    }

    /// For each of `members`, the log-probabilities of its tokens, or `None` if they are not asked for. Each prompt
    /// has `count` tokens, padding included.
    fn worth(
        &mut self,
        members: &[Member],
        generation: &Generation,
        count: usize,
    ) -> Result<Vec<Option<Logprobs>>, TokenizerError> {
        let Sessions { tokenizer, pieces, .. } = self;
        let mut next = 0;
        let mut all = Vec::new();
        for (Member { text, ids, .. }, length) in members.iter().zip(&generation.lengths) {
            let scores = text.as_ref().is_some_and(Text::scores);
            let first = next;
            next += length + if scores { count - 1 } else { 0 };
            let asked = text.as_ref().zip(generation.logits.as_ref());
            let Some((text, logits, likeliest)) = asked.and_then(|(text, rows)| Some((text, rows, text.likeliest?)))
            else {
                all.push(None);
                continue;
            };
            // The rows of the prompt begin with the rows of its padding.
            let first = first + if scores { count - text.ids.len() } else { 0 };
            let prompt: &[u32] = if scores { &text.ids } else { &[] };
            let ids = [prompt, ids].concat();
            let rows = logits.slice_axis(Axis(0), (first..first + ids.len() - usize::from(scores)).into());
            let mut found = logprobs(tokenizer, pieces, &ids, rows, likeliest, scores)?;
            if text.growing.cut {
                found.cut(text.growing.text().chars().count());
            }
            all.push(Some(found));
        }
        Ok(all)
    }

    /// Generates the next answer of a conversation in the session that stays open. The session takes turns of up to
    /// `longest` tokens. If this turn is longer, `longest` is set to its length, and the turn fails. Returns the
    /// number of tokens read, the number of tokens generated, and the cost.
    pub(super) fn turn(
        &mut self,
        who: usize,
        Talk { messages, tokens, wanted }: &Talk,
        longest: &mut usize,
        growing: &mut Growing,
    ) -> Result<(usize, usize, Arc<Spent>), Failure> {
        let public = self.config.public_messages(messages);
        let tokens = tokens.unwrap_or(self.usual(public.is_some()).tokens);
        let mut sampler = wanted.sampling.sampler(&self.terms).map_err(Failure::of)?;
        let kept = self.ensure(Lengths { prompt: *longest, tokens }, public.is_some())?;
        let done = kept.turn(who, (&messages[..], public.unwrap_or(0)), tokens, &mut sampler, growing, longest);
        // A broken session cannot be continued.
        self.kept.take_if(|_| matches!(done, Err(Failure::Broken(_))));
        let (turn, spent) = done?;
        if turn.tokens.last().is_some_and(|token| self.model.spec.eos().contains(token)) {
            growing.end("stop");
        }
        Ok((turn.prompt_tokens, turn.tokens.len(), self.shared.paid(spent, 1)))
    }

    /// The session that stays open. If it is too short for a turn and an answer of the lengths `wanted`, a longer one
    /// is opened in its place, and another one if conversations begin in public and are not to, or the other way
    /// round.
    fn ensure(&mut self, wanted: Lengths, head: bool) -> Result<&mut Kept, Failure> {
        let kept = match self.kept.take() {
            Some(kept) if kept.head == head && kept.takes(wanted) => kept.again(),
            kept => {
                self.kept = kept;
                self.close();
                let usual = self.usual(head);
                let longest =
                    Lengths { prompt: wanted.prompt.max(usual.prompt), tokens: wanted.tokens.max(usual.tokens) };
                Kept::new(self.config.talk(longest, head).map_err(Failure::of)?, longest, head, true)
            }
        };
        Ok(self.kept.insert(kept))
    }

    fn usual(&self, head: bool) -> Lengths {
        self.config.usual(self.public.room(&self.model.spec, head))
    }

    /// The lengths of the session for `texts`, padding included.
    fn lengths(&self, texts: &[Text]) -> Result<Lengths, PromptError> {
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let tokens = texts.iter().map(|text| text.tokens).max().unwrap_or(0).max(1);
        let room = (self.model.spec.max_positions() + 1).saturating_sub(tokens);
        let prompt = self.config.pad_prompt.as_ref().map_or(Ok(longest), |pads| pads.of(longest, room))?;
        Ok(Lengths { prompt, tokens })
    }

    /// Ends the open session.
    pub(super) fn close(&mut self) {
        if let Some(kept) = self.kept.take()
            && kept.chat.is_open()
            && let Err(error) = kept.chat.finish()
        {
            self.shared.failed(&error);
        }
    }
}
