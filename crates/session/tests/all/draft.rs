//! Draft and verify: whoever guesses, and however badly, the text equals that of a generation without guesses.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_engine::{Float, FloatLoader, Select};
use waggle_model::{
    Drafts, GenerateOptions, Generation, Guess, Hooks, Input, Lengths, Model, ModelFiles, Next, NoHooks, Padding,
    PromptLookup, Reveal, Sampler, SmallModel, generate, generate_with,
};
use waggle_net::{Channel, Link, NetError, Role, memory_pair};
use waggle_protocols::audit::unwatched;
use waggle_protocols::{Evaluation, Fixed, FixedLoader};
use waggle_session::Error;
use waggle_session::party::{
    ClientOptions, ClientSession, Event, Flow, Limits, ModelServer, Outcome, Peer, Prompt, Request, SessionPlan,
    Terms, nobody,
};

use crate::outcome::{late, untimed};
use crate::parties::session;
use crate::support::tiny::write_model;

const PROMPT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
const TOKENS: usize = 14;

const GPT2: &str =
    r#""model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 32"#;
/// Two query heads share a key/value head.
const LLAMA: &str = r#""model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 11, "max_position_embeddings": 32"#;

pub(crate) fn files(config: &str, eos: Option<u32>) -> ModelFiles {
    // Files are mapped, so they stay when their directory is removed.
    let dir = tempfile::tempdir().unwrap();
    let eos = eos.map_or(String::new(), |eos| format!(r#", "eos_token_id": {eos}"#));
    write_model(dir.path(), &format!("{{{config}{eos}}}"));
    ModelFiles::open(dir.path()).unwrap()
}

/// A guesser that knows the text, and errs at every `wrong`th token of it.
struct Knowing<'a> {
    tokens: &'a [u32],
    prompt: usize,
    wrong: usize,
}

impl Guess for Knowing<'_> {
    fn guess(&mut self, text: &[u32], count: usize) -> Result<Vec<u32>, waggle_model::Error> {
        let made = text.len() - self.prompt;
        assert_eq!(text[self.prompt..], self.tokens[..made], "what was kept is the text");
        let at = |i: usize| {
            let token = self.tokens.get(i).copied().unwrap_or(0);
            if i % self.wrong == self.wrong - 1 { (token + 1) % 11 } else { token }
        };
        Ok((made..made + count).map(at).collect())
    }
}

fn sampler(seed: Option<u64>, reveal: Reveal) -> Sampler {
    // Top-p needs logits.
    let top_p = if reveal == Reveal::Logits { 0.9 } else { 1.0 };
    match seed {
        None => Sampler::greedy(),
        Some(seed) => Sampler::random(1.5, top_p, StdRng::seed_from_u64(seed)).unwrap(),
    }
}

/// A generation in one process, with the guesses of `guess`.
fn alone<E: Select>(
    engine: &mut E,
    model: &Model<E::Weight>,
    options: &GenerateOptions,
    seed: Option<u64>,
    guess: Option<&mut dyn Guess>,
) -> Generation {
    let mut sampler = sampler(seed, options.reveal);
    let next = match guess {
        Some(guess) => Next::Drafted { sampler: &mut sampler, guess },
        None => Next::Pick(&mut sampler),
    };
    let input = Input::known(&PROMPT);
    generate(engine, model, input, options, next, &mut NoHooks).unwrap()
}

