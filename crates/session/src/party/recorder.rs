//! Accounts of a generation: phases, tokens, and the byte that ends the text.

use std::collections::VecDeque;

use waggle_engine::Engine;
use waggle_model::{Generation, Hooks, Passes, Step};
use waggle_net::{Channel, Ledger, NetError, Phase, Role, WireBytes};
use waggle_planner::Plan;
use waggle_protocols::{Needs, Secure};
use waggle_report::{Phases, TokenMeter, Wire};

use super::{Event, Flow, Outcome, Request, Terms, Watch, helper};
use crate::event;

const STOP: &str = "stop";
const KEPT: &str = "draft/kept";
/// Scope of the message with the number of tokens that a pass keeps.
const DRAFT: &str = "draft";

/// An engine whose parties exchange messages, or a plan of such an engine.
pub(super) trait Booked: Engine {
    /// The ledger.
    fn ledger(&mut self) -> &mut Ledger;

    /// Exchanges `messages` with the peer; a plan rehearses the client's part.
    fn on_channel<T>(&mut self, messages: impl FnOnce(&mut Channel) -> T) -> T;

    /// Has a helper deal the `needs` of the pass that begins.
    fn deal_pass(&mut self, needs: &Needs) -> Result<(), waggle_protocols::Error>;
}

impl Booked for Secure {
    fn ledger(&mut self) -> &mut Ledger {
        self.channel().ledger_mut()
    }

    fn on_channel<T>(&mut self, messages: impl FnOnce(&mut Channel) -> T) -> T {
        messages(Secure::channel(self))
    }

    fn deal_pass(&mut self, needs: &Needs) -> Result<(), waggle_protocols::Error> {
        helper::deal_pass(self, needs)
    }
}

impl Booked for Plan {
    fn ledger(&mut self) -> &mut Ledger {
        self.abb().ledger()
    }

    fn on_channel<T>(&mut self, messages: impl FnOnce(&mut Channel) -> T) -> T {
        self.abb().ledger().rehearse(Role::Client, messages)
    }

    fn deal_pass(&mut self, needs: &Needs) -> Result<(), waggle_protocols::Error> {
        self.abb().prepare(needs)
    }
}

/// Has the client tell the server whether the text stops here. Both parties return it.
fn tell_stop(channel: &mut Channel, stop: Option<bool>) -> Result<bool, waggle_protocols::Error> {
    if channel.role() == Role::Client {
        let stop = stop.unwrap_or(false);
        channel.send(STOP, &[u8::from(stop)])?;
        // Flushes, because no message may follow.
        channel.flush(STOP)?;
        return Ok(stop);
    }
    match channel.recv(STOP, 1)?[..] {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(NetError::Malformed { step: STOP, what: "neither 0 nor 1".into() }.into()),
    }
}

/// Has the client tell the server how many tokens a pass keeps, from 1 to `most`. Both parties return the number.
fn tell_kept(channel: &mut Channel, most: usize, kept: Option<usize>) -> Result<usize, waggle_protocols::Error> {
    if channel.role() == Role::Client {
        let kept = kept.unwrap_or(1);
        // A pass has at most MAX_DRAFTED guesses.
        channel.send(KEPT, &[kept as u8])?;
        return Ok(kept);
    }
    match channel.recv(KEPT, 1)?[..] {
        [kept] if (1..=most).contains(&usize::from(kept)) => Ok(kept.into()),
        ref other => {
            let what = format!("{other:?} is no number of tokens that a pass over {most} keeps");
            Err(NetError::Malformed { step: KEPT, what }.into())
        }
    }
}

