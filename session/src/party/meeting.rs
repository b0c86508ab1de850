//! The parties tell each other what they have, for the plans of a session.
//!
//! Four facts of the handshake are of a fixed length, so that no plan depends on them: the cores that the party will
//! use, its family of kernels, and, where a person gave them, the cores and the link to plan for. One party's word is
//! enough; two that differ end the session, at both parties alike. What nobody gave, the parties find out: cores are
//! those that each stated, and the link is measured ([`net::measure`]).

use std::fmt::Display;
use std::time::Duration;

use bits::cpu::Cpu;
use net::{Channel, Difference, Field, Handshake, LinkShape, Measured, NetError, Role};
use protocols::{Cores, MAX_CORES};
use tokenizer::printable;

use super::wire::malformed;
use crate::terms::{Met, Open, Terms};

const STEP: &str = "handshake";
const OWN_CORES: &str = "own-cores";
const KERNELS: &str = "kernels";
const CORES: &str = "cores";
const LINK: &str = "link";
/// Longest name of a family of kernels; shorter ones are followed by spaces.
const KERNELS_BYTES: usize = 24;
/// Bounds of a link that a person may give: those of a [`LinkShape`] as text.
const MAX_RATE: u64 = 1_000_000_000_000_000;
const MAX_ROUND_TRIP: Duration = Duration::from_secs(1000);

/// What a party states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stated {
    own_cores: u32,
    kernels: String,
    cores: Option<Cores>,
    link: Option<LinkShape>,
}

impl Stated {
    /// What the party `role` states under `terms`.
    pub(super) fn of(terms: &Terms, role: Role) -> Self {
        let Terms { protocol, open, .. } = terms;
        Stated {
            own_cores: protocol.cores.of(role),
            kernels: printable(&Cpu::get().to_string(), KERNELS_BYTES),
            cores: (!open.cores).then_some(protocol.cores),
            link: (!open.link).then_some(protocol.link),
        }
    }

    /// Puts it into a handshake.
    pub(super) fn tell(&self, hello: Handshake) -> Handshake {
        let Stated { own_cores, kernels, cores, link } = self;
        let Cores { client, server } = cores.unwrap_or(Cores::each(0));
        let (rate, trip) = link.map_or((0, 0), |link| (link.bytes_per_second, link.round_trip.as_nanos()));
        hello
            .tell(OWN_CORES, format_args!("{own_cores:05}"))
            .tell(KERNELS, format_args!("{kernels:KERNELS_BYTES$}"))
            .tell(CORES, format_args!("{client:05}+{server:05}"))
            .tell(LINK, format_args!("{rate:016} bytes per second, {trip:013} ns there and back"))
    }

    /// The peer's, from its handshake. Zero cores and no bytes per second stand for what nobody gave.
    pub(super) fn read(fields: &[Field]) -> Result<Self, NetError> {
        let find = |name: &str| {
            let field = fields.iter().find(|field| field.name == name);
            field.map(|field| &*field.value).ok_or_else(|| malformed(STEP, format!("`{name}` is missing")))
        };
        let wrong = |name: &str, value: &str| malformed(STEP, format!("`{name}` is not possible: {value}"));
        let cores = |text: &str| text.parse().ok().filter(|cores| *cores <= MAX_CORES);
        let pair = |text: &str| {
            let (client, server) = text.split_once('+')?;
            match (cores(client)?, cores(server)?) {
                (0, 0) => Some(None),
                (0, _) | (_, 0) => None,
                (client, server) => Some(Some(Cores { client, server })),
            }
        };
        let link = |text: &str| {
            let (rate, trip) = text.strip_suffix(" ns there and back")?.split_once(" bytes per second, ")?;
            let (bytes_per_second, round_trip) = (rate.parse().ok()?, Duration::from_nanos(trip.parse().ok()?));
            match (bytes_per_second, round_trip) {
                (0, Duration::ZERO) => Some(None),
                (1..=MAX_RATE, trip) if trip <= MAX_ROUND_TRIP => {
                    Some(Some(LinkShape { bytes_per_second, round_trip }))
                }
                _ => None,
            }
        };
        let [own, kernels, given, shape] = [find(OWN_CORES)?, find(KERNELS)?, find(CORES)?, find(LINK)?];
        Ok(Stated {
            own_cores: cores(own).filter(|cores| *cores > 0).ok_or_else(|| wrong(OWN_CORES, own))?,
            kernels: printable(kernels.trim_end(), KERNELS_BYTES),
            cores: pair(given).ok_or_else(|| wrong(CORES, given))?,
            link: link(shape).ok_or_else(|| wrong(LINK, shape))?,
        })
    }
}

/// The terms of both parties, `terms` being this one's and `fields` the peer's. Where nobody gave the link it is
/// measured; terms that say how that went are those of a rehearsal.
///
/// # Errors
/// [`NetError::Disagreement`] with what both gave and differs in; [`NetError::Malformed`] for what no party has; those
/// of the measurement.
pub(super) fn meet(channel: &mut Channel, terms: &Terms, fields: &[Field]) -> Result<Terms, NetError> {
    let (ours, theirs) = (Stated::of(terms, channel.role()), Stated::read(fields)?);
    let [client, server] = match channel.role() {
        Role::Client => [ours, theirs],
        Role::Server => [theirs, ours],
    };
    let mut differences = Vec::new();
    let cores = given(CORES, client.cores, server.cores, &mut differences);
    let link = given(LINK, client.link, server.link, &mut differences);
    if !differences.is_empty() {
        return Err(NetError::Disagreement { differences });
    }
    let mut met = terms.clone();
    met.open = Open::default();
    met.protocol.cores = cores.unwrap_or(Cores { client: client.own_cores, server: server.own_cores });
    let bursts = match link {
        Some(link) => {
            met.protocol.link = link;
            None
        }
        None => {
            let rehearsed = terms.met.bursts.map(|bursts| Measured { shape: terms.protocol.link, bursts });
            let Measured { shape, bursts } = net::measure(channel, rehearsed)?;
            met.protocol.link = shape;
            Some(bursts)
        }
    };
    met.met = Met { bursts, kernels: Some([client.kernels, server.kernels]) };
    Ok(met)
}