/// Compares generations with guesses of many kinds with the generation without guesses.
fn same_text<E: Select>(
    make: impl Fn() -> E,
    model: &Model<E::Weight>,
    options: &GenerateOptions,
    seed: Option<u64>,
) {
    let want = alone(&mut make(), model, options, seed, None);
    assert!(want.passes.iter().all(|kept| *kept == 1));
    let kinds = [1, 2, 5, 40].into_iter().flat_map(|guesses| {
        let [one, half, all] = [1.0, 1.0 + guesses as f64 / 2.0, 1.0 + guesses as f64];
        let drafts = |rate| Drafts::new(guesses, rate).unwrap();
        [drafts(one), drafts(half).steady(), drafts(all).steady()]
    });
    for drafts in kinds {
        let guesses = drafts.tokens();
        let options = GenerateOptions { draft: Some(drafts), ..options.clone() };
        for wrong in [1, 2, 3, 4, usize::MAX, 0] {
            let got = match wrong {
                0 => alone(&mut make(), model, &options, seed, Some(&mut PromptLookup)),
                _ => {
                    let mut knowing = Knowing { tokens: &want.tokens, prompt: PROMPT.len(), wrong };
                    alone(&mut make(), model, &options, seed, Some(&mut knowing))
                }
            };
            let context = format!("{guesses} guesses, every {wrong}th wrong, seed {seed:?}, {options:?}");
            assert_eq!((&got.tokens, got.count), (&want.tokens, want.count), "{context}");
            assert_eq!(got.passes.iter().sum::<usize>(), want.count - 1, "{context}");
            assert!(got.passes.iter().all(|kept| (1..=1 + guesses).contains(kept)), "{context}: {:?}", got.passes);
            // A pass within which the text ends is not full.
            let full = drafts.rate() == 1.0 + guesses as f64 && !options.stop_at_eos;
            if wrong == usize::MAX && (full || drafts.schedule().is_none()) {
                assert_eq!(got.passes.len(), (want.count - 1).div_ceil(1 + guesses), "{context}: {:?}", got.passes);
            }
            match (&got.logits, &want.logits) {
                (Some(got), Some(want)) => {
                    assert_eq!(got.dim(), want.dim(), "{context}");
                    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 1e-2, "{context}: a logit is off by {worst}");
                }
                (got, want) => assert_eq!(got.is_some(), want.is_some(), "{context}"),
            }
        }
    }
}

#[test]
fn the_text_is_the_same_in_the_clear() {
    for config in [GPT2, LLAMA] {
        let files = files(config, None);
        let float = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        for (policy, reveal, chunk, all_positions, seed) in [
            ("full", Reveal::Logits, None, false, None),
            ("full", Reveal::Logits, None, false, Some(1)),
            ("full", Reveal::Token, None, false, None),
            ("full", Reveal::Token, None, false, Some(1)),
            ("full", Reveal::Logits, NonZeroUsize::new(3), true, None),
            ("snapkv:budget=0.6,window=2", Reveal::Logits, None, false, Some(2)),
        ] {
            let options = GenerateOptions {
                tokens: TOKENS,
                reveal,
                policy: policy.parse().unwrap(),
                prefill_chunk: chunk,
                all_positions,
                ..crate::support::fine()
            };
            same_text(Float::default, &float, &options, seed);
            for evaluation in [Evaluation::Masked, Evaluation::Lookup] {
                same_text(|| Fixed::evaluating(evaluation), &fixed, &options, seed);
            }
        }
        // Up to the last position of the model.
        let tokens = 32 + 1 - PROMPT.len();
        same_text(Float::default, &float, &GenerateOptions { tokens, ..crate::support::fine() }, None);
        // One token takes no pass, and two take one pass without guesses.
        for tokens in [1, 2, 3] {
            same_text(Float::default, &float, &GenerateOptions { tokens, ..crate::support::fine() }, None);
        }
    }
}

