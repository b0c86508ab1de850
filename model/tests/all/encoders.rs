//! Encoders against the programs of their authors, on tiny checkpoints of `references/make.py`.

use std::path::{Path, PathBuf};

use ndarray::{Array2, Array3};
use serde_json::Value;
use waggle_engine::Float;
use waggle_model::{
    Error, GenerateOptions, Input, Model, ModelFiles, ModelSpec, Next, NoHooks, Padding, Reveal, Sampler, generate,
};
use waggle_protocols::{Evaluation, Fixed, FixedLoader};
use waggle_tokenizer::Tokenizer;

use crate::support::{FloatModel, fine, load};

/// The largest allowed difference to a reference logit in f32.
const MAX_LOGIT_ERROR: f32 = 1e-4;

/// The largest allowed difference to a reference logit in fixed point.
const MAX_FIXED_ERROR: f32 = 0.01;

/// The largest allowed difference to a reference logit of the ViT in fixed point.
const MAX_FIXED_ERROR_OF_IMAGES: f32 = 0.001;

const ENCODERS: [&str; 6] = ["bert", "roberta", "distilbert", "bert-masked", "roberta-masked", "distilbert-masked"];

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders").join(name)
}

/// A text with the reference logits of its classes, or of the words in the place of its mask.
struct Reference {
    ids: Vec<u32>,
    seconds: [Option<usize>; 1],
    masks: Vec<usize>,
    logits: Vec<f32>,
}

impl Reference {
    fn input(&self) -> Input<'_> {
        Input { seconds: &self.seconds, masks: &self.masks, ..Input::known(&self.ids) }
    }
}

fn references(name: &str) -> Vec<Reference> {
    let value: Value = serde_json::from_slice(&std::fs::read(dir(name).join("reference.json")).unwrap()).unwrap();
    let sequence = |sequence: &Value| {
        let logits: Vec<Vec<f32>> = serde_json::from_value(sequence["logits"].clone()).unwrap();
        let at = |place: &str| sequence.get(place).map(|at| at.as_u64().unwrap() as usize);
        let ids = serde_json::from_value(sequence["ids"].clone()).unwrap();
        Reference { ids, seconds: [at("second")], masks: at("mask").into_iter().collect(), logits: logits.concat() }
    };
    value["sequences"].as_array().unwrap().iter().map(sequence).collect()
}

fn answer() -> GenerateOptions {
    GenerateOptions { tokens: 1, ..fine() }
}

fn error(got: &Array2<f32>, want: &[f32]) -> f32 {
    assert_eq!(got.dim(), (1, want.len()));
    got.iter().zip(want).fold(0.0, |most, (got, want)| most.max((got - want).abs()))
}

