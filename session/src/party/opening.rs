//! The messages before the first secret: handshake, description of the model, request.

use engine::LogitBits;
use model::{Drafts, Lengths, ModelSpec};
use net::{Channel, Field, Handshake, NetError, Role};
use protocols::{DEFAULT_WEIGHT_FRAC, MAX_PARTS, MIN_WEIGHT_FRAC, Part};
use tokenizer::{MAX_TEMPLATE_BYTES, MAX_TOKENIZER_BYTES, TokenizerError, printable};

use super::{ClientOptions, PublicModel, Request, Terms};
use crate::Error;
use crate::names::{MASKS, OT_SOURCES, PACKINGS, REVEALS, name};
use crate::pool::PoolId;

/// Number of the protocol between the parties. It rises whenever bytes on the wire change: a message, its layout, or
/// how many there are. Parties with different numbers refuse each other ([`Error::Protocol`]); releases with one
/// number work together.
pub const PROTOCOL: u32 = 1;
/// The field of the handshake that states it.
const PROTOCOL_FIELD: &str = "protocol";
/// Longest shape of a model.
pub const MAX_SHAPE_BYTES: usize = 16 << 10;
/// Longest reason for refusing a request.
pub const MAX_REASON_BYTES: usize = 512;

/// Scope of these messages in the ledger.
const SCOPE: &str = "handshake";
const SHAPE: &str = "handshake/shape";
const FRAC_BITS: &str = "handshake/scales";
const TOKENIZER: &str = "handshake/tokenizer";
const TEMPLATE: &str = "handshake/template";
const REQUEST: &str = "handshake/request";
/// Bytes of a request before those about pools.
const REQUEST_HEAD: usize = 10;
/// Most files that a client names as those that it has.
const MAX_KEPT: usize = 4095;
/// Longest request: to fill a pool, with the names of those that the client has.
const MAX_REQUEST_BYTES: usize = REQUEST_HEAD + POOL_BYTES * (1 + MAX_KEPT);
const VERDICT: &str = "handshake/verdict";
const POOL: &str = "handshake/pool";
const POOL_BYTES: usize = 16;

/// The name under which a client says whether it needs the tokenizer.
const WANTS_TOKENIZER: &str = "tokenizer";
/// The name under which a client says that it needs the chat template; otherwise it says nothing.
const WANTS_TEMPLATE: &str = "template";
/// The name of the model's name.
const NAME: &str = "name";
/// The name of the client's choice of one phase (`false`) or two (`true`).
const PREPROCESS: &str = "preprocess";

/// The purpose of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// A generation; what it needs is made in the session.
    Generate,
    /// The correlations of a generation, for a pool.
    Fill {
        /// Which part of them.
        part: Part,
        /// The parts of pools that the client has. It has none but these, if it says so.
        kept: Option<Vec<PoolId>>,
    },
    /// A generation with the correlations of the pool that has these parts, in order: 1 to [`MAX_PARTS`].
    Spend(Vec<PoolId>),
    /// Several turns; the request bounds each of them. See [`super::chat`].
    Chat,
}

