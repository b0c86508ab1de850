//! The messages before the first secret: handshake, description of the model, request.

use serde::{Deserialize, Serialize};
use waggle_engine::LogitBits;
use waggle_model::{Drafts, Lengths, ModelSpec};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Difference, Field, Handshake, NetError, Role};
use waggle_protocols::functions::softmax::MAX_SOFTMAX_COLUMNS;
use waggle_protocols::{DEFAULT_WEIGHT_FRAC, HelperDeals, MAX_PARTS, MIN_WEIGHT_FRAC, Part};
use waggle_tokenizer::{MAX_TEMPLATE_BYTES, MAX_TOKENIZER_BYTES, TokenizerError, printable};

use super::meeting::{REVEAL, meet, tell};
use super::wire::{self, malformed};
use super::{ClientOptions, PublicModel, Request, Terms};
use crate::names::{HELPERS, MASKS, OT_SOURCES, PACKINGS, REVEALS, name};
use crate::pool::PoolId;
use crate::prefix::matrices;
use crate::{Base, BaseError, Error, PublicPrefix};

/// Number of the protocol between the parties. It rises whenever bytes on the wire change: a message, its layout, or
/// how many there are. Parties with different numbers refuse each other ([`Error::Protocol`]); releases with one
/// number work together.
pub const PROTOCOL: u32 = 9;
/// The field of the handshake in which a client states its policy and a server the policies that it permits.
const POLICY: &str = "policy";
/// The field of the handshake that states the number of the protocol.
const PROTOCOL_FIELD: &str = "protocol";
/// Most bytes of a model's shape.
pub const MAX_SHAPE_BYTES: usize = 16 << 10;
/// Most bytes of the reason for refusing a request.
pub const MAX_REASON_BYTES: usize = 512;

/// Scope of the messages of the opening in the ledger. Their steps follow.
const SCOPE: &str = "handshake";
const SHAPE: &str = "handshake/shape";
const FRAC_BITS: &str = "handshake/scales";
const TOKENIZER: &str = "handshake/tokenizer";
const TEMPLATE: &str = "handshake/template";
const REQUEST: &str = "handshake/request";
/// The most files of pools that a request names as those that the client has.
pub(super) const MAX_KEPT: usize = 4095;
/// Most bytes of a request. The longest one fills a pool and names the files of pools that the client has; everything
/// else in it takes at most 32 bytes, and what public tokens take.
const MAX_REQUEST_BYTES: usize = 32 + POOL_BYTES * MAX_KEPT + MAX_PREFIX_BYTES;
/// Most bytes of public tokens, four each, and of the policy that prunes them.
const MAX_PREFIX_BYTES: usize = 4 * MAX_SOFTMAX_COLUMNS + 1024;
/// Most bytes of a model's name, without its folder.
const MAX_NAME_BYTES: usize = 1024;
const VERDICT: &str = "handshake/verdict";
const OFFER: &str = "handshake/prefix";
const PREFIX_SCALES: &str = "handshake/prefix-scales";
const POOL: &str = "handshake/pool";
const POOL_BYTES: usize = 16;

/// The field of the handshake in which a client says whether it needs the tokenizer.
const WANTS_TOKENIZER: &str = "tokenizer";
/// The field of the handshake in which a client says that it needs the chat template; otherwise the field is absent.
const WANTS_TEMPLATE: &str = "template";
/// The field of the handshake in which the server states the model's name.
const NAME: &str = "name";
/// The field of the handshake in which the client chooses one phase (`false`) or two (`true`).
const PREPROCESS: &str = "preprocess";
/// The name of public tokens among the facts of a session. In the handshake a server states the digest of those that
/// it offers, if it offers some.
const PREFIX: &str = "prefix";
/// The field of the handshake in which both parties state what their helper deals.
const HELPER_DEALS: &str = "helper-deals";

