//! A prompt is read in chunks of tokens, so that memory does not grow with its square.

use std::num::NonZeroUsize;
use std::ops::Range;

use engine::{Engine, Tensor};
use mpcache::KvCache;

use crate::layers::{Input, Rows};
use crate::{Model, ModelSpec};

/// Scores of a layer that are computed together, unless a chunk is asked for: a bound on memory. A score takes about
/// 100 bytes in softmax.
const SCORES: usize = 1 << 22;

/// The smallest chunk that is chosen by memory. Smaller ones would cost more round trips than they save memory.
const MIN_CHUNK: usize = 16;

/// Tokens of a chunk of a prompt of `prompt` tokens: `asked`, or what memory suggests. Public.
pub(crate) fn chunk_size(spec: &ModelSpec, prompt: usize, asked: Option<NonZeroUsize>) -> usize {
    if let Some(asked) = asked {
        return asked.get();
    }
    let row = spec.heads().heads.saturating_mul(prompt).max(1);
    let most = (SCORES / row).max(MIN_CHUNK);
    if most >= prompt {
        return prompt.max(1);
    }
    // A power of two fills the tiles of products.
    1 << most.ilog2()
}

/// Chunks of `size` tokens of a prompt of `count`; the last one may be shorter.
fn chunks(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(size.max(1)).map(move |start| start..(start + size).min(count))
}

/// Puts the tokens `input`, which follow those in `cache`, through the model in chunks of `size`, and returns the
/// last hidden states that `rows` asks for, as [`Model::forward`] would return them for all tokens at once.
/// `progress` is called with the number of passes through a layer done, and of all.
pub(crate) fn read<E: Engine>(
    engine: &mut E,
    model: &Model<E::Weight>,
    input: Input,
    cache: &mut KvCache<E>,
    rows: Rows,
    size: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<E::Tensor>, engine::Error> {
    let layers = model.spec().layers();
    let all = layers * input.count.div_ceil(size.max(1));
    let mut parts = Vec::new();
    for (index, chunk) in chunks(input.count, size).enumerate() {
        let wanted = if rows == Rows::Last && chunk.end < input.count { Rows::None } else { rows };
        let part = Input { ids: input.ids.map(|ids| &ids[chunk.clone()]), count: chunk.len() };
        let done = &mut |done| progress(index * layers + done, all);
        parts.extend(model.forward(engine, part, cache, wanted, done)?);
    }
    Ok(match &parts[..] {
        [] => None,
        [_] => parts.pop(),
        _ => Some(E::Tensor::concat(0, &parts.iter().collect::<Vec<_>>())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::llama;

    #[test]
    fn chunks_are_chosen_by_memory_unless_asked_for() {
        let spec = llama(1);
        let heads = spec.heads().heads;
        let of = |prompt| chunk_size(&spec, prompt, None);
        assert_eq!([1, 7, 1024].map(of), [1, 7, 1024]);
        for prompt in [1500, 2048, 10_000, 131_072] {
            let chunk = of(prompt);
            assert!(
                chunk.is_power_of_two() && heads * chunk * prompt <= SCORES && chunk >= MIN_CHUNK,
                "{prompt}: {chunk}"
            );
        }
        assert_eq!(of(1 << 20), MIN_CHUNK);
        assert_eq!(chunk_size(&spec, 100, NonZeroUsize::new(3)), 3);
        assert_eq!(chunks(7, 3).collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        assert_eq!(chunks(6, 9).map(|chunk| chunk.len()).collect::<Vec<_>>(), [6]);
    }
}
