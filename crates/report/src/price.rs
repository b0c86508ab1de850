//! The price and the energy of a run.

use std::str::FromStr;

use thiserror::Error;

/// Prices of a session's traffic and computation, and the power of a core. Each is absent unless it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Price of one core for an hour, in any currency with cents.
    pub core_hour: Option<f64>,
    /// Price of a gigabyte (10^9 bytes) of traffic, in the same currency.
    pub gigabyte: Option<f64>,
    /// Watts that a busy core draws.
    pub watts: Option<f64>,
}

/// The error of a text that does not state prices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}`: prices are core-hour=X, gb=Y or both, X and Y from 0 on")]
pub struct ParsePriceError(String);

impl Price {
    /// The price, in cents, of `bytes` of traffic and of `core_seconds`, the seconds of all cores of both parties.
    /// `None` if no price is given, or if computation has a price but `core_seconds` are not known.
    pub fn cents(&self, bytes: f64, core_seconds: Option<f64>) -> Option<f64> {
        let sent = self.gigabyte.map(|price| price * bytes / 1e9);
        let computed = self.core_hour.map(|price| Some(price * core_seconds? / 3600.0));
        match (sent, computed) {
            (None, None) | (_, Some(None)) => None,
            (sent, computed) => Some(100.0 * (sent.unwrap_or(0.0) + computed.flatten().unwrap_or(0.0))),
        }
    }

    /// Joules that the cores of both parties draw in `core_seconds`. `None` if the power or the seconds are not
    /// known.
    pub fn joules(&self, core_seconds: Option<f64>) -> Option<f64> {
        Some(self.watts? * core_seconds?)
    }

    /// Whether a price of traffic or of computation is given.
    pub fn is_given(&self) -> bool {
        self.core_hour.or(self.gigabyte).is_some()
    }
}

/// Reads `core-hour=0.04,gb=0.08`, or one of the two.
impl FromStr for Price {
    type Err = ParsePriceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParsePriceError(text.into());
        let mut price = Price::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value: f64 = value.parse().map_err(|_| wrong())?;
            let place = match name {
                "core-hour" => &mut price.core_hour,
                "gb" => &mut price.gigabyte,
                _ => return Err(wrong()),
            };
            if !value.is_finite() || value < 0.0 || place.replace(value).is_some() {
                return Err(wrong());
            }
        }
        Ok(price)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_has_no_price() {
        let both: Price = "core-hour=0.04,gb=0.08".parse().unwrap();
        // 2 GB and nine hours of a core.
        let cents = both.cents(2e9, Some(9.0 * 3600.0)).unwrap();
        assert!((cents - 52.0).abs() < 1e-9, "{cents}");
        assert_eq!(both.cents(2e9, None), None);
        let sent: Price = "gb=0.5".parse().unwrap();
        assert_eq!((sent.cents(2e9, None), sent.joules(Some(1.0))), (Some(100.0), None));
        assert_eq!(Price::default().cents(2e9, Some(1.0)), None);
        assert_eq!(Price { watts: Some(3.0), ..Price::default() }.joules(Some(2.0)), Some(6.0));
        for wrong in ["", "gb", "gb=x", "gb=-1", "gb=inf", "gb=1,gb=2", "kwh=1", "gb=1,"] {
            assert_eq!(wrong.parse::<Price>(), Err(ParsePriceError(wrong.into())), "{wrong}");
        }
    }
}
