//! Tests of named tasks on real models: their questions, the models that answer them, and equal sequences on all
//! engines.

use std::sync::Arc;

use waggle_engine::Float;
use waggle_model::{Model, ModelFiles, bundled};
use waggle_protocols::{Fixed, FixedLoader, FixedWeight};
use waggle_session::party::ModelServer;
use waggle_study::eval::{
    Candidate, EvalError, InClear, Scores, Sequence, TASKS, Task, TaskInput, TwoParties, Wanted, evaluate,
};
use waggle_tokenizer::Tokenizer;

fn input(files: &ModelFiles) -> TaskInput<'_> {
    let tokenizer = files.tokenizer.as_deref().map(|bytes| Arc::new(Tokenizer::from_bytes(bytes).unwrap()));
    TaskInput {
        spec: &files.spec,
        tokenizer,
        texts: None,
        data: None,
        prompts: None,
        context: None,
        prompt: None,
        sequences: None,
        lengths: None,
        depths: None,
        seed: 1,
    }
}

fn sequences(task: &str, input: &TaskInput) -> Result<Vec<Sequence>, EvalError> {
    (Task::named(task).expect("a known task").sequences)(input)
}

fn on_float(model: &crate::support::FloatModel, sequences: &[Sequence], policies: &[(&str, f64)]) -> Vec<Scores> {
    let candidates: Vec<Candidate> =
        policies.iter().map(|(policy, budget)| Candidate::new(&policy.parse().unwrap(), *budget).unwrap()).collect();
    let (full, rest) = evaluate(&InClear { model, engine: Float::default }, sequences, &candidates, &|| ()).unwrap();
    std::iter::once(full).chain(rest).collect()
}

fn text_of(files: &ModelFiles, ids: &[u32]) -> String {
    Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap().decode(ids).unwrap()
}

#[test]
fn names_are_known_once() {
    for (i, task) in TASKS.iter().enumerate() {
        assert_eq!(Task::named(task.name).map(|found| found.about), Some(task.about));
        assert!(TASKS[..i].iter().all(|other| other.name != task.name));
        assert!(task.metrics.iter().all(|key| waggle_study::eval::Metric::named(key).is_some()), "{}", task.name);
    }
    assert!(Task::named("nothing").is_none());
}

#[test]
fn a_needle_of_words_lies_where_it_is_asked_to() {
    let files = bundled("shakespeare-llama").unwrap();
    let with = TaskInput { lengths: Some(&[300, 400]), depths: Some(&[0.0, 0.5, 1.0]), ..input(&files) };
    let all = sequences("needle", &with).unwrap();
    assert_eq!(all.len(), 6);
    for sequence in &all {
        let text = text_of(&files, sequence.ids());
        let (length, depth) =
            (sequence.tags()["length"].as_u64().unwrap(), sequence.tags()["depth"].as_f64().unwrap());
        assert!(sequence.ids().len() as u64 <= length && sequence.ids().len() as u64 > length - 80, "{text}");
        let (fact, question) = text.split_once('\n').unwrap();
        let (asked, secret) = question.rsplit_once(' ').unwrap();
        let fact_at = fact.find(&format!("{asked} {secret}.")).unwrap_or_else(|| panic!("no needle in `{text}`"));
        let at = fact_at as f64 / (fact.len() - asked.len() - secret.len() - 2) as f64;
        assert!((at - depth).abs() < 0.25, "{depth}: {text}");
        // The haystack is the prompt, and only the answer is scored: a space and the word, letter by letter.
        assert_eq!(text_of(&files, &sequence.ids()[..sequence.prompt()]), fact);
        assert_eq!(sequence.scored().len(), secret.len() + 1);
        assert_eq!(sequence.scored()[0] + 1, sequence.ids().len() - secret.len() - 1);
    }
    let short = TaskInput { lengths: Some(&[40]), ..input(&files) };
    assert!(matches!(sequences("needle", &short), Err(EvalError::TaskLength { length: 40, .. })));
    let deep = TaskInput { depths: Some(&[1.5]), ..input(&files) };
    assert!(matches!(sequences("needle", &deep), Err(EvalError::Depth(_))));
}

