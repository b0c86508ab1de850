//! The parties tell each other what they have, for the plans of a session.
//!
//! Six facts of the handshake are padded, so that no plan depends on them: the cores that the party will use, its
//! family of kernels, the network that it imitates, and, where a person gave them, the cores and the link to plan
//! for, and what is revealed. For cores and link one party's word is enough. If both give one and they differ, the
//! session ends at both parties alike. If nobody gave them, the cores are those that each party stated as its own,
//! and the link is measured ([`waggle_net::measure`]). The server states the most that is revealed, and a client
//! takes that unless it wants less. A network that one party alone imitates would slow one direction only, so it ends
//! the session.

use std::fmt::Display;
use std::str::FromStr;

use waggle_bits::cpu::Cpu;
use waggle_model::Reveal;
use waggle_net::{Channel, Difference, Field, Handshake, LinkShape, Measured, NetError, Role};
use waggle_protocols::Cores;
use waggle_tokenizer::printable;

use super::wire::malformed;
use crate::Error;
use crate::names::{REVEALS, name};
use crate::terms::{Findings, Open, Terms};

const STEP: &str = "handshake";
/// The names of the facts, and the lengths to which their values are padded.
const OWN_CORES: (&str, usize) = ("own-cores", 11);
const KERNELS: (&str, usize) = ("kernels", 24);
const CORES: (&str, usize) = ("cores", 11);
const LINK: (&str, usize) = ("link", 48);
const IMITATED: (&str, usize) = ("imitated-link", 48);
pub(super) const REVEAL: (&str, usize) = ("reveal", 6);

/// Adds the six facts of this party to its handshake.
pub(super) fn tell(hello: Handshake, terms: &Terms) -> Handshake {
    let Terms { protocol, reveal, open, imitated, .. } = terms;
    let padded = |hello: Handshake, (name, length), text: String| hello.tell(name, format_args!("{text:length$}"));
    let given = |open: bool, value: &dyn Display| if open { String::new() } else { value.to_string() };
    let hello = padded(hello, OWN_CORES, protocol.cores.to_string());
    let hello = padded(hello, KERNELS, Cpu::get().to_string());
    let hello = padded(hello, CORES, given(open.cores, &protocol.cores));
    let hello = padded(hello, LINK, given(open.link, &protocol.link));
    let hello = padded(hello, IMITATED, imitated.map_or_else(String::new, |link| link.to_string()));
    padded(hello, REVEAL, given(open.reveal, &name(&REVEALS, reveal)))
}

/// The value that a party stated of a fact; `None` if the party was given none.
fn stated<T: FromStr>(fields: &[Field], (name, _): (&str, usize)) -> Result<Option<T>, NetError> {
    let field = fields.iter().find(|field| field.name == name);
    let text = field.ok_or_else(|| malformed(STEP, format!("`{name}` is missing")))?.value.trim_end();
    let value = if text.is_empty() { None } else { Some(text.parse()) };
    value.transpose().map_err(|_| malformed(STEP, format!("`{name}` is not possible: {text}")))
}

