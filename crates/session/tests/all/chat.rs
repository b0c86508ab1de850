//! Conversations: several turns on one private cache give the answers of the clear engines, at both parties alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use waggle_engine::{Float, Select};
use waggle_model::{
    GenerateOptions, Input, Lengths, Model, ModelFiles, Next, NoHooks, Sampler, bundled, generate_with,
};
use waggle_mpcache::{KvCache, PolicySpec};
use waggle_net::{Channel, Role, memory_pair};
use waggle_protocols::Fixed;
use waggle_protocols::audit::unwatched;
use waggle_session::Error;
use waggle_session::party::chat::{Positions, Slices, Turn, slices};
use waggle_session::party::{
    ChatSession, ClientOptions, ClientSession, Event, Flow, Limits, ModelServer, Outcome, Peer, Terms, nobody,
};
use waggle_tokenizer::ChatTemplate;

use crate::outcome::{late, terms, untimed};
use crate::parties::load_fixed;

const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 96}"#;

const BOUND: Lengths = Lengths { prompt: 12, tokens: 6 };

/// The numbers of new and of generated tokens of five turns.
const TURNS: [(u32, usize); 5] = [(9, 4), (3, 6), (11, 1), (1, 5), (7, 3)];

fn files() -> (tempfile::TempDir, ModelFiles) {
    let dir = tempfile::tempdir().unwrap();
    crate::support::tiny::write_model(dir.path(), LLAMA);
    let files = ModelFiles::open(dir.path()).unwrap();
    (dir, files)
}

fn words(turn: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * i + 5 * i + 3 * turn) % 23).collect()
}

