//! The families of models.

/// Hands all families to the macro `$with`. A line here, with a family's file, its program, its configuration and its
/// `model_type`, is all that makes it known.
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
            phi3, Phi3, Phi3Config, "phi3";
            phi, Phi, PhiConfig, "phi";
            gpt_neox, GptNeoX, GptNeoXConfig, "gpt_neox";
            opt, Opt, OptConfig, "opt";
            olmo2, Olmo2, Olmo2Config, "olmo2";
            gemma2, Gemma2, Gemma2Config, "gemma2";
            gemma3, Gemma3, Gemma3Config, "gemma3_text";
            // ANCHOR_END: families
        }
    };
}

pub(crate) use families;