/// Switches the phases of the ledger and meters tokens.
pub(super) struct Recorder<'a> {
    watch: &'a mut Watch<'a>,
    meter: TokenMeter,
    /// Whether the watcher ends the text with the latest token.
    ends: bool,
    /// In a plan, how many tokens each pass keeps.
    schedule: Option<Passes>,
    /// The number of texts that are read side by side. `rows` is the number of positions of each prompt before its
    /// last one.
    texts: u64,
    rows: u64,
    /// The needs that a helper deals for each of the passes to come.
    passes: VecDeque<Needs>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(watch: &'a mut Watch<'a>) -> Self {
        Recorder {
            watch,
            meter: TokenMeter::default(),
            ends: false,
            schedule: None,
            texts: 1,
            rows: 0,
            passes: VecDeque::new(),
        }
    }

    /// This recorder, for a generation that answers `request`.
    pub(super) fn showing(self, request: &Request) -> Self {
        let rows = request.lengths.prompt.saturating_sub(1) as u64;
        Recorder { texts: request.texts as u64, rows, ..self }
    }

    /// This recorder, for a generation whose helper deals the needs in `passes`, each right before its pass.
    pub(super) fn dealing(self, passes: Vec<Needs>) -> Self {
        Recorder { passes: passes.into(), ..self }
    }

    /// The recorder of a generation that goes on where the generation with this `meter` ended.
    pub(super) fn resuming(watch: &'a mut Watch<'a>, meter: TokenMeter) -> Self {
        Recorder { meter, ..Recorder::new(watch) }
    }

    /// The meter, for the generation that goes on after this one.
    pub(super) fn into_meter(self) -> TokenMeter {
        self.meter
    }

    /// The recorder of a plan whose passes keep as many tokens as `schedule` says.
    pub(super) fn planning(watch: &'a mut Watch<'a>, schedule: Passes) -> Self {
        Recorder { schedule: Some(schedule), ..Recorder::new(watch) }
    }
}

impl<E: Booked> Hooks<E> for Recorder<'_> {
    fn begin(&mut self, engine: &mut E, step: Step) -> Result<(), waggle_engine::Error> {
        if step != Step::Prefill {
            let (ledger, meter) = (engine.ledger(), &self.meter);
            (self.watch)(Event::Passed(&mut || {
                ledger.checkpoint();
                Phases::new(&ledger.entries(), meter.costs().to_vec())
            }));
        }
        engine.ledger().set_phase(match step {
            Step::Prefill => Phase::Prefill,
            Step::Decode { .. } => Phase::Decode,
        });
        (self.watch)(Event::Shown(match step {
            Step::Prefill => self.texts * (1 + self.rows),
            Step::Decode { drafted, .. } => self.texts * (1 + drafted as u64),
        }));
        (self.watch)(Event::Begins(step));
        match self.passes.pop_front() {
            Some(needs) => Ok(engine.deal_pass(&needs)?),
            None => Ok(()),
        }
    }

    fn go_on(&mut self) -> Result<(), waggle_model::Error> {
        event::go_on(self.watch)
    }

    fn layer(&mut self, done: usize, layers: usize) {
        (self.watch)(Event::Layer { done, of: layers });
    }

    fn token(&mut self, engine: &mut E, step: Step, token: Option<u32>) {
        let ledger = engine.ledger();
        ledger.checkpoint();
        if step != Step::Prefill {
            self.meter.token(ledger.phase_total(Phase::Decode));
        }
        self.ends = matches!((self.watch)(Event::Token(token)), Flow::EndText);
    }

    fn agree_to_keep(
        &mut self,
        engine: &mut E,
        most: usize,
        kept: Option<usize>,
    ) -> Result<usize, waggle_engine::Error> {
        let kept = kept.or_else(|| self.schedule.as_mut().map(|schedule| schedule.next(most)));
        if most == 1 {
            return Ok(1);
        }
        engine.scope(DRAFT, |engine| Ok(engine.on_channel(|channel| tell_kept(channel, most, kept))?))
    }

    fn agree_to_stop(&mut self, engine: &mut E, stop: Option<bool>) -> Result<bool, waggle_engine::Error> {
        let stop = stop.map(|stop| stop || self.ends);
        engine.scope(STOP, |engine| Ok(engine.on_channel(|channel| tell_stop(channel, stop))?))
    }
}

/// Collects the outcome of a session.
pub(super) fn finish(
    engine: &mut impl Booked,
    terms: &Terms,
    request: &Request,
    generation: Generation,
    recorder: Recorder,
) -> Outcome {
    let wire = engine.on_channel(|channel| {
        let WireBytes { sent, received } = channel.wire_bytes()?;
        Some(Wire { encrypted: channel.encrypted(), bytes_sent: sent, bytes_received: received })
    });
    let ledger = engine.ledger();
    ledger.checkpoint();
    Outcome {
        wire,
        prompt_tokens: request.lengths.prompt,
        generation,
        entries: ledger.entries(),
        kinds: ledger.divided(),
        per_token: recorder.meter.into_costs(),
        filled: None,
        terms: terms.clone(),
        draft: request.draft,
        helper: [None, None],
    }
}
