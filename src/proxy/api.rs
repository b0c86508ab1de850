//! The interface's JSON: what programs ask, and how they are answered.
//!
//! Source: OpenAI's API reference, "Completions", "Chat" and "Errors". A parameter that asks for something that is
//! not done here is refused by its name, whatever other servers do with it.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{Prompt, Sampling};

/// Most prompts of a request, most texts after all of them, and most of the likeliest tokens that are named.
const MAX_PROMPTS: usize = 64;
const MAX_TEXTS: usize = 128;
const MAX_LIKELIEST: usize = 20;
/// Most texts that end an answer. OpenAI takes four, and evaluations send more.
const MAX_STOPS: usize = 16;
/// Tokens of a completion where a request names none.
const DEFAULT_TOKENS: usize = 16;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The code of HTTP.
    pub(super) status: u16,
    /// For programs.
    pub(super) code: &'static str,
    /// The parameter that is wrong.
    pub(super) param: Option<String>,
    /// For people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, code, param: None, message: message.into() }
    }

    /// A parameter that is wrong.
    fn of(param: &str, message: impl Into<String>) -> Self {
        Refusal { param: Some(param.into()), ..Refusal::new(400, "invalid_value", message) }
    }

    fn unsupported(param: &str) -> Self {
        let message = format!("`{param}` is not supported here");
        Refusal { code: "unsupported_parameter", ..Refusal::of(param, message) }
    }

    pub(super) fn json(&self) -> Value {
        let kind = match self.status {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

/// What both kinds of requests have.
#[derive(Debug, Deserialize)]
struct Common {
    model: Option<String>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stops>,
    n: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Several(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
struct CompletionBody {
    prompt: Option<Prompts>,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
    echo: Option<bool>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct ChatBody {
    messages: Vec<MessageBody>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Debug, Deserialize)]
struct MessageBody {
    role: String,
    content: Option<Content>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// How an answer is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) sampling: Sampling,
    pub(super) stops: Vec<String>,
    pub(super) stream: bool,
    /// Whether a stream ends with what it took.
    pub(super) usage: bool,
}

/// Texts after prompts.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    pub(super) prompts: Vec<Prompt>,
    /// Texts after each of them.
    pub(super) samples: usize,
    pub(super) tokens: usize,
    /// Whether a text begins with its prompt.
    pub(super) echo: bool,
    /// How many of the likeliest tokens are named at each place.
    pub(super) likeliest: Option<usize>,
    pub(super) wanted: Wanted,
}

/// The words of one side of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) role: &'static str,
    pub(super) text: String,
}

/// The next answer of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    /// What was said before.
    pub(super) before: Vec<Message>,
    /// What is said now.
    pub(super) words: String,
    pub(super) tokens: Option<usize>,
    pub(super) wanted: Wanted,
}

/// What stands in requests and changes nothing about an answer.
const INERT: [&str; 8] = [
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
];

/// Parameters with the values under which they ask for nothing.
fn asks_for_nothing(name: &str, value: &Value) -> bool {
    match name {
        _ if value.is_null() || INERT.contains(&name) => true,
        "presence_penalty" | "frequency_penalty" => value.as_f64() == Some(0.0),
        "best_of" => value == 1,
        "suffix" => value == "",
        "logprobs" => value == false,
        "top_logprobs" => value == 0,
        "tool_choice" => value == "none",
        "response_format" => *value == json!({"type": "text"}),
        "logit_bias" => value.as_object().is_some_and(Map::is_empty),
        "modalities" => *value == json!(["text"]),
        "tools" => value.as_array().is_some_and(Vec::is_empty),
        _ => false,
    }
}

impl Common {
    /// Checks it against the model `name`; `blind` if the server tells tokens alone.
    fn wanted(self, name: &str, blind: bool) -> Result<Wanted, Refusal> {
        if let Some(other) = self.model.filter(|model| model != name) {
            let message = format!("there is no model `{other}`, the server has `{name}`");
            return Err(Refusal { status: 404, code: "model_not_found", ..Refusal::of("model", message) });
        }
        if let Some((param, _)) = self.others.iter().find(|(name, value)| !asks_for_nothing(name, value)) {
            return Err(Refusal::unsupported(param));
        }
        let stops = match self.stop {
            None => Vec::new(),
            Some(Stops::One(text)) => vec![text],
            Some(Stops::Several(all)) => all,
        };
        if stops.len() > MAX_STOPS || stops.iter().any(String::is_empty) {
            return Err(Refusal::of("stop", format!("at most {MAX_STOPS} texts that are not empty")));
        }
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            return Err(Refusal::of("temperature", "0 to 2"));
        }
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Refusal::of("top_p", "above 0 up to 1"));
        }
        if blind && temperature != 0.0 && top_p != 1.0 {
            return Err(Refusal::of("top_p", "1, because the server tells tokens alone"));
        }
        // Nothing is drawn at temperature 0.
        let sampling = if temperature == 0.0 {
            Sampling::default()
        } else {
            Sampling::default().temperature(temperature).top_p(top_p).seed(self.seed.map(|seed| seed as u64))
        };
        let usage = self.stream_options.unwrap_or_default().include_usage;
        Ok(Wanted { sampling, stops, stream: self.stream.unwrap_or(false), usage })
    }
}

