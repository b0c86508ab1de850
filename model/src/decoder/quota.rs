//! How many positions that go through a model give its secret weights away.

use waggle_mpcache::PolicySpec;

use super::load::Lister;
use super::{Loaded, Model};
use crate::public::Disclosed;
use crate::weights::Known;
use crate::{Error, ModelSpec};

/// By default, the number of positions that a server grants a client is [`ModelSpec::telling_positions`] divided by
/// this number, which is 5 % of them.
pub const QUOTA_SHARE: u64 = 20;

impl ModelSpec {
    /// The number of positions that give the secret weights away, if the client learns the logits of each. `None` if
    /// nothing is secret except tables. It is the smaller of two counts, where d = [`ModelSpec::hidden`]:
    ///
    /// - *A client that deviates* adds a vector of its choice to its share of the input of a matrix. The vector is so
    ///   large that the residual stream behind the matrix is a row of the matrix. Once the head is known, the logits
    ///   of a position show d numbers of this row. Of the head, the logits of a position show a whole row. To learn a
    ///   matrix takes inputs * ceil(outputs / d) positions, and to learn the head takes one for each of its inputs.
    ///   Tables are not counted, because no other weight depends on knowing them.
    /// - *A client that has the public parts* need not deviate. The logits of a position tell the last hidden state,
    ///   which gives d equations in the weights that the client does not have. The number of positions is the number
    ///   of these weights divided by d. The weights of an adapter are the entries of A and B.
    ///
    /// # Errors
    /// [`PartsError`](crate::PartsError) for parts that the model does not have.
    pub fn telling_positions(&self, disclosed: &Disclosed) -> Result<Option<u64>, Error> {
        let d = self.hidden();
        let matrices = Disclosed { parts: disclosed.parts.clone(), ..Disclosed::default() };
        let model = Model::load_disclosed(&matrices, &PolicySpec::default(), &mut Lister, self, Known::Nothing)?;
        let Loaded { embedding, first, positions, segments, head, .. } = &*model.loaded;
        let tables = [Some(embedding), first.as_ref(), positions.as_ref(), segments.as_ref()];
        let tables = tables.into_iter().flatten().count();
        let (mut rows, mut unknown) = (0, 0);
        for (at, spec) in model.weights().into_iter().enumerate().filter(|(_, spec)| !spec.public) {
            let times = if std::ptr::eq(spec, head) { 1 } else { spec.outputs.div_ceil(d) };
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
            // 40 million entries, and a position tells 4096 of them.
            ("llama-2-7b", adapter, Some(9_760)),
            // A layer and the head have 9216 + 768 rows. By the second count, their weights would take 50 000
            // positions.
            ("gpt2", public("layers=0-10"), Some(9_984)),
            ("gpt2", public("all"), None),
        ] {
            assert_eq!(spec(name).telling_positions(&disclosed).unwrap(), positions, "{name}");
        }
    }
}
