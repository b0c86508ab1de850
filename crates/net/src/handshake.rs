//! The opening of a session: both parties say what they are about to run, and go on only if they agree.
//!
//! Each party sends a list of named values and reads the peer's list. The message (inside a frame, at most
//! [`MAX_BYTES`] bytes, integers little endian):
//!
//! | part | bytes |
//! |---|---|
//! | magic `WAGGLE` | 6 |
//! | format version | 2 |
//! | number of fields | 2 |
//! | per field: whether it must be equal (0 or 1) | 1 |
//! | per field: length of the name, name (UTF-8) | 2 + length |
//! | per field: length of the value, value (UTF-8) | 2 + length |

use std::fmt::Display;

use crate::{Channel, Difference, NetError, Role};

/// Most fields that a party may state.
pub const MAX_FIELDS: usize = 128;
/// Most bytes of a field's name.
pub const MAX_NAME_BYTES: usize = 64;
/// Most bytes of a field's value: the shape of a model has the names of its classes, perhaps a thousand.
pub const MAX_VALUE_BYTES: usize = u16::MAX as usize;

const MAGIC: &[u8; 6] = b"WAGGLE";
/// Version of this message's format. The protocol of the session has its own version among the fields.
const FORMAT: u16 = 1;
/// Most bytes of the whole message.
pub const MAX_BYTES: usize = 1 << 17;
const STEP: &str = "handshake";

/// One named value of a party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, unique in its list.
    pub name: String,
    /// Value as text.
    pub value: String,
    /// Whether the parties must state the same value.
    pub must_equal: bool,
}

/// The run that a party is about to begin, as a list of named values.
///
/// Names and values are text without control characters, at most [`MAX_NAME_BYTES`] and [`MAX_VALUE_BYTES`] long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    fields: Vec<Field>,
}

impl Handshake {
    /// An empty list.
    pub fn new() -> Self {
        Handshake::default()
    }

    /// Adds a value that the peer must state as well, for example the version of the protocol.
    pub fn agree(mut self, name: &str, value: impl Display) -> Self {
        self.fields.push(Field { name: name.into(), value: value.to_string(), must_equal: true });
        self
    }

    /// Adds a value for the peer to know, for example the length of the prompt.
    pub fn tell(mut self, name: &str, value: impl Display) -> Self {
        self.fields.push(Field { name: name.into(), value: value.to_string(), must_equal: false });
        self
    }

    /// This party's list.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Exchanges the lists, booked under the scope `handshake`, and returns the peer's.
    ///
    /// A field must be equal if either party says so. Such a field also differs if only one party states it.
    ///
    /// Errors: [`NetError::Disagreement`] with every differing field, on both sides alike and as soon as the peer's
    /// list is there; [`NetError::NotWaggle`] if the peer is another program; [`NetError::Malformed`] if the list of
    /// either party breaks the limits; and the errors of [`Channel::exchange`].
    pub fn run(&self, channel: &mut Channel) -> Result<Vec<Field>, NetError> {
        let depth = channel.ledger().depth();
        channel.ledger_mut().enter(STEP);
        let outcome = self.exchange(channel);
        channel.ledger_mut().leave_to(depth);
        outcome
    }

    fn exchange(&self, channel: &mut Channel) -> Result<Vec<Field>, NetError> {
        let role = channel.role();
        let bytes = channel.exchange_first(STEP, &encode(&self.fields)?, MAX_BYTES)?;
        let theirs = match decode(&bytes)? {
            Message::Fields(fields) => fields,
            Message::OtherFormat(format) => {
                let (client, server) = by_role(role, FORMAT, format);
                let [client, server] = [client, server].map(|format| Some(format.to_string()));
                let difference = Difference { name: "handshake format".into(), client, server };
                return Err(NetError::Disagreement { differences: vec![difference] });
            }
        };
        let (client, server) = by_role(role, self.fields.as_slice(), theirs.as_slice());
        let differences = differences(client, server);
        if differences.is_empty() { Ok(theirs) } else { Err(NetError::Disagreement { differences }) }
    }
}

/// The two values as (the client's, the server's).
fn by_role<T>(role: Role, ours: T, theirs: T) -> (T, T) {
    match role {
        Role::Client => (ours, theirs),
        Role::Server => (theirs, ours),
    }
}