/// The purpose of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SessionKind {
    /// A generation whose correlations are made in the session.
    Generate,
    /// A filling: the parties make correlations of a generation for a pool.
    Fill {
        /// The part of the correlations that is made.
        part: Part,
        /// All parts of pools that the client has; `None` if it does not say.
        kept: Option<Vec<PoolId>>,
    },
    /// A generation with the correlations of the pool that has these parts, in order: 1 to [`MAX_PARTS`].
    Spend(Vec<PoolId>),
    /// Several turns, each at most as long as the request. See [`super::chat`].
    Chat,
    /// A generation that shows the logits of the prompt. Only messages have this kind; elsewhere
    /// [`Request::all_positions`] says so.
    Score,
    /// A session of another kind behind public tokens. Only messages have this kind; elsewhere [`Terms::prefix`] says
    /// so.
    Behind(Public, Box<SessionKind>),
}

/// Public tokens as a client asks for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Public {
    /// Those that the server offers.
    Offered,
    /// The client's own.
    Own(Tokens),
}

/// Public tokens as they are sent: four bytes for each, and the policy that prunes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tokens {
    ids: Vec<u8>,
    policy: String,
}

impl From<&PublicPrefix> for Tokens {
    fn from(prefix: &PublicPrefix) -> Self {
        let ids = prefix.ids().iter().flat_map(|id| id.to_le_bytes()).collect();
        Tokens { ids, policy: prefix.policy().to_string() }
    }
}

impl Tokens {
    fn read(self, step: &'static str) -> Result<PublicPrefix, NetError> {
        let (ids, rest) = self.ids.as_chunks::<4>();
        let policy: PolicySpec = self.policy.parse().map_err(|_| malformed(step, "a policy that nobody knows"))?;
        if !rest.is_empty() || policy.to_string() != self.policy {
            return Err(malformed(step, "not the form of its value"));
        }
        Ok(PublicPrefix::new(ids.iter().map(|id| u32::from_le_bytes(*id)).collect::<Vec<_>>(), policy))
    }
}

impl Public {
    /// The way in which a client asks for `prefix`, knowing what the server offers.
    fn new(prefix: &PublicPrefix, offer: Option<&PublicPrefix>) -> Self {
        match offer.is_some_and(|offer| offer.is(prefix)) {
            true => Public::Offered,
            false => Public::Own(prefix.into()),
        }
    }

    fn read(self, offer: Option<&PublicPrefix>) -> Result<PublicPrefix, NetError> {
        match (self, offer) {
            (Public::Own(tokens), _) => tokens.read(REQUEST),
            (Public::Offered, Some(offer)) => Ok(offer.clone()),
            (Public::Offered, None) => Err(malformed(REQUEST, "public tokens that nobody offers")),
        }
    }
}

/// A request as it is sent. Lengths have four bytes each, so all requests of one kind have the same length.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    #[serde(with = "postcard::fixint::le")]
    prompt: u32,
    #[serde(with = "postcard::fixint::le")]
    tokens: u32,
    stop_at_eos: bool,
    pad_answer: bool,
    padded: bool,
    texts: u32,
    draft: Option<Drafts>,
    kind: SessionKind,
}

impl Message {
    /// The message for `request`. Lengths beyond 32 bits, which no session has, become the largest number of 32 bits.
    fn new(request: &Request, kind: &SessionKind, public: Option<Public>) -> Self {
        let Request { stop_at_eos, pad_answer, padded, all_positions, draft, .. } = *request;
        let (Lengths { prompt, tokens }, texts) = (request.lengths, request.texts);
        let kind = if all_positions { SessionKind::Score } else { kind.clone() };
        let kind = match public {
            Some(public) => SessionKind::Behind(public, Box::new(kind)),
            None => kind,
        };
        let [prompt, tokens, texts] = [prompt, tokens, texts].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Message { prompt, tokens, stop_at_eos, pad_answer, padded, texts, draft, kind }
    }

