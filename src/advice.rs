//! Advice after an error: what the user can type. The library's errors do not know the options of this program.

use std::io::ErrorKind;

use waggle::{
    ChatError, Error as Library, NameError, OptionsError, PromptError, Refusal, ServeError, TrustError, describe,
};
use waggle_model::{CheckpointError, ConfigError};
use waggle_mpcache::{PolicyError, PolicySpec};
use waggle_net::KeyError;
use waggle_proxy::ProxyError;
use waggle_session::{BaseError, Error as Session, PinError};
use waggle_study::eval::EvalError;

use super::Error;

/// The error in one line, followed by advice if there is any.
pub(super) fn told(error: &Error) -> String {
    advised(describe(error), of(error))
}

/// [`told`] for an error of the library.
pub(super) fn told_of(error: &Library) -> String {
    advised(describe(error), of_library(error))
}

/// [`told`] for a turn that did not begin.
pub(super) fn told_of_refusal(refusal: &Refusal) -> String {
    advised(describe(refusal), of_refusal(refusal))
}

/// [`told`] for a text that is not a policy.
pub(super) fn told_of_policy(error: &PolicyError) -> String {
    advised(error.to_string(), of_policy(error))
}

/// Parses a policy, for clap.
pub(super) fn policy(text: &str) -> Result<PolicySpec, String> {
    text.parse().map_err(|error| told_of_policy(&error))
}

fn advised(error: String, advice: Option<String>) -> String {
    match advice {
        Some(advice) => format!("{error}: {advice}"),
        None => error,
    }
}

fn of(error: &Error) -> Option<String> {
    match error {
        Error::Library(error) => of_library(error),
        Error::Cell { source, .. } => of(source),
        Error::Proxy(error) => of_proxy(error),
        _ => None,
    }
}

fn of_library(error: &Library) -> Option<String> {
    match error {
        Library::Session(error) => of_session(error),
        Library::Study(error) => of_study(error),
        Library::Pin(error) => of_pin(error),
        Library::Key(KeyError::Empty { .. }) => some("`waggle keygen` makes one"),
        Library::Spread(waggle_spread::SpreadError::NotBuilt(_)) => some("cargo build --features mpi"),
        Library::Trust(error) => of_trust(error),
        Library::Name(NameError::NoWeights(name)) => Some(format!(
            "`plan` and `sweep` take it, and `waggle synth --config {name} --out DIR` makes random weights"
        )),
        Library::Options(error) => of_options(error),
        Library::Prompt(error) => of_prompt(error),
        Library::Image(waggle::ImageError::NoPreprocessor) => some("--preprocessor gives one"),
        Library::Chat(error) => of_chat(error),
        Library::Serve(error) => of_serve(error),
        _ => None,
    }
}

fn of_session(error: &Session) -> Option<String> {
    match error {
        Session::Model(error) => of_model(error),
        Session::Pin(error) => of_pin(error),
        Session::Base(BaseError::Missing { .. }) => some("--base names its directory"),
        Session::Base(BaseError::Unused) => some("leave out --base"),
        Session::Base(BaseError::Shape) => some("--base names another directory"),
        Session::Parties { server } => Some(format!("--parties {server}")),
        Session::TokensAlone => {
            some("leave out --reveal logits, or have its owner give it (`serve --reveal logits`)")
        }
        Session::KeysAlike { .. } => some("--identity FILE gives each its own"),
        Session::PlainHalves => some("--helper-weights and --parties 3 take no --insecure-plaintext"),
        Session::HelperStranger => some("its owner adds the line that `waggle keygen` prints here"),
        Session::NoHelper => some("`waggle helper` is one"),
        _ => None,
    }
}

fn of_model(error: &waggle_model::Error) -> Option<String> {
    match error {
        waggle_model::Error::NeedsLogits { .. } => some("--reveal logits"),
        waggle_model::Error::Checkpoint(
            CheckpointError::NoLearned { head, .. } | CheckpointError::OtherLearned { head },
        ) => Some(format!("`waggle fit {head}` writes one")),
        waggle_model::Error::Config(ConfigError::Unsupported { key, .. }) if key == "quantization_config" => {
            some("`waggle quantize` makes one of 8 bits")
        }
        waggle_model::Error::Policy(error) => of_policy(error),
        waggle_model::Error::PaddedPrefix => {
            some("take prompts of one length, without --pad-prompt, or no public text (--no-public-prefix)")
        }
        _ => None,
    }
}

