//! The name of a pool.

use std::fmt;

use rand::Rng;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Names the two parties' files that belong together. As text it has 32 hexadecimal digits in lower case; binary
/// formats have its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PoolId(pub [u8; 16]);

impl PoolId {
    /// A fresh id.
    pub fn random() -> Self {
        let mut id = [0; 16];
        rand::make_rng::<rand::rngs::StdRng>().fill_bytes(&mut id);
        PoolId(id)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl Serialize for PoolId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(self) } else { self.0.serialize(to) }
    }
}

impl<'de> Deserialize<'de> for PoolId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            String::deserialize(from)?.try_into().map_err(D::Error::custom)
        } else {
            Deserialize::deserialize(from).map(PoolId)
        }
    }
}

impl TryFrom<String> for PoolId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let digits: Option<Vec<u8>> = text.bytes().map(digit).collect();
        match digits.as_deref().map(<&[u8; 32]>::try_from) {
            Some(Ok(digits)) => Ok(PoolId(std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]))),
            _ => Err("an id is 32 hexadecimal digits in lower case".into()),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
