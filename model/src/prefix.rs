//! Public tokens before a text, which the server reads in the clear.

use ndarray::{Array2, ArrayD, Ix2};
use waggle_engine::{Select, Tensor};
use waggle_mpcache::{Expected, Held, PolicySpec, PrefixRows};

use crate::chunks::{chunk_size, read};
use crate::{Error, Input, Lengths, Model, Rows, check_lengths};

impl<W> Model<W> {
    /// Reads the public tokens of `input`, and returns what each layer holds of them under `policy`, for
    /// [`Prefix::load`](waggle_mpcache::Prefix::load). An engine that does not see its values returns shapes alone.
    /// With the text after them the tokens take up to `positions` positions, on which rotary embeddings may depend.
    ///
    /// # Errors
    /// [`Error::Encoder`] for a model whose tokens look at what comes after them; [`Error::TooLong`] for a prefix that
    /// leaves no position to a text; [`Error::PrefixPolicy`] for a policy whose heads hold different tokens.
    pub fn read_prefix<E: Select<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        positions: usize,
        policy: &PolicySpec,
    ) -> Result<Vec<PrefixRows>, Error> {
        let spec = self.spec();
        if spec.is_encoder() {
            return Err(Error::Encoder { what: "public tokens before a text" });
        }
        // One position at least is left for a token after the prefix.
        check_lengths(Lengths { prompt: input.count, tokens: 2 }, spec.max_positions())?;
        spec.check_ids(input.ids.unwrap_or_default())?;
        spec.check_policy(policy)?;
        let mut cache = self.cache::<E>(policy);
        self.check_scores(&cache)?;
        cache.expect(Expected { prompt: Some(input.count), text: Some(positions), ..Expected::default() });
        let size = chunk_size(&spec, 1, input.count, None);
        read(engine, self, input, &mut cache, Rows::None, size, &mut |_, _| ())?;
        let Some(held) = cache.rows() else { return Err(Error::PrefixPolicy(policy.to_string())) };
        let mut layers = Vec::new();
        for Held { heads, keys, values } in held {
            let [keys_known, values_known] = [&keys, &values].map(|x| engine.reveal(x));
            let matrix =
                |x: ArrayD<f32>| -> Array2<f32> { x.into_dimensionality::<Ix2>().expect("rows of keys and values") };
            let rows = keys_known?.map(matrix).zip(values_known?.map(matrix)).map(|(keys, values)| [keys, values]);
            layers.push(PrefixRows { heads, held: keys.shape()[0], rows });
        }
        Ok(layers)
    }
}
