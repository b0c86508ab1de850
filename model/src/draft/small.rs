//! Guesses by a small public model, which the client runs in the clear.

use ndarray::Ix2;
use waggle_engine::{Float, FloatLoader, FloatWeight};
use waggle_mpcache::{Expected, KvCache, PolicySpec};

use super::Guess;
use crate::chunks::{chunk_size, read};
use crate::sampling::argmax;
use crate::{Error, Input, Model, ModelFiles, ModelSpec, Rows};

/// A model at the client that guesses its most probable tokens. It keeps a cache of its own. Where the text differs
/// from its guesses, tokens are cut from the cache. Beyond the model's last position it guesses nothing.
pub struct SmallModel {
    model: Model<FloatWeight>,
    spec: ModelSpec,
    cache: KvCache<Float>,
    /// The tokens in the cache.
    read: Vec<u32>,
}

impl SmallModel {
    /// The model of `files`, which guesses for a model of the shape `target`.
    ///
    /// # Errors
    /// [`Error::DraftVocabulary`] if the two models have vocabularies of different sizes; the errors of loading a
    /// checkpoint.
    pub fn new(files: &ModelFiles, target: &ModelSpec) -> Result<Self, Error> {
        let spec = files.spec.clone();
        let (got, expected) = (spec.vocabulary(), target.vocabulary());
        if got != expected {
            return Err(Error::DraftVocabulary { got, expected });
        }
        let model = Model::load(&mut FloatLoader, &spec, Some(&files.checkpoint))?;
        let cache = fresh(&model);
        Ok(SmallModel { model, spec, cache, read: Vec::new() })
    }

    /// The most probable token after `tokens`, which follow those in the cache.
    fn next(&mut self, tokens: &[u32]) -> Result<u32, Error> {
        let engine = &mut Float::default();
        let chunk = chunk_size(&self.spec, 1, self.read.len() + tokens.len(), None);
        let input = Input::known(tokens);
        let hidden = read(engine, &self.model, input, &mut self.cache, Rows::Last, chunk, &mut |_, _| ())?;
        self.read.extend_from_slice(tokens);
        let Some(hidden) = hidden else { return Err(Error::Nothing) };
        let logits = self.model.logits(engine, &hidden)?;
        let logits = logits.into_dimensionality::<Ix2>().expect("logits are (positions, vocabulary)");
        Ok(argmax(logits.row(0)) as u32)
    }
}

/// An empty cache from which tokens will be cut.
fn fresh(model: &Model<FloatWeight>) -> KvCache<Float> {
    let mut cache = model.cache(&PolicySpec::default());
    cache.expect(Expected { rolls_back: true, ..Expected::default() });
    cache
}

impl Guess for SmallModel {
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, Error> {
        let count = count.min((self.spec.max_positions() + 1).saturating_sub(text.len()));
        if count == 0 || text.is_empty() {
            return Ok(Vec::new());
        }
        self.spec.check_ids(text)?;
        // The last token is always read again, to predict the token after it.
        let known = self.read.iter().zip(&text[..text.len() - 1]).take_while(|(read, token)| read == token).count();
        if known < self.read.len() {
            // A text that differs in its first words takes a fresh cache, as a prompt cannot be cut.
            match self.cache.can_lose(self.read.len() - known) {
                true => {
                    self.cache.roll_back(self.read.len() - known);
                    self.read.truncate(known);
                }
                false => {
                    self.cache = fresh(&self.model);
                    self.read.clear();
                }
            }
        }
        let mut guesses = Vec::with_capacity(count);
        let mut new = text[self.read.len()..].to_vec();
        while guesses.len() < count {
            let token = self.next(&new)?;
            guesses.push(token);
            new = vec![token];
        }
        Ok(guesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GenerateOptions, Next, NoHooks, Sampler, bundled, generate};

    #[test]
    fn it_guesses_what_it_would_generate_after_any_text() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let mut small = SmallModel::new(&files, &files.spec).unwrap();
        let greedy = |text: &[u32], tokens| {
            let options = GenerateOptions { tokens, ..Default::default() };
            let input = Input::known(text);
            let mut sampler = Sampler::greedy();
            let next = Next::Pick(&mut sampler);
            generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks).unwrap().tokens
        };
        let mut text = vec![3, 1, 4, 1, 5];
        // The model's own words continue the cache, a wrong guess is cut from it, and a shorter text or another one
        // begins again.
        text.extend(small.guess(&text, 4).unwrap());
        assert_eq!(text[5..], greedy(&text[..5], 4));
        for change in 0..4u32 {
            text.truncate(text.len() - change as usize);
            text.push(change);
            assert_eq!(small.guess(&text, 3).unwrap(), greedy(&text, 3), "{change}");
        }
        assert_eq!(small.guess(&[2, 7], 2).unwrap(), greedy(&[2, 7], 2));
        // The model guesses nothing beyond its last position.
        let long = vec![1; files.spec.max_positions()];
        assert_eq!(small.guess(&long, 5).unwrap().len(), 1);
        let longer = vec![1; files.spec.max_positions() + 1];
        assert_eq!(small.guess(&longer, 5).unwrap(), [0u32; 0]);
    }

    #[test]
    fn another_vocabulary_is_refused() {
        let files = bundled("shakespeare-gpt2").unwrap();
        let target = crate::chunks::tests::llama(1);
        let refused = SmallModel::new(&files, &target).map(drop).unwrap_err();
        assert!(matches!(refused, Error::DraftVocabulary { expected: 11, .. }), "{refused}");
    }
}