/// The terms on which the parties agree, from this party's `terms` and the fields that each sent. A link that nobody
/// gave is measured, unless `terms` say how the measurement went, as in a rehearsal.
///
/// # Errors
/// [`Error::TokensAlone`] for a client that wants more than the server permits; [`NetError::Disagreement`] with the
/// values that both parties were given and that differ; [`NetError::Malformed`] for a value that no party can have;
/// errors of the measurement.
pub(super) fn meet(channel: &mut Channel, terms: &Terms, ours: &[Field], theirs: &[Field]) -> Result<Terms, Error> {
    let [client, server] = if channel.role() == Role::Client { [ours, theirs] } else { [theirs, ours] };
    let reveal = match (revealed(client)?, revealed(server)?) {
        (_, None) => return Err(malformed(STEP, "a server that permits nothing").into()),
        (Some(Reveal::Logits), Some(Reveal::Token)) => return Err(Error::TokensAlone),
        (Some(Reveal::Token), _) => Reveal::Token,
        (_, Some(permitted)) => permitted,
    };
    let mut differences = Vec::new();
    let cores = given(CORES, client, server, &mut differences)?;
    let link: Option<LinkShape> = given(LINK, client, server, &mut differences)?;
    let imitated: [Option<LinkShape>; 2] = [stated(client, IMITATED)?, stated(server, IMITATED)?];
    if imitated[0] != imitated[1] {
        differences.push(Difference::new(IMITATED.0, imitated));
    }
    if !differences.is_empty() {
        return Err(NetError::Disagreement { differences }.into());
    }
    let of = |fields: &[Field]| {
        let own: Option<Cores> = stated(fields, OWN_CORES)?;
        let kernels: Option<String> = stated(fields, KERNELS)?;
        let own = own.ok_or_else(|| malformed(STEP, "a party without cores"))?;
        Ok::<_, NetError>((own, printable(&kernels.unwrap_or_default(), KERNELS.1)))
    };
    let ((client, of_client), (server, of_server)) = (of(client)?, of(server)?);
    let mut agreed = Terms { reveal, open: Open::default(), others: Vec::new(), ..terms.clone() };
    agreed.protocol.cores = cores.unwrap_or(Cores { client: client.client, server: server.server });
    let mut bursts = None;
    agreed.protocol.link = match link {
        Some(link) => link,
        None => {
            let rehearsed = terms.found.as_ref().and_then(|met| met.bursts);
            let known = rehearsed.map(|bursts| Measured { shape: terms.protocol.link, bursts });
            let measured = waggle_net::measure(channel, known)?;
            bursts = Some(measured.bursts);
            measured.shape
        }
    };
    agreed.found = Some(Findings { bursts, kernels: [of_client, of_server] });
    Ok(agreed)
}

/// What a client wants to learn, or the most that a server permits; `None` if the party stated neither.
fn revealed(fields: &[Field]) -> Result<Option<Reveal>, NetError> {
    let Some(text) = stated::<String>(fields, REVEAL)? else { return Ok(None) };
    let known = REVEALS.into_iter().find(|(name, _)| *name == text).map(|(_, reveal)| Some(reveal));
    known.ok_or_else(|| malformed(STEP, format!("nobody reveals `{}`", printable(&text, REVEAL.1))))
}

