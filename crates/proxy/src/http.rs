//! Connections of programs: who may come, bounds, and answers as they grow.
//!
//! A page of any origin that a browser shows can send requests to this machine. Three things keep it out: a request
//! with a foreign `Origin` is refused, one whose `Host` is no name of this machine as well (a name that an attacker
//! points here), and a body must be JSON, which no page sends to another origin unasked.
//!
//! Where there are keys, the first one is the owner's, who alone sees counters and errors: they tell of all requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio_io_timeout::TimeoutStream;
use waggle::program::network_of;

use crate::api::{Head, Kind, completion, no_model, talk, usage};
use crate::refusal::Refusal;
use crate::text::{Ended, Event};
use crate::work::{Job, Work};
use crate::{ProxyConfig, Shared};

/// Most bytes of a body.
const MAX_BODY: usize = 4 << 20;
/// Most connections at once, and most of an address of those on which no answer is made.
const CONNECTIONS: usize = 512;
const IDLE: usize = 128;
/// The time for the head of a request, for its body, and for a reader to take something.
const HEAD: Duration = Duration::from_secs(30);
const BODY: Duration = Duration::from_secs(60);
const READER: Duration = Duration::from_secs(60);
/// Most wrong keys of an address, of which none comes so much later than the one before; for as long after the last
/// no further key of it is looked at. And the most addresses that are kept.
const WRONG_KEYS: u32 = 10;
const WRONG_TIME: Duration = Duration::from_secs(10);
const WRONG_ADDRESSES: usize = 4096;
/// The place of the owner's key.
const OWNER: usize = 0;

/// A chat in a browser: one file.
const PAGE: &str = include_str!("page.html");
/// What stands in it for the number that its script and style have in common with the head of the answer.
const NONCE: &str = "{{nonce}}";

type Body = Either<Full<Bytes>, Channel<Bytes>>;
type Answer = Response<Body>;

/// Who may come, and where requests go.
pub(super) struct Door {
    model: String,
    blind: bool,
    keys: Vec<blake3::Hash>,
    wrong: Mutex<Wrong>,
    idle: Idle,
    origins: Vec<String>,
    queue: usize,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

/// Wrong keys of addresses, and when the last one came.
#[derive(Default)]
struct Wrong(HashMap<IpAddr, (Instant, u32)>);

impl Wrong {
    /// Whether those of `address` are so many that no more are looked at.
    fn are_many(&mut self, address: IpAddr) -> bool {
        self.0.retain(|_, (last, _)| last.elapsed() < WRONG_TIME);
        self.0.get(&address).is_some_and(|(_, count)| *count >= WRONG_KEYS)
    }

    fn add(&mut self, address: IpAddr) {
        if self.0.len() >= WRONG_ADDRESSES {
            self.0.clear();
        }
        let count = self.0.get(&address).map_or(0, |(_, count)| *count);
        self.0.insert(address, (Instant::now(), count + 1));
    }
}

/// A connection of the network `address`.
struct Connection {
    address: IpAddr,
    close: Notify,
}

/// The connections on which no answer is made, by address, those first that have asked for nothing for longest. Where
/// there are too many, these make room: whoever sends half a request keeps nobody out.
#[derive(Default)]
struct Idle(Mutex<HashMap<IpAddr, VecDeque<Arc<Connection>>>>);

impl Idle {
    fn enter(&self, connection: &Arc<Connection>) {
        self.leave(connection);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.entry(connection.address).or_default();
        own.push_back(Arc::clone(connection));
        if own.len() > IDLE
            && let Some(oldest) = own.pop_front()
        {
            oldest.close.notify_one();
        }
    }

    fn leave(&self, connection: &Arc<Connection>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&connection.address) {
            own.retain(|other| !Arc::ptr_eq(other, connection));
            if own.is_empty() {
                all.remove(&connection.address);
            }
        }
    }

    /// Closes one of the address that has most.
    fn make_room(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(oldest) = all.values_mut().max_by_key(|own| own.len()).and_then(VecDeque::pop_front) {
            oldest.close.notify_one();
        }
    }
}

