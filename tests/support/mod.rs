//! Tools that the tests of the command line share: processes, models, reports.

mod process;

use std::path::Path;
use std::process::Command;

use serde_json::Value;

pub(crate) use process::*;

/// The keys of a server and a helper that are not the user's own, as both parties and their helper need them.
pub(crate) struct Keys {
    /// Options of the server and of the helper.
    pub(crate) server: String,
    pub(crate) helper: String,
    /// The keys that they prove.
    pub(crate) of_server: String,
    pub(crate) of_helper: String,
    /// The list of the user and the server.
    pub(crate) allowed: String,
}

impl Keys {
    /// In `dir`, for the user whose key is in `home`.
    pub(crate) fn new(dir: &Path, home: &Path) -> Self {
        let file = |name: &str| dir.join(name).display().to_string();
        let identity = |name: &str| format!("--identity {}", file(name));
        let [of_server, of_helper] = ["server.key", "helper.key"].map(|name| {
            let line = format!("keygen {}", identity(name));
            succeed(&mut of(waggle(&line), home)).trim().to_owned()
        });
        let user = key(home);
        std::fs::write(dir.join("allowed"), format!("{user}\n{of_server}\n")).expect("a list");
        let allowed = format!("--allow {}", file("allowed"));
        Keys { server: identity("server.key"), helper: identity("helper.key"), of_server, of_helper, allowed }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The JSON that a command writes with `--json`.
pub(crate) fn json(command: &mut Command) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    succeed(command.arg("--json").arg(&file));
    read_json(&file)
}

/// The JSON document in `file`.
pub(crate) fn read_json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Bytes both ways of a cost in a report.
pub(crate) fn bytes(cost: &Value) -> u64 {
    cost["bytes_client_to_server"].as_u64().unwrap() + cost["bytes_server_to_client"].as_u64().unwrap()
}

/// Copies the bundled model `name` into the directory `to`, which is made.
pub(crate) fn copy_model(name: &str, to: &Path) {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("model/assets").join(name);
    std::fs::create_dir_all(to).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(assets.join(file), to.join(file)).unwrap();
    }
}

/// A model in `dir` with random weights and the shape `config`.
pub(crate) fn synthesise(dir: &Path, name: &str, config: &str) -> String {
    let (file, out) = (dir.join(format!("{name}.json")), dir.join(name));
    std::fs::write(&file, config).unwrap();
    succeed(&mut waggle(&format!("synth --config {} --out {}", file.display(), out.display())));
    out.display().to_string()
}

/// A file in `dir` with words of the bundled models' characters, so often.
pub(crate) fn play(dir: &Path, times: usize) -> String {
    let words = "ROMEO:\nWhat say you to the king? My lord, I come to speak of love and of the night.\n";
    let file = dir.join("text.txt");
    std::fs::write(&file, words.repeat(times)).unwrap();
    file.display().to_string()
}

/// The number in an environment variable, if it is set.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Ids for a command line.
pub(crate) fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
