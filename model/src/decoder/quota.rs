//! How many positions through a model give its secret weights away.

use waggle_mpcache::PolicySpec;

use super::Model;
use super::load::Lister;
use crate::public::Disclosed;
use crate::weights::Known;
use crate::{Error, ModelSpec};

/// A server lets a client have one in so many of the [`ModelSpec::telling_positions`] unless told otherwise: 5 %.
pub const QUOTA_SHARE: u64 = 20;

impl ModelSpec {
    /// The positions that give the secret weights away, if the logits of each are learned; `None` if there is no
    /// secret beside what is looked up. It is the smaller of two counts, for d = [`ModelSpec::hidden`].
    ///
    /// - *A client that deviates* adds a vector of its choice to its share of the input of a matrix, so large that
    ///   the residual stream behind it is one row of the matrix. Logits of a position show d numbers of a row, once
    ///   the head is known, and all of a row of the head. A matrix takes inputs * ceil(outputs / d) positions, the
    ///   head as many as it has inputs. Tables are not counted: no other weight waits for them.
    /// - *A client that has the public parts* needs not deviate: the logits of a position tell the last hidden state,
    ///   which is d equations of the weights that it does not have. They take weights / d positions. Those of an
    ///   adapter are the entries of A and B.
    ///
    /// # Errors
    /// Parts that the model does not have ([`PartsError`](crate::PartsError)).
    pub fn telling_positions(&self, disclosed: &Disclosed) -> Result<Option<u64>, Error> {
        let d = self.hidden();
        let matrices = Disclosed { parts: disclosed.parts.clone(), ..Disclosed::default() };
        let model = Model::load_disclosed(&matrices, &PolicySpec::default(), &mut Lister, self, Known::Nothing)?;
        let tables =
            [Some(&model.embedding), model.first.as_ref(), model.positions.as_ref(), model.segments.as_ref()];
        let tables = tables.into_iter().flatten().count();
        let (mut rows, mut unknown) = (0, 0);
        for (at, spec) in model.weights().into_iter().enumerate().filter(|(_, spec)| !spec.public) {
            let times = if std::ptr::eq(spec, &model.head) { 1 } else { spec.outputs.div_ceil(d) };
            rows += if at < tables { 0 } else { spec.inputs as u64 * times as u64 };
            unknown += spec.inputs as u64 * spec.outputs as u64;
        }
        let style = self.style();
        for matrix in (0..self.layers()).flat_map(|layer| style.layer_matrices(layer)) {
            let rank = disclosed.ranks.get(matrix.name).copied().unwrap_or_default() as u64;
            let (inputs, outputs) = (matrix.inputs as u64, matrix.outputs as u64);
            rows += if rank > 0 { inputs * rank.div_ceil(d as u64) + rank * outputs.div_ceil(d as u64) } else { 0 };
            unknown += rank * (inputs + outputs);
        }
        let fitted = (!disclosed.parts.is_empty()).then_some(unknown.div_ceil(d as u64));
        Ok([Some(rows), fitted].into_iter().flatten().min().filter(|positions| *positions > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parts, shape};

    #[test]
    fn what_gives_published_shapes_away() {
        let spec = |name| ModelSpec::from_config_json(shape(name).unwrap()).unwrap();
        let adapter = Disclosed::with_rank(Parts::all(), 16, &spec("llama-2-7b"));
        let public = |parts: &str| Disclosed { parts: parts.parse().unwrap(), ..Disclosed::default() };
        for (name, disclosed, positions) in [
            ("gpt2", Disclosed::default(), Some(111_360)),
            ("llama-2-7b", Disclosed::default(), Some(1_667_072)),
            // 40 million entries, of 4096 of which a position tells.
            ("llama-2-7b", adapter, Some(9_760)),
            // A layer and the head: 9216 + 768 rows. Their weights are those of 50 000 positions.
            ("gpt2", public("layers=0-10"), Some(9_984)),
            ("gpt2", public("all"), None),
        ] {
            assert_eq!(spec(name).telling_positions(&disclosed).unwrap(), positions, "{name}");
        }
    }
}
