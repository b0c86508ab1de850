//! Weights in fixed point, the same for every box.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::matrix::{FixedMatrix, WEIGHT_BITS};
use crate::spread::{Spread, largest_of_all};
use crate::{Error, FRAC, LINEAR_WIDTH};
use waggle_engine::{WeightData, WeightLoader, WeightSpec};
use waggle_he::WeightCache;

/// Fractional bits of a weight whose entries are all below 2^(WEIGHT_BITS - DEFAULT_WEIGHT_FRAC) = 16.
pub const DEFAULT_WEIGHT_FRAC: u32 = 16;

/// The fewest fractional bits of a weight. A weight with an entry of 2^16 or more would have fewer and is refused: no
/// trained model has one, and its small entries would vanish.
pub const MIN_WEIGHT_FRAC: u32 = 4;

/// Entries in fixed point of a matrix that is published in 8 bits ([`WeightSpec::narrow`]) are below 2^NARROW_BITS in
/// magnitude.
///
/// The largest entry is 127 steps of its scale, and 2^11 units or more unless the weight has all
/// [`DEFAULT_WEIGHT_FRAC`] fractional bits. So a step of the largest scale is 16 units at least. Lines of smaller
/// scales, and gains that are folded in, take some of these four bits. In `waggle eval --engine fixed`, 12 bits
/// change the logarithm of a sequence's perplexity by 0.1 to 0.4 of what 8 bits changed it (root mean square over
/// sequences of three bundled models). 11 bits change it by 0.3 to 0.7 of that, and 10 bits by 0.4 to 1.7.
pub const NARROW_BITS: u32 = 12;

/// Fractional bits that an activation keeps for a product with a narrow matrix. Dropping the others sends nothing
/// (`ops::truncate`), and 2^-14 is far below what 8 bits lose.
const NARROW_INPUT_FRAC: u32 = 14;

const _: () =
    assert!(NARROW_INPUT_FRAC + MIN_WEIGHT_FRAC >= FRAC, "products have the fractional bits of activations");

/// A weight as integers: entry = round(w 2^frac).
#[derive(Clone, Debug)]
pub struct FixedWeight {
    /// Name and shape.
    pub spec: WeightSpec,
    /// Fractional bits of the matrix, MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC. Public.
    pub frac: u32,
    /// The integers; `None` for a party that does not know the weight.
    pub values: Option<FixedValues>,
}

/// The integers of a [`FixedWeight`].
#[derive(Clone, Debug)]
pub struct FixedValues {
    /// The matrix of shape (inputs, outputs), at `frac` fractional bits, with magnitudes below
    /// 2^[`bits`](FixedWeight::bits).
    pub matrix: FixedMatrix,
    /// The bias of length `outputs`, at [`product_frac`](FixedWeight::product_frac) fractional bits, with magnitudes
    /// below 2^([`width`](FixedWeight::width) - 2). All zeros if the weight has no bias.
    pub bias: Vec<i64>,
}

impl FixedWeight {
    /// A weight of which only the shape and the fractional bits are known.
    pub fn with_frac(spec: &WeightSpec, frac: u32) -> Self {
        Self { spec: spec.clone(), frac, values: None }
    }

    /// Bits of an entry's magnitude: it is below 2^bits. Public.
    pub fn bits(&self) -> u32 {
        if self.spec.narrow { NARROW_BITS } else { WEIGHT_BITS }
    }

    /// Fractional bits of an activation that is multiplied by this weight. Public.
    pub fn input_frac(&self) -> u32 {
        if self.spec.narrow { NARROW_INPUT_FRAC } else { FRAC }
    }

    /// Fractional bits of products with this weight, [`FRAC`] or more. Public.
    pub fn product_frac(&self) -> u32 {
        self.input_frac() + self.frac
    }