/// Reads `body`; a mistake in it is told as the reader of JSON says it.
fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::new(400, "invalid_json", error.to_string()))
}

/// The number `got` of `param`, up to `most`.
fn bounded(param: &str, got: usize, most: usize) -> Result<usize, Refusal> {
    if got <= most { Ok(got) } else { Err(Refusal::of(param, format!("at most {most}"))) }
}

/// A completion of the model `name`; `blind` if the client learns tokens alone.
pub(super) fn completion(body: &[u8], name: &str, blind: bool) -> Result<Completion, Refusal> {
    let CompletionBody { prompt, max_tokens, logprobs, echo, common } = read(body)?;
    let samples = bounded("n", common.n.unwrap_or(1), MAX_TEXTS)?;
    let likeliest = logprobs.map(|most| bounded("logprobs", most, MAX_LIKELIEST)).transpose()?;
    let wanted = common.wanted(name, blind)?;
    if samples == 0 {
        return Err(Refusal::of("n", "at least 1"));
    }
    if blind && likeliest.is_some() {
        return Err(Refusal::of("logprobs", "the server tells tokens alone"));
    }
    let prompts: Vec<Prompt> = match prompt {
        None => return Err(Refusal::of("prompt", "a text, a list of token ids, or a list of these")),
        Some(Prompts::Text(text)) => vec![Prompt::Text(text)],
        Some(Prompts::Ids(ids)) => vec![Prompt::Ids(ids)],
        Some(Prompts::Texts(all)) => all.into_iter().map(Prompt::Text).collect(),
        Some(Prompts::Lists(all)) => all.into_iter().map(Prompt::Ids).collect(),
    };
    if !(1..=MAX_PROMPTS).contains(&prompts.len()) {
        return Err(Refusal::of("prompt", format!("1 to {MAX_PROMPTS} prompts")));
    }
    bounded("n", prompts.len() * samples, MAX_TEXTS)?;
    if prompts.iter().any(|prompt| matches!(prompt, Prompt::Ids(ids) if ids.is_empty())) {
        return Err(Refusal::of("prompt", "a prompt has at least one token"));
    }
    let tokens = max_tokens.unwrap_or(DEFAULT_TOKENS);
    Ok(Completion { prompts, samples, tokens, echo: echo.unwrap_or(false), likeliest, wanted })
}

