//! Mixtures of experts are refused, with a message on what a pass of such a model would cost.

use super::Keys;

/// The keys under which a configuration may state the number of experts in a layer.
const ALL: [&str; 5] =
    ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"];

/// The keys under which a configuration may state the number of experts that a token takes.
const TAKEN: [&str; 6] = [
    "top_k_experts",
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "num_selected_experts",
];

/// Whether the name `kind` of a `model_type` or a class is that of a mixture of experts.
pub(crate) fn is_mixture(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    let begins =
        ["mixtral", "gpt_oss", "gptoss", "deepseek", "dbrx", "jamba", "llama4", "kimi", "glm4_moe", "arctic"];
    kind.contains("moe") || begins.iter().any(|name| kind.starts_with(name))
}

/// Why a mixture of experts is refused. Numbers that the configuration does not state are left out.
pub(crate) fn refused(keys: &Keys) -> String {
    let first = |names: &[&str]| keys.size(names).ok().flatten().filter(|n| *n > 0);
    let cost = match (first(&ALL), first(&TAKEN)) {
        (Some(all), Some(taken)) => format!(
            "all {all} would be computed for every token, which takes {taken}: {:.1} times the bytes and the work",
            all as f64 / taken as f64
        ),
        _ => "all E would be computed for every token, which takes k: E / k times the bytes and the work".to_owned(),
    };
    format!(
        "a mixture of experts is not computed: which experts a token takes would tell of the text, so that {cost} of \
         its feed-forward layers; take a dense model"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_cost_is_said() {
        let said = |value: Value| match &value {
            Value::Object(keys) => refused(&Keys(keys)),
            other => panic!("{other}"),
        };
        let mixtral = said(json!({"num_local_experts": 8, "num_experts_per_tok": 2}));
        assert!(mixtral.contains("all 8") && mixtral.contains("takes 2: 4.0 times"), "{mixtral}");
        assert!(said(json!({"num_experts": 0})).contains("E / k"));
        for kind in ["mixtral", "qwen3_moe", "Qwen2MoeForCausalLM", "gpt_oss", "olmoe", "deepseek_v3"] {
            assert!(is_mixture(kind), "{kind}");
        }
        assert!(["llama", "gemma3_text", "mistral", "smollm3"].iter().all(|kind| !is_mixture(kind)));
    }
}