    /// Bits of the ring of products y with this weight: |y| < 2^(width - 2). Public. The ring of a narrow weight has
    /// one bit less than [`LINEAR_WIDTH`] for every fractional bit that products have less than FRAC +
    /// DEFAULT_WEIGHT_FRAC. So products may reach 2^(LINEAR_WIDTH - 2 - FRAC - DEFAULT_WEIGHT_FRAC) = 2^20 with any
    /// weight.
    pub fn width(&self) -> u32 {
        let fewer = FRAC + DEFAULT_WEIGHT_FRAC - self.product_frac();
        if self.spec.narrow { LINEAR_WIDTH - fewer } else { LINEAR_WIDTH }
    }

    /// The integers.
    ///
    /// # Errors
    /// [`waggle_engine::Error::NoValues`] where they are not known.
    pub fn known(&self) -> Result<&FixedValues, Error> {
        self.values.as_ref().ok_or_else(|| waggle_engine::Error::NoValues { tensor: self.spec.name.clone() }.into())
    }
}

/// Rounds a weight to fixed point. All its data is read once, to choose the number of fractional bits: the most, up
/// to [`DEFAULT_WEIGHT_FRAC`], that keep every entry below 2^[`bits`](FixedWeight::bits). The integers are made when
/// they are read.
///
/// # Errors
/// Errors name the tensor. Errors of [`WeightData::check`]; [`Error::TooLarge`] for an entry of 2^(bits -
/// MIN_WEIGHT_FRAC) or more, or for a bias beyond the ring of the products.
pub fn quantise(spec: &WeightSpec, data: WeightData) -> Result<FixedWeight, Error> {
    quantise_over(spec, data, None)
}

/// [`quantise`], where each process of `spread` reads its own columns.
fn quantise_over(spec: &WeightSpec, data: WeightData, spread: Option<&dyn Spread>) -> Result<FixedWeight, Error> {
    let largest = match spread {
        None => data.check(spec)?,
        Some(spread) => data.check_by(spec, |matrix| largest_of_all(spread, matrix))?,
    };
    let bits = FixedWeight::with_frac(spec, DEFAULT_WEIGHT_FRAC).bits();
    let fits = |frac: u32| scaled(largest, frac) < (1 << bits);
    let Some(frac) = (MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC).rev().find(|&f| fits(f)) else {
        let value = data.find(|v| v.abs() == largest).map_or(largest, |(_, value)| value);
        let limit = (1u32 << (bits - MIN_WEIGHT_FRAC)) as f32;
        return Err(Error::TooLarge { tensor: spec.name.clone(), value, limit });
    };

    let weight = FixedWeight::with_frac(spec, frac);
    let (bias_scale, width) = (weight.product_frac(), weight.width());
    let bias = match data.bias {
        None => vec![0; spec.outputs],
        Some(bias) => {
            let bound = 1i64 << (width - 2);
            if let Some(&value) = bias.iter().find(|&&v| scaled(v, bias_scale).abs() >= bound) {
                let limit = (1u64 << (width - 2 - bias_scale)) as f32;
                return Err(Error::TooLarge { tensor: spec.name.clone(), value, limit });
            }
            bias.iter().map(|&v| scaled(v, bias_scale)).collect()
        }
    };
    let matrix = FixedMatrix::bounded(data.matrix, frac, bits);
    Ok(FixedWeight { values: Some(FixedValues { matrix, bias }), ..weight })
}

/// Loads weights in fixed point. The number of fractional bits follows from known values, or the other party
/// announces it. If a party has both, they must agree ([`Error::OtherScale`]).
#[derive(Debug, Default)]
pub struct FixedLoader {
    frac_bits: Vec<u32>,
    announced: VecDeque<u32>,
    cache: Option<Arc<WeightCache>>,
    spread: Option<Arc<dyn Spread>>,
}

