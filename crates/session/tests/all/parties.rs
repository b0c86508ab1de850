//! Tools for tests: generations by both parties in one process, and the laws that all engines obey.

use std::time::Duration;

use waggle_engine::Engine;
use waggle_model::{
    Checkpoint, GenerateOptions, Generation, Hooks, Input, Model, ModelFiles, ModelSpec, Next, NoHooks, Padding,
    Reveal, Sampler, Step, generate,
};
use waggle_mpcache::PolicySpec;
use waggle_net::{Channel, Entry, Phase, Role, memory_pair};
use waggle_planner::{Plan, Planner};
use waggle_protocols::audit::unwatched;
use waggle_protocols::{Fixed, FixedLoader, FixedWeight, Options, Secure};
use waggle_session::Error;
use waggle_session::party::{
    ClientOptions, ClientSession, Event, Flow, Limits, ModelServer, Outcome, Peer, Terms, nobody,
};

/// Books prefill and decode apart.
struct Phases;

trait Booked: Engine {
    fn phase(&mut self, phase: Phase);
}

impl Booked for Secure {
    fn phase(&mut self, phase: Phase) {
        self.channel().ledger_mut().set_phase(phase);
    }
}

impl Booked for Plan {
    fn phase(&mut self, phase: Phase) {
        self.abb().ledger().set_phase(phase);
    }
}

impl<E: Booked> Hooks<E> for Phases {
    fn begin(&mut self, engine: &mut E, step: Step) -> Result<(), waggle_engine::Error> {
        engine.phase(if step == Step::Prefill { Phase::Prefill } else { Phase::Decode });
        Ok(())
    }
}

/// A model in fixed point with the values of `checkpoint`, or without values and with the announced `frac_bits`. Also
/// returns its fractional bits.
pub(crate) fn load_fixed(
    spec: &ModelSpec,
    checkpoint: Option<&Checkpoint>,
    frac_bits: &[u32],
) -> (Model<FixedWeight>, Vec<u32>) {
    load_fixed_for(&PolicySpec::default(), spec, checkpoint, frac_bits)
}

/// [`load_fixed`] for generations under `policy`.
pub(crate) fn load_fixed_for(
    policy: &PolicySpec,
    spec: &ModelSpec,
    checkpoint: Option<&Checkpoint>,
    frac_bits: &[u32],
) -> (Model<FixedWeight>, Vec<u32>) {
    let mut loader = FixedLoader::announced(frac_bits).expect("fractional bits");
    let model = Model::load_for(policy, &mut loader, spec, checkpoint).expect("model");
    (model, loader.frac_bits().to_vec())
}

/// Both parties' outcomes of one generation.
fn two_parties(
    spec: &ModelSpec,
    server_model: &Model<FixedWeight>,
    frac_bits: &[u32],
    prompt: Input,
    options: &GenerateOptions,
) -> [(Generation, Vec<Entry>); 2] {
    let (client, server) = memory_pair(Duration::from_secs(600));
    let party = |channel: Channel, model: &Model<FixedWeight>, input: Input| {
        let mut engine = Secure::new(channel, Options::default()).expect("set-up");
        let mut sampler = Sampler::greedy();
        let knows = input.ids.is_some();
        // The client alone knows how long a padding is.
        let padding = options.padding.clone().map(|padding| Padding { tokens: padding.tokens.filter(|_| knows) });
        let options = &GenerateOptions { padding, ..options.clone() };
        let out = generate(&mut engine, model, input, options, Next::Pick(&mut sampler), &mut Phases).expect("run");
        (out, engine.channel().ledger().untimed())
    };
    let unknown = Input { texts: prompt.texts, ..Input::unknown(prompt.count) };
    unwatched(|| {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let (model, _) = load_fixed_for(&options.policy, spec, None, frac_bits);
                party(Channel::new(Role::Client, client), &model, prompt)
            });
            let server = party(Channel::new(Role::Server, server), server_model, unknown);
            [client.join().expect("client"), server]
        })
    })
}

/// Results on which the engines agree.
pub(crate) struct Agreed {
    pub(crate) fixed: Generation,
    pub(crate) ledger: Vec<Entry>,
}

