//! Hostile files, and hostile peers before the first secret, make no decoder panic. See CONTRIBUTING, "Fuzzing".

use std::io::Write;
use std::path::Path;

use waggle_fuzz::link::{Recorded, frame, frames};
use waggle_fuzz::{Corpus, memory};
use waggle_model::{ModelSpec, Next, Sampler};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, NetError, Role};
use waggle_session::party::{ClientOptions, ClientSession, Limits, Peer, Request, Terms, nobody};
use waggle_session::pool::{Pool, PoolError, Purpose};
use waggle_session::{Disclosure, Error};

use crate::hostile::{BOUND, Mode, PROMPT, TOKENS, public, run, shared};

fn dir(name: &str) -> String {
    format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Memory that every step may hold: ledgers, tables of a layer, texts of errors.
const SLACK: usize = 1 << 20;

fn terms(mode: Mode) -> Terms {
    let mut terms = Terms::default();
    terms.protocol.preprocess = mode != Mode::Plain;
    terms
}

/// Messages that both parties of an honest session send up to the request and the verdict.
pub(crate) fn opening(mode: Mode) -> [Vec<Vec<u8>>; 2] {
    let place = tempfile::tempdir().unwrap();
    let session = run(mode, &PolicySpec::default(), None, place.path());
    session.client.and(session.server).expect("an honest session");
    let sent = [Role::Client, Role::Server].map(|role| frames(&session.watch.sent(role)));
    let [client, server] = sent;
    // Client: handshake, request. Server: handshake, shape, scales, tokenizer, verdict.
    [client[..2].to_vec(), server[..5].to_vec()]
}

/// Errors that a peer can cause before the first secret.
fn typed<T>(outcome: Result<T, Error>) -> Option<T> {
    let error = match outcome {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let text = error.to_string();
    // The text becomes one line of a terminal.
    assert!(!text.contains(char::is_control), "{text:?}");
    match error {
        Error::Net(NetError::Io { .. } | NetError::TimedOut { .. } | NetError::Unreachable { .. }) => {
            panic!("{text}")
        }
        Error::Model(waggle_model::Error::Checkpoint(_))
        | Error::Model(waggle_model::Error::File { .. })
        | Error::Model(waggle_model::Error::NotBundled { .. })
        | Error::Model(waggle_model::Error::Sampling { .. }) => {
            panic!("not of a peer: {text}")
        }
        _ => None,
    }
}

/// Runs a client against a peer that sends `bytes`.
fn meet(bytes: Vec<u8>) {
    let (outcome, memory) = memory::peak(|| {
        let channel = Channel::new(Role::Client, Recorded::new(bytes.clone()));
        let opened = ClientSession::open(channel, &Peer::default(), &terms(Mode::Plain), &ClientOptions::default())?;
        let prompt: Vec<u32> = PROMPT.iter().map(|id| id % opened.model().spec.vocabulary() as u32).collect();
        let mut sampler = Sampler::greedy();
        opened.generate(&prompt, TOKENS, Next::Pick(&mut sampler), &mut nobody)
    });
    assert!(typed(outcome).is_none(), "a session needs more than an opening");
    // Shapes are lists of layers, of which there may be thousands.
    assert!(memory < 8 * bytes.len() + (64 << 20), "{memory} bytes");
}

#[test]
fn fuzz_client_opening() {
    waggle_fuzz::target!(Corpus::open(dir("server-opening")), |bytes: &[u8]| meet(bytes.to_vec()));
}

#[test]
fn fuzz_shape() {
    let [_, honest] = opening(Mode::Plain);
    waggle_fuzz::target!(Corpus::open(dir("shape")), |bytes: &[u8]| {
        let weights = serde_json::from_slice::<ModelSpec>(bytes).map_or(0, |spec| spec.weight_specs().len());
        let rest = [frame("handshake/shape", bytes), frame("handshake/scales", &vec![12; weights])];
        let end = [frame("handshake/tokenizer", b""), frame("handshake/verdict", b"")];
        meet([&honest[0][..], &rest.concat(), &end.concat()].concat());
    });
}

/// A server's statement of its public parts has one form, and names no more weights than the layers have matrices.
#[test]
fn fuzz_disclosure() {
    let spec = &public().spec;
    waggle_fuzz::target!(Corpus::open(dir("disclosure")), |bytes: &[u8]| {
        let Ok(stated) = serde_json::from_slice::<Disclosure>(bytes) else { return };
        let again = serde_json::to_vec(&stated).unwrap();
        assert_eq!(serde_json::from_slice::<Disclosure>(&again).unwrap(), stated);
        let (weights, memory) = memory::peak(|| typed(spec.weight_specs_of(&stated.disclosed).map_err(Error::from)));
        assert!(weights.is_none_or(|weights| weights.len() <= 3 * spec.weight_specs().len()));
        assert!(memory < 8 * bytes.len() + SLACK, "{memory} bytes");
    });
}

#[test]
fn fuzz_verdict() {
    let [_, honest] = opening(Mode::Plain);
    waggle_fuzz::target!(Corpus::open(dir("verdict")), |bytes: &[u8]| {
        meet([&honest[..4].concat()[..], &frame("handshake/verdict", bytes)].concat());
    });
}

/// Runs a server against a peer that sends `bytes`.
fn host(bytes: &[u8], mode: Mode) {
    let (outcome, memory) = memory::peak(|| {
        let channel = Channel::new(Role::Server, Recorded::new(bytes));
        shared().serve(channel, &Peer::default(), &terms(mode), &Limits::default(), &mut nobody)
    });
    assert!(typed(outcome).is_none(), "a session needs more than an opening");
    assert!(memory < 8 * bytes.len() + (64 << 20), "{memory} bytes");
}

#[test]
fn fuzz_server_opening() {
    // Each request is planned once, as by every server.
    for mode in [Mode::Plain, Mode::Prepared] {
        waggle_fuzz::target!(Corpus::open(dir("client-opening")), |bytes: &[u8]| host(bytes, mode));
    }
}

#[test]
fn fuzz_request() {
    let [honest, _] = opening(Mode::Plain);
    waggle_fuzz::target!(Corpus::open(dir("request")), |bytes: &[u8]| {
        host(&[&honest[0][..], &frame("handshake/request", bytes)].concat(), Mode::Plain);
    });
}

/// Writes the file of a pool with correct checksums: `header`, then `words` zeros.
fn write_pool(path: &Path, header: &[u8], words: usize) {
    let mut bytes = [&b"WGLPOOL\0\x01\0\0\0"[..], &(header.len() as u32).to_le_bytes(), header].concat();
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    bytes.resize(bytes.len() + 8 * words, 0);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    write_private(path, &bytes);
}

/// Writes a file that only its owner may read, as a pool requires.
fn write_private(path: &Path, bytes: &[u8]) {
    let mut file = waggle_files::private().create(true).truncate(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// The purpose of pools of the tiny sessions.
fn purpose() -> Purpose {
    Purpose::new(public(), &terms(Mode::Spend), BOUND, 1, None, None, &mut nobody).expect("a purpose")
}

#[test]
fn fuzz_pool_header() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.pool");
    let (purpose, request) = (purpose(), Request::from(BOUND));
    waggle_fuzz::target!(Corpus::open(dir("pool-header")), |bytes: &[u8]| {
        // The file has as many words as the header says, if it says few.
        let words = serde_json::from_slice::<serde_json::Value>(bytes).ok().and_then(|json| json["words"].as_u64());
        write_pool(&path, bytes, words.filter(|n| *n < 1000).unwrap_or(7) as usize);
        for role in [Role::Client, Role::Server] {
            let (outcome, memory) = memory::peak(|| Pool::open(&path, role));
            assert!(memory < 64 * bytes.len() + SLACK, "{memory} bytes");
            let Some(pool) = pool_error(outcome) else { continue };
            if pool_error(pool.check(&purpose, &request)).is_some() {
                pool_error(pool.claim(&purpose));
            }
        }
    });
}

#[test]
fn fuzz_pool_file() {
    let place = tempfile::tempdir().unwrap();
    let filled = run(Mode::Fill, &PolicySpec::default(), None, place.path());
    filled.client.and(filled.server).expect("a pool");
    let path = place.path().join("client.pool");
    let honest = std::fs::read(&path).unwrap();
    let (purpose, request) = (purpose(), Request::from(BOUND));
    // A chunk of 256 KiB for every kind of correlation, of which there are some twenty.
    let most = 4 * honest.len() + 8 * SLACK;
    let corpus = Corpus::open(dir("pool-file")).and([("honest".to_owned(), honest.clone())]);
    waggle_fuzz::target!(corpus, |bytes: &[u8]| {
        write_private(&path, bytes);
        let (outcome, memory) = memory::peak(|| {
            let pool = Pool::open(&path, Role::Client)?;
            pool.check(&purpose, &request)?;
            pool.claim(&purpose)
        });
        assert!(memory < most, "{memory} bytes");
        assert_eq!(pool_error(outcome).is_some(), bytes == honest, "the checksum finds every change");
    });
}

/// Errors of a file that anybody may have written.
fn pool_error<T>(outcome: Result<T, PoolError>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(PoolError::Io(error)) => panic!("{error}"),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Writes the corpora of this file: `cargo test -p waggle-session --test all -- --ignored write`.
#[test]
#[ignore = "writes files of the repository"]
fn write_corpora() {
    let write = |name: &str, entries: Vec<(&str, Vec<u8>)>| {
        Corpus::write(dir(name), entries.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)));
    };
    let text = |text: &str| text.as_bytes().to_vec();
    let llama3 = r#"{"model_type":"llama","hidden_size":8,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":9,
        "num_hidden_layers":1,"intermediate_size":6,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
        "high_freq_factor":4.0,"original_max_position_embeddings":8192},"eos_token_id":[1,2]}"#;
    let [client, server] = opening(Mode::Plain);
    let [prepared, _] = opening(Mode::Prepared);
    write("client-opening", vec![("plain", client.concat()), ("prepared", prepared.concat())]);
    write("server-opening", vec![("plain", server.concat())]);
    let shape = server[1][8..].to_vec();
    let replaced = |from: &str, to: &str| {
        let text = String::from_utf8(shape.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        text.replace(from, to).into_bytes()
    };
    write(
        "shape",
        vec![
            ("tiny", shape.clone()),
            ("llama3", serde_json::to_vec(&ModelSpec::from_config_json(llama3.as_bytes()).unwrap()).unwrap()),
            ("many-layers", replaced("\"n_layer\":1", "\"n_layer\":4096")),
            ("wide", replaced("\"n_embd\":8", "\"n_embd\":65536")),
            ("one-position", replaced("\"n_positions\":32", "\"n_positions\":1")),
            ("control-characters", text("{\"model_type\":\"\u{1b}[2J\"}")),
        ],
    );
    let json =
        |public: &str| text(&format!("{{{public},\"digests\":{{\"embedding\":\"\",\"head\":\"0\",\"layers\":[]}}}}"));
    write(
        "disclosure",
        vec![
            ("all", json(r#""parts":"all","ranks":{"attn.c_attn":4}"#)),
            ("parts", json(r#""parts":"embedding,head,layers=0-0","ranks":{}"#)),
            ("far", json(r#""parts":"layers=0-18446744073709551615","ranks":{"mlp.c_fc":18446744073709551615}"#)),
        ],
    );
    write(
        "verdict",
        vec![
            ("granted", Vec::new()),
            ("refused", text("8 tokens of a prompt are more than the 4 that this server allows")),
            ("control-characters", text("no\u{1b}[2J\u{7}way")),
            ("not-utf8", vec![0xff; 20]),
            ("longest", vec![b'x'; 512]),
        ],
    );
    // Behind the lengths: three flags, whether there is a draft, the kind of the session, and what belongs to the
    // kind.
    let request =
        |prompt: u32, tokens: u32, rest: &[u8]| [&prompt.to_le_bytes()[..], &tokens.to_le_bytes(), rest].concat();
    let spend = |count: &[u8], ids: usize| request(7, 2, &[&[0, 0, 0, 0, 2], count, &vec![7; 16 * ids]].concat());
    write(
        "request",
        vec![
            ("generate", request(7, 2, &[0, 0, 0, 0, 0])),
            ("stop", request(7, 2, &[1, 0, 0, 0, 0])),
            ("draft", request(7, 2, &[0, 0, 0, 1, 4, 0xdc, 0x0b, 0, 0])),
            ("draft-of-nothing", request(7, 2, &[0, 0, 0, 1, 0, 0xdc, 0x0b, 0, 0])),
            ("fill", request(7, 2, &[0, 0, 0, 0, 1, 1, 1, 0])),
            ("fill-part", request(7, 2, &[0, 0, 0, 0, 1, 3, 4, 0])),
            ("fill-part-beyond", request(7, 2, &[0, 0, 0, 0, 1, 5, 4, 0])),
            ("fill-part-of-many", request(7, 2, &[0, 0, 0, 0, 1, 1, 0x81, 2, 0])),
            ("fill-having", request(7, 2, &[&[0, 0, 0, 0, 1, 1, 1, 1, 2][..], &[9; 32]].concat())),
            ("spend", spend(&[1], 1)),
            ("spend-parts", spend(&[3], 3)),
            ("spend-most-parts", spend(&[0x80, 2], 256)),
            ("spend-too-many-parts", spend(&[0x81, 2], 257)),
            ("spend-endless", spend(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], 1)),
            ("spend-nothing", spend(&[0], 0)),
            ("nothing", request(0, 0, &[0, 0, 0, 0, 0])),
            ("too-much", request(u32::MAX, u32::MAX, &[0, 0, 0, 0, 0])),
            ("chat", request(7, 2, &[1, 0, 0, 0, 3])),
            ("chat-padded", request(7, 2, &[0, 0, 1, 0, 3])),
            ("other-errand", request(7, 2, &[0, 0, 0, 0, 4])),
            ("longer-integer", spend(&[0x81, 0], 1)),
        ],
    );
    let place = tempfile::tempdir().unwrap();
    let filled = run(Mode::Fill, &PolicySpec::default(), None, place.path());
    filled.client.and(filled.server).expect("a pool");
    let file = std::fs::read(place.path().join("client.pool")).unwrap();
    let len = u32::from_le_bytes([file[12], file[13], file[14], file[15]]) as usize;
    let header = String::from_utf8(file[16..16 + len].to_vec()).unwrap();
    let words = header.rfind("\"words\":").expect("the number of words");
    let with_words = |n: &str| format!("{}\"words\":{n}}}", &header[..words]).into_bytes();
    write(
        "pool-header",
        vec![
            ("client", header.clone().into_bytes()),
            ("few-words", with_words("7")),
            ("most-words", with_words("18446744073709551615")),
            ("server", header.replace("\"client\"", "\"server\"").into_bytes()),
            ("empty", text("{}")),
            ("unknown-field", header.replacen('{', "{\"more\":1,", 1).into_bytes()),
            ("part", header.replacen("\"facts\":{", "\"facts\":{\"part\":\"2/4\",", 1).into_bytes()),
            ("no-part", header.replacen("\"facts\":{", "\"facts\":{\"part\":\"5/4\",", 1).into_bytes()),
        ],
    );
    let mut format = file[..16].to_vec();
    format[8] = 2;
    let mut long = file[..16].to_vec();
    long[12..].fill(0xff);
    write(
        "pool-file",
        vec![("empty", Vec::new()), ("magic", file[..8].to_vec()), ("format", format), ("header-too-long", long)],
    );
}
