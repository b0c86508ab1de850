//! `waggle classify`: the party with a text or an image, whose class or masked word a server's encoder gives.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use waggle::program::{harmless, read_text};
use waggle::{Answer, Pads, Prompt, PromptError, Request, TokenizerOf};
use waggle_files::{check_writable, write_json};
use waggle_report::table::{Cell, Table};

use super::advice::told_of;
use super::connect::ConnectArgs;
use super::helper::HelpedArgs;
use super::options::{FormatArgs, TermsArgs};
use super::pools::warn_of_others;
use super::progress::Progress;
use super::report_tables::{cost_line, write_logits};
use super::{Error, out};

/// Asks the encoder of a server for the class of a text or an image. The server learns neither it nor the class.
///
/// A model with the head of a masked word gives the word in the place of the text's one mask, which is written as
/// the tokenizer does: [MASK] or <mask>. The server does not learn where it is.
///
/// With `--reveal logits` the client learns the logits of all classes, and with `--reveal token` the class alone.
///
/// A model with `problem_type` multi_label_classification finds each class by itself: all are printed with their
/// probabilities, sigmoids of their logits, where these are known; a table has the likeliest.
#[derive(Args, Debug)]
pub(super) struct ClassifyArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The text; needs a tokenizer.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["text_ids", "image", "file"])]
    text: Option<String>,
    /// A second text, beside which the encoder reads the first: an answer, a claim, a translation.
    #[arg(long, value_name = "TEXT", requires = "text")]
    pair: Option<String>,
    /// The text as token ids, those that begin and end it included, for models without a tokenizer.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', num_args = 1, conflicts_with = "text")]
    text_ids: Option<Vec<u32>>,
    /// Hide how long the text is: pad it to the next of these lengths, which anybody may know, or with `auto` to the
    /// next power of two from 16 on. The server sees the padded length alone.
    #[arg(long, value_name = "auto|N,N", num_args = 0..=1, default_missing_value = "auto")]
    pad: Option<Pads>,
    /// An image in the place of a text, a PNG or a JPEG, for a model that reads images.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "text_ids", "pad"])]
    image: Option<PathBuf>,
    /// Many texts or images, a JSON object a line: {"text": ..}, {"text": .., "pair": ..}, {"ids": [..]} or
    /// {"image": FILE}. All lines are checked before the first session begins. The answer is a table with the number
    /// of each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "text_ids", "image"])]
    file: Option<PathBuf>,
    /// Lines of --file that the model reads side by side, in one pass and one session, padded to the longest of them
    /// or as --pad says. The server learns how many there are.
    #[arg(long, value_name = "N", default_value = "8", requires = "file")]
    batch: NonZeroUsize,
    #[command(flatten)]
    format: FormatArgs,
    /// Use the tokenizer of this directory, or this `tokenizer.json` alone, instead of the server's.
    #[arg(long, value_name = "DIR", conflicts_with = "image")]
    tokenizer: Option<PathBuf>,
    /// Use this `preprocessor_config.json` instead of the server's.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "text_ids", "tokenizer"])]
    preprocessor: Option<PathBuf>,
    /// Take the correlations from this file of `waggle preprocess`, as `generate` does.
    #[arg(long, value_name = "FILE")]
    pool: Option<PathBuf>,
    /// Write the logits of all classes here; with --file, of a single batch.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Write the report here; with --file, of a single batch.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    helped: HelpedArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// A line of a file of inputs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: Option<String>,
    pair: Option<String>,
    ids: Option<Vec<u32>>,
    image: Option<PathBuf>,
}

impl TryFrom<Line> for Prompt {
    type Error = &'static str;

    fn try_from(line: Line) -> Result<Self, &'static str> {
        match line {
            Line { text: Some(text), pair: None, ids: None, image: None } => Ok(Prompt::Text(text)),
            Line { text: Some(text), pair: Some(pair), ids: None, image: None } => Ok(Prompt::Pair(text, pair)),
            Line { text: None, pair: None, ids: Some(ids), image: None } => Ok(Prompt::Ids(ids)),
            Line { text: None, pair: None, ids: None, image: Some(image) } => Ok(Prompt::Image(image)),
            _ => Err("give `text`, perhaps with `pair`, or `ids`, or `image`"),
        }
    }
}

/// The inputs of a file with a JSON object on each line.
pub(super) struct Inputs {
    path: PathBuf,
    pub(super) prompts: Vec<Prompt>,
    /// The number of each input's line, from 1.
    pub(super) lines: Vec<usize>,
}

