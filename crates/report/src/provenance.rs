//! The origin of a number: the program, its command line, the machine and the time.
//!
//! Every record that a command writes carries a [`Provenance`]. It contains no host, no user and no folder. Files
//! appear by name only, and values that name a machine or contain a prompt are left out.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use waggle_bits::cpu::{Cpu, Feature};

/// The version of a program, as it was built.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's version, for example `0.1.0`.
    pub version: &'static str,
    /// The commit of the program's sources, with `-dirty` if they had changes; `None` if git did not know it.
    pub revision: Option<&'static str>,
}

/// The origin of a record. A field that an older record lacks is empty, zero or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Version of Waggle.
    pub version: String,
    /// The commit of Waggle's sources, with `-dirty` if they had changes.
    #[serde(alias = "commit", skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// A command line that makes the record again. Files appear by name only, and three dots stand for a prompt, an
    /// address or a key.
    pub command: String,
    /// The processor's name.
    pub processor: String,
    /// The processor's instruction sets for which Waggle has kernels, whether or not they were used.
    pub features: Vec<String>,
    /// Processors that the program could use.
    pub cores: usize,
    /// Bytes of the machine's memory, if the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Time at which the record was made: RFC 3339, in UTC, to the second.
    pub date: String,
}

impl Provenance {
    /// The provenance of records that this process writes.
    pub fn current(program: Program) -> Self {
        let cpu = Cpu::detected();
        let features = Feature::ALL.into_iter().filter(|feature| cpu.has(*feature));
        Provenance {
            version: program.version.into(),
            revision: program.revision.map(str::to_owned),
            command: command(std::env::args().skip(1)),
            processor: processor(),
            features: features.map(|feature| feature.name().to_owned()).collect(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }

    /// Whether the program's sources were those of a commit, without changes.
    pub fn is_clean(&self) -> bool {
        self.revision.as_ref().is_some_and(|revision| !revision.ends_with("-dirty"))
    }

    /// The version, followed by the revision if it is known: `0.1.0 (73237168f69c)`.
    pub fn program(&self) -> String {
        match (&self.version[..], &self.revision) {
            ("", None) => "an unknown revision".into(),
            ("", Some(revision)) => revision.clone(),
            (version, None) => version.into(),
            (version, Some(revision)) => format!("{version} ({revision})"),
        }
    }

    /// The processor and the number of cores, in words.
    pub fn machine(&self) -> String {
        let processor = if self.processor.is_empty() { "an unknown processor" } else { &self.processor };
        let features =
            if self.features.is_empty() { String::new() } else { format!(" ({})", self.features.join(", ")) };
        format!("{} cores of {processor}{features}", self.cores)
    }
}

/// The name of this machine's processor.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "model name");
    named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Bytes of this machine's memory, if the system tells.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Names of the options whose values readers of a record must not see. The values are prompts, addresses or keys, or
/// name a machine.
const WITHHELD: &str = "prompt prompt-ids connect listen metrics server-key machine identity allow known-servers";

/// The text in place of a withheld value.
const DOTS: &str = "...";

/// The command line `waggle ARGUMENTS`, quoted for a shell. Values that a record must not contain are replaced.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["waggle".to_owned()];
    let is_withheld = |name: &str| WITHHELD.split(' ').any(|option| option == name);
    let mut withheld = false;
    for argument in arguments {
        let option = argument.strip_prefix("--");
        words.push(match option.and_then(|option| option.split_once('=')) {
            _ if std::mem::take(&mut withheld) => DOTS.into(),
            Some((name, _)) if is_withheld(name) => format!("--{name}={DOTS}"),
            Some((name, value)) => quoted(&format!("--{name}={}", named(value))),
            None => {
                withheld = option.is_some_and(is_withheld);
                quoted(&named(&argument))
            }
        });
    }
    words.join(" ")
}

/// `value` with every path in it cut to the name of the file.
fn named(value: &str) -> String {
    if let Some(name) = file_name(value) {
        return name;
    }
    let mut text = String::new();
    for piece in value.split_inclusive([':', ',', ';', '=']) {
        let (word, end) = match piece.char_indices().last() {
            Some((at, ':' | ',' | ';' | '=')) => piece.split_at(at),
            _ => (piece, ""),
        };
        text += file_name(word).as_deref().unwrap_or(word);
        text += end;
    }
    text
}

/// The file name at the end of a path; `None` if `value` is not a path. For example, `32/16` is a path only if there
/// is a folder `32`.
fn file_name(value: &str) -> Option<String> {
    let path = Path::new(value);
    let outside = path.is_absolute() || ["~", "./", "../"].iter().any(|start| value.starts_with(start));
    let beside = value.contains('/') && path.parent().is_some_and(Path::exists);
    if !outside && !beside {
        return None;
    }
    Some(path.file_name().map_or_else(|| DOTS.into(), |name| name.to_string_lossy().into_owned()))
}

/// The argument, in quotes if a shell needs them.
pub fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &[&str]) -> String {
        command(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn arguments_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("--only"), "--only");
        assert_eq!(quoted("lan,100mbit"), "lan,100mbit");
        assert_eq!(quoted("static only"), "'static only'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_record_tells_no_folder_no_host_and_no_prompt() {
        let home = std::env::temp_dir();
        let report = home.join("report.json").display().to_string();
        assert_eq!(line(&["demo", "--json", &report, "--link", "lan"]), "waggle demo --json report.json --link lan");
        assert_eq!(line(&["plan", "--json=/home/someone/plan.json"]), "waggle plan --json=plan.json");
        assert_eq!(line(&["demo", "--model", "../models/x", "~/y"]), "waggle demo --model x y");
        assert_eq!(line(&["demo", "--draft", "model:/home/someone/small:3"]), "waggle demo --draft model:small:3");
        let secret =
            ["generate", "--connect", "host:7411", "--prompt", "my secret", "--prompt-ids=1,2", "--tokens", "3"];
        assert_eq!(line(&secret), "waggle generate --connect ... --prompt ... --prompt-ids=... --tokens 3");
    }

    #[test]
    fn what_only_looks_like_a_path_stays() {
        for word in ["mpcache:clusters=32/16,gather=scores", "1/4", "full", "400mbit,4ms"] {
            assert_eq!(named(word), word);
        }
    }

    #[test]
    fn this_process_has_a_provenance_and_old_records_are_read() {
        let program = Program { version: "1.2.3", revision: Some("abc-dirty") };
        let now = Provenance::current(program);
        assert!(now.cores > 0 && !now.processor.is_empty() && !now.is_clean());
        assert!(now.date.len() == 20 && now.date.ends_with('Z'), "{}", now.date);
        assert_eq!(now.program(), "1.2.3 (abc-dirty)");
        let json = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&json).unwrap(), now);
        let old = r#"{"commit": "7171fc2d5e3a", "command": "make it", "cores": 2}"#;
        let old: Provenance = serde_json::from_str(old).unwrap();
        assert_eq!((old.revision.as_deref(), &old.command[..], old.cores), (Some("7171fc2d5e3a"), "make it", 2));
        assert!(old.is_clean() && old.date.is_empty());
    }
}
