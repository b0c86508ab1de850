//! Terms that both parties must state alike, and the network between them.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::{Map, Value};
use waggle_engine::LogitBits;
use waggle_model::Reveal;
use waggle_mpcache::PolicySpec;
use waggle_net::shaped::ParseShapeError;
use waggle_net::{Link, LinkShape, Shaped};
use waggle_ot::CotKind;
use waggle_protocols::{Cores, HelperDeals, Masks, Packing};
use waggle_session::names::{HELPERS, MASKS, OT_SOURCES, PACKINGS, REVEALS, name};
use waggle_session::party;
use waggle_study::cost::Phases;

use crate::error::OptionsError;
use crate::options::options;
use crate::{Error, Helper, Report};

options! {
    /// Terms that both parties of a session must state alike. The client alone chooses the number of phases.
    Terms {
        /// The output that the client learns of each position: all logits, or one token. A server states the most
        /// that it permits, by default logits to its own key and tokens to all others. A client states what it wants,
        /// by default what the server permits.
        reveal: Option<Reveal> as impl Into<Option<Reveal>> = None,
        /// Fractional bits of the logits that the client learns, rounded at random.
        logit_bits: LogitBits = LogitBits::default(),
        /// Which part of the key/value cache a token looks at: `"h2o:budget=0.25".parse()?`.
        policy: PolicySpec = PolicySpec::default(),
        /// Source of correlated oblivious transfers.
        ot: CotKind = CotKind::Silent,
        /// Whether all correlations that do not depend on the prompt's words are made first, in large batches. By
        /// default a client makes none first, and a server leaves the choice to its clients.
        preprocess: Option<bool> as impl Into<Option<bool>> = None,
        /// Whether several results of a matrix product share a ciphertext.
        packing: Packing = Packing::Auto,
        /// Cores for which products under encryption are planned. By default a session takes the cores that each
        /// party has. It is enough if one party states them.
        cores: Option<Cores> as impl Into<Option<Cores>> = None,
        /// The network for which the session is planned, whatever network is imitated. By default the parties of a
        /// real network measure it. It is enough if one party states it.
        plan_for: Option<LinkShape> as impl Into<Option<LinkShape>> = None,
        /// How products with weights are prepared, in sessions of two phases.
        masks: Masks = Masks::Seeded,
        /// Tokens of a chunk of the prompt. With `None`, the session picks chunks that bound its memory.
        prefill_chunk: Option<NonZeroUsize> as impl Into<Option<NonZeroUsize>> = None,
        /// The third machine that deals prepared correlations. A helper implies two phases.
        helper: Option<Helper> as impl Into<Option<Helper>> = None,
        /// For a plan: the numbers that the parties of the planned session found out together.
        found: Option<party::Findings> as impl Into<Option<party::Findings>> = None,
    }
}

/// The key under which a report has what the parties found out together.
const MET: &str = "met";

/// Cores that a plan assumes of unknown machines.
pub const ASSUMED_CORES: Cores = Cores::each(waggle_protocols::DEFAULT_CORES);

impl Terms {
    /// The terms of a planned session with these `phases`.
    pub fn in_phases(phases: Phases) -> Self {
        Terms::default().preprocess(phases.prepares()).helper(Helper::for_phases(phases))
    }

    /// The terms that a party states for a session over `network`. The session is planned for the shape of `network`,
    /// if it has one, unless [`plan_for`](Terms::plan_for) says otherwise.
    pub fn over(&self, network: Network) -> Result<party::Terms, Error> {
        let link = self.plan_for.or(network.shape());
        let open = party::Open { cores: self.cores.is_none(), link: link.is_none(), reveal: self.reveal.is_none() };
        let link = link.unwrap_or(LinkShape::MEMORY);
        if self.helper.as_ref().is_some_and(|helper| helper.key.is_none() && helper.deals.weights()) {
            return Err(waggle_session::Error::PlainHalves.into());
        }
        let helper = self.helper.as_ref().map(Helper::name);
        if helper.is_some() && self.preprocess == Some(false) {
            return Err(OptionsError::HelperNeedsPreprocess.into());
        }
        let preprocess = self.preprocess.unwrap_or(helper.is_some());
        let Terms { ot, packing, masks, reveal, logit_bits, prefill_chunk, .. } = *self;
        let cores = self.cores.unwrap_or_else(Cores::here);
        let deals = self.helper.as_ref().map_or(HelperDeals::Nothing, |helper| helper.deals);
        let protocol = waggle_protocols::Options { ot, preprocess, link, packing, cores, masks, helper: deals };
        let reveal = reveal.unwrap_or_default();
        let policy = self.policy.clone();
        if policy.clear_only() {
            return Err(OptionsError::ClearOnly(policy.to_string()).into());
        }
        let (found, imitated) = (self.found.clone(), network.shape());
        let others = Vec::new();
        Ok(party::Terms {
            protocol,
            reveal,
            logit_bits,
            policy,
            others,
            prefill_chunk,
            prefix: None,
            helper,
            imitated,
            open,
            found,
        })
    }

