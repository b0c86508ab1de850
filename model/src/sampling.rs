//! Picks the next token from logits that the client sees, or makes noise for logits that it does not see.

use ndarray::ArrayView1;
use rand::{Rng, RngExt};

use crate::{Error, Reveal};

/// The highest temperature for [`Sampler::noise`].
pub const MAX_NOISE_TEMPERATURE: f32 = 16.0;

/// Picks the client's tokens.
///
/// The default takes the most probable one. Sampling draws from `rng`. A seeded `rng` is for repeatable runs only.
#[derive(Default)]
pub struct Sampler {
    random: Option<Random>,
}

struct Random {
    temperature: f32,
    top_p: f32,
    rng: Box<dyn Rng + Send>,
}

impl Sampler {
    /// Always picks the most probable token; of equally probable ones the first.
    pub fn greedy() -> Self {
        Sampler::default()
    }

    /// Draws from softmax(logits / `temperature`), restricted to the smallest set of most probable tokens whose
    /// probabilities reach `top_p` (0 < top_p <= 1; 1 restricts nothing). Temperature 0 is greedy.
    pub fn random(temperature: f32, top_p: f32, rng: impl Rng + Send + 'static) -> Result<Self, Error> {
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(Error::Sampling { what: "temperature", value: temperature, range: "0 or more" });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::Sampling { what: "top-p", value: top_p, range: "above 0 up to 1" });
        }
        let rng = Box::new(rng);
        Ok(Sampler { random: (temperature > 0.0).then_some(Random { temperature, top_p, rng }) })
    }

    /// The token for `logits`, which are not empty.
    pub fn pick(&mut self, logits: ArrayView1<f32>) -> u32 {
        match &mut self.random {
            None => argmax(logits) as u32,
            Some(random) => random.draw(logits),
        }
    }

    /// Refuses a sampler that cannot work with the outputs that `reveal` gives the client. If these are tokens alone,
    /// they come from logits without the model's cap. So no temperature is possible for a model whose logits are
    /// `capped`.
    ///
    /// # Errors
    /// [`Error::NeedsLogits`].
    pub fn check(&self, reveal: Reveal, capped: bool) -> Result<(), Error> {
        let Some(Random { temperature, top_p, .. }) = &self.random else { return Ok(()) };
        let what = match reveal {
            Reveal::Logits => return Ok(()),
            _ if *top_p < 1.0 => "top-p",
            _ if capped => "a temperature, for a model that caps its logits,",
            _ if *temperature > MAX_NOISE_TEMPERATURE => "a temperature above 16",
            _ => return Ok(()),
        };
        Err(Error::NeedsLogits { what })
    }

    /// `temperature` times Gumbel noise for `n` logits. The index of the largest sum of logit and noise is a token
    /// that is drawn from softmax(logits / `temperature`) (Gumbel, *Statistical Theory of Extreme Values*, 1954;
    /// Maddison et al., *A\* Sampling*, 2014). `None` for a greedy sampler.
    ///
    /// An entry is -T ln(-ln(1 - u)) for one of 2^52 equally distant u in 0..1, where T is the temperature. So it
    /// lies between -3.61 T and 36.75 T, which is below 2^10 for temperatures up to [`MAX_NOISE_TEMPERATURE`]. Noise
    /// beyond this range would have a probability of 2^-52. Rounding noise to units of 2^-18 changes the odds of two
    /// tokens by a factor of at most 1 + 2^-17 / T.
    pub fn noise(&mut self, n: usize) -> Option<Vec<f32>> {
        let Random { temperature, rng, .. } = self.random.as_mut()?;
        Some((0..n).map(|_| (f64::from(*temperature) * gumbel(rng.next_u64())) as f32).collect())
    }
}

/// A Gumbel variable that is made of uniform bits.
fn gumbel(bits: u64) -> f64 {
    let u = ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    -(-(-u).ln_1p()).ln()
}

impl Random {
    fn draw(&mut self, logits: ArrayView1<f32>) -> u32 {
        let max = f64::from(logits[argmax(logits)]);
        let weight = |l: f32| ((f64::from(l) - max) / f64::from(self.temperature)).exp();
        let mut tokens: Vec<(f64, usize)> = logits.iter().enumerate().map(|(i, &l)| (weight(l), i)).collect();
        tokens.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let total: f64 = tokens.iter().map(|t| t.0).sum();
        let mut mass = 0.0;
        let kept = tokens.iter().take_while(|t| {
            let before = mass;
            mass += t.0;
            before < f64::from(self.top_p) * total
        });
        let kept = kept.count().max(1);
        let mut point = self.rng.random_range(0.0..1.0) * tokens[..kept].iter().map(|t| t.0).sum::<f64>();
        for &(weight, token) in &tokens[..kept] {
            point -= weight;
            if point < 0.0 {
                return token as u32;
            }
        }
        tokens[kept - 1].1 as u32
    }
}

