//! Accounts of a generation: phases, tokens, the byte that ends it.

use engine::Engine;
use net::{Direction, HEADER_BYTES, Ledger, NetError, Phase, Role, TRANSCRIPT_BYTES, WireBytes};
use protocols::{Plan, Secure};

use super::{Observer, Outcome, Request, Terms};
use crate::report::{TokenMeter, Wire};
use crate::{Error, Generation, Hooks, Step};

const STOP: &str = "stop";
/// Scope of the comparison of transcripts, as [`net::Channel::confirm_transcript`] books it.
const TRANSCRIPT: &str = "transcript";

/// An engine with a ledger.
pub(super) trait Booked: Engine {
    /// The ledger.
    fn ledger(&mut self) -> &mut Ledger;

    /// The client tells the server whether it stops here.
    fn tell_stop(&mut self, stop: Option<bool>) -> Result<bool, protocols::Error>;

    /// The parties compare what they saw of the session: only then are its results final.
    fn confirm_transcript(&mut self) -> Result<(), NetError>;

    /// How the bytes travelled so far.
    fn wire(&mut self) -> Option<Wire>;
}

impl Booked for Secure {
    fn ledger(&mut self) -> &mut Ledger {
        self.channel().ledger_mut()
    }

    fn tell_stop(&mut self, stop: Option<bool>) -> Result<bool, protocols::Error> {
        let channel = self.channel();
        if channel.role() == Role::Client {
            let stop = stop.unwrap_or(false);
            channel.send(STOP, &[u8::from(stop)])?;
            // Nothing may follow that would flush it.
            channel.flush(STOP)?;
            return Ok(stop);
        }
        match channel.recv(STOP, 1)?[..] {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(NetError::Malformed { step: STOP, what: "neither 0 nor 1".into() }.into()),
        }
    }

    fn confirm_transcript(&mut self) -> Result<(), NetError> {
        self.channel().confirm_transcript()
    }

    fn wire(&mut self) -> Option<Wire> {
        let channel = self.channel();
        let WireBytes { sent, received } = channel.wire_bytes()?;
        Some(Wire { encrypted: channel.encrypted(), bytes_sent: sent, bytes_received: received })
    }
}

impl Booked for Plan {
    fn ledger(&mut self) -> &mut Ledger {
        Plan::ledger(self)
    }

    fn tell_stop(&mut self, _: Option<bool>) -> Result<bool, protocols::Error> {
        Plan::ledger(self).book(Direction::ClientToServer, (1 + HEADER_BYTES) as u64);
        Ok(false)
    }

    fn confirm_transcript(&mut self) -> Result<(), NetError> {
        let ledger = Plan::ledger(self);
        let phase = ledger.set_phase(Phase::Setup);
        ledger.enter(TRANSCRIPT);
        ledger.book_exchange([(TRANSCRIPT_BYTES + HEADER_BYTES) as u64; 2]);
        ledger.leave();
        ledger.set_phase(phase);
        Ok(())
    }

    fn wire(&mut self) -> Option<Wire> {
        None
    }
}

/// Switches the phases of the ledger and meters tokens.
pub(super) struct Recorder<'a> {
    observer: &'a mut dyn Observer,
    meter: TokenMeter,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer) -> Self {
        Recorder { observer, meter: TokenMeter::default() }
    }
}

impl<E: Booked> Hooks<E> for Recorder<'_> {
    fn begin(&mut self, engine: &mut E, step: Step) {
        engine.ledger().set_phase(match step {
            Step::Prefill => Phase::Prefill,
            Step::Decode { .. } => Phase::Decode,
        });
        self.observer.begin(step);
    }

    fn go_on(&mut self) -> Result<(), Error> {
        if self.observer.abandoned() { Err(Error::Abandoned) } else { Ok(()) }
    }

    fn layer(&mut self, done: usize, layers: usize) {
        self.observer.layer(done, layers);
    }

    fn token(&mut self, engine: &mut E, step: Step, token: Option<u32>) {
        let ledger = engine.ledger();
        ledger.checkpoint();
        if step != Step::Prefill {
            self.meter.token(ledger.phase_total(Phase::Decode));
        }
        self.observer.token(token);
    }

    fn agree_to_stop(&mut self, engine: &mut E, stop: Option<bool>) -> Result<bool, engine::Error> {
        engine.scope(STOP, |engine| Ok(engine.tell_stop(stop)?))
    }
}

/// Collects what a session leaves.
pub(super) fn finish(
    engine: &mut impl Booked,
    terms: &Terms,
    request: &Request,
    generation: Generation,
    recorder: Recorder,
) -> Outcome {
    let wire = engine.wire();
    let ledger = engine.ledger();
    ledger.checkpoint();
    Outcome {
        wire,
        prompt_tokens: request.lengths.prompt,
        generation,
        entries: ledger.entries(),
        per_token: recorder.meter.into_costs(),
        filled: None,
        preprocess: terms.protocol.preprocess,
    }
}
