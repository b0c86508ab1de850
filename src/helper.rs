//! `waggle helper`: the third machine, which deals correlations and sees no value.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use waggle::{Allow, Helper, HelperConfig, HelperDeals, Network, Proof};
use waggle_net::{Identity, PublicKey};

use super::child::Line;
use super::connect::{BusyArgs, DoorArgs};
use super::options::{LINKS, link_between_processes, named, seconds, set};
use super::{Error, log, out};

/// Deals the correlations of sessions between clients and servers, which name this helper (`--helper`). It has no
/// model, sees no prompt and no other value, only kinds and numbers of correlations, which follow from the shape of
/// the model and the lengths, and of weights random halves at most. It must not collude with either party: with one
/// of them it could compute what the other hides. The three have three keys (--identity), and the helper lets in
/// those in --allow. One line on standard output says when parties may come.
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
    /// Keep halves of weights in at most so many bytes of memory, 8 a weight: those that sessions use, and of the
    /// others those of the servers that came last. A session that takes more is refused.
    #[arg(long, value_name = "BYTES", default_value_t = HelperConfig::default().max_weights)]
    max_weights: u64,
    /// Most sessions at once, those that wait for their second party included; a party beyond is refused.
    #[arg(long, value_name = "N", default_value_t = HelperConfig::default().sessions)]
    sessions: usize,
    /// Most sessions of one key at once, those that wait included.
    #[arg(long, value_name = "N", default_value_t = HelperConfig::default().max_sessions_per_key)]
    max_sessions_per_key: usize,
    #[command(flatten)]
    busy: BusyArgs,
    #[command(flatten)]
    door: DoorArgs,
    /// Log events of this importance and above, on standard error.
    #[arg(long, value_parser = named(&log::LEVELS), value_name = "LEVEL", default_value = "info")]
    log: log::LevelFilter,
    /// Talk JSON on standard output, and deal to the two parties that name each other. For `demo`.
    #[arg(long, hide = true, requires = "once")]
    machine: bool,
}

pub(super) fn run(args: HelperArgs) -> Result<(), Error> {
    let _flush = log::start(if args.machine { log::LevelFilter::ERROR } else { args.log }, log::Format::Text);
    let (allow, proof) = match args.machine {
        true if !args.door.is_plaintext() => (Allow::Any, Proof::Own(Arc::new(Identity::generate()?))),
        _ => (args.door.allow(), args.door.proof()),
    };
    let config = HelperConfig::default().network(args.link).allow(allow).proof(proof);
    let config = set!(config, args.busy => session_limit, handshake_timeout, max_idle, max_idle_per_address);
    let config = set!(config, args => listen, once, timeout, max_weights, sessions, max_sessions_per_key);
    let helper = config.bind()?;
    if args.machine {
        Line::Listening { address: helper.address(), key: helper.key() }.print()?;
        return Ok(helper.run()?);
    }
    let key = helper.key().map_or("without encryption".into(), |key| format!("with the key {key}"));
    // If the line cannot be written, the helper goes on.
    let _ = out::line(format_args!("helping on {} {key}", helper.address()));
    Ok(helper.run()?)
}

/// The helper of a session.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct HelpedArgs {
    /// Let the helper at this address (`waggle helper`; without a port, 7412) deal what is prepared and contains no
    /// weight. Both parties must name the same one. It sees shapes and lengths, no values, and must not collude with
    /// either party. Implies --preprocess; takes no conversation. A pool is dealt when it is filled: the session that
    /// spends it names the same helper and does not ask it.
    #[arg(long, value_name = "ADDR")]
    helper: Option<String>,
    /// The helper's public key, which it prints. Needed unless nothing is encrypted.
    #[arg(long, value_name = "KEY", requires = "helper")]
    helper_key: Option<PublicKey>,
    /// Let the helper deal products with weights, too, so that nothing is prepared by encryption. The server sends it
    /// a random half of every weight once, 4 to 8 bytes each. Together with the client it could compute the weights.
    #[arg(long, requires = "helper")]
    helper_weights: bool,
    #[command(flatten)]
    parties: PartiesArgs,
}

/// How many machines take part.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct PartiesArgs {
    /// Parties of the session. With three, the helper deals everything right before each pass, products with weights
    /// among it, and nothing is prepared ahead. Takes no guesses.
    #[arg(long, value_name = "2|3", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    parties: u8,
}

impl PartiesArgs {
    /// Whether there are three parties.
    pub(super) fn are_three(self) -> bool {
        self.parties == 3
    }
}

impl HelpedArgs {
    /// Whether there are three parties and the address of the third is missing.
    pub(super) fn lacks_third(&self) -> bool {
        self.parties.are_three() && self.helper.is_none()
    }

    /// The helper, if there is one. Three parties need one.
    pub(super) fn helper(&self) -> Result<Option<Helper>, Error> {
        let deals = match self.parties.are_three() {
            true => HelperDeals::Passes,
            false if self.helper_weights => HelperDeals::Weights,
            false => HelperDeals::Words,
        };
        match &self.helper {
            Some(address) => {
                let address = waggle::program::address(address, PORT)?;
                Ok(Some(Helper { address, key: self.helper_key, deals }))
            }
            None if self.parties.are_three() => Err(Error::ThirdParty),
            None => Ok(None),
        }
    }

    /// The arguments by which another party of the session names the same helper.
    pub(super) fn arguments(helper: &Helper) -> impl Iterator<Item = String> {
        let key = helper.key.map(|key| format!("--helper-key={key}"));
        let deals = match helper.deals {
            HelperDeals::Passes => Some("--parties=3".to_owned()),
            HelperDeals::Weights => Some("--helper-weights".to_owned()),
            HelperDeals::Words | HelperDeals::Nothing => None,
        };
        [format!("--helper={}", helper.address)].into_iter().chain(key).chain(deals)
    }
}

/// The port of a helper whose address names none.
const PORT: u16 = 7412;