#[test]
fn a_text_ends_where_it_would_without_guesses() {
    let whole = files(GPT2, None);
    let float = Model::load(&mut FloatLoader, &whole.spec, Some(&whole.checkpoint)).unwrap();
    let options = GenerateOptions { tokens: TOKENS, stop_at_eos: true, ..crate::support::fine() };
    for seed in [None, Some(3), Some(4)] {
        let text = alone(&mut Float::default(), &float, &options, seed, None).tokens;
        // Each token of the text may end it: the first one, and those within and at the end of a draft.
        for eos in text.iter().copied() {
            let files = files(GPT2, Some(eos));
            let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
            same_text(Float::default, &model, &options, seed);
            let drafted = GenerateOptions { draft: Some(Drafts::new(5, 1.0).unwrap()), ..options.clone() };
            let mut knowing = Knowing { tokens: &text, prompt: PROMPT.len(), wrong: usize::MAX };
            // The guesser guesses beyond the end, because it does not know of the end.
            let got = alone(&mut Float::default(), &model, &drafted, seed, Some(&mut knowing));
            let end = text.iter().position(|token| *token == eos).unwrap();
            assert_eq!(got.tokens, text[..=end]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Guesses of all kinds, right and wrong, in a model of one layer.
    #[test]
    fn any_guesses_give_the_same_text(
        guesses in prop::collection::vec(0u32..11, 60),
        count in 1usize..7,
        tokens in 1usize..20,
        seed in prop::option::of(0u64..1000),
    ) {
        struct Any<'a>(std::iter::Cycle<std::slice::Iter<'a, u32>>);
        impl Guess for Any<'_> {
            fn guess(&mut self, _: &[u32], count: usize) -> Result<Vec<u32>, waggle_model::Error> {
                Ok(self.0.by_ref().take(count).copied().collect())
            }
        }
        let files = files(GPT2, None);
        let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
        let options = GenerateOptions { tokens, ..crate::support::fine() };
        let want = alone(&mut Float::default(), &model, &options, seed, None);
        let options = GenerateOptions { draft: Some(Drafts::new(count, 1.0).unwrap()), ..options };
        let got = alone(&mut Float::default(), &model, &options, seed, Some(&mut Any(guesses.iter().cycle())));
        prop_assert_eq!(got.tokens, want.tokens);
    }
}

#[test]
fn a_word_that_the_model_does_not_have_is_refused() {
    struct Foreign;
    impl Guess for Foreign {
        fn guess(&mut self, _: &[u32], _: usize) -> Result<Vec<u32>, waggle_model::Error> {
            Ok(vec![11])
        }
    }
    let files = files(GPT2, None);
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let draft = Some(Drafts::new(1, 1.0).unwrap());
    let options = GenerateOptions { tokens: 4, draft, ..crate::support::fine() };
    let mut sampler = Sampler::greedy();
    let next = Next::Drafted { sampler: &mut sampler, guess: &mut Foreign };
    let input = Input::known(&PROMPT);
    let refused = generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks).unwrap_err();
    assert!(
        matches!(refused, waggle_model::Error::Engine(waggle_engine::Error::Token { id: 11, vocabulary: 11 })),
        "{refused}"
    );
}

/// Hooks and caches may come from other crates.
#[test]
fn counts_and_caches_that_do_not_fit_are_refused() {
    struct Keeping(usize);
    impl Hooks<Float> for Keeping {
        fn agree_to_keep(
            &mut self,
            _: &mut Float,
            _: usize,
            _: Option<usize>,
        ) -> Result<usize, waggle_engine::Error> {
            Ok(self.0)
        }
    }
    let files = files(GPT2, None);
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let draft = Some(Drafts::new(2, 1.0).unwrap());
    let options = GenerateOptions { tokens: 9, draft, ..crate::support::fine() };
    let run = |policy: &str, mut hooks: Keeping| {
        let mut sampler = Sampler::greedy();
        let next = Next::Drafted { sampler: &mut sampler, guess: &mut PromptLookup };
        let input = Input::known(&PROMPT);
        let mut cache = model.cache(&policy.parse().unwrap());
        generate_with(&mut Float::default(), &model, &mut cache, input, &options, next, &mut hooks)
    };
    for got in [0, 4, usize::MAX] {
        let refused = run("full", Keeping(got)).unwrap_err();
        assert!(matches!(refused, waggle_model::Error::DraftKept { got: same, most: 3 } if same == got), "{refused}");
    }
    // The options say `full`, but the cache is another policy's.
    assert!(matches!(run("h2o", Keeping(1)), Err(waggle_model::Error::DraftPolicy { .. })));
}

/// A session in memory.
struct Session<'a> {
    hosted: &'a ModelServer,
    terms: Terms,
    limits: Limits,
    prompt: Prompt,
    tokens: usize,
    stop: bool,
    seed: Option<u64>,
    draft: Option<Drafts>,
}