/// Runs both parties of a chat; `talk` is the client's side.
fn session<T: Send>(
    terms: &Terms,
    template: Option<ChatTemplate>,
    observer: &mut (dyn FnMut(Event<'_>) -> Flow + Send),
    talk: impl FnOnce(ChatSession) -> T + Send,
) -> (T, Result<Outcome, Error>) {
    within(&Limits::default(), terms, template, observer, |chat| talk(chat.unwrap()))
}

/// [`session`] with a server of these limits.
fn within<T: Send>(
    limits: &Limits,
    terms: &Terms,
    template: Option<ChatTemplate>,
    observer: &mut (dyn FnMut(Event<'_>) -> Flow + Send),
    talk: impl FnOnce(Result<ChatSession, Error>) -> T + Send,
) -> (T, Result<Outcome, Error>) {
    let hosted = ModelServer::builder().policy(&terms.policy).load(files().1).unwrap();
    let hosted = hosted.with_template(template.as_ref()).unwrap();
    let (client, server) = memory_pair(Duration::from_secs(60));
    unwatched(|| {
        thread::scope(|scope| {
            let server = Channel::new(Role::Server, server);
            let hosted = &hosted;
            let server = scope.spawn(move || hosted.serve(server, &Peer::default(), terms, limits, observer));
            let client = Channel::new(Role::Client, client);
            let options = ClientOptions { template: true, ..ClientOptions::default() };
            let session = ClientSession::open(client, &Peer::default(), terms, &options).unwrap();
            let talked = talk(session.chat(BOUND, &mut nobody));
            (talked, server.join().unwrap())
        })
    })
}

fn turn(chat: &mut ChatSession, ids: &[u32], tokens: usize) -> Result<Turn, Error> {
    chat.turn(ids, tokens, Next::Pick(&mut Sampler::greedy()), &mut nobody)
}

/// The answers of five turns by a clear engine on one cache, which `look` sees after each turn.
fn clear<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    policy: &str,
    mut look: impl FnMut(&KvCache<E>),
) -> Vec<Vec<u32>> {
    let policy: PolicySpec = policy.parse().unwrap();
    let mut cache = model.cache(&policy);
    let mut last = None;
    let answers = (0..).zip(TURNS).map(|(i, (count, tokens))| {
        let ids: Vec<u32> = last.into_iter().chain(words(i, count)).collect();
        let options = GenerateOptions { tokens, policy: policy.clone(), ..crate::support::fine() };
        let input = Input::known(&ids);
        let next = Next::Pick(&mut Sampler::greedy());
        let got = generate_with(engine, model, &mut cache, input, &options, next, &mut NoHooks).unwrap();
        look(&cache);
        last = got.tokens.last().copied();
        got.tokens
    });
    answers.collect()
}

/// Policies that work in a conversation as in a generation.
const POLICIES: [&str; 12] = [
    "full",
    "streaming:budget=16,block=4",
    "snapkv:budget=16,block=4,window=4",
    "h2o:budget=16,block=4",
    "alisa:budget=16,block=4,guard=0.2",
    "streaming:budget=16,block=4,guard=0.2",
    "tova:budget=16,block=4",
    "pyramid:budget=16,block=4,window=4",
    "keyformer:budget=16,block=4,recent=4",
    "streaming:budget=0.4",
    "mpcache:clusters=8/4,budget=0.3",
    "quest:budget=0.4",
];

#[test]
fn five_turns_are_those_of_the_clear_engine_under_every_policy() {
    let (_dir, files) = files();
    let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    for (i, policy) in POLICIES.into_iter().enumerate() {
        let truth = clear(&mut Fixed::new(), &fixed, policy, |_| ());
        for preprocess in [i % 2 == 0, i % 2 == 1].into_iter().take(if i == 0 { 2 } else { 1 }) {
            let terms = terms(policy, preprocess);
            let (client, server) = session(&terms, None, &mut nobody, |mut chat| {
                for (i, (count, tokens)) in (0..).zip(TURNS) {
                    let got = turn(&mut chat, &words(i, count), tokens).unwrap();
                    assert_eq!(got.generation.tokens, truth[i as usize], "{policy}, turn {i}");
                    assert_eq!(got.prompt_tokens, (count + u32::from(i > 0)) as usize);
                }
                chat.finish().unwrap()
            });
            let server = server.unwrap();
            assert_eq!(untimed(&client), untimed(&server), "{policy}");
            assert_eq!((server.generation.count, server.prompt_tokens), (19, 31 + 4));
            assert!(server.generation.tokens.is_empty());
            // Everything that a turn needs is made before its first message, except what policies with clusters need.
            let clusters = ["mpcache", "quest"].iter().any(|name| policy.starts_with(name));
            let late = late(&client);
            assert!(!preprocess || clusters || late == 0, "{policy}: {late} bytes are made on the spot");
        }
    }
}

/// The words of a turn attend to everything, even in the last layer, which has only the query of the last word. No
/// layer takes over clusters that were chosen in an earlier turn.
#[test]
fn clusters_of_one_turn_serve_no_other() {
    let model = crate::support::load(bundled("shakespeare-llama").unwrap());
    let policy: PolicySpec = "mpcache:clusters=8/4,budget=0.3".parse().unwrap();
    let mut cache = model.cache(&policy);
    for count in [37, 5, 9, 41] {
        let ids: Vec<u32> = (0..count as u32).map(|i| i % 60).collect();
        let options = GenerateOptions { tokens: 6, policy: policy.clone(), ..crate::support::fine() };
        let (input, mut sampler) = (Input::of(Some(&ids), count), Sampler::greedy());
        let next = Next::Pick(&mut sampler);
        let turn = generate_with(&mut Float::default(), &model, &mut cache, input, &options, next, &mut NoHooks);
        assert_eq!(turn.unwrap().tokens.len(), 6);
    }
}

/// A cache with a budget in tokens keeps to it after every turn.
#[test]
fn a_budget_holds_while_the_talk_grows() {
    let (_dir, files) = files();
    let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    for policy in POLICIES.into_iter().filter(|policy| policy.contains("budget=16")) {
        clear(&mut Fixed::new(), &fixed, policy, |cache| {
            let held: Vec<usize> = (0..3).map(|layer| cache.held(layer)).collect();
            assert!(held.iter().sum::<usize>() <= 3 * 16, "{policy}: {held:?}");
        });
    }
}

#[test]
fn what_is_prepared_ahead_serves_the_turn() {
    let (_dir, files) = files();
    let (fixed, _) = load_fixed(&files.spec, Some(&files.checkpoint), &[]);
    for policy in ["full", "streaming:budget=16,block=4"] {
        let truth = clear(&mut Fixed::new(), &fixed, policy, |_| ());
        let (costs, server) = session(&terms(policy, true), None, &mut nobody, |mut chat| {
            let mut costs = Vec::new();
            for (i, (count, tokens)) in (0..).zip(TURNS) {
                let mut prepared = 0;
                while let Some(Slices { ready: done, of: all }) = chat.prepare(&mut nobody).unwrap() {
                    prepared += 1;
                    assert_eq!((done, all), (prepared, slices(BOUND)));
                }
                assert_eq!(prepared, slices(BOUND));
                chat.stay().unwrap();
                let got = turn(&mut chat, &words(i, count), tokens).unwrap();
                assert_eq!(got.generation.tokens, truth[i as usize], "{policy}, turn {i}");
                costs.push(got.cost);
            }
            chat.finish().unwrap();
            costs
        });
        server.unwrap();
        let bytes = |cost: &waggle_report::Cost| cost.bytes_client_to_server + cost.bytes_server_to_client;
        // Only masks of keys and values are left to be made.
        for cost in &costs {
            assert!(bytes(&cost.before.offline) > 0, "{policy}: {cost:?}");
        }
        let (ahead, then): (u64, u64) = costs.iter().fold((0, 0), |(ahead, then), cost| {
            (ahead + bytes(&cost.before.offline), then + bytes(&cost.phases.offline))
        });
        assert!(then < ahead, "{policy}: {ahead} bytes ahead, {then} at the turn");
    }
}

/// A watcher that allows a number of positions, and counts those that go through the model.
struct Stingy {
    left: u64,
    shown: u64,
}

impl Stingy {
    fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::Asked(wanted) => {
                let limit = self.left;
                match self.left.checked_sub(wanted) {
                    Some(left) => self.left = left,
                    None => {
                        let error = Error::Quota { what: "positions", used: 0, wanted, limit };
                        return Flow::Refuse(error.into());
                    }
                }
            }
            Event::Shown(positions) => self.shown += positions,
            _ => (),
        }
        Flow::GoOn
    }
}

#[test]
fn a_refused_turn_leaves_the_session_as_it_was() {
    // All positions of the model.
    let mut stingy = Stingy { left: 96, shown: 0 };
    let ((), server) =
        session(&terms("full", false), None, &mut |event: Event<'_>| stingy.hear(event), |mut chat| {
            let first = turn(&mut chat, &words(0, 9), 4).unwrap();
            assert!(matches!(turn(&mut chat, &words(1, 12), 4), Err(Error::Limit { got: 13, limit: 12, .. })));
            assert!(matches!(turn(&mut chat, &words(1, 3), 7), Err(Error::Limit { got: 7, limit: 6, .. })));
            assert!(matches!(turn(&mut chat, &words(1, 3), 0), Err(Error::Model(waggle_model::Error::Nothing))));
            assert!(matches!(turn(&mut chat, &[99], 1), Err(Error::Model(waggle_model::Error::Engine(_)))));
            assert!(chat.is_open());
            assert_eq!(chat.positions(), Positions { used: 12, limit: 96 });
            for i in 1..=7 {
                turn(&mut chat, &words(i, 6), 6).unwrap();
                assert_eq!(chat.positions().used, 12 + 12 * i as usize);
            }
            // The model is full, which both parties know.
            let full = turn(&mut chat, &[1], 6).unwrap_err();
            assert!(matches!(full, Error::Full { used: 96, wanted: 7, limit: 96 }), "{full}");
            chat.reset().unwrap();
            // The server allows no more positions, which it alone knows.
            let refused = turn(&mut chat, &words(0, 9), 4).unwrap_err();
            assert!(
                matches!(&refused, Error::Refused { reason } if reason.contains("12 more positions would exceed")),
                "{refused}"
            );
            assert!(chat.is_open());
            let _ = first;
            chat.finish().unwrap();
        });
    server.unwrap();
    assert_eq!((stingy.left, stingy.shown), (0, 96));
}