#[test]
fn pairs_of_words_are_asked_for_once() {
    let files = bundled("shakespeare-gpt2").unwrap();
    let with = TaskInput { context: Some(180), sequences: Some(5), ..input(&files) };
    for sequence in sequences("key-value", &with).unwrap() {
        let text = text_of(&files, sequence.ids());
        assert!(sequence.ids().len() <= 180);
        let lines: Vec<&str> = text.lines().collect();
        let (question, list) = lines.split_last().unwrap();
        assert_eq!(list.len() as u64, sequence.tags()["pairs"].as_u64().unwrap());
        let asked = sequence.tags()["asked"].as_u64().unwrap() as usize - 1;
        assert_eq!(list[asked], format!("{question}."));
        assert_eq!(list.iter().filter(|line| line.split(' ').next() == question.split(' ').next()).count(), 1);
    }
}

/// The model for recall, which has no tokenizer.
fn recall() -> ModelFiles {
    bundled("recall").unwrap()
}

#[test]
fn who_keeps_the_pair_finds_it() {
    let (files, model) = (recall(), crate::support::load(recall()));
    let depths = [0.1, 0.5];
    let with = TaskInput { lengths: Some(&[128]), depths: Some(&depths), sequences: Some(8), ..input(&files) };
    let needles = sequences("needle", &with).unwrap();
    assert_eq!(needles.len(), 16);
    for needle in &needles {
        let (query, answer) = (needle.ids()[needle.ids().len() - 2], needle.ids()[needle.ids().len() - 1]);
        let before = &needle.ids()[..needle.prompt()];
        assert_eq!(before.windows(2).filter(|pair| *pair == [query, answer]).count(), 1);
        assert_eq!(before.iter().filter(|id| **id == query).count(), 1);
    }
    let policies = [("oracle", 0.1), ("streaming", 0.1)];
    for task in [&needles, &sequences("key-value", &TaskInput { seed: 5, ..input(&files) }).unwrap()] {
        let [full, oracle, streaming] = &on_float(&model, task, &policies)[..] else { unreachable!() };
        let right = |scores: &Scores| scores.metrics.exact_match.unwrap();
        assert!(right(full) > 0.9, "{:?}", full.metrics);
        assert!(right(oracle) > 0.9, "{:?}", oracle.metrics);
        assert!(right(streaming) < 0.3, "{:?}", streaming.metrics);
        // An answer is one token, so both metrics are equal.
        assert_eq!(full.metrics.exact_match, Some(full.metrics.accuracy));
        let interval = streaming.intervals["exact_match"];
        assert!(interval.low <= right(streaming) && right(streaming) <= interval.high);
        assert_eq!(full.by_sequence.len(), task.len());
    }
}

fn line(dataset: &str, answers: &[&str]) -> String {
    let context = "ROMEO:\nWhat say you to the king? My lord, I come to speak of love and of the night.\n".repeat(2);
    serde_json::json!({
        "input": "JULIET:", "context": context, "answers": answers, "dataset": dataset, "length": 34, "_id": "x",
    })
    .to_string()
}

#[test]
fn answers_are_generated_and_scored_by_their_data_set() {
    let files = bundled("shakespeare-llama").unwrap();
    let model = crate::support::load(bundled("shakespeare-llama").unwrap());
    let prompts = r#"{"hotpotqa": "Read.\n{context}\nNow:\n{input}\n"}"#;
    let run = |data: &str| {
        let with = TaskInput { data: Some(data), prompts: Some(prompts), ..input(&files) };
        let made = sequences("longbench", &with).unwrap();
        let scores = on_float(&model, &made, &[("streaming", 0.2)]);
        (made, scores)
    };
    let data = [line("hotpotqa", &["nothing that a king would say"]), line("samsum", &["love"])].join("\n");
    let (made, scores) = run(&data);
    let prompt = text_of(&files, &made[0].ids()[..made[0].prompt()]);
    assert!(prompt.starts_with("Read.\nROMEO:") && prompt.ends_with("Now:\nJULIET:\n"), "{prompt}");
    assert_eq!(made[0].tags()["metric"], "f1");
    assert_eq!((made[0].wanted().unwrap().tokens, made[1].wanted().unwrap().tokens), (32, 128));
    let answer = &scores[0].generated[0];
    assert!(!answer.is_empty() && scores[0].generated.len() == 2);
    // If the reference is the model's own answer, the score is full.
    let (_, again) = run(&line("hotpotqa", &["no", answer]));
    assert_eq!(again[0].metrics.score, Some(1.0));
    assert_eq!(&again[0].generated[0], answer);
    assert!(scores[1].metrics.kl > 0.0, "the policy prunes: {:?}", scores[1].metrics);
    let refused = |data: &str| sequences("longbench", &TaskInput { data: Some(data), ..input(&files) });
    assert!(matches!(refused(&line("dureader", &["x"])), Err(EvalError::Query { line: 1, .. })));
    assert!(matches!(refused(&line("qasper", &[])), Err(EvalError::Query { .. })));
    assert!(matches!(refused("{}"), Err(EvalError::Query { .. })));
    assert!(matches!(refused(""), Err(EvalError::TooFew { .. })));
}

