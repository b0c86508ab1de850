//! The server's side of a chat.

use waggle_model::{Next, Sampler};
use waggle_net::Channel;

use super::super::opening::{complaining, send_verdict};
use super::super::{Event, Limits, Outcome, Request, Watch, wire};
use super::conversation::Conversation;
use super::messages::{Bounds, Command, MESSAGE_BYTES};
use super::{ANSWER, BOUNDS, COMMAND, SCOPE, Setting};
use crate::{Error, event};

/// Serves a chat whose request was accepted, to its end.
pub(in super::super) fn talk(
    mut channel: Channel,
    setting: &Setting,
    limits: &Limits,
    watch: &mut Watch,
) -> Result<Outcome, Error> {
    let bounds = Bounds::of(limits, channel.timeout());
    channel.ledger_mut().enter(SCOPE);
    wire::send(&mut channel, BOUNDS, &bounds, MESSAGE_BYTES)?;
    channel.ledger_mut().leave();
    watch(Event::Setup);
    let mut talk = Conversation::begin(channel, setting, bounds.positions as usize)?;
    loop {
        let channel = talk.engine.channel();
        watch(Event::Idle(true));
        let command = wire::receive(channel, COMMAND, MESSAGE_BYTES..=MESSAGE_BYTES).map_err(Error::from);
        let command = complaining(channel, command)?;
        watch(Event::Idle(false));
        let verdict = match command {
            Command::Turn(turn) => {
                talk.check(setting, turn).and_then(|()| event::ask(watch, Request::from(turn).positions()))
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
                talk.turn(setting, turn, None, Next::Pick(&mut unused), watch)?;
            }
            Command::Prepare(count) => talk.prepare(setting, count, watch)?,
            Command::Reset => talk.reset(setting),
            Command::Stay => drop(watch(Event::Stays)),
        }
    }
}