#[test]
fn turns_that_fit_alone_and_not_together_are_refused() {
    let limits = Limits { conversation: Some(20), ..Limits::default() };
    for preprocess in [false, true] {
        let terms = terms("full", preprocess);
        let ((), server) = within(&limits, &terms, None, &mut nobody, |chat| {
            let mut chat = chat.unwrap();
            while chat.prepare(&mut nobody).unwrap().is_some() {}
            let first = turn(&mut chat, &words(0, 9), 6).unwrap();
            assert_eq!(chat.positions(), Positions { used: 14, limit: 20 });
            let full = turn(&mut chat, &words(0, 9), 6).unwrap_err();
            assert!(matches!(full, Error::Full { used: 14, wanted: 15, limit: 20 }), "{full}");
            while chat.prepare(&mut nobody).unwrap().is_some() {}
            // A turn that takes all positions left fits.
            turn(&mut chat, &words(1, 4), 2).unwrap();
            assert_eq!(chat.positions(), Positions { used: 20, limit: 20 });
            assert!(matches!(turn(&mut chat, &[1], 1), Err(Error::Full { wanted: 2, .. })));
            while chat.prepare(&mut nobody).unwrap().is_some() {}
            chat.reset().unwrap();
            assert_eq!((chat.positions().used, chat.last()), (0, None));
            assert_eq!(turn(&mut chat, &words(0, 9), 6).unwrap().generation.tokens, first.generation.tokens);
            chat.finish().unwrap();
        });
        assert_eq!(server.unwrap().generation.count, 14);
    }
}