    /// The request, its kind, and the public tokens before its texts. Fields that no client sends together are
    /// malformed.
    fn read(self) -> Result<(Request, SessionKind, Option<Public>), NetError> {
        let Message { prompt, tokens, stop_at_eos, pad_answer, padded, texts, draft, kind } = self;
        let (kind, public) = match kind {
            SessionKind::Behind(public, kind) => (*kind, Some(public)),
            kind => (kind, None),
        };
        let wrong = match &kind {
            SessionKind::Behind(..) => Some("public tokens before public tokens".to_owned()),
            _ if pad_answer && !stop_at_eos => Some("an answer that does not end is padded".to_owned()),
            SessionKind::Chat if padded => Some("the prompt of a chat is padded".to_owned()),
            SessionKind::Chat if texts != 1 => Some("a chat has several texts at once".to_owned()),
            SessionKind::Spend(ids) if !(1..=MAX_PARTS as usize).contains(&ids.len()) => {
                Some(format!("a pool has no {} parts", ids.len()))
            }
            _ => None,
        };
        let lengths = Lengths { prompt: prompt as usize, tokens: tokens as usize };
        let (all_positions, texts) = (kind == SessionKind::Score, texts as usize);
        let kind = if all_positions { SessionKind::Generate } else { kind };
        let request = Request { lengths, stop_at_eos, pad_answer, padded, texts, all_positions, draft };
        wrong.map_or(Ok((request, kind, public)), |what| Err(malformed(REQUEST, what)))
    }
}

/// The server's side of the opening, up to and including the verdict, which `accept` gives. Fails if the request is
/// refused. The terms that `accept` gets and that are returned have the number of phases and the public tokens that
/// the client chose, and the cores and the link on which the parties agreed. `accept` states the fractional bits of
/// what it makes of public tokens.
pub(super) fn receive_client<T>(
    channel: &mut Channel,
    model: &PublicModel,
    terms: &Terms,
    accept: impl FnOnce(&Request, SessionKind, &mut Terms) -> Result<T, Error>,
) -> Result<(Request, Terms, T), Error> {
    let shape = shape_text(&model.spec)?;
    let hello = stated(terms).tell("model", &shape).tell(NAME, printable(&model.name, MAX_NAME_BYTES));
    let mut hello = model.disclosure.tell(hello)?;
    if let Some(offer) = &model.offer {
        hello = hello.tell(PREFIX, offer.digest());
    }
    let theirs = agree(&hello, channel)?;
    model.disclosure.check_client(&theirs)?;
    let wants = |name: &str| theirs.iter().any(|field| field.name == name && field.value == "true");
    let (wanted, wants_template) = (wants(WANTS_TOKENIZER), wants(WANTS_TEMPLATE));
    let policy = policy(channel.role(), terms, &theirs)?;
    let mut terms = Terms { policy, ..meet(channel, terms, hello.fields(), &theirs)? };
    terms.protocol.preprocess = match theirs.iter().find(|field| field.name == PREPROCESS).map(|field| &*field.value)
    {
        Some("true") => true,
        Some("false") => false,
        Some(other) => {
            return Err(malformed(SCOPE, format!("`{PREPROCESS}` is neither true nor false: {other}")).into());
        }
        None => return Err(malformed(SCOPE, format!("`{PREPROCESS}` is missing")).into()),
    };
    scoped(channel, SCOPE, |channel| {
        channel.send(SHAPE, shape.as_bytes())?;
        // Fractional bits lie in MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC.
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
        if let Some(offer) = &model.offer {
            wire::send(channel, OFFER, &Tokens::from(offer), 0)?;
        }
        let (request, kind, public) = wire::receive::<Message>(channel, REQUEST, 0..=MAX_REQUEST_BYTES)?.read()?;
        terms.prefix = public.map(|public| public.read(model.offer.as_ref())).transpose()?;
        let verdict = accept(&request, kind, &mut terms);
        send_verdict(channel, VERDICT, verdict.as_ref().err())?;
        let accepted = verdict?;
        if let Some(prefix) = &terms.prefix {
            let frac_bits: Vec<u8> = prefix.frac_bits(&model.spec).iter().map(|&bits| bits as u8).collect();
            channel.send(PREFIX_SCALES, &frac_bits)?;
        }
        Ok((request, terms, accepted))
    })
}

/// Tells the client the id of the pool of an accepted [`SessionKind::Fill`].
pub(super) fn name_pool(channel: &mut Channel, id: PoolId) -> Result<(), Error> {
    scoped(channel, SCOPE, |channel| Ok(channel.send(POOL, &id.0)?))
}

