//! The JSON of OpenAI's interface: requests of programs, and answers to them.
//!
//! Source: OpenAI's API reference, "Completions", "Chat" and "Errors". A parameter that asks for something that is
//! not supported here is refused by its name, even if other servers ignore it.

use std::time::SystemTime;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use waggle::program::Words;
use waggle::{Prompt, Sampling};

use crate::refusal::Refusal;
use crate::spent::Spent;
use crate::text::Ended;

/// Most prompts of a request, most texts that are generated for all its prompts together, and most of the likeliest
/// tokens that are named at a position.
const MAX_PROMPTS: usize = 64;
const MAX_TEXTS: usize = 128;
const MAX_LIKELIEST: usize = 20;
/// Most stop texts of a request. OpenAI allows four, but evaluations send more.
const MAX_STOPS: usize = 16;
/// Default number of tokens of a completion.
const DEFAULT_TOKENS: usize = 16;

/// The parameters of a request, or of an object within it, without those that ask for nothing. `place` is the
/// object's path in the request.
struct Body {
    place: String,
    values: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stops {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Map<String, Value>>),
}

/// Parameters that both kinds of requests have.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) sampling: Sampling,
    pub(super) stops: Vec<String>,
    pub(super) stream: bool,
    /// Whether a stream ends with its usage.
    pub(super) usage: bool,
}

/// A request for texts after prompts, which OpenAI calls completions.
#[derive(Clone, Debug)]
pub(super) struct Completion {
    pub(super) prompts: Vec<Prompt>,
    /// Number of texts after each prompt.
    pub(super) samples: usize,
    pub(super) tokens: usize,
    /// Whether a text begins with its prompt.
    pub(super) echo: bool,
    /// Number of the likeliest tokens to name at each position.
    pub(super) likeliest: Option<usize>,
    pub(super) wanted: Wanted,
}

/// A request for the next answer of a conversation.
#[derive(Clone, Debug)]
pub(super) struct Talk {
    pub(super) messages: Vec<Words>,
    pub(super) tokens: Option<usize>,
    pub(super) wanted: Wanted,
}

/// Parameters that do not change an answer.
const INERT: &str = "cache_control metadata parallel_tool_calls prompt_cache_key safety_identifier service_tier store user \
    verbosity";

/// Whether the parameter `name` with this value asks for nothing and can be ignored. It belongs to a request or to an
/// object within one.
fn asks_for_nothing(name: &str, value: &Value) -> bool {
    let number = value.as_f64();
    match name {
        _ if value.is_null() || INERT.split(' ').any(|inert| inert == name) => true,
        "dry_multiplier" | "frequency_penalty" | "min_p" | "min_tokens" | "mirostat" | "presence_penalty"
        | "priority" | "top_a" | "top_logprobs" | "xtc_probability" => number == Some(0.0),
        "best_of" | "length_penalty" | "num_beams" | "repeat_penalty" | "repetition_penalty" | "tfs_z"
        | "typical_p" => number == Some(1.0),
        "top_k" => number == Some(0.0) || number == Some(-1.0),
        "continue_final_message"
        | "continuous_usage_stats"
        | "early_stopping"
        | "ignore_eos"
        | "include_obfuscation"
        | "include_stop_str_in_output"
        | "logprobs"
        | "partial"
        | "prefix"
        | "return_token_ids"
        | "return_tokens_as_token_ids"
        | "use_beam_search" => *value == false,
        "add_generation_prompt" | "detokenize" | "skip_special_tokens" | "spaces_between_special_tokens" => {
            *value == true
        }
        "reasoning_content" | "suffix" => value == "",
        "function_call" | "tool_choice" => value == "none" || value == "auto",
        "annotations" | "bad_words" | "documents" | "functions" | "stop_token_ids" | "tool_calls" | "tools" => {
            value.as_array().is_some_and(Vec::is_empty)
        }
        "chat_template_kwargs" | "logit_bias" => value.as_object().is_some_and(Map::is_empty),
        "modalities" => *value == json!(["text"]),
        "response_format" => *value == json!({"type": "text"}),
        _ => false,
    }
}

impl Body {
    fn read(body: &[u8]) -> Result<Self, Refusal> {
        let values = serde_json::from_slice(body);
        Ok(Body::of("", values.map_err(|error| Refusal::new(400, "invalid_json", error.to_string()))?))
    }

    fn of(place: impl Into<String>, mut values: Map<String, Value>) -> Self {
        values.retain(|name, value| !asks_for_nothing(name, value));
        Body { place: place.into(), values }
    }

    fn refusal(&self, name: &str, message: impl Into<String>) -> Refusal {
        Refusal::of(&format!("{}{name}", self.place), message)
    }

