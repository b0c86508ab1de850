//! Chat templates: a conversation as one text, with the marks that a model was trained on.
//!
//! A template is a small program in Jinja's language, `chat_template` in `tokenizer_config.json` or a file
//! `chat_template.jinja` beside it. A client gets it from the server, so it may be hostile. It has no access to files
//! or other templates. Its steps, its length ([`MAX_TEMPLATE_BYTES`]) and the length of its output are bounded.
//! [`Tokenizer::render`](super::Tokenizer::render) runs it in the process of the server's tokenizer, whose memory and
//! time are bounded too.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TokenizerError;
use super::error::at_most;
use super::published::Published;
use super::settings::object;

/// The name of the template that is taken if a model has several.
const DEFAULT: &str = "default";

/// The largest size, in bytes, of a template with its named tokens. Templates of current models have up to 20 kB.
pub const MAX_TEMPLATE_BYTES: usize = 64 << 10;

/// A chat template, and the special tokens that it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatTemplate {
    /// The template's program.
    pub template: String,
    /// The texts of the named tokens, such as `bos_token` and `eos_token`, of the model's tokenizer, by name.
    #[serde(default)]
    pub tokens: BTreeMap<String, String>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker: `system`, `user` or `assistant`.
    pub role: String,
    /// The words.
    pub content: String,
}

impl Message {
    /// A message with the words `content`, which `role` says.
    pub fn new(role: &str, content: &str) -> Self {
        Message { role: role.to_owned(), content: content.to_owned() }
    }
}

impl ChatTemplate {
    /// The template of a model directory; `None` if it has none. It is in `chat_template.jinja`, or in
    /// `chat_template` of `tokenizer_config.json`. Of several templates, the one called `default` is taken. If none
    /// of several has this name, the result is a template that refuses every conversation.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] and [`TokenizerError::Beside`] for files that cannot be read or have another
    /// form. [`TokenizerError::TooMuch`] if the template exceeds [`MAX_TEMPLATE_BYTES`].
    pub fn open(dir: &Path) -> Result<Option<Self>, TokenizerError> {
        let mut all = named(dir)?;
        let template = match all.remove(DEFAULT) {
            Some(template) => template,
            None if all.is_empty() => return Ok(None),
            None => {
                let names: Vec<_> = all.into_keys().collect();
                let why =
                    format!("this model has the templates {}, and none of them is the default", names.join(", "));
                format!("{{{{ raise_exception({}) }}}}", Value::from(why))
            }
        };
        Self::with_tokens(template, dir).map(Some)
    }

    /// The template of the model directory `path` or, if `path` is a file, the template in it. The named tokens come
    /// from this directory, or from the folder of the file.
    ///
    /// # Errors
    /// As [`ChatTemplate::open`]. [`TokenizerError::Template`] if there is no template.
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let none = || TokenizerError::template(format!("there is none in {}", path.display()));
        match path.is_dir() {
            true => Self::open(path)?.ok_or_else(none),
            false => Self::with_tokens(text(path)?, path.parent().unwrap_or(path)),
        }
    }

    fn with_tokens(template: String, dir: &Path) -> Result<Self, TokenizerError> {
        let found = ChatTemplate { template, tokens: Published::named_tokens(dir)? };
        found.to_bytes()?;
        Ok(found)
    }

    /// The template as JSON, as a server sends it.
    ///
    /// # Errors
    /// [`TokenizerError::TooMuch`] if the JSON exceeds [`MAX_TEMPLATE_BYTES`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, TokenizerError> {
        let bytes = serde_json::to_vec(self).map_err(TokenizerError::template)?;
        at_most("bytes of a chat template", bytes.len(), MAX_TEMPLATE_BYTES)?;
        Ok(bytes)
    }

    /// Reads a template that a server sent.
    ///
    /// # Errors
    /// [`TokenizerError::TooMuch`] if there are more than [`MAX_TEMPLATE_BYTES`]. [`TokenizerError::Template`] if the
    /// bytes are not the JSON of a template.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        at_most("bytes of a chat template", bytes.len(), MAX_TEMPLATE_BYTES)?;
        serde_json::from_slice(bytes).map_err(TokenizerError::template)
    }

    /// Renders `messages` in this process. `now` is the time that the template may ask for. With `generate` the text
    /// ends where an answer begins.
    pub(super) fn render(&self, messages: &[Message], generate: bool, now: &str) -> Result<String, TokenizerError> {
        at_most("bytes of a chat template", self.template.len(), MAX_TEMPLATE_BYTES)?;
        rendered(self, messages, generate, now)
    }

    /// Whether the template asks for the time. Apart from the time, the text that the template adds depends only on
    /// the roles and the number of messages.
    pub fn tells_time(&self) -> bool {
        self.template.contains("strftime_now")
    }
}