impl<'a> Session<'a> {
    fn of(hosted: &'a ModelServer, preprocess: bool) -> Self {
        let mut terms = crate::outcome::fine_terms();
        terms.protocol.preprocess = preprocess;
        let prompt = Prompt::from(&PROMPT[..]);
        Session {
            hosted,
            terms,
            limits: Limits::default(),
            prompt,
            tokens: TOKENS,
            stop: false,
            seed: None,
            draft: None,
        }
    }

    /// The outcomes of both parties.
    fn run(
        &self,
        guess: &mut dyn Guess,
        eyes: &mut (dyn FnMut(Event<'_>) -> Flow + Send),
    ) -> [Result<Outcome, Error>; 2] {
        self.run_lying(None, guess, eyes)
    }

    /// The outcomes of both parties. The client sends `lie`, if there is one, instead of the number of tokens that a
    /// pass keeps.
    fn run_lying(
        &self,
        lie: Option<u8>,
        guess: &mut dyn Guess,
        eyes: &mut (dyn FnMut(Event<'_>) -> Flow + Send),
    ) -> [Result<Outcome, Error>; 2] {
        let (client, server) = memory_pair(Duration::from_secs(60));
        unwatched(|| {
            thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let channel = Channel::new(Role::Server, server);
                    self.hosted.serve(channel, &Peer::default(), &self.terms, &self.limits, eyes)
                });
                let link: Box<dyn Link> = match lie {
                    Some(lie) => Box::new(Lying { link: client, lie }),
                    None => Box::new(client),
                };
                let channel = Channel::new(Role::Client, link);
                let opened = ClientSession::open(channel, &Peer::default(), &self.terms, &ClientOptions::default());
                let client = opened.and_then(|session| {
                    let mut sampler = sampler(self.seed, self.terms.reveal);
                    let session = match self.draft {
                        Some(draft) => session.drafting(draft),
                        None => session,
                    };
                    let next = Next::Drafted { sampler: &mut sampler, guess };
                    let session = if self.stop { session.stopping_at_eos() } else { session };
                    session.generate(self.prompt.clone(), self.tokens, next, &mut nobody)
                });
                [client, server.join().unwrap()]
            })
        })
    }

    fn request(&self) -> Request {
        Request {
            stop_at_eos: self.stop,
            padded: self.prompt.padding().is_some(),
            draft: self.draft,
            ..Lengths { prompt: self.prompt.ids().len(), tokens: self.tokens }.into()
        }
    }
}

/// A watcher that counts the positions that a server would charge, and the tokens that it hears of.
#[derive(Default)]
struct Charges {
    asked: u64,
    shown: u64,
    tokens: usize,
}

impl Charges {
    fn hear(&mut self, event: Event<'_>) -> Flow {
        match event {
            Event::Asked(positions) => self.asked = positions,
            Event::Shown(positions) => self.shown += positions,
            Event::Token(token) => {
                assert_eq!(token, None);
                self.tokens += 1;
            }
            _ => (),
        }
        Flow::GoOn
    }
}

/// A client's link that sends `lie` where the client says how many tokens a pass keeps.
struct Lying<L> {
    link: L,
    lie: u8,
}

impl<L: Link> Link for Lying<L> {
    fn send(&mut self, mut bytes: Vec<u8>) -> std::io::Result<()> {
        let told = waggle_fuzz::link::frame("draft/kept", &[0]);
        let head = &told[..told.len() - 1];
        if let Some(at) = bytes.windows(head.len()).position(|part| part == head) {
            bytes[at + head.len()] = self.lie;
        }
        self.link.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8]) -> std::io::Result<()> {
        self.link.recv(buf)
    }

    fn timeout(&self) -> Duration {
        self.link.timeout()
    }
}