fn of_policy(error: &PolicyError) -> Option<String> {
    match error {
        PolicyError::Missing { key: "heads", .. } => some("`waggle heads` finds them"),
        _ => None,
    }
}

fn of_pin(error: &PinError) -> Option<String> {
    match error {
        PinError::Changed { met, .. } => Some(format!("if that is right, accept it once with --expect {met}")),
        _ => None,
    }
}

fn of_study(error: &EvalError) -> Option<String> {
    match error {
        EvalError::TaskNeeds { what: what @ ("data" | "text"), .. } => Some(format!("--{what} names the file")),
        EvalError::Model(error) => of_model(error),
        EvalError::Session(error) => of_session(error),
        EvalError::Policy(error) => of_policy(error),
        _ => None,
    }
}

fn of_trust(error: &TrustError) -> Option<String> {
    match error {
        TrustError::NoHome => some("or give --identity"),
        TrustError::Unknown { key, .. } => Some(format!("if it does, trust it with --server-key {key}")),
        TrustError::Changed { key, .. } => Some(format!("--server-key {key}")),
        TrustError::Other { .. } => some("--server-key names the key of another one"),
        _ => None,
    }
}

fn of_options(error: &OptionsError) -> Option<String> {
    match error {
        OptionsError::NoLogits => some("--reveal logits, if the server permits it"),
        OptionsError::HelperKey { given: true } => some("leave out --helper-key, or --insecure-plaintext"),
        OptionsError::HelperKey { given: false } => some("--helper-key, which the helper prints when it starts"),
        OptionsError::HelperNeedsPreprocess => some("--helper needs --preprocess"),
        OptionsError::HelperNeedsLinks => some("give --link loopback or a network"),
        OptionsError::NothingToSample => some("--top-p and --seed need --temperature"),
        OptionsError::PoolNeedsPreprocess => some("leave out --preprocess false"),
        OptionsError::NoMemory => some("only `demo` has both parties in one process"),
        _ => None,
    }
}

fn of_prompt(error: &PromptError) -> Option<String> {
    match error {
        PromptError::NoTokenizer => some("for example --prompt-ids 1,2,3"),
        PromptError::NoClass => some("`waggle generate` asks it for a text"),
        PromptError::Input { source, .. } => of_library(source),
        PromptError::Batches { .. } => some("raise --batch"),
        _ => None,
    }
}

fn of_chat(error: &ChatError) -> Option<String> {
    match error {
        ChatError::NoTokenizer => some("give one with --tokenizer"),
        ChatError::Refused(refusal) => of_refusal(refusal),
        ChatError::Broken { source, .. } | ChatError::Lost { source, .. } => of_library(source),
        _ => None,
    }
}

fn of_refusal(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::Long { .. } => some("--turn-tokens allows more"),
        Refusal::Rereads => some("--template gives another; `chat --no-pad-answer`, `proxy --pad-answer false`"),
        Refusal::Other(error) => of_library(error),
        _ => None,
    }
}

fn of_serve(error: &ServeError) -> Option<String> {
    match error {
        ServeError::TooLong(_) => some("--session-limit allows more"),
        ServeError::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            some("--listen takes another one, port 0 any that is free")
        }
        ServeError::Session { source, .. } | ServeError::Rank { source, .. } => of_library(source),
        _ => None,
    }
}

fn of_proxy(error: &ProxyError) -> Option<String> {
    match error {
        ProxyError::Waggle(error) => of_library(error),
        ProxyError::Open { .. } => some("--api-key-file names the file of keys"),
        ProxyError::LongTurns { .. } => some("--turn-tokens and --tokens"),
        _ => None,
    }
}

fn some(advice: &str) -> Option<String> {
    Some(advice.to_owned())
}
