//! One generation by both parties in one process.

use std::time::Duration;

use engine::Engine;
use model::{
    Checkpoint, GenerateOptions, Generation, Hooks, Input, Model, ModelSpec, Next, Padding, Sampler, Step, generate,
};
use mpcache::PolicySpec;
use net::{Channel, Entry, Phase, Role, memory_pair};
use planner::Plan;
use protocols::{FixedLoader, FixedWeight, Options, Secure};

/// Books prefill and decode apart.
pub(crate) struct Phases;

pub(crate) trait Booked: Engine {
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
    fn begin(&mut self, engine: &mut E, step: Step) {
        engine.phase(if step == Step::Prefill { Phase::Prefill } else { Phase::Decode });
    }
}

/// A model in fixed point with the values of `checkpoint`, or with the announced `frac_bits`; and its fractional
/// bits.
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
pub(crate) fn two_parties(
    spec: &ModelSpec,
    server_model: &Model<FixedWeight>,
    frac_bits: &[u32],
    ids: &[u32],
    options: &GenerateOptions,
) -> [(Generation, Vec<Entry>); 2] {
    let count = ids.len();
    let (client, server) = memory_pair(Duration::from_secs(600));
    let party = |channel: Channel, model: &Model<FixedWeight>, ids: Option<&[u32]>| {
        let mut engine = Secure::new(channel, Options::default()).expect("set-up");
        let mut sampler = Sampler::greedy();
        let input = Input { ids, count };
        // How long a padding is, the client alone knows.
        let padding = options.padding.map(|padding| Padding { tokens: padding.tokens.filter(|_| ids.is_some()) });
        let options = &GenerateOptions { padding, ..options.clone() };
        let out = generate(&mut engine, model, input, options, Next::Pick(&mut sampler), &mut Phases).expect("run");
        (out, engine.channel().ledger().untimed())
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (model, _) = load_fixed_for(&options.policy, spec, None, frac_bits);
            party(Channel::new(Role::Client, client), &model, Some(ids))
        });
        let server = party(Channel::new(Role::Server, server), server_model, None);
        [client.join().expect("client"), server]
    })
}
