//! The weights of a layer, and the thin matrices that are added to them.

use ndarray::{Array1, Array2, Axis, concatenate, s};
use waggle_engine::{Engine, WeightData};

use super::recipe::{Made, Product, Recipe};
use crate::style::{LayerMatrix, Role, Style};
use crate::weights::{Builder, Known, Published};
use crate::{Checkpoint, CheckpointError, Error};

/// The weights of a layer.
pub(super) struct Layer<W> {
    /// The weights by their roles, in the order in which they were prepared.
    weights: Vec<(Role, Weight<W>)>,
    /// Whether the columns of a scoring head stand beside query, key and value.
    pub(super) scores: bool,
}

/// A vector, a matrix W, or a matrix W + A B, where A and B are two thin matrices.
struct Weight<W> {
    base: W,
    /// The thin matrices A and B.
    thin: Option<[W; 2]>,
}

impl<W> Layer<W> {
    /// Builds the weights of layer `i`.
    pub(super) fn load(style: &Style, i: usize, b: &mut Builder<W>) -> Result<Self, Error> {
        let scores = b.columns.count(style.heads[i].kv_heads) > 0;
        let weight = |recipe: &Recipe| Ok((recipe.role, Weight::load(style, i, b, recipe)?));
        let weights = style.recipe(i).iter().map(weight).collect::<Result<_, Error>>()?;
        Ok(Layer { weights, scores })
    }

    /// The prepared weights of the layer, in the order in which they were prepared.
    pub(super) fn weights(&self) -> Vec<&W> {
        self.weights
            .iter()
            .flat_map(|(_, weight)| [&weight.base].into_iter().chain(weight.thin.iter().flatten()))
            .collect()
    }

    fn find(&self, role: Role) -> Option<&Weight<W>> {
        self.weights.iter().find(|(of, _)| *of == role).map(|(_, weight)| weight)
    }

    /// The weight with this [role](Recipe::role), if the layer has one, without the product A B of the thin matrices.
    pub(super) fn base(&self, role: Role) -> Option<&W> {
        self.find(role).map(|weight| &weight.base)
    }

    /// The product x (W + A B), plus the bias, for the matrix W with this role and its thin matrices A and B, if it
    /// has some.
    ///
    /// # Panics
    /// If the layer has no such matrix.
    pub(super) fn times<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        role: Role,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let Weight { base, thin } = self.find(role).expect("the recipe has every matrix that a layer multiplies by");
        let Some([first, second]) = thin else { return engine.linear(x, base) };
        let z = engine.scope("low rank", |e| e.linear(x, first))?;
        engine.linear_sum(&[(x, base), (&z, second)])
    }
}

impl<W> Weight<W> {
    /// Builds the weight of layer `i` that `recipe` describes, and the thin matrices that are added to it.
    fn load(style: &Style, i: usize, b: &mut Builder<W>, recipe: &Recipe) -> Result<Self, Error> {
        let &Recipe { role, ref name, shape: (inputs, mut outputs), ref made } = recipe;
        let product = match made {
            Made::Product(product) => product,
            Made::Gains { norms, sum } => {
                let base = b.gains(name, outputs, |c| read_gains(style, c, norms, sum.as_deref()))?;
                return Ok(Weight { base, thin: None });
            }
            Made::Vector => return Ok(Weight { base: b.gains(name, outputs, |c| c.vector(name))?, thin: None }),
        };
        let mut columns = None;
        if role == Role::Qkv {
            outputs += b.columns.count(style.heads[i].kv_heads);
            columns = b.columns.of(i);
        }
        let base = b.weight(name, (inputs, outputs), |c| Ok(product.read(style, c, i)?.widened(columns)))?;
        let rank = |matrix: &LayerMatrix| b.disclosed.ranks.get(matrix.name).copied().unwrap_or_default();
        let ranks: Vec<usize> = product.matrices.iter().map(|(matrix, _)| rank(matrix)).collect();
        let all = ranks.iter().sum();
        if all == 0 {
            return Ok(Weight { base, thin: None });
        }
        let shapes = [(inputs, all), (all, outputs)];
        let [first, second] = match b.known {
            Known::All(c) => product.thin(style, c, i, &ranks, shapes)?.map(Some),
            Known::Public(_) | Known::Nothing => [None, None],
        };
        let name = name.trim_end_matches(".weight");
        let first = b.factor(&format!("{name}.lora_A.weight"), shapes[0], first)?;
        let second = b.factor(&format!("{name}.lora_B.weight"), shapes[1], second)?;
        Ok(Weight { base, thin: Some([first, second]) })
    }
}

