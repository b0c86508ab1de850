//! Errors of models and generations.

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
    /// The disclosed parts do not fit the model, or cannot be public.
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
    /// A directory holds no configuration.
    #[error("{} holds no config.json{hint}", dir.display())]
    NoConfig {
        /// The directory.
        dir: PathBuf,
        /// Advice on the files that the directory holds, or nothing.
        hint: &'static str,
    },
    /// A file was not downloaded: there is only a pointer of Git LFS in its place.
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
    /// A bundled model was asked for, but this program was built without its weights.
    #[error("`{0}` is a bundled model, and this program was built without the feature `bundled`")]
    Unbundled(String),
    /// More positions were asked for than the model has.
    #[error("{positions} positions would go through a model that has {limit}")]
    TooLong {
        /// Positions wanted.
        positions: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// A prompt has padding, or a chat has padded answers, under a policy that cannot tell padding from tokens.
    #[error("padding needs cache policy `full`: `{0}` would choose among tokens that stand for nothing")]
    PaddedPolicy(String),
    /// A prompt after public tokens has padding.
    #[error("a prompt after public tokens takes no padding: its first token would stand at a distance from them")]
    PaddedPrefix,
    /// Public tokens are read under a policy whose heads hold different tokens.
    #[error("cache policy `{0}` does not prune public tokens: its heads would hold different ones")]
    PrefixPolicy(String),
    /// Rows of the prompt were to end before the last layer where all of them are needed.
    #[error("rows of the prompt cannot be shed: {what}")]
    Shed {
        /// Why not.
        what: &'static str,
    },
    /// The settings of a cache policy do not fit the model.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy ranks tokens by learned scores that the model does not give.
    #[error("the scores of `{wanted}` are needed, and the model was loaded {}", match loaded {
        Some(head) => format!("with the columns of `{head}`"),
        None => "without their columns".into(),
    })]
    NotLearned {
        /// The scoring head of the policy.
        wanted: &'static str,
        /// The model's, if it has one.
        loaded: Option<&'static str>,
    },
    /// A draft was asked for under a policy that cannot take tokens back.
    #[error(
        "a draft needs a policy that can take tokens back: `full`, or `snapkv`, `pyramid`, `squeeze` or `mpcache-2pc` with a share, not `{policy}`"
    )]
    DraftPolicy {
        /// The policy.
        policy: String,
    },
    /// The cache policy has no layer to act on.
    #[error(
        "every layer of the model sees a window of the latest tokens alone, which cache policy `{0}` cannot prune"
    )]
    WindowedPolicy(String),
    /// A cache policy was asked for a model in which layers read the keys and values of other layers.
    #[error(
        "layers of the model read the keys and values of others, which cache policy `{0}` would prune: take `full`"
    )]
    SharedPolicy(String),
    /// An encoder was asked for something that it cannot do.
    #[error("{what}: the model is an encoder, which reads a text at once and answers once")]
    Encoder {
        /// What was asked of the encoder.
        what: &'static str,
    },
    /// An image was given to a model of texts.
    #[error("the model reads texts, and no images")]
    NoImages,
    /// A text was given to a model of images.
    #[error("the model reads images, and no texts")]
    NoTexts,
    /// The number of tokens is not that of an image.
    #[error("an image is {expected} tokens of the model, not {got}")]
    ImageRows {
        /// Tokens of an image.
        expected: usize,
        /// The number asked for.
        got: usize,
    },
    /// A pixel is not finite, or is too large for fixed point.
    #[error("a pixel is {value}, and at most {} in magnitude is computed", crate::MAX_IMAGE_VALUE)]
    ImageValue {
        /// The value of the pixel.
        value: f32,
    },
    /// The model cannot read a second text, or the second text does not begin within the prompt.
    #[error("{}", match at {
        None => "a second text needs an encoder".to_owned(),
        Some(at) => format!("a second text begins at token {at} of {tokens}"),
    })]
    Second {
        /// The place of the second text's first token; `None` if the model reads one text only.
        at: Option<usize>,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A mask was given to a model that fills none, or no valid mask to a model that fills one.
    #[error("{}", match at {
        None => "the model gives the word in the place of a mask, and the text has none".to_owned(),
        Some(at) => format!("the model fills no mask at token {at} of {tokens}"),
    })]
    Mask {
        /// The place of the mask.
        at: Option<usize>,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// The text holds the padding token of an encoder that gives padding no position.
    #[error("token {at} of the text is {id}, the id of padding, which the model gives no position: leave it out")]
    PaddingId {
        /// The id.
        id: u32,
        /// The place of the token in the text.
        at: usize,
    },
    /// The number of guesses in a pass is out of range.
    #[error("a draft has 1 to {limit} tokens, not {got}")]
    Draft {
        /// The number asked for.
        got: usize,
        /// The largest number of guesses.
        limit: usize,
    },
    /// Passes are expected to keep less than one token, or more tokens than they read.
    #[error("a pass over the last token and its draft keeps 1 to {most} tokens, not {rate}")]
    DraftRate {
        /// The expected number of tokens.
        rate: f64,
        /// The largest number of tokens that a pass can keep.
        most: usize,
    },
    /// The hooks of a generation want to keep a number of tokens that the pass cannot give.
    #[error("a pass that gives 1 to {most} tokens cannot keep {got}")]
    DraftKept {
        /// The number of tokens to keep.
        got: usize,
        /// The largest number of tokens that the pass can give.
        most: usize,
    },
    /// The small model that makes guesses has a vocabulary of another size than the server's model.
    #[error("the model of the draft has {got} words, and the server's has {expected}")]
    DraftVocabulary {
        /// The size of the small model's vocabulary.
        got: usize,
        /// The size of the vocabulary of the server's model.
        expected: usize,
    },
    /// Several texts side by side were combined with something that only a single text can have.
    #[error("{texts} texts side by side cannot have {what}")]
    Texts {
        /// The number of texts.
        texts: usize,
        /// What several texts cannot have.
        what: String,
    },
    /// The number of sources of tokens is not the number of texts.
    #[error("{got} sources of tokens for {expected} texts")]
    Sources {
        /// The number of texts.
        expected: usize,
        /// The number of sources.
        got: usize,
    },
    /// All tokens of a prompt are padding.
    #[error("{tokens} of the {prompt} tokens of the prompt are padding")]
    AllPadding {
        /// Tokens of padding.
        tokens: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// The caller gave the generation up, see [`Hooks::go_on`](crate::Hooks::go_on).
    #[error("the session was given up")]
    Abandoned,
    /// There is no prompt token, or no token to generate.
    #[error("a generation needs at least one prompt token and one token to generate")]
    Nothing,
    /// A choice of tokens needs logits, but the client learns none.
    #[error("{what} needs a session that reveals logits: this one reveals tokens alone")]
    NeedsLogits {
        /// The choice that needs logits.
        what: &'static str,
    },
    /// A sampling parameter is outside its range.
    #[error("sampling: {what} = {value} is outside {range}")]
    Sampling {
        /// The parameter.
        what: &'static str,
        /// The value of the parameter.
        value: f32,
        /// The range of the parameter.
        range: &'static str,
    },
}