/// The server's part up to and including the verdict, which `accept` gives; fails if the request is refused. In the
/// terms returned, and passed to `accept`, the number of phases is the client's.
pub(super) fn receive_client<T>(
    channel: &mut Channel,
    model: &PublicModel,
    terms: &Terms,
    accept: impl FnOnce(&Request, SessionKind, &Terms) -> Result<T, Error>,
) -> Result<(Request, Terms, T), Error> {
    let shape = shape_text(&model.spec)?;
    let hello =
        stated(terms).tell("model", &shape).tell(NAME, printable(&model.name, net::handshake::MAX_VALUE_BYTES));
    let theirs = agree(&hello, channel)?;
    let wants = |name: &str| theirs.iter().any(|field| field.name == name && field.value == "true");
    let (wanted, wants_template) = (wants(WANTS_TOKENIZER), wants(WANTS_TEMPLATE));
    let mut terms = terms.clone();
    terms.protocol.preprocess = match theirs.iter().find(|field| field.name == PREPROCESS).map(|field| &*field.value)
    {
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            return Err(malformed(SCOPE, format!("`{PREPROCESS}` is neither true nor false: {other}")).into());
        }
        None => return Err(malformed(SCOPE, format!("`{PREPROCESS}` is missing")).into()),
    };
    scoped(channel, |channel| {
        channel.send(SHAPE, shape.as_bytes())?;
        // They lie in MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC.
        let frac_bits: Vec<u8> = model.frac_bits.iter().map(|&bits| bits as u8).collect();
        channel.send(FRAC_BITS, &frac_bits)?;
        let tokenizer = model.tokenizer.as_deref().filter(|_| wanted).unwrap_or_default();
        if tokenizer.len() > MAX_TOKENIZER_BYTES {
            let (got, limit) = (tokenizer.len(), MAX_TOKENIZER_BYTES);
            return Err(TokenizerError::TooMuch { what: "bytes of tokenizer.json".into(), got, limit }.into());
        }
        channel.send(TOKENIZER, tokenizer)?;
        if wants_template {
            channel.send(TEMPLATE, model.template.as_deref().unwrap_or_default())?;
        }
        let (request, kind) = decode_request(&channel.recv_up_to(REQUEST, MAX_REQUEST_BYTES)?)?;
        let verdict = accept(&request, kind, &terms);
        send_verdict(channel, VERDICT, verdict.as_ref().err())?;
        let accepted = verdict?;
        Ok((request, terms, accepted))
    })
}

/// Names the pool of an [`SessionKind::Fill`] that was accepted.
pub(super) fn name_pool(channel: &mut Channel, id: PoolId) -> Result<(), Error> {
    scoped(channel, |channel| Ok(channel.send(POOL, &id.0)?))
}

/// Learns the name that the server gives to the pool.
pub(super) fn learn_pool(channel: &mut Channel) -> Result<PoolId, Error> {
    scoped(channel, |channel| {
        let mut id = [0; POOL_BYTES];
        id.copy_from_slice(&channel.recv(POOL, POOL_BYTES)?);
        Ok(PoolId(id))
    })
}

/// Tells the client that all is well, or why not.
pub(super) fn send_verdict(channel: &mut Channel, step: &'static str, error: Option<&Error>) -> Result<(), Error> {
    let reason = error.map(reason).unwrap_or_default();
    channel.send(step, printable(&reason, MAX_REASON_BYTES).as_bytes())?;
    Ok(channel.flush(step)?)
}

/// The part of a server's error that a client may read: no paths, nothing about weights.
fn reason(error: &Error) -> String {
    match error {
        Error::PoolFile { source, .. } | Error::Pool(source) => source.for_peer(),
        Error::Model(model::Error::File { source, .. }) => format!("a file of the server's fails: {}", source.kind()),
        other => other.to_string(),
    }
}

/// The server's word on the client's side.
pub(super) fn receive_verdict(channel: &mut Channel, step: &'static str) -> Result<(), Error> {
    let reason = channel.recv_up_to(step, MAX_REASON_BYTES)?;
    if reason.is_empty() {
        return Ok(());
    }
    Err(Error::Refused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) })
}