#[test]
fn the_rest_of_a_text_is_scored_by_what_it_has_in_common() {
    let (files, model) = (bundled("stories260k").unwrap(), crate::support::load(bundled("stories260k").unwrap()));
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, \
                 she saw a big red ball. She was very happy and wanted to play with the ball.";
    let texts = ["Once upon a time.", story].map(String::from);
    let with = TaskInput { texts: Some(&texts), context: Some(48), sequences: Some(1), ..input(&files) };
    for task in ["rouge-2", "rouge-l"] {
        let made = sequences(task, &with).unwrap();
        // The first text is too short. The beginning of the second is the prompt, and the rest of 48 tokens is
        // wanted.
        let [prompt, rest] = [0..24, 24..48].map(|range| text_of(&files, &made[0].ids()[range]));
        let Wanted { tokens, grader } = made[0].wanted().unwrap();
        assert_eq!((made[0].prompt(), *tokens, &made[0].tags()["metric"]), (24, 24, &task.into()));
        assert!(story.starts_with(prompt.trim()) && story.contains(rest.trim()), "{prompt}|{rest}");
        assert_eq!(grader.grade(&made[0].ids()[24..]).unwrap(), 1.0);
        let scores = on_float(&model, &made, &[("streaming", 0.2)]);
        let score = |scores: &Scores| scores.metrics.score.unwrap();
        assert!(scores.iter().all(|scores| score(scores) < 1.0 && !scores.generated[0].is_empty()), "{scores:?}");
        assert!(scores[0].generated != scores[1].generated && score(&scores[0]) > 0.0, "{scores:?}");
    }
    let few = TaskInput { sequences: Some(9), ..with };
    assert!(matches!(sequences("rouge-2", &few), Err(EvalError::TooFew { got: 1, wanted: 9 })));
}

#[test]
fn a_prompt_that_is_too_long_loses_its_middle() {
    let files = bundled("shakespeare-llama").unwrap();
    let line = line("hotpotqa", &["love"]);
    let of = |context| {
        let with = TaskInput { data: Some(&line), context, ..input(&files) };
        sequences("longbench", &with).unwrap().remove(0)
    };
    let (whole, cut) = (of(None), of(Some(100)));
    let prompt = |sequence: &Sequence| text_of(&files, &sequence.ids()[..sequence.prompt()]);
    assert_eq!(cut.prompt(), 100 - 32);
    let (whole, cut) = (prompt(&whole), prompt(&cut));
    assert!(whole.starts_with(&cut[..34]) && whole.ends_with(&cut[34..]), "{cut}");
}

#[test]
fn two_parties_answer_as_fixed_point_in_the_clear() {
    let name = "shakespeare-gpt2";
    let files = bundled(name).unwrap();
    let with = TaskInput { context: Some(60), sequences: Some(1), ..input(&files) };
    let mut made = sequences("key-value", &with).unwrap();
    let data = serde_json::json!({
        "input": "O", "context": "Night.", "answers": ["love"], "dataset": "hotpotqa",
    });
    let data = data.to_string();
    let asked = TaskInput { data: Some(&data), context: Some(40), ..input(&files) };
    made.extend(sequences("longbench", &asked).unwrap());
    let candidates = [Candidate::new(&"streaming".parse().unwrap(), 0.5).unwrap()];
    let model: Model<FixedWeight> =
        Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
    let fixed = evaluate(&InClear { model: &model, engine: Fixed::new }, &made, &candidates, &|| ()).unwrap();
    let server = ModelServer::builder().load(bundled(name).unwrap()).unwrap();
    let protocol = waggle_protocols::Options::default();
    let secure = TwoParties { server: &server, protocol, prefix: None };
    let secure = evaluate(&secure, &made, &candidates, &|| ()).unwrap();
    for (fixed, secure) in [(&fixed.0, &secure.0), (&fixed.1[0], &secure.1[0])] {
        let (a, b) = (&fixed.metrics, &secure.metrics);
        assert!((a.perplexity / b.perplexity - 1.0).abs() < 0.02, "{a:?} {b:?}");
        assert_eq!((a.exact_match, a.score, &fixed.generated), (b.exact_match, b.score, &secure.generated));
    }
}
