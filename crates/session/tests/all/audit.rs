//! Whole sessions under the audit: the words opened under masks are uniform, those that a place opens next differ
//! from those it opened before by uniform words, and no mask serves twice. The audit notices a broken copy of each
//! session.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use waggle_model::{Drafts, Guess, Lengths, ModelFiles, Next, Sampler};
use waggle_mpcache::PolicySpec;
use waggle_net::Role;
use waggle_protocols::audit::{Audit, Broken, LIMIT, watch};
use waggle_protocols::{HelperDeals, Part};
use waggle_session::party::{
    ClientOptions, ClientSession, Limits, ModelServer, Outcome, Pairing, Prompt, Terms, in_one_process, nobody,
};
use waggle_session::pool::{Found, PoolSet, Pools, find, part_path};
use waggle_session::{Error, PublicPrefix};

use crate::{helper, pools, public};

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 23, "max_position_embeddings": 96}"#;

const PROMPT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
const TOKENS: usize = 14;

/// Sessions of two phases take different forms of the protocols over a fast and over a slow link.
const LINKS: [&str; 2] = ["lan", "wan"];

fn server() -> ModelServer {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), LLAMA);
    ModelServer::builder().load(ModelFiles::open(dir.path()).unwrap()).unwrap()
}

fn session(
    server: &ModelServer,
    link: &str,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> Result<(), Error> {
    session_of(server, link, &ClientOptions::default(), client)
}

/// [`session`] of a client with these options.
fn session_of(
    server: &ModelServer,
    link: &str,
    options: &ClientOptions<'_>,
    client: impl FnOnce(ClientSession) -> Result<Outcome, Error>,
) -> Result<(), Error> {
    let mut terms = Terms::default();
    terms.protocol.link = link.parse().unwrap();
    terms.protocol.preprocess = true;
    in_one_process(server, &terms, &Limits::default(), options, Duration::from_secs(60), client).map(|_| ())
}

/// Asserts that each party opened many words, and that they pass the audit.
fn holds(what: &str, audits: &[Audit; 2]) {
    for audit in audits {
        let (place, worst) = audit.worst();
        println!("{what}: {} words, at most {worst:.1} at {place}", audit.words());
        assert!(audit.words() > 1000, "{what}: {} words", audit.words());
        assert!(worst < LIMIT, "{what}: {place} deviates by {worst:.1}");
        assert_eq!(audit.reused(), None, "{what}");
    }
}

/// Runs `session` as it is, and with `broken`. Then the audit names a mask and shows differences.
fn audited(what: &str, link: &str, broken: Broken, session: impl Fn() -> Result<(), Error>) {
    audited_at(what, link, broken, &[], session);
}

/// [`audited`], where differences show at each of `places`, too.
fn audited_at(what: &str, link: &str, broken: Broken, places: &[&str], session: impl Fn() -> Result<(), Error>) {
    let what = &format!("{what}, {link}");
    watch(None, |audits| {
        session().unwrap();
        holds(what, audits);
    });
    watch(Some(broken), |audits| {
        session().unwrap();
        for audit in audits {
            let (place, worst) = audit.worst();
            println!("{what}, {broken:?}: {worst:.0} at {place}; {:?}", audit.reused());
            assert!(audit.reused().is_some(), "{what}: {broken:?} is not named");
        }
        // The view of one party is enough.
        let shows = audits.iter().any(|audit| audit.worst().1 > 2.0 * LIMIT);
        assert!(shows, "{what}: {broken:?} does not show");
        for place in places {
            let worst = audits.iter().filter_map(|audit| audit.worst_in(place)).fold(0.0, f64::max);
            println!("{what}, {broken:?}: {worst:.0} at {place}");
            assert!(worst > LIMIT, "{what}: {broken:?} does not show at {place}: {worst:.1}");
        }
    });
}

#[test]
fn a_generation() {
    let server = server();
    for link in LINKS {
        audited("a generation", link, Broken::Units, || {
            session(&server, link, |client| {
                client.generate(&PROMPT[..], TOKENS, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            })
        });
    }
}

/// Masks that a helper deals are spent like those that two parties make.
#[test]
fn a_generation_with_a_helper() {
    for deals in [HelperDeals::Words, HelperDeals::Weights, HelperDeals::Passes] {
        for link in LINKS {
            let mut terms = helper::dealing(deals);
            terms.protocol.link = link.parse().unwrap();
            audited(&format!("a generation with a helper that deals {deals:?}"), link, Broken::Units, || {
                let pairing = Arc::new(Pairing::new(None, helper::PATIENCE, helper::ROOM));
                let session = |client: ClientSession| {
                    client.generate(&PROMPT[..], TOKENS, Next::Pick(&mut Sampler::greedy()), &mut nobody)
                };
                let none = helper::Harm::None;
                let (ends, ..) = helper::helped(&pairing, server(), &terms, helper::KEYS, none, None, session);
                pools::both(ends);
                Ok(())
            });
        }
    }
}

#[test]
fn texts_side_by_side() {
    let server = server();
    for link in LINKS {
        audited("two texts", link, Broken::Units, || {
            session(&server, link, |client| {
                let texts = [PROMPT[..].into(), PROMPT[1..].into()];
                let texts = Prompt::side_by_side(&texts, None, false)?;
                client.generate(texts, TOKENS / 2, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            })
        });
    }
}

/// Rows are ranked, chosen, moved and turned by angles that nobody knows.
#[test]
fn a_prompt_that_sheds_rows() {
    let server = server();
    for link in LINKS {
        audited("rows that end", link, Broken::Units, || {
            let mut terms = Terms { policy: "full:shed=1:0.5/own".parse().unwrap(), ..Terms::default() };
            terms.protocol.link = link.parse().unwrap();
            terms.protocol.preprocess = true;
            let (limits, options, patience) = (Limits::default(), ClientOptions::default(), Duration::from_secs(60));
            [5, 3].into_iter().try_for_each(|id| {
                let client = |client: ClientSession| {
                    client.generate(&[id; 24][..], 3, Next::Pick(&mut Sampler::greedy()), &mut nobody)
                };
                in_one_process(&server, &terms, &limits, &options, patience, client).map(|_| ())
            })
        });
    }
}

#[test]
fn an_encoder() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders/bert");
    let server = ModelServer::builder().load(ModelFiles::open(&dir).unwrap()).unwrap();
    for link in LINKS {
        // A place opens something once in a text, so a difference takes two texts.
        audited("an encoder", link, Broken::Units, || {
            [5, 3].into_iter().try_for_each(|id| {
                session(&server, link, |client| {
                    client.generate(&[id; 24][..], 1, Next::Pick(&mut Sampler::greedy()), &mut nobody)
                })
            })
        });
    }
}

/// Queries and weights of every pass meet the same matrices of one prefix, under masks of their own. A twin that
/// gives rows of these products one mask is seen there, whatever else it breaks.
#[test]
fn a_text_behind_public_tokens() {
    const PRODUCTS: [&str; 2] = ["attention/scores", "attention/values"];
    let server = server();
    for link in LINKS {
        audited_at("a text behind public tokens", link, Broken::Units, &PRODUCTS, || {
            let prefix = PublicPrefix::new(vec![6, 5, 3, 5, 8, 9, 7, 9, 3, 2], PolicySpec::default());
            session(&server, link, |client| {
                let client = client.behind(prefix);
                client.generate(&PROMPT[..], TOKENS, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            })
        });
    }
}

#[test]
fn a_public_part() {
    let (server, base) = (public::served("llama3", "layers=0", true), public::base("llama3"));
    for link in LINKS {
        audited("a public part", link, Broken::Units, || {
            let options = ClientOptions { base: Some(&base), ..ClientOptions::default() };
            session_of(&server, link, &options, |client| {
                client.generate(&PROMPT[..], TOKENS, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            })
        });
    }
}

/// Guesses that are always the same word, and mostly wrong.
struct Same;

impl Guess for Same {
    fn guess(&mut self, _: &[u32], count: usize) -> Result<Vec<u32>, waggle_model::Error> {
        Ok(vec![7; count])
    }
}

#[test]
fn a_draft() {
    let server = server();
    for link in LINKS {
        audited("a draft", link, Broken::Slots, || {
            session(&server, link, |client| {
                let mut sampler = Sampler::greedy();
                let next = Next::Drafted { sampler: &mut sampler, guess: &mut Same };
                let client = client.drafting(Drafts::new(3, 1.0).unwrap());
                client.generate(&PROMPT[..], TOKENS, next, &mut nobody)
            })
        });
    }
}

#[test]
fn a_chat_with_a_reset() {
    let server = server();
    for link in LINKS {
        audited("a chat", link, Broken::Units, || {
            session(&server, link, |client| {
                let mut chat = client.chat(Lengths { prompt: 10, tokens: 6 }, &mut nobody)?;
                for _ in 0..2 {
                    for words in [&PROMPT[..], &PROMPT[2..5]] {
                        chat.turn(words, 6, Next::Pick(&mut Sampler::greedy()), &mut nobody)?;
                    }
                    chat.reset()?;
                }
                chat.finish()
            })
        });
    }
}

/// Copies every pool file in `dir` to `backup`, which no user should do. Returns the files with their copies.
fn copies(dir: &Path, backup: &Path) -> Vec<(PathBuf, PathBuf)> {
    let files = find(dir).unwrap();
    let copied = files.iter().map(Found::path).map(|path| (path.to_owned(), backup.join(path.file_name().unwrap())));
    let copied: Vec<_> = copied.collect();
    copied.iter().for_each(|(path, copy)| assert!(fs::copy(path, copy).unwrap() > 0));
    copied
}

#[test]
fn a_pool_in_parts() {
    for link in LINKS {
        let dir = tempfile::tempdir().unwrap();
        let [kept, mine, backup] = ["server", "mine", "backup"].map(|name| dir.path().join(name));
        [&mine, &backup].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let pool = mine.join("client.pool");
        let server = server().with_pools(Pools::open(&kept, 4).unwrap());
        let bound = Lengths { prompt: PROMPT.len(), tokens: TOKENS };
        let spend = |prompt: &[u32]| {
            session(&server, link, |client| {
                let pool = PoolSet::open(&pool, Role::Client)?;
                client.spend(pool, prompt, TOKENS, Next::Pick(&mut Sampler::greedy()), &mut nobody)
            })
        };
        watch(None, |audits| {
            for part in Part::new(1, 2).unwrap().all() {
                session(&server, link, |client| client.fill_part(bound, part, &part_path(&pool, part), &mut nobody))
                    .unwrap();
            }
            let files = [&kept, &mine].map(|dir| copies(dir, &backup)).concat();
            spend(&PROMPT).unwrap();
            holds(&format!("a pool in parts, {link}"), audits);
            // Both parties bring their files back, for another prompt.
            files.iter().for_each(|(path, copy)| fs::rename(copy, path).unwrap());
            let refused = spend(&PROMPT[1..]).unwrap_err().to_string();
            assert!(refused.contains("serves again under"), "{refused}");
        });
    }
}
