//! Specifications that are read from a `config.json`, and configurations that are refused.

use super::*;
use crate::config::{Activation, MAX_LAYERS, RopeScaling};
use proptest::prelude::*;
use serde_json::json;

fn parse(value: Value) -> Result<ModelSpec, ConfigError> {
    ModelSpec::from_config_json(value.to_string().as_bytes())
}

fn llama(extra: Value) -> Result<LlamaConfig, ConfigError> {
    let mut base = json!({"model_type": "llama"});
    for (key, value) in extra.as_object().unwrap() {
        base[key] = value.clone();
    }
    parse(base).map(|spec| match spec.into() {
        ModelConfig::Llama(c) => c,
        other => panic!("{other:?}"),
    })
}

#[test]
fn missing_keys_take_the_defaults_of_transformers() {
    let ModelConfig::Gpt2(c) = parse(json!({"model_type": "gpt2", "from_the_future": [1]})).unwrap().into() else {
        panic!("not a GPT-2")
    };
    assert_eq!(
        (c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.n_inner),
        (50257, 1024, 768, 12, 12, 3072)
    );
    assert!(c.tie_word_embeddings && c.scale_attn_weights && !c.scale_attn_by_inverse_layer_idx);
    assert_eq!((c.activation_function, c.layer_norm_epsilon), (Activation::GeluTanh, 1e-5));
    let c = llama(json!({})).unwrap();
    assert_eq!((c.vocab_size, c.hidden_size, c.intermediate_size, c.head_dim), (32000, 4096, 11008, 128));
    assert_eq!((c.num_key_value_heads, c.rms_norm_eps, c.rope_theta), (32, 1e-6, 10000.0));
    assert!(!c.tie_word_embeddings && !c.attention_bias && !c.mlp_bias);
    let spec = parse(json!({"architectures": ["LlamaForCausalLM"], "eos_token_id": [7, 9]})).unwrap();
    assert_eq!(spec.eos(), [7, 9]);
    assert!(llama(json!({"eos_token_id": null})).unwrap().eos_token_id.is_empty());
    // Keys of other architectures, at values with which they change nothing.
    let neutral = json!({"sliding_window": 8, "use_sliding_window": false, "logit_scale": 1.0, "alibi": false,
        "layer_types": ["full_attention"], "num_experts": 0, "clip_qkv": null, "architectures": ["LlamaForCausalLM"]});
    assert_eq!(llama(neutral).unwrap(), llama(json!({})).unwrap());
}

#[test]
fn rope_is_read_in_old_and_new_style() {
    let old = llama(json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 8.0}})).unwrap();
    assert_eq!((old.rope_theta, &old.rope_scaling), (5e5, &RopeScaling::Linear { factor: 8.0 }));
    let new = llama(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8}})).unwrap();
    assert_eq!((new.rope_theta, new.rope_scaling), (old.rope_theta, old.rope_scaling));
    let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let c = llama(json!({"rope_scaling": scaling, "max_position_embeddings": 8192})).unwrap();
    let original_max_position_embeddings = 8192.0;
    let (factor, low_freq_factor, high_freq_factor) = (32.0, 1.0, 4.0);
    let want = RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings };
    assert_eq!(c.rope_scaling, want);
    assert_eq!(llama(json!({"rope_parameters": {"rope_type": "default"}})).unwrap().rope_scaling, RopeScaling::None);
}