/// Takes connections until the runtime ends.
pub(super) async fn accept(listener: TcpListener, door: Arc<Door>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        if places.available_permits() == 0 {
            door.idle.make_room();
        }
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, peer)) = listener.accept().await else {
            // Too many files are open, perhaps.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let door = Arc::clone(&door);
        let connection = Arc::new(Connection { address: network_of(peer.ip()), close: Notify::new() });
        door.idle.enter(&connection);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(READER));
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let (door, connection) = (Arc::clone(&door), Arc::clone(&connection));
                async move { Ok::<_, Infallible>(door.answer(request, &connection).await) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let mut served = pin!(server.serve_connection(TokioIo::new(Box::pin(stream)), service));
            let mut closed = pin!(connection.close.notified());
            // A program that breaks off is nobody's error.
            let over = |cx: &mut Context<'_>| match closed.as_mut().poll(cx) {
                Poll::Pending => served.as_mut().poll(cx).map(drop),
                closed => closed,
            };
            poll_fn(over).await;
            door.idle.leave(&connection);
            drop(place);
        });
    }
}

impl Door {
    pub(super) fn new(
        config: &ProxyConfig,
        model: &str,
        blind: bool,
        keys: Vec<blake3::Hash>,
        jobs: Sender<Job>,
        shared: Arc<Shared>,
    ) -> Self {
        let (model, queue) = (model.to_owned(), config.queue);
        let origins = config.origins.iter().map(|origin| plain(origin)).collect();
        Door { model, blind, keys, wrong: Mutex::default(), idle: Idle::default(), origins, queue, jobs, shared }
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        let origin = request.headers().get(header::ORIGIN).cloned();
        let mut answer = match self.admitted(&request, connection.address) {
            Ok(who) => self.routed(request, who, connection).await.unwrap_or_else(|refusal| refused(&refusal)),
            Err(refusal) => refused(&refusal),
        };
        // A stream is still made.
        if matches!(answer.body(), Either::Left(_)) {
            self.idle.enter(connection);
        }
        self.shared.metrics.answered(answer.status().as_u16());
        let headers = answer.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(origin) = origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.knows(origin))) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
        }
        answer
    }

    /// Refuses whoever may not come. The place of the key of whoever may; none of a stranger who looks at what is
    /// open.
    fn admitted(&self, request: &Request<Incoming>, peer: IpAddr) -> Result<Option<usize>, Refusal> {
        let host = single(request, header::HOST)?.unwrap_or_default();
        let host = request.uri().authority().map_or(host, |named| named.as_str()).to_ascii_lowercase();
        let named = |origin: &String| {
            origin.split_once("://").is_some_and(|(scheme, _)| *origin == plain(&format!("{scheme}://{host}")))
        };
        if !is_here(&host, !self.keys.is_empty()) && !self.origins.iter().any(named) {
            return Err(Refusal::new(
                403,
                "foreign_host",
                "this name is not one of this machine; the owner of the proxy may allow it",
            ));
        }
        if let Some(origin) = single(request, header::ORIGIN)?
            && plain(origin) != plain(&format!("http://{host}"))
            && !self.knows(origin)
        {
            return Err(Refusal::new(
                403,
                "foreign_origin",
                "pages of this origin may not ask; the owner of the proxy may allow it",
            ));
        }
        let open = matches!(places(request.uri().path())[..], [] | ["health"]) || request.method() == Method::OPTIONS;
        let who = self.who(single(request, header::AUTHORIZATION)?, peer)?;
        if who.is_none() && !open {
            return Err(stranger());
        }
        Ok(who)
    }

    /// Whether pages of `origin` may ask.
    fn knows(&self, origin: &str) -> bool {
        self.origins.contains(&plain(origin))
    }

    /// The place of the key that is `given`, if it is one. Without keys everybody is the owner.
    fn who(&self, given: Option<&str>, peer: IpAddr) -> Result<Option<usize>, Refusal> {
        if self.keys.is_empty() {
            return Ok(Some(OWNER));
        }
        let given = given.and_then(|given| given.split_once(' '));
        let Some((_, given)) = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer")) else {
            return Ok(None);
        };
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.are_many(peer) {
            return Err(Refusal::new(429, "too_many_wrong_keys", "too many keys were wrong; try again later"));
        }
        // Digests are compared in constant time.
        let given = blake3::hash(given.trim().as_bytes());
        let who = self.keys.iter().position(|key| *key == given);
        if who.is_none() {
            wrong.add(peer);
        }
        Ok(who)
    }

    async fn routed(
        &self,
        request: Request<Incoming>,
        who: Option<usize>,
        connection: &Arc<Connection>,
    ) -> Result<Answer, Refusal> {
        let owner = who == Some(OWNER);
        // An answer to HEAD is sent without its body.
        let get = [Method::GET, Method::HEAD].contains(request.method());
        let post = request.method() == Method::POST;
        let path = request.uri().path().to_owned();
        let methods = match places(&path)[..] {
            [] if get => return Ok(page()),
            ["health"] if get => return Ok(self.health(owner)),
            ["metrics"] if get && !owner => {
                return Err(Refusal::new(403, "not_the_owner", "the first key alone sees what all requests took"));
            }
            ["metrics"] if get => {
                return Ok(text("application/openmetrics-text; version=1.0.0", self.shared.metrics.page()));
            }
            ["v1", "models"] if get => {
                return Ok(whole(200, &json!({"object": "list", "data": [self.described()]})));
            }
            ["v1", "models", ref name @ ..] if get => {
                let name = unescaped(&name.join("/"));
                let found = (name == self.model).then(|| whole(200, &self.described()));
                return found.ok_or_else(|| no_model(&name, &self.model));
            }
            ["v1", "completions"] if post => {
                return self.asked(who.ok_or_else(stranger)?, Kind::Completion, request, connection).await;
            }
            ["v1", "chat", "completions"] if post => {
                return self.asked(who.ok_or_else(stranger)?, Kind::Talk, request, connection).await;
            }
            [] | ["health" | "metrics"] | ["v1", "models", ..] => "GET, HEAD",
            ["v1", "completions"] | ["v1", "chat", "completions"] => "POST",
            _ => return Err(Refusal::new(404, "not_found", format!("there is no {path} here"))),
        };
        // A browser asks before it lets a page of another origin ask.
        let mut answer = if request.method() == Method::OPTIONS {
            text("text/plain", String::new())
        } else {
            refused(&Refusal::new(405, "method_not_allowed", format!("{methods} is the method of this path")))
        };
        // Whoever comes this far may ask, with whatever a program says of itself.
        let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let allowed = asked.unwrap_or(HeaderValue::from_static("authorization, content-type"));
        let headers = answer.headers_mut();
        headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        Ok(answer)
    }

    fn described(&self) -> Value {
        json!({"id": self.model, "object": "model", "created": 0, "owned_by": "waggle"})
    }

    /// Whether the last request was served; to the `owner` why not.
    fn health(&self, owner: bool) -> Answer {
        match self.shared.health() {
            None => whole(200, &json!({"status": "ok"})),
            Some(error) if owner => whole(503, &json!({"status": "error", "error": error})),
            Some(_) => whole(503, &json!({"status": "error"})),
        }
    }

    /// Puts a request into the queue, and answers with what comes.
    async fn asked(
        &self,
        who: usize,
        kind: Kind,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Result<Answer, Refusal> {
        let body = body(request).await?;
        let (work, wanted, texts, prompts) = match kind {
            Kind::Completion => {
                let asked = completion(&body, &self.model, self.blind)?;
                let (prompts, wanted) = (asked.prompts.len(), asked.wanted.clone());
                let texts = prompts * asked.samples;
                (Work::Completion(asked), wanted, texts, prompts)
            }
            Kind::Talk => {
                let asked = talk(&body, &self.model, self.blind)?;
                let wanted = asked.wanted.clone();
                (Work::Talk(asked), wanted, 1, 1)
            }
        };
        self.idle.leave(connection);
        if !self.shared.enters_queue(self.queue) {
            return Err(Refusal::new(429, "queue_full", "too many requests wait; try again later"));
        }
        let (out, mut events) = unbounded_channel();
        if self.jobs.send(Job { who, work, out }).is_err() {
            self.shared.left_queue();
            self.shared.set_health(Some("the thread of the sessions has ended".into()));
            return Err(gone());
        }
        let head = Head::new(kind, &self.model);
        if !wanted.stream {
            let ended = all(&mut events, texts).await?;
            return Ok(whole(200, &head.whole(&ended, usage(&ended, prompts))));
        }
        // What is refused at once has a code of its own.
        let first = events.recv().await.ok_or_else(gone)?;
        if let Event::Failed(refusal) = first {
            return Err(refusal);
        }
        let (sender, growing) = Channel::new(16);
        tokio::spawn(stream(sender, first, events, head, texts, wanted.usage.then_some(prompts)));
        let mut answer = Response::new(Either::Right(growing));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Ok(answer)
    }
}