/// Generates after `ids` in fixed point, between two parties and on shapes. The parties write the text of fixed point
/// with logits at most `ulps` units of 2^-18 away, the server learns nothing, and the plan is both parties' ledger.
pub(crate) fn agree(context: &str, files: &ModelFiles, ids: &[u32], options: &GenerateOptions, ulps: f32) -> Agreed {
    agree_on(context, files, Input::known(ids), options, ulps)
}

/// [`agree`] on any input.
pub(crate) fn agree_on(
    context: &str,
    files: &ModelFiles,
    prompt: Input,
    options: &GenerateOptions,
    ulps: f32,
) -> Agreed {
    let ModelFiles { spec, checkpoint, .. } = files;
    let (weights, frac_bits) = load_fixed_for(&options.policy, spec, Some(checkpoint), &[]);
    let next = Next::Pick(&mut Sampler::greedy());
    let all = GenerateOptions { reveal: Reveal::Logits, ..options.clone() };
    let fixed = generate(&mut Fixed::new(), &weights, prompt, &all, next, &mut NoHooks).expect("fixed");

    let [(client, ledger), (server, other)] = two_parties(spec, &weights, &frac_bits, prompt, options);
    assert_eq!(client.tokens, fixed.tokens, "{context}: tokens");
    assert!(server.tokens.is_empty() && server.logits.is_none(), "{context}: the server learns nothing");
    match (&client.logits, &fixed.logits) {
        (Some(secure), Some(fixed)) => {
            let worst = secure.iter().zip(fixed).map(|(s, f)| (s - f).abs()).fold(0.0, f32::max);
            let worst = worst * (1u32 << waggle_protocols::FRAC) as f32;
            println!("{context}: two parties against fixed {worst} ulps");
            assert!(worst <= ulps, "{context}: {worst} ulps");
        }
        (secure, _) => assert!(secure.is_none() && options.reveal == Reveal::Token, "{context}"),
    }
    assert_eq!(ledger, other, "{context}: ledgers");

    let (shapes, _) = load_fixed_for(&options.policy, spec, None, &frac_bits);
    let mut plan = Planner::new(Options::default()).engine();
    let input = Input { texts: prompt.texts, ..Input::unknown(prompt.count) };
    let options =
        GenerateOptions { padding: options.padding.as_ref().map(|_| Padding { tokens: None }), ..options.clone() };
    generate(&mut plan, &shapes, input, &options, Next::Pick(&mut Sampler::greedy()), &mut Phases).expect("plan");
    let planned = plan.abb().ledger().untimed();
    if options.policy.random_traffic() {
        let bytes = |entries: &[Entry]| entries.iter().map(|e| e.traffic.bytes()).sum::<u64>() as f64;
        let ratio = bytes(&planned) / bytes(&ledger);
        assert!((0.95..1.05).contains(&ratio), "{context}: the plan's mean is {ratio} of the run's bytes");
    } else {
        assert_eq!(planned, ledger, "{context}: planned ledger");
    }
    Agreed { fixed, ledger }
}

/// Runs both parties of a session with `hosted` over memory. Returns the result of `client`, which gets the open
/// session, and the server's outcome.
pub(crate) fn session<T>(
    hosted: &ModelServer,
    terms: &Terms,
    limits: &Limits,
    client: impl FnOnce(ClientSession) -> Result<T, Error>,
) -> (Result<T, Error>, Result<Outcome, Error>) {
    watched(hosted, terms, limits, &mut nobody, client)
}

/// [`session`], in which `observer` hears the server's events.
pub(crate) fn watched<T>(
    hosted: &ModelServer,
    terms: &Terms,
    limits: &Limits,
    observer: &mut (dyn FnMut(Event<'_>) -> Flow + Send),
    client: impl FnOnce(ClientSession) -> Result<T, Error>,
) -> (Result<T, Error>, Result<Outcome, Error>) {
    let (here, there) = memory_pair(Duration::from_secs(60));
    unwatched(|| {
        std::thread::scope(|scope| {
            let channel = Channel::new(Role::Server, there);
            let server = scope.spawn(|| hosted.serve(channel, &Peer::default(), terms, limits, observer));
            let channel = Channel::new(Role::Client, here);
            let opened = ClientSession::open(channel, &Peer::default(), terms, &ClientOptions::default());
            let done = opened.and_then(client);
            (done, server.join().unwrap())
        })
    })
}