impl FixedLoader {
    /// A loader for weights without values. `frac_bits` are the numbers of fractional bits that the other party
    /// announced, in the order in which the weights are loaded. Weights beyond these have [`DEFAULT_WEIGHT_FRAC`].
    ///
    /// # Errors
    /// [`Error::Scale`] for a number that [`quantise`] never chooses.
    pub fn announced(frac_bits: &[u32]) -> Result<Self, Error> {
        match frac_bits.iter().find(|frac| !(MIN_WEIGHT_FRAC..=DEFAULT_WEIGHT_FRAC).contains(*frac)) {
            Some(&got) => Err(Error::Scale { low: MIN_WEIGHT_FRAC, high: DEFAULT_WEIGHT_FRAC, got }),
            None => Ok(FixedLoader { announced: frac_bits.iter().copied().collect(), ..FixedLoader::default() }),
        }
    }

    /// A loader of weights whose transforms are kept in `cache` ([`FixedMatrix::keep_in`]). No other loader may use
    /// this cache.
    pub fn keeping(cache: WeightCache) -> Self {
        FixedLoader { cache: Some(Arc::new(cache)), ..FixedLoader::default() }
    }

    /// Lets all processes of `spread`, which load the same weights, find largest entries and compute products
    /// together.
    pub fn spread_over(self, spread: Arc<dyn Spread>) -> Self {
        FixedLoader { spread: Some(spread), ..self }
    }

    /// Fractional bits of the weights loaded so far, in order. Public: each number tells the other party roughly the
    /// logarithm of the matrix's largest entry.
    pub fn frac_bits(&self) -> &[u32] {
        &self.frac_bits
    }

    /// The weight with a numbered matrix. The matrix is known by its number in the cache and to other processes.
    fn numbered(&self, weight: FixedWeight) -> FixedWeight {
        let number = self.frac_bits.len();
        let values = weight.values.map(|FixedValues { mut matrix, bias }| {
            if let Some(cache) = &self.cache {
                matrix = matrix.keep_in(cache.clone(), number as u64);
            }
            if let Some(spread) = &self.spread {
                matrix = matrix.spread_over(spread.clone(), number);
            }
            FixedValues { matrix, bias }
        });
        FixedWeight { values, ..weight }
    }
}

impl WeightLoader for FixedLoader {
    type Weight = FixedWeight;

    fn load(&mut self, spec: &WeightSpec, data: Option<WeightData>) -> Result<FixedWeight, waggle_engine::Error> {
        let announced = self.announced.pop_front();
        let weight = match data {
            Some(data) => self.numbered(quantise_over(spec, data, self.spread.as_deref())?),
            None => FixedWeight::with_frac(spec, announced.unwrap_or(DEFAULT_WEIGHT_FRAC)),
        };
        if let Some(announced) = announced.filter(|announced| *announced != weight.frac) {
            return Err(Error::OtherScale { tensor: spec.name.clone(), announced, own: weight.frac }.into());
        }
        self.frac_bits.push(weight.frac);
        Ok(weight)
    }
}