/// The value of `fact` that one party or both were given. If the parties were given different values, they are added
/// to `differences`.
fn given<T: Copy + PartialEq + Display + FromStr>(
    fact: (&str, usize),
    client: &[Field],
    server: &[Field],
    differences: &mut Vec<Difference>,
) -> Result<Option<T>, NetError> {
    let [client, server]: [Option<T>; 2] = [stated(client, fact)?, stated(server, fact)?];
    if client.zip(server).is_some_and(|(client, server)| client != server) {
        differences.push(Difference::new(fact.0, [client, server]));
    }
    Ok(client.or(server))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use waggle_net::memory_pair;

    use super::*;

    type Given<'a> = (Option<&'a str>, Option<&'a str>);

    /// The terms of a party that has `own` cores and was given `cores` and `link` to plan for.
    fn party(own: u32, (cores, link): Given) -> Terms {
        let mut terms =
            Terms { open: Open { cores: cores.is_none(), link: link.is_none(), reveal: false }, ..Terms::default() };
        terms.protocol.cores = cores.map_or(Cores::each(own), |cores| cores.parse().unwrap());
        terms.protocol.link = link.map_or(LinkShape::MEMORY, |link| link.parse().unwrap());
        terms
    }

    /// The terms on which both parties agree.
    fn agree(parties: [&Terms; 2]) -> [Result<Terms, Error>; 2] {
        let (here, there) = memory_pair(Duration::from_secs(60));
        let one = |terms: &Terms, mut channel: Channel| {
            let hello = tell(Handshake::new(), terms);
            let theirs = hello.run(&mut channel)?;
            meet(&mut channel, terms, hello.fields(), &theirs)
        };
        let (here, there) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
        thread::scope(|scope| {
            let server = scope.spawn(|| one(parties[1], there));
            [one(parties[0], here), server.join().unwrap()]
        })
    }

    #[test]
    fn one_word_is_enough_and_none_is_too() {
        let (four, wan) = (Some("4"), Some("wan"));
        for (client, server, cores, link) in [
            ((None, None), (None, None), "2+64", None),
            ((four, None), (None, None), "4", None),
            ((None, Some("123456.789mbit,0.000001ms")), (None, None), "2+64", Some("123456.789mbit,0.000001ms")),
            ((None, None), (Some("65536+60000"), wan), "65536+60000", wan),
            ((four, wan), (four, wan), "4", wan),
        ] {
            let agreed = agree([&party(2, client), &party(64, server)]);
            let [terms, others] = agreed.map(Result::unwrap);
            assert_eq!((&terms, terms.open, &*terms.protocol.cores.to_string()), (&others, Open::default(), cores));
            assert_eq!(terms.protocol.link, link.map_or(LinkShape::MEMORY, |link| link.parse().unwrap()));
            assert_eq!(terms.found.unwrap().bursts, if link.is_some() { None } else { Some(0) });
        }
    }

    /// A client gets what it asks for, if the server permits as much.
    #[test]
    fn a_client_learns_no_more_than_the_server_permits() {
        let party = |reveal: Option<Reveal>| {
            let mut terms = party(1, (Some("1"), Some("lan")));
            (terms.open.reveal, terms.reveal) = (reveal.is_none(), reveal.unwrap_or_default());
            terms
        };
        let (logits, token) = (Some(Reveal::Logits), Some(Reveal::Token));
        for (client, server, agreed) in [
            (None, logits, logits),
            (None, token, token),
            (logits, logits, logits),
            (token, logits, token),
            (token, token, token),
            (logits, token, None),
        ] {
            for got in agree([&party(client), &party(server)]) {
                match (got, agreed) {
                    (Ok(terms), Some(agreed)) => assert_eq!((terms.reveal, terms.open), (agreed, Open::default())),
                    (Err(Error::TokensAlone), None) => {}
                    (got, _) => panic!("{client:?} {server:?}: {got:?}"),
                }
            }
        }
    }

    #[test]
    fn two_different_words_are_refused_with_both() {
        for refused in agree([&party(2, (Some("4"), Some("lan"))), &party(2, (Some("4+8"), Some("wan")))]) {
            let words = "cores: client says 4, server says 4+8; link: client says lan, server says wan";
            let refused = refused.unwrap_err();
            let Error::Net(disagreement @ NetError::Disagreement { differences }) = &refused else {
                panic!("{refused}")
            };
            assert_eq!(differences.len(), 2);
            let refused = disagreement;
            assert!(refused.to_string().ends_with(words), "{refused}");
        }
    }

    #[test]
    fn a_network_that_one_party_alone_imitates_is_refused() {
        let party = |imitated: Option<&str>| {
            let terms = party(2, (None, imitated));
            Terms { imitated: imitated.map(|link| link.parse().unwrap()), ..terms }
        };
        let (wan, far) = (Some("wan"), Some("12mbit,3ms"));
        for (client, server) in [(None, None), (wan, wan), (far, far)] {
            assert!(agree([&party(client), &party(server)]).iter().all(Result::is_ok), "{client:?} {server:?}");
        }
        for (client, server, words) in [
            (wan, None, "imitated-link: client says wan, server says nothing"),
            (None, far, "imitated-link: client says nothing, server says 12mbit,3ms"),
        ] {
            for refused in agree([&party(client), &party(server)]) {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.ends_with(words), "{refused}");
            }
        }
    }

    #[test]
    fn nobody_has_no_cores_or_an_absurd_link() {
        let terms = party(2, (None, None));
        let honest = tell(Handshake::new(), &terms).fields().to_vec();
        for (name, value) in ["0", "-1", "NaN", "65537", "0+4", "4+4+4"]
            .into_iter()
            .flat_map(|cores| [(OWN_CORES.0, cores), (CORES.0, cores)])
            .chain(
                ["0mbit,1ms", "NaNmbit,1ms", "1e99mbit,1ms", "1mbit,1e9ms", "far"]
                    .into_iter()
                    .flat_map(|link| [(LINK.0, link), (IMITATED.0, link)]),
            )
            .chain([(OWN_CORES.0, ""), (REVEAL.0, "all"), (REVEAL.0, "")])
        {
            let mut fields = honest.clone();
            fields.iter_mut().find(|field| field.name == name).unwrap().value = value.into();
            let mut channel = Channel::new(Role::Client, memory_pair(Duration::from_secs(60)).0);
            let refused = meet(&mut channel, &terms, &honest, &fields).unwrap_err();
            let malformed = matches!(refused, Error::Net(NetError::Malformed { step: STEP, .. }));
            assert!(malformed, "{name} {value}: {refused}");
        }
    }
}