/// The next answer of a conversation with the model `name`.
pub(super) fn talk(body: &[u8], name: &str, blind: bool) -> Result<Talk, Refusal> {
    let ChatBody { messages, max_tokens, max_completion_tokens, common } = read(body)?;
    if common.n.is_some_and(|n| n != 1) {
        return Err(Refusal::of("n", "a conversation has one answer; completions may have several"));
    }
    let wanted = common.wanted(name, blind)?;
    let mut all = messages.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let Some(Message { role: "user", text: words }) = all.pop() else {
        return Err(Refusal::of("messages", "the last one must be the user's"));
    };
    if all.iter().skip(1).any(|message| message.role == "system") {
        return Err(Refusal::of("messages", "a system message stands first"));
    }
    let turns = all.iter().filter(|message| message.role != "system");
    let alternate = turns.enumerate().all(|(at, message)| message.role == ["user", "assistant"][at % 2]);
    if !alternate || all.last().is_some_and(|message| message.role == "user") {
        return Err(Refusal::of("messages", "messages of user and assistant take turns"));
    }
    let tokens = max_completion_tokens.or(max_tokens);
    if tokens == Some(0) {
        return Err(Refusal::of("max_tokens", "at least 1"));
    }
    Ok(Talk { before: all, words, tokens, wanted })
}

fn message(body: MessageBody) -> Result<Message, Refusal> {
    let MessageBody { role, content, others } = body;
    let role = match &*role {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        other => return Err(Refusal::of("messages", format!("there is no role `{other}` here"))),
    };
    if let Some((param, _)) = others.iter().find(|(name, value)| !value.is_null() && *name != "name") {
        return Err(Refusal::unsupported(&format!("messages.{param}")));
    }
    let text = match content {
        None => return Err(Refusal::of("messages", "a message without content")),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let text = |part: ContentPart| match part {
                ContentPart { kind, text: Some(text) } if kind == "text" => Ok(text),
                ContentPart { kind, .. } => Err(Refusal::unsupported(&format!("messages.content.{kind}"))),
            };
            parts.into_iter().map(text).collect::<Result<_, _>>()?
        }
    };
    Ok(Message { role, text })
}

/// Which of the two interfaces a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Texts after prompts.
    Completion,
    /// Conversations.
    Talk,
}

/// The head that all pieces of an answer have.
pub(super) struct Head {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
}

impl Head {
    pub(super) fn new(kind: Kind, model: &str) -> Self {
        let prefix = if kind == Kind::Talk { "chatcmpl" } else { "cmpl" };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let id = format!("{prefix}-{:032x}", rand::random::<u128>());
        Head { kind, id, created: since.as_secs(), model: model.into() }
    }

    fn with(&self, object: &str, choices: Vec<Value>) -> Value {
        let Head { id, created, model, .. } = self;
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }

    /// A whole answer.
    pub(super) fn whole(&self, texts: &[super::text::Ended], usage: Value) -> Value {
        let choice = |(index, ended): (usize, &super::text::Ended)| match self.kind {
            Kind::Completion => {
                let (text, logprobs) = (&ended.text, &ended.logprobs);
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": ended.reason})
            }
            Kind::Talk => {
                let message = json!({"role": "assistant", "content": ended.text, "refusal": null});
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": ended.reason})
            }
        };
        let object = if self.kind == Kind::Talk { "chat.completion" } else { "text_completion" };
        let mut whole = self.with(object, texts.iter().enumerate().map(choice).collect());
        whole["usage"] = usage;
        whole
    }

