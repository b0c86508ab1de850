//! Variants of an input.

use bolero::TypeGenerator;

use crate::Corpus;

/// The offset at which an edit happens. Headers lie at the beginning and padding at the end, so offsets from either
/// end are drawn as often as offsets anywhere.
#[derive(Clone, Debug, TypeGenerator)]
pub enum Place {
    /// This many bytes from the start.
    Start(u8),
    /// Anywhere: this number modulo the number of offsets.
    Within(u32),
    /// This many bytes before the end.
    End(u8),
}

/// A change of a message.
#[derive(Clone, Debug, TypeGenerator)]
pub enum Edit {
    /// Inverts a bit of the byte at a place.
    Flip(Place, u8),
    /// Replaces the byte at a place.
    Set(Place, u8),
    /// Replaces the little-endian number of 2, 4 or 8 bytes at a place by one of `NUMBERS` plus a small number.
    Number(Place, u8, u8, i8),
    /// Replaces the decimal digits from a place on by one of `NUMBERS`.
    Digits(Place, u8),
    /// Ends the message at a place.
    Cut(Place),
    /// Removes this many bytes from a place on.
    Remove(Place, u8),
    /// Inserts these bytes at a place.
    Insert(Place, Vec<u8>),
    /// Repeats this many bytes from a place on.
    Repeat(Place, u8),
    /// Overwrites this many bytes (up to 64 KiB) from a place on with one byte.
    Fill(Place, u16, u8),
    /// Replaces everything from a place on by what another input of the corpus has from that place on.
    Splice(Place, u8),
    /// Replaces the whole input by these bytes.
    Noise(Vec<u8>),
}

/// Numbers at which decoders tend to err.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
    0x5555_5555_5555_5555,
];

/// An input of a corpus and what happens to it. Without edits it is the input itself.
#[derive(Clone, Debug, TypeGenerator)]
pub struct Recipe {
    seed: u16,
    first: Edit,
    more: Vec<Edit>,
}

impl Place {
    /// The offset of this place in `len` bytes, from 0 to `len`.
    fn of(&self, len: usize) -> usize {
        match *self {
            Place::Start(n) => usize::from(n).min(len),
            Place::Within(n) => n as usize % (len + 1),
            Place::End(n) => len.saturating_sub(usize::from(n)),
        }
    }
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>, corpus: &Corpus) {
        let len = bytes.len();
        match self {
            Edit::Flip(place, bit) => {
                if let Some(byte) = bytes.get_mut(place.of(len)) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Edit::Set(place, value) => {
                if let Some(byte) = bytes.get_mut(place.of(len)) {
                    *byte = *value;
                }
            }
            Edit::Number(place, width, which, offset) => {
                let number = NUMBERS[usize::from(*which) % NUMBERS.len()].wrapping_add_signed(i64::from(*offset % 4));
                let width = [2, 4, 8][usize::from(*width) % 3];
                let at = place.of(len);
                bytes[at..].iter_mut().zip(&number.to_le_bytes()[..width]).for_each(|(to, from)| *to = *from);
            }
            Edit::Digits(place, which) => {
                let at = place.of(len);
                let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|n| at + n) else { return };
                let end = bytes[start..].iter().position(|b| !b.is_ascii_digit()).map_or(len, |n| start + n);
                let number = NUMBERS[usize::from(*which) % NUMBERS.len()].to_string();
                bytes.splice(start..end, number.into_bytes());
            }
            Edit::Cut(place) => bytes.truncate(place.of(len)),
            Edit::Remove(place, count) => {
                let at = place.of(len);
                bytes.drain(at..(at + usize::from(*count)).min(len));
            }
            Edit::Insert(place, more) => {
                let at = place.of(len);
                bytes.splice(at..at, more.iter().copied());
            }
            Edit::Repeat(place, count) => {
                let at = place.of(len);
                let run = bytes[at..(at + usize::from(*count)).min(len)].to_vec();
                bytes.splice(at..at, run);
            }
            Edit::Fill(place, count, value) => {
                let at = place.of(len);
                let end = (at + usize::from(*count)).min(len);
                bytes[at..end].fill(*value);
            }
            Edit::Splice(place, other) => {
                let other = corpus.pick(usize::from(*other));
                bytes.truncate(place.of(len));
                bytes.extend_from_slice(&other[place.of(other.len())..]);
            }
            Edit::Noise(noise) => noise.clone_into(bytes),
        }
    }
}

impl Recipe {
    /// The edited bytes of the input.
    pub fn apply(&self, corpus: &Corpus) -> Vec<u8> {
        let mut bytes = corpus.pick(usize::from(self.seed)).to_vec();
        self.first.apply(&mut bytes, corpus);
        // Few edits leave most of a message as it was, so that later parts of it are reached.
        self.more.iter().take(usize::from(self.seed % 4)).for_each(|edit| edit.apply(&mut bytes, corpus));
        bytes
    }
}
