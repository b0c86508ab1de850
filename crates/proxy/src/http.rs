//! Connections of programs: their bounds, the paths, and answers that are sent as they grow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::channel::{self, Channel};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
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

use crate::admission::{Admission, Connection, Idle, OWNER, places, stranger};
use crate::api::{Head, Kind, completion, no_model, talk, usage};
use crate::refusal::Refusal;
use crate::text::{Ended, Event};
use crate::work::{Job, Work};
use crate::{ProxyConfig, Shared};

/// Most bytes of a request's body.
const MAX_BODY: usize = 4 << 20;
/// Most connections at once.
const CONNECTIONS: usize = 512;
/// Time-outs for the head of a request, for its body, and for a reader to take the next bytes.
const HEAD: Duration = Duration::from_secs(30);
const BODY: Duration = Duration::from_secs(60);
const READER: Duration = Duration::from_secs(60);

/// The page with a chat for a browser. It is complete in one file.
const PAGE: &str = include_str!("page.html");
/// Text of the page that is replaced by a nonce. A header of the answer names the same nonce, so that the browser
/// admits the page's script and style and no others.
const NONCE: &str = "{{nonce}}";

type Body = Either<Full<Bytes>, Channel<Bytes>>;
type Answer = Response<Body>;

/// State that all connections share.
pub(super) struct Door {
    model: String,
    blind: bool,
    admission: Admission,
    idle: Idle,
    queue: usize,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

/// Accepts connections until the runtime ends.
pub(super) async fn accept(listener: TcpListener, door: Arc<Door>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        if places.available_permits() == 0 {
            door.idle.make_room();
        }
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, peer)) = listener.accept().await else {
            // Perhaps too many files are open.
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
            // A program that breaks off its connection is no error.
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
        let admission = Admission::new(keys, &config.origins);
        Door { model, blind, admission, idle: Idle::default(), queue, jobs, shared }
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        let origin = request.headers().get(header::ORIGIN).cloned();
        let mut answer = match self.admission.admitted(&request, connection.address) {
            Ok(who) => self.routed(request, who, connection).await.unwrap_or_else(|refusal| refused(&refusal)),
            Err(refusal) => refused(&refusal),
        };
        // The answer is a stream that is still being made.
        if matches!(answer.body(), Either::Left(_)) {
            self.idle.enter(connection);
        }
        self.shared.metrics.answered(answer.status().as_u16());
        let headers = answer.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(origin) = origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.admission.knows(origin)))
        {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
        }
        answer
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
        // A browser sends OPTIONS before it lets a page of another origin send a request.
        let mut answer = if request.method() == Method::OPTIONS {
            text("text/plain", String::new())
        } else {
            refused(&Refusal::new(405, "method_not_allowed", format!("{methods} is the method of this path")))
        };
        // An admitted origin may send requests, with any headers.
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

    /// Answers whether the last request was served. If it was not, only the `owner` is told why.
    fn health(&self, owner: bool) -> Answer {
        match self.shared.health() {
            None => whole(200, &json!({"status": "ok"})),
            Some(error) if owner => whole(503, &json!({"status": "error", "error": error})),
            Some(_) => whole(503, &json!({"status": "error"})),
        }
    }

    /// Puts a request into the queue, and returns the answer or a stream of it.
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
        // A request that is refused at once gets its own status code.
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

/// The refusal of a request after the worker has ended.
fn gone() -> Refusal {
    Refusal::new(503, "proxy_stops", "the proxy ends")
}

/// `text` with escapes `%` and two digits replaced by their bytes.
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

/// Waits until all texts of a request are over, and returns them.
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

/// Sends events as server-sent events, from `first` on, until all texts are over or nobody reads them.
async fn stream(
    mut sender: channel::Sender<Bytes>,
    first: Event,
    mut events: UnboundedReceiver<Event>,
    head: Head,
    texts: usize,
    usage_of: Option<usize>,
) -> Result<(), channel::SendError> {
    if let Some(piece) = head.first() {
        sender.send_data(sent(&piece)).await?;
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
            Event::Failed(refusal) => return sender.send_data(sent(&refusal.json())).await,
        };
        sender.send_data(sent(&piece)).await?;
        next = if ended.len() < texts { events.recv().await } else { None };
    }
    if ended.len() < texts {
        return sender.send_data(sent(&gone().json())).await;
    }
    let ended: Vec<Ended> = ended.into_values().collect();
    if let Some(prompts) = usage_of {
        sender.send_data(sent(&head.last(usage(&ended, prompts)))).await?;
    }
    sender.send_data(sent(&"[DONE]")).await
}

fn sent(data: &impl Display) -> Bytes {
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

/// The page with a chat. It loads nothing, and talks only to this proxy.
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
    fn bytes_of_a_path_are_written_as_digits() {
        assert_eq!(unescaped("a%2Fb%20%c3%A9%"), "a/b \u{e9}%");
        assert_eq!(unescaped("%+1%e"), "%+1%e");
    }

    #[test]
    fn the_page_has_no_resource_of_others() {
        assert!(PAGE.matches(NONCE).count() == 2 && !PAGE.contains("innerHTML"));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }
}
