//! Chat templates: a conversation as one text, with the marks that a model was trained on.
//!
//! A template is a small program in Jinja's language, `chat_template` in `tokenizer_config.json` or a file
//! `chat_template.jinja` beside it. A client gets it from the server, so it may be hostile. It has no access to files
//! or other templates, its steps are counted, and it is bounded ([`MAX_TEMPLATE_BYTES`]), as its text is.
//! [`Tokenizer::render`](super::Tokenizer::render) runs it in the process of the server's tokenizer, whose memory and
//! time are bounded, too.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TokenizerError;
use super::error::at_most;

/// Longest `tokenizer_config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Longest template with the names of its tokens, in bytes. Those of current models have up to 20 kB.
pub const MAX_TEMPLATE_BYTES: usize = 64 << 10;

/// Instructions of one rendering. A template of 20 kB takes some thousands for a message.
#[cfg(feature = "templates")]
const FUEL: u64 = 10_000_000;

/// A chat template, and the special tokens that it may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatTemplate {
    /// The program.
    pub template: String,
    /// Text of the token that begins a text; empty if there is none.
    #[serde(default)]
    pub bos_token: String,
    /// Text of the token that ends a text; empty if there is none.
    #[serde(default)]
    pub eos_token: String,
}

/// One part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Whose words they are: `system`, `user` or `assistant`.
    pub role: String,
    /// The words.
    pub content: String,
}

impl Message {
    /// Words of `role`.
    pub fn new(role: &str, content: &str) -> Self {
        Message { role: role.to_owned(), content: content.to_owned() }
    }
}

impl ChatTemplate {
    /// The template of a model directory, if it has one: `chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json`, which may be a list of templates by name.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] for files that cannot be read or have another form; [`TokenizerError::TooMuch`].
    pub fn open(dir: &Path) -> Result<Option<Self>, TokenizerError> {
        Self::beside(dir, text(&dir.join("chat_template.jinja"))?)
    }

    /// The template of the model directory `path`, or that whose text is the file `path`. Its tokens are those of
    /// `tokenizer_config.json` in the directory.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::open`]; [`TokenizerError::Template`] if there is none.
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let found = match path.is_dir() {
            true => Self::open(path)?,
            false => Self::beside(path.parent().unwrap_or(path), text(path)?)?.filter(|_| path.exists()),
        };
        found.ok_or_else(|| TokenizerError::template(format!("there is none in {}", path.display())))
    }

    /// The template `alone` or that of the configuration, with the tokens of the directory `dir`.
    fn beside(dir: &Path, alone: Option<String>) -> Result<Option<Self>, TokenizerError> {
        let config: Value = match text(&dir.join("tokenizer_config.json"))? {
            Some(config) => serde_json::from_str(&config)
                .map_err(|e| TokenizerError::template(format!("tokenizer_config.json: {e}")))?,
            None => Value::Null,
        };
        let Some(template) = alone.or_else(|| in_config(&config["chat_template"])) else { return Ok(None) };
        // A token is a text, or an object with one.
        let token = |name: &str| {
            let token = &config[name];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default().to_owned()
        };
        let found = ChatTemplate { template, bos_token: token("bos_token"), eos_token: token("eos_token") };
        found.to_bytes()?;
        Ok(Some(found))
    }

    /// As a server sends it: JSON.
    ///
    /// # Errors
    /// [`TokenizerError::TooMuch`] above [`MAX_TEMPLATE_BYTES`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, TokenizerError> {
        let bytes = serde_json::to_vec(self).map_err(TokenizerError::template)?;
        at_most("bytes of a chat template", bytes.len(), MAX_TEMPLATE_BYTES)?;
        Ok(bytes)
    }

    /// Reads a template that a server sent.
    ///
    /// # Errors
    /// [`TokenizerError::TooMuch`] above [`MAX_TEMPLATE_BYTES`]; [`TokenizerError::Template`] for anything but such
    /// JSON.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        at_most("bytes of a chat template", bytes.len(), MAX_TEMPLATE_BYTES)?;
        serde_json::from_slice(bytes).map_err(TokenizerError::template)
    }

    /// The text of `messages` in this process. With `generate` it ends where an answer begins.
    pub(super) fn render(&self, messages: &[Message], generate: bool) -> Result<String, TokenizerError> {
        at_most("bytes of a chat template", self.template.len(), MAX_TEMPLATE_BYTES)?;
        rendered(self, messages, generate)
    }
}

