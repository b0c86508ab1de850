//! Hints on files in a form that is not read here: what they are, and what to do about them.

use std::path::Path;

/// The hint for a file that Git LFS has not downloaded.
pub(crate) const LFS: &str = "a pointer of Git LFS in the place of the file: `git lfs pull` fetches it";

/// Whether `bytes` are a pointer of Git LFS in place of a file.
pub(crate) fn is_lfs(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs")
}

/// The message for an `error` in a JSON file. A byte order mark before the text is named, because it is invisible.
pub(crate) fn of_json(text: &[u8], error: &serde_json::Error) -> String {
    match text.starts_with(b"\xef\xbb\xbf") {
        true => "it begins with a byte-order mark, which transformers refuses as well: save it as UTF-8 without one"
            .into(),
        false => error.to_string(),
    }
}

const GGUF: &str = "; GGUF has quantised weights in a form of its own: take the safetensors that it was made from, or, in \
                    Python, `AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(OUT)` of \
                    transformers writes some";

/// Advice on the directory `dir`, which holds other files in place of a model; empty if nothing is known.
pub(crate) fn of_directory(dir: &Path) -> &'static str {
    let names: Vec<String> = std::fs::read_dir(dir)
        .map(|files| files.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let any = |fits: &dyn Fn(&str) -> bool| names.iter().any(|name| fits(name));
    if any(&|name| name == "adapter_config.json") {
        "; it is an adapter (LoRA): merge it into its base model, with `merge_and_unload()` of peft, and save that"
    } else if any(&|name| name.starts_with("pytorch_model") && name.contains(".bin")) {
        "; it has pytorch_model.bin: in Python, `AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT)` of \
         transformers writes safetensors"
    } else if any(&|name| name.starts_with("consolidated.")) {
        "; consolidated files are in the form of the authors' own program: take those in the form of transformers, or \
         make them with its script `convert_mistral_weights_to_hf.py` or `convert_llama_weights_to_hf.py`"
    } else if any(&|name| name.ends_with(".gguf")) {
        GGUF
    } else {
        ""
    }
}

/// Advice on the directory `dir` of an adapter, in which no weights were found; empty if nothing is known.
pub(crate) fn of_adapter(dir: &Path) -> &'static str {
    match dir.join("adapter_model.bin").exists() {
        true => {
            "; it has adapter_model.bin: in Python, `PeftModel.from_pretrained(BASE, DIR).save_pretrained(OUT)` of peft \
             writes safetensors"
        }
        false => "",
    }
}

/// Advice on the tensor `missing`, for a checkpoint that has the tensors `there` in its place; empty if nothing is
/// known.
pub(crate) fn of_tensors<'n>(missing: &str, there: impl Iterator<Item = &'n str>) -> String {
    let matrix = missing.strip_suffix("weight");
    for name in there {
        if let Some(wrapped) = WRAPPED.iter().find(|wrapped| name.starts_with(**wrapped)) {
            return format!(
                "; names begin with `{wrapped}`, which is of a program around the model: save that without it"
            );
        }
        if matrix.is_some_and(|matrix| name.strip_prefix(matrix) == Some("qweight")) {
            return format!(
                "; `{name}` is there, so matrices are in few bits: config.json needs a `quantization_config` that says \
                 how, which is what quantize_config.json has, with `quant_method`"
            );
        }
    }
    String::new()
}

/// The prefixes that torch.compile, DataParallel, FSDP and PEFT put before the names of tensors when they wrap a
/// model.
const WRAPPED: [&str; 4] = ["_orig_mod.", "module.", "_fsdp_wrapped_module.", "base_model.model."];

/// Advice on `name`, which is no model on this machine; empty if nothing is known.
pub fn of_name(name: &str) -> &'static str {
    let owner_and_model =
        name.split('/').filter(|part| !part.is_empty() && *part != "." && *part != "..").count() == 2;
    if name.ends_with(".gguf") {
        GGUF
    } else if name.ends_with(".safetensors") {
        "; give the directory that has this file and its config.json"
    } else if owner_and_model && !name.starts_with(['/', '.']) {
        "; a name of a model hub is not looked up: `hf download NAME --local-dir DIR` fetches it, then give DIR"
    } else {
        ""
    }
}

/// Advice on a model of the type `kind`, which no family here has; empty if nothing is known.
pub(crate) fn of_type(kind: &str) -> &'static str {
    let is = |names: &[&str]| names.iter().any(|name| kind.to_ascii_lowercase().starts_with(name));
    if is(&["llava_", "mllama", "qwen2_vl", "qwen2_5_vl", "paligemma", "gemma3n", "idefics"]) {
        "; a model with pictures wraps one of text: those of gemma3, gemma4, mistral3 and llava are \
         read as they are published"
    } else if is(&[
        "bert",
        "roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "xlm-roberta",
        "xlmroberta",
        "vit",
    ]) {
        "; this is an encoder, and only decoders are computed here"
    } else if is(&["qwen3_5", "qwen3_next", "qwen3next"]) {
        "; layers of gated DeltaNet are not computed: model/README.md has the reason"
    } else if is(&["t5", "mt5", "bart", "whisper"]) {
        "; this is an encoder with a decoder, and only models of a decoder alone are computed here"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_told_what_to_do() {
        for (file, word) in [
            ("adapter_config.json", "merge"),
            ("pytorch_model-00001-of-00002.bin", "save_pretrained"),
            ("pytorch_model.bin", "save_pretrained"),
            ("model.Q4_K_M.gguf", "gguf_file"),
            ("consolidated.safetensors", "convert_mistral"),
            ("consolidated.00.pth", "convert_llama"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            assert_eq!(of_directory(dir.path()), "");
            std::fs::write(dir.path().join(file), b"").unwrap();
            assert!(of_directory(dir.path()).contains(word), "{file}");
        }
        assert!(of_name("meta-llama/Llama-2-7b-hf").contains("hub") && of_name("a.gguf").contains("GGUF"));
        assert!(of_name("dir/model.safetensors").contains("directory"));
        assert!(["./models/x", "/models/x", "../x", "gpt3"].iter().all(|name| of_name(name).is_empty()));
        assert!(of_type("BertModel").contains("encoder") && of_type("t5").contains("decoder"));
        assert!(of_type("qwen3_5_text").contains("DeltaNet") && of_type("Qwen3NextForCausalLM").contains("DeltaNet"));
        assert!(of_type("qwen2_vl").contains("pictures") && of_type("gemma3_text").is_empty());
        assert!(is_lfs(b"version https://git-lfs.github.com/spec/v1\noid") && !is_lfs(b"{}"));
    }
}
