//! Traffic as real numbers: means over steps, sums over layers.

use std::collections::BTreeMap;
use std::ops::{Add, AddAssign, Mul, Sub};

use net::{Phase, Shape, Traffic};

/// An account of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Account {
    /// What the traffic was for.
    pub(crate) phase: Phase,
    /// Its scopes, outermost first, separated by `/`.
    pub(crate) path: String,
}

/// What was booked.
pub(crate) type Accounts = BTreeMap<Account, Traffic>;

/// Bytes, flows and wall-clock time of a part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Bytes from client to server.
    pub(crate) bytes_client_to_server: f64,
    /// Bytes from server to client.
    pub(crate) bytes_server_to_client: f64,
    /// Changes of direction.
    pub(crate) flows: f64,
    /// Wall-clock time; 0 in a plan.
    pub(crate) seconds: f64,
}

impl Cost {
    /// Bytes both ways.
    pub(crate) fn bytes(&self) -> f64 {
        self.bytes_client_to_server + self.bytes_server_to_client
    }

    /// Time on a network of `shape`, without computation: an estimate on the slow side, see [`Shape::predict`].
    pub(crate) fn network_seconds(&self, shape: Shape) -> f64 {
        let bytes = [self.bytes_client_to_server, self.bytes_server_to_client].map(|b| b.round() as u64);
        shape.predict(bytes, self.flows.round() as u64).as_secs_f64()
    }
}

impl From<Traffic> for Cost {
    fn from(t: Traffic) -> Self {
        Cost {
            bytes_client_to_server: t.bytes_client_to_server as f64,
            bytes_server_to_client: t.bytes_server_to_client as f64,
            flows: t.flows as f64,
            seconds: t.time.as_secs_f64(),
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        self + other * -1.0
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            bytes_client_to_server: self.bytes_client_to_server + other.bytes_client_to_server,
            bytes_server_to_client: self.bytes_server_to_client + other.bytes_server_to_client,
            flows: self.flows + other.flows,
            seconds: self.seconds + other.seconds,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Mul<f64> for Cost {
    type Output = Cost;

    fn mul(self, factor: f64) -> Cost {
        Cost {
            bytes_client_to_server: self.bytes_client_to_server * factor,
            bytes_server_to_client: self.bytes_server_to_client * factor,
            flows: self.flows * factor,
            seconds: self.seconds * factor,
        }
    }
}

/// What a token costs: with the data, and making correlations before it (booked `offline`; here made on the spot).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Split {
    /// With the data.
    pub(crate) online: Cost,
    /// Correlations.
    pub(crate) offline: Cost,
}

impl Split {
    /// The accounts that `weight` keeps, times the number it gives them. Set-up is left out: a session has it once.
    pub(crate) fn of(accounts: &Accounts, weight: impl Fn(&str) -> Option<f64>) -> Self {
        let mut split = Split::default();
        for (Account { phase, path }, traffic) in accounts {
            let Some(weight) = weight(path) else { continue };
            match phase {
                Phase::Setup => {}
                Phase::Offline => split.offline += Cost::from(*traffic) * weight,
                Phase::Prefill | Phase::Decode => split.online += Cost::from(*traffic) * weight,
            }
        }
        split
    }

    /// Both.
    pub(crate) fn total(&self) -> Cost {
        self.online + self.offline
    }
}

impl Add for Split {
    type Output = Split;

    fn add(self, other: Split) -> Split {
        Split { online: self.online + other.online, offline: self.offline + other.offline }
    }
}