/// Nobody who is known asks.
fn stranger() -> Refusal {
    Refusal::new(401, "invalid_api_key", "the key is missing or wrong")
}

/// The worker has ended.
fn gone() -> Refusal {
    Refusal::new(503, "proxy_stops", "the proxy ends")
}

/// The value of a header that stands in a request once at most: two readers may take another one of several.
fn single(request: &Request<Incoming>, name: HeaderName) -> Result<Option<&str>, Refusal> {
    let mut all = request.headers().get_all(&name).iter();
    let value = all.next().map(|value| value.to_str().unwrap_or_default());
    match all.next() {
        Some(_) => Err(Refusal::new(400, "repeated_header", format!("the request has `{name}` more than once"))),
        None => Ok(value),
    }
}

/// The parts of `path`, however many strokes stand between and behind them.
fn places(path: &str) -> Vec<&str> {
    path.split('/').filter(|place| !place.is_empty()).collect()
}

/// `text` with the bytes that stand in it as `%` and two digits.
fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = &more[if byte.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An origin as browsers write it: in lower case, without the port of its scheme.
fn plain(origin: &str) -> String {
    let origin = origin.trim_end_matches('/').to_ascii_lowercase();
    let port = if origin.starts_with("https:") { ":443" } else { ":80" };
    origin.strip_suffix(port).unwrap_or(&origin).to_owned()
}

/// Whether `host`, with or without a port, is a name of this machine, or may be one of its `addresses`: a name that
/// somebody points here is neither.
fn is_here(host: &str, addresses: bool) -> bool {
    let port = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, end)| port(end)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| addresses || address.is_loopback())
}