/// Index of the largest entry; of equal ones the first.
pub fn argmax(values: ArrayView1<f32>) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array1, array};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn frequencies(temperature: f32, top_p: f32, logits: &Array1<f32>) -> Vec<f64> {
        let mut sampler = Sampler::random(temperature, top_p, StdRng::seed_from_u64(5)).unwrap();
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.pick(logits.view()) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn draws_follow_the_tempered_distribution() {
        let logits = array![1.0f32, -2.0, 0.5, 3.0];
        for temperature in [0.5f32, 1.0, 2.0] {
            let weights: Vec<f64> = logits.iter().map(|l| f64::from(l / temperature).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (f, w) in frequencies(temperature, 1.0, &logits).iter().zip(&weights) {
                // Five standard deviations of a frequency over 20 000 draws are below 0.018.
                assert!((f - w / total).abs() < 0.018);
            }
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_p() {
        // Probabilities 0.5, 0.3, 0.2.
        let logits = array![0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        let one = frequencies(1.0, 0.45, &logits);
        assert!(one[0] == 0.0 && one[1] > 0.999 && one[2] == 0.0);
        let two = frequencies(1.0, 0.7, &logits);
        assert!(two[0] == 0.0 && (two[1] - 0.625).abs() < 0.018 && (two[2] - 0.375).abs() < 0.018);
        let all = frequencies(1.0, 1.0, &logits);
        assert!(all.iter().all(|f| *f > 0.15));
    }

    #[test]
    fn noise_is_bounded_and_needs_a_temperature() {
        assert!((-3.61..-3.60).contains(&gumbel(u64::MAX)) && (36.73..36.74).contains(&gumbel(0)));
        assert!(gumbel(0) * f64::from(MAX_NOISE_TEMPERATURE) < 1024.0);
        // The median is -ln(ln 2).
        assert!((gumbel(1 << 63) + 2f64.ln().ln()).abs() < 1e-12);
        assert_eq!(Sampler::greedy().noise(3), None);
        let random = |temperature, top_p| Sampler::random(temperature, top_p, StdRng::seed_from_u64(5)).unwrap();
        assert_eq!(random(0.0, 0.5).noise(3), None);
        let [first, second] = [random(0.5, 1.0), random(1.0, 1.0)].map(|mut sampler| sampler.noise(3).unwrap());
        assert!(first.iter().zip(&second).all(|(half, whole)| 2.0 * half == *whole && *half != 0.0));
    }

    #[test]
    fn what_looks_at_logits_is_refused_where_tokens_alone_are_revealed() {
        let check = |temperature, top_p, reveal, capped| {
            Sampler::random(temperature, top_p, StdRng::seed_from_u64(1)).unwrap().check(reveal, capped)
        };
        check(100.0, 0.5, Reveal::Logits, true).unwrap();
        check(0.0, 0.5, Reveal::Token, true).unwrap();
        check(16.0, 1.0, Reveal::Token, false).unwrap();
        for (temperature, top_p, capped, words) in
            [(1.0, 0.9, false, "top-p"), (1.0, 1.0, true, "caps its logits"), (16.5, 1.0, false, "above 16")]
        {
            let refused = check(temperature, top_p, Reveal::Token, capped).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }

    #[test]
    fn greedy_and_extremes() {
        assert_eq!(Sampler::greedy().pick(array![1.0f32, 4.0, 4.0].view()), 1);
        let mut zero = Sampler::random(0.0, 0.5, StdRng::seed_from_u64(1)).unwrap();
        assert_eq!(zero.pick(array![1.0f32, 4.0, 4.5].view()), 2);
        let mut cold = Sampler::random(1e-30, 1.0, StdRng::seed_from_u64(1)).unwrap();
        assert_eq!(cold.pick(array![-1e30f32, 1e30].view()), 1);
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, f32::NAN)] {
            assert!(Sampler::random(temperature, top_p, StdRng::seed_from_u64(1)).is_err());
        }
    }
}
