//! Prompt in, tokens out: one loop for both parties and every engine.

mod check;
mod types;

use std::collections::VecDeque;

use ndarray::{Array2, ArrayView2, Axis, Ix2};
use waggle_engine::{Engine, Select, Tensor};
use waggle_mpcache::{Expected, KvCache, ScoreSource};

use self::check::check;
pub use self::check::{
    check_draft, check_encoder, check_image, check_input, check_lengths, check_next, check_padding, check_texts,
};
pub use self::types::{GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step};
use crate::chunks::{chunk_size, read};
use crate::draft::{Drafts, Passes, accepted};
use crate::lengths::bucket;
use crate::surprisal::Surprisal;
use crate::{Error, Input, Lengths, Model, ModelSpec, Rows, Sampler};

/// Generates `options.tokens` tokens after `prompt`, or after each of several texts.
///
/// Both parties call it with equal options; only the client passes ids. The first token takes a pass over the prompt,
/// and every further token a pass over one token. With a draft, there are fewer passes, over several tokens each. The
/// function fails before the first message if the positions do not fit the model.
pub fn generate<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    prompt: Input,
    options: &GenerateOptions,
    next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    model.spec().check_policy(&options.policy)?;
    let mut cache = model.cache_of(prompt.texts.max(1), &options.policy);
    generate_with(engine, model, &mut cache, prompt, options, next, hooks)
}

/// [`generate`] on the caller's `cache`, whose policy replaces `options.policy`. If the cache holds tokens, `prompt`
/// is read after them. The last token of a generation was not read, so it must begin the next prompt. To a policy, a
/// later prompt is not a prompt, but several new tokens that come together.
pub fn generate_with<E: Engine>(
    engine: &mut E,
    model: &Model<E::Weight>,
    cache: &mut KvCache<E>,
    prompt: Input,
    options: &GenerateOptions,
    next: Next,
    hooks: &mut dyn Hooks<E>,
) -> Result<Generation, Error> {
    let mut run = Run::prepare(engine, model, cache, prompt, options, next, hooks)?;
    while run.step()? {}
    Ok(run.finish())
}

/// A generation under way.
struct Run<'a, 'n, E: Engine> {
    engine: &'a mut E,
    model: &'a Model<E::Weight>,
    cache: &'a mut KvCache<E>,
    options: &'a GenerateOptions,
    hooks: &'a mut dyn Hooks<E>,
    spec: ModelSpec,
    /// The ids at which a text may stop.
    ends: Vec<u32>,
    texts: Vec<Text>,
    next: Next<'n>,
    /// The input of the next pass, without the tokens' ids.
    input: Input<'a>,
    /// The ids of the next pass, text by text; known to the client alone.
    ids: Option<Vec<u32>>,
    /// The number of guesses, which are the last tokens of the next pass.
    drafted: usize,
    /// The number of tokens of the next pass that go through the model together.
    chunk: usize,
    /// The numbers of tokens that the passes of a steady draft keep.
    steady: Option<Passes>,
    surprisal: Surprisal,
    out: Generation,
}

/// What the client knows of a text. Empty on the server.
#[derive(Default)]
struct Text {
    /// The ids of the prompt without padding, and then all tokens that were picked. The last of these may be tokens
    /// that no pass has kept yet.
    ids: Vec<u32>,
    /// The number of tokens of the prompt without padding.
    words: usize,
    /// The tokens of the text's answer so far.
    tokens: Vec<u32>,
    /// The noise on the logits of coming tokens, one vector for each token whose noise has been drawn.
    noise: VecDeque<Vec<f32>>,
    /// Whether the text has ended. It goes on all the same, so that nobody sees it end.
    over: bool,
    logits: Vec<Array2<f32>>,
}

/// The results of a pass, for the party that learns them.
struct Revealed {
    /// The tokens that the pass gives for each text: the guesses that were right, and the token that comes after
    /// them.
    picked: Option<Vec<Vec<u32>>>,
    /// The logits of all rows of the pass, text by text.
    logits: Option<Array2<f32>>,
}