fn rendered(
    template: &ChatTemplate,
    messages: &[Message],
    generate: bool,
    now: &str,
) -> Result<String, TokenizerError> {
    use minijinja::{Error, Value, context};

    let given = context! {
        messages,
        add_generation_prompt => generate,
        // These variables are always defined, but empty.
        tools => Value::from(()),
        documents => Value::from(()),
    };
    // An error's text, with the reason that the template gives.
    let words = |error: Error| {
        error.detail().map_or_else(|| error.to_string(), |detail| format!("{}: {detail}", error.kind()))
    };
    let context = context! { ..given, ..Value::from_serialize(&template.tokens) };
    super::jinja::render(&template.template, context, now).map_err(|e| TokenizerError::template(words(e)))
}

/// The time on this machine's clock, for [`Tokenizer::render`](super::Tokenizer::render): a date and a time in ISO
/// 8601, without a zone.
pub fn local_time() -> String {
    jiff::Zoned::now().datetime().to_string()
}

/// The text of the file `path`.
fn text(path: &Path) -> Result<String, TokenizerError> {
    waggle_files::read_text(path, MAX_TEMPLATE_BYTES as u64)
        .map_err(|e| TokenizerError::template(format!("{}: {e}", path.display())))
}

/// The templates of the directory `dir`, by name. The templates in `tokenizer_config.json` are read only if there are
/// no template files.
fn named(dir: &Path) -> Result<BTreeMap<String, String>, TokenizerError> {
    let mut all = BTreeMap::new();
    let alone = dir.join("chat_template.jinja");
    if alone.is_file() {
        all.insert(DEFAULT.to_owned(), text(&alone)?);
    }
    let more = dir.join("additional_chat_templates");
    for entry in std::fs::read_dir(&more).into_iter().flatten().flatten() {
        let path = entry.path();
        if let (Some(name), Some("jinja")) =
            (path.file_stem().and_then(|name| name.to_str()), path.extension().and_then(|end| end.to_str()))
        {
            all.insert(name.to_owned(), text(&path)?);
        }
    }
    if !all.is_empty() {
        return Ok(all);
    }
    let config = object(dir, "tokenizer_config.json")?.unwrap_or_default();
    let own = |text: &Value| text.as_str().map(str::to_owned);
    match config.get("chat_template") {
        Some(Value::Array(list)) => {
            all.extend(list.iter().filter_map(|one| Some((own(&one["name"])?, own(&one["template"])?))));
        }
        Some(Value::Object(object)) => {
            all.extend(object.iter().filter_map(|(name, text)| Some((name.clone(), own(text)?))));
        }
        Some(text) => all.extend(own(text).map(|text| (DEFAULT.to_owned(), text))),
        None => {}
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template that writes messages as ChatML does.
    const CHATML: &str = "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + \
        message['content'].strip() + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|im_start|>assistant\\n' }}\n{%- endif %}";

    fn template(text: &str) -> ChatTemplate {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, token)| (name.into(), token.into()));
        ChatTemplate { template: text.into(), tokens: tokens.into() }
    }

    const NOW: &str = "2026-11-28T17:05:09";

    fn text(template_text: &str, messages: &[Message], generate: bool) -> String {
        template(template_text).render(messages, generate, NOW).unwrap_or_else(|e| panic!("{template_text}: {e}"))
    }

    #[test]
    fn a_conversation_becomes_a_text() {
        let messages = [Message::new("system", "Be brief."), Message::new("user", " <b>Hi</b> ")];
        assert_eq!(
            text(CHATML, &messages, true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>Hi</b><|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(text("{{ bos_token }}{{ eos_token }}{{ absent }}", &[], false), "<s></s>");
    }

    /// Compares with the texts that transformers makes. The script `crates/tokenizer/references/make.py` recorded
    /// them.
    #[test]
    fn templates_mean_what_they_mean_in_transformers() {
        let recorded: Value = serde_json::from_str(include_str!("../tests/data/published.json")).unwrap();
        let recorded = recorded["templates"].as_array().unwrap();
        assert!(recorded.len() >= 30);
        let messages = [Message::new("user", "it's"), Message::new("assistant", "<b> é")];
        for one in recorded {
            let source = one["template"].as_str().unwrap();
            let text = template(source).render(&messages, false, NOW);
            assert_eq!(text.as_deref().ok(), one["text"].as_str(), "{source}: {text:?}");
        }
    }

    #[test]
    fn hostile_templates_are_errors() {
        let refused =
            |text: &str| template(text).render(&[Message::new("user", "x")], true, NOW).unwrap_err().to_string();
        let endless = "{% for a in range(9000) %}{% for b in range(9000) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(refused(endless).contains("fuel"), "{}", refused(endless));
        assert!(refused("{% include '/etc/passwd' %}").starts_with("chat template"));
        assert!(refused("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
        assert!(refused("{% for x in %}").contains("syntax error"), "{}", refused("{% for x in %}"));
        assert!(refused(&" ".repeat(MAX_TEMPLATE_BYTES + 1)).contains("65536"));
        for bad in [
            "{{ 'a'.rjust(99999999999) }}",
            "{{ 'x'.format_map({}) }}",
            "{{ '%(",
            "{{ 'a' % ( }}",
            "{{ strftime_now('%') }}",
        ] {
            refused(bad);
        }
        assert!(ChatTemplate::from_bytes(&vec![b' '; MAX_TEMPLATE_BYTES + 1]).is_err());
        assert!(ChatTemplate::from_bytes(b"{\"template\": 3}").is_err());
        let whole = template(CHATML);
        assert_eq!(ChatTemplate::from_bytes(&whole.to_bytes().unwrap()).unwrap(), whole);
    }

    #[test]
    fn a_directory_may_have_a_template_in_several_places() {
        let dir = tempfile::tempdir().unwrap();
        let open = || ChatTemplate::open(dir.path()).unwrap();
        assert_eq!(open(), None);
        let config = dir.path().join("tokenizer_config.json");
        let write = |rest: &str| {
            std::fs::write(&config, format!(r#"{{"bos_token": {{"content": "<s>"}}, "eos_token": "</s>"{rest}}}"#))
                .unwrap();
        };
        write("");
        assert_eq!(open(), None);
        write(r#", "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]"#);
        assert_eq!(open(), Some(template("d")));
        // Of several templates without a `default`, none is taken.
        write(r#", "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "d"}]"#);
        let refusing = open().unwrap().render(&[Message::new("user", "x")], true, NOW).unwrap_err().to_string();
        assert!(refusing.contains("rag, tool_use"), "{refusing}");
        write(r#", "chat_template": "c""#);
        assert_eq!(open(), Some(template("c")));
        std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
        std::fs::write(dir.path().join("additional_chat_templates/rag.jinja"), "r").unwrap();
        assert!(open().unwrap().template.contains("raise_exception"), "files take the place of the configuration's");
        std::fs::write(dir.path().join("chat_template.jinja"), "j").unwrap();
        assert_eq!(open(), Some(template("j")));
        // A template in a file of any name, with its tokens beside it.
        std::fs::write(dir.path().join("own.txt"), "o").unwrap();
        assert_eq!(ChatTemplate::read(&dir.path().join("own.txt")).unwrap(), template("o"));
        assert_eq!(ChatTemplate::read(dir.path()).unwrap(), template("j"));
        assert!(matches!(ChatTemplate::read(&dir.path().join("none.jinja")), Err(TokenizerError::Template { .. })));
        // Special tokens may stand in a file of their own.
        std::fs::write(dir.path().join("special_tokens_map.json"), r#"{"unk_token": "<u>", "eos_token": "E"}"#)
            .unwrap();
        assert_eq!(open().unwrap().tokens.into_values().collect::<Vec<_>>(), ["<s>", "E", "<u>"]);
        std::fs::write(&config, "{").unwrap();
        assert!(matches!(ChatTemplate::open(dir.path()), Err(TokenizerError::Beside { .. })));
    }
}
