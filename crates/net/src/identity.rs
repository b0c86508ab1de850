//! Who a party is: an Ed25519 key pair in a file, known to others by its public key.
//!
//! The file of an identity has one line, `ed25519-secret:` and the seed (RFC 8032) in 64 hexadecimal digits, and may
//! have comments that begin with `#`. Only its owner may read it.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use waggle_files::Forbidden;
use zeroize::Zeroizing;

/// Bytes of a public key and of a seed.
const KEY_BYTES: usize = 32;

/// The prefix of a public key in text, and after it the prefix of a seed.
const PUBLIC_PREFIX: &str = "ed25519:";
const SECRET_PREFIX: &str = "ed25519-secret:";

/// The bytes of a `PrivateKeyInfo` (RFC 8410) before the seed, which comes last.
const PKCS8_PREFIX: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// The bytes of a `SubjectPublicKeyInfo` (RFC 8410) before the key, which comes last.
const SPKI_PREFIX: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// Most bytes of the file of an identity.
const MAX_FILE_BYTES: u64 = 4096;

/// Why a key or a file of keys cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A new key would replace an existing file.
    #[error("{}: a key is there already; remove it first if you mean it: whoever trusts it will not know the new one", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Other users of the machine may read the file of a secret.
    #[error("{0}: others may read this secret key; close it to them: chmod 600 {0}", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// Other users of the machine may change a file or directory that says whom a party trusts.
    #[error("{0}: others may write here, and so decide whom this party trusts; close it to them: chmod go-w {0}", path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
    },
    /// A line is not allowed in the file of an identity or of a list of keys. `what` says why.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// The file of an identity has no key.
    #[error("{}: no secret key in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A text cannot be read as a public key.
    #[error("`{text}` is no public key: give `ed25519:` and 64 hexadecimal digits")]
    Parse {
        /// The text, shortened.
        text: String,
    },
    /// There are no random numbers, or the library refuses a seed.
    #[error("no key pair: {what}")]
    Provider {
        /// The cause.
        what: String,
    },
}

/// The public key of a party: `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// The key with these bytes (RFC 8032).
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        PublicKey(bytes)
    }

    /// Reads a `SubjectPublicKeyInfo`; `None` unless it is an Ed25519 key in the one encoding that DER allows.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<Self> {
        let key = spki.strip_prefix(SPKI_PREFIX.as_slice())?;
        Some(PublicKey(key.try_into().ok()?))
    }

    /// The key as a `SubjectPublicKeyInfo`.
    pub(crate) fn spki(&self) -> Vec<u8> {
        [SPKI_PREFIX.as_slice(), &self.0].concat()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(PUBLIC_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key = text.strip_prefix(PUBLIC_PREFIX).and_then(from_hex);
        key.map(|key| PublicKey(*key))
            .ok_or_else(|| KeyError::Parse { text: text.chars().filter(|c| !c.is_control()).take(100).collect() })
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

/// Reads exactly 64 hexadecimal digits.
fn from_hex(text: &str) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let text = text.as_bytes();
    if text.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The key pair of a party. This copy of the secret is zeroized when it is dropped.
pub struct Identity {
    seed: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl Identity {
    /// A new key pair, from the operating system's randomness, kept in memory alone.
    ///
    /// Errors: [`KeyError::Provider`] if there is no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        let random = default_provider().secure_random;
        random.fill(seed.as_mut()).map_err(|_| KeyError::Provider { what: "no random numbers".into() })?;
        Identity::from_seed(seed)
    }

    /// Reads the key pair in the file `path`.
    ///
    /// Errors: [`KeyError::File`], [`KeyError::Readable`] if others may read the file (Unix), [`KeyError::Line`] and
    /// [`KeyError::Empty`] if it is no identity.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let failed = |source| KeyError::File { path: path.into(), source };
        let file = waggle_files::open(path).map_err(failed)?;
        if waggle_files::others_may(&file.metadata().map_err(failed)?, Forbidden::ReadingAndWriting) {
            return Err(KeyError::Readable { path: path.into() });
        }
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
        let mut seed = None;
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // The line is a secret even where it is wrong: it is not quoted.
            let wrong = |what: &str| KeyError::Line { path: path.into(), line: i + 1, what: what.into() };
            let key = line.strip_prefix(SECRET_PREFIX).and_then(from_hex);
            let key = key.ok_or_else(|| wrong("not `ed25519-secret:` and 64 hexadecimal digits"))?;
            if seed.replace(key).is_some() {
                return Err(wrong("a second key"));
            }
        }
        Identity::from_seed(seed.ok_or_else(|| KeyError::Empty { path: path.into() })?)
    }

    /// Makes a key pair and writes it to `path`, readable by its owner alone (Unix).
    ///
    /// Errors: [`KeyError::Exists`] if there is such a file, [`KeyError::File`], [`KeyError::Provider`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let identity = Identity::generate()?;
        let mut text = Zeroizing::new(String::with_capacity(256));
        text.push_str(&format!("# Secret key of {}: keep it to yourself.\n{SECRET_PREFIX}", identity.public));
        for byte in identity.seed.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(digit), 16));
            }
        }
        text.push('\n');
        // Another process may be looking for the file, so it must appear whole or not at all.
        let mut draft = path.file_name().unwrap_or_default().to_owned();
        draft.push(format!(".{}.new", std::process::id()));
        let draft = path.with_file_name(draft);
        // Removes what a crashed process with the same number left.
        let _ = std::fs::remove_file(&draft);
        let outcome = waggle_files::write_new(&draft, text.as_bytes()).and_then(|()| rename_new(&draft, path));
        let _ = std::fs::remove_file(&draft);
        outcome.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.into() },
            _ => KeyError::File { path: path.into(), source },
        })?;
        Ok(identity)
    }

    /// The public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    fn from_seed(seed: Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, KeyError> {
        let refused = || KeyError::Provider { what: "the seed gives no public key".into() };
        let signing = signing_key(&seed)?;
        let spki = signing.public_key().ok_or_else(refused)?;
        let public = PublicKey::from_spki(&spki).ok_or_else(refused)?;
        Ok(Identity { seed, public })
    }

    /// The key in the form with which `rustls` signs.
    pub(crate) fn signing_key(&self) -> Result<Arc<dyn SigningKey>, KeyError> {
        signing_key(&self.seed)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

fn signing_key(seed: &[u8; KEY_BYTES]) -> Result<Arc<dyn SigningKey>, KeyError> {
    let mut der = Zeroizing::new([0; PKCS8_PREFIX.len() + KEY_BYTES]);
    der[..PKCS8_PREFIX.len()].copy_from_slice(&PKCS8_PREFIX);
    der[PKCS8_PREFIX.len()..].copy_from_slice(seed);
    any_eddsa_type(&PrivatePkcs8KeyDer::from(der.as_slice())).map_err(|e| KeyError::Provider { what: e.to_string() })
}

/// Renames the file `draft` to `path`, which must not exist yet.
fn rename_new(draft: &Path, path: &Path) -> io::Result<()> {
    match std::fs::hard_link(draft, path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            // The file system has no links. Another file may appear between this check and the renaming; nothing
            // better is portable.
            if path.try_exists()? { Err(io::ErrorKind::AlreadyExists.into()) } else { std::fs::rename(draft, path) }
        }
        linked => linked,
    }
}