/// Receives the id that the server gives to the pool.
pub(super) fn learn_pool(channel: &mut Channel) -> Result<PoolId, Error> {
    scoped(channel, SCOPE, |channel| {
        let mut id = [0; POOL_BYTES];
        id.copy_from_slice(&channel.recv(POOL, POOL_BYTES)?);
        Ok(PoolId(id))
    })
}

/// Tells the peer that all is well, or the reason for `error`.
pub(super) fn send_verdict(channel: &mut Channel, step: &'static str, error: Option<&Error>) -> Result<(), Error> {
    let reason = error.map(reason).unwrap_or_default();
    channel.send(step, printable(&reason, MAX_REASON_BYTES).as_bytes())?;
    Ok(channel.flush(step)?)
}

/// The part of a server's error that a client may read: no paths, nothing about weights.
fn reason(error: &Error) -> String {
    match error {
        Error::PoolFile { source, .. } | Error::Pool(source) => source.for_peer(),
        Error::Model(waggle_model::Error::File { source, .. }) => {
            format!("a file of the server's fails: {}", source.kind())
        }
        // Values of a text that the server reads in the clear tell about its weights.
        Error::Model(waggle_model::Error::Engine(_)) => "the model cannot read these public tokens".into(),
        other => other.to_string(),
    }
}

/// Receives the peer's verdict. A reason becomes [`Error::Refused`].
pub(super) fn receive_verdict(channel: &mut Channel, step: &'static str) -> Result<(), Error> {
    let reason = channel.recv_up_to(step, MAX_REASON_BYTES)?;
    if reason.is_empty() {
        return Ok(());
    }
    Err(Error::Refused { reason: printable(&String::from_utf8_lossy(&reason), MAX_REASON_BYTES) })
}

/// The client's side of the opening before the request. Returns what the server says about its model, and the agreed
/// terms.
pub(super) fn meet_server(
    channel: &mut Channel,
    terms: &Terms,
    options: &ClientOptions,
) -> Result<(PublicModel, Terms), Error> {
    let mut hello =
        stated(terms).tell(PREPROCESS, terms.protocol.preprocess).tell(WANTS_TOKENIZER, options.tokenizer);
    if options.template {
        hello = hello.tell(WANTS_TEMPLATE, true);
    }
    let expected = options.expected.or(options.base.map(|base| &base.spec));
    if let Some(spec) = expected {
        hello = hello.agree("model", shape_text(spec)?);
    }
    hello = Base::tell(options.base, hello)?;
    let theirs = agree(&hello, channel)?;
    let disclosure = Base::check_server(options.base, &theirs)?;
    policy(channel.role(), terms, &theirs)?;
    let terms = meet(channel, terms, hello.fields(), &theirs)?;
    let offered = theirs.iter().any(|field| field.name == PREFIX);
    let name = theirs.into_iter().find(|field| field.name == NAME).map(|field| field.value).unwrap_or_default();
    scoped(channel, SCOPE, |channel| {
        let shape = channel.recv_up_to(SHAPE, MAX_SHAPE_BYTES)?;
        let spec: ModelSpec = serde_json::from_slice(&shape)
            .map_err(|e| malformed(SHAPE, printable(&format!("no model has this shape: {e}"), MAX_REASON_BYTES)))?;
        if expected.is_some_and(|expected| *expected != spec) {
            return Err(malformed(SHAPE, "not the shape that the handshake stated").into());
        }
        if options.base.is_some_and(|base| base.spec != spec) {
            return Err(BaseError::Shape.into());
        }
        let weights = spec.weight_specs_of(&disclosure.disclosed)?;
        let frac_bits = scales(channel, FRAC_BITS, weights.len())?;
        let max = if options.tokenizer { MAX_TOKENIZER_BYTES } else { 0 };
        let tokenizer = Some(channel.recv_up_to(TOKENIZER, max)?).filter(|bytes| !bytes.is_empty());
        let template = options.template.then(|| channel.recv_up_to(TEMPLATE, MAX_TEMPLATE_BYTES)).transpose()?;
        let offer = match offered {
            true => Some(wire::receive::<Tokens>(channel, OFFER, 0..=MAX_PREFIX_BYTES)?.read(OFFER)?),
            false => None,
        };
        let offer = offer.filter(|_| !options.without_offer);
        Ok((PublicModel { name, spec, frac_bits, disclosure, tokenizer, template, offer }, terms))
    })
}

