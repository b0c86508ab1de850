//! `waggle proxy`: a client that other programs talk to.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use waggle::{Pads, Template};
use waggle_proxy::ProxyConfig;

use super::connect::ConnectArgs;
use super::options::{TermsArgs, seconds};
use super::prompt::{OfferArgs, PublicArgs};
use super::{Error, log, out};

/// Answers programs that speak the interface of OpenAI, privately with the model of a server: /v1/completions,
/// /v1/chat/completions, /v1/models, /health, /metrics, and a chat for browsers at /.
#[derive(Args, Debug)]
pub(super) struct ProxyArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Address to listen on; port 0 takes a free one. Another machine reaches the proxy only with --api-key-file,
    /// because prompts and answers cross it in the clear.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    /// The file with the keys that programs must give, as `Authorization: Bearer KEY`: one a line, of 16 bytes or
    /// more, for its owner alone to read. The first is the owner's, who alone sees /metrics and why /health fails.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let pages of this origin ask, such as https://example.org, and take its name for one of this machine; may be
    /// repeated.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Requests that may wait; more are answered with 429.
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Texts that go through the model side by side, of requests that wait, of several prompts and of `n`.
    #[arg(long, value_name = "N", default_value = "8")]
    texts: NonZeroUsize,
    /// Tokens of an answer in a conversation where a request names none: 128, or what the model has room for. With
    /// --preprocess so much is prepared between requests.
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Tokens of a prompt, or of what a turn adds to a conversation, for which a session is opened: 128, or what the
    /// model has room for. A longer one opens another session. With --preprocess so much is prepared between
    /// requests.
    #[arg(long, value_name = "N")]
    turn_tokens: Option<usize>,
    /// Take this chat template instead of the server's: a file, or the directory of a model.
    #[arg(long, value_name = "FILE|DIR", conflicts_with = "no_template")]
    template: Option<PathBuf>,
    /// Give the words of conversations to the model as they are.
    #[arg(long)]
    no_template: bool,
    /// What stands before the first words of a conversation is no secret: the text of --system, and what the chat
    /// template writes there. The server reads it in the clear, once for all sessions that begin so.
    #[arg(long, group = "public text")]
    public_system: bool,
    /// The system message of the conversations that begin in public. Those with another one, or with none, are
    /// private from the start, and have sessions of their own.
    #[arg(long, value_name = "TEXT", requires = "public_system")]
    system: Option<String>,
    #[command(flatten)]
    public: PublicArgs,
    #[command(flatten)]
    offer: OfferArgs,
    /// Hide how long the prompts of completions are, as `generate` does. They have a session each then.
    #[arg(long, value_name = "LENGTHS", num_args = 0..=1, default_missing_value = "auto")]
    pad_prompt: Option<Pads>,
    /// Let an answer that ends go on, unseen, to the next power of two of tokens from 16 on. Under the policy `full`
    /// it does in sessions of conversations; `--pad-answer false` lets none, and `true` all.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pad_answer: Option<bool>,
    /// End a session in which nobody has asked for so many seconds. Its conversation is then read again.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    idle: Duration,
    #[command(flatten)]
    terms: TermsArgs,
}

impl ProxyArgs {
    fn config(&self) -> Result<ProxyConfig, Error> {
        let template = match &self.template {
            _ if self.no_template => Template::Raw,
            Some(file) => Template::File(file.clone()),
            None => Template::Server,
        };
        Ok(ProxyConfig {
            client: self.connect.client(self.terms.terms()?).offers(!self.offer.no_public_prefix),
            listen: self.listen.clone(),
            api_key: self.api_key_file.clone(),
            origins: self.allow_origin.clone(),
            queue: self.queue,
            texts: self.texts.get(),
            tokens: self.tokens,
            turn_tokens: self.turn_tokens,
            template,
            pad_prompt: self.pad_prompt.clone(),
            pad_answer: self.pad_answer,
            public: self.public.read()?,
            public_system: self.public_system,
            system: self.system.clone(),
            prefix_policy: self.public.prefix_policy.clone(),
            idle: self.idle,
        })
    }
}

pub(super) fn run(args: ProxyArgs) -> Result<(), Error> {
    let _flush = log::start(log::LevelFilter::WARN, log::Format::Text);
    let proxy = args.config()?.bind().map_err(Error::Proxy)?.until_signalled()?;
    // If the line cannot be written, the proxy goes on.
    let _ = out::line(format_args!("answering with {} at http://{}", proxy.model(), proxy.address()));
    Ok(proxy.run()?)
}
