//! Private look-up of rows of the server's table, as a product with unit vectors.
//!
//! **Functionality.** The client's ids, the server's table W -> shares of the rows `W[id]` modulo 2^[`EMBED_WIDTH`],
//! with [`EMBED_FRAC`] fractional bits. **Source.** [`private`], with one unit vector of the client for each id.
//!
//! **Range.** Entries of W that fit the ring; a table of another scale is refused. **Error.** A few units in the last
//! place. **Revealed.** Nothing: neither party learns the other's ids or rows. The number of ids is public.

use zeroize::Zeroizing;

use crate::operation::prelude::*;
use crate::ops::private::{self, MaskedRow};
use crate::weight::{DEFAULT_WEIGHT_FRAC, FixedWeight};
use crate::words::equal;
use crate::{EMBED_FRAC, EMBED_WIDTH};

/// `count` rows of the table: (count, outputs). Only the client knows which rows.
#[derive(Clone, Copy, Debug)]
pub struct Embed<'t> {
    /// The table.
    pub table: &'t FixedWeight,
    /// The rows' indices, where they are known.
    pub ids: Option<&'t [u32]>,
    /// The number of rows.
    pub count: usize,
}

impl<'t> Embed<'t> {
    /// Refuses a table whose entries may leave the ring of embedded rows. Both parties know this from the table's
    /// scale.
    fn check_table(&self) -> Result<(), Error> {
        // |w| < 2^(bits - frac) must stay below 2^(EMBED_WIDTH - 2 - EMBED_FRAC).
        let low = self.table.bits() - (EMBED_WIDTH - 2 - EMBED_FRAC);
        if self.table.frac < low {
            return Err(Error::Scale { low, high: DEFAULT_WEIGHT_FRAC, got: self.table.frac });
        }
        Ok(())
    }

    /// The ids, if there are `count` and all lie in the table.
    pub(crate) fn known_ids(&self) -> Result<&'t [u32], Error> {
        let ids = self.ids.filter(|ids| ids.len() == self.count).ok_or_else(|| waggle_engine::Error::Shape {
            tensor: format!("token ids for `{}`", self.table.spec.name),
            expected: vec![self.count],
            got: self.ids.map(<[u32]>::len).into_iter().collect(),
        })?;
        match ids.iter().find(|&&id| id as usize >= self.table.spec.inputs) {
            Some(&id) => Err(waggle_engine::Error::Token { id, vocabulary: self.table.spec.inputs }.into()),
            None => Ok(ids),
        }
    }

    /// Splits the operation into parts. This bounds the memory, since every id becomes a row as long as the
    /// vocabulary, a size that the client knows only from the server.
    ///
    /// # Errors
    /// Known ids that do not fit the table, and a table that does not fit the ring, before a word is sent.
    pub(crate) fn parts(self) -> Result<impl Iterator<Item = Embed<'t>>, Error> {
        self.check_table()?;
        if self.ids.is_some() {
            self.known_ids()?;
        }
        let most = ((1 << 21) / self.table.spec.inputs.max(1)).clamp(1, 32);
        Ok((0..self.count).step_by(most).map(move |start| {
            let count = most.min(self.count - start);
            Embed { ids: self.ids.map(|ids| &ids[start..start + count]), count, ..self }
        }))
    }
}

/// One row per id: 2^(EMBED_FRAC - frac) at the id, for a table of `frac` fractional bits, and zeros elsewhere. Every
/// entry is made by comparing its position with the id, so no address depends on the id. The rows are zeroized when
/// dropped.
fn unit_vectors(table: &FixedWeight, ids: &[u32]) -> Zeroizing<Vec<u64>> {
    let one = 1u64 << (EMBED_FRAC - table.frac);
    let rows = table.spec.inputs;
    let mut units = Zeroizing::new(vec![0; ids.len() * rows]);
    for (unit, &id) in units.chunks_exact_mut(rows.max(1)).zip(ids) {
        (0..).zip(unit).for_each(|(place, entry)| *entry = one & equal(place, id.into()).wrapping_neg());
    }
    units
}

impl Operation for Embed<'_> {
    type Input<'a, F: Form> = ();
    type Output<F: Form> = F::Words;
    type Size = ();

    fn size<F: Form>(&self, _: &()) {}

    fn correlations(&self, _: &(), options: &Options) -> Option<Need> {
        options.preprocess.then(|| Need::new(MaskedRow::of(self.table, EMBED_WIDTH), self.count))
    }

    fn matrix(&self) -> Option<&FixedMatrix> {
        self.table.values.as_ref().map(|values| &values.matrix)
    }

    fn cost(&self, _: &(), prepared: bool, plans: &mut Plans) -> Result<Cost, Error> {
        private::cost(plans, self.table, self.count, EMBED_WIDTH, prepared)
    }

    fn run(&self, s: &mut Session, _: (), masks: Option<&[u64]>) -> Result<ArrayD<u64>, Error> {
        let units = if s.is_server() { None } else { Some(unit_vectors(self.table, self.known_ids()?)) };
        let own = units.as_ref().map(|units| &units[..]);
        let share = private::product(s, self.table, self.count, EMBED_WIDTH, own, masks)?;
        Ok(shaped(&[self.count, self.table.spec.outputs], share))
    }

    fn reference(&self, reference: &mut Reference, _: ()) -> Result<ArrayD<u64>, Error> {
        let ids = self.known_ids()?;
        let outputs = self.table.spec.outputs;
        let matrix = &self.table.known()?.matrix;
        let exact = ArrayD::from_shape_fn(vec![self.count, outputs], |at| {
            i128::from(matrix.entry(ids[at[0]] as usize, at[1])) << (EMBED_FRAC - self.table.frac)
        });
        reference.fitted("embed", exact, EMBED_WIDTH)
    }

    fn planned(&self, _: ()) -> Shape {
        Shape(vec![self.count, self.table.spec.outputs])
    }
}