/// The body of a request for an answer.
async fn body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::new(415, "not_json", "the Content-Type must be application/json"));
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    match tokio::time::timeout(BODY, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Refusal::new(413, "too_large", format!("a body has at most {MAX_BODY} bytes")))
        }
        Ok(Err(error)) => Err(Refusal::new(400, "broken_body", error.to_string())),
        Err(_) => Err(Refusal::new(408, "too_slow", "the body did not come in time")),
    }
}

/// The texts of a request, when all are over.
async fn all(events: &mut UnboundedReceiver<Event>, texts: usize) -> Result<Vec<Ended>, Refusal> {
    let mut ended = BTreeMap::new();
    while ended.len() < texts {
        match events.recv().await.ok_or_else(gone)? {
            Event::Piece(..) => {}
            Event::End(index, text) => drop(ended.insert(index, *text)),
            Event::Failed(refusal) => return Err(refusal),
        }
    }
    Ok(ended.into_values().collect())
}

/// Sends what comes as server-sent events, from the first one on, until all texts are over or nobody reads.
async fn stream(
    mut sender: http_body_util::channel::Sender<Bytes>,
    first: Event,
    mut events: UnboundedReceiver<Event>,
    head: Head,
    texts: usize,
    usage_of: Option<usize>,
) {
    if let Some(piece) = head.first()
        && sender.send_data(sent(&piece.to_string())).await.is_err()
    {
        return;
    }
    let mut ended = BTreeMap::new();
    let mut next = Some(first);
    while let Some(event) = next {
        let piece = match event {
            Event::Piece(index, text) => head.piece(index, &text, None),
            Event::End(index, text) => {
                let piece = head.piece(index, "", Some(&text));
                ended.insert(index, *text);
                piece
            }
            Event::Failed(refusal) => {
                let _ = sender.send_data(sent(&refusal.json().to_string())).await;
                return;
            }
        };
        if sender.send_data(sent(&piece.to_string())).await.is_err() {
            return;
        }
        if ended.len() == texts {
            break;
        }
        next = events.recv().await;
    }
    if ended.len() < texts {
        let _ = sender.send_data(sent(&gone().json().to_string())).await;
        return;
    }
    let ended: Vec<Ended> = ended.into_values().collect();
    if let Some(prompts) = usage_of
        && sender.send_data(sent(&head.last(usage(&ended, prompts)).to_string())).await.is_err()
    {
        return;
    }
    let _ = sender.send_data(sent("[DONE]")).await;
}