impl Inputs {
    pub(super) fn open(path: &Path) -> Result<Self, waggle::Error> {
        let text = read_text(path)?;
        let inputs = waggle_files::json_lines::<Line>(&text).map(|(line, read)| {
            let input = read.and_then(|read| Ok((Prompt::try_from(read)?, line)));
            input.map_err(|what| PromptError::Line { path: path.into(), line, what })
        });
        let (prompts, lines): (Vec<Prompt>, Vec<usize>) = inputs.collect::<Result<_, _>>()?;
        if prompts.is_empty() {
            Err(PromptError::Empty.into())
        } else {
            Ok(Inputs { path: path.into(), prompts, lines })
        }
    }
}

/// `error` with the number of an input replaced by the number of its line.
pub(super) fn by_line(inputs: Option<&Inputs>, error: waggle::Error) -> waggle::Error {
    match (inputs, error) {
        (Some(Inputs { path, lines, .. }), waggle::Error::Prompt(PromptError::Input { input, source }))
            if (1..=lines.len()).contains(&input) =>
        {
            PromptError::Line { path: path.clone(), line: lines[input - 1], what: told_of(&source) }.into()
        }
        (_, error) => error,
    }
}

pub(super) fn run(args: ClassifyArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    check_writable(args.logits.as_deref())?;
    args.pool.iter().for_each(|path| warn_of_others(path));
    let tokenizer = args.tokenizer.or(args.preprocessor).map_or(TokenizerOf::Server, TokenizerOf::File);
    let request = Request::default().tokens(1).class(true).pad_prompt(args.pad).pool(args.pool).tokenizer(tokenizer);
    let client = args.connect.client(args.terms.terms()?.helper(args.helped.helper()?));
    let inputs = args.file.as_deref().map(Inputs::open).transpose()?;
    let answer = |request: &Request| {
        let mut progress = Progress::bars(1);
        let generated = client.generate_with(request, &mut |event| progress.hear(event));
        let generated = generated.map_err(|e| by_line(inputs.as_ref(), e));
        let generated = progress.finish(generated)?;
        out::note(cost_line(&generated));
        if let Some(path) = &args.json {
            write_json(path, &generated.report)?;
        }
        write_logits(args.logits.as_deref(), &generated)?;
        Ok::<_, Error>(generated)
    };
    let Some(inputs) = &inputs else {
        let input = match (args.image, args.text_ids, args.text.unwrap_or_default(), args.pair) {
            (Some(image), ..) => Prompt::Image(image),
            (None, Some(ids), ..) => Prompt::Ids(ids),
            (None, None, text, None) => Prompt::Text(text),
            (None, None, text, Some(pair)) => Prompt::Pair(text, pair),
        };
        let generated = answer(&request.prompt(input))?;
        let answers = generated.answers();
        if args.format.is_for_programs() {
            return args.format.show(found(answers.into_iter().map(|answer| (1, answer))));
        }
        for (name, probability) in answers.iter().flat_map(|answer| &answer.each) {
            out::line(format!("{name} {probability:.3}"))?;
        }
        return match answers.iter().find_map(Answer::score) {
            Some(score) => out::line(score),
            None if answers.iter().all(|answer| answer.each.is_empty()) => out::line(harmless(generated.text())),
            None => Ok(()),
        };
    };
    let batches = request.batches(&inputs.prompts, args.batch)?;
    let single = [("--json", &args.json), ("--logits", &args.logits)].into_iter().find(|(_, file)| file.is_some());
    if let (Some((option, _)), sessions @ 2..) = (single, batches.len()) {
        let wrong = PromptError::Batches { option, sessions, inputs: inputs.prompts.len() };
        return Err(waggle::Error::from(wrong).into());
    }
    args.format.check(&found([]))?;
    let mut all = Vec::new();
    for batch in &batches {
        all.extend(answer(batch)?.answers());
    }
    args.format.show(found(inputs.lines.iter().copied().zip(all)))
}

/// A table of the answers, with the number of each line.
fn found(answers: impl IntoIterator<Item = (usize, Answer)>) -> Table {
    let mut table = Table::new(1, [("line", ""), ("class", ""), ("probability", ""), ("score", "")]);
    for (line, found) in answers {
        let fraction = |x: f32| Cell::number(x, format!("{x:.3}"));
        table.add([
            Cell::count(line as u64),
            Cell::maybe(found.class.clone(), Cell::text),
            Cell::maybe(found.probability(), fraction),
            Cell::maybe(found.score(), fraction),
        ]);
    }
    table
}
