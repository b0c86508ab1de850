//! `waggle eval`: what pruning the cache costs in accuracy.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser};
use rayon::prelude::*;
use serde_json::Value;
use waggle::program::{Stated, again, ids_of, open_model, public_facts, public_model, read_text, texts, tokenizer};
use waggle::{DEFAULT_MODEL, GlueStudy, Network, PromptError, StudyEngine, Terms};
use waggle_files::{at, check_writable, write, write_json};
use waggle_model::{FloatModel, ModelFiles};
use waggle_mpcache::PolicySpec;
use waggle_protocols::Cores;
use waggle_report::table::{Document, Format};
use waggle_session::PublicPrefix;
use waggle_study::cost::{Phases, Piece, Sessions, Work, WorkCost};
use waggle_study::eval::{
    Candidate, Sequence, StudyReport, Subject, TASKS, Task, TaskInput, TokenCost, candidates, evaluation, learned,
    passes as passes_of, study_attention,
};
use waggle_study::glue;

use super::error::{EvalError, make_dir};
use super::machine::{self, Calibrated, CalibrationArgs, provenance};
use super::options::{FormatArgs, LINKS, named};
use super::out::note;
use super::policies::{self, Policies};
use super::progress::{passes, studied};
use super::prompt::PublicArgs;
use super::{Error, html, plot};

/// Measures what cache policies cost in accuracy, on a text or another task, teacher-forced, for every policy at
/// every budget.
///
/// POLICIES are entries with `;` between them. An entry is a name, several names with commas between them, or one
/// name with options: `NAME:KEY=VALUE,KEY=VALUE`. Commas after a colon therefore belong to the options, and a name
/// after options needs a `;`, as in 'streaming,h2o;mpcache:topk=rank;tova'. The budgets come from --budgets, but a
/// policy with a `budget` of its own runs at that one alone, and one that knows none as it is. `full` always runs.
///
/// With --public-prefix every sequence stands behind that text. `full` then sees all of it, and everything else what
/// --prefix-policy keeps of it, the full cache among them.
#[derive(Args, Debug)]
pub(super) struct EvalArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    /// Task that the model is given.
    #[arg(long, default_value = "text", value_parser = task_names())]
    task: String,
    /// Text to score, or the haystack of needles: a file, or with the ending .json a list of texts, which are joined.
    /// Bundled are tinystories.json and tinyshakespeare.txt [default: of a bundled model its own].
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    text: Option<PathBuf>,
    /// Sequences. For recall JSON lines {"ids": [...], "queries": [...]}; the right token after the position q of a
    /// query is ids[q + 1]; bundled are those of the model `recall`, queries.jsonl. For longbench the field's own
    /// lines: input, context, answers, dataset. For glue a task's own file, columns with tabs between them or JSON
    /// lines, of sentences, perhaps pairs, with labels or scores; bundled are those of `whose-line`, whose-line.tsv.
    #[arg(long, value_name = "FILE", required_if_eq_any = [("task", "recall"), ("task", "longbench"), ("task", "glue")])]
    data: Option<PathBuf>,
    /// Prompts of longbench by data set: a JSON object like the authors' dataset2prompt.json [default: the context,
    /// an empty line, the input].
    #[arg(long, value_name = "FILE", requires = "data")]
    prompts: Option<PathBuf>,
    /// Lengths of needle's haystacks in tokens [default: a quarter, a half and all of --context].
    #[arg(long, value_name = "N,N", value_delimiter = ',', num_args = 1)]
    lengths: Option<Vec<usize>>,
    /// Depths of needles, from 0 at the beginning to 1 [default: 0,0.25,0.5,0.75,1].
    #[arg(long, value_name = "D,D", value_delimiter = ',', num_args = 1)]
    depths: Option<Vec<f64>>,
    /// Seed of all that needle and key-value draw at random [default: 0].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Policies to compare with `full`; may be repeated. The form of a list is given above.
    #[arg(long, value_name = "POLICIES", value_parser = policies::list, default_value = "full")]
    policies: Vec<Policies>,
    /// Shares of the cache, in (0, 1], or tokens, from 2 on, for policies that take them [default:
    /// 0.05,0.1,0.25,0.5,1].
    #[arg(long, value_name = "B,B", value_delimiter = ',', num_args = 1)]
    budgets: Option<Vec<f64>>,
    /// Tokens of a sequence of text, or at most of another task's [default: 256 of a text and of
    /// the rest of one, else the model's positions].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens that go through the model at once; what follows is scored [default: half of a text, four fifths of a
    /// recall sequence; the other tasks choose it].
    #[arg(long, value_name = "P")]
    prompt: Option<usize>,
    /// Sequences [default: 4 of a text, all of the data, 16 of key-value, of rouge-2 and rouge-l, 1 for each length
    /// and depth of needle].
    #[arg(long, value_name = "S", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    sequences: Option<usize>,
    /// Engine of the study: f32, fixed point in the clear, or two parties in this process.
    #[arg(long, value_parser = named(&StudyEngine::NAMES), default_value = "float")]
    engine: StudyEngine,
    /// Plan the longest sequence between two parties over LINK as well, under every policy, in two phases: bytes,
    /// flows and seconds of a token, the mean of those decoded after the prompt, for the table and for plots.
    #[arg(long, value_name = LINKS)]
    costs: Option<Network>,
    /// Plan products under encryption for parties with so many cores each, or for a client and a server with these
    /// [default: those of the calibration, or 40]. With fewer the plan computes less and sends more. One party's word
    /// is enough; two must be equal.
    #[arg(long, value_name = "N|CLIENT+SERVER", requires = "costs")]
    cores: Option<Cores>,
    #[command(flatten)]
    public: PublicArgs,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results here in the form of lm-evaluation-harness.
    #[arg(long, value_name = "FILE")]
    lm_eval: Option<PathBuf>,
    /// Write plots into this directory, as SVG and as text for LaTeX.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Look at the attention of the full cache instead, in the layers that see all tokens: how many pages hold 99 %
    /// of it, how well estimates find the pages with the largest scores, ranks of pages over decode steps, and shares
    /// of the tokens that are important to all queries, to certain ones or to none (IA, IC, UIA). --plots draws ranks
    /// and a map of heads, and writes the ranks as ranks.csv.
    #[arg(long, conflicts_with_all = ["policies", "budgets", "costs", "engine", "json", "lm_eval", "x", "out", "public text"])]
    observe: bool,
    /// Sizes of pages in tokens, for --observe. Ranks are those of the last size.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "16,32", requires = "observe", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pages: Vec<usize>,
    /// Heads that --observe draws, numbered from 0 [default: head 0 of the first, the middle and the last layer].
    #[arg(long, value_name = "LAYER.HEAD,LAYER.HEAD", value_delimiter = ',', requires = "observe", value_parser = head)]
    heads: Vec<(usize, usize)>,
    /// Draw the metrics against this option of the policies, such as `alpha` or `clusters`, instead.
    #[arg(long, value_name = "OPTION")]
    x: Option<plot::X>,
    /// Write everything into this directory: table.md, report.json, report.html and the plots.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const DEFAULT_BUDGETS: [f64; 5] = [0.05, 0.1, 0.25, 0.5, 1.0];