impl<'a, 'n, E: Engine> Run<'a, 'n, E> {
    /// Checks the request, and tells the cache what text will come.
    fn prepare(
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
        check_next(&spec, options.reveal, &next)?;
        if cache.tokens() == 0 {
            cache.expect(Expected {
                prompt: Some(prompt.count),
                text: Some(Lengths { prompt: prompt.count, tokens: options.tokens }.positions()),
                rolls_back: options.draft.is_some(),
                padding: options.padding.clone(),
            });
        }
        check_draft(options.draft, &options.policy, cache.can_roll_back())?;
        if let (Next::Each(all), Some(_)) = (&next, prompt.ids)
            && all.len() != prompt.texts
        {
            return Err(Error::Sources { expected: prompt.texts, got: all.len() });
        }
        model.check_scores(cache)?;
        // The text of an encoder is not read again.
        let padding = options.padding.as_ref().and_then(|padding| padding.tokens.as_ref());
        let padding = padding.filter(|_| !spec.is_encoder());
        let text = |text: usize| {
            let own = text * prompt.count + padding.map_or(0, |tokens| tokens[text])..(text + 1) * prompt.count;
            let ids: Vec<u32> = prompt.ids.map(|ids| ids[own].to_vec()).unwrap_or_default();
            Text { words: ids.len(), ids, ..Text::default() }
        };
        Ok(Run {
            chunk: chunk_size(&spec, prompt.texts, cache.position() + prompt.count, options.prefill_chunk),
            texts: (0..prompt.texts).map(text).collect(),
            next,
            input: Input { ids: None, ..prompt },
            ids: prompt.ids.map(<[u32]>::to_vec),
            drafted: 0,
            ends: if options.stop_at_eos { spec.eos() } else { Vec::new() },
            steady: options.draft.and_then(Drafts::schedule),
            surprisal: Surprisal::default(),
            out: Generation::default(),
            engine,
            model,
            cache,
            options,
            hooks,
            spec,
        })
    }

    /// Runs one pass and takes its tokens. Returns whether another pass follows.
    fn step(&mut self) -> Result<bool, Error> {
        let (index, drafted) = (self.out.count, self.drafted);
        let step = if index == 0 { Step::Prefill } else { Step::Decode { index, drafted } };
        self.hooks.go_on()?;
        self.hooks.begin(self.engine, step)?;
        let hidden = self.read()?;
        // The row of the last known token among the rows of a text. Guesses come after it.
        let rows = hidden.shape()[0] / self.texts.len();
        let first = rows - 1 - drafted;
        let Revealed { picked, logits } = self.reveal(&hidden, rows, first)?;
        // Only a single text has guesses.
        let right = picked.as_ref().and_then(|picked| picked.first()).map(Vec::len);
        let kept = self.agree_to_keep(right)?;
        self.cache.roll_back(1 + drafted - kept);
        if index > 0 {
            self.out.passes.push(kept);
        }
        self.out.count += kept;
        let start = if self.options.all_positions { 0 } else { first };
        for (at, text) in self.texts.iter_mut().enumerate().filter(|(_, text)| !text.over) {
            let own = at * rows + start..at * rows + first + kept;
            text.logits.extend(logits.as_ref().map(|logits| logits.slice_axis(Axis(0), own.into()).to_owned()));
        }
        let several = self.texts.len() > 1;
        for (at, text) in self.texts.iter_mut().enumerate() {
            for i in 0..kept {
                let token = picked.as_ref().and_then(|picked| picked[at].get(i)).copied().filter(|_| !text.over);
                text.tokens.extend(token);
                self.hooks.token(self.engine, step, token);
            }
            text.noise.drain(..kept.min(text.noise.len()));
            let ended = text.tokens.last().is_some_and(|token| self.ends.contains(token));
            text.over |= (self.options.pad_answer || several) && ended;
        }
        let left = self.options.tokens - self.out.count;
        if left == 0 || self.agree_to_stop(picked.is_some())? {
            return Ok(false);
        }
        self.feed_after(left)?;
        Ok(true)
    }

