//! Correlations of a decoding step, kind by kind: bytes, OTs and processor time of an entry, beside the time of AES
//! alone. `cargo run --release -p waggle-bench --example preparation -- [CACHED [LINK]]`
//!
//! The step is that of GPT-2 small after CACHED positions (128) over LINK (`lan`). Rows of products with
//! weights are listed by their bytes alone: `he_costs` times them. Both parties run in threads of this
//! process. The time is the processor's, of both, and includes making the OTs.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use waggle_model::{GenerateOptions, Hooks, Input, Model, ModelSpec, Next, Sampler, generate, shape};
use waggle_mpcache::PolicySpec;
use waggle_net::{Role, process_cpu_time};
use waggle_ot::{CotKind, Kernels};
use waggle_planner::{Plan, Planner};
use waggle_protocols::local::Pair;
use waggle_protocols::{CorrelationKind, FixedLoader, Kernel, Needs, Options, Pipeline};

/// Entries that are made at most, and how often: the least time counts.
const MOST: usize = 1 << 14;
const REPETITIONS: usize = 5;

/// A plan has nobody to tell.
struct Nobody;

impl Hooks<Plan> for Nobody {}

/// What a session of `tokens` tokens after a prompt of `prompt` prepares.
fn needs(options: Options, prompt: usize, tokens: usize) -> Result<Needs, Box<dyn std::error::Error>> {
    let spec = ModelSpec::from_config_json(shape("gpt2").ok_or("a shape that is bundled")?)?;
    let weights = Model::load_for(&PolicySpec::default(), &mut FixedLoader::announced(&[])?, &spec, None)?;
    let mut engine = Planner::listing(options).engine();
    let mut sampler = Sampler::greedy();
    let input = Input::unknown(prompt);
    let asked = GenerateOptions { tokens, ..GenerateOptions::default() };
    generate(&mut engine, &weights, input, &asked, Next::Pick(&mut sampler), &mut Nobody)?;
    Ok(engine.into_abb().needs())
}

/// Nanoseconds of a call of AES-128 by the kernels that run here, many in flight: half a leaf of a half tree.
fn aes() -> f64 {
    let mut tree = waggle_ot::probe::loops(Kernels::Detected).swap_remove(0);
    let mut least = f64::MAX;
    for _ in 0..20 {
        let start = process_cpu_time().unwrap_or_default();
        (0..100).for_each(|_| (tree.run)());
        let spent = process_cpu_time().unwrap_or_default() - start;
        least = least.min(spent.as_nanos() as f64 / (100 * tree.units / 2) as f64);
    }
    least
}

/// Processor time of both parties for `units` of `kind`.
fn timed(options: Options, kind: &CorrelationKind, units: usize) -> Result<Duration, waggle_protocols::Error> {
    let mut pair = Pair::new(options)?;
    let mut least = Duration::MAX;
    for _ in 0..REPETITIONS {
        let start = process_cpu_time().unwrap_or_default();
        pair.run(|abb| kind.make(abb.session(), units, &mut Pipeline::default()))?;
        least = least.min(process_cpu_time().unwrap_or_default() - start);
    }
    Ok(least)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let cached = arguments.next().map_or(Ok(128), |text| text.parse())?;
    let link = arguments.next().unwrap_or_else(|| "lan".to_owned()).parse()?;
    let options = Options { preprocess: true, link, ..Options::default() };
    let step = needs(options, cached, 2)?.since(&needs(options, cached, 1)?);
    let (aes, mut planner) = (aes(), Planner::listing(options));
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "kind",
        "scope",
        "entries",
        "bytes",
        "OTs",
        "ns",
        "of it AES alone",
        "MB a token",
        "ms a token",
    ]);
    let both = |of: &dyn Fn(Role) -> u64| of(Role::Client) + of(Role::Server);
    let number = |x: f64, digits: usize| Cell::new(format!("{x:.digits$}")).set_alignment(CellAlignment::Right);
    let mut rows_of_weights = (0, 0.0);
    for (kind, &units) in &step.units {
        let cost = kind.cost(planner.plans(), units.min(kind.batch(&options)))?;
        let made = units.min(kind.batch(&options)) as f64;
        let ots = both(&|role| cost.cots_used(role)) as f64 / made;
        let bytes = cost.total_bytes() as f64 / made + ots * CotKind::Silent.bits_per_ot() as f64 / 8.0;
        let hashed = both(&|role| cost.units(role, Kernel::TreeMade) + cost.units(role, Kernel::Pad)) as f64 / made;
        if kind.weight().is_some() {
            rows_of_weights = (rows_of_weights.0 + units, rows_of_weights.1 + bytes * units as f64);
            continue;
        }
        let most = MOST.min(kind.batch(&options));
        let ns = timed(options, kind, most)?.as_nanos() as f64 / most as f64;
        table.add_row([
            Cell::new(format!("{kind:?}").replace("CorrelationKind", "").trim_matches(['(', ')']).trim()),
            Cell::new(kind.scope()),
            number(units as f64, 0),
            number(bytes, 0),
            number(ots, 0),
            number(ns, 0),
            number(hashed * aes, 0),
            number(bytes * units as f64 / 1e6, 2),
            number(ns * units as f64 / 1e6, 1),
        ]);
    }
    let (rows, bytes) = rows_of_weights;
    let none = || Cell::new("");
    table.add_row([
        Cell::new("MaskedRow, of all matrices"),
        Cell::new("linear"),
        number(rows as f64, 0),
        number(bytes / rows as f64, 0),
        number(0.0, 0),
        none(),
        none(),
        number(bytes / 1e6, 2),
        none(),
    ]);
    println!("{} ({}), a call of AES {aes:.2} ns\n\n{table}", waggle_bits::cpu::Cpu::get(), Kernels::Detected.name());
    Ok(())
}