/// The value that one party gave, or both.
fn given<T: Copy + PartialEq + Display>(
    name: &str,
    client: Option<T>,
    server: Option<T>,
    differences: &mut Vec<Difference>,
) -> Option<T> {
    if client.zip(server).is_some_and(|(client, server)| client != server) {
        let [client, server] = [client, server].map(|value| value.map(|value| value.to_string()));
        differences.push(Difference { name: name.into(), client, server });
    }
    client.or(server)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use net::memory_pair;

    use super::*;

    /// The terms of a party with so many cores, to which `given` is all that anybody said.
    fn party(own: u32, given: (Option<Cores>, Option<&str>)) -> Terms {
        let mut terms = Terms::default();
        terms.protocol.cores = given.0.unwrap_or(Cores::each(own));
        terms.protocol.link = given.1.map_or(LinkShape::MEMORY, |link| link.parse().unwrap());
        terms.open = Open { cores: given.0.is_none(), link: given.1.is_none() };
        terms
    }

    /// The terms on which both parties agree, and the bytes of the handshake.
    fn agree(parties: [&Terms; 2]) -> [Result<(Terms, u64), NetError>; 2] {
        let (here, there) = memory_pair(Duration::from_secs(60));
        let one = |terms: &Terms, mut channel: Channel| {
            let fields = Stated::of(terms, channel.role()).tell(Handshake::new()).run(&mut channel)?;
            let bytes = channel.ledger().total().bytes();
            Ok((meet(&mut channel, terms, &fields)?, bytes))
        };
        let (here, there) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
        thread::scope(|scope| {
            let server = scope.spawn(|| one(parties[1], there));
            [one(parties[0], here), server.join().unwrap()]
        })
    }

    #[test]
    fn one_word_is_enough_and_none_is_too() {
        let (four, wan) = (Some(Cores::each(4)), Some("wan"));
        let pair = Some(Cores { client: 2, server: 64 });
        for (client, server, cores, link) in [
            ((None, None), (None, None), pair, None),
            ((four, None), (None, None), four, None),
            ((None, wan), (None, None), pair, wan),
            ((None, None), (four, wan), four, wan),
            ((four, wan), (four, wan), four, wan),
        ] {
            let agreed = agree([&party(2, client), &party(64, server)]).map(Result::unwrap);
            let [(terms, bytes), (others, _)] = &agreed;
            // Of the two, only what both share.
            assert_eq!((terms.protocol, &terms.met, terms.open), (others.protocol, &others.met, Open::default()));
            assert_eq!(Some(terms.protocol.cores), cores);
            assert_eq!(terms.protocol.link, link.map_or(LinkShape::MEMORY, |link| link.parse().unwrap()));
            assert_eq!(terms.met.bursts, if link.is_some() { None } else { Some(0) });
            let [longest, _] = agree([&party(60_000, (None, None)), &party(1, (pair, Some("12mbit,1ms")))]);
            assert_eq!(*bytes, longest.unwrap().1, "no plan depends on what was said");
        }
    }

    #[test]
    fn two_different_words_are_refused_with_both() {
        let client = party(2, (Some(Cores::each(4)), Some("lan")));
        let server = party(2, (Some(Cores { client: 4, server: 8 }), Some("wan")));
        for refused in agree([&client, &server]) {
            let refused = refused.unwrap_err();
            let NetError::Disagreement { differences } = &refused else { panic!("{refused}") };
            let said = differences.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(said, ["cores: client says 4, server says 4+8", "link: client says lan, server says wan"]);
        }
    }

    #[test]
    fn nobody_has_no_cores_or_an_absurd_link() {
        let honest = Stated::of(&party(2, (None, Some("wan"))), Role::Client);
        let fields = honest.tell(Handshake::new()).fields().to_vec();
        assert_eq!(Stated::read(&fields).unwrap(), honest);
        for (name, values) in [
            (OWN_CORES, &["0", "-1", "NaN", "65537", ""][..]),
            (CORES, &["0+4", "4+0", "4", "4+65537", "4+4+4", "inf+1"]),
            (
                LINK,
                &[
                    "0 bytes per second, 1 ns there and back",
                    "NaN bytes per second, 1 ns there and back",
                    "1000000000000001 bytes per second, 1 ns there and back",
                    "1 bytes per second, 1000000000001 ns there and back",
                    "-1 bytes per second, 1 ns there and back",
                    "wan",
                ],
            ),
        ] {
            for value in values {
                let mut fields = fields.clone();
                let field = fields.iter_mut().find(|field| field.name == name).unwrap();
                field.value = (*value).to_owned();
                let refused = Stated::read(&fields).unwrap_err();
                assert!(matches!(refused, NetError::Malformed { step: STEP, .. }), "{name} {value}: {refused}");
            }
            let without: Vec<Field> = fields.iter().filter(|field| field.name != name).cloned().collect();
            assert!(matches!(Stated::read(&without), Err(NetError::Malformed { .. })), "{name}");
        }
    }
}