/// round(v 2^frac). A value that does not fit becomes the nearest one that does.
fn scaled(v: f32, frac: u32) -> i64 {
    (f64::from(v) * (1u64 << frac) as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array1, Array2, arr2};

    fn spec(inputs: usize, outputs: usize) -> WeightSpec {
        WeightSpec::new("h.1.w", inputs, outputs)
    }

    fn quantised(matrix: Array2<f32>, bias: Option<Array1<f32>>) -> Result<FixedWeight, Error> {
        quantise(&spec(matrix.nrows(), matrix.ncols()), WeightData::new(matrix, bias))
    }

    #[test]
    fn entries_are_rounded_at_the_scale_that_fits() {
        for (largest, frac) in [(0.0f32, 16), (15.999, 16), (16.0, 15), (-31.9, 15), (1000.0, 10), (65535.0, 4)] {
            let w = quantised(arr2(&[[largest, 0.3], [-0.1, 1.0]]), Some(Array1::from(vec![1.5, -2.0]))).unwrap();
            assert_eq!(w.frac, frac, "{largest}");
            let values = w.values.unwrap();
            for (got, want) in values.matrix.to_integers().iter().zip([largest, 0.3, -0.1, 1.0]) {
                assert!(got.abs() < 1 << WEIGHT_BITS);
                assert!(
                    (f64::from(*got) / f64::from(1 << frac) - f64::from(want)).abs() <= 0.5 / f64::from(1 << frac)
                );
            }
            assert_eq!(values.bias, [3 << (FRAC + frac - 1), -(2 << (FRAC + frac))]);
        }
        assert_eq!(quantised(arr2(&[[1.0], [2.0]]), None).unwrap().values.unwrap().bias, [0]);
    }

    #[test]
    fn narrow_weights_have_fewer_bits_and_products_of_the_same_range() {
        let spec = WeightSpec { narrow: true, ..spec(1, 2) };
        for (largest, frac) in [(0.01f32, 16), (0.06, 16), (0.07, 15), (0.9, 12), (1.0, 11), (-255.0, 4)] {
            let bias = Array1::from(vec![1_048_575.0, -1.0]);
            let weight = quantise(&spec, WeightData::new(arr2(&[[largest, 0.004]]), Some(bias))).unwrap();
            assert_eq!(weight.frac, frac, "{largest}");
            assert_eq!((weight.bits(), weight.width()), (NARROW_BITS, 36 + frac));
            let values = weight.known().unwrap();
            assert!(values.matrix.to_integers().iter().all(|w| w.abs() < 1 << NARROW_BITS));
            assert!(values.bias.iter().all(|b| b.abs() < 1 << (weight.width() - 2)));
        }
        let wide = quantise(&spec, WeightData::new(arr2(&[[256.0, 0.0]]), None));
        assert!(matches!(wide, Err(Error::TooLarge { limit: 256.0, .. })), "{wide:?}");
        let bias = Array1::from(vec![0.0, -1_048_576.0]);
        let wide = quantise(&spec, WeightData::new(arr2(&[[1.0, 0.0]]), Some(bias)));
        assert!(matches!(wide, Err(Error::TooLarge { limit: 1_048_576.0, .. })), "{wide:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        match quantised(arr2(&[[1.0, -65536.0]]), None) {
            Err(Error::TooLarge { tensor, value, limit }) => {
                assert_eq!((&*tensor, value, limit), ("h.1.w", -65536.0, 65536.0))
            }
            other => panic!("{other:?}"),
        }
        let wide = quantised(arr2(&[[1.0]]), Some(Array1::from(vec![1_048_576.0])));
        assert!(matches!(wide, Err(Error::TooLarge { limit: 1_048_576.0, .. })), "{wide:?}");
        let nan = quantised(arr2(&[[1.0, 2.0]]), Some(Array1::from(vec![0.0, f32::NEG_INFINITY])));
        assert!(matches!(nan, Err(Error::Engine(waggle_engine::Error::NotFinite { position: 3, .. }))), "{nan:?}");
        let short = quantised(arr2(&[[1.0, 2.0]]), Some(Array1::zeros(1)));
        assert!(matches!(short, Err(Error::Engine(waggle_engine::Error::Shape { .. }))), "{short:?}");
        let other = quantise(&spec(2, 2), WeightData::new(Array2::zeros((2, 1)), None));
        assert!(matches!(other, Err(Error::Engine(waggle_engine::Error::Shape { .. }))), "{other:?}");
    }

    #[test]
    fn weights_without_values_have_the_fractional_bits_announced() {
        let mut loader = FixedLoader::announced(&[4, 12]).unwrap();
        for frac in [4, 12, DEFAULT_WEIGHT_FRAC] {
            let weight = loader.load(&spec(2, 3), None).unwrap();
            assert!(weight.frac == frac && weight.values.is_none());
        }
        assert_eq!(loader.frac_bits(), [4, 12, DEFAULT_WEIGHT_FRAC]);
        for beyond in [3, 17] {
            assert!(matches!(FixedLoader::announced(&[16, beyond]), Err(Error::Scale { got, .. }) if got == beyond));
        }
    }
}
