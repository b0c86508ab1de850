//! `waggle helper`: the third machine, which deals correlations and sees no value.

use std::time::Duration;

use clap::Args;
use net::PublicKey;

use super::connect::DoorArgs;
use super::options::{LINKS, link_between_processes, named, seconds, set};
use super::{Error, log, out};
use crate::{Helper, HelperConfig, HelperDeals, Network};

/// Deals the correlations of sessions between clients and servers that name this helper (`--helper`). It has no model,
/// sees no prompt and no other value, only kinds and numbers of correlations, which follow from the shape of the model
/// and the lengths, and of weights random halves at most. It must not collude with either party: with one of them it
/// could compute what the other hides. One line on standard output says when parties may come.
#[derive(Args, Debug)]
pub(super) struct HelperArgs {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7412")]
    listen: String,
    /// End after one session, with its exit code.
    #[arg(long)]
    once: bool,
    /// Slow this machine's messages down to those of a network.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: Network,
    /// Give up on a party that is silent, or whose peer does not come, for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Keep halves of weights in at most so many bytes of memory, 8 a weight: those of the servers that came last. A
    /// session that takes more is refused.
    #[arg(long, value_name = "BYTES", default_value_t = HelperConfig::default().max_weights)]
    max_weights: u64,
    #[command(flatten)]
    door: DoorArgs,
    /// Log events of this importance and above, on standard error.
    #[arg(long, value_parser = named(&log::LEVELS), value_name = "LEVEL", default_value = "info")]
    log: log::LevelFilter,
}

pub(super) fn run(args: HelperArgs) -> Result<(), Error> {
    let _flush = log::start(args.log, log::Format::Text);
    let config = HelperConfig::default().network(args.link).allow(args.door.allow()).proof(args.door.proof());
    let helper = set!(config, args => listen, once, timeout, max_weights).bind()?;
    let key = helper.key().map_or("without encryption".into(), |key| format!("with the key {key}"));
    // If nobody takes the line, the helper goes on.
    let _ = out::line(format_args!("helping on {} {key}", helper.address()));
    Ok(helper.run()?)
}

/// The helper of a session.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct HelpedArgs {
    /// Let the helper at this address (`waggle helper`; without a port, 7412) deal what is prepared and contains no
    /// weight. Both parties must name the same one. It sees shapes and lengths, no values, and must not collude with
    /// either party. Implies --preprocess; takes no pool and no conversation.
    #[arg(long, value_name = "ADDR")]
    helper: Option<String>,
    /// The helper's public key, which it prints. Needed unless nothing is encrypted.
    #[arg(long, value_name = "KEY", requires = "helper")]
    helper_key: Option<PublicKey>,
    /// Let the helper deal products with weights, too, so that nothing is prepared by encryption. The server sends it a
    /// random half of every weight once, 4 to 8 bytes each. Together with the client it could compute the weights.
    #[arg(long, requires = "helper")]
    helper_weights: bool,
}

impl HelpedArgs {
    /// The helper, if there is one.
    pub(super) fn helper(&self) -> Option<Helper> {
        let address = crate::client::address(self.helper.as_deref()?, PORT);
        let deals = if self.helper_weights { HelperDeals::Weights } else { HelperDeals::Words };
        Some(Helper { address, key: self.helper_key, deals })
    }
}

/// The port of a helper where none is named.
const PORT: u16 = 7412;
