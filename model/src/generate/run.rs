//! One generation, pass by pass.

use engine::{Engine, Tensor};
use mpcache::{KvCache, ScoreSource};
use ndarray::{Array2, Axis, Ix2, Slice};

use super::{GenerateOptions, Generation, Hooks, Next, Reveal, Step, check, check_draft};
use crate::chunks::{chunk_size, read};
use crate::draft::{Drafts, Passes, accepted, filled};
use crate::lengths::bucket;
use crate::surprisal::Surprisal;
use crate::{Error, Input, Lengths, Model, ModelSpec, Rows, Sampler};

/// A generation under way.
pub(super) struct Run<'a, 'n, E: Engine> {
    engine: &'a mut E,
    model: &'a Model<E::Weight>,
    cache: &'a mut KvCache<E>,
    options: &'a GenerateOptions,
    hooks: &'a mut dyn Hooks<E>,
    spec: ModelSpec,
    /// Ids at which the text may stop.
    ends: Vec<u32>,
    text: Text<'n>,
    feed: Feed,
    /// Tokens of the next pass that go through the model together.
    chunk: usize,
    /// The tokens that passes of a steady draft keep.
    steady: Option<Passes>,
    /// The patches of an image.
    patches: Option<&'a Array2<f32>>,
    /// The place where the prompt's second text begins.
    second: Option<usize>,
    /// The place of the mask.
    mask: Option<usize>,
    surprisal: Surprisal,
    /// Whether the text is over, and goes on so that nobody sees it.
    over: bool,
    rows: Vec<Array2<f32>>,
    out: Generation,
}

/// The text as the client knows it; on the server, nothing.
struct Text<'n> {
    /// Its words without padding, and then what was picked, which may be more than was kept.
    ids: Vec<u32>,
    /// The number of its words.
    words: usize,
    next: Next<'n>,
}

/// The tokens that go through the model in a pass.
struct Feed {
    /// On the client.
    ids: Option<Vec<u32>>,
    count: usize,
    /// The last of them, which are guesses.
    drafted: usize,
}

/// The results of a pass, for the party that learns them.
struct Revealed {
    /// The tokens that come out, the first guess that was wrong replaced.
    picked: Option<Vec<u32>>,
    logits: Option<Array2<f32>>,
}

impl<'a, 'n, E: Engine> Run<'a, 'n, E> {
    /// Checks the request, and tells the cache what will come.
    pub(super) fn prepare(
        engine: &'a mut E,
        model: &'a Model<E::Weight>,
        cache: &'a mut KvCache<E>,
        prompt: Input<'a>,
        options: &'a GenerateOptions,
        next: Next<'n>,
        hooks: &'a mut dyn Hooks<E>,
    ) -> Result<Self, Error> {
        let spec = model.spec();
        check(&spec, prompt, options, cache)?;
        if cache.tokens() == 0 {
            cache.expect_text(Lengths { prompt: prompt.count, tokens: options.tokens }.positions());
            if options.draft.is_some() {
                cache.expect_roll_back();
            }
        }
        check_draft(options.draft, &options.policy, cache.can_roll_back())?;
        if let Some(padding) = options.padding {
            cache.pad(padding, prompt.count);
        }
        if cache.tokens() == 0 {
            cache.expect_prompt(prompt.count);
        }
        if cache.wants_scores() == Some(ScoreSource::ScoringHead) && !model.learned() {
            return Err(Error::NotLearned);
        }
        let padding = options.padding.and_then(|padding| padding.tokens).unwrap_or(0);
        let words = if spec.is_encoder() { 0..prompt.count - padding } else { padding..prompt.count };
        let ids: Vec<u32> = prompt.ids.map(|ids| ids[words].to_vec()).unwrap_or_default();
        Ok(Run {
            chunk: chunk_size(&spec, cache.tokens() + prompt.count, options.prefill_chunk),
            text: Text { words: ids.len(), ids, next },
            feed: Feed { ids: prompt.ids.map(<[u32]>::to_vec), count: prompt.count, drafted: 0 },
            ends: if options.stop_at_eos { spec.eos() } else { Vec::new() },
            steady: options.draft.and_then(Drafts::schedule),
            patches: prompt.patches,
            second: prompt.second,
            mask: prompt.mask,
            surprisal: Surprisal::default(),
            over: false,
            rows: Vec::new(),
            out: Generation::default(),
            engine,
            model,
            cache,
            options,
            hooks,
            spec,
        })
    }

