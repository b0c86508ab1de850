//! Whom a party trusts: servers a client has met, clients a server lets in.

use std::path::{Path, PathBuf};
use std::{fs, io};

use waggle_files::Forbidden;

use crate::{KeyError, PublicKey};

/// Most bytes of a list of keys.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A client's record of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownServer {
    /// Address as the user gives it.
    pub address: String,
    /// The server's key.
    pub key: PublicKey,
    /// The pin of the public part of the server's model, if there is one.
    pub pin: Option<String>,
}

/// The servers that a client has met, in a file.
///
/// A line has the address, the key and optionally a pin of the public part of the model, separated by spaces. Lines
/// that begin with `#` and empty lines are kept as they are.
#[derive(Clone, Debug)]
pub struct KnownServers {
    path: PathBuf,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
enum Line {
    Server(KnownServer),
    Comment(String),
}

impl KnownServers {
    /// Reads the file `path`; if there is none, nobody is known.
    ///
    /// Errors: [`KeyError::File`], [`KeyError::Writable`] if others may write the file (Unix), [`KeyError::Line`] for
    /// a line that does not parse and for an address that stands there twice.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self, KeyError> {
        let path = path.into();
        let mut servers = KnownServers { path, lines: Vec::new() };
        let text = read_or_empty(&servers.path)?;
        for (i, line) in text.lines().enumerate() {
            let wrong = |what: String| KeyError::Line { path: servers.path.clone(), line: i + 1, what };
            if is_comment(line) {
                servers.lines.push(Line::Comment(line.into()));
                continue;
            }
            let server = parse_server(line).map_err(wrong)?;
            if servers.lookup(&server.address).is_some() {
                return Err(wrong(format!("`{}` stands here twice", printable(&server.address))));
            }
            servers.lines.push(Line::Server(server));
        }
        Ok(servers)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record of the server at `address`.
    pub fn lookup(&self, address: &str) -> Option<&KnownServer> {
        self.lines.iter().find_map(|line| match line {
            Line::Server(server) if server.address == address => Some(server),
            _ => None,
        })
    }

    /// Writes down that the server at `address` has `key`. A new key discards the pin, which belonged to the server
    /// with the old key.
    ///
    /// Errors: [`KeyError::File`], and errors of [`KnownServers::read`] if the file has changed meanwhile.
    pub fn remember(&mut self, address: &str, key: PublicKey) -> Result<(), KeyError> {
        self.update(address, |known| match known {
            Some(known) if known.key == key => known,
            _ => KnownServer { address: address.into(), key, pin: None },
        })
    }

    /// Writes down `pin` for the server at `address`. If the server is not known by `key` yet, it becomes known.
    ///
    /// Errors: as [`KnownServers::remember`].
    pub fn pin(&mut self, address: &str, key: PublicKey, pin: &str) -> Result<(), KeyError> {
        self.update(address, |_| KnownServer { address: address.into(), key, pin: Some(pin.into()) })
    }

    /// Reads the file again and replaces what it knows of `address`, in one step.
    fn update(
        &mut self,
        address: &str,
        change: impl FnOnce(Option<KnownServer>) -> KnownServer,
    ) -> Result<(), KeyError> {
        let mut now = KnownServers::read(self.path.clone())?;
        let server = change(now.lookup(address).cloned());
        // A line that cannot be read back must not be written.
        let line = text(&server);
        if is_comment(&line) || parse_server(&line).ok().as_ref() != Some(&server) {
            let what = format!("`{}` cannot be written down as an address with a pin", printable(address));
            return Err(KeyError::Line { path: self.path.clone(), line: now.lines.len() + 1, what });
        }
        let place = now.lines.iter_mut().find(|line| matches!(line, Line::Server(s) if s.address == address));
        match place {
            Some(Line::Server(known)) if *known == server => {}
            Some(line) => {
                *line = Line::Server(server);
                now.write()?;
            }
            None => {
                now.lines.push(Line::Server(server));
                now.write()?;
            }
        }
        *self = now;
        Ok(())
    }

    /// Writes a new file beside the old one and renames it.
    fn write(&self) -> Result<(), KeyError> {
        let mut content = String::new();
        for line in &self.lines {
            match line {
                Line::Server(server) => content.push_str(&text(server)),
                Line::Comment(line) => content.push_str(line),
            }
            content.push('\n');
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let draft = self.path.with_file_name(name);
        // Removes what a crashed process with the same number left.
        let _ = fs::remove_file(&draft);
        let written =
            waggle_files::write_new(&draft, content.as_bytes()).and_then(|()| fs::rename(&draft, &self.path));
        written.map_err(|source| {
            let _ = fs::remove_file(&draft);
            KeyError::File { path: self.path.clone(), source }
        })
    }
}

fn text(server: &KnownServer) -> String {
    let KnownServer { address, key, pin } = server;
    match pin {
        None => format!("{address} {key}"),
        Some(pin) => format!("{address} {key} {pin}"),
    }
}

fn parse_server(line: &str) -> Result<KnownServer, String> {
    let mut words = line.split_whitespace();
    let (Some(address), Some(key), pin, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err("not an address, a key and perhaps a pin".into());
    };
    let key = key.parse().map_err(|e: KeyError| e.to_string())?;
    Ok(KnownServer { address: address.into(), key, pin: pin.map(Into::into) })
}

/// The clients that a server lets in.
///
/// A line of the file has a key, and after it any text that helps to remember whose key it is. Lines that begin with
/// `#` and empty lines are skipped.
#[derive(Clone, Debug, Default)]
pub struct AllowList {
    keys: std::collections::BTreeSet<PublicKey>,
}

impl AllowList {
    /// Reads the file `path`; if there is none, nobody is let in.
    ///
    /// Errors: [`KeyError::File`], [`KeyError::Writable`] if others may write the file (Unix), [`KeyError::Line`] for
    /// a line that does not begin with a key.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let mut keys = std::collections::BTreeSet::new();
        for (i, line) in read_or_empty(path)?.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
            let key = line.split_whitespace().next().unwrap_or_default().parse();
            keys.insert(key.map_err(|e: KeyError| KeyError::Line {
                path: path.into(),
                line: i + 1,
                what: e.to_string(),
            })?);
        }
        Ok(AllowList { keys })
    }

    /// Whether the owner of `key` may come in.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.keys.contains(key)
    }
}

fn is_comment(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The text of `path`, empty if there is no such file.
fn read_or_empty(path: &Path) -> Result<String, KeyError> {
    let failed = |source| KeyError::File { path: path.into(), source };
    let file = match waggle_files::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file.map_err(failed)?,
    };
    if waggle_files::others_may(&file.metadata().map_err(failed)?, Forbidden::Writing) {
        return Err(KeyError::Writable { path: path.into() });
    }
    waggle_files::contents(file, MAX_FILE_BYTES).and_then(waggle_files::text).map_err(failed)
}
