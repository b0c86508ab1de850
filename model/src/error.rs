//! Errors above the engines.

use std::path::PathBuf;

use thiserror::Error;
use waggle_mpcache::PolicyError;

use crate::{CheckpointError, ConfigError};

/// A failure to load a model or to generate with it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Parts that cannot be public.
    #[error(transparent)]
    Parts(#[from] crate::PartsError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] waggle_tokenizer::TokenizerError),
    /// The adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] crate::AdapterError),
    /// An operation failed.
    #[error(transparent)]
    Engine(#[from] waggle_engine::Error),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A directory without a configuration.
    #[error("{} holds no config.json{hint}", dir.display())]
    NoConfig {
        /// The directory.
        dir: PathBuf,
        /// Advice on the files that it holds, or nothing.
        hint: &'static str,
    },
    /// A file that was not downloaded.
    #[error("{}: {}", .0.display(), crate::hints::LFS)]
    Pointer(PathBuf),
    /// No bundled model has this name.
    #[error("no bundled model is called `{name}`; there are: {}", .known.join(", "))]
    NotBundled {
        /// The name given.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// A bundled model, and a program without its weights.
    #[error("`{0}` is a bundled model, and this program was built without the feature `bundled`")]
    Unbundled(String),
    /// More positions than the model has.
    #[error("{positions} positions would go through a model that has {limit}")]
    TooLong {
        /// Positions wanted.
        positions: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A prompt with padding, or a chat with padded answers, under a policy that does not see it.
    #[error("padding needs cache policy `full`: `{0}` would choose among tokens that stand for nothing")]
    PaddedPolicy(String),
    /// A cache policy that the model does not fit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A policy that ranks tokens by learned scores, and a model that gives none.
    #[error("the cache policy needs learned scores, and the model was loaded without their columns")]
    NotLearned,
    /// A draft under a policy that cannot take tokens back.
    #[error(
        "a draft needs a policy that can take tokens back: `full`, or `snapkv`, `pyramid`, `squeeze` or `mpcache-2pc` with a share, not `{policy}`"
    )]
    DraftPolicy {
        /// The policy.
        policy: String,
    },
    /// A cache policy where no layer is left for it.
    #[error(
        "every layer of the model sees a window of the latest tokens alone, which cache policy `{0}` cannot prune"
    )]
    WindowedPolicy(String),
    /// A cache policy where several layers read the keys and values of one.
    #[error(
        "layers of the model read the keys and values of others, which cache policy `{0}` would prune: take `full`"
    )]
    SharedPolicy(String),
    /// What an encoder cannot do.
    #[error("{what}: the model is an encoder, which reads a text at once and answers once")]
    Encoder {
        /// What was asked of it.
        what: &'static str,
    },
    /// An image for a model of texts.
    #[error("the model reads texts, and no images")]
    NoImages,
    /// A text for a model of images.
    #[error("the model reads images, and no texts")]
    NoTexts,
    /// Another number of tokens than an image has.
    #[error("an image is {expected} tokens of the model, not {got}")]
    ImageRows {
        /// Tokens of an image.
        expected: usize,
        /// The number asked for.
        got: usize,
    },
    /// A pixel that is not finite, or too large for fixed point.
    #[error("a pixel is {value}, and at most {} in magnitude is computed", crate::MAX_IMAGE_VALUE)]
    ImageValue {
        /// Its value.
        value: f32,
    },
    /// A second text that the model cannot read, or that does not begin within the prompt.
    #[error("{}", match at {
        None => "a second text needs an encoder".to_owned(),
        Some(at) => format!("a second text begins at token {at} of {tokens}"),
    })]
    Second {
        /// Its first token; none where it is the model that reads one text.
        at: Option<usize>,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A mask that the model does not fill, or none for a model that fills one.
    #[error("{}", match at {
        None => "the model gives the word in the place of a mask, and the text has none".to_owned(),
        Some(at) => format!("the model fills no mask at token {at} of {tokens}"),
    })]
    Mask {
        /// Its place.
        at: Option<usize>,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A token of padding in a text of an encoder whose positions do not count it.
    #[error("token {at} of the text is {id}, the id of padding, which the model gives no position: leave it out")]
    PaddingId {
        /// The id.
        id: u32,
        /// Its place in the text.
        at: usize,
    },
    /// A number of guesses that no pass has.
    #[error("a draft has 1 to {limit} tokens, not {got}")]
    Draft {
        /// The number asked for.
        got: usize,
        /// The most.
        limit: usize,
    },
    /// Passes that would keep no token, or more than they read.
    #[error("a pass over the last token and its draft keeps 1 to {most} tokens, not {rate}")]
    DraftRate {
        /// The expected number.
        rate: f64,
        /// The most.
        most: usize,
    },
    /// The hooks of a generation keep another number of tokens than a pass gives.
    #[error("a pass that gives 1 to {most} tokens cannot keep {got}")]
    DraftKept {
        /// The number to be kept.
        got: usize,
        /// The most.
        most: usize,
    },
    /// A model that guesses in another vocabulary.
    #[error("the model of the draft has {got} words, and the server's has {expected}")]
    DraftVocabulary {
        /// Words of the small model.
        got: usize,
        /// Words of the server's model.
        expected: usize,
    },
    /// Several texts side by side with what is made for one.
    #[error("{texts} texts side by side cannot have {what}")]
    Texts {
        /// Their number.
        texts: usize,
        /// What they cannot have.
        what: String,
    },
    /// Sources of tokens for another number of texts.
    #[error("{got} sources of tokens for {expected} texts")]
    Sources {
        /// Texts.
        expected: usize,
        /// Sources.
        got: usize,
    },
    /// A prompt without a word.
    #[error("{tokens} of the {prompt} tokens of the prompt are padding")]
    AllPadding {
        /// Tokens of padding.
        tokens: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// Nobody wants the rest: see [`Hooks::go_on`](crate::Hooks::go_on).
    #[error("the session was given up")]
    Abandoned,
    /// Nothing to read or nothing to write.
    #[error("a generation needs at least one prompt token and one token to generate")]
    Nothing,
    /// A choice of tokens that looks at logits where the client learns none.
    #[error("{what} needs a session that reveals logits: this one reveals tokens alone")]
    NeedsLogits {
        /// What needs them.
        what: &'static str,
    },
    /// A sampling parameter outside its range.
    #[error("sampling: {what} = {value} is outside {range}")]
    Sampling {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f32,
        /// The range.
        range: &'static str,
    },
}