#[test]
fn a_client_that_lies_about_its_draft_gets_nothing_and_a_typed_error() {
    let hosted = ModelServer::builder().load(files(GPT2, None)).unwrap();
    let mut session = Session::of(&hosted, false);
    let [plain, _] = session.run(&mut PromptLookup, &mut nobody).map(Result::unwrap);
    session.draft = Some(Drafts::new(3, 1.5).unwrap());
    for lie in [0, 5, 255] {
        let mut knowing = Knowing { tokens: &plain.generation.tokens, prompt: PROMPT.len(), wrong: 1 };
        let [client, server] = session.run_lying(Some(lie), &mut knowing, &mut nobody);
        match server.unwrap_err() {
            Error::Model(waggle_model::Error::Engine(error)) => {
                let net = error.backend::<waggle_protocols::Error>().unwrap().net().unwrap();
                assert!(matches!(net, NetError::Malformed { step: "draft/kept", .. }), "{net}");
            }
            other => panic!("{other}"),
        }
        // The client hears which step it was.
        let heard = client.unwrap_err().to_string();
        assert!(heard.contains("draft/kept"), "{heard}");
    }
    // A possible number that is not the client's own: the parties diverge, and the results are not final.
    let mut knowing = Knowing { tokens: &plain.generation.tokens, prompt: PROMPT.len(), wrong: 1 };
    let [client, server] = session.run_lying(Some(2), &mut knowing, &mut nobody);
    assert!(client.is_err() && server.is_err());
}

#[test]
fn two_parties_write_the_same_text_and_each_pass_costs_what_was_planned() {
    let configs = [(GPT2, "full"), (LLAMA, "full"), (LLAMA, "snapkv:budget=0.6,window=2")];
    for ((config, policy), preprocess) in configs.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let hosted = ModelServer::builder().load(files(config, None)).unwrap();
        let kinds = [(Some(5), Reveal::Logits, true), (None, Reveal::Logits, false), (None, Reveal::Token, false)];
        // Sampling and revealing do not depend on the model.
        let some = if config == GPT2 { kinds.len() } else { 1 };
        for (seed, reveal, stop) in kinds.into_iter().take(some) {
            let mut session = Session { seed, stop, ..Session::of(&hosted, preprocess) };
            session.terms.policy = policy.parse().unwrap();
            session.terms.reveal = reveal;
            let [plain, _] = session.run(&mut PromptLookup, &mut nobody).map(Result::unwrap);
            let text = &plain.generation.tokens;
            let of = |guesses, rate| Drafts::new(guesses, rate).unwrap();
            let [free, mixed] = [of(3, 2.0), of(3, 1.5).steady()];
            let some = [(free, 1), (free, 3), (of(2, 2.0), 4), (of(4, 2.0), usize::MAX)];
            for (draft, wrong) in some.into_iter().chain([(mixed, 1), (mixed, 2), (of(2, 3.0).steady(), 4)]) {
                session.draft = Some(draft);
                let context = format!("{config}, {policy}, preprocess {preprocess}, {seed:?}, {reveal:?}, {wrong}");
                let mut knowing = Knowing { tokens: text, prompt: PROMPT.len(), wrong };
                let mut charges = Charges::default();
                let [client, server] =
                    session.run(&mut knowing, &mut |event: Event<'_>| charges.hear(event)).map(Result::unwrap);
                assert_eq!(&client.generation.tokens, text, "{context}");
                assert_eq!(server.generation.count, TOKENS, "{context}");
                assert!(server.generation.tokens.is_empty() && server.generation.logits.is_none());
                assert_eq!(client.generation.passes, server.generation.passes, "{context}");
                assert_eq!((charges.tokens, client.per_token.len()), (TOKENS, TOKENS - 1), "{context}");
                assert!(charges.shown <= charges.asked, "{context}");
                let kept = &client.generation.passes;
                if wrong == 1 {
                    // Each pass keeps one token, so all positions that are charged go through the model.
                    assert_eq!(kept, &vec![1; TOKENS - 1], "{context}");
                    assert!(charges.shown == charges.asked, "{context}");
                }
                if draft == mixed {
                    // Passes over one and over two tokens alternate. Only the passes over two tell how many they
                    // keep.
                    assert!(kept.iter().enumerate().all(|(i, kept)| (1..=1 + i % 2).contains(kept)), "{kept:?}");
                    let told = client.entries.iter().filter(|entry| entry.path == "draft");
                    let told: u64 = told.map(|entry| entry.traffic.messages).sum();
                    // The last pass has no guesses.
                    let bits = kept.len() / 2;
                    assert!((bits - 1..=bits).contains(&(told as usize)), "{told} of {kept:?}");
                }
                assert_eq!(untimed(&client), untimed(&server), "{context}");
                let planned = SessionPlan::new(hosted.public(), &session.terms).request(session.request()).kept(kept);
                let planned = planned.run(&mut nobody).unwrap().outcome;
                assert_eq!(untimed(&planned), untimed(&client), "{context}: plan");
            }
        }
    }
}