    /// The finished generation, after the last step.
    fn finish(mut self) -> Generation {
        if let ([text], true) = (&self.texts[..], self.options.pad_answer) {
            let unseen = self.out.count - text.tokens.len();
            self.cache.hide_last(self.ids.as_ref().map(|_| unseen));
        }
        let views: Vec<_> = self.texts.iter().flat_map(|text| &text.logits).map(|rows| rows.view()).collect();
        if !views.is_empty() {
            self.out.logits =
                Some(ndarray::concatenate(Axis(0), &views).expect("all rows have the vocabulary's length"));
        }
        self.out.cached = self.cache.words();
        self.out.lengths = self.texts.iter().map(|text| text.tokens.len()).collect();
        self.out.tokens = self.texts.into_iter().flat_map(|text| text.tokens).collect();
        self.out
    }

    /// Runs the pass and returns the last hidden states of the rows that are needed.
    fn read(&mut self) -> Result<E::Tensor, Error> {
        let asked = self.options.all_positions || self.cache.wants_scores() == Some(ScoreSource::Surprisal);
        let wanted = if asked || self.drafted > 0 { Rows::All } else { Rows::Last };
        let input = Input { ids: self.ids.as_deref(), ..self.input };
        let progress = &mut |done, all| self.hooks.layer(done, all);
        let hidden = read(self.engine, self.model, input, self.cache, wanted, self.chunk, progress)?;
        hidden.ok_or(Error::Nothing)
    }

    /// Opens to the client the logits or the tokens that it learns from `hidden`, which has `rows` rows for each
    /// text. Picks each text's tokens from the row `first` on.
    fn reveal(&mut self, hidden: &E::Tensor, rows: usize, first: usize) -> Result<Revealed, Error> {
        let wanted = rows - first;
        let noise = match self.options.reveal {
            Reveal::Logits => None,
            Reveal::Token => self.noise(wanted),
        };
        let Run { engine, model, cache, options, ends, texts, next, ids, drafted, surprisal, out, .. } = self;
        let ends = |token: u32| ends.contains(&token);
        let (index, ids) = (out.count, ids.as_deref());
        let guesses = ids.map_or(&[][..], |ids| &ids[ids.len() - *drafted..]);
        let mut picked = |pick: &dyn Fn(&mut Sampler, usize, usize) -> u32| -> Vec<Vec<u32>> {
            let each = texts.iter_mut().enumerate();
            each.map(|(at, text)| {
                let next = next.of(at);
                accepted(guesses, ends, |i| text.pick(next, index + i, &|sampler| pick(sampler, at, i)))
            })
            .collect()
        };
        match options.reveal {
            Reveal::Logits => {
                let logits = model.reveal_logits(*engine, hidden, options.logit_bits)?;
                let logits = logits
                    .map(|logits| logits.into_dimensionality::<Ix2>().expect("logits are (positions, vocabulary)"));
                surprisal.tell(*engine, cache, ids, logits.as_ref())?;
                let picked = logits
                    .as_ref()
                    .map(|logits| picked(&|sampler, text, i| sampler.pick(logits.row(text * rows + first + i))));
                Ok(Revealed { picked, logits })
            }
            Reveal::Token => {
                surprisal.tell(*engine, cache, ids, None)?;
                let logits = model.logits(*engine, hidden)?;
                let (all, width) = (logits.shape()[0], logits.shape()[1]);
                let logits = logits.reshape(&[all / rows, rows, width]).slice(1, first..rows);
                let shape = [all / rows * wanted, width];
                let logits = logits.reshape(&shape);
                let best = engine.scope("argmax", |e| match &noise {
                    // The client adds its noise to its own share.
                    Some(noise) => {
                        let noise = ArrayView2::from_shape(shape, noise).expect("a number for each logit");
                        let noise = e.input(&shape, Some(noise.into_dyn()))?;
                        let noisy = e.add(&logits, &noise)?;
                        e.argmax(&noisy)
                    }
                    None => e.argmax(&logits),
                })?;
                let picked = best.map(|best| picked(&|_, text, i| best[text * wanted + i] as u32));
                Ok(Revealed { picked, logits: None })
            }
        }
    }

