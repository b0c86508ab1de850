//! Rows of tables, by the client's hidden ids and by public indices.

use ndarray::ArrayD;
use waggle_net::Role;

use crate::abb::Abb;
use crate::ops::Embed;
use crate::weight::FixedWeight;
use crate::{Error, FRAC, Tensor};

/// The rows of `table` at `ids`, which the client alone knows: (count, outputs) modulo
/// 2^[`EMBED_WIDTH`](crate::EMBED_WIDTH), with [`EMBED_FRAC`](crate::EMBED_FRAC) fractional bits. Error: a few units
/// in the last place.
pub fn embed<B: Abb>(b: &mut B, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<B::Words, Error> {
    let mut rows = b.constant(&[0, table.spec.outputs], 0);
    for part in (Embed { table, ids, count }).parts()? {
        rows.append(&b.apply(part, ())?);
    }
    Ok(rows)
}

/// Rows `ids` of a `table` that both parties have: (count, outputs), words modulo 2^64 with [`FRAC`] fractional bits.
/// Free: the client reads the rows and has them as its share. Exact, as a table has fewer fractional bits.
///
/// The client reads where its ids say, so within its own process the addresses that it reads depend on the ids.
pub fn own_rows<B: Abb>(
    b: &mut B,
    table: &FixedWeight,
    ids: Option<&[u32]>,
    count: usize,
) -> Result<B::Words, Error> {
    let shape = [count, table.spec.outputs];
    let embed = Embed { table, ids, count };
    let words = match ids {
        None => None,
        Some(_) => {
            let (ids, matrix) = (embed.known_ids()?, &table.known()?.matrix);
            Some(ArrayD::from_shape_fn(shape.to_vec(), |at| units(table, matrix.entry(ids[at[0]] as usize, at[1]))))
        }
    };
    b.input(Role::Client, &shape, words.as_ref())
}

/// An entry of `table` as a word with [`FRAC`] fractional bits.
fn units(table: &FixedWeight, entry: i32) -> u64 {
    (i64::from(entry) << (FRAC - table.frac)) as u64
}

/// Rows `start..start + count` of `table` as words modulo 2^64 with [`FRAC`] fractional bits. Free.
pub fn rows<B: Abb>(b: &mut B, table: &FixedWeight, start: usize, count: usize) -> Result<B::Words, Error> {
    let outputs = table.spec.outputs;
    let matrix = if B::CLEAR { Some(table.known()?) } else { table.values.as_ref() };
    let words = matrix.map(|values| {
        ArrayD::from_shape_fn(vec![count, outputs], |at| units(table, values.matrix.entry(start + at[0], at[1])))
    });
    b.input(Role::Server, &[count, outputs], words.as_ref())
}
