//! The families of models. Each is a file that says how to read a `config.json` of the family, and how the decoder
//! computes the model.

use crate::config::{ConfigError, Keys};
use crate::style::Style;

/// Hands all families to the macro `$with`. A family becomes known by a line here, with its file, its name, its
/// configuration and its `model_type`.
macro_rules! families {
    ($with:ident) => {
        $with! {
            // ANCHOR: families
            gpt2, Gpt2, Gpt2Config, "gpt2";
            llama, Llama, LlamaConfig, "llama";
            mistral, Mistral, MistralConfig, "mistral";
            qwen2, Qwen2, Qwen2Config, "qwen2";
            qwen3, Qwen3, Qwen3Config, "qwen3";
            smollm3, SmolLm3, SmolLm3Config, "smollm3";
            granite, Granite, GraniteConfig, "granite";
            granite_swa, GraniteSwa, GraniteSwaConfig, "granite_swa";
            phi3, Phi3, Phi3Config, "phi3";
            phi, Phi, PhiConfig, "phi";
            gpt_neox, GptNeoX, GptNeoXConfig, "gpt_neox";
            opt, Opt, OptConfig, "opt";
            olmo2, Olmo2, Olmo2Config, "olmo2";
            gemma2, Gemma2, Gemma2Config, "gemma2";
            gemma3, Gemma3, Gemma3Config, "gemma3_text";
            gemma4, Gemma4, Gemma4Config, "gemma4_text";
            bert, Bert, BertConfig, "bert";
            roberta, Roberta, RobertaConfig, "roberta";
            distilbert, DistilBert, DistilBertConfig, "distilbert";
            vit, Vit, VitConfig, "vit";
            // ANCHOR_END: families
        }
    };
}

pub(crate) use families;

/// Declares the files of the families as modules.
macro_rules! modules {
    ($($module:ident, $name:ident, $config:ident, $tag:literal;)+) => {
        $(pub(crate) mod $module;)+
    };
}

families!(modules);

/// The configuration of a family: everything that both parties must know of a model, read from its `config.json`.
pub(crate) trait Family: Sized {
    /// Names in `architectures`, the first of which is that of the language model.
    const CLASSES: &'static [&'static str];

    /// Keys that the family reads and that models of most other families must not have: see
    /// [`foreign`](crate::config::foreign).
    const READS: &'static [&'static str] = &[];

    /// Reads the configuration. The error for a value that is not supported names key and value.
    fn parse(keys: &Keys) -> Result<Self, ConfigError>;

    /// Refuses sizes that are not safe to multiply, and numbers that do not describe a model. A peer may have sent
    /// the configuration.
    fn check(&self) -> Result<(), ConfigError>;

    /// The sizes and the tensors of a [checked](Family::check) configuration, and how the decoder computes it.
    fn style(&self) -> Style;
}
