//! Rows of the server's tables, by the client's hidden ids and by public indices.

use ndarray::ArrayD;
use net::Role;

use crate::abb::Abb;
use crate::ops::Embed;
use crate::weight::FixedWeight;
use crate::{Error, FRAC, Tensor};

/// Rows `ids` (known to the client) of `table`: (count, outputs) modulo 2^[`EMBED_WIDTH`](crate::EMBED_WIDTH), with
/// [`EMBED_FRAC`](crate::EMBED_FRAC) fractional bits. Error: a few units in the last place.
pub fn embed<B: Abb>(b: &mut B, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<B::Words, Error> {
    let mut rows = b.constant(&[0, table.spec.outputs], 0);
    for part in (Embed { table, ids, count }).parts()? {
        rows.append(&b.apply(part, ())?);
    }
    Ok(rows)
}

/// Rows `start..start + count` of `table` as words modulo 2^64 with [`FRAC`] fractional bits. Free.
pub fn rows<B: Abb>(b: &mut B, table: &FixedWeight, start: usize, count: usize) -> Result<B::Words, Error> {
    let outputs = table.spec.outputs;
    let matrix = if B::CLEAR { Some(table.known()?) } else { table.values.as_ref() };
    let words = matrix.map(|values| {
        ArrayD::from_shape_fn(vec![count, outputs], |at| {
            (i64::from(values.matrix.entry(start + at[0], at[1])) << (FRAC - table.frac)) as u64
        })
    });
    b.input(Role::Server, &[count, outputs], words.as_ref())
}
