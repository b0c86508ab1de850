//! The messages before the first secret: handshake, description of the model, request.

use net::{Channel, Handshake, NetError};
use ot::CotKind;
use protocols::{DEFAULT_WEIGHT_FRAC, MIN_WEIGHT_FRAC, Packing};

use super::{Limits, PublicModel, Request, Terms, Wishes};
use crate::{Error, ModelSpec, Reveal};

/// Longest shape of a model.
pub const MAX_SHAPE_BYTES: usize = 16 << 10;
/// Longest tokenizer.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;
/// Longest reason for refusing a request.
pub const MAX_REASON_BYTES: usize = 512;

/// Scope of these messages in the ledger.
const SCOPE: &str = "handshake";
const SHAPE: &str = "handshake/shape";
const SCALES: &str = "handshake/scales";
const TOKENIZER: &str = "handshake/tokenizer";
const REQUEST: &str = "handshake/request";
const REQUEST_BYTES: usize = 9;
const VERDICT: &str = "handshake/verdict";

/// The name under which a client says whether it needs the tokenizer.
const WANTS_TOKENIZER: &str = "tokenizer";
/// The name of the model's name.
const NAME: &str = "name";

/// The server's part up to and including the verdict; fails if the request is refused.
pub(super) fn receive_client(
    channel: &mut Channel,
    model: &PublicModel,
    terms: &Terms,
    limits: &Limits,
) -> Result<Request, Error> {
    let shape = shape_text(&model.spec)?;
    let hello =
        stated(terms).tell("model", &shape).tell(NAME, printable(&model.name, net::handshake::MAX_VALUE_BYTES));
    let theirs = hello.run(channel)?;
    let wanted = theirs.iter().any(|field| field.name == WANTS_TOKENIZER && field.value == "true");
    scoped(channel, |channel| {
        channel.send(SHAPE, shape.as_bytes())?;
        // Scales lie in MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC.
        let scales: Vec<u8> = model.scales.iter().map(|&bits| bits as u8).collect();
        channel.send(SCALES, &scales)?;
        let tokenizer = model.tokenizer.as_deref().filter(|_| wanted).unwrap_or_default();
        if tokenizer.len() > MAX_TOKENIZER_BYTES {
            return Err(Error::Tokenizer(format!("{} bytes are too many to send", tokenizer.len())));
        }
        channel.send(TOKENIZER, tokenizer)?;
        let request = decode_request(&channel.recv(REQUEST, REQUEST_BYTES)?)?;
        let verdict = request.check(&model.spec, limits);
        let reason = verdict.as_ref().err().map(ToString::to_string).unwrap_or_default();
        channel.send(VERDICT, printable(&reason, MAX_REASON_BYTES).as_bytes())?;
        channel.flush(VERDICT)?;
        verdict.map(|()| request)
    })
}

/// The client's part before the request: what the server says about its model.
pub(super) fn meet_server(channel: &mut Channel, terms: &Terms, wishes: &Wishes) -> Result<PublicModel, Error> {
    let mut hello = stated(terms).tell(WANTS_TOKENIZER, wishes.tokenizer);
    if let Some(spec) = wishes.expected {
        hello = hello.agree("model", shape_text(spec)?);
    }
    let theirs = hello.run(channel)?;
    let name = theirs.into_iter().find(|field| field.name == NAME).map(|field| field.value).unwrap_or_default();
    scoped(channel, |channel| {
        let shape = channel.recv_up_to(SHAPE, MAX_SHAPE_BYTES)?;
        let spec: ModelSpec = serde_json::from_slice(&shape)
            .map_err(|e| malformed(SHAPE, printable(&format!("no model has this shape: {e}"), MAX_REASON_BYTES)))?;
        if wishes.expected.is_some_and(|expected| *expected != spec) {
            return Err(malformed(SHAPE, "not the shape that the handshake stated").into());
        }
        let scales = channel.recv(SCALES, spec.weight_specs().len())?;
        let scales: Vec<u32> = scales.into_iter().map(u32::from).collect();
        if let Some(bits) = scales.iter().find(|bits| !(MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC).contains(*bits)) {
            return Err(malformed(SCALES, format!("no weight has {bits} fractional bits")).into());
        }
        let max = if wishes.tokenizer { MAX_TOKENIZER_BYTES } else { 0 };
        let tokenizer = Some(channel.recv_up_to(TOKENIZER, max)?).filter(|bytes| !bytes.is_empty());
        Ok(PublicModel { name, spec, scales, tokenizer })
    })
}