    /// These terms for two parties of one user on this machine. They share the machine's cores, and need not ask each
    /// other about terms that are left open.
    pub fn together(&self, network: Network) -> Self {
        let link = self.plan_for.or(network.shape()).unwrap_or(LinkShape::MEMORY);
        let reveal = self.reveal.unwrap_or_default();
        self.clone().cores(self.cores.unwrap_or_else(Cores::here)).plan_for(link).reveal(reveal)
    }

    /// These terms, planned for the link of a pool unless the caller states another.
    pub(crate) fn planned_like(&self, pool: Option<LinkShape>) -> Self {
        self.clone().plan_for(self.plan_for.or(pool))
    }

    /// These terms, with what they leave open of cores, link and measurements taken from the session of `report`.
    ///
    /// # Errors
    /// As [`Terms::of_report`].
    pub fn as_in(self, report: &Report) -> Result<Self, Error> {
        let Terms { cores, plan_for, mut found, .. } = Terms::of_report(report)?;
        if let Some(found) = found.as_mut().filter(|_| self.plan_for.is_some()) {
            found.bursts = None;
        }
        Ok(Terms { cores: self.cores.or(cores), plan_for: self.plan_for.or(plan_for), found, ..self })
    }

    /// These terms with two phases, which pools need. Terms that ask for one phase are refused, and so are those of
    /// three parties, which have no pools.
    pub(crate) fn two_phases(&self) -> Result<Self, Error> {
        let passes = self.helper.as_ref().is_some_and(|helper| helper.deals == HelperDeals::Passes);
        match self.preprocess {
            _ if passes => Err(waggle_session::Error::PassesPool.into()),
            Some(false) => Err(OptionsError::PoolNeedsPreprocess.into()),
            _ => Ok(self.clone().preprocess(true)),
        }
    }