    /// Takes the value of `name`, if there is one. `what` describes the expected value, for the refusal.
    fn take<T: DeserializeOwned>(&mut self, name: &str, what: &str) -> Result<Option<T>, Refusal> {
        let value = self.values.remove(name).map(serde_json::from_value).transpose();
        value.map_err(|_| self.refusal(name, format!("`{}{name}` is {what}", self.place)))
    }

    /// Refuses parameters that were not taken.
    fn done(self) -> Result<(), Refusal> {
        match self.values.keys().next() {
            Some(name) => Err(Refusal::unsupported(&format!("{}{name}", self.place))),
            None => Ok(()),
        }
    }

    /// Takes the parameters that both kinds of requests have, for the model `name`. `blind` says that the client
    /// learns tokens alone.
    fn wanted(&mut self, name: &str, blind: bool) -> Result<Wanted, Refusal> {
        if let Some(other) = self.take::<String>("model", "a name")?.filter(|model| model != name) {
            return Err(no_model(&other, name));
        }
        let stops = match self.take("stop", "a text or a list of texts")? {
            None => Vec::new(),
            Some(Stops::One(text)) => vec![text],
            Some(Stops::Several(all)) => all,
        };
        if stops.len() > MAX_STOPS || stops.iter().any(String::is_empty) {
            return Err(Refusal::of("stop", format!("at most {MAX_STOPS} texts that are not empty")));
        }
        let temperature = self.take("temperature", "a number from 0 to 2")?.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            return Err(Refusal::of("temperature", "0 to 2"));
        }
        let top_p = self.take("top_p", "a number above 0, up to 1")?.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Refusal::of("top_p", "above 0 up to 1"));
        }
        if blind && temperature != 0.0 && top_p != 1.0 {
            return Err(Refusal::of("top_p", "1, because the server tells tokens alone"));
        }
        let seed: Option<i64> = self.take("seed", "a whole number of 64 bits")?;
        // At temperature 0 nothing is sampled.
        let sampling = if temperature == 0.0 {
            Sampling::default()
        } else {
            Sampling::default().temperature(temperature).top_p(top_p).seed(seed.map(|seed| seed as u64))
        };
        let stream = self.flag("stream")?;
        let options = self.take("stream_options", "an object")?.unwrap_or_default();
        let mut options = Body::of("stream_options.", options);
        let usage = options.flag("include_usage")?;
        options.done()?;
        Ok(Wanted { sampling, stops, stream, usage })
    }

    fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        Ok(self.take(name, "true or false")?.unwrap_or(false))
    }

    fn count(&mut self, name: &str) -> Result<Option<usize>, Refusal> {
        self.take(name, "a whole number of at least 0")
    }
}

/// The refusal of a request for the model `other`, where the server has `name`.
pub(super) fn no_model(other: &str, name: &str) -> Refusal {
    let message = format!("there is no model `{other}`, the server has `{name}`");
    Refusal { status: 404, code: "model_not_found", ..Refusal::of("model", message) }
}

/// Returns `got`, the value of the parameter `param`. A value above `most` is refused.
fn bounded(param: &str, got: usize, most: usize) -> Result<usize, Refusal> {
    if got <= most { Ok(got) } else { Err(Refusal::of(param, format!("at most {most}"))) }
}

