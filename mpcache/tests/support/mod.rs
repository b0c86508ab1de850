//! A made-up generation for policies.
#![allow(dead_code, reason = "every test program uses a part")]

use std::ops::Range;
use std::time::Duration;

use ndarray::{ArrayD, Axis, IxDyn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_engine::{Ceiling, Select};
use waggle_mpcache::{Expected, HeadShape, KvCache, Layers, PolicySpec, ScoreSource};
use waggle_net::{Channel, Entry, Link, Phase, Role, Traffic, memory_pair};
use waggle_protocols::audit::Audit;
use waggle_protocols::{Options, Secure};
use waggle_testing::{largest_difference, open, share_of, to_fixed, to_real};

/// Two key/value heads under four query heads, so that selections per head, per group and per layer all differ.
pub(crate) const HEADS: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 8 };

/// Two layers: an even one, and an odd one that may take over the even layer's choice.
pub(crate) const LAYERS: usize = 2;

/// Fractional bits to which sums of `terms` probabilities are rounded before they are compared.
pub(crate) fn grid(terms: usize) -> u32 {
    10 - ((terms as f64).log2().floor() / 2.0).ceil() as u32
}

/// The multiple of 2^-`frac` nearest to `x`, in these units.
pub(crate) fn nearest(x: f64, frac: u32) -> f64 {
    (x * f64::from(frac).exp2() + 0.5).floor()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Tokens of a step that go through all layers together.
pub(crate) struct Pass {
    pub(crate) step: usize,
    pub(crate) tokens: Range<usize>,
}

/// A prompt of `prompt` tokens, then `steps` tokens one by one: queries, keys and values of every layer.
pub(crate) struct Script {
    pub(crate) steps: Vec<Vec<[ArrayD<f64>; 3]>>,
    /// Learned scores, (layers, tokens, kv_heads), for policies that want them.
    pub(crate) scores: ArrayD<f64>,
    /// The surprisal of each token.
    pub(crate) surprisals: Vec<f32>,
}

impl Script {
    /// Keys drift along the text, as those of real models do; every fifth stands out.
    pub(crate) fn new(prompt: usize, steps: usize, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let kv = HEADS.kv_heads * HEADS.head_dim;
        let mut drift = vec![0.0f64; LAYERS * kv];
        let mut step = |tokens: usize, rng: &mut StdRng| {
            (0..LAYERS)
                .map(|layer| {
                    let q = ArrayD::from_shape_simple_fn(IxDyn(&[HEADS.heads, tokens, HEADS.head_dim]), || {
                        rng.random_range(-1.5..1.5)
                    });
                    let mut k = ArrayD::zeros(IxDyn(&[tokens, kv]));
                    for t in 0..tokens {
                        for c in 0..kv {
                            let at = &mut drift[layer * kv + c];
                            *at = 0.8 * *at + rng.random_range(-1.0..1.0);
                            k[[t, c]] = *at + if t % 5 == 3 { rng.random_range(-1.0..1.0) } else { 0.0 };
                        }
                    }
                    let v = ArrayD::from_shape_simple_fn(IxDyn(&[tokens, kv]), || rng.random_range(-2.0..2.0));
                    [q, k, v]
                })
                .collect()
        };
        let mut all = vec![step(prompt, &mut rng)];
        all.extend((0..steps).map(|_| step(1, &mut rng)));
        // Drawn last, so that they change nothing of the above.
        let scores = ArrayD::from_shape_simple_fn(IxDyn(&[LAYERS, prompt + steps, HEADS.kv_heads]), || {
            rng.random_range(-200.0..200.0)
        });
        let surprisals = (0..prompt + steps).map(|_| rng.random_range(0.0..9.0)).collect();
        Script { steps: all, scores, surprisals }
    }

    /// The position in the text of token `token` of step `step`.
    fn position(&self, step: usize, token: usize) -> usize {
        if step == 0 { token } else { self.prompt() + step - 1 }
    }

    /// The step in which the token at `position` comes, and its index within the step.
    fn place(&self, position: usize) -> (usize, usize) {
        let prompt = self.prompt();
        if position < prompt { (0, position) } else { (1 + position - prompt, 0) }
    }

    /// The query of the token at `position` in the query head `head`.
    pub(crate) fn query(&self, layer: usize, position: usize, head: usize) -> Vec<f64> {
        let (step, place) = self.place(position);
        (0..HEADS.head_dim).map(|c| self.steps[step][layer][0][[head, place, c]]).collect()
    }

    /// The key of the token at `position` in the key/value head `kv`.
    pub(crate) fn key(&self, layer: usize, position: usize, kv: usize) -> Vec<f64> {
        self.row(layer, 1, position, kv)
    }

    /// The value of the token at `position` in the key/value head `kv`.
    pub(crate) fn value(&self, layer: usize, position: usize, kv: usize) -> Vec<f64> {
        self.row(layer, 2, position, kv)
    }

    fn row(&self, layer: usize, part: usize, position: usize, kv: usize) -> Vec<f64> {
        let (d, (step, place)) = (HEADS.head_dim, self.place(position));
        (0..d).map(|c| self.steps[step][layer][part][[place, kv * d + c]]).collect()
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt(&self) -> usize {
        self.steps[0][0][1].shape()[0]
    }

    /// The passes over the prompt, in chunks of `chunk` tokens, and over every token after it.
    pub(crate) fn passes(&self, chunk: Option<usize>) -> Vec<Pass> {
        let (prompt, chunk) = (self.prompt(), chunk.unwrap_or(self.prompt()));
        let reading = (0..prompt).step_by(chunk).map(|start| start..prompt.min(start + chunk));
        let mut passes: Vec<Pass> = reading.map(|tokens| Pass { step: 0, tokens }).collect();
        passes.extend((1..self.steps.len()).map(|step| Pass { step, tokens: 0..1 }));
        passes
    }

    /// The outputs of every layer at every decoding step, and the positions that each head attended to, if they are
    /// known.
    pub(crate) fn play<E: Select>(
        &self,
        engine: &mut E,
        spec: &PolicySpec,
        tensor: impl FnMut(&ArrayD<f64>) -> E::Tensor,
    ) -> (Vec<E::Tensor>, Vec<Vec<Vec<usize>>>) {
        self.play_watched(engine, spec, tensor, |_, _, _| ())
    }

    /// Like [`play`](Script::play), but also calls `held` with a layer, a step and the number of tokens that the
    /// layer holds after the step.
    pub(crate) fn play_watched<E: Select>(
        &self,
        engine: &mut E,
        spec: &PolicySpec,
        mut tensor: impl FnMut(&ArrayD<f64>) -> E::Tensor,
        mut held: impl FnMut(usize, usize, usize),
    ) -> (Vec<E::Tensor>, Vec<Vec<Vec<usize>>>) {
        let mut cache = KvCache::<E>::new(&Layers::global(LAYERS, HEADS), spec);
        let (mut outputs, mut attended) = (vec![], vec![]);
        let prompt = self.prompt();
        cache.expect(Expected { prompt: Some(prompt), ..Expected::default() });
        for Pass { step: i, tokens } in self.passes(cache.prefill_chunk()) {
            for (layer, [q, k, v]) in self.steps[i].iter().enumerate() {
                let part = |x: &ArrayD<f64>| x.slice_axis(Axis(0), tokens.clone().into()).to_owned();
                let (k, v) = (tensor(&part(k)), tensor(&part(v)));
                if let Some(ScoreSource::ScoringHead(_)) = cache.wants_scores() {
                    let first = self.position(i, tokens.start);
                    let scores = self.scores.index_axis(Axis(0), layer);
                    let scores = scores.slice_axis(Axis(0), (first..first + tokens.len()).into()).to_owned();
                    cache.score(layer, &tensor(&scores), Ceiling::of_units(1 << 40));
                }
                let wanted = usize::from(i > 0 || tokens.end == prompt);
                let window = cache.observation_window(layer, tokens.len()).max(wanted);
                if window == 0 {
                    cache.append(engine, layer, &k, &v).expect("appended");
                    continue;
                }
                let q = tensor(&q.slice_axis(Axis(1), (tokens.end - window..tokens.end).into()).to_owned());
                let out = cache.attend(engine, layer, &q, &k, &v).expect("attention");
                held(layer, i, cache.held(layer));
                if i > 0 {
                    outputs.push(out);
                    attended.extend(cache.attended(layer).map(|rows| {
                        let sorted = |row: &Vec<usize>| {
                            let mut row = row.clone();
                            row.sort_unstable();
                            row
                        };
                        rows.iter().map(sorted).collect::<Vec<_>>()
                    }));
                }
            }
            // As in a generation, where the logits of a prompt are known only when all of it has been read.
            if cache.wants_scores() == Some(ScoreSource::Surprisal) && (i > 0 || tokens.end == prompt) {
                let last = self.position(i, tokens.end - 1) + 1;
                let first = if i == 0 { 0 } else { last - 1 };
                cache.surprisals(engine, &self.surprisals[first..last]).expect("surprisals");
            }
        }
        (outputs, attended)
    }
}

/// The entries whose traffic is not random. The traffic of quickselect depends on its coins, and so does the number
/// of times that pools are refilled.
pub(crate) fn certain(entries: &[Entry]) -> Vec<(Phase, String, [u64; 3])> {
    let random = |e: &&Entry| e.path.contains("quickselect") || e.phase == Phase::Offline;
    let traffic = |t: &Traffic| [t.bytes_client_to_server, t.bytes_server_to_client, t.messages];
    let entries = entries.iter().filter(|e| !random(e));
    entries.map(|e| (e.phase, e.path.clone(), traffic(&e.traffic))).collect()
}

/// The largest allowed difference of an output between two parties and fixed point.
const SECURE: f64 = 2e-3;

/// Runs both parties.
pub(crate) fn both<T: Send>(options: Options, party: impl Fn(&mut Secure, Role) -> T + Sync) -> [T; 2] {
    fn run<T>(link: impl Link + 'static, role: Role, options: Options, party: impl Fn(&mut Secure, Role) -> T) -> T {
        party(&mut Secure::new(Channel::new(role, link), options).expect("set-up"), role)
    }
    let (client, server) = memory_pair(Duration::from_secs(300));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| run(client, Role::Client, options, &party));
        let server = run(server, Role::Server, options, &party);
        [client.join().expect("client"), server]
    })
}

