//! Hostile bytes for packed words. README, "Fuzzing", says how to run this for long.

use waggle_fuzz::{Corpus, memory};

use waggle_bits::{pack, packed_bytes, unpack};

/// Widths of the rows of each target. Two bytes of the input say which target it is, and how many words there are.
const WIDTHS: [&[u32]; 6] = [&[1], &[13], &[64], &[31, 1], &[63, 64, 2], &[7, 11, 18, 28]];

fn dir() -> String {
    format!("{}/src/tests/corpus/packed", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn fuzz_packed() {
    waggle_fuzz::target!(Corpus::open(dir()), |input: &[u8]| {
        let Some((&[which, rows], message)) = input.split_first_chunk::<2>() else { return };
        let widths = WIDTHS[usize::from(which) % WIDTHS.len()];
        let count = usize::from(rows) * widths.len();
        let (outcome, memory) = memory::peak(|| unpack("packed", message, count, widths));
        assert!(memory < 2 * message.len().min(8 * count) + 8 * count + 1000, "{memory} bytes");
        match outcome {
            Ok(words) => {
                assert_eq!((words.len(), message.len()), (count, packed_bytes(count, widths)));
                assert!(words.iter().zip(widths.iter().cycle()).all(|(word, w)| *w == 64 || word >> w == 0));
                assert_eq!(pack(&words, widths), message, "one list, two messages");
            }
            Err(error) => {
                let error = crate::Error::from(error);
                assert!(error.to_string().contains("`packed`"), "{error}");
            }
        }
    });
}

/// Writes the corpus. Run by `cargo test -p waggle-protocols --lib write_corpus -- --ignored`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpus() {
    let honest = (0..WIDTHS.len()).map(|which| {
        let words: Vec<u64> =
            (0..5 * WIDTHS[which].len() as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        (format!("widths-{which}"), [&[which as u8, 5], &pack(&words, WIDTHS[which])[..]].concat())
    });
    let named = [("none", vec![0, 0]), ("padding", vec![1, 1, 0xff, 0xff]), ("short", vec![2, 255, 1])];
    Corpus::write(dir(), honest.chain(named.map(|(name, bytes)| (name.to_owned(), bytes))));
}
