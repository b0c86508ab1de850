//! What a party receives tells nothing of the other's secrets: its messages, read off the wire.

use std::collections::HashSet;

use crate::hostile::Proxy;
use crate::support::{Server, succeed};

/// The prompt of these tests, distinct from anything that the parties say in the open.
const PROMPT: &str = "summer's day\n";

/// The text of a session of two tokens after [`PROMPT`], and all that went to the server and to the client. The link
/// is given, since a measurement sends bytes that are the same every time, and may not find the same rate.
fn session() -> (String, [Vec<u8>; 2]) {
    let mut server = Server::start("--model shakespeare-gpt2");
    let proxy = Proxy::start(server.socket(), None);
    server.address = proxy.address.to_string();
    let text = succeed(server.client("--plan-for lan --tokens 2 --prompt").arg(PROMPT));
    (text, proxy.passed(|passed| passed.streams.clone()))
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// `numbers` as the usual encodings of integers.
fn encodings(numbers: &[i64]) -> Vec<Vec<u8>> {
    vec![
        numbers.iter().map(|n| *n as u8).collect(),
        numbers.iter().flat_map(|n| (*n as u16).to_le_bytes()).collect(),
        numbers.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect(),
        numbers.iter().flat_map(|n| (*n as u32).to_be_bytes()).collect(),
        numbers.iter().flat_map(|n| (*n as u64).to_le_bytes()).collect(),
        numbers.iter().flat_map(|n| (*n as f32).to_le_bytes()).collect(),
    ]
}

/// Longest run of one byte.
fn longest_run(bytes: &[u8]) -> usize {
    bytes.chunk_by(|a, b| a == b).map(<[u8]>::len).max().unwrap_or(0)
}

/// Where the messages in the open end: base OTs follow. The handshake holds the model's shape, and the description
/// its tokenizer, so only what follows can be expected to look random.
const OPENING: usize = 16 << 10;

#[test]
fn the_server_never_sees_the_prompt() {
    let files = waggle_model::bundled("shakespeare-gpt2").unwrap();
    let tokenizer = waggle_tokenizer::Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
    let ids = tokenizer.encode(PROMPT).unwrap();
    let (text, [to_server, _]) = session();
    assert!(to_server.len() > 1 << 20);
    assert!(!contains(&to_server, b"summer"));
    assert!(text.len() == 3, "{text:?}");
    // Any eight tokens in a row.
    for part in ids.windows(8) {
        let part: Vec<i64> = part.iter().map(|id| i64::from(*id)).collect();
        for needle in encodings(&part) {
            assert!(!contains(&to_server, &needle), "{part:?} in the clear");
        }
    }
    // Unit vectors are long runs of zeros; shares and ciphertexts have none.
    assert!(longest_run(&to_server[OPENING..]) < 16, "a run of {}", longest_run(&to_server[OPENING..]));
    assert_looks_random(&to_server[OPENING..]);
}

/// Every byte value is about as frequent as any other. Bit-packed residues are uniform below q rather than below a
/// power of two, and frames have headers, hence the tolerance.
fn assert_looks_random(bytes: &[u8]) {
    let mut counts = [0f64; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1.0);
    let mean = bytes.len() as f64 / 256.0;
    for (byte, count) in counts.iter().enumerate() {
        assert!(
            (count / mean - 1.0).abs() < 0.1,
            "byte {byte} occurs {:.3} times as often as the mean",
            count / mean
        );
    }
}

#[test]
fn the_client_never_sees_a_weight() {
    let files = waggle_model::bundled("shakespeare-gpt2").unwrap();
    let matrices: Vec<String> =
        files.checkpoint.tensors().filter(|(_, shape)| shape.len() == 2).map(|(name, _)| name.to_owned()).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/model/assets/shakespeare-gpt2/model.safetensors");
    let stored = std::fs::read(file).unwrap();
    let header = 8 + u64::from_le_bytes(stored[..8].try_into().unwrap()) as usize;
    // Sixteen bytes in a row are more than chance: as stored, as f32, as fixed point of every scale in use.
    let mut patterns: HashSet<[u8; 16]> = HashSet::new();
    patterns.extend(stored[header..].chunks_exact(16).map(|chunk| <[u8; 16]>::try_from(chunk).unwrap()));
    for name in &matrices {
        let matrix = files.checkpoint.matrix(name).unwrap();
        for four in matrix.as_slice().unwrap().chunks_exact(4) {
            let mut add =
                |bytes: Vec<u8>| patterns.extend(bytes.chunks_exact(16).map(|c| <[u8; 16]>::try_from(c).unwrap()));
            add(four.iter().flat_map(|w| w.to_le_bytes()).collect());
            for frac in [12, 13, 14, 15, 16] {
                let fixed = four.iter().map(|w| (w * (1 << frac) as f32).round() as i64);
                add(fixed.clone().flat_map(|n| (n as i32).to_le_bytes()).collect());
                add(fixed.flat_map(|n| n.to_le_bytes()).collect());
            }
        }
    }
    // Rows of equal entries (zeros, ones) are no secret and occur anywhere.
    patterns.retain(|pattern| pattern.iter().collect::<HashSet<_>>().len() > 6);
    assert!(patterns.len() > 100_000, "{}", patterns.len());
    assert!(stored.windows(16).any(|window| patterns.contains(window)), "the search works");

    let (_, [_, to_client]) = session();
    assert!(to_client.len() > 1 << 20);
    assert!(!to_client.windows(16).any(|window| patterns.contains(window)), "weights in the clear");
    assert_looks_random(&to_client[OPENING..]);
}

#[test]
fn the_same_session_twice_has_nothing_in_common() {
    let (one, two) = (session(), session());
    assert_eq!(one.0, two.0, "the text is the same");
    for (a, b) in one.1.into_iter().zip(two.1) {
        assert_eq!(a.len(), b.len());
        let seen: HashSet<&[u8]> = a[OPENING..].chunks_exact(24).collect();
        // Frame headers repeat, ciphertexts and corrections do not.
        let repeated = b[OPENING..].windows(24).filter(|window| seen.contains(window)).count();
        assert_eq!(repeated, 0);
    }
}
