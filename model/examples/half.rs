//! Writes a Hugging Face directory again with weights in f16:
//! `cargo run --release -p waggle-model --example half IN OUT`.
//! The bundled models under `model/assets` were made this way from the f32 originals that `train.py` wrote.

use std::error::Error;
use std::path::PathBuf;

use waggle_model::{DType, ModelFiles, write_safetensors};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(to)) = (args.next(), args.next()) else { return Err("usage: half IN OUT".into()) };
    let files = ModelFiles::open(&from)?;
    std::fs::create_dir_all(&to)?;
    for name in ["config.json", "tokenizer.json"] {
        if from.join(name).is_file() {
            std::fs::copy(from.join(name), to.join(name))?;
        }
    }
    let layout = files.spec.tensors();
    files.checkpoint.check(&layout)?;
    write_safetensors(&to.join("model.safetensors"), &layout, DType::F16, |tensor, values| {
        let read = match tensor.shape[..] {
            [_] => files.checkpoint.vector(&tensor.name)?.to_vec(),
            _ => files.checkpoint.matrix(&tensor.name)?.into_iter().collect(),
        };
        values.extend(read);
        Ok(())
    })?;
    Ok(())
}
