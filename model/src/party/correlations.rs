//! Where a session's correlations come from, the same on both sides.

use net::{Channel, Phase, Role};
use protocols::{FixedWeight, Secure, Stock};

use super::{Observer, PublicModel, Request, Terms, needs, opening};
use crate::Error;
use crate::pool::Purpose;

/// Step and scope of the server's word that its pool is written.
pub(super) const WRITTEN: &str = "pool/written";
pub(super) const SCOPE: &str = "pool";

/// Makes `engine` ready for `request`: with the stock of a pool and fresh OTs, or by making all that is needed if the
/// session has two phases.
pub(super) fn ready(
    engine: &mut Secure,
    model: &PublicModel,
    weights: &[&FixedWeight],
    terms: &Terms,
    request: &Request,
    stock: Option<Stock>,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    if !terms.protocol.preprocess {
        return Ok(());
    }
    let needs = needs(&model.spec, &model.scales, terms, request)?;
    match stock {
        Some(stock) => {
            engine.prepare(&needs.ots(), weights, &mut |_, _| ())?;
            engine.set_stock(stock);
        }
        None => engine.prepare(&needs, weights, &mut |done, total| observer.prepare(done, total))?,
    }
    Ok(())
}

/// Makes what a pool for `purpose` holds; returns this party's part.
pub(super) fn make(
    engine: &mut Secure,
    weights: &[&FixedWeight],
    purpose: &Purpose,
    observer: &mut dyn Observer,
) -> Result<Stock, Error> {
    engine.prepare(purpose.needs(), weights, &mut |done, total| observer.prepare(done, total))?;
    Ok(engine.take_stock())
}

/// The server tells the client whether its pool is `written`, booked as `offline`; fails if it is not.
pub(super) fn confirm(channel: &mut Channel, written: Result<(), Error>) -> Result<(), Error> {
    let phase = channel.ledger_mut().set_phase(Phase::Offline);
    channel.ledger_mut().enter(SCOPE);
    let told = match channel.role() {
        Role::Server => opening::send_verdict(channel, WRITTEN, written.as_ref().err()),
        Role::Client => opening::receive_verdict(channel, WRITTEN),
    };
    channel.ledger_mut().leave();
    channel.ledger_mut().set_phase(phase);
    written.and(told)
}
