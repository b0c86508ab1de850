//! Noise on the client's share samples tokens as softmax does, where the client learns tokens alone.

use ndarray::{ArrayView1, Axis};
use rand::SeedableRng;
use rand::rngs::StdRng;
use waggle_model::{
    GenerateOptions, Input, Lengths, Model, ModelFiles, Next, NoHooks, Reveal, Sampler, bundled, generate,
};
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};
use waggle_session::Error;
use waggle_session::party::{Limits, ModelServer, Prompt, Request, SessionPlan, Terms, nobody};

use crate::draft::files;
use crate::outcome::untimed;
use crate::parties::session;

const PROMPT: [u32; 3] = [3, 1, 4];
const TEMPERATURE: f32 = 0.8;
/// Four query heads and eleven words, one of which is drawn nine times out of ten.
const LLAMA: &str = r#""model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 12,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 11, "max_position_embeddings": 32"#;
/// Pearson's statistic with ten degrees of freedom is above this bound once in ten thousand times.
const BOUND: f64 = 35.56;

fn sampler(seed: u64) -> Sampler {
    Sampler::random(TEMPERATURE, 1.0, StdRng::seed_from_u64(seed)).unwrap()
}

fn fixed(files: &ModelFiles) -> Model<FixedWeight> {
    Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap()
}

/// The tokens after texts with the prompts `ids` in fixed point, and the logits if they are revealed.
fn alone(
    model: &Model<FixedWeight>,
    (ids, texts): (&[u32], usize),
    (tokens, reveal): (usize, Reveal),
    next: Next,
) -> waggle_model::Generation {
    let options = GenerateOptions { tokens, reveal, ..crate::support::fine() };
    let input = Input { texts, count: ids.len() / texts, ..Input::known(ids) };
    generate(&mut Fixed::new(), model, input, &options, next, &mut NoHooks).unwrap()
}

/// Pearson's statistic of the tokens `drawn` against softmax(logits / temperature). Tokens that are expected less
/// than five times count as one token, so there are at most ten degrees of freedom.
fn chi_square(drawn: &[u32], logits: ArrayView1<f32>, temperature: f32) -> f64 {
    let weights = logits.mapv(|x| f64::from(x / temperature).exp());
    let scale = drawn.len() as f64 / weights.sum();
    let term = |count: f64, expected: f64| (count - expected).powi(2) / expected;
    let (mut statistic, mut rare) = (0.0, (0.0, 0.0));
    for (token, weight) in weights.iter().enumerate() {
        let count = drawn.iter().filter(|drawn| **drawn as usize == token).count() as f64;
        let expected = weight * scale;
        if expected >= 5.0 {
            statistic += term(count, expected);
        } else {
            rare = (rare.0 + count, rare.1 + expected);
        }
    }
    if rare.1 > 0.0 { statistic + term(rare.0, rare.1) } else { statistic }
}

#[test]
fn noise_before_the_argmax_draws_from_softmax() {
    let files = files(LLAMA, None);
    let model = fixed(&files);
    let one = alone(&model, (&PROMPT, 1), (1, Reveal::Logits), Next::Pick(&mut Sampler::greedy()));
    let logits = one.logits.unwrap();
    let logits = logits.index_axis(Axis(0), 0);

    let (mut sampler, texts) = (self::sampler(7), 100);
    let many = PROMPT.repeat(texts);
    let drawn: Vec<u32> = (0..100)
        .flat_map(|_| alone(&model, (&many, texts), (1, Reveal::Token), Next::Pick(&mut sampler)).tokens)
        .collect();
    assert_eq!(drawn.len(), 10_000);
    let statistic = chi_square(&drawn, logits, TEMPERATURE);
    let other = chi_square(&drawn, logits, 1.25 * TEMPERATURE);
    println!("fixed: {statistic:.2} at the temperature, {other:.2} at another");
    assert!(statistic < BOUND && other > BOUND, "{statistic}, {other}");

    // Two parties draw fewer tokens.
    let hosted = ModelServer::builder().load(files).unwrap();
    let terms = Terms { reveal: Reveal::Token, ..Terms::default() };
    let whole = Prompt::side_by_side(&vec![PROMPT[..].into(); 300], None, false).unwrap();
    let (client, server) = session(&hosted, &terms, &Limits::NONE, |session| {
        session.generate(whole, 1, Next::Pick(&mut self::sampler(8)), &mut nobody)
    });
    let (client, server) = (client.unwrap().generation, server.unwrap().generation);
    assert_eq!((server.tokens.len(), server.logits, client.logits), (0, None, None));
    let statistic = chi_square(&client.tokens, logits, TEMPERATURE);
    println!("two parties: {statistic:.2}");
    assert!(client.tokens.len() == 300 && statistic < BOUND, "{statistic}");
}

/// The seed is one for which no two sums are close, so that rounding decides nothing.
#[test]
fn two_parties_sample_the_text_of_the_clear_engine() {
    for name in ["shakespeare-gpt2", "shakespeare-llama"] {
        let files = bundled(name).unwrap();
        let (model, vocabulary) = (fixed(&files), files.spec.vocabulary());
        let ids = [30, 27, 25, 17];
        let tokens = 12;
        let (seed, text) = (0..)
            .find_map(|seed| {
                let text = alone(&model, (&ids, 1), (tokens, Reveal::Token), Next::Pick(&mut sampler(seed))).tokens;
                let forced = Next::Forced(&text);
                let logits = alone(&model, (&ids, 1), (tokens, Reveal::Logits), forced).logits.unwrap();
                let mut sampler = sampler(seed);
                let clear = logits.rows().into_iter().zip(&text).all(|(logits, token)| {
                    let noise = sampler.noise(vocabulary).unwrap();
                    let mut sums: Vec<_> = logits.iter().zip(noise).map(|(x, noise)| x + noise).enumerate().collect();
                    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
                    assert_eq!(sums[0].0 as u32, *token, "the largest sum");
                    sums[0].1 - sums[1].1 > 0.05
                });
                clear.then_some((seed, text))
            })
            .unwrap();
        let hosted = ModelServer::builder().load(files).unwrap();
        for preprocess in [false, true] {
            let mut terms = Terms { reveal: Reveal::Token, ..Terms::default() };
            terms.protocol.preprocess = preprocess;
            let (client, server) = session(&hosted, &terms, &Limits::NONE, |session| {
                session.generate(&ids, tokens, Next::Pick(&mut sampler(seed)), &mut nobody)
            });
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(client.generation.tokens, text, "{name}, {preprocess}");
            let request = Request::from(Lengths { prompt: ids.len(), tokens });
            let planned = SessionPlan::new(hosted.public(), &terms).request(request).run(&mut nobody).unwrap();
            assert_eq!(untimed(&client), untimed(&planned.outcome));
            assert_eq!(untimed(&client), untimed(&server));
        }
    }
}

#[test]
fn a_sampler_that_looks_at_logits_is_refused_before_anything_is_asked() {
    let hosted = ModelServer::builder().load(bundled("shakespeare-gpt2").unwrap()).unwrap();
    let terms = Terms { reveal: Reveal::Token, ..Terms::default() };
    let (client, server) = session(&hosted, &terms, &Limits::NONE, |session| {
        let mut sampler = Sampler::random(1.0, 0.5, StdRng::seed_from_u64(1)).unwrap();
        session.generate(&[30, 27], 2, Next::Pick(&mut sampler), &mut nobody)
    });
    assert!(matches!(client, Err(Error::Model(waggle_model::Error::NeedsLogits { what: "top-p" }))), "{client:?}");
    assert!(server.is_err());
}
