//! A session's memory of a cached operand: the slots of its tokens, and what was opened of each token.

use waggle_engine::{CachedOperand, OperandId};
use zeroize::Zeroizing;

use super::form::{Event, Events, OperandForm};
use super::masks::{OperandMasks, PreparedMasks};
use crate::Error;

/// A session's memory of a cached operand between its products. If rows change, a new operand of the next generation
/// takes its place.
#[derive(Debug)]
pub struct Operand {
    pub(crate) id: OperandId,
    /// The most tokens that the operand is expected to have, if a number was stated.
    expected: Option<usize>,
    pub(crate) begun: Option<Begun>,
}

/// An operand after its first product.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) masks: OperandMasks,
    /// Number of slots that are taken: the rows opened so far, without forgotten rows.
    pub(crate) slots: usize,
    /// Slots of the tokens that were not cut off, ascending.
    pub(crate) live: Vec<usize>,
    /// Number of rows opened so far, forgotten rows included.
    pub(crate) taken: usize,
    /// Number of new tokens in the current product.
    pub(crate) new: usize,
    /// The row of each slot minus its mask: (slots, batch, d). Empty in a plan.
    pub(crate) opened: Vec<u64>,
}

impl Begun {
    /// Forgets dead slots and their masks. Masks that no row has taken yet stay.
    pub(crate) fn forget(&mut self) {
        let Begun { masks, slots, live, opened, .. } = self;
        if live.len() == *slots {
            return;
        }
        let row = masks.form.row();
        if !masks.a.is_empty() {
            let mut a = Zeroizing::new(Vec::with_capacity(masks.a.len() - (*slots - live.len()) * row));
            live.iter().for_each(|slot| a.extend_from_slice(&masks.a[slot * row..(slot + 1) * row]));
            a.extend_from_slice(&masks.a[*slots * row..]);
            masks.a = a;
        }
        if !opened.is_empty() {
            *opened = live.iter().flat_map(|slot| &opened[slot * row..(slot + 1) * row]).copied().collect();
        }
        *slots = live.len();
        *live = (0..*slots).collect();
    }

    /// Takes the next `new` slots.
    fn take(&mut self, new: usize) {
        self.live.extend(self.slots..self.slots + new);
        self.slots += new;
        self.taken += new;
        self.new = new;
    }

    /// The number of tokens that had products before the current one.
    pub(crate) fn known(&self) -> usize {
        self.live.len() - self.new
    }

    /// The masks of the taken slots from `first` on.
    pub(crate) fn masks_from(&self, first: usize) -> &[u64] {
        let row = self.masks.form.row();
        &self.masks.a[first * row..self.slots * row]
    }

    /// Turns columns ordered by tokens into columns ordered by slots, with zeros at dead slots.
    pub(crate) fn by_slots(&self, x: Vec<u64>) -> Vec<u64> {
        if self.live.len() == self.slots {
            return x;
        }
        let mut out = vec![0; x.len() / self.live.len() * self.slots];
        for (row, x) in out.chunks_exact_mut(self.slots).zip(x.chunks_exact(self.live.len())) {
            self.live.iter().zip(x).for_each(|(slot, x)| row[*slot] = *x);
        }
        out
    }

    /// Turns columns ordered by slots into columns ordered by tokens, without the columns of dead slots.
    pub(crate) fn by_tokens(&self, y: Vec<u64>) -> Vec<u64> {
        if self.live.len() == self.slots {
            return y;
        }
        y.chunks_exact(self.slots).flat_map(|row| self.live.iter().map(|slot| row[*slot])).collect()
    }
}

/// An operand that is ready for a product.
pub struct ReadyOperand<'a> {
    /// The name of the operand.
    pub id: OperandId,
    /// The form of the operand.
    pub form: OperandForm,
    /// The sizes of the product. If its masks were prepared, the number of tokens is a number of slots.
    pub event: Event,
    /// The sizes that a plan lists so that a later run finds the masks of this product prepared. All slots ever taken
    /// count, forgotten ones included.
    pub listed: Event,
    /// Whether the masks of the product are prepared.
    pub ready: bool,
    pub(crate) masks: &'a mut OperandMasks,
}

impl Operand {
    /// An operand without products so far.
    pub fn new(id: OperandId) -> Self {
        Operand { id, expected: None, begun: None }
    }

    /// The name of the operand.
    pub fn id(&self) -> OperandId {
        self.id
    }

    /// The most tokens that the operand is expected to have, if a number was stated.
    pub fn expected(&self) -> Option<usize> {
        self.expected
    }

    /// Bits of the ring of the products with the operand, from the first product on.
    pub(crate) fn ring(&self) -> Option<u32> {
        self.begun.as_ref().map(|begun| begun.masks.form.width)
    }