/// The client's part before the request: what the server says about its model.
pub(super) fn meet_server(
    channel: &mut Channel,
    terms: &Terms,
    options: &ClientOptions,
) -> Result<PublicModel, Error> {
    let mut hello =
        stated(terms).tell(PREPROCESS, terms.protocol.preprocess).tell(WANTS_TOKENIZER, options.tokenizer);
    if options.template {
        hello = hello.tell(WANTS_TEMPLATE, true);
    }
    if let Some(spec) = options.expected {
        hello = hello.agree("model", shape_text(spec)?);
    }
    let theirs = agree(&hello, channel)?;
    let name = theirs.into_iter().find(|field| field.name == NAME).map(|field| field.value).unwrap_or_default();
    scoped(channel, |channel| {
        let shape = channel.recv_up_to(SHAPE, MAX_SHAPE_BYTES)?;
        let spec: ModelSpec = serde_json::from_slice(&shape)
            .map_err(|e| malformed(SHAPE, printable(&format!("no model has this shape: {e}"), MAX_REASON_BYTES)))?;
        if options.expected.is_some_and(|expected| *expected != spec) {
            return Err(malformed(SHAPE, "not the shape that the handshake stated").into());
        }
        let frac_bits = channel.recv(FRAC_BITS, spec.weight_specs().len())?;
        let frac_bits: Vec<u32> = frac_bits.into_iter().map(u32::from).collect();
        if let Some(bits) = frac_bits.iter().find(|bits| !(MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC).contains(*bits)) {
            return Err(malformed(FRAC_BITS, format!("no weight has {bits} fractional bits")).into());
        }
        let max = if options.tokenizer { MAX_TOKENIZER_BYTES } else { 0 };
        let tokenizer = Some(channel.recv_up_to(TOKENIZER, max)?).filter(|bytes| !bytes.is_empty());
        let template = options.template.then(|| channel.recv_up_to(TEMPLATE, MAX_TEMPLATE_BYTES)).transpose()?;
        Ok(PublicModel { name, spec, frac_bits, tokenizer, template })
    })
}

/// The client's request and the server's verdict on it.
pub(super) fn ask(channel: &mut Channel, request: &Request, kind: &SessionKind) -> Result<(), Error> {
    let message = encode_request(request, kind)?;
    scoped(channel, |channel| {
        channel.send(REQUEST, &message)?;
        receive_verdict(channel, VERDICT)
    })
}

/// The facts that both parties state alike.
fn stated(terms: &Terms) -> Handshake {
    let facts = terms.facts();
    let alike = facts.iter().filter(|(name, _)| name != PREPROCESS);
    alike.fold(Handshake::new(), |hello, (name, value)| hello.agree(name, value))
}

/// The handshake. Another number of the protocol has an error of its own, because all else may differ by it.
fn agree(hello: &Handshake, channel: &mut Channel) -> Result<Vec<Field>, Error> {
    let role = channel.role();
    hello.run(channel).map_err(|error| {
        let NetError::Disagreement { differences } = &error else { return error.into() };
        let Some(difference) = differences.iter().find(|one| one.name == PROTOCOL_FIELD) else { return error.into() };
        let theirs = match role {
            Role::Client => &difference.server,
            Role::Server => &difference.client,
        };
        Error::Protocol { ours: PROTOCOL, theirs: theirs.as_ref().and_then(|number| number.parse().ok()) }
    })
}