/// The fractional bits of `count` weights.
fn scales(channel: &mut Channel, step: &'static str, count: usize) -> Result<Vec<u32>, NetError> {
    let frac_bits: Vec<u32> = channel.recv(step, count)?.into_iter().map(u32::from).collect();
    match frac_bits.iter().find(|bits| !(MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC).contains(*bits)) {
        Some(bits) => Err(malformed(step, format!("no weight has {bits} fractional bits"))),
        None => Ok(frac_bits),
    }
}

/// Sends the client's request and receives the server's verdict on it. If public tokens stand before the texts,
/// `terms` learn the fractional bits of what the server makes of them.
pub(super) fn ask(
    channel: &mut Channel,
    model: &PublicModel,
    terms: &mut Terms,
    request: &Request,
    kind: &SessionKind,
) -> Result<(), Error> {
    scoped(channel, SCOPE, |channel| {
        let public = terms.prefix.as_ref().map(|prefix| Public::new(prefix, model.offer.as_ref()));
        wire::send(channel, REQUEST, &Message::new(request, kind, public), 0)?;
        receive_verdict(channel, VERDICT)?;
        let Some(prefix) = &mut terms.prefix else { return Ok(()) };
        prefix.learn_frac_bits(scales(channel, PREFIX_SCALES, matrices(&model.spec))?)
    })
}

/// The handshake with the facts that both parties must state alike, the policies, and what this party has of its own.
fn stated(terms: &Terms) -> Handshake {
    let facts = terms.facts();
    let alike = facts.iter().filter(|(name, _)| ![PREPROCESS, REVEAL.0, POLICY, PREFIX].contains(&&**name));
    let hello = alike.fold(Handshake::new(), |hello, (name, value)| hello.agree(name, value));
    tell(hello.tell(POLICY, permitted(terms)), terms)
}

/// The text of a client's policy, or of all policies that a server permits, with `;` between them.
fn permitted(terms: &Terms) -> String {
    terms.policies().map(ToString::to_string).collect::<Vec<_>>().join(";")
}

/// The client's policy. Fails if the server does not permit it. Both parties come to the same result.
fn policy(role: Role, terms: &Terms, theirs: &[Field]) -> Result<PolicySpec, NetError> {
    let said = theirs.iter().find(|field| field.name == POLICY).map(|field| &*field.value).unwrap_or_default();
    let is = |policy: &&PolicySpec| match role {
        Role::Client => said.split(';').any(|permitted| permitted == policy.to_string()),
        Role::Server => said == policy.to_string(),
    };
    terms.policies().find(is).cloned().ok_or_else(|| {
        let (ours, said) = (permitted(terms), printable(said, MAX_REASON_BYTES));
        let sides = if role == Role::Client { [ours, said] } else { [said, ours] };
        NetError::Disagreement { differences: vec![Difference::new(POLICY, sides.map(Some))] }
    })
}

/// Runs the handshake `hello`, and returns the peer's fields. A different number of the protocol becomes
/// [`Error::Protocol`], because all other differences may follow from it. A different number of parties becomes
/// [`Error::Parties`].
fn agree(hello: &Handshake, channel: &mut Channel) -> Result<Vec<Field>, Error> {
    let role = channel.role();
    hello.run(channel).map_err(|error| {
        let NetError::Disagreement { differences } = &error else { return error.into() };
        let by = |name: &str| differences.iter().find(|one| one.name == name);
        if let Some(deals) = by(HELPER_DEALS) {
            let third = |said: &Option<String>| said.as_deref() == Some(name(&HELPERS, &HelperDeals::Passes));
            if third(&deals.client) != third(&deals.server) {
                return Error::Parties { server: if third(&deals.server) { 3 } else { 2 } };
            }
        }
        let Some(difference) = by(PROTOCOL_FIELD) else { return error.into() };
        let theirs = match role {
            Role::Client => &difference.server,
            Role::Server => &difference.client,
        };
        Error::Protocol { ours: PROTOCOL, theirs: theirs.as_ref().and_then(|number| number.parse().ok()) }
    })
}