#[test]
fn a_server_may_allow_no_conversations() {
    let limits = Limits { conversation: None, ..Limits::default() };
    let (refused, server) = within(&limits, &terms("full", false), None, &mut nobody, |chat| chat.err());
    assert!(
        matches!(&refused, Some(Error::Refused { reason }) if reason.contains("no conversations")),
        "{refused:?}"
    );
    assert!(matches!(server, Err(Error::NoChats)));
}

/// A watcher that counts the questions whether to go on: one for every pass that is planned or run.
#[derive(Clone, Default)]
struct Passes(Arc<AtomicUsize>);

impl Passes {
    fn watch(&self) -> impl FnMut(Event<'_>) -> Flow {
        let count = Arc::clone(&self.0);
        move |event| {
            if let Event::GoesOn = event {
                count.fetch_add(1, Ordering::SeqCst);
            }
            Flow::GoOn
        }
    }

    fn since(&self, before: &mut usize) -> usize {
        let now = self.0.load(Ordering::SeqCst);
        now - std::mem::replace(before, now)
    }
}

/// The server plans only the new turn, however many turns came before, under every policy.
#[test]
fn only_the_new_turn_is_planned() {
    for policy in POLICIES {
        let passes = Passes::default();
        let ((), server) = session(&terms(policy, true), None, &mut passes.watch(), |mut chat| {
            let mut before = 0;
            let counts = (0..5).map(|i| {
                turn(&mut chat, &words(i, 4), 3).unwrap();
                // The server has answered, so it has taken the turn.
                chat.stay().unwrap();
                passes.since(&mut before)
            });
            assert_eq!(counts.collect::<Vec<_>>(), [6; 5], "{policy}");
            chat.finish().unwrap();
        });
        server.unwrap();
    }
}

/// A client that drops conversations again and again makes the server plan the longest turn once.
#[test]
fn the_longest_turn_of_an_empty_conversation_is_planned_once() {
    let passes = Passes::default();
    let ((), server) = session(&terms("full", true), None, &mut passes.watch(), |mut chat| {
        let mut before = 0;
        for times in 0..5 {
            while chat.prepare(&mut nobody).unwrap().is_some() {}
            chat.reset().unwrap();
            assert_eq!(passes.since(&mut before), if times == 0 { BOUND.tokens } else { 0 });
        }
        chat.finish().unwrap();
    });
    server.unwrap();
}

#[test]
fn a_client_that_leaves_ends_the_session() {
    let ((), server) = session(&terms("full", false), None, &mut nobody, |mut chat| {
        turn(&mut chat, &words(0, 9), 4).unwrap();
    });
    server.unwrap_err();
}

#[test]
fn the_template_comes_from_the_server() {
    let template = ChatTemplate { template: "{{ 1 }}".into(), tokens: [("bos_token".into(), "<s>".into())].into() };
    let (got, server) = session(&terms("full", false), Some(template.clone()), &mut nobody, |chat| {
        let got = chat.model().chat_template().unwrap();
        chat.finish().unwrap();
        got
    });
    server.unwrap();
    assert_eq!(got, Some(template));
}