#[test]
fn encoders_equal_the_programs_of_their_authors() {
    for name in ENCODERS {
        let files = ModelFiles::open(&dir(name)).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let float = load(files);
        for reference in references(name) {
            let Reference { ids, seconds: [second], masks, logits: want } = &reference;
            assert_eq!(second.is_some(), name.starts_with("bert") && ids.len() == 11, "a pair");
            assert_eq!(masks.len(), usize::from(name.ends_with("masked")));
            let input = reference.input();
            let next = &mut Sampler::greedy();
            let got =
                generate(&mut Float::default(), &float, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
            let best = (0..want.len()).max_by(|a, b| want[*a].total_cmp(&want[*b])).unwrap();
            assert_eq!(got.tokens, [best as u32], "{name}");
            let off = error(&got.logits.unwrap(), want);
            assert!(off < MAX_LOGIT_ERROR, "{name}: {off}");
            for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
                let engine = &mut Fixed::evaluating(evaluation);
                let got = generate(engine, &fixed, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
                assert_eq!(got.tokens, [best as u32], "{name}");
                let off = error(&got.logits.unwrap(), want);
                println!("{name}, {} tokens, {evaluation:?}: {off:.1e}", ids.len());
                assert!(off < MAX_FIXED_ERROR, "{name}, {evaluation:?}: {off}");
            }
        }
    }
}

/// Texts that are read side by side do not see one another, and do not see the padding of the shorter ones.
#[test]
fn texts_side_by_side_have_the_logits_that_each_has_alone() {
    for name in ENCODERS {
        let files = ModelFiles::open(&dir(name)).unwrap();
        let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
        let float = load(files);
        let texts = references(name);
        let longest = texts.iter().map(|text| text.ids.len()).max().unwrap();
        let padding: Vec<usize> = texts.iter().map(|text| longest - text.ids.len()).collect();
        assert!(texts.len() > 1 && padding.iter().any(|tokens| *tokens > 0), "{name}: of several lengths");
        let ids: Vec<u32> =
            texts.iter().flat_map(|text| text.ids.iter().copied().chain([7; 64]).take(longest)).collect();
        let seconds: Vec<_> = texts.iter().flat_map(|text| text.seconds).collect();
        let masks: Vec<_> = texts.iter().flat_map(|text| text.masks.clone()).collect();
        let input = Input { seconds: &seconds, masks: &masks, ..Input::known(&ids).of_texts(texts.len()) };
        let options = GenerateOptions { padding: Some(Padding { tokens: Some(padding) }), ..answer() };
        let next = &mut Sampler::greedy();
        let got = generate(&mut Float::default(), &float, input, &options, Next::Pick(next), &mut NoHooks).unwrap();
        assert_eq!((got.count, got.tokens.len()), (1, texts.len()), "{name}");
        let engine = &mut Fixed::evaluating(Evaluation::Masked);
        let rounded = generate(engine, &fixed, input, &options, Next::Pick(next), &mut NoHooks).unwrap();
        assert_eq!(got.tokens, rounded.tokens, "{name}");
        for (logits, most) in [(got.logits, MAX_LOGIT_ERROR), (rounded.logits, MAX_FIXED_ERROR)] {
            let want: Vec<f32> = texts.iter().flat_map(|text| &text.logits).copied().collect();
            let got = logits.unwrap().into_raw_vec_and_offset().0;
            let off = error(&Array2::from_shape_vec((1, got.len()), got).unwrap(), &want);
            assert!(off < most, "{name}: {off}");
        }
    }
}

/// The images that the ViT of `references/make.py` reads, normalised as by its authors' program, with their reference
/// logits.
fn images() -> Vec<(Array2<f32>, Vec<f32>)> {
    let shape = ModelFiles::open(&dir("vit")).unwrap().spec.image().unwrap();
    let value: Value = serde_json::from_slice(&std::fs::read(dir("vit").join("reference.json")).unwrap()).unwrap();
    let sequence = |sequence: &Value| {
        let text = sequence["pixels"].as_str().unwrap();
        let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
        let pixels = Array3::from_shape_fn((3, shape.side, shape.side), |(c, y, x)| {
            f32::from(byte(3 * (y * shape.side + x) + c)) / 127.5 - 1.0
        });
        let logits: Vec<Vec<f32>> = serde_json::from_value(sequence["logits"].clone()).unwrap();
        (shape.patches(pixels.view()).unwrap(), logits.concat())
    };
    value["sequences"].as_array().unwrap().iter().map(sequence).collect()
}

#[test]
fn images_have_the_classes_that_the_program_of_the_authors_gives() {
    let files = ModelFiles::open(&dir("vit")).unwrap();
    let fixed = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).unwrap();
    let float = load(files);
    let images = images();
    assert_eq!(images.len(), 2);
    let patches: Vec<_> = images.iter().map(|(patches, _)| patches.view()).collect();
    let both = ndarray::concatenate(ndarray::Axis(0), &patches).unwrap();
    let input = Input { count: images[0].0.nrows() + 1, texts: 2, ..Input::image(&both) };
    let next = Next::Pick(&mut Sampler::greedy());
    let got = generate(&mut Float::default(), &float, input, &answer(), next, &mut NoHooks).unwrap();
    for (row, (_, want)) in got.logits.unwrap().rows().into_iter().zip(&images) {
        let off = error(&row.to_owned().insert_axis(ndarray::Axis(0)), want);
        assert!(off < MAX_LOGIT_ERROR, "side by side: {off}");
    }
    for (patches, want) in &images {
        let next = &mut Sampler::greedy();
        let input = Input::image(patches);
        let got = generate(&mut Float::default(), &float, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
        let off = error(&got.logits.unwrap(), want);
        assert!(off < MAX_LOGIT_ERROR, "{off}");
        for evaluation in [Evaluation::Lookup, Evaluation::Masked] {
            let engine = &mut Fixed::evaluating(evaluation);
            let got = generate(engine, &fixed, input, &answer(), Next::Pick(next), &mut NoHooks).unwrap();
            let off = error(&got.logits.unwrap(), want);
            println!("vit, {evaluation:?}: {off:.1e}");
            assert!(off < MAX_FIXED_ERROR_OF_IMAGES, "{evaluation:?}: {off}");
        }
    }
}

#[test]
fn an_image_for_a_model_of_texts_is_refused_and_the_reverse() {
    let (vit, bert) = (load(ModelFiles::open(&dir("vit")).unwrap()), load(ModelFiles::open(&dir("bert")).unwrap()));
    let refused = |model: &FloatModel, input: Input| {
        let next = Next::Pick(&mut Sampler::greedy());
        generate(&mut Float::default(), model, input, &answer(), next, &mut NoHooks).unwrap_err()
    };
    let (mut patches, _) = images().remove(0);
    assert!(matches!(refused(&bert, Input::image(&patches)), Error::NoImages));
    assert!(matches!(refused(&vit, Input::known(&[1; 17])), Error::NoTexts));
    assert!(matches!(refused(&vit, Input::unknown(5)), Error::ImageRows { expected: 17, got: 5 }));
    for value in [f32::NAN, f32::INFINITY, -65.0] {
        patches[(3, 5)] = value;
        assert!(matches!(refused(&vit, Input::image(&patches)), Error::ImageValue { .. }));
    }
    let short = patches.slice(ndarray::s![..4, ..]).to_owned();
    assert!(matches!(
        refused(&vit, Input::image(&short)),
        Error::ImageRows { got: 5, .. } | Error::ImageValue { .. }
    ));
}

/// The tokenizer of a BERT handles pieces of words, accents, Chinese characters, and the tokens that begin and end a
/// text.
#[test]
fn texts_have_the_ids_of_their_authors_library() {
    let value: Value = serde_json::from_slice(&std::fs::read(dir("bert").join("reference.json")).unwrap()).unwrap();
    let files = ModelFiles::open(&dir("bert")).unwrap();
    let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
    for text in value["texts"].as_array().unwrap() {
        let want: Vec<u32> = serde_json::from_value(text["ids"].clone()).unwrap();
        match text["pair"].as_array() {
            None => assert_eq!(tokenizer.encode(text["text"].as_str().unwrap()).unwrap(), want, "{text}"),
            Some(pair) => {
                let [first, second] = [0, 1].map(|i| pair[i].as_str().unwrap());
                let begins = text["second"].as_u64().map(|at| at as usize);
                assert_eq!(tokenizer.encode_pair(first, second).unwrap(), (want, begins));
            }
        }
    }
}

/// An encoder sees the whole text: a change of its last token changes the first token's state.
#[test]
fn the_first_token_sees_the_last() {
    let model = load(ModelFiles::open(&dir("bert")).unwrap());
    let logits = |ids: &[u32]| {
        let input = Input::known(ids);
        let next = Next::Pick(&mut Sampler::greedy());
        generate(&mut Float::default(), &model, input, &answer(), next, &mut NoHooks).unwrap().logits.unwrap()
    };
    assert!(logits(&[5, 6, 7, 8]) != logits(&[5, 6, 7, 9]));
}

/// Writes the model in `dir` to `out` as the first programs wrote it: with other names of gains and shifts, positions
/// as integers, and `further` tensors of one number.
fn old_checkpoint(dir: &Path, out: &Path, further: &[&str]) {
    std::fs::copy(dir.join("config.json"), out.join("config.json")).unwrap();
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let text = std::str::from_utf8(header).unwrap();
    let text = text.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    assert!(text.contains("LayerNorm.gamma"));
    let mut header: Value = serde_json::from_str(&text).unwrap();
    let mut data = data.to_vec();
    for name in further.iter().chain(&["bert.embeddings.position_ids"]) {
        let end = data.len();
        header[*name] = serde_json::json!({"dtype": "I64", "shape": [1], "data_offsets": [end, end + 8]});
        data.extend([0; 8]);
    }
    let text = serde_json::to_vec(&header).unwrap();
    let file = [&(text.len() as u64).to_le_bytes()[..], &text, &data].concat();
    std::fs::write(out.join("model.safetensors"), file).unwrap();
}

#[test]
fn checkpoints_of_the_first_programs_are_read() {
    let out = tempfile::tempdir().unwrap();
    let logits = |model: &FloatModel, reference: &Reference| {
        let next = Next::Pick(&mut Sampler::greedy());
        let input = reference.input();
        generate(&mut Float::default(), model, input, &answer(), next, &mut NoHooks).unwrap().logits.unwrap()
    };
    let unused = ["bert.pooler.dense.weight", "cls.seq_relationship.bias"];
    for (name, further) in [("bert", &[][..]), ("bert-masked", &unused)] {
        old_checkpoint(&dir(name), out.path(), further);
        let (old, new) = (ModelFiles::open(out.path()).unwrap(), ModelFiles::open(&dir(name)).unwrap());
        let (old, new, references) = (load(old), load(new), references(name));
        references.iter().for_each(|reference| assert_eq!(logits(&old, reference), logits(&new, reference)));
    }
    // A second bias of the head is compared with the first.
    old_checkpoint(&dir("bert-masked"), out.path(), &["cls.predictions.decoder.bias"]);
    let files = ModelFiles::open(out.path()).unwrap();
    let error = Model::load(&mut FixedLoader::default(), &files.spec, Some(&files.checkpoint)).err().unwrap();
    assert!(error.to_string().contains("cls.predictions.decoder.bias"), "{error}");
}

#[test]
fn a_mask_is_refused_where_it_is_not_and_where_none_is_filled() {
    let refused = |name: &str, mask: Option<usize>| {
        let model = load(ModelFiles::open(&dir(name)).unwrap());
        let next = Next::Pick(&mut Sampler::greedy());
        let masks: Vec<usize> = mask.into_iter().collect();
        let input = Input { masks: &masks, ..Input::known(&[5, 6, 7]) };
        match generate(&mut Float::default(), &model, input, &answer(), next, &mut NoHooks) {
            Err(Error::Mask { at, tokens: 3 }) => assert_eq!(at, mask),
            other => panic!("{name}, {mask:?}: {other:?}"),
        }
    };
    refused("bert-masked", None);
    refused("bert-masked", Some(3));
    refused("bert", Some(1));
}

/// Positions begin after the id of padding, and at least one must be left. A head of words must be the embedding.
#[test]
fn configurations_that_are_not_computed_are_refused_by_key() {
    let text = std::fs::read_to_string(dir("roberta-masked").join("config.json")).unwrap();
    for (old, new, key) in [
        ("\"pad_token_id\": 3", "\"pad_token_id\": 63", "pad_token_id"),
        ("\"pad_token_id\": 3", "\"pad_token_id\": -1", "pad_token_id"),
        ("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "tie_word_embeddings"),
    ] {
        let changed = text.replace(old, new);
        assert_ne!(changed, text);
        let error = ModelSpec::from_config_json(changed.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn what_an_encoder_cannot_do_is_refused() {
    let model = load(ModelFiles::open(&dir("distilbert")).unwrap());
    let base = answer();
    let cases = [
        (GenerateOptions { tokens: 2, ..base.clone() }, "more than one token"),
        (GenerateOptions { stop_at_eos: true, ..base.clone() }, "an end that the text finds"),
        (GenerateOptions { policy: "streaming".parse().unwrap(), ..base.clone() }, "a cache policy"),
        (GenerateOptions { prefill_chunk: std::num::NonZeroUsize::new(2), ..base.clone() }, "a prompt in chunks"),
    ];
    for (options, why) in cases {
        let input = Input::known(&[5, 6, 7]);
        let next = Next::Pick(&mut Sampler::greedy());
        match waggle_model::generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks) {
            Err(Error::Encoder { what }) => assert_eq!(what, why),
            other => panic!("{why}: {other:?}"),
        }
    }
    let token = GenerateOptions { reveal: Reveal::Token, ..base };
    let input = Input::known(&[5, 6, 7]);
    let next = Next::Pick(&mut Sampler::greedy());
    assert_eq!(generate(&mut Float::default(), &model, input, &token, next, &mut NoHooks).unwrap().tokens.len(), 1);
}

/// The positions of a RoBERTa do not count padding. As positions are public, the id of padding is refused within a
/// text. Behind the text it is padding like any other.
#[test]
fn the_id_of_padding_is_no_word_where_positions_do_not_count_it() {
    let run = |name: &str, ids: &[u32], padding: usize| {
        let files = ModelFiles::open(&dir(name)).unwrap();
        let uncounted = files.spec.uncounted();
        let options = GenerateOptions { padding: Some(Padding { tokens: Some(vec![padding]) }), ..answer() };
        let next = Next::Pick(&mut Sampler::greedy());
        let model = load(files);
        (uncounted, generate(&mut Float::default(), &model, Input::known(ids), &options, next, &mut NoHooks))
    };
    let (uncounted, refused) = run("roberta", &[5, 9, 1, 2], 0);
    assert_eq!(uncounted, Some(1));
    assert!(matches!(refused, Err(Error::PaddingId { id: 1, at: 2 })));
    assert!(run("roberta", &[5, 9, 2, 1], 1).1.is_ok());
    let (uncounted, counted) = run("bert", &[5, 9, 0, 2], 0);
    assert!(uncounted.is_none() && counted.is_ok());
}