/// The gains of several norms, one after another, combined with the factor `sum` as in [`Made::Gains`].
fn read_gains(
    style: &Style,
    c: &Checkpoint,
    norms: &[(String, usize, f32)],
    sum: Option<&str>,
) -> Result<Array1<f32>, CheckpointError> {
    let mut gains = Vec::new();
    for (norm, times, factor) in norms {
        gains.extend((style.norm.gain(c, norm)? * *factor).to_vec().repeat(*times));
    }
    let Some(sum) = sum else { return Ok(gains.into()) };
    let factor = c.vector(sum)?[0];
    Ok(gains.into_iter().map(|gain| gain * factor).chain(vec![factor; style.hidden]).collect())
}

impl Product {
    /// The published matrices of layer `i` as one weight, with everything that is folded into them.
    fn read(&self, style: &Style, c: &Checkpoint, i: usize) -> Result<Published, CheckpointError> {
        let read = |(matrix, norm): &(LayerMatrix, Option<String>)| {
            let (name, order) = (style.names.in_layer(i, matrix.name), style.names.order);
            let mut weight = Published::linear(c, &name, order, matrix.biased)?;
            if matrix.role == Role::QkvByHead {
                weight = weight.reordered(&style.by_head().collect::<Vec<_>>());
            }
            match norm {
                Some(norm) => weight.after_norm(style.norm, c, norm),
                None => Ok(weight),
            }
        };
        let matrices = self.matrices.iter().map(read).collect::<Result<_, _>>()?;
        let mut weight = Published::side_by_side(matrices).scale_outputs(self.scaled.0, self.scaled.1);
        if let Some(norm) = &self.added {
            weight = weight.adding(style.norm, c, norm)?;
        }
        Ok(if self.residual { weight.residual(style.norm) } else { weight })
    }

    /// The thin matrices A and B of all matrices of the weight. `ranks` holds the ranks of these matrices' adapters.
    /// All A stand side by side. All B stand one below another, each in the columns of its matrix's outputs. What is
    /// folded into the matrix W is folded into A and B as well: for the output x' = g x + beta of a norm,
    /// x' A = x diag(g) A + beta A.
    fn thin(
        &self,
        style: &Style,
        c: &Checkpoint,
        i: usize,
        ranks: &[usize],
        shapes: [(usize, usize); 2],
    ) -> Result<[WeightData; 2], CheckpointError> {
        let [mut first, mut second] = shapes.map(Array2::zeros);
        let (mut bias, mut column, mut output) = (Array1::zeros(shapes[0].1), 0, 0);
        for ((matrix, norm), &own) in self.matrices.iter().zip(ranks) {
            let columns = column..column + own;
            if let Some(adapter) = c.adapter.as_ref().filter(|_| own > 0) {
                let [mut a, mut b] = adapter.factors(i, matrix, own)?;
                if let Some(norm) = norm {
                    if let Some(shift) = style.norm.shift(c, norm)? {
                        bias.slice_mut(s![columns.clone()]).assign(&shift.dot(&a));
                    }
                    a *= &style.norm.gain(c, norm)?.insert_axis(Axis(1));
                }
                if matrix.role == Role::QkvByHead {
                    let parts: Vec<_> = style.by_head().map(|range| b.slice(s![.., range])).collect();
                    b = concatenate(Axis(1), &parts).expect("as many rows");
                }
                first.slice_mut(s![..matrix.inputs, columns.clone()]).assign(&a);
                second.slice_mut(s![columns, output..output + matrix.outputs]).assign(&b);
            }
            (column, output) = (column + own, output + matrix.outputs);
        }
        let (scaled, factor) = self.scaled;
        second.slice_mut(s![.., ..scaled]).mapv_inplace(|w| w * factor);
        if self.residual && style.norm.centres() {
            for mut row in second.rows_mut() {
                let mean = row.mean().unwrap_or_default();
                row -= mean;
            }
        }
        let bias = bias.iter().any(|b| *b != 0.0).then_some(bias);
        Ok([WeightData::new(first, bias), WeightData::new(second, None)])
    }
}