    /// One pass, and the tokens that it gives. Whether another one follows.
    pub(super) fn step(&mut self) -> Result<bool, Error> {
        let (index, drafted) = (self.out.count, self.feed.drafted);
        let step = if index == 0 { Step::Prefill } else { Step::Decode { index, drafted } };
        self.hooks.go_on()?;
        self.hooks.begin(self.engine, step);
        let hidden = self.read()?;
        // The last token that is known; the guesses come after it.
        let first = hidden.shape()[0] - 1 - drafted;
        let Revealed { picked, logits } = self.reveal(&hidden, first)?;
        let kept = self.agree_to_keep(picked.as_deref())?;
        self.cache.roll_back(1 + drafted - kept);
        if index > 0 {
            self.out.passes.push(kept);
        }
        if let Some(mut logits) = logits.filter(|_| !self.over) {
            let start = if self.options.all_positions { 0 } else { first };
            logits.slice_axis_inplace(Axis(0), Slice::from(start..first + kept));
            self.rows.push(logits);
        }
        for i in 0..kept {
            let token = picked.as_ref().and_then(|picked| picked.get(i)).copied().filter(|_| !self.over);
            self.out.count += 1;
            self.out.tokens.extend(token);
            self.hooks.token(self.engine, step, token);
        }
        let ended = self.out.tokens.last().is_some_and(|token| self.ends.contains(token));
        self.over |= self.options.pad_answer && ended;
        let left = self.options.tokens - self.out.count;
        if left == 0 || self.agree_to_stop(picked.is_some().then_some(ended))? {
            return Ok(false);
        }
        self.feed_after(left)?;
        Ok(true)
    }

    /// The finished generation, when no step is left.
    pub(super) fn finish(mut self) -> Generation {
        if self.options.pad_answer {
            let unseen = self.out.count - self.out.tokens.len();
            self.cache.bury(self.feed.ids.as_ref().map(|_| unseen));
        }
        if !self.rows.is_empty() {
            let views: Vec<_> = self.rows.iter().map(|rows| rows.view()).collect();
            self.out.logits =
                Some(ndarray::concatenate(Axis(0), &views).expect("all rows have the vocabulary's length"));
        }
        self.out
    }

    /// The last hidden states of the pass: all that somebody looks at.
    fn read(&mut self) -> Result<E::Tensor, Error> {
        let Feed { ids, count, drafted } = &self.feed;
        let all =
            self.options.all_positions || *drafted > 0 || self.cache.wants_scores() == Some(ScoreSource::Surprisal);
        let wanted = if all { Rows::All } else { Rows::Last };
        let input = Input {
            patches: self.patches,
            second: self.second,
            mask: self.mask,
            ..Input::of(ids.as_deref(), *count)
        };
        let progress = &mut |done, all| self.hooks.layer(done, all);
        let hidden = read(self.engine, self.model, input, self.cache, wanted, self.chunk, progress)?;
        hidden.ok_or(Error::Nothing)
    }

    /// Opens what the client learns of `hidden`, and picks the tokens after the row `first`.
    fn reveal(&mut self, hidden: &E::Tensor, first: usize) -> Result<Revealed, Error> {
        let Run { engine, model, cache, options, ends, text, feed, surprisal, out, .. } = self;
        let ends = |token: u32| ends.contains(&token);
        let (index, guesses) = (out.count, feed.guesses());
        match options.reveal {
            Reveal::Logits => {
                let logits = model.reveal_logits(*engine, hidden, options.logit_bits)?;
                let logits = logits
                    .map(|logits| logits.into_dimensionality::<Ix2>().expect("logits are (positions, vocabulary)"));
                surprisal.tell(*engine, cache, feed.ids.as_deref(), logits.as_ref())?;
                let picked = logits.as_ref().map(|logits| {
                    let row = |i| logits.row(first + i);
                    accepted(guesses, ends, |i| text.pick(index + i, &|sampler| sampler.pick(row(i))))
                });
                Ok(Revealed { picked, logits })
            }
            Reveal::Token => {
                surprisal.tell(*engine, cache, feed.ids.as_deref(), None)?;
                let logits = model.logits(*engine, hidden)?.slice(0, first..first + 1 + feed.drafted);
                let best = engine.scope("argmax", |e| e.argmax(&logits))?;
                let picked = best.map(|best| accepted(guesses, ends, |i| text.pick(index + i, &|_| best[i] as u32)));
                Ok(Revealed { picked, logits: None })
            }
        }
    }

