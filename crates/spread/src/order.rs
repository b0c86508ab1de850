//! All messages between ranks except the words of products.

use waggle_he::Split;

use crate::SpreadError;

/// Most bytes of a host's name and of a reason. MPI sends messages this short without waiting for the receiver, which
/// may have ended.
const MAX_WORDS: usize = 1024;

/// Messages of rank 0 to another rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// Tells the rank the largest entry of all columns of the next matrix.
    Largest(f32),
    /// Has the rank take part in a product.
    Times {
        /// The number of the matrix.
        number: usize,
        /// Rows of X.
        rows: usize,
    },
    /// Has the rank answer a request, which follows in a broadcast.
    Respond {
        /// The number of the matrix.
        number: usize,
        /// Bytes of the request.
        bytes: usize,
    },
    /// Has the rank end.
    End,
}

impl Order {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let fields = match self {
            Order::Largest(value) => [0, u64::from(value.to_bits()), 0],
            Order::Times { number, rows } => [1, number as u64, rows as u64],
            Order::End => [2, 0, 0],
            Order::Respond { number, bytes } => [3, number as u64, bytes as u64],
        };
        fields.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8], step: &'static str) -> Result<Self, SpreadError> {
        let malformed = SpreadError::Malformed { rank: 0, step, bytes: bytes.len() };
        let (fields, []) = bytes.as_chunks::<8>() else { return Err(malformed) };
        let fields: Vec<u64> = fields.iter().map(|field| u64::from_le_bytes(*field)).collect();
        let size = |field: u64| usize::try_from(field).map_err(|_| malformed.clone());
        match fields[..] {
            [0, bits, 0] => {
                u32::try_from(bits).map(|bits| Order::Largest(f32::from_bits(bits))).map_err(|_| malformed)
            }
            [1, number, rows] => Ok(Order::Times { number: size(number)?, rows: size(rows)? }),
            [2, 0, 0] => Ok(Order::End),
            [3, number, bytes] => Ok(Order::Respond { number: size(number)?, bytes: size(bytes)? }),
            _ => Err(malformed),
        }
    }
}

/// Messages of another rank to rank 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// The rank has opened a model.
    Model {
        /// The digest of the model, which must be the same at all ranks.
        digest: String,
        /// The machine of the rank.
        host: String,
    },
    /// The largest entry among the rank's columns of a matrix.
    Largest(f32),
    /// All matrices of the rank are ready.
    Ready,
    /// The rank's part of the answer to a request.
    Part(Split),
    /// The rank cannot go on.
    Failed {
        /// The machine of the rank.
        host: String,
        /// The reason why it cannot.
        reason: String,
    },
}

impl Word {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let tagged = |tag: u8, rest: &[u8]| [&[tag], rest].concat();
        match self {
            Word::Model { digest, host } => tagged(0, format!("{digest}\n{host}").as_bytes()),
            Word::Largest(value) => tagged(1, &value.to_bits().to_le_bytes()),
            Word::Ready => tagged(2, &[]),
            Word::Part(Split { message, share }) => {
                let share: Vec<u8> = share.iter().flat_map(|word| word.to_le_bytes()).collect();
                [&[4], &(share.len() as u64).to_le_bytes()[..], &share, message].concat()
            }
            Word::Failed { host, reason } => {
                let words = format!("{host}\n{reason}");
                tagged(3, &words.as_bytes()[..words.floor_char_boundary(MAX_WORDS)])
            }
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8], rank: usize, step: &'static str) -> Result<Self, SpreadError> {
        let parse = || {
            let (tag, rest) = bytes.split_first()?;
            match tag {
                0 => {
                    let (digest, host) = std::str::from_utf8(rest).ok()?.split_once('\n')?;
                    Some(Word::Model { digest: digest.into(), host: host.into() })
                }
                1 => Some(Word::Largest(f32::from_bits(u32::from_le_bytes(rest.try_into().ok()?)))),
                2 if rest.is_empty() => Some(Word::Ready),
                3 => {
                    let (host, reason) = std::str::from_utf8(rest).ok()?.split_once('\n')?;
                    Some(Word::Failed { host: host.into(), reason: reason.into() })
                }
                4 => {
                    let (length, rest) = rest.split_first_chunk()?;
                    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
                    let (share, message) = rest.split_at_checked(length)?;
                    let (share, []) = share.as_chunks() else { return None };
                    let share = share.iter().map(|word| u64::from_le_bytes(*word)).collect();
                    Some(Word::Part(Split { message: message.to_vec(), share }))
                }
                _ => None,
            }
        };
        parse().ok_or(SpreadError::Malformed { rank, step, bytes: bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let respond = Order::Respond { number: 7, bytes: 1 << 40 };
        for order in [Order::Largest(0.1), Order::Times { number: 7, rows: 1 << 40 }, respond, Order::End] {
            assert_eq!(Order::from_bytes(&order.to_bytes(), "step").unwrap(), order);
        }
        let model = Word::Model { digest: "a1".into(), host: "node-7".into() };
        let failed = |reason: &str| Word::Failed { host: "node-7".into(), reason: reason.into() };
        let part = Word::Part(Split { message: vec![1, 2, 3], share: vec![u64::MAX, 5] });
        for word in [model, Word::Largest(-0.0), Word::Ready, part, failed("no file;\nnone")] {
            assert_eq!(Word::from_bytes(&word.to_bytes(), 1, "step").unwrap(), word);
        }
        let long = failed(&"ä".repeat(MAX_WORDS));
        assert!(long.to_bytes().len() <= MAX_WORDS + 1);
        assert!(matches!(Word::from_bytes(&long.to_bytes(), 1, "step"), Ok(Word::Failed { .. })));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[][..], &[0; 8], &[4; 24], &[0; 25], &[&[0; 8][..], &[255; 16]].concat()] {
            let refused = Order::from_bytes(bytes, "step");
            assert_eq!(refused, Err(SpreadError::Malformed { rank: 0, step: "step", bytes: bytes.len() }));
        }
        for bytes in [
            &[][..],
            &[0, b'x'],
            &[0, 255, b'\n'],
            &[1, 0, 0],
            &[2, 0],
            &[3, b'x'],
            &[4],
            &[4, 9, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let refused = Word::from_bytes(bytes, 3, "step");
            assert_eq!(refused, Err(SpreadError::Malformed { rank: 3, step: "step", bytes: bytes.len() }));
        }
    }
}