impl Terms {
    /// Protocol and terms by name.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let Terms { protocol, reveal, logit_bits, policy, prefill_chunk } = self;
        let chunk = prefill_chunk.map(|chunk| ("prefill-chunk", chunk.to_string()));
        let bits = (*logit_bits != LogitBits::default()).then(|| ("logit-bits", logit_bits.to_string()));
        [
            // Four digits, so that no plan changes when the number rises.
            (PROTOCOL_FIELD, format!("{PROTOCOL:04}")),
            ("ot", name(&OT_SOURCES, &protocol.ot).to_owned()),
            (PREPROCESS, protocol.preprocess.to_string()),
            ("packing", name(&PACKINGS, &protocol.packing).to_owned()),
            ("cores", protocol.cores.to_string()),
            ("masks", name(&MASKS, &protocol.masks).to_owned()),
            ("link", link_name(protocol.link)),
            ("reveal", name(&REVEALS, reveal).to_owned()),
            ("policy", policy.to_string()),
        ]
        .into_iter()
        .chain(chunk)
        .chain(bits)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// The text by which a link is stated.
fn link_name(link: net::Shape) -> String {
    format!("{} bytes per second, {} ns there and back", link.bytes_per_second, link.round_trip.as_nanos())
}

fn shape_text(spec: &ModelSpec) -> Result<String, Error> {
    serde_json::to_string(spec).map_err(|e| model::ConfigError::Json(e.to_string()).into())
}

fn encode_request(request: &Request, kind: &SessionKind) -> Result<Vec<u8>, Error> {
    let mut message = Vec::with_capacity(REQUEST_HEAD + POOL_BYTES);
    for (what, number) in
        [("tokens of a prompt", request.lengths.prompt), ("tokens to generate", request.lengths.tokens)]
    {
        let limit = u32::MAX as usize;
        let number = u32::try_from(number).map_err(|_| Error::Limit { what, got: number, limit })?;
        message.extend(number.to_le_bytes());
    }
    let flags = u8::from(request.stop_at_eos) | u8::from(request.padded) << 1 | u8::from(request.pad_answer) << 2;
    match kind {
        SessionKind::Generate => {
            message.extend([flags, 0]);
            Drafts::to_words(request.draft).iter().for_each(|word| message.extend(word.to_le_bytes()));
            message.resize(REQUEST_HEAD + POOL_BYTES, 0);
        }
        SessionKind::Chat if request.draft.is_some() => return Err(Error::DraftChat),
        SessionKind::Chat => {
            message.extend([flags, 3]);
            message.resize(REQUEST_HEAD + POOL_BYTES, 0);
        }
        SessionKind::Fill { .. } | SessionKind::Spend(_) if request.draft.is_some() => return Err(Error::DraftPool),
        SessionKind::Fill { part, kept } => {
            let got = kept.as_ref().map_or(0, Vec::len);
            if got > MAX_KEPT {
                return Err(Error::Limit { what: "files of pools", got, limit: MAX_KEPT });
            }
            message.extend([flags, 1]);
            let numbers = [part.number(), part.of(), u32::from(kept.is_some()), 0];
            numbers.iter().for_each(|number| message.extend(number.to_le_bytes()));
            kept.iter().flatten().for_each(|id| message.extend(id.0));
        }
        SessionKind::Spend(ids) => {
            message.extend([flags, 2]);
            ids.iter().for_each(|id| message.extend(id.0));
        }
    }
    Ok(message)
}

fn decode_request(message: &[u8]) -> Result<(Request, SessionKind), NetError> {
    let Some((&[p0, p1, p2, p3, t0, t1, t2, t3, flags, kind], rest)) = message.split_first_chunk() else {
        return Err(malformed(REQUEST, format!("{} bytes are too few", message.len())));
    };
    let (fields, beyond) = rest.as_chunks::<POOL_BYTES>();
    // An answer that does not end is not padded.
    if flags > 7 || flags & 5 == 4 {
        return Err(malformed(REQUEST, format!("the ninth byte is {flags}")));
    }
    if !beyond.is_empty() {
        return Err(malformed(REQUEST, format!("{} bytes are no number of ids", rest.len())));
    }
    let number = |bytes| u32::from_le_bytes(bytes);
    let mut draft = None;
    let kind = match (kind, fields) {
        (0, [[k0, k1, k2, k3, r0, r1, r2, r3, s0, s1, s2, s3, 0, 0, 0, 0]]) => {
            let words = [[k0, k1, k2, k3], [r0, r1, r2, r3], [s0, s1, s2, s3]].map(|word| number(word.map(|b| *b)));
            let stated = Drafts::from_words(words);
            draft = stated.ok_or_else(|| malformed(REQUEST, format!("no draft has the numbers {words:?}")))?;
            SessionKind::Generate
        }
        (1, [[n0, n1, n2, n3, o0, o1, o2, o3, told @ 0..=1, 0, 0, 0, 0, 0, 0, 0], kept @ ..])
            if *told == 1 || kept.is_empty() =>
        {
            let part = Part::new(number([*n0, *n1, *n2, *n3]), number([*o0, *o1, *o2, *o3]));
            let part = part.map_err(|e| malformed(REQUEST, e.to_string()))?;
            // The length of the message bounds their number.
            SessionKind::Fill { part, kept: (*told == 1).then(|| kept.iter().copied().map(PoolId).collect()) }
        }
        (2, [_, ..]) if fields.len() <= MAX_PARTS as usize => {
            SessionKind::Spend(fields.iter().copied().map(PoolId).collect())
        }
        (3, [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]) if flags & 2 == 0 => SessionKind::Chat,
        (0..=3, _) => return Err(malformed(REQUEST, "what follows the tenth byte does not belong to it")),
        _ => return Err(malformed(REQUEST, "the tenth byte is none of 0, 1, 2, 3")),
    };
    let length = |bytes| number(bytes) as usize;
    let request = Request {
        lengths: Lengths { prompt: length([p0, p1, p2, p3]), tokens: length([t0, t1, t2, t3]) },
        stop_at_eos: flags & 1 == 1,
        pad_answer: flags & 4 == 4,
        padded: flags & 2 == 2,
        draft,
    };
    Ok((request, kind))
}

/// Passes `result` on; if the peer's data was bad, the peer hears at which step.
pub(super) fn complaining<T>(channel: &mut Channel, result: Result<T, Error>) -> Result<T, Error> {
    if let Some(step) = result.as_ref().err().and_then(Error::net).and_then(NetError::bad_step) {
        channel.reject(step);
    }
    result
}

/// Runs `steps` under [`SCOPE`], which is closed on failure too.
fn scoped<T>(channel: &mut Channel, steps: impl FnOnce(&mut Channel) -> Result<T, Error>) -> Result<T, Error> {
    let depth = channel.ledger().depth();
    channel.ledger_mut().enter(SCOPE);
    let result = steps(channel);
    channel.ledger_mut().leave_to(depth);
    result
}

fn malformed(step: &'static str, what: impl Into<String>) -> NetError {
    NetError::Malformed { step, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_no_path_of_the_server() {
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let told = reason(&model::Error::File { path: "/home/owner/accounts.json".into(), source }.into());
        assert_eq!(told, "a file of the server's fails: permission denied");
    }

    /// [`PROTOCOL`], and the digest of what `requests_raise_the_number` encodes.
    const PINNED: (u32, &str) = (1, "1c10d2ce303f2f2a");

    #[test]
    fn requests_raise_the_number() {
        let request = Request {
            lengths: Lengths { prompt: 300, tokens: 70_000 },
            stop_at_eos: true,
            pad_answer: false,
            padded: false,
            draft: None,
        };
        let drafted = Request { draft: Some(Drafts::new(4, 1.5).unwrap()), ..request };
        let padded = Request { padded: true, pad_answer: true, ..request };
        let ids = vec![PoolId([7; POOL_BYTES]), PoolId([9; POOL_BYTES])];
        let part = Part::new(3, 4).unwrap();
        let messages = [
            (drafted, SessionKind::Generate),
            (padded, SessionKind::Generate),
            (request, SessionKind::Chat),
            (request, SessionKind::Fill { part, kept: None }),
            (request, SessionKind::Fill { part, kept: Some(ids.clone()) }),
            (request, SessionKind::Spend(ids)),
        ]
        .map(|(request, kind)| encode_request(&request, &kind).unwrap());
        let digest = blake3::hash(&messages.concat()).to_hex();
        assert_eq!(
            (PROTOCOL, &digest[..16]),
            PINNED,
            "if the bytes of requests change, raise `PROTOCOL`, say so in CHANGELOG.md and pin both here"
        );
    }

    #[test]
    fn a_request_has_one_encoding() {
        let request = |kind: u8| Request {
            lengths: Lengths { prompt: 7, tokens: 300 },
            stop_at_eos: kind % 2 == 1,
            pad_answer: kind == 1,
            padded: kind > 1,
            draft: None,
        };
        let ids = |count: u32| SessionKind::Spend((0..count).map(|id| PoolId([id as u8; POOL_BYTES])).collect());
        let part = |number, of| SessionKind::Fill { part: Part::new(number, of).unwrap(), kept: None };
        let keeping =
            |count: usize| SessionKind::Fill { part: Part::WHOLE, kept: Some(vec![PoolId::random(); count]) };
        let kinds = [
            SessionKind::Chat,
            SessionKind::Generate,
            part(1, 1),
            part(3, 4),
            part(256, 256),
            ids(1),
            ids(3),
            ids(MAX_PARTS),
            keeping(0),
            keeping(MAX_KEPT),
        ];
        for (at, kind) in (0..4).cycle().zip(kinds) {
            let message = encode_request(&request(at), &kind).unwrap();
            assert!(message.len() <= MAX_REQUEST_BYTES, "{kind:?}");
            assert_eq!(decode_request(&message).unwrap(), (request(at), kind));
        }
        let draft = Drafts::new(4, 1.5).unwrap();
        let drafted = Request { draft: Some(draft), ..request(0) };
        for request in [Request { draft: Some(draft.steady()), ..drafted }, drafted] {
            let message = encode_request(&request, &SessionKind::Generate).unwrap();
            assert_eq!(message.len(), REQUEST_HEAD + POOL_BYTES);
            assert_eq!(decode_request(&message).unwrap(), (request, SessionKind::Generate));
        }
        let beyond = encode_request(&request(0), &keeping(MAX_KEPT + 1));
        assert!(matches!(beyond, Err(Error::Limit { got: 4096, limit: MAX_KEPT, .. })));
        for kind in [part(1, 1), ids(1)] {
            assert!(matches!(encode_request(&drafted, &kind), Err(Error::DraftPool)), "{kind:?}");
        }
        let head = |kind: u8| [7, 0, 0, 0, 2, 0, 0, 0, 0, kind];
        let field = |values: [u32; 4]| values.map(u32::to_le_bytes).concat();
        let bad = [
            Vec::new(),
            head(0)[..9].to_vec(),
            head(0).to_vec(),
            head(2).to_vec(),
            [&head(0)[..], &[0; 15]].concat(),
            [&head(2)[..], &[0; 17]].concat(),
            [&head(0)[..], &field([0, 0, 0, 1])].concat(),
            [&head(0)[..], &[0; 32]].concat(),
            [&head(0)[..], &field([0, 1000, 0, 0])].concat(),
            [&head(0)[..], &field([4, 999, 0, 0])].concat(),
            [&head(0)[..], &field([4, 5001, 0, 0])].concat(),
            [&head(0)[..], &field([65, 1000, 0, 0])].concat(),
            [&head(0)[..], &field([4, 1500, 2, 0])].concat(),
            [&head(0)[..], &field([4, 1500, 0, 1])].concat(),
            [&[7, 0, 0, 0, 2, 0, 0, 0, 4, 0][..], &[0; 16]].concat(),
            [&[7, 0, 0, 0, 2, 0, 0, 0, 9, 0][..], &[0; 16]].concat(),
            [&head(4)[..], &[0; 16]].concat(),
            head(3).to_vec(),
            [&[7, 0, 0, 0, 2, 0, 0, 0, 2, 3][..], &[0; 16]].concat(),
            [&head(3)[..], &field([0, 0, 0, 1])].concat(),
            [&head(1)[..], &field([0, 0, 0, 0])].concat(),
            [&head(1)[..], &field([0, 1, 0, 0])].concat(),
            [&head(1)[..], &field([5, 4, 0, 0])].concat(),
            [&head(1)[..], &field([1, 257, 0, 0])].concat(),
            [&head(1)[..], &field([1, 1, 0, 1])].concat(),
            [&head(1)[..], &field([1, 1, 2, 0])].concat(),
            [&head(1)[..], &field([1, 1, 1, 0]), &[0; 15]].concat(),
            [&head(2)[..], &[0; POOL_BYTES].repeat(1 + MAX_PARTS as usize)].concat(),
            [&head(1)[..], &field([1, 1, 0, 0]), &[0; 16]].concat(),
        ];
        for message in bad {
            assert!(
                matches!(decode_request(&message), Err(NetError::Malformed { step: REQUEST, .. })),
                "{message:?}"
            );
        }
    }
}