impl Terms {
    /// The protocol and the terms as names and values, without cores and link: the parties find those out in
    /// [`meet`].
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let Terms { protocol, reveal, logit_bits, policy, prefill_chunk, prefix, helper, .. } = self;
        let helper = helper.clone().map(|key| ("helper", key));
        let deals = protocol.helper.any().then(|| (HELPER_DEALS, name(&HELPERS, &protocol.helper).to_owned()));
        let prefix = prefix.as_ref().map(|prefix| (PREFIX, prefix.to_string()));
        let chunk = prefill_chunk.map(|chunk| ("prefill-chunk", chunk.to_string()));
        let bits = (*logit_bits != LogitBits::default()).then(|| ("logit-bits", logit_bits.to_string()));
        [
            // Four digits, so that no plan changes when the number rises.
            (PROTOCOL_FIELD, format!("{PROTOCOL:04}")),
            ("ot", name(&OT_SOURCES, &protocol.ot).to_owned()),
            (PREPROCESS, protocol.preprocess.to_string()),
            ("packing", name(&PACKINGS, &protocol.packing).to_owned()),
            ("masks", name(&MASKS, &protocol.masks).to_owned()),
            (REVEAL.0, name(&REVEALS, reveal).to_owned()),
            (POLICY, policy.to_string()),
        ]
        .into_iter()
        .chain(chunk)
        .chain(bits)
        .chain(prefix)
        .chain(helper)
        .chain(deals)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

fn shape_text(spec: &ModelSpec) -> Result<String, Error> {
    serde_json::to_string(spec).map_err(|e| waggle_model::ConfigError::Json(e.to_string()).into())
}

/// Returns `result`. If it failed because the peer's data was bad, first tells the peer at which step.
pub(super) fn complaining<T>(channel: &mut Channel, result: Result<T, Error>) -> Result<T, Error> {
    if let Some(step) = result.as_ref().err().and_then(Error::net).and_then(NetError::bad_step) {
        channel.reject(step);
    }
    result
}

/// Runs `steps`, booked under `scope`. The scope is closed even if they fail.
pub(super) fn scoped<T>(
    channel: &mut Channel,
    scope: &str,
    steps: impl FnOnce(&mut Channel) -> Result<T, Error>,
) -> Result<T, Error> {
    let depth = channel.ledger().depth();
    channel.ledger_mut().enter(scope);
    let result = steps(channel);
    channel.ledger_mut().leave_to(depth);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_no_path_of_the_server() {
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let told = reason(&waggle_model::Error::File { path: "/home/owner/accounts.json".into(), source }.into());
        assert_eq!(told, "a file of the server's fails: permission denied");
    }

    /// The server reads public tokens in the clear, and its errors quote values.
    #[test]
    fn a_client_reads_no_value_of_the_server() {
        let source = waggle_protocols::Error::TooLarge { tensor: "keys".into(), value: 70_000.5, limit: 65_536.0 };
        let error = waggle_model::Error::from(waggle_engine::Error::from(source));
        assert_eq!(reason(&error.into()), "the model cannot read these public tokens");
    }

    fn encode(request: &Request, kind: &SessionKind) -> Vec<u8> {
        wire::encode(REQUEST, &Message::new(request, kind, None), 0).unwrap()
    }

    fn decode(message: &[u8]) -> Result<(Request, SessionKind), NetError> {
        let (request, kind, public) = wire::decode::<Message>(REQUEST, message, 0).and_then(Message::read)?;
        assert_eq!(public, None);
        Ok((request, kind))
    }

    const REQUESTED: Request = Request {
        lengths: Lengths { prompt: 300, tokens: 70_000 },
        stop_at_eos: true,
        pad_answer: false,
        padded: false,
        texts: 1,
        all_positions: false,
        draft: None,
    };

    fn ids(count: usize) -> Vec<PoolId> {
        (0..count).map(|id| PoolId([id as u8; POOL_BYTES])).collect()
    }

    fn fill(number: u32, of: u32, kept: Option<usize>) -> SessionKind {
        SessionKind::Fill { part: Part::new(number, of).unwrap(), kept: kept.map(ids) }
    }

    /// The [`PROTOCOL`] to which requests are pinned, and the digest of the requests that the test
    /// `requests_raise_the_number` encodes.
    const PINNED: (u32, &str) = (9, "7174753714030435");

    #[test]
    fn requests_raise_the_number() {
        let drafted = Request { draft: Some(Drafts::new(4, 1.5).unwrap()), ..REQUESTED };
        let padded = Request { padded: true, pad_answer: true, ..REQUESTED };
        let messages = [
            (drafted, SessionKind::Generate),
            (padded, SessionKind::Generate),
            (REQUESTED, SessionKind::Chat),
            (REQUESTED, fill(3, 4, None)),
            (REQUESTED, fill(3, 4, Some(2))),
            (REQUESTED, SessionKind::Spend(ids(2))),
        ]
        .map(|(request, kind)| encode(&request, &kind));
        let digest = blake3::hash(&messages.concat()).to_hex();
        assert_eq!(
            (PROTOCOL, &digest[..16]),
            PINNED,
            "if the bytes of requests change, raise `PROTOCOL`, say so in CHANGELOG.md and pin both here"
        );
    }

    #[test]
    fn a_request_comes_back_or_is_refused() {
        let draft = Drafts::new(4, 1.5).unwrap();
        for (request, kind) in [
            (REQUESTED, SessionKind::Chat),
            (Request { draft: Some(draft), ..REQUESTED }, SessionKind::Generate),
            (Request { draft: Some(draft.steady()), padded: true, ..REQUESTED }, SessionKind::Generate),
            (Request { pad_answer: true, ..REQUESTED }, fill(256, 256, None)),
            (Request { all_positions: true, texts: 3, ..REQUESTED }, SessionKind::Generate),
            (REQUESTED, SessionKind::Spend(ids(1))),
            (REQUESTED, SessionKind::Spend(ids(MAX_PARTS as usize))),
            (REQUESTED, fill(1, 1, Some(0))),
            (REQUESTED, fill(256, 256, Some(MAX_KEPT))),
        ] {
            let message = encode(&request, &kind);
            assert!(message.len() <= MAX_REQUEST_BYTES, "{kind:?}");
            assert_eq!(decode(&message).unwrap(), (request, kind));
        }
        let short = Request::from(Lengths { prompt: 1, tokens: 1 });
        let plain = encode(&short, &SessionKind::Generate);
        assert_eq!(plain.len(), encode(&REQUESTED, &SessionKind::Generate).len(), "whatever the lengths");
        for (request, kind) in [
            (Request { pad_answer: true, ..short }, SessionKind::Generate),
            (Request { padded: true, ..short }, SessionKind::Chat),
            (short, SessionKind::Spend(ids(0))),
            (short, SessionKind::Spend(ids(1 + MAX_PARTS as usize))),
        ] {
            let refused = decode(&encode(&request, &kind));
            assert!(matches!(refused, Err(NetError::Malformed { step: REQUEST, .. })), "{request:?}, {kind:?}");
        }
        // Behind the lengths: three flags, the number of texts, whether there is a draft, the kind, and what belongs
        // to it.
        let head = &plain[..8];
        for rest in [
            &[0, 0, 0, 1, 0, 5][..],
            &[0, 2, 0, 1, 0, 0],
            &[0, 0, 0, 1, 2, 0],
            &[0, 0, 0, 1, 1, 0, 0xe8, 7, 0, 0],
            &[0, 0, 0, 1, 1, 4, 0xe7, 7, 0, 0],
            &[0, 0, 0, 1, 1, 65, 0xe8, 7, 0, 0],
            &[0, 0, 0, 1, 1, 4, 0xe8, 7, 2, 0],
            &[0, 0, 0, 1, 0, 1, 0, 1, 0],
            &[0, 0, 0, 1, 0, 1, 5, 4, 0],
            &[0, 0, 0, 1, 0, 1, 1, 0x81, 2, 0],
        ] {
            let refused = decode(&[head, rest].concat());
            assert!(matches!(refused, Err(NetError::Malformed { step: REQUEST, .. })), "{rest:?}");
        }
    }
}