    /// Gets the operand ready for a product of `form` and of the sizes `wanted`, which count tokens, and gives slots
    /// to new tokens. At the first product, the masks move from `prepared` to the operand. At later products, the
    /// masks that a helper added to `prepared` since then follow. If the next masks are for another product, they and
    /// all masks after them are discarded. Both parties, and a plan, see the same sizes and so decide alike.
    ///
    /// # Errors
    /// Masks of another form, an operand that begins twice, and fewer tokens than before without a cut.
    pub(crate) fn meet(
        &mut self,
        prepared: &mut PreparedMasks,
        form: OperandForm,
        wanted: Event,
    ) -> Result<ReadyOperand<'_>, Error> {
        #[cfg(any(test, feature = "audit"))]
        if prepared.slots_serve_again {
            self.take_slots_back();
        }
        let id = self.id;
        let begun = match &mut self.begun {
            Some(begun) => {
                if prepared.by_pass
                    && let Some(more) = prepared.remove(id)
                {
                    begun.masks.go_on(more);
                }
                begun
            }
            none => {
                if !prepared.begun.insert(id) {
                    return Err(Error::OperandTwice { operand: id });
                }
                let masks = prepared.remove(id).unwrap_or_else(|| OperandMasks::none(form));
                none.insert(Begun { masks, slots: 0, live: Vec::new(), taken: 0, new: 0, opened: Vec::new() })
            }
        };
        if begun.masks.form != form {
            return Err(Error::OperandForm { operand: id, expected: begun.masks.form, got: form });
        }
        let (expected, got) = (begun.live.len(), wanted.tokens);
        let new = got.checked_sub(expected).ok_or(Error::OperandShrinks { operand: id, expected, got })?;
        let by_slots = Event { tokens: begun.slots + new, ..wanted };
        let ready = begun.masks.events.front() == Some(&by_slots);
        if ready {
            begun.masks.events.pop_front();
        } else {
            begun.masks.discard();
            begun.forget();
        }
        begun.take(new);
        let event = if ready { by_slots } else { wanted };
        let listed = Event { tokens: begun.taken, ..event };
        Ok(ReadyOperand { id, form, event, listed, ready, masks: &mut begun.masks })
    }

    /// Forgets the masks of products to come and the slots of tokens that were cut off, because the products of
    /// `events` come next. Returns the masks of the tokens so far, which have the form of `events`, or `None` before
    /// the first product.
    ///
    /// # Errors
    /// Masks of another form, and fewer tokens than there are.
    pub(crate) fn begin_again(&mut self, events: &Events) -> Result<Option<&mut OperandMasks>, Error> {
        let id = self.id;
        let Some(begun) = &mut self.begun else { return Ok(None) };
        if begun.masks.form != events.form {
            return Err(Error::OperandForm { operand: id, expected: begun.masks.form, got: events.form });
        }
        begun.masks.discard();
        begun.forget();
        let (expected, got) = (begun.slots, events.list.first().map_or(begun.slots, |event| event.tokens));
        if got < expected {
            return Err(Error::OperandShrinks { operand: id, expected, got });
        }
        Ok(Some(&mut begun.masks))
    }

    /// Gives the slots of tokens that were cut off to the next tokens, which so get the same masks: a fault that an
    /// audit must notice.
    #[cfg(any(test, feature = "audit"))]
    fn take_slots_back(&mut self) {
        if let Some(begun) = &mut self.begun {
            begun.slots = begun.live.len();
            begun.opened.truncate(begun.slots * begun.masks.form.row());
        }
    }

    /// Whether the operand has had a product.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }
}

impl CachedOperand for Operand {
    fn new(id: OperandId) -> Self {
        Operand::new(id)
    }

    /// The ring of products may depend on the number ([`functions::mix`](crate::functions::mix)), so it must not
    /// change later.
    fn expect(&mut self, tokens: usize) {
        assert!(self.begun.is_none(), "an operand is told before its first product what to expect");
        self.expected = Some(tokens);
    }

    /// Costs nothing. The tokens that replace those cut off are opened under new masks.
    fn roll_back(&mut self, tokens: usize) {
        if let Some(begun) = &mut self.begun {
            begun.live.truncate(tokens);
        }
    }

    /// A copy of the operand of a plan, or `None` if the operand has masks or opened rows.
    fn fork(&self) -> Option<Operand> {
        let begun = match &self.begun {
            None => None,
            Some(Begun { masks, slots, live, taken, new, opened }) if masks.words() == 0 && opened.is_empty() => {
                let masks = OperandMasks { events: masks.events.clone(), ..OperandMasks::none(masks.form) };
                let (slots, taken, new) = (*slots, *taken, *new);
                Some(Begun { masks, slots, live: live.clone(), taken, new, opened: Vec::new() })
            }
            Some(_) => return None,
        };
        Some(Operand { begun, ..*self })
    }
}