    /// A piece of the text `index`; the last one says why the text ends, and may have what was asked of its tokens.
    pub(super) fn piece(&self, index: usize, text: &str, end: Option<&super::text::Ended>) -> Value {
        let reason = end.map(|end| end.reason);
        let logprobs = end.and_then(|end| end.logprobs.as_ref());
        let choice = match self.kind {
            Kind::Completion => json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}),
            Kind::Talk if end.is_some() => json!({"index": index, "delta": {}, "finish_reason": reason}),
            Kind::Talk => {
                json!({"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": null})
            }
        };
        self.with(self.chunk(), vec![choice])
    }

    /// The last piece of a stream, with what it took.
    pub(super) fn last(&self, usage: Value) -> Value {
        let mut last = self.with(self.chunk(), Vec::new());
        last["usage"] = usage;
        last
    }

    fn chunk(&self) -> &'static str {
        if self.kind == Kind::Talk { "chat.completion.chunk" } else { "text_completion" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<impl std::fmt::Debug, Refusal>) -> Refusal {
        result.unwrap_err()
    }

    #[test]
    fn every_parameter_is_done_or_refused_by_name() {
        let base = r#""model":"m","prompt":"x""#;
        let of = |more: &str| completion(format!("{{{base}{more}}}").as_bytes(), "m", false);
        for more in [
            "",
            r#","user":"u","n":2,"stop":["a","b"],"seed":-1,"logit_bias":{},"best_of":1,"suffix":null"#,
            r#","presence_penalty":0,"stream":true,"stream_options":{"include_usage":true},"max_tokens":0"#,
        ] {
            of(more).unwrap();
        }
        for (more, param) in [
            (r#","presence_penalty":0.5"#, "presence_penalty"),
            (r#","logit_bias":{"5":1}"#, "logit_bias"),
            (r#","best_of":2"#, "best_of"),
            (r#","suffix":"x""#, "suffix"),
            (r#","guided_json":{}"#, "guided_json"),
            (r#","n":0"#, "n"),
            (r#","n":129"#, "n"),
            (r#","logprobs":21"#, "logprobs"),
            (r#","stop":"""#, "stop"),
            (r#","temperature":2.5"#, "temperature"),
            (r#","top_p":0"#, "top_p"),
        ] {
            let refusal = refused(of(more));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(param)), "{more}");
        }
        for bad in ["", "[]", "{", r#"{"prompt":"x","max_tokens":-1}"#, r#"{"prompt":[[-1]]}"#, r#"{"prompt":[]}"#] {
            assert_eq!(refused(completion(bad.as_bytes(), "m", false)).status, 400, "{bad}");
        }
        let other = refused(completion(br#"{"model":"other","prompt":"x"}"#, "m", false));
        assert_eq!((other.status, other.code), (404, "model_not_found"));
        let deep = "[".repeat(100_000);
        assert_eq!(refused(completion(deep.as_bytes(), "m", false)).status, 400);
    }

    #[test]
    fn a_server_that_tells_tokens_alone_shows_no_probabilities() {
        let of = |more: &str| completion(format!(r#"{{"prompt":"x"{more}}}"#).as_bytes(), "m", true);
        of("").unwrap();
        of(r#","temperature":0,"top_p":0.5"#).unwrap();
        assert_eq!(of(r#","temperature":0.8"#).unwrap().wanted.sampling.temperature, 0.8);
        for param in ["top_p", "top_k"] {
            let refusal = refused(of(&format!(r#","{param}":0.5"#)));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(param)));
        }
        assert_eq!(refused(of(r#","logprobs":1"#)).param.as_deref(), Some("logprobs"));
    }

    #[test]
    fn a_conversation_takes_turns() {
        let of = |messages: &str| talk(format!(r#"{{"messages":[{messages}]}}"#).as_bytes(), "m", false);
        let (user, model) = (r#"{"role":"user","content":"u"}"#, r#"{"role":"assistant","content":"a"}"#);
        let system = r#"{"role":"developer","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]}"#;
        assert_eq!(of(user).unwrap().before, []);
        let asked = of(&format!("{system},{user},{model},{user}")).unwrap();
        assert_eq!(asked.before[0], Message { role: "system", text: "st".into() });
        assert_eq!((asked.before.len(), &*asked.words), (3, "u"));
        let image = r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#;
        let tool = r#"{"role":"tool","content":"x"}"#;
        let call = r#"{"role":"assistant","content":"x","tool_calls":[{}]}"#;
        for messages in [
            String::new(),
            model.into(),
            format!("{user},{user}"),
            format!("{user},{model},{system},{user}"),
            format!("{model},{user}"),
            image.into(),
            format!("{tool},{user}"),
            format!("{user},{call},{user}"),
        ] {
            assert_eq!(refused(of(&messages)).status, 400, "{messages}");
        }
    }
}
