//! Messages that are structures, in the form of `postcard`: fields in order, and only one encoding of each value.

use std::ops::RangeInclusive;

use serde::{Serialize, de::DeserializeOwned};
use waggle_net::{Channel, NetError};

/// Sends `message`. Zeros extend a message shorter than `least` bytes, so that its length does not tell its value.
pub(super) fn send(
    channel: &mut Channel,
    step: &'static str,
    message: &impl Serialize,
    least: usize,
) -> Result<(), NetError> {
    channel.send(step, &encode(step, message, least)?)
}

/// Receives a message, whose number of bytes must lie in `lengths`.
///
/// # Errors
/// [`NetError::Malformed`] for bytes that [`send`] writes for no value of `T`.
pub(super) fn receive<T: Serialize + DeserializeOwned>(
    channel: &mut Channel,
    step: &'static str,
    lengths: RangeInclusive<usize>,
) -> Result<T, NetError> {
    decode(step, &channel.recv_up_to(step, *lengths.end())?, *lengths.start())
}

pub(super) fn encode(step: &'static str, message: &impl Serialize, least: usize) -> Result<Vec<u8>, NetError> {
    let mut bytes = postcard::to_extend(message, Vec::new()).map_err(|e| malformed(step, e.to_string()))?;
    bytes.resize(bytes.len().max(least), 0);
    Ok(bytes)
}

pub(super) fn decode<T: Serialize + DeserializeOwned>(
    step: &'static str,
    bytes: &[u8],
    least: usize,
) -> Result<T, NetError> {
    let message = postcard::from_bytes(bytes).map_err(|e| malformed(step, e.to_string()))?;
    // `postcard` itself accepts an integer with more bytes than it needs, and ignores what follows the last field.
    if encode(step, &message, least)? != bytes {
        return Err(malformed(step, "not the form of its value, or followed by more"));
    }
    Ok(message)
}

pub(super) fn malformed(step: &'static str, what: impl Into<String>) -> NetError {
    NetError::Malformed { step, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_form() {
        let value = (300u32, true, vec![[7u8; 2]; 3]);
        let bytes = encode("step", &value, 0).unwrap();
        let read = |bytes: &[u8]| decode::<(u32, bool, Vec<[u8; 2]>)>("step", bytes, 0);
        assert_eq!(read(&bytes).unwrap(), value);
        let longer_integer = [&[0x80 | bytes[0], 0x80 | bytes[1], 0][..], &bytes[2..]].concat();
        let mut no_bool = bytes.clone();
        no_bool[2] = 2;
        let mut many = bytes[..4].to_vec();
        many.splice(3.., [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        let shorter = bytes[..bytes.len() - 1].to_vec();
        for bad in [longer_integer, no_bool, many, shorter, [&bytes[..], &[0]].concat(), Vec::new()] {
            assert!(matches!(read(&bad), Err(NetError::Malformed { step: "step", .. })), "{bad:?}");
        }
    }
    #[test]
    fn padded_values_are_equally_long() {
        for value in [0u32, 300, u32::MAX] {
            let mut bytes = encode("step", &value, 8).unwrap();
            assert_eq!((bytes.len(), decode::<u32>("step", &bytes, 8).unwrap()), (8, value));
            assert!(decode::<u32>("step", &bytes[..7], 8).is_err());
            assert!(decode::<u32>("step", &[&bytes[..], &[0]].concat(), 8).is_err());
            bytes[7] = 1;
            assert!(decode::<u32>("step", &bytes, 8).is_err());
        }
    }
}
