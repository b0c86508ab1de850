//! A prompt is read in chunks of tokens, so that memory does not grow with the square of its length.
//!
//! A policy may evict tokens after every [`KvCache::prefill_chunk`] tokens of the prompt. The size of those chunks
//! changes the generated text. The size of the chunks chosen here, which may be smaller, does not.

use std::num::NonZeroUsize;
use std::ops::Range;

use waggle_engine::{Engine, Tensor};
use waggle_mpcache::KvCache;

use crate::decoder::{Input, Model, Rows};
use crate::spec::ModelSpec;

/// The number of scores of a layer that are computed together, unless the caller states a chunk size. It bounds
/// memory: a score takes about 100 bytes in softmax.
const SCORES: usize = 1 << 22;

/// The smallest chunk that is chosen to save memory, in tokens. The round trips of smaller ones would cost more than
/// the saved memory is worth.
const MIN_CHUNK: usize = 16;

/// The number of tokens in a chunk, for `texts` texts side by side with prompts of `prompt` tokens each: `asked`, or
/// if that is `None`, a number that bounds the memory of a layer. An encoder reads all tokens in one chunk. Public.
pub fn chunk_size(spec: &ModelSpec, texts: usize, prompt: usize, asked: Option<NonZeroUsize>) -> usize {
    if spec.is_encoder() {
        return prompt.max(1);
    }
    if let Some(asked) = asked {
        return asked.get();
    }
    let row = spec.heads()[0].heads.saturating_mul(texts).saturating_mul(prompt).max(1);
    let most = (SCORES / row).max(MIN_CHUNK);
    if most >= prompt {
        return prompt.max(1);
    }
    // A power of two fills the tiles of products.
    1 << most.ilog2()
}

/// Divides a prompt of `count` tokens into chunks of `size` tokens. A chunk is shorter where the prompt ends, or
/// where a multiple of `evict` would lie within it.
fn chunks(count: usize, size: usize, evict: Option<usize>) -> impl Iterator<Item = Range<usize>> {
    let (size, evict) = (size.max(1), evict.unwrap_or(count).max(1));
    (0..count).step_by(evict).flat_map(move |start| {
        let all = (start + evict).min(count);
        (start..all).step_by(size).map(move |start| start..(start + size).min(all))
    })
}

/// The number of passes that a prompt of `count` tokens takes in chunks of `size` under a policy that evicts after
/// every `evict` tokens.
pub fn passes(count: usize, size: usize, evict: Option<usize>) -> usize {
    let (size, evict) = (size.max(1), evict.unwrap_or(count).max(1));
    count / evict * evict.div_ceil(size) + (count % evict).div_ceil(size)
}

/// Puts the tokens `input`, which follow those in `cache`, through the model in chunks of at most `size` tokens.
/// Returns the last hidden states that `rows` asks for, as [`Model::forward`] would return them for all tokens at
/// once. `progress` is called with the number of passes through a layer that are done, and the number of all such
/// passes.
pub(crate) fn read<E: Engine>(
    engine: &mut E,
    model: &Model<E::Weight>,
    input: Input,
    cache: &mut KvCache<E>,
    rows: Rows,
    size: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<E::Tensor>, waggle_engine::Error> {
    let layers = model.spec().layers();
    let evict = cache.prefill_chunk();
    let all = layers * passes(input.count, size, evict);
    let mut parts = Vec::new();
    for (index, chunk) in chunks(input.count, size, evict).enumerate() {
        let wanted = if rows == Rows::Last && chunk.end < input.count { Rows::None } else { rows };
        let of_text = |ids: &[u32], text: usize| ids[text * input.count..][chunk.clone()].to_vec();
        let ids = input.ids.map(|ids| (0..input.texts).flat_map(|text| of_text(ids, text)).collect::<Vec<u32>>());
        let part = Input { ids: ids.as_deref(), count: chunk.len(), ..input };
        let done = &mut |done| progress(index * layers + done, all);
        parts.extend(model.forward(engine, part, cache, wanted, done)?);
    }
    Ok(match &parts[..] {
        [] => None,
        [_] => parts.pop(),
        several => {
            // The rows of one text stand together in the result.
            let width = several[0].shape()[1];
            let by_text = |part: &E::Tensor| part.reshape(&[input.texts, part.shape()[0] / input.texts, width]);
            let by_text: Vec<E::Tensor> = several.iter().map(by_text).collect();
            let all = E::Tensor::concat(1, &by_text.iter().collect::<Vec<_>>());
            let rows = all.shape()[1] * input.texts;
            Some(all.reshape(&[rows, width]))
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tiny model of `layers` layers.
    pub(crate) fn llama(layers: usize) -> ModelSpec {
        let config = format!(
            r#"{{"model_type": "llama", "num_hidden_layers": {layers}, "hidden_size": 8, "intermediate_size": 8,
                 "num_attention_heads": 2, "vocab_size": 11}}"#
        );
        ModelSpec::from_config_json(config.as_bytes()).unwrap()
    }

    #[test]
    fn chunks_are_chosen_by_memory_unless_asked_for() {
        let spec = llama(1);
        let heads = spec.heads()[0].heads;
        let of = |prompt| chunk_size(&spec, 1, prompt, None);
        assert_eq!([1, 7, 1024].map(of), [1, 7, 1024]);
        for prompt in [1500, 2048, 10_000, 131_072] {
            let chunk = of(prompt);
            assert!(
                chunk.is_power_of_two() && heads * chunk * prompt <= SCORES && chunk >= MIN_CHUNK,
                "{prompt}: {chunk}"
            );
        }
        assert_eq!(of(1 << 20), MIN_CHUNK);
        assert_eq!(chunk_size(&spec, 1, 100, NonZeroUsize::new(3)), 3);
        assert_eq!(chunk_size(&spec, 64, 1024, None) * 64, of(1024 * 64) * 64, "rows of all texts count");
        assert_eq!(chunks(7, 3, None).collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        assert_eq!(chunks(6, 9, None).map(|chunk| chunk.len()).collect::<Vec<_>>(), [6]);
        assert_eq!(chunks(11, 3, Some(5)).collect::<Vec<_>>(), [0..3, 3..5, 5..8, 8..10, 10..11]);
        for (count, size, evict) in
            [(11, 3, Some(5)), (11, 99, Some(5)), (10, 5, Some(5)), (11, 3, None), (0, 3, None)]
        {
            assert_eq!(
                passes(count, size, evict),
                chunks(count, size, evict).count(),
                "{count} by {size}, {evict:?}"
            );
        }
    }
}
