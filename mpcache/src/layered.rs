//! Budgets that differ from layer to layer. They are functions of public numbers.

use std::fmt;
use std::str::FromStr;

use crate::UnknownValue;

/// How a budget is divided among the layers. The mean of the layers is the same in every division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ByLayer {
    /// All layers have the same budget.
    Equal,
    /// Every further layer has a smaller budget.
    Pyramid {
        /// The mean budget divided by the budget of the last layer, the window subtracted from both.
        beta: usize,
    },
    /// Some layers have smaller budgets, and the other layers share what these leave.
    Squeeze {
        /// The layers that have less than the mean.
        light: Light,
        /// The budget of the light layers, as a part of the mean.
        share: f64,
    },
}

/// The layers that have less than the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Light {
    /// The later half of the layers.
    LaterHalf,
    /// The layers of this set.
    Given(LayerSet),
}

/// Some of the first 128 layers. As a text it is made of numbers from 0 and of ranges, with `+` between them, for
/// example `3-5+7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSet(u128);

impl ByLayer {
    /// The budget of layer `layer` of `layers` layers, at most `most`. The mean of all layers is `mean`, and the
    /// window takes `window` tokens of each budget.
    pub fn budget(self, mean: usize, window: usize, layer: usize, layers: usize, most: usize) -> usize {
        match self {
            ByLayer::Equal => mean,
            ByLayer::Pyramid { beta } => pyramid(mean, window, beta, layer, layers, most),
            ByLayer::Squeeze { light, share } => squeeze(mean, light, share, layer, layers, most),
        }
    }

    /// The class of layer `layer`. Layers of one class have the same budget.
    pub fn class(self, layer: usize, layers: usize) -> usize {
        match self {
            ByLayer::Equal => 0,
            ByLayer::Pyramid { .. } => layer,
            ByLayer::Squeeze { light, .. } => usize::from(light.has(layer, layers)),
        }
    }
}

impl Light {
    fn has(self, layer: usize, layers: usize) -> bool {
        match self {
            Light::LaterHalf => layer >= layers.div_ceil(2),
            Light::Given(set) => set.has(layer),
        }
    }
}

impl LayerSet {
    /// The set of these layers. `None` if there are none, or if one of them is 128 or more.
    pub fn new(layers: impl IntoIterator<Item = usize>) -> Option<Self> {
        let mut set = 0u128;
        for layer in layers {
            set |= 1u128.checked_shl(u32::try_from(layer).ok()?)?;
        }
        (set != 0).then_some(LayerSet(set))
    }

    fn has(self, layer: usize) -> bool {
        layer < 128 && self.0 >> layer & 1 == 1
    }

    /// The highest number of a layer in the set.
    pub fn last(self) -> Option<usize> {
        (0..128).rev().find(|layer| self.has(*layer))
    }
}

impl fmt::Display for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut layer = 0;
        let mut first = true;
        while layer < 128 {
            if !self.has(layer) {
                layer += 1;
                continue;
            }
            let end = (layer..128).find(|l| !self.has(*l)).unwrap_or(128);
            f.write_str(if first { "" } else { "+" })?;
            match end - layer {
                1 => write!(f, "{layer}")?,
                _ => write!(f, "{layer}-{}", end - 1)?,
            }
            (first, layer) = (false, end);
        }
        Ok(())
    }
}

impl FromStr for LayerSet {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high && high < 128).then_some(low..=high)
        };
        let ranges: Option<Vec<_>> = text.split('+').map(range).collect();
        let set = ranges.and_then(|ranges| LayerSet::new(ranges.into_iter().flatten()));
        set.ok_or_else(|| UnknownValue::new("layers from 0 to 127, as in 3-5+7"))
    }
}

impl fmt::Display for Light {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Light::LaterHalf => f.write_str("half"),
            Light::Given(set) => set.fmt(f),
        }
    }
}

impl FromStr for Light {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        if text == "half" { Ok(Light::LaterHalf) } else { text.parse().map(Light::Given) }
    }
}

/// The budget of layer `layer`. The part above the window decreases evenly from layer to layer. The last layer has
/// the mean divided by `beta`, and the first has twice the mean less the last layer's part.
fn pyramid(mean: usize, window: usize, beta: usize, layer: usize, layers: usize, most: usize) -> usize {
    let rest = mean.saturating_sub(window);
    // A layer that evicts while text is generated needs two places: one for the newest token and one for another
    // token.
    let least = (rest / beta).max(2usize.saturating_sub(window));
    let first = (2 * rest).saturating_sub(least).min(most.saturating_sub(window)).max(rest);
    let last = 2 * rest - first;
    // Rounded so that the layers together have no more than their mean.
    let less = (layer * (first - last)).div_ceil(layers.max(2) - 1);
    if layers == 1 { mean } else { window + first - less }
}