    /// The noise on the logits of the next `wanted` tokens of each text; `None` if this party samples no text. The
    /// noise of a token stays the same whatever guesses stand before it, so that a draft does not change the text.
    fn noise(&mut self, wanted: usize) -> Option<Vec<f32>> {
        let width = self.spec.style().outputs();
        let Run { texts, next, .. } = self;
        let mut all = vec![0.0; texts.len() * wanted * width];
        let (mut rows, mut sampled) = (all.chunks_mut(width), false);
        for (at, text) in texts.iter_mut().enumerate() {
            for (i, row) in rows.by_ref().take(wanted).enumerate() {
                if text.noise.len() == i {
                    text.noise.extend(next.of(at).sampler().and_then(|sampler| sampler.noise(row.len())));
                }
                if let Some(noise) = text.noise.get(i) {
                    row.copy_from_slice(noise);
                    sampled = true;
                }
            }
        }
        sampled.then_some(all)
    }

    /// The number of tokens of the pass that are kept. `right` is the number of tokens that the pass gives, if this
    /// party knows it.
    fn agree_to_keep(&mut self, right: Option<usize>) -> Result<usize, Error> {
        if self.drafted == 0 {
            return Ok(1);
        }
        let all = 1 + self.drafted;
        let most = self.steady.as_mut().map_or(all, |steady| steady.next(all));
        let steady = self.steady.is_some();
        let right = right.map(|right| match right {
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

    /// Whether all texts stop here, if stopping was asked for. Only the client knows whether they have ended, and it
    /// tells the server. `knows` is true for the party that picks the tokens.
    fn agree_to_stop(&mut self, knows: bool) -> Result<bool, Error> {
        let &GenerateOptions { stop_at_eos, pad_answer, .. } = self.options;
        let asked = stop_at_eos && (!pad_answer || bucket(self.out.count) == self.out.count);
        if !asked {
            return Ok(false);
        }
        let last = |text: &Text| text.tokens.last().is_some_and(|token| self.ends.contains(token));
        let ended = knows.then(|| self.texts.iter().all(|text| text.over || last(text)));
        Ok(self.hooks.agree_to_stop(self.engine, ended)?)
    }

    /// Makes the input of the next pass: the last known token and guesses after it. `left` is the number of tokens
    /// that are still to come. No position is read beyond the one that gives the last of these.
    fn feed_after(&mut self, left: usize) -> Result<(), Error> {
        let drafted = self.options.draft.map_or(0, Drafts::tokens).min(left - 1);
        let count = 1 + drafted;
        self.chunk = count;
        let ids = match self.ids {
            None => None,
            Some(_) => {
                let mut all = Vec::with_capacity(self.texts.len() * count);
                for (at, text) in self.texts.iter().enumerate() {
                    let known = text.words + self.out.count;
                    let missing = drafted.saturating_sub(text.ids.len() - known);
                    let guesses = self.next.of(at).guess(&text.ids, missing)?;
                    self.spec.check_ids(&guesses)?;
                    all.extend(text.ids[known - 1..].iter().copied().chain(guesses).take(count));
                }
                Some(all)
            }
        };
        (self.ids, self.input.count, self.drafted) = (ids, count, drafted);
        Ok(())
    }
}

impl Text {
    /// Token `index` of the answer. A token that was picked in an earlier pass does not change.
    fn pick(&mut self, next: &mut Next, index: usize, pick: &dyn Fn(&mut Sampler) -> u32) -> u32 {
        let at = self.words + index;
        if at == self.ids.len() {
            self.ids.push(next.choose(index, pick));
        }
        self.ids[at]
    }
}