/// The client's request and the server's verdict on it.
pub(super) fn ask(channel: &mut Channel, spec: &ModelSpec, request: &Request) -> Result<(), Error> {
    // What cannot work is not asked for; the server's own limits are its business.
    request.check(spec, &Limits::NONE)?;
    let message = encode_request(request)?;
    scoped(channel, |channel| {
        channel.send(REQUEST, &message)?;
        let reason = channel.recv_up_to(VERDICT, MAX_REASON_BYTES)?;
        if reason.is_empty() {
            return Ok(());
        }
        Err(Error::Refused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) })
    })
}

/// What both parties state alike.
fn stated(terms: &Terms) -> Handshake {
    let Terms { protocol, reveal, policy } = terms;
    let reveal = match reveal {
        Reveal::Logits => "logits",
        Reveal::Token => "token",
    };
    Handshake::new()
        .agree("version", env!("CARGO_PKG_VERSION"))
        .agree("ot", ot_name(protocol.ot))
        .agree("preprocess", protocol.preprocess)
        .agree("packing", packing_name(protocol.packing))
        .agree("link-rate", format!("{} bytes per second", protocol.link_rate))
        .agree("reveal", reveal)
        .agree("policy", policy)
}

/// The name of a source of correlated OTs.
pub(crate) fn ot_name(kind: CotKind) -> String {
    match kind {
        CotKind::Silent => "silent".into(),
        CotKind::SoftSpoken(kind) => format!("softspoken{}", kind.k()),
        #[allow(unreachable_patterns, reason = "other sources exist for the tests of lower layers only")]
        _ => "ideal".into(),
    }
}

/// The name of a choice about packing.
pub(crate) fn packing_name(packing: Packing) -> &'static str {
    match packing {
        Packing::Auto => "auto",
        Packing::Never => "never",
        Packing::Always => "always",
    }
}

fn shape_text(spec: &ModelSpec) -> Result<String, Error> {
    serde_json::to_string(spec).map_err(|e| crate::ConfigError::Json(e.to_string()).into())
}

fn encode_request(request: &Request) -> Result<Vec<u8>, Error> {
    let mut message = Vec::with_capacity(REQUEST_BYTES);
    for (what, number) in [("tokens of a prompt", request.prompt), ("tokens to generate", request.tokens)] {
        let limit = u32::MAX as usize;
        let number = u32::try_from(number).map_err(|_| Error::Limit { what, got: number, limit })?;
        message.extend(number.to_le_bytes());
    }
    message.push(u8::from(request.stop_at_eos));
    Ok(message)
}

fn decode_request(message: &[u8]) -> Result<Request, NetError> {
    let &[p0, p1, p2, p3, t0, t1, t2, t3, stop @ (0 | 1)] = message else {
        return Err(malformed(REQUEST, "the last byte is neither 0 nor 1"));
    };
    let number = |bytes| u32::from_le_bytes(bytes) as usize;
    Ok(Request { prompt: number([p0, p1, p2, p3]), tokens: number([t0, t1, t2, t3]), stop_at_eos: stop == 1 })
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

/// `text` without control characters, cut to `max` bytes: it may end up on the peer's terminal.
fn printable(text: &str, max: usize) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if out.len() + c.len_utf8() > max {
            break;
        }
        out.push(c);
    }
    out
}