/// Reads a request for texts after prompts, for the model `name`. `blind` says that the client learns tokens alone.
pub(super) fn completion(body: &[u8], name: &str, blind: bool) -> Result<Completion, Refusal> {
    let mut body = Body::read(body)?;
    let samples = bounded("n", body.count("n")?.unwrap_or(1), MAX_TEXTS)?;
    let likeliest = body.count("logprobs")?.map(|most| bounded("logprobs", most, MAX_LIKELIEST)).transpose()?;
    let tokens = body.count("max_tokens")?.unwrap_or(DEFAULT_TOKENS);
    let echo = body.flag("echo")?;
    let what = "a text, a list of token ids, or a list of these";
    let prompt = body.take("prompt", what)?;
    let wanted = body.wanted(name, blind)?;
    body.done()?;
    if samples == 0 {
        return Err(Refusal::of("n", "at least 1"));
    }
    if blind && likeliest.is_some() {
        return Err(Refusal::of("logprobs", "the server tells tokens alone"));
    }
    let prompts: Vec<Prompt> = match prompt {
        None => return Err(Refusal::of("prompt", what)),
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
    Ok(Completion { prompts, samples, tokens, echo, likeliest, wanted })
}

/// Reads a request for the next answer of a conversation with the model `name`. The template decides which messages
/// may follow which.
pub(super) fn talk(body: &[u8], name: &str, blind: bool) -> Result<Talk, Refusal> {
    let mut body = Body::read(body)?;
    if body.count("n")?.is_some_and(|n| n != 1) {
        return Err(Refusal::of("n", "a conversation has one answer; completions may have several"));
    }
    let mut tokens = None;
    for param in ["max_completion_tokens", "max_tokens"] {
        let most = body.count(param)?;
        if most == Some(0) {
            return Err(Refusal::of(param, "at least 1"));
        }
        tokens = tokens.or(most);
    }
    let all: Vec<Map<_, _>> = body.take("messages", "a list of objects")?.unwrap_or_default();
    let wanted = body.wanted(name, blind)?;
    body.done()?;
    if all.is_empty() {
        return Err(Refusal::of("messages", "at least one message"));
    }
    let messages = all.into_iter().enumerate().map(|(at, one)| message(Body::of(format!("messages[{at}]."), one)));
    Ok(Talk { messages: messages.collect::<Result<_, _>>()?, tokens, wanted })
}

fn message(mut body: Body) -> Result<Words, Refusal> {
    let roles = "one of system, developer, user and assistant";
    let role = match body.take::<String>("role", roles)?.as_deref() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        _ => return Err(body.refusal("role", format!("{roles} is the role of a message"))),
    };
    let _: Option<String> = body.take("name", "a name")?;
    let what = "a text, or a list of parts that are text";
    let text = match body.take("content", what)? {
        // An earlier answer may have been empty.
        None if role == "assistant" => String::new(),
        None => return Err(body.refusal("content", what)),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let part = |(at, one)| part(Body::of(format!("{}content[{at}].", body.place), one));
            parts.into_iter().enumerate().map(part).collect::<Result<_, _>>()?
        }
    };
    body.done()?;
    Ok((role, text))
}

/// The text of a part of a message.
fn part(mut body: Body) -> Result<String, Refusal> {
    let kind: String = body.take("type", "a kind of content")?.unwrap_or_default();
    if kind != "text" {
        return Err(Refusal {
            code: "unsupported_parameter",
            ..body.refusal("type", "text alone is supported here")
        });
    }
    let text = body.take("text", "a text")?.ok_or_else(|| body.refusal("text", "a text"))?;
    body.done()?;
    Ok(text)
}

/// The interface that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Texts after prompts, which OpenAI calls completions.
    Completion,
    /// Chat completions: conversations.
    Talk,
}

/// The fields that all pieces of an answer share.
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

    /// A whole answer, in one object.
    pub(super) fn whole(&self, texts: &[Ended], usage: Value) -> Value {
        let choice = |(index, ended): (usize, &Ended)| match self.kind {
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

    /// A piece of the text `index`. The last piece states why the text ends, and the log-probabilities of its tokens
    /// if they were asked for.
    pub(super) fn piece(&self, index: usize, text: &str, end: Option<&Ended>) -> Value {
        let reason = end.map(|end| end.reason);
        let logprobs = end.and_then(|end| end.logprobs.as_ref());
        let choice = match self.kind {
            Kind::Completion => json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}),
            Kind::Talk => {
                let delta = if end.is_some() { json!({}) } else { json!({ "content": text }) };
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})
            }
        };
        self.with(self.chunk(), vec![choice])
    }

    /// The first message of a stream, which names the role of the speaker; `None` for completions, which have no
    /// role.
    pub(super) fn first(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.kind == Kind::Talk).then(|| self.with(self.chunk(), vec![choice]))
    }

    /// The last message of a stream, with its usage.
    pub(super) fn last(&self, usage: Value) -> Value {
        let mut last = self.with(self.chunk(), Vec::new());
        last["usage"] = usage;
        last
    }

    fn chunk(&self) -> &'static str {
        if self.kind == Kind::Talk { "chat.completion.chunk" } else { "text_completion" }
    }
}