/// A run whose passes keep the expected numbers finds all its correlations prepared, and any other run nearly all.
#[test]
fn correlations_are_prepared_for_the_passes_expected() {
    let hosted = ModelServer::builder().load(files(LLAMA, None)).unwrap();
    let mut session = Session { tokens: 21, ..Session::of(&hosted, true) };
    let [plain, _] = session.run(&mut PromptLookup, &mut nobody).map(Result::unwrap);
    let text = &plain.generation.tokens;
    assert_eq!(late(&plain), 0);
    let mut run = |rate, wrong| {
        session.draft = Some(Drafts::new(3, rate).unwrap());
        let mut knowing = Knowing { tokens: text, prompt: PROMPT.len(), wrong };
        let [client, _] = session.run(&mut knowing, &mut nobody).map(Result::unwrap);
        assert_eq!(&client.generation.tokens, text);
        (late(&client), client.generation.passes)
    };
    // All right, as expected: 20 tokens in 5 passes. All wrong, as expected: 20 passes.
    assert_eq!(run(4.0, usize::MAX), (0, vec![4; 5]));
    assert_eq!(run(1.0, 1), (0, vec![1; 20]));
    // Passes beyond the expected number make their own correlations.
    let (late, passes) = run(4.0, 1);
    assert!(late > 0 && passes.len() == 20);
}

#[test]
fn padding_and_guesses_go_together() {
    let hosted = ModelServer::builder().load(files(GPT2, None)).unwrap();
    for preprocess in [false, true] {
        let mut session = Session { tokens: 8, ..Session::of(&hosted, preprocess) };
        let [plain, _] = session.run(&mut PromptLookup, &mut nobody).map(Result::unwrap);
        session.prompt = Prompt::padded(&PROMPT, 12).unwrap();
        session.draft = Some(Drafts::new(3, 2.0).unwrap());
        let mut knowing = Knowing { tokens: &plain.generation.tokens, prompt: PROMPT.len(), wrong: 3 };
        let [client, _] = session.run(&mut knowing, &mut nobody).map(Result::unwrap);
        assert_eq!(client.generation.tokens, plain.generation.tokens);
        assert!(client.generation.passes.iter().any(|kept| *kept > 1));
    }
    // In the clear, too, the guesser looks up the client's words.
    let files = files(GPT2, None);
    let model = Model::load(&mut FloatLoader, &files.spec, Some(&files.checkpoint)).unwrap();
    let text =
        alone(&mut Float::default(), &model, &GenerateOptions { tokens: 8, ..crate::support::fine() }, None, None);
    let ids = [&[0; 3][..], &PROMPT].concat();
    let options = GenerateOptions {
        tokens: 8,
        padding: Some(Padding::of(3)),
        draft: Some(Drafts::new(2, 1.0).unwrap()),
        ..Default::default()
    };
    let mut knowing = Knowing { tokens: &text.tokens, prompt: PROMPT.len(), wrong: usize::MAX };
    let mut sampler = Sampler::greedy();
    let next = Next::Drafted { sampler: &mut sampler, guess: &mut knowing };
    let input = Input::known(&ids);
    let got = generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks).unwrap();
    assert_eq!(got.tokens, text.tokens);
}