/// The names of the tasks, for clap.
fn task_names() -> PossibleValuesParser {
    let tasks = TASKS.iter().map(|task| (task.name, task.about)).chain([(glue::TASK, glue::ABOUT)]);
    PossibleValuesParser::new(tasks.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// Parses a layer and a head, for clap.
fn head(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('.').and_then(|(layer, head)| Some((layer.parse().ok()?, head.parse().ok()?)));
    parts.ok_or_else(|| "a head is LAYER.HEAD, as in 2.0".into())
}

pub(super) fn run(args: EvalArgs) -> Result<(), Error> {
    args.check_outputs()?;
    if args.task == glue::TASK {
        return args.glue();
    }
    if args.observe {
        return args.observe();
    }
    let files = open_model(&args.model)?;
    let prefix = match args.public.read()? {
        Some(public) => Some(public.encoded(tokenizer(&files)?.as_ref())?),
        None => None,
    };
    let task = Task::named(&args.task).ok_or(EvalError::NoText)?;
    let sequences = args.sequences(task, &files)?;
    let candidates = args.candidates(prefix.as_ref())?;
    let bar = passes(passes_of(&sequences, &candidates));
    let (chosen, tick) = (args.chosen(&sequences, prefix.as_ref()), || bar.inc(1));
    let again = again(args.engine, &args.model, &learned(&candidates))?;
    let subject = Subject { files, again, engine: args.engine, prefix: prefix.clone() };
    let mut study = evaluation(subject, chosen, &sequences, &candidates, &tick)?;
    study.provenance = provenance();
    bar.finish_and_clear();
    if let Some(link) = args.costs {
        let calibrated = args.calibration.open()?.ok();
        let cores = args.cores.unwrap_or_else(|| machine::cores(calibrated.as_ref()));
        plan_costs(&mut study, &args.model, &sequences, prefix.as_ref(), (link, cores), calibrated.as_ref())?;
    }
    // The files are written first, as the reader of the table may leave early.
    args.write(&study, task)?;
    for (policy, budgets) in study.alike() {
        note(format_args!(
            "{policy} keeps and chooses the same at the budgets {}: the text may be too short for its clusters or blocks",
            budgets.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
        ));
    }
    args.format.show(study.table())
}

/// Plans the longest of `sequences` under every policy of `study` that two parties can run, and adds the costs to
/// `study`. The first row is that of the full cache, behind all of `prefix`.
fn plan_costs(
    study: &mut StudyReport,
    model: &str,
    sequences: &[Sequence],
    prefix: Option<&PublicPrefix>,
    (link, cores): (Network, Cores),
    calibrated: Option<&Calibrated>,
) -> Result<(), Error> {
    let Some(longest) = sequences.iter().max_by_key(|sequence| sequence.ids().len()) else { return Ok(()) };
    // The first pass is over the prompt and not planned here. If it is the only pass, the token after it is planned.
    let (prompt, tokens) = (longest.prompt(), longest.passes().saturating_sub(1).max(1));
    let piece = Piece { work: Work::Token, texts: 1, length: prompt, tokens };
    let shape = link.shape();
    let setting = calibrated.and_then(|calibrated| calibrated.machines.setting(cores, shape));
    machine::note_others(calibrated, &[cores]);
    let plain = public_model(model, &PolicySpec::default(), &Stated::default())?;
    let rows = study.rows.iter_mut().enumerate();
    let mut rows: Vec<_> = rows.filter(|(_, row)| !row.policy.clear_only()).collect();
    let bar = passes(rows.len());
    rows.par_iter_mut().try_for_each(|(at, row)| {
        // Learned columns of a policy change the shape of the model.
        let learned =
            row.policy.scoring_head().map(|_| public_model(model, &row.policy, &Stated::default())).transpose()?;
        let public = learned.as_ref().unwrap_or(&plain);
        let phases = Phases::Two;
        let mut terms = Terms::in_phases(phases).policy(row.policy.clone()).cores(cores).over(link)?;
        terms.prefix = if *at == 0 { prefix.map(PublicPrefix::whole) } else { prefix.cloned() };
        let cost = Sessions::plan(public, &terms, shape, setting.as_ref(), piece)?.whole();
        let WorkCost { online, prepared, prepared_prompt, .. } = cost;
        let total = cost.total();
        row.cost = Some(TokenCost {
            prompt,
            tokens,
            phases: Some(phases.name().into()),
            link: Some(link.to_string()),
            cores: Some(cores.to_string()),
            online_bytes: online.bytes(),
            prepared_bytes: prepared.bytes(),
            prepared_prompt_bytes: prepared_prompt.map(|cost| cost.bytes()),
            flows: online.flows,
            online_network_seconds: Some(online.network_seconds),
            network_seconds: total.network_seconds,
            predicted_seconds: online.predicted_seconds.zip(total.predicted_seconds).map(|(a, b)| [a, b]),
        });
        bar.inc(1);
        Ok::<_, Error>(())
    })?;
    bar.finish_and_clear();
    Ok(())
}

impl EvalArgs {
    /// Runs the task whose answers are classes or scores. Its policy is `full`, of whose rows some may end.
    fn glue(&self) -> Result<(), Error> {
        self.check_taken(glue::TASK, &["data", "sequences"])?;
        let study = GlueStudy::default().model(&*self.model).data(self.data.clone().unwrap_or_default());
        let (bar, mut watch) = studied();
        let policy = self.named().next().cloned().unwrap_or_default();
        let study = study.sequences(self.sequences).engine(self.engine).policy(policy).run_with(&mut watch)?;
        bar.finish_and_clear();
        if let Some(path) = &self.json {
            write_json(path, &study)?;
        }
        if let Some(path) = &self.lm_eval {
            write_json(path, &study.lm_eval())?;
        }
        self.format.show(study.table())
    }

    /// Studies the attention of the full cache.
    fn observe(&self) -> Result<(), Error> {
        let files = open_model(&self.model)?;
        let task = Task::named(&self.task).ok_or(EvalError::NoText)?;
        let sequences = self.sequences(task, &files)?;
        let model = FloatModel::open(&PolicySpec::default(), &files)?;
        let bar = passes(sequences.len());
        let study = study_attention(&model, &sequences, &self.pages, &self.heads, &|| bar.inc(1))?;
        bar.finish_and_clear();
        if let Some(dir) = &self.plots {
            plot::save(&plot::of_attention(&study, &files.name)?, dir)?;
            let ranks = Document::from(study.ranks()).render(Format::Csv, None);
            write(&dir.join("ranks.csv"), format!("{ranks}\n").as_bytes())?;
        }
        self.format.show(study.document())
    }

    /// Refuses the first given option that `task` does not take. All tasks take the options about policies, except
    /// the task without policies.
    fn check_taken(&self, task: &'static str, takes: &'static [&'static str]) -> Result<(), Error> {
        let of_input = [
            ("text", self.text.is_some()),
            ("data", self.data.is_some()),
            ("prompts", self.prompts.is_some()),
            ("context", self.context.is_some()),
            ("prompt", self.prompt.is_some()),
            ("sequences", self.sequences.is_some()),
            ("lengths", self.lengths.is_some()),
            ("depths", self.depths.is_some()),
            ("seed", self.seed.is_some()),
        ];
        let of_policies = [
            ("budgets", self.budgets.is_some()),
            ("policies", self.named().count() > 1 || self.named().any(|policy| !policy.keeps_all())),
            ("costs", self.costs.is_some()),
            ("plots", self.plots.is_some()),
            ("observe", self.observe),
            ("out", self.out.is_some()),
            ("public-prefix", self.public.is_given()),
        ];
        let given = of_input.into_iter().chain(of_policies.into_iter().filter(|_| task == glue::TASK));
        match given.into_iter().find(|(name, given)| *given && !takes.contains(name)) {
            Some((option, _)) => Err(EvalError::NotOfTask { option, task, takes }.into()),
            None => Ok(()),
        }
    }

    fn sequences(&self, task: &Task, files: &ModelFiles) -> Result<Vec<Sequence>, Error> {
        self.check_taken(task.name, task.takes)?;
        let tokenizer = tokenizer(files)?.map(Arc::new);
        if tokenizer.is_none() && self.text.is_some() {
            return Err(PromptError::NoTokenizer.into());
        }
        let own = own_text(&self.model).filter(|_| self.data.is_none() && task.takes.contains(&"text"));
        let texts = self.text.as_deref().or(own).map(texts).transpose()?;
        let data = self.data.as_deref().map(read_text).transpose()?;
        let prompts = self.prompts.as_deref().map(read_text).transpose()?;
        let input = TaskInput {
            spec: &files.spec,
            tokenizer,
            texts: texts.as_deref(),
            data: data.as_deref(),
            prompts: prompts.as_deref(),
            context: self.context,
            prompt: self.prompt,
            sequences: self.sequences,
            lengths: self.lengths.as_deref(),
            depths: self.depths.as_deref(),
            seed: self.seed.unwrap_or(0),
        };
        Ok((task.sequences)(&input)?)
    }

    fn budgets(&self) -> &[f64] {
        self.budgets.as_deref().unwrap_or(&DEFAULT_BUDGETS)
    }

    /// The candidates: those of the policies and, if the public text is pruned, the full cache behind it.
    fn candidates(&self, prefix: Option<&PublicPrefix>) -> Result<Vec<Candidate>, Error> {
        let behind = prefix.map(PublicPrefix::policy).filter(|policy| **policy != PolicySpec::default());
        let behind = behind.map(Candidate::behind).into_iter();
        let candidates: Vec<_> = behind.chain(candidates(self.named(), self.budgets())?).collect();
        let pruned = self.named().filter(|policy| **policy != PolicySpec::default());
        let used = pruned.into_iter().any(|policy| policy.takes("budget") && policy.option("budget").is_none());
        if !used && self.budgets.is_some() || candidates.is_empty() && self.plots.is_some() {
            return Err(EvalError::NothingPruned.into());
        }
        Ok(candidates)
    }

    fn named(&self) -> impl Iterator<Item = &PolicySpec> {
        self.policies.iter().flat_map(|list| &list.0)
    }

    /// The options of the study, for the report. Files are given by name only.
    fn chosen(&self, sequences: &[Sequence], prefix: Option<&PublicPrefix>) -> BTreeMap<String, Value> {
        let file = |path: &Option<PathBuf>| {
            path.as_ref().and_then(|p| p.file_name()).map(|name| name.to_string_lossy().into_owned())
        };
        let chosen = [
            ("task", self.task.clone().into()),
            ("engine", self.engine.to_string().into()),
            ("text", file(&self.text).into()),
            ("data", file(&self.data).into()),
            ("prompts", file(&self.prompts).into()),
            ("seed", self.seed.into()),
            ("costs", self.costs.map(|link| link.to_string()).into()),
            ("policies", self.named().map(PolicySpec::to_string).collect::<Vec<_>>().into()),
            ("budgets", self.budgets().into()),
            ("context", sequences.iter().map(|s| s.ids().len()).max().into()),
            ("prompt", sequences.iter().map(Sequence::prompt).max().into()),
        ];
        let chosen = chosen.into_iter().chain(prefix.into_iter().flat_map(public_facts));
        chosen.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The bundled text that is like the training text of the bundled model `name`.
pub(super) fn own_text(name: &str) -> Option<&'static Path> {
    let text = match name {
        "stories260k" => "tinystories.json",
        "shakespeare-gpt2" | "shakespeare-llama" => "tinyshakespeare.txt",
        _ => return None,
    };
    Some(Path::new(text))
}

/// The first `count` sequences of `context` tokens from the text in `path`. The first `prompt` tokens of each go
/// through the model at once.
pub(super) fn cut_text(
    files: &ModelFiles,
    path: &Path,
    context: usize,
    prompt: usize,
    count: usize,
) -> Result<Vec<Sequence>, Error> {
    let ids = text_ids(files, path, context.saturating_mul(count))?;
    Ok(Sequence::cut(&ids, context, prompt, count)?)
}

/// The token ids of the texts in a file, one text after another. Once there are `enough` ids, further texts are left
/// out.
pub(super) fn text_ids(files: &ModelFiles, path: &Path, enough: usize) -> Result<Vec<u32>, Error> {
    Ok(ids_of(&texts(path)?, tokenizer(files)?.as_ref(), enough)?)
}

impl EvalArgs {
    /// The path of the file `name` in the directory of `--out`.
    fn inside(&self, name: &str) -> Option<PathBuf> {
        self.out.as_ref().map(|dir| dir.join(name))
    }

    /// The directories into which plots are written.
    fn plot_dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.plots.iter().chain(&self.out)
    }

    /// Makes directories and checks that all files can be written, before any work.
    fn check_outputs(&self) -> Result<(), Error> {
        self.plot_dirs().try_for_each(|dir| make_dir(dir))?;
        let inside = ["report.json", "table.md", "report.html"].into_iter().filter_map(|name| self.inside(name));
        let plots = self.plot_dirs().map(|dir| dir.join("plot.svg"));
        let files = self.json.iter().chain(&self.lm_eval).cloned().chain(inside).chain(plots);
        files.into_iter().try_for_each(|file| Ok(check_writable(Some(&file))?))
    }

    fn write(&self, study: &StudyReport, task: &Task) -> Result<(), Error> {
        for path in self.json.iter().cloned().chain(self.inside("report.json")) {
            write_json(&path, study)?;
        }
        if let Some(path) = &self.lm_eval {
            write_json(path, &study.lm_eval(task))?;
        }
        for dir in self.plot_dirs() {
            plot::save(&plot::of_study(study, &plot::Sheet::against(self.x.clone()))?, dir)?;
        }
        let Some(dir) = &self.out else { return Ok(()) };
        write(&dir.join("table.md"), format!("{}\n", study.markdown()).as_bytes())?;
        let (path, name) = (dir.join("report.html"), dir.file_name().unwrap_or_default());
        let json = serde_json::to_value(study).map_err(|e| at(&path)(e.into()))?;
        Ok(write(&path, html::of_study(&name.to_string_lossy(), study, &json)?.as_bytes())?)
    }
}