#[cfg(feature = "templates")]
fn rendered(template: &ChatTemplate, messages: &[Message], generate: bool) -> Result<String, TokenizerError> {
    use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

    let mut environment = Environment::new();
    // Nothing but the text itself: no escapes for HTML.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // As Hugging Face does.
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(false);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, why))
    });
    let context = minijinja::context! {
        messages,
        add_generation_prompt => generate,
        bos_token => template.bos_token,
        eos_token => template.eos_token,
    };
    // With the reason that a template gives.
    let words = |error: Error| {
        error.detail().map_or_else(|| error.to_string(), |detail| format!("{}: {detail}", error.kind()))
    };
    environment.render_str(&template.template, context).map_err(|e| TokenizerError::template(words(e)))
}

#[cfg(not(feature = "templates"))]
fn rendered(_: &ChatTemplate, _: &[Message], _: bool) -> Result<String, TokenizerError> {
    Err(TokenizerError::template("this program was built without the feature `templates`"))
}

/// The text of a file, if there is one.
fn text(path: &Path) -> Result<Option<String>, TokenizerError> {
    let found = path.exists().then(|| files::read_text(path, MAX_CONFIG_BYTES));
    found.transpose().map_err(|e| TokenizerError::template(format!("{}: {e}", path.display())))
}

/// The template in a configuration: a text, or the one called `default` of a list.
fn in_config(value: &Value) -> Option<String> {
    let default = || {
        let named = value.as_array()?.iter().find(|one| one["name"] == "default")?;
        named["template"].as_str()
    };
    value.as_str().or_else(default).map(str::to_owned)
}

#[cfg(all(test, feature = "templates"))]
mod tests {
    use super::*;

    /// A template in the manner of ChatML.
    const CHATML: &str = "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + \
        message['content'].strip() + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
        {{- '<|im_start|>assistant\\n' }}\n{%- endif %}";

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate { template: text.into(), bos_token: "<s>".into(), eos_token: "</s>".into() }
    }

    #[test]
    fn a_conversation_becomes_a_text() {
        let messages = [Message::new("system", "Be brief."), Message::new("user", " <b>Hi</b> ")];
        let text = template(CHATML).render(&messages, true).unwrap();
        assert_eq!(
            text,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>Hi</b><|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(template("{{ bos_token }}{{ eos_token }}{{ absent }}").render(&[], false).unwrap(), "<s></s>");
    }

    #[test]
    fn hostile_templates_are_errors() {
        let refused = |text: &str| template(text).render(&[Message::new("user", "x")], true).unwrap_err().to_string();
        let endless = "{% for a in range(9000) %}{% for b in range(9000) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(refused(endless).contains("fuel"), "{}", refused(endless));
        assert!(refused("{% include '/etc/passwd' %}").starts_with("chat template"));
        assert!(refused("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
        assert!(refused("{% for x in %}").contains("syntax error"), "{}", refused("{% for x in %}"));
        assert!(refused(&" ".repeat(MAX_TEMPLATE_BYTES + 1)).contains("65536"));
        assert!(ChatTemplate::from_bytes(&vec![b' '; MAX_TEMPLATE_BYTES + 1]).is_err());
        assert!(ChatTemplate::from_bytes(b"{\"template\": 3}").is_err());
        let whole = template(CHATML);
        assert_eq!(ChatTemplate::from_bytes(&whole.to_bytes().unwrap()).unwrap(), whole);
    }

    #[test]
    fn a_directory_may_have_a_template_in_three_places() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ChatTemplate::open(dir.path()).unwrap(), None);
        let config = dir.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#).unwrap();
        assert_eq!(ChatTemplate::open(dir.path()).unwrap(), None);
        std::fs::write(
            &config,
            r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>",
                "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#,
        )
        .unwrap();
        assert_eq!(ChatTemplate::open(dir.path()).unwrap(), Some(template("d")));
        std::fs::write(&config, r#"{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "c"}"#).unwrap();
        assert_eq!(ChatTemplate::open(dir.path()).unwrap(), Some(template("c")));
        std::fs::write(dir.path().join("chat_template.jinja"), "j").unwrap();
        assert_eq!(ChatTemplate::open(dir.path()).unwrap(), Some(template("j")));
        // A file of any name, with the tokens beside it.
        std::fs::write(dir.path().join("own.txt"), "o").unwrap();
        assert_eq!(ChatTemplate::read(&dir.path().join("own.txt")).unwrap(), template("o"));
        assert_eq!(ChatTemplate::read(dir.path()).unwrap(), template("j"));
        assert!(matches!(ChatTemplate::read(&dir.path().join("none.jinja")), Err(TokenizerError::Template { .. })));
        std::fs::write(&config, "{").unwrap();
        assert!(matches!(ChatTemplate::open(dir.path()), Err(TokenizerError::Template { .. })));
    }
}
