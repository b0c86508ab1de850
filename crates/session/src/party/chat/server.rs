//! The party with the model.

use waggle_model::{Next, Sampler};
use waggle_net::Channel;

use super::super::opening::{complaining, send_verdict};
use super::super::{Limits, Observer, Outcome, Request, wire};
use super::conversation::Conversation;
use super::messages::{Bounds, Command, MESSAGE_BYTES};
use super::{ANSWER, BOUNDS, COMMAND, SCOPE, Setting};
use crate::Error;

/// Serves a chat whose request was accepted, to its end.
pub(in super::super) fn talk(
    mut channel: Channel,
    setting: &Setting,
    limits: &Limits,
    observer: &mut dyn Observer,
) -> Result<Outcome, Error> {
    let bounds = Bounds::of(limits, channel.timeout());
    channel.ledger_mut().enter(SCOPE);
    wire::send(&mut channel, BOUNDS, &bounds, MESSAGE_BYTES)?;
    channel.ledger_mut().leave();
    observer.setup();
    let mut talk = Conversation::begin(channel, setting, bounds.positions as usize)?;
    loop {
        let channel = talk.engine.channel();
        observer.idle(true);
        let command = wire::receive(channel, COMMAND, MESSAGE_BYTES..=MESSAGE_BYTES).map_err(Error::from);
        let command = complaining(channel, command)?;
        observer.idle(false);
        let verdict = match command {
            Command::Turn(turn) => {
                talk.check(setting, turn).and_then(|()| observer.ask(Request::from(turn).positions()))
            }
            Command::Prepare(count) => talk.check_slices(setting, count),
            Command::End | Command::Reset | Command::Stay => Ok(()),
        };
        send_verdict(talk.engine.channel(), ANSWER, verdict.as_ref().err())?;
        if verdict.is_err() {
            continue;
        }
        match command {
            Command::End => {
                talk.engine.channel().confirm_transcript()?;
                return Ok(talk.finish(setting));
            }
            Command::Turn(turn) => {
                // The server picks nothing: it never sees logits.
                let mut unused = Sampler::greedy();
                talk.turn(setting, turn, None, Next::Pick(&mut unused), observer)?;
            }
            Command::Prepare(count) => talk.prepare(setting, count, observer)?,
            Command::Reset => talk.reset(setting),
            Command::Stay => observer.stays(),
        }
    }
}