/// Makes one party's share of a tensor.
pub(crate) type Share<'a> = &'a mut dyn FnMut(&ArrayD<f64>) -> ArrayD<u64>;

/// The results of two parties, whose ledgers are equal.
pub(crate) struct Shared {
    pub(crate) ledger: Vec<Entry>,
    /// The values opened under masks.
    pub(crate) audit: Audit,
}

impl Shared {
    /// Runs `prepare` and then `play` by both parties, and checks that their outputs are those of `fixed`.
    pub(crate) fn play(
        context: &str,
        options: Options,
        fixed: &[ArrayD<u64>],
        prepare: impl Fn(&mut Secure, Role) + Sync,
        play: impl Fn(&mut Secure, Share) -> Vec<ArrayD<u64>> + Sync,
    ) -> Self {
        let [(client, ledger, audit), (server, other, _)] = both(options, |engine, role| {
            prepare(engine, role);
            // Both parties draw the same masks: one keeps the mask, the other the value less the mask.
            let mut masks = StdRng::seed_from_u64(5);
            let outputs = play(engine, &mut |x| share_of(&to_fixed(x), role, &mut masks));
            (outputs, engine.channel().ledger().untimed(), engine.abb().session().audit().clone())
        });
        assert_eq!(ledger, other, "{context}: ledgers");
        let outputs: Vec<_> =
            client.into_iter().zip(server).map(|(client, server)| to_real(&open(&[client, server]))).collect();
        assert_eq!(outputs.len(), fixed.len(), "{context}");
        for (i, (output, fixed)) in outputs.iter().zip(fixed).enumerate() {
            let off = largest_difference(output, &to_real(fixed));
            assert!(off < SECURE, "{context}, output {i}: two parties err by {off}");
        }
        Shared { ledger, audit }
    }
}