/// `rope_parameters` by type of layer say the same as older keys, and may say more.
#[test]
fn ropes_of_gemma_3_are_read_in_both_forms() {
    let gemma3 = |keys: Value| {
        let mut config = json!({"model_type": "gemma3_text"});
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        parse(config)
    };
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let old = gemma3(json!({"rope_theta": 5e5, "rope_local_base_freq": 50.0, "rope_scaling": linear})).unwrap();
    let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5});
    let new = json!({"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}});
    assert_eq!(gemma3(json!({"rope_parameters": new})).unwrap(), old);
    // Bases that `rope_parameters` do not state are stated beside them, or have their defaults.
    let beside = json!({"rope_theta": 5e5, "rope_local_base_freq": 50.0,
        "rope_parameters": {"full_attention": linear, "sliding_attention": null}});
    assert_eq!(gemma3(beside).unwrap(), old);
    assert_eq!(gemma3(json!({"rope_parameters": {}})).unwrap(), gemma3(json!({})).unwrap());
    let ModelConfig::Gemma3(spec) = gemma3(json!({"rope_parameters": {"sliding_attention": full}})).unwrap().into()
    else {
        panic!("not a Gemma 3")
    };
    assert_eq!(spec.sliding_rope.rope_scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!((spec.common.rope.rope_theta, spec.common.rope.rope_scaling), (1e6, RopeScaling::None));
}

/// transformers 5 takes the sharpness of LongRoPE from `factor`, or without this key from the ratio of the contexts.
#[test]
fn longrope_has_a_factor() {
    let sharpness = |more: Value| {
        let factors = vec![1.0; 48];
        let mut rope = json!({"rope_type": "longrope", "short_factor": factors, "long_factor": factors});
        rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = json!({"model_type": "phi3", "max_position_embeddings": 64, "rope_parameters": rope,
            "original_max_position_embeddings": 8});
        match parse(config).unwrap().into() {
            ModelConfig::Phi3(spec) => match spec.common.rope.rope_scaling {
                RopeScaling::LongRope { attention_factor, .. } => attention_factor,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let of = |factor: f64| (1.0 + factor.ln() / 8f64.ln()).sqrt();
    assert_eq!(sharpness(json!({})), of(8.0));
    assert_eq!(sharpness(json!({"factor": 4.0})), of(4.0));
    assert_eq!(sharpness(json!({"factor": 0.5})), 1.0);
    assert_eq!(sharpness(json!({"factor": 4.0, "attention_factor": 1.25})), 1.25);
}

/// If two keys state the same setting, the one that transformers reads counts.
#[test]
fn of_two_names_the_one_that_transformers_reads_counts() {
    let both = json!({"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 5.0}});
    let spec = llama(both).unwrap();
    assert_eq!((spec.rope_theta, spec.rope_scaling), (1e4, RopeScaling::Linear { factor: 2.0 }));
    let ModelConfig::Gpt2(gpt2) =
        parse(json!({"model_type": "gpt2", "n_head": 12, "num_attention_heads": 6})).unwrap().into()
    else {
        panic!("not a GPT-2")
    };
    assert_eq!(gpt2.n_head, 6);
    let spec = parse(json!({"model_type": "distilbert", "dim": 768, "hidden_size": 384})).unwrap();
    assert_eq!(spec.hidden(), 384);
}

/// The last layers have no keys and values, and read those of the last layers before them that have the same kind of
/// window.
#[test]
fn shared_keys_are_of_the_last_layer_that_sees_as_far() {
    let layer_types =
        ["sliding", "full", "full", "sliding", "sliding", "full"].map(|kind| kind.to_owned() + "_attention");
    let spec = parse(gemma4(json!({"num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": layer_types})));
    let layers = spec.unwrap().attention();
    assert_eq!((layers.shared, layers.heads.len(), layers.windows.len()), (vec![3, 2], 4, 4));
}

/// The configuration of a dense Gemma 4 with these keys.
fn gemma4(keys: Value) -> Value {
    let mut config = json!({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0});
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

/// The settings that transformers 5 writes by layer equal those that it reads from two keys.
#[test]
fn heads_by_layer_are_read_in_both_forms() {
    let all = |mut layer: Value, more: Value| {
        layer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        parse(gemma4(layer)).unwrap()
    };
    let layers = json!({"num_hidden_layers": 7, "attention_k_eq_v": true});
    let two = all(layers.clone(), json!({"global_head_dim": 128, "num_global_key_value_heads": 2}));
    let own = json!({"head_dim": 128, "num_key_value_heads": 2});
    assert_eq!(all(layers, json!({"per_layer_config": {"5": own, "6": own}})), two);
    let [windowed, global] = [0, 6].map(|layer| two.heads()[layer]);
    assert_eq!((windowed.head_dim, windowed.kv_heads, global.head_dim, global.kv_heads), (256, 4, 128, 2));
    assert_eq!(two.attention().pruned(), 2, "the last layer sees all tokens");
}

/// Published configurations, as far as they differ from the defaults, and the numbers of parameters that their
/// authors count.
#[test]
fn published_models_have_the_published_number_of_parameters() {
    let qwen = json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "sliding_window": 32768,
        "max_window_layers": 21, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    let qwen3 = json!({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024,
        "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "sliding_window": null, "tie_word_embeddings": true, "max_position_embeddings": 40960,
    });
    let smollm3 = json!({
        "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "layer_types": vec!["full_attention"; 36],
        "max_window_layers": 28, "mlp_bias": false, "no_rope_layer_interval": 4, "pretraining_tp": 2,
        "max_position_embeddings": 65536, "rope_theta": 5e6, "sliding_window": null, "use_sliding_window": false,
        "no_rope_layers": (1..=36).map(|i| u32::from(i % 4 != 0)).collect::<Vec<_>>(),
    });
    let granite = json!({
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 49155,
        "tie_word_embeddings": true, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
        "logits_scaling": 8.0, "residual_multiplier": 0.22, "rope_theta": 5e6, "rope_scaling": null,
    });
    let phi3 = json!({
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "sliding_window": 262144, "rope_scaling":
            {"type": "longrope", "short_factor": vec![1.0; 48], "long_factor": vec![4.0; 48]},
    });
    let phi2 = json!({
        "model_type": "phi", "architectures": ["PhiForCausalLM"], "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 32, "partial_rotary_factor": 0.4, "qk_layernorm": false,
    });
    let pythia = json!({
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 768, "vocab_size": 50304,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "rotary_pct": 0.25,
        "rotary_emb_base": 10000, "use_parallel_residual": true,
    });
    let gemma2 =
        json!({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"});
    let gemma3 = json!({
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 1152,
        "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512,
        "vocab_size": 262144, "max_position_embeddings": 32768,
    });
    let gemma3_4b = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
        "vision_config": {"hidden_size": 1152}, "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
    });
    // This shape is not published either; it resembles E2B.
    let layer_types: Vec<_> =
        (1..=35).map(|i| if i % 5 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let shared = json!({
        "model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
        "layer_types": layer_types,
    });
    // This shape is not published. `Gemma4ForCausalLM` counts this many parameters for it, without the factor of each
    // layer.
    let gemma4 = json!({
        "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "vision_config": {},
        "text_config": gemma4(json!({"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60,
            "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4,
            "attention_k_eq_v": true, "sliding_window": 1024, "use_bidirectional_attention": "vision"})),
    });
    let layers = |windows: &[Option<usize>]| windows.iter().filter(|window| window.is_some()).count();
    for (config, parameters, windowed) in [
        (json!({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}), 7_241_732_096, 32),
        (qwen, 494_032_768, 0),
        (qwen3, 596_049_920, 0),
        (smollm3, 3_075_098_624, 0),
        (granite, 2_533_531_648, 0),
        (json!({"model_type": "granite_swa"}), 2_144_463_840, 18),
        (phi3, 3_821_079_552, 0),
        (phi2, 2_779_683_840, 0),
        (pythia, 162_322_944, 0),
        (json!({"model_type": "opt", "architectures": ["OPTForCausalLM"]}), 125_239_296, 0),
        (gemma2, 2_614_341_888, 13),
        (gemma3, 999_885_952, 22),
        (gemma3_4b, 3_880_263_168, 29),
        (gemma4, 30_697_345_280 + 60, 50),
        (shared, 4_628_569_344 + 35, 12),
    ] {
        let spec = parse(config.clone()).unwrap();
        assert_eq!(spec.parameters(), parameters, "{config}");
        assert_eq!(layers(&spec.attention().windows), windowed, "{config}");
        let sent = serde_json::to_vec(&spec).unwrap();
        assert_eq!(serde_json::from_slice::<ModelSpec>(&sent).unwrap(), spec);
    }
}

#[test]
fn unsupported_values_are_refused_by_name_and_value() {
    for (config, key, value) in [
        (json!({"model_type": "mamba"}), "model_type", "mamba"),
        (json!({"architectures": ["BertModel"]}), "architectures", "BertModel"),
        (json!({}), "model_type", "missing"),
        (json!({"model_type": "gpt2", "activation_function": "tanh"}), "activation_function", "tanh"),
        (json!({"model_type": "gpt2", "n_head": 7}), "n_head", "7"),
        (json!({"model_type": "gpt2", "n_layer": 0}), "n_layer", "0"),
        (json!({"model_type": "gpt2", "n_embd": u64::MAX}), "n_embd", "18446744073709551615"),
        (json!({"model_type": "gpt2", "n_inner": -3}), "n_inner", "-3"),
        (json!({"model_type": "gpt2", "add_cross_attention": true}), "add_cross_attention", "true"),
        (json!({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 2}}), "rope_type", "yarn"),
        (json!({"model_type": "llama", "rope_scaling": {"type": "linear"}}), "factor", "missing"),
        (json!({"model_type": "llama", "rope_theta": -1}), "rope_theta", "-1"),
        (json!({"model_type": "llama", "num_attention_heads": 0}), "num_attention_heads", "0"),
        (json!({"model_type": "llama", "num_key_value_heads": 5}), "num_key_value_heads", "5"),
        (json!({"model_type": "llama", "head_dim": 33}), "head_dim", "33"),
        (json!({"model_type": "llama", "head_dim": 1 << 19}), "head_dim", "524288"),
        (json!({"model_type": "llama", "mlp_bias": "yes"}), "mlp_bias", "yes"),
        (json!({"model_type": "llama", "partial_rotary_factor": 0.5}), "partial_rotary_factor", "0.5"),
        (
            json!({"model_type": "llama", "architectures": ["Qwen2MoeForCausalLM"]}),
            "architectures",
            "Qwen2MoeForCausalLM",
        ),
        (json!({"model_type": "gpt2", "architectures": ["LlamaForCausalLM"]}), "architectures", "gpt2"),
        (json!({"model_type": "llama", "architectures": "LlamaForCausalLM"}), "architectures", "a list"),
        (json!({"model_type": "llama", "sliding_window": 4096}), "sliding_window", "4096"),
        (json!({"model_type": "llama", "sliding_window": 8, "use_sliding_window": true}), "sliding_window", "8"),
        (
            json!({"model_type": "llama", "layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types",
            "sliding",
        ),
        (json!({"model_type": "llama", "final_logit_softcapping": 30.0}), "final_logit_softcapping", "30"),
        (json!({"model_type": "llama", "num_local_experts": 8}), "num_local_experts", "8"),
        (json!({"model_type": "llama", "logits_scaling": 8}), "logits_scaling", "8"),
        (json!({"model_type": "llama", "use_qk_norm": true}), "use_qk_norm", "true"),
        (json!({"model_type": "llama", "quantization_config": {"bits": 4}}), "quantization_config", "bits"),
        (json!({"model_type": "qwen3_moe"}), "model_type", "qwen3_moe"),
        (json!({"model_type": "qwen3_next"}), "model_type", "gated DeltaNet"),
        (json!({"model_type": "gpt_oss"}), "model_type", "E / k times"),
        (
            json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}),
            "model_type",
            "all 8 would be computed",
        ),
        (json!({"model_type": "gemma3"}), "text_config", "missing"),
        (json!({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}), "model_type", "ministral3"),
        (json!({"model_type": "qwen2_vl", "text_config": {}}), "model_type", "qwen2_vl"),
        (json!({"model_type": "qwen3", "num_experts": 128}), "num_experts", "128"),
        (json!({"model_type": "mistral", "sliding_window": 0}), "sliding_window", "0"),
        (json!({"model_type": "mistral", "layer_types": ["sliding_attention"]}), "layer_types", "sliding"),
        (
            json!({"model_type": "mistral", "architectures": ["Qwen2ForCausalLM"]}),
            "architectures",
            "Qwen2ForCausalLM",
        ),
        (json!({"model_type": "qwen2", "layer_types": ["full_attention"]}), "layer_types", "1"),
        (json!({"model_type": "qwen2", "layer_types": vec!["chunked_attention"; 32]}), "layer_types", "chunked"),
        (json!({"model_type": "qwen2", "final_logit_softcapping": 30.0}), "final_logit_softcapping", "30"),
        (json!({"model_type": "smollm3", "no_rope_layers": [1, 1]}), "no_rope_layers", "2"),
        (json!({"model_type": "smollm3", "no_rope_layers": vec![2; 36]}), "no_rope_layers", "2"),
        (json!({"model_type": "smollm3", "no_rope_layer_interval": 0}), "no_rope_layer_interval", "0"),
        (json!({"model_type": "granite", "logits_scaling": 0}), "logits_scaling", "0"),
        (json!({"model_type": "granite_swa", "layer_rope_theta": [1.0]}), "layer_rope_theta", "24 layers"),
        (json!({"model_type": "granite_swa", "layer_rope_theta": vec![-1; 24]}), "layer_rope_theta", "-1"),
        (json!({"model_type": "granitemoehybrid"}), "model_type", "mixture"),
        (json!({"model_type": "phi3", "partial_rotary_factor": 0.305}), "partial_rotary_factor", "0.305"),
        (
            json!({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}}),
            "short_factor",
            "1",
        ),
        (json!({"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 2}}), "rope_type", "yarn"),
        (json!({"model_type": "phi", "qk_layernorm": true}), "qk_layernorm", "true"),
        (json!({"model_type": "gpt_neox", "use_parallel_residual": false}), "use_parallel_residual", "false"),
        (json!({"model_type": "opt", "do_layer_norm_before": false}), "do_layer_norm_before", "false"),
        (json!({"model_type": "opt", "word_embed_proj_dim": 512}), "word_embed_proj_dim", "512"),
        (json!({"model_type": "opt", "activation_function": "gelu_fast"}), "activation_function", "gelu_fast"),
        (json!({"model_type": "olmo2", "clip_qkv": 8.0}), "clip_qkv", "8"),
        (json!({"model_type": "gemma2", "attn_logit_softcapping": 0.5}), "attn_logit_softcapping", "0.5"),
        (json!({"model_type": "gemma2", "query_pre_attn_scalar": -1}), "query_pre_attn_scalar", "-1"),
        (json!({"model_type": "gemma3_text", "use_bidirectional_attention": true}), "use_bidirectional", "true"),
        (json!({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}), "attn_logit_softcapping", "50"),
        (json!({"model_type": "gemma3_text", "rope_parameters": {"factor": 8.0}}), "rope_parameters.factor", "8"),
        (
            json!({"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8}}),
            "rope_scaling.type",
            "linear",
        ),
        (
            json!({"model_type": "qwen2", "rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
            "rope_parameters.full_attention",
            "1000000",
        ),
        (json!({"model_type": "mistral", "partial_rotary_factor": 0.5}), "partial_rotary_factor", "0.5"),
        (json!({"model_type": "gpt_neox", "rope_theta": 500}), "rope_theta", "500"),
        (json!({"model_type": "qwen2", "layer_types": vec!["sliding_attention"; 32]}), "layer_types", "sliding"),
        (
            json!({"model_type": "smollm3", "sliding_window": 8, "layer_types": vec!["sliding_attention"; 36]}),
            "layer_types",
            "sliding",
        ),
        (json!({"model_type": "llama", "is_causal": false}), "is_causal", "false"),
        (json!({"model_type": "llama", "per_layer_config": {"0": {"head_dim": 8}}}), "per_layer_config", "head_dim"),
        (json!({"model_type": "llama", "transformers_weights": "a.safetensors"}), "transformers_weights", "a."),
        (json!({"model_type": "vit", "head_dim": 32}), "head_dim", "32"),
        (json!({"model_type": "bert", "num_labels": 3, "problem_type": "regression"}), "problem_type", "regression"),
        (gemma4(json!({"hidden_size_per_layer_input": 4096})), "hidden_size_per_layer_input", "4096"),
        (
            gemma4(json!({"hidden_size_per_layer_input": null, "vocab_size_per_layer_input": 8})),
            "vocab_size_per_layer_input",
            "8",
        ),
        (gemma4(json!({"num_kv_shared_layers": 30})), "num_kv_shared_layers", "30"),
        (gemma4(json!({"num_kv_shared_layers": 25})), "num_kv_shared_layers", "25"),
        (gemma4(json!({"use_double_wide_mlp": true, "intermediate_size": 65536})), "intermediate_size", "65536"),
        (gemma4(json!({"attention_bias": true})), "attention_bias", "true"),
        (gemma4(json!({"enable_moe_block": true})), "enable_moe_block", "mixture"),
        (gemma4(json!({"num_experts": 128, "top_k_experts": 8})), "num_experts", "16.0 times"),
        (gemma4(json!({"use_bidirectional_attention": "all"})), "use_bidirectional_attention", "all"),
        (gemma4(json!({"sliding_window": 131072})), "sliding_window", "131072"),
        (gemma4(json!({"global_head_dim": 0})), "global_head_dim", "0"),
        (gemma4(json!({"per_layer_config": {"5": {"hidden_size": 8}}})), "per_layer_config.5", "hidden_size"),
        (gemma4(json!({"per_layer_config": {"4": {"head_dim": 8}}})), "per_layer_config.4", "head_dim"),
        (gemma4(json!({"rope_parameters": {"rope_type": "default"}})), "rope_parameters.rope_type", "full_attention"),
        (
            gemma4(json!({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}})),
            "rope_parameters.full_attention.rope_theta",
            "missing",
        ),
        (json!({"model_type": "gpt2", "position_embedding_type": "alibi"}), "position_embedding_type", "alibi"),
        (json!({"model_type": "gpt2", "is_encoder_decoder": true}), "is_encoder_decoder", "true"),
    ] {
        let message = parse(config.clone()).expect_err(&config.to_string()).to_string();
        assert!(message.contains(key) && message.contains(value), "{config} gave: {message}");
    }
}

#[test]
fn a_mark_in_front_of_a_configuration_is_named() {
    let error = ModelSpec::from_config_json(b"\xef\xbb\xbf{\"model_type\": \"gpt2\"}").unwrap_err().to_string();
    assert!(error.contains("byte-order mark"), "{error}");
}

#[test]
fn classes_are_found_by_themselves_where_the_configuration_says_so() {
    for kind in ["bert", "roberta", "distilbert", "vit"] {
        let of =
            |problem: Value| parse(json!({"model_type": kind, "num_labels": 4, "problem_type": problem})).unwrap();
        let spec = of(json!("multi_label_classification"));
        assert!(spec.is_multi_label() && !of(json!("single_label_classification")).is_multi_label());
        assert!(!of(Value::Null).is_multi_label());
        let sent = serde_json::to_vec(&spec).unwrap();
        assert_eq!(serde_json::from_slice::<ModelSpec>(&sent).unwrap(), spec);
    }
}

#[test]
fn a_peer_cannot_slip_in_what_a_file_cannot() {
    let spec = parse(json!({"model_type": "llama"})).unwrap();
    let mut sent = serde_json::to_value(&spec).unwrap();
    assert_eq!(serde_json::from_value::<ModelSpec>(sent.clone()).unwrap(), spec);
    sent["num_hidden_layers"] = json!(u32::MAX);
    assert!(serde_json::from_value::<ModelSpec>(sent).is_err());
}

proptest! {
    #[test]
    fn any_sizes_parse_to_themselves_or_are_refused(
        heads in 0usize..70, kv in 0usize..70, dim in 0usize..300, layers in 0usize..6000,
        theta in -1e6f64..1e7, factor in -2.0f64..40.0, eps in -0.5f64..1.5,
    ) {
        let config = json!({
            "model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
            "num_hidden_layers": layers, "rope_theta": theta, "rms_norm_eps": eps,
            "rope_scaling": {"rope_type": "linear", "factor": factor},
        });
        let valid = heads > 0 && kv > 0 && heads % kv == 0 && dim > 0 && dim % 2 == 0 && layers > 0
            && layers <= MAX_LAYERS && theta > 0.0 && factor > 0.0 && (0.0..1.0).contains(&(eps as f32));
        match parse(config) {
            Ok(spec) => {
                prop_assert!(valid);
                prop_assert_eq!(spec.heads()[0], HeadShape { heads, kv_heads: kv, head_dim: dim });
                prop_assert_eq!(spec.layers(), layers);
                let sent = serde_json::to_vec(&spec).unwrap();
                prop_assert_eq!(serde_json::from_slice::<ModelSpec>(&sent).unwrap(), spec);
            }
            Err(_) => prop_assert!(!valid),
        }
    }

    #[test]
    fn junk_never_panics(text in ".{0,200}", key in "[a-z_]{1,12}", value in any::<i64>()) {
        let _ = ModelSpec::from_config_json(text.as_bytes());
        for kind in ModelSpec::TYPES {
            let _ = parse(json!({"model_type": kind, key.as_str(): value}));
            for known in [
                "n_embd", "hidden_size", "head_dim", "num_attention_heads", "rope_scaling", "n_inner",
                "sliding_window", "layer_types", "no_rope_layers", "rotary_pct", "query_pre_attn_scalar",
            ] {
                let _ = parse(json!({"model_type": kind, known: value}));
            }
        }
    }
}