/// The object `usage` of an answer: the numbers of tokens, and the costs. `texts` are the texts after all `prompts`
/// prompts, in order.
pub(super) fn usage(texts: &[Ended], prompts: usize) -> Value {
    let samples = texts.len() / prompts.max(1);
    let prompt: usize = texts.iter().step_by(samples.max(1)).map(|text| text.prompt_tokens).sum();
    let completion: usize = texts.iter().map(|text| text.tokens).sum();
    // Texts of one session share its costs. The text that ended last knows all of them.
    let mut passes: Vec<&Spent> = Vec::new();
    for spent in texts.iter().filter_map(|text| text.spent.as_deref()) {
        match passes.iter_mut().find(|known| known.number == spent.number) {
            Some(known) if known.server_saw.tokens < spent.server_saw.tokens => *known = spent,
            Some(_) => {}
            None => passes.push(spent),
        }
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "waggle": {"passes": passes.into_iter().map(Spent::told).collect::<Vec<_>>()},
    })
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
            r#","top_k":-1,"min_p":0.0,"repetition_penalty":1.0,"ignore_eos":false,"stop":[],"logprobs":false"#,
            r#","top_k":0,"best_of":1.0,"skip_special_tokens":true,"stop_token_ids":[],"suffix":"","echo":false"#,
            r#","tools":[],"tool_choice":"auto","stream_options":{"include_obfuscation":false},"response_format":{"type":"text"}"#,
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
            (r#","top_k":5"#, "top_k"),
            (r#","min_p":0.1"#, "min_p"),
            (r#","ignore_eos":true"#, "ignore_eos"),
            (r#","skip_special_tokens":false"#, "skip_special_tokens"),
            (r#","max_tokens":-1"#, "max_tokens"),
            (r#","max_tokens":2.5"#, "max_tokens"),
            (r#","max_tokens":"2""#, "max_tokens"),
            (r#","logprobs":true"#, "logprobs"),
            (r#","temperature":"hot""#, "temperature"),
            (r#","seed":1e30"#, "seed"),
            (r#","stop":[1]"#, "stop"),
            (r#","model":5"#, "model"),
            (r#","stream":"yes""#, "stream"),
            (r#","stream_options":5"#, "stream_options"),
            (r#","stream_options":{"include_usage":1}"#, "stream_options.include_usage"),
            (r#","stream_options":{"include_obfuscation":true}"#, "stream_options.include_obfuscation"),
        ] {
            let refusal = refused(of(more));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(param)), "{more}");
        }
        for (bad, param) in [
            ("", None),
            ("[]", None),
            ("{", None),
            ("{}", Some("prompt")),
            (r#"{"prompt":[[-1]]}"#, Some("prompt")),
            (r#"{"prompt":[1,2,"x"]}"#, Some("prompt")),
            (r#"{"prompt":[]}"#, Some("prompt")),
            (r#"{"prompt":[[]]}"#, Some("prompt")),
        ] {
            let refusal = refused(completion(bad.as_bytes(), "m", false));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, param), "{bad}");
            assert!(!refusal.message.contains("untagged"), "{refusal:?}");
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
    fn a_conversation_has_messages_of_any_order() {
        let of = |messages: &str| talk(format!(r#"{{"messages":[{messages}]}}"#).as_bytes(), "m", false);
        let (user, model) = (r#"{"role":"user","content":"u","name":"n"}"#, r#"{"role":"assistant","content":"a"}"#);
        let system = r#"{"role":"developer","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]}"#;
        let words = |role, text: &str| (role, text.to_owned());
        let asked = of(&format!("{model},{user},{user},{system},{model}")).unwrap();
        let (u, a) = (words("user", "u"), words("assistant", "a"));
        assert_eq!(asked.messages, [a.clone(), u.clone(), u, words("system", "st"), a]);
        let empty =
            r#"{"role":"assistant","content":null,"tool_calls":[],"annotations":[],"refusal":null,"audio":null}"#;
        let asked = of(&format!(r#"{empty},{{"role":"user","content":""}}"#)).unwrap();
        assert_eq!(asked.messages, [words("assistant", ""), words("user", "")]);
        for (messages, param) in [
            ("", "messages"),
            ("5", "messages"),
            (
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#,
                "messages[0].content[0].type",
            ),
            (r#"{"role":"user","content":[{"type":"text"}]}"#, "messages[0].content[0].text"),
            (r#"{"role":"user","content":5}"#, "messages[0].content"),
            (r#"{"role":"user"}"#, "messages[0].content"),
            (r#"{"role":"tool","content":"x"}"#, "messages[0].role"),
            (r#"{"content":"x"}"#, "messages[0].role"),
            (
                r#"{"role":"user","content":"x"},{"role":"assistant","content":"x","tool_calls":[{}]}"#,
                "messages[1].tool_calls",
            ),
            (
                r#"{"role":"user","content":"x"},{"role":"assistant","content":"x","prefix":true}"#,
                "messages[1].prefix",
            ),
        ] {
            let refusal = refused(of(messages));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(param)), "{messages}");
        }
        for (more, param) in [("max_completion_tokens\":0", "max_completion_tokens"), ("logprobs\":true", "logprobs")]
        {
            let refusal = refused(talk(format!(r#"{{"messages":[{user}],"{more}}}"#).as_bytes(), "m", false));
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some(param)), "{more}");
        }
    }

    /// Programs join the pieces of a stream, and append fields of text to each other.
    #[test]
    fn a_stream_names_its_role_once() {
        let head = Head::new(Kind::Talk, "m");
        let first = head.first().unwrap();
        assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(head.piece(0, "a", None)["choices"][0]["delta"], json!({"content": "a"}));
        assert_eq!(Head::new(Kind::Completion, "m").first(), None);
    }
}