/// The fields that must be equal and are not: the client's in order, then those that only the server states.
fn differences(client: &[Field], server: &[Field]) -> Vec<Difference> {
    let find = |list: &[Field], name: &str| list.iter().find(|field| field.name == name).cloned();
    let only_server = server.iter().filter(|field| find(client, &field.name).is_none());
    let names = client.iter().chain(only_server).map(|field| field.name.as_str());
    names
        .filter_map(|name| {
            let (c, s) = (find(client, name), find(server, name));
            let binding = [&c, &s].into_iter().flatten().any(|field| field.must_equal);
            let [client, server] = [c, s].map(|field| field.map(|field| field.value));
            (binding && client != server).then(|| Difference { name: name.into(), client, server })
        })
        .collect()
}

fn malformed(what: impl Into<String>) -> NetError {
    NetError::Malformed { step: STEP, what: what.into() }
}

/// Checks the rules for a list, this party's or the peer's.
fn check(fields: &[Field]) -> Result<(), NetError> {
    if fields.len() > MAX_FIELDS {
        return Err(malformed(format!("{} fields, at most {MAX_FIELDS} are allowed", fields.len())));
    }
    for (i, Field { name, value, must_equal: _ }) in fields.iter().enumerate() {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || value.len() > MAX_VALUE_BYTES {
            let (name, value) = (name.len(), value.len());
            return Err(malformed(format!(
                "field {i} has a name of {name} bytes and a value of {value}; 1 to {MAX_NAME_BYTES} and up to \
                 {MAX_VALUE_BYTES} are allowed"
            )));
        }
        // The peer's text ends up on a terminal and in logs.
        if name.chars().chain(value.chars()).any(char::is_control) {
            return Err(malformed(format!("field {i} contains control characters")));
        }
        if fields[..i].iter().any(|field| field.name == *name) {
            return Err(malformed(format!("field `{name}` is stated twice")));
        }
    }
    Ok(())
}

fn encode(fields: &[Field]) -> Result<Vec<u8>, NetError> {
    check(fields)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    // The casts are exact: `check` holds every length below 2^16.
    bytes.extend((fields.len() as u16).to_le_bytes());
    for Field { name, value, must_equal } in fields {
        bytes.push(u8::from(*must_equal));
        for text in [name, value] {
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    if bytes.len() > MAX_BYTES {
        return Err(malformed(format!("a list of {} bytes, at most {MAX_BYTES} are allowed", bytes.len())));
    }
    Ok(bytes)
}

enum Message {
    Fields(Vec<Field>),
    /// The message has another version of the format, this one. Nothing after the version can be read.
    OtherFormat(u16),
}

fn decode(bytes: &[u8]) -> Result<Message, NetError> {
    let Some(body) = bytes.strip_prefix(MAGIC) else {
        let first = &bytes[..bytes.len().min(MAGIC.len())];
        return Err(NetError::NotWaggle { first: first.escape_ascii().to_string() });
    };
    let mut reader = Reader(body);
    let format = reader.integer()?;
    if format != FORMAT {
        return Ok(Message::OtherFormat(format));
    }
    let count = usize::from(reader.integer()?);
    if count > MAX_FIELDS {
        return Err(malformed(format!("{count} fields, at most {MAX_FIELDS} are allowed")));
    }
    let mut fields = Vec::with_capacity(count);
    for _ in 0..count {
        let must_equal = match reader.take(1)? {
            [0] => false,
            [1] => true,
            other => return Err(malformed(format!("flag {other:?} is neither 0 nor 1"))),
        };
        let name = reader.text(MAX_NAME_BYTES)?;
        let value = reader.text(MAX_VALUE_BYTES)?;
        fields.push(Field { name, value, must_equal });
    }
    if !reader.0.is_empty() {
        return Err(malformed(format!("{} bytes follow the last field", reader.0.len())));
    }
    check(&fields)?;
    Ok(Message::Fields(fields))
}

/// The bytes not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], NetError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| malformed("the list ends inside a field"))?;
        self.0 = rest;
        Ok(head)
    }

    fn integer(&mut self) -> Result<u16, NetError> {
        Ok(self.take(2)?.iter().rev().fold(0, |n, &byte| n << 8 | u16::from(byte)))
    }

    fn text(&mut self, max: usize) -> Result<String, NetError> {
        let len = usize::from(self.integer()?);
        if len > max {
            return Err(malformed(format!("a text of {len} bytes, at most {max} are allowed")));
        }
        let text = std::str::from_utf8(self.take(len)?).map_err(|e| malformed(format!("not UTF-8: {e}")))?;
        Ok(text.into())
    }
}