    /// The number of tokens that stay, of those that came out.
    fn agree_to_keep(&mut self, picked: Option<&[u32]>) -> Result<usize, Error> {
        if self.feed.drafted == 0 {
            return Ok(1);
        }
        let all = 1 + self.feed.drafted;
        let most = self.steady.as_mut().map_or(all, |steady| steady.next(all));
        let steady = self.steady.is_some();
        let right = picked.map(|picked| match picked.len() {
            right if steady && right < most => 1,
            right => right.min(most),
        });
        let kept = self.hooks.agree_to_keep(self.engine, most, right)?;
        let possible = (1..=right.unwrap_or(most)).contains(&kept);
        if !possible || (steady && ![1, most].contains(&kept)) {
            return Err(Error::DraftKept { got: kept, most });
        }
        Ok(kept)
    }

    /// Whether the text stops here, if that is asked; the client passes whether its last token `ended` it.
    fn agree_to_stop(&mut self, ended: Option<bool>) -> Result<bool, Error> {
        let &GenerateOptions { stop_at_eos, pad_answer, .. } = self.options;
        let asked = stop_at_eos && (!pad_answer || bucket(self.out.count) == self.out.count);
        if !asked {
            return Ok(false);
        }
        Ok(self.hooks.agree_to_stop(self.engine, ended.map(|ended| self.over || ended))?)
    }

    /// The last token that is known, and guesses after it, with `left` tokens to come. No position is read beyond the
    /// one that gives the last token.
    fn feed_after(&mut self, left: usize) -> Result<(), Error> {
        let drafted = self.options.draft.map_or(0, Drafts::tokens).min(left - 1);
        let count = 1 + drafted;
        self.chunk = count;
        let ids = match self.feed.ids {
            None => None,
            Some(_) => {
                let text = &mut self.text;
                let known = text.words + self.out.count;
                let guesses = text.next.guess(&text.ids, drafted.saturating_sub(text.ids.len() - known))?;
                self.spec.check_ids(&guesses)?;
                Some(text.ids[known - 1..].iter().copied().chain(guesses).take(count).collect())
            }
        };
        self.feed = Feed { ids, count, drafted };
        Ok(())
    }
}

impl Feed {
    fn guesses(&self) -> &[u32] {
        self.ids.as_deref().map_or(&[], |ids| &ids[self.count - self.drafted..])
    }
}

impl Text<'_> {
    /// Token `index` of the answer. One that was picked in an earlier pass stays what it is.
    fn pick(&mut self, index: usize, pick: &dyn Fn(&mut Sampler) -> u32) -> u32 {
        let at = self.words + index;
        if at == self.ids.len() {
            self.ids.push(self.next.choose(index, pick));
        }
        self.ids[at]
    }
}

impl Next<'_> {
    fn choose(&mut self, index: usize, pick: &dyn Fn(&mut Sampler) -> u32) -> u32 {
        match self {
            Next::Pick(sampler) | Next::Drafted { sampler, .. } => pick(sampler),
            Next::Forced(tokens) => tokens.get(index).copied().unwrap_or_else(|| pick(&mut Sampler::greedy())),
        }
    }

    /// Exactly `count` guesses after `text`.
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
        match self {
            Next::Drafted { guess, .. } => filled(Some(&mut **guess), text, count),
            Next::Pick(_) | Next::Forced(_) => filled(None, text, count),
        }
    }
}
