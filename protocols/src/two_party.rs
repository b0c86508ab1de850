//! The arithmetic black box between two parties: words as additive shares modulo 2^64, bits as exclusive-or shares.

use ndarray::{ArrayD, Dimension, IxDyn};
use waggle_net::Role;

use crate::abb::{Abb, given};
use crate::cached;
use crate::deal::HelperLink;
use crate::form::Values;
use crate::operation::Operation;
use crate::plans::Plans;
use crate::session::Session;
use crate::stock::Stock;
use crate::{Error, Options};

/// Runs every operation as a protocol with the peer, who calls the same operations in the same order.
pub struct TwoParty {
    pub(crate) session: Session,
    pub(crate) stock: Stock,
    pub(crate) helper: Option<HelperLink>,
}

impl TwoParty {
    /// A box over an established session, with an empty stock.
    pub fn new(session: Session) -> Self {
        TwoParty { session, stock: Stock::default(), helper: None }
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The link to the helper, if the options of the session name one. [`prepare`](TwoParty::prepare) takes from it
    /// the part of the correlations that [`Options::helper`] states.
    pub fn helper(&mut self) -> &mut Option<HelperLink> {
        &mut self.helper
    }

    /// The correlations made ahead.
    pub fn stock(&mut self) -> &mut Stock {
        &mut self.stock
    }
}

impl Abb for TwoParty {
    type Form = Values;
    type Words = ArrayD<u64>;
    type Bits = ArrayD<u8>;

    fn enter(&mut self, name: &str) {
        self.session.channel().ledger_mut().enter(name);
    }

    fn leave(&mut self) {
        self.session.channel().ledger_mut().leave();
    }

    fn apply<O: Operation>(
        &mut self,
        operation: O,
        mut input: O::Input<'_, Values>,
    ) -> Result<O::Output<Values>, Error> {
        let TwoParty { session, stock, .. } = self;
        #[cfg(any(test, feature = "audit"))]
        {
            stock.operands.slots_serve_again = session.audit.breaks(crate::audit::Broken::Slots);
        }
        let met = operation.operands::<Values>(&mut input, &mut stock.operands, session.options())?;
        let mut words = cached::take(session, &mut stock.spill, met)?;
        let size = operation.size::<Values>(&input);
        if let Some(need) = operation.correlations(&size, session.options()) {
            words = Some(stock.take(session, &need, operation.matrix())?);
        }
        operation.run(session, input, words.as_ref().map(|words| &words[..]))
    }

    fn public(&mut self, shape: &[usize], value: impl Fn(&[usize]) -> u64) -> ArrayD<u64> {
        let server = self.session.is_server();
        ArrayD::from_shape_fn(IxDyn(shape), |at| if server { value(at.slice()) } else { 0 })
    }

    fn constant(&mut self, shape: &[usize], value: u64) -> ArrayD<u64> {
        ArrayD::from_elem(IxDyn(shape), if self.session.is_server() { value } else { 0 })
    }

    fn add_public(&mut self, x: &ArrayD<u64>, value: u64) -> ArrayD<u64> {
        if self.session.is_server() { x.mapv(|x| x.wrapping_add(value)) } else { x.clone() }
    }

    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&ArrayD<u64>>) -> Result<ArrayD<u64>, Error> {
        if self.session.role() != owner {
            return Ok(ArrayD::zeros(IxDyn(shape)));
        }
        given(owner, shape, values).cloned()
    }

    fn not(&mut self, bits: &ArrayD<u8>) -> ArrayD<u8> {
        if self.session.is_server() { bits.mapv(|b| b ^ 1) } else { bits.clone() }
    }

    fn xor(&mut self, a: &ArrayD<u8>, b: &ArrayD<u8>) -> ArrayD<u8> {
        a ^ b
    }

    fn low_bit(&mut self, x: &ArrayD<u64>) -> ArrayD<u8> {
        x.mapv(|x| (x & 1) as u8)
    }

    fn options(&self) -> &Options {
        self.session.options()
    }

    fn plans(&mut self) -> Option<&mut Plans> {
        Some(self.session.plans())
    }
}
