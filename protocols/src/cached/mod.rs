//! Products with a *cached operand*: a shared matrix that grows from product to product. Examples are the keys and
//! the values of a layer, the summaries of its clusters, and the clusters themselves, from which hidden choices are
//! gathered. The last tokens of an operand may be cut off again
//! ([`CachedOperand::roll_back`](waggle_engine::CachedOperand::roll_back)), like the tokens of a wrong draft.
//!
//! **Functionality.** Shares of X and of a matrix M of T tokens -> shares of X M modulo 2^w, for a batch of heads.
//! From product to product T grows, unless tokens are cut off. M is (d x T),
//! [`Axis::Columns`](waggle_engine::Axis::Columns), or (T x d), [`Axis::Rows`](waggle_engine::Axis::Rows).
//!
//! **Source.** Beaver's triples (CRYPTO 1991) with a fixed operand. The mask A of M is the same in all products, so
//! the row of a token is opened once, when the token is new. Every X has a fresh mask B.
//!
//! ```text
//! offline:  share A, and for every product B and B A
//! online:   open X - B, and M - A for the rows of new tokens
//!           X M = (X - B)(M - A) + (X - B) A + B (M - A) + B A
//! ```
//!
//! Products that do not wait for each other, such as those of heads with different tokens, open their words in one
//! exchange.
//!
//! Offline, the masks B of all products of a run are stacked, so that one or a few encrypted products of matrices per
//! layer and operand make all shares of B A.
//!
//! **Range.** Any, modulo 2^w. **Error.** The error of `matmul::shared`. The naive reference is the product itself.
//!
//! **Revealed.** Nothing. A row of M is opened under a mask that masks this row and nothing else. An [`Operand`]
//! with masks cannot be copied, and a matrix whose rows change (eviction) takes a new one with a new mask.
//!
//! **Cuts.** A row of A is a *slot*. A new token takes the next slot that no token ever had, because two tokens
//! opened under one mask would show how they differ. The slots of tokens that were cut off are dead. Which slots are
//! dead is public, because the cut is public. Where masks were prepared, the shares of B A have a term for every slot
//! up to the product's last one, because nobody knew which would be dead. So X has public zeros at dead slots, and
//! the columns of dead slots are dropped from the result. The zeros open the part of B at dead slots, which masks
//! nothing else. Where masks are made on the spot, dead slots are forgotten first, and a product costs as much as if
//! the tokens that were cut off had never existed. Masks are prepared by slots: a run whose passes have the sizes of
//! the plan finds its masks however many tokens each pass keeps.
//!
//! **Which masks are whose.** Preparation and use name an operand by its [`OperandId`](waggle_engine::OperandId),
//! never by order of use, because a run may make other products than it was prepared for. Masks of another
//! [`OperandForm`], the ring included, fail the product before a word is sent. If a product has other sizes than the
//! one for which the next masks were made, all masks that are left are discarded. This product and all later products
//! of the operand then make their masks on the spot. The first product moves the masks out of the stock, so no second
//! operand can find them there.
//!
//! Read the files in this order: the sizes of products (`form`), masks as they lie in a stock (`masks`), the memory
//! of an operand (`operand`), how masks are made, dealt and taken (`making`), and the operation (`product`).

mod form;
mod making;
mod masks;
mod operand;
mod product;

pub(crate) use form::OPERANDS;
pub use form::{Event, Events, OperandForm};
pub use making::prepare_cost;
pub(crate) use making::{deal, extend, take};
pub(crate) use masks::OperandMasks;
pub use masks::PreparedMasks;
pub use operand::{Operand, ReadyOperand};
pub use product::{CachedMatmul, CachedProduct, CachedSize};