#[test]
fn drafts_that_cannot_be_are_refused_before_anything_is_computed() {
    let hosted = ModelServer::builder().load(files(GPT2, None)).unwrap();
    let draft = Some(Drafts::new(3, 1.5).unwrap());
    // The server allows fewer guesses, or none.
    for drafted in [0, 2] {
        let limits = Limits { drafted, ..Limits::default() };
        let session = Session { limits, draft, ..Session::of(&hosted, false) };
        let [client, server] = session.run(&mut PromptLookup, &mut nobody);
        let (client, server) = (client.unwrap_err(), server.unwrap_err());
        assert!(matches!(&client, Error::Refused { reason } if reason.contains("3 guesses in a pass")), "{client}");
        assert!(
            matches!(server, Error::Limit { got: 3, limit, .. } if limit == drafted),
            "{server}: {drafted} are allowed"
        );
    }
    // The policy cannot take tokens back.
    for policy in ["h2o", "tova", "streaming", "mpcache", "mpcache-scores", "quest", "random"] {
        let mut session = Session { draft, ..Session::of(&hosted, false) };
        session.terms.policy = policy.parse().unwrap();
        let [client, _] = session.run(&mut PromptLookup, &mut nobody);
        let refused = client.unwrap_err();
        assert!(
            matches!(&refused, Error::Model(waggle_model::Error::DraftPolicy { policy: named }) if named == policy),
            "{refused}"
        );
        let planned = SessionPlan::new(hosted.public(), &session.terms).request(session.request()).run(&mut nobody);
        assert!(matches!(planned, Err(Error::Model(waggle_model::Error::DraftPolicy { .. }))));
    }
}

#[test]
fn a_small_model_drafts_for_a_large_one() {
    let large = files(LLAMA, None);
    let small = files(GPT2, None);
    let hosted = ModelServer::builder().load(large).unwrap();
    let session = Session::of(&hosted, false);
    let [plain, _] = session.run(&mut PromptLookup, &mut nobody).map(Result::unwrap);
    let session = Session { draft: Some(Drafts::new(3, 1.0).unwrap()), ..session };
    // The guesser is a model of another architecture, then the model itself, which is nearly always right.
    let spec = hosted.public().spec.clone();
    let mut other = SmallModel::new(&small, &spec).unwrap();
    let mut same = SmallModel::new(&files(LLAMA, None), &spec).unwrap();
    for (guess, passes) in [(&mut other, TOKENS - 1), (&mut same, (TOKENS - 1).div_ceil(4))] {
        let [client, _] = session.run(guess, &mut nobody).map(Result::unwrap);
        assert_eq!(client.generation.tokens, plain.generation.tokens);
        assert!(client.generation.passes.len() <= passes, "{:?}", client.generation.passes);
    }
    let eleven = files(&LLAMA.replace("11,", "12,"), None);
    let refused = SmallModel::new(&eleven, &spec).map(drop).unwrap_err();
    assert!(matches!(refused, waggle_model::Error::DraftVocabulary { got: 12, expected: 11 }), "{refused}");
}

/// A pool has no field for a draft.
#[test]
fn a_pool_takes_no_draft() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = &dir.path().join("client.pool");
    let pools = || waggle_session::pool::Pools::open(&dir.path().join("server"), 9).unwrap();
    let hosted = ModelServer::builder().load(files(GPT2, None)).unwrap().with_pools(pools());
    let Session { terms, limits, .. } = Session::of(&hosted, true);
    let bound = Lengths { prompt: PROMPT.len(), tokens: 3 };
    let (filled, _) = session(&hosted, &terms, &limits, |client| client.fill(bound, path, &mut nobody));
    filled.unwrap();
    let (refused, left) = session(&hosted, &terms, &limits, |client| {
        let pool = waggle_session::pool::PoolSet::open(path, Role::Client)?;
        let drafting = client.drafting(Drafts::new(2, 1.0).unwrap());
        drafting.spend(pool, &PROMPT, 3, Next::Pick(&mut Sampler::greedy()), &mut nobody)
    });
    assert!(matches!(refused, Err(Error::DraftPool)), "{refused:?}");
    assert!(left.is_err());
    assert!(path.exists(), "the pool is still there");
}
