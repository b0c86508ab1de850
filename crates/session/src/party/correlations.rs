//! Where a session's correlations come from, the same on both sides.

use waggle_net::{Channel, Entry, Phase};
use waggle_protocols::{FixedWeight, HelperDeals, Needs, Secure, Stock, check_space};

use super::source::Source;
use super::{Event, PublicModel, Request, Terms, Watch, helper, opening};
use crate::Error;
use crate::needs::{needs, needs_by_pass, together};
use crate::pool::{PoolSet, Purpose, Waiting, Written};
use crate::pool_error::LOST;

/// Scope of the messages in which the parties tell each other about their files, and their steps.
const SCOPE: &str = "pool";
const READY: &str = "pool/ready";
const KEPT: &str = "pool/kept";
const CLAIMED: &str = "pool/claimed";

/// What making a session ready yields.
#[derive(Default)]
pub(super) struct Ready {
    /// The account of the link to the helper, if a helper has dealt everything.
    pub(super) helped: Option<Vec<Entry>>,
    /// What the helper of a session of three parties deals for each pass.
    pub(super) passes: Vec<Needs>,
}

/// Makes `engine` ready for `request`: with the stock of a pool and fresh OTs, or, in a session of two phases, by
/// making everything that is needed. With three parties it finds out what each pass needs. In a session of one phase
/// there is nothing to do.
pub(super) fn ready(
    engine: &mut Secure,
    model: &PublicModel,
    weights: &[&FixedWeight],
    terms: &Terms,
    request: &Request,
    source: Source<'_>,
    watch: &mut Watch,
) -> Result<Ready, Error> {
    if !terms.protocol.preprocess {
        return Ok(Ready::default());
    }
    if terms.protocol.helper == HelperDeals::Passes {
        let passes = needs_by_pass(model, terms, request, watch)?;
        let role = engine.channel().role();
        let most = passes.iter().map(|pass| pass.bytes(role)).max().unwrap_or(0);
        make_room(most, watch)?;
        helper::meet(engine, &together(&passes), weights, terms, &source, watch)?;
        return Ok(Ready { helped: None, passes });
    }
    let needs = needs(model, terms, request, watch)?;
    let helped = match source.stock {
        // A helper of these terms has dealt when the pool was filled, and is not asked again.
        Some(stock) => {
            engine.prepare(&needs.ots(), weights, &mut |_| ())?;
            *engine.abb().stock() = stock;
            None
        }
        None => prepare(engine, &needs, weights, terms, &source, watch)?,
    };
    Ok(Ready { helped, passes: Vec::new() })
}

/// Tells the watcher that correlations take `bytes` of a temporary file, and checks that there is room for them.
fn make_room(bytes: u64, watch: &mut Watch) -> Result<(), Error> {
    watch(Event::Room(bytes));
    Ok(check_space(bytes).map_err(waggle_protocols::Error::from)?)
}

/// Makes the correlations of a pool for `purpose`. Returns this party's stock, and the account of the link to the
/// helper, if there is one.
pub(super) fn make(
    engine: &mut Secure,
    weights: &[&FixedWeight],
    terms: &Terms,
    purpose: &Purpose,
    source: &Source<'_>,
    watch: &mut Watch,
) -> Result<(Stock, Option<Vec<Entry>>), Error> {
    let helped = prepare(engine, purpose.needs(), weights, terms, source, watch)?;
    Ok((std::mem::take(engine.abb().stock()), helped))
}

/// Makes all of `needs`, with the helper that `terms` name, if any. First tells the watcher how much room the
/// correlations take, and checks that it is there. Returns the account of the link to the helper.
fn prepare(
    engine: &mut Secure,
    needs: &Needs,
    weights: &[&FixedWeight],
    terms: &Terms,
    source: &Source<'_>,
    watch: &mut Watch,
) -> Result<Option<Vec<Entry>>, Error> {
    helper::meet(engine, needs, weights, terms, source, watch)?;
    make_room(needs.bytes(engine.channel().role()), watch)?;
    engine.prepare(needs, weights, &mut |made| drop(watch(Event::Prepared(made))))?;
    helper::leave(engine)
}

/// The client's last steps in a session that fills a pool, booked as `offline`. The client publishes its `written`
/// pool once the server's part is safe; see [`crate::pool`].
pub(super) fn keep<P: FnOnce() -> Result<(), Error>>(
    channel: &mut Channel,
    written: Result<P, Error>,
) -> Result<(), Error> {
    channel.ledger_mut().set_phase(Phase::Offline);
    opening::scoped(channel, SCOPE, |channel| {
        opening::send_verdict(channel, READY, written.as_ref().err())?;
        let publish = written?;
        opening::receive_verdict(channel, READY)?;
        let published = publish();
        let told = opening::send_verdict(channel, KEPT, published.as_ref().err());
        // The pool is good even if this message is lost, because the server's part waits for the client.
        published.map(|()| drop(told))
    })
}

/// The server's last steps in a session that fills a pool. The server's part waits from the moment before the
/// server says that it is ready, and becomes a pool when the client says that it keeps its own.
pub(super) fn keep_for_client(
    channel: &mut Channel,
    written: Result<Written, Error>,
    waiting: &Waiting,
) -> Result<(), Error> {
    channel.ledger_mut().set_phase(Phase::Offline);
    opening::scoped(channel, SCOPE, |channel| {
        receive_word(channel, READY)?;
        let mine = written.and_then(|written| Ok(waiting.begin(written)?));
        opening::send_verdict(channel, READY, mine.as_ref().err())?;
        let pending = mine?;
        match receive_word(channel, KEPT) {
            Ok(()) => Ok(pending.publish()?),
            Err(error @ Error::Withdrawn { .. }) => {
                pending.discard()?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    })
}

/// The client tells the server whether it has claimed its pool, and learns whether the server has claimed its part.
/// The messages are booked as `setup`, as the request is.
pub(super) fn spend(channel: &mut Channel, claimed: Result<Stock, Error>) -> Result<Stock, Error> {
    opening::scoped(channel, SCOPE, |channel| {
        opening::send_verdict(channel, CLAIMED, claimed.as_ref().err())?;
        let stock = claimed?;
        opening::receive_verdict(channel, CLAIMED)?;
        Ok(stock)
    })
}

/// The server claims its part when the client has claimed its own, and removes it when the client has lost its own.
pub(super) fn spend_for_client(channel: &mut Channel, pool: PoolSet, purposes: &[Purpose]) -> Result<Stock, Error> {
    opening::scoped(channel, SCOPE, |channel| {
        match receive_word(channel, CLAIMED) {
            Err(Error::Withdrawn { reason }) if reason.starts_with(LOST) => {
                pool.discard()?;
                return Err(Error::Withdrawn { reason });
            }
            word => word?,
        }
        let claimed = pool.claim(purposes);
        opening::send_verdict(channel, CLAIMED, claimed.as_ref().err())?;
        claimed
    })
}

/// Receives the client's verdict on the client's part of the pool. A refusal becomes [`Error::Withdrawn`].
fn receive_word(channel: &mut Channel, step: &'static str) -> Result<(), Error> {
    opening::receive_verdict(channel, step).map_err(|error| match error {
        Error::Refused { reason } => Error::Withdrawn { reason },
        other => other,
    })
}