fn sent(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

fn text(kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(text.into())));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn whole(status: u16, value: &Value) -> Answer {
    let mut answer = text("application/json", value.to_string());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

fn refused(refusal: &Refusal) -> Answer {
    let mut answer = whole(refusal.status, &refusal.json());
    if refusal.status == 401 {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// The chat, which loads nothing and talks to nobody but this proxy.
fn page() -> Answer {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let mut answer = text("text/html; charset=utf-8", PAGE.replace(NONCE, &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = answer.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_known() {
        for here in ["localhost", "localhost:8080", "127.0.0.1:1", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert!(is_here(here, false) && is_here(here, true), "{here}");
        }
        for foreign in ["", "evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "127.0.0.1.x"]
        {
            assert!(!is_here(foreign, false), "{foreign}");
        }
        assert!(is_here("10.0.0.1:8080", true) && is_here("[2001:db8::1]", true));
        assert!(!is_here("evil.example", true) && !is_here("10.0.0.1.evil.example:8080", true));
    }

    #[test]
    fn names_are_written_in_several_ways() {
        for origin in ["http://a.example", "HTTP://A.example:80", "http://a.example/"] {
            assert_eq!(plain(origin), "http://a.example");
        }
        assert_eq!(plain("https://[::1]:443"), "https://[::1]");
        assert_eq!(plain("http://localhost:443"), "http://localhost:443");
        assert_eq!(unescaped("a%2Fb%20%c3%A9%"), "a/b \u{e9}%");
        assert_eq!(unescaped("%+1%e"), "%+1%e");
    }

    /// Connections of one address make room for others of it, and then for all.
    #[test]
    fn connections_that_ask_for_nothing_make_room() {
        let idle = Idle::default();
        let closed = |connection: &Arc<Connection>| {
            let waits = pin!(connection.close.notified());
            waits.poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
        };
        let enter = |address: [u8; 4]| {
            let connection = Arc::new(Connection { address: address.into(), close: Notify::new() });
            idle.enter(&connection);
            connection
        };
        let other = enter([10, 0, 0, 2]);
        let all: Vec<_> = (0..IDLE).map(|_| enter([10, 0, 0, 1])).collect();
        idle.enter(&all[0]);
        idle.leave(&all[1]);
        let more = [(); 2].map(|()| enter([10, 0, 0, 1]));
        assert!(closed(&all[2]) && !all.iter().chain(&more).any(closed), "the oldest that waits");
        idle.make_room();
        assert!(closed(&all[3]) && !all.iter().chain([&other]).any(closed), "one of the most");
    }

    #[test]
    fn the_page_has_no_resource_of_others() {
        assert!(PAGE.matches(NONCE).count() == 2 && !PAGE.contains("innerHTML"));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }
}