/// The budget of layer `layer`. The layers `light` have the share `share` of the mean, or more if the other layers
/// cannot use what the light ones leave.
fn squeeze(mean: usize, light: Light, share: f64, layer: usize, layers: usize, most: usize) -> usize {
    let few = (0..layers).filter(|layer| light.has(*layer, layers)).count();
    let others = layers - few;
    if few == 0 || others == 0 {
        return mean;
    }
    // Two places, as in [`pyramid`].
    let small = ((share * mean as f64).round() as usize).max(2).min(mean);
    let large = ((layers * mean - few * small) / others).min(most).max(mean);
    if light.has(layer, layers) { (layers * mean - others * large) / few } else { large }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_a_pyramid_have_their_mean() {
        let of = |mean, window, beta, most| -> Vec<usize> {
            (0..5).map(|layer| pyramid(mean, window, beta, layer, 5, most)).collect()
        };
        // By hand: above the window the mean is 120 tokens, the first layer has 234, the last 6, and each has 57 less
        // than the one before.
        assert_eq!(of(128, 8, 20, usize::MAX), [242, 185, 128, 71, 14]);
        // A prompt of 200 tokens: above the window the first layer has 192 tokens, and so the last has 48.
        assert_eq!(of(128, 8, 20, 200), [200, 164, 128, 92, 56]);
        assert_eq!(of(128, 8, 1, usize::MAX), [128; 5]);
        assert_eq!(pyramid(128, 8, 20, 0, 1, usize::MAX), 128);
        for (mean, window, beta) in [(2, 1, 20), (3, 1, 20), (3, 2, 7), (51, 8, 20), (77, 31, 3)] {
            let layers = of(mean, window, beta, usize::MAX);
            assert!(layers.is_sorted_by(|a, b| a >= b) && layers.iter().all(|n| *n >= window.max(2)), "{layers:?}");
            let sum: usize = layers.iter().sum();
            assert!((5 * mean - 4..=5 * mean).contains(&sum), "{layers:?} of {mean}");
        }
    }

    #[test]
    fn squeezed_layers_have_their_mean_and_no_more_than_there_is() {
        let light: Light = "1+3-4".parse().unwrap();
        let of = |mean, share, most| -> Vec<usize> {
            (0..5).map(|layer| squeeze(mean, light, share, layer, 5, most)).collect()
        };
        // By hand: of 500 tokens in all, three layers get 35 each, and the other two half of the rest each.
        assert_eq!(of(100, 0.35, usize::MAX), [197, 35, 197, 35, 35]);
        // A prompt of 140 tokens: what the heavy layers cannot use goes back to the light ones.
        assert_eq!(of(100, 0.35, 140), [140, 73, 140, 73, 73]);
        assert_eq!(of(100, 1.0, usize::MAX), [100; 5]);
        for (mean, share) in [(2, 0.35), (3, 0.1), (51, 0.35), (77, 0.9)] {
            let layers = of(mean, share, usize::MAX);
            let sum: usize = layers.iter().sum();
            assert!(layers.iter().all(|n| *n >= 2) && sum <= 5 * mean && sum + 5 > 5 * mean, "{layers:?} of {mean}");
        }
        // No layer is heavy, or none is light.
        assert_eq!(squeeze(9, "0".parse().unwrap(), 0.3, 0, 1, 50), 9);
        assert_eq!(squeeze(9, "7".parse().unwrap(), 0.3, 0, 3, 50), 9);
        let half: Vec<bool> = (0..5).map(|layer| Light::LaterHalf.has(layer, 5)).collect();
        assert_eq!(half, [false, false, false, true, true]);
    }

    #[test]
    fn sets_of_layers_have_one_text() {
        for (text, shown) in [("3", "3"), ("7+3-5", "3-5+7"), ("0+1+2", "0-2"), ("120-127", "120-127")] {
            let set: LayerSet = text.parse().unwrap();
            assert_eq!(set.to_string(), shown);
            assert_eq!(set.to_string().parse::<LayerSet>(), Ok(set));
        }
        assert_eq!("3-5+7".parse::<LayerSet>().unwrap().last(), Some(7));
        for refused in ["", "-", "5-3", "128", "1,2", "1+", "one", "3-"] {
            assert!(refused.parse::<LayerSet>().is_err(), "{refused}");
        }
    }
}
