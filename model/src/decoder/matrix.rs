//! A matrix of a layer, and what is added to it.

use ndarray::{Array1, Array2, Axis, concatenate, s};
use waggle_engine::{Engine, WeightData};

use crate::style::{LayerMatrix, Role, Style};
use crate::weights::{Builder, Published};
use crate::{Checkpoint, CheckpointError, Error};

/// W, or W + A B for two thin matrices: a layer's weight.
pub(super) struct Matrix<W> {
    base: W,
    /// A and B.
    thin: Option<[W; 2]>,
}

/// Published matrices whose outputs stand side by side in a weight, after one norm.
pub(super) struct Group<'a> {
    pub(super) roles: &'a [Role],
    /// The whole name of the norm whose gain and shift are folded into them.
    pub(super) norm: Option<String>,
}

/// A weight of a layer that is made of published matrices.
pub(super) struct Wanted<'a> {
    pub(super) layer: usize,
    pub(super) name: String,
    /// Inputs and outputs.
    pub(super) shape: (usize, usize),
    pub(super) groups: &'a [Group<'a>],
    /// The first outputs, and what they are multiplied by.
    pub(super) scaled: (usize, f32),
    /// Its outputs are added to the residual stream.
    pub(super) residual: bool,
}

impl<W> Matrix<W> {
    /// Builds the weight that `read` finds, and what is added to it.
    pub(super) fn load(
        style: &Style,
        b: &mut Builder<W>,
        wanted: &Wanted,
        read: impl FnOnce(&Checkpoint) -> Result<Published, CheckpointError>,
    ) -> Result<Self, Error> {
        let base = b.weight(&wanted.name, wanted.shape, read)?;
        let matrices = style.layer_matrices(wanted.layer);
        let ranks = &b.disclosed.ranks;
        let added: Vec<(&Group, &LayerMatrix, usize)> = wanted
            .groups
            .iter()
            .flat_map(|group| group.roles.iter().map(move |role| (group, *role)))
            .filter_map(|(group, role)| Some((group, matrices.iter().find(|matrix| matrix.role == role)?)))
            .map(|(group, matrix)| (group, matrix, ranks.get(matrix.name).copied().unwrap_or_default()))
            .collect();
        let rank = added.iter().map(|(_, _, rank)| rank).sum();
        if rank == 0 {
            return Ok(Matrix { base, thin: None });
        }
        let factors = b.checkpoint.filter(|_| !b.public_alone).map(|c| thin(style, c, wanted, &added, rank));
        let [first, second] = factors.transpose()?.map_or([None, None], |factors| factors.map(Some));
        let (inputs, outputs) = wanted.shape;
        let name = wanted.name.trim_end_matches(".weight");
        let first = b.factor(&format!("{name}.lora_A.weight"), (inputs, rank), first)?;
        let second = b.factor(&format!("{name}.lora_B.weight"), (rank, outputs), second)?;
        Ok(Matrix { base, thin: Some([first, second]) })
    }

    /// Its weights, in the order in which they were prepared.
    pub(super) fn weights(&self) -> impl Iterator<Item = &W> {
        [&self.base].into_iter().chain(self.thin.iter().flatten())
    }

    /// The matrix alone.
    pub(super) fn base(&self) -> &W {
        &self.base
    }

    /// x (W + A B) and its bias.
    pub(super) fn times<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let Some([first, second]) = &self.thin else { return engine.linear(x, &self.base) };
        let z = engine.scope("low rank", |e| e.linear(x, first))?;
        engine.linear_sum(&[(x, &self.base), (&z, second)])
    }
}

/// A and B of all `added` matrices, with ranks of `rank` together: inputs x (all of A side by side), and B below B,
/// each in the outputs of its matrix. What is folded into W is folded into them: for x' = g x + beta it is
/// x' A = x diag(g) A + beta A.
fn thin(
    style: &Style,
    c: &Checkpoint,
    wanted: &Wanted,
    added: &[(&Group, &LayerMatrix, usize)],
    rank: usize,
) -> Result<[WeightData; 2], CheckpointError> {
    let (inputs, outputs) = wanted.shape;
    let (mut first, mut second) = (Array2::zeros((inputs, rank)), Array2::zeros((rank, outputs)));
    let (mut bias, mut column, mut output) = (Array1::zeros(rank), 0, 0);
    for &(group, matrix, own) in added {
        let columns = column..column + own;
        if let Some(adapter) = c.adapter.as_ref().filter(|_| own > 0) {
            let [mut a, mut b] = adapter.factors(wanted.layer, matrix, own)?;
            if let Some(norm) = &group.norm {
                if let Some(shift) = style.shift(c, norm)? {
                    bias.slice_mut(s![columns.clone()]).assign(&shift.dot(&a));
                }
                a *= &style.gain(c, norm)?.insert_axis(Axis(1));
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
    let (scaled, factor) = wanted.scaled;
    second.slice_mut(s![.., ..scaled]).mapv_inplace(|w| w * factor);
    if wanted.residual && style.centres() {
        for mut row in second.rows_mut() {
            let mean = row.mean().unwrap_or_default();
            row -= mean;
        }
    }
    let bias = bias.iter().any(|b| *b != 0.0).then_some(bias);
    Ok([WeightData::new(first, bias), WeightData::new(second, None)])
}