    /// The terms that `report` names.
    ///
    /// # Errors
    /// [`OptionsError::Unplannable`] for a value that this version does not know.
    pub fn of_report(report: &Report) -> Result<Self, Error> {
        fn read<T>(
            report: &Report,
            name: &'static str,
            of: impl FnOnce(&str) -> Option<T>,
        ) -> Result<Option<T>, Error> {
            let Some(text) = report.options.get(name).and_then(Value::as_str) else { return Ok(None) };
            of(text).map(Some).ok_or_else(|| OptionsError::Unplannable(name).into())
        }
        fn of<T: Copy, const N: usize>(table: [(&'static str, T); N]) -> impl FnOnce(&str) -> Option<T> {
            move |text| table.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value)
        }
        let terms = Terms::default();
        let key = report.options.get("helper").and_then(Value::as_str).and_then(|key| key.parse().ok());
        let helper = |deals| Helper { key, ..Helper::assumed(deals) };
        Ok(Terms {
            reveal: read(report, "reveal", of(REVEALS))?,
            logit_bits: read(report, "logit-bits", |text| text.parse().ok())?.unwrap_or(terms.logit_bits),
            policy: read(report, "policy", |text| text.parse().ok())?.unwrap_or(terms.policy),
            ot: read(report, "ot", of(OT_SOURCES))?.unwrap_or(terms.ot),
            preprocess: read(report, "preprocess", |text| text.parse().ok())?,
            packing: read(report, "packing", of(PACKINGS))?.unwrap_or(terms.packing),
            cores: read(report, "cores", |text| text.parse().ok())?,
            masks: read(report, "masks", of(MASKS))?.unwrap_or(terms.masks),
            plan_for: read(report, "plan-for", |text| text.parse().ok())?,
            prefill_chunk: None,
            helper: read(report, "helper-deals", of(HELPERS))?.map(helper),
            found: match report.options.get(MET) {
                Some(found) => Some(party::Findings::deserialize(found).map_err(|_| OptionsError::Unplannable(MET))?),
                None => None,
            },
        })
    }
}

/// Names and values of the terms, as the command line and reports have them.
pub fn by_name(terms: &party::Terms) -> Vec<(&'static str, String)> {
    let party::Terms { protocol, reveal, logit_bits, policy, prefill_chunk, .. } = terms;
    let chunk = prefill_chunk.map(|chunk| ("prefill-chunk", chunk.to_string()));
    [
        ("reveal", name(&REVEALS, reveal).to_owned()),
        ("logit-bits", logit_bits.to_string()),
        ("policy", policy.to_string()),
        ("ot", name(&OT_SOURCES, &protocol.ot).to_owned()),
        ("preprocess", protocol.preprocess.to_string()),
        ("packing", name(&PACKINGS, &protocol.packing).to_owned()),
        ("cores", protocol.cores.to_string()),
        ("masks", name(&MASKS, &protocol.masks).to_owned()),
        ("plan-for", protocol.link.to_string()),
    ]
    .into_iter()
    .chain(chunk)
    .collect()
}

/// Terms by name, as a report has them, with every setting of the policy, given or default, and what the parties
/// found out.
pub(crate) fn named(terms: &party::Terms) -> impl Iterator<Item = (String, Value)> {
    let settings = terms.policy.settings().iter();
    let settings: Map<String, Value> =
        settings.map(|setting| (setting.key.to_owned(), setting.value.clone().into())).collect();
    let by_name = by_name(terms).into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    let met = terms.found.as_ref().and_then(|met| serde_json::to_value(met).ok());
    let found =
        [("policy_settings".to_owned(), settings.into())].into_iter().chain(met.map(|met| (MET.to_owned(), met)));
    let deals = name(&HELPERS, &terms.protocol.helper);
    let helper = terms.helper.clone().map(|key| [("helper", key), ("helper-deals", deals.to_owned())]);
    let helper = helper.into_iter().flatten().map(|(name, value)| (name.to_owned(), value.into()));
    by_name.chain(found).chain(helper)
}

/// The connection between the parties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Network {
    /// Both parties in one process.
    Memory,
    /// TCP at its own speed.
    Loopback,
    /// TCP that both parties slow down to a network of this shape.
    Imitated(LinkShape),
}

impl FromStr for Network {
    type Err = ParseShapeError;

    fn from_str(text: &str) -> Result<Self, ParseShapeError> {
        match text {
            "memory" => Ok(Network::Memory),
            "loopback" => Ok(Network::Loopback),
            _ => text.parse().map(Network::Imitated),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Network::Memory => f.write_str("memory"),
            Network::Loopback => f.write_str("loopback"),
            Network::Imitated(shape) => shape.fmt(f),
        }
    }
}

impl Network {
    /// This network. [`Network::Memory`] is an error, as it is within one process.
    pub fn between_processes(self) -> Result<Self, OptionsError> {
        if self == Network::Memory { Err(OptionsError::NoMemory) } else { Ok(self) }
    }

    /// The shape to imitate, if there is one.
    pub fn shape(self) -> Option<LinkShape> {
        match self {
            Network::Imitated(shape) => Some(shape),
            Network::Memory | Network::Loopback => None,
        }
    }

    /// Slows the bytes that this party sends on `link` to another process.
    pub(crate) fn wrap(self, link: impl Link + 'static) -> Result<Box<dyn Link>, Error> {
        let Some(shape) = self.between_processes()?.shape() else { return Ok(Box::new(link)) };
        let shaped =
            Shaped::new(link, shape).map_err(|source| waggle_net::NetError::Io { step: "shape the link", source })?;
        Ok(Box::new(shaped))
    }
}
