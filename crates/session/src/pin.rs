//! The model that a client insists on.

use std::path::Path;

use waggle_model::{ModelFiles, ModelSpec, bundled, is_bundled, tokenizer_beside};
use waggle_tokenizer::ChatTemplate;

use crate::Error;
use crate::fingerprint::{Fingerprint, PREFIX};

/// The model that a client insists on.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The shape, if the client knows it and not only its hash. The handshake then compares it too.
    pub spec: Option<ModelSpec>,
    /// The fingerprint that the server's model must have.
    pub fingerprint: Fingerprint,
}

impl Expectation {
    /// The expectation that `name` stands for: a fingerprint, a `config.json`, a directory with one and perhaps a
    /// tokenizer, or the name of a bundled model. A directory says which chat template there is, or that there is
    /// none; so does a bundled model.
    ///
    /// # Errors
    /// [`PinError::Malformed`](crate::PinError::Malformed) for a malformed text that begins as a fingerprint does; an
    /// [`Error`] that names the file that cannot be read.
    pub fn named(name: &str) -> Result<Self, Error> {
        if name.starts_with(PREFIX) {
            return Ok(Expectation { spec: None, fingerprint: name.parse()? });
        }
        let path = Path::new(name);
        let (spec, tokenizer, template) = if !path.exists() && is_bundled(name) {
            let ModelFiles { spec, tokenizer, .. } = bundled(name)?;
            (spec, tokenizer, Some(Vec::new()))
        } else {
            let template = || match ChatTemplate::open(path)? {
                Some(template) => template.to_bytes(),
                None => Ok(Vec::new()),
            };
            (ModelSpec::open(path)?, tokenizer_beside(path)?, path.is_dir().then(template).transpose()?)
        };
        let fingerprint = Fingerprint::new(&spec, tokenizer.as_deref(), template.as_deref())?;
        Ok(Expectation { spec: Some(spec), fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PinError;

    fn spec(eos: u32) -> ModelSpec {
        ModelSpec::from_config_json(format!(r#"{{"model_type":"gpt2","eos_token_id":{eos}}}"#).as_bytes()).unwrap()
    }

    fn print(eos: u32, tokenizer: Option<&str>) -> Fingerprint {
        Fingerprint::new(&spec(eos), tokenizer.map(str::as_bytes), None).unwrap()
    }

    /// The fingerprint of [`print`] with a chat template in it.
    fn talking(eos: u32, tokenizer: Option<&str>, template: &str) -> Fingerprint {
        Fingerprint::new(&spec(eos), tokenizer.map(str::as_bytes), Some(template.as_bytes())).unwrap()
    }

    #[test]
    fn shape_end_tokens_and_tokenizer_are_in_it() {
        let all = print(1, Some("t"));
        assert_eq!(all, print(1, Some("t")));
        assert_eq!(
            all.expect(&print(2, Some("t"))).unwrap_err().to_string().split(" is not").next(),
            Some("the server's shape")
        );
        assert!(matches!(all.expect(&print(1, Some("u"))), Err(PinError::NotExpected { part: "tokenizer", .. })));
        // A tokenizer that is not used need not be the expected one.
        all.expect(&print(1, None)).unwrap();
        print(1, None).expect(&all).unwrap();
        assert!(all.names(&all) && all.names(&print(1, None)));
        assert!(!print(1, None).names(&all), "a shape alone accepts no tokenizer");
        let [a, b, none] = ["a", "b", ""].map(|template| talking(1, Some("t"), template));
        for (expected, met) in [(a, b), (a, none), (none, a)] {
            assert!(matches!(expected.expect(&met), Err(PinError::NotExpected { part: "chat template", .. })));
        }
        a.expect(&all).unwrap();
        assert!(a.names(&a) && a.names(&all) && !all.names(&a) && !b.names(&a));
        assert!(a.has_new_template(None) && a.has_new_template(Some(&all)) && !a.has_new_template(Some(&a)));
    }

    #[test]
    fn a_fingerprint_is_a_line_of_text() {
        let public = talking(1, Some("t"), "c").with_public(Some("head")).with_offer(Some("a"));
        public.expect(&public.with_public(None)).unwrap();
        let other = public.expect(&public.with_public(Some("all")));
        assert!(matches!(other, Err(PinError::NotExpected { part: "list of public parts", .. })));
        let other = public.expect(&public.with_offer(Some("b")));
        assert!(matches!(other, Err(PinError::NotExpected { part: "offer of public text", .. })));
        // An offer that is not taken need not be the expected one.
        public.expect(&public.with_offer(None)).unwrap();
        assert!(!public.with_offer(None).names(&public));
        for fingerprint in
            [public, print(1, None), print(1, Some("t")), talking(1, None, "c"), talking(1, Some("t"), "c")]
        {
            let text = fingerprint.to_string();
            assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint);
            assert_eq!(Expectation::named(&text).unwrap(), Expectation { spec: None, fingerprint });
            for wrong in [&text[1..], &text[..text.len() - 1], &text.replace(|c: char| c.is_ascii_digit(), "ä")] {
                assert!(matches!(wrong.parse::<Fingerprint>(), Err(PinError::Malformed { .. })), "{wrong}");
            }
        }
    }

    #[test]
    fn a_model_is_expected_by_file_directory_or_name() {
        let by_name = Expectation::named("shakespeare-gpt2").unwrap();
        let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/../../model/assets/shakespeare-gpt2");
        assert_eq!(Expectation::named(assets).unwrap(), by_name);
        let by_config = Expectation::named(&format!("{assets}/config.json")).unwrap();
        assert_eq!(by_config.spec, by_name.spec);
        assert_eq!(by_config.fingerprint, Fingerprint::new(by_name.spec.as_ref().unwrap(), None, None).unwrap());
        by_config.fingerprint.expect(&by_name.fingerprint).unwrap();
        let missing = tempfile::tempdir().unwrap().path().join("missing").display().to_string();
        assert!(matches!(Expectation::named(&missing), Err(Error::Model(waggle_model::Error::File { .. }))));
        assert!(matches!(Expectation::named("waggle-model:12"), Err(Error::Pin(PinError::Malformed { .. }))));
    }

    #[test]
    fn a_server_that_changes_its_model_is_refused_until_the_change_is_accepted() {
        let meet = |known: Option<&Fingerprint>, met: &Fingerprint, accepted| {
            met.meet("a:1", known, Path::new("known_servers"), accepted)
        };
        let (shape, old, new) = (print(1, None), print(1, Some("t")), print(1, Some("u")));
        assert_eq!(meet(None, &shape, false).unwrap(), Some(shape));
        assert_eq!(meet(Some(&shape), &old, false).unwrap(), Some(old), "its tokenizer was not known");
        assert_eq!(meet(Some(&old), &old, false).unwrap(), None);
        assert_eq!(meet(Some(&old), &shape, false).unwrap(), None, "its tokenizer was not asked for");
        let message = meet(Some(&old), &new, false).unwrap_err().to_string();
        for part in ["tokenizer", "a:1", &old.to_string(), &new.to_string(), "known_servers"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(!message.contains('\n'));
        let other = print(2, None);
        assert!(matches!(meet(Some(&old), &other, false), Err(PinError::Changed { part: "shape", .. })));
        assert_eq!(meet(Some(&old), &new, true).unwrap(), Some(new));
        assert_eq!(meet(Some(&old), &other, true).unwrap(), Some(print(2, Some("t"))), "its tokenizer was not met");
        // The template is a part of its own: met later, not asked for, changed.
        let [a, b] = ["a", "b"].map(|template| talking(1, Some("t"), template));
        assert_eq!(meet(Some(&old), &a, false).unwrap(), Some(a));
        assert_eq!(meet(Some(&a), &old, false).unwrap(), None);
        assert!(matches!(meet(Some(&a), &b, false), Err(PinError::Changed { part: "chat template", .. })));
        assert_eq!(meet(Some(&a), &b, true).unwrap(), Some(b));
        assert_eq!(meet(Some(&a), &other, true).unwrap(), Some(talking(2, Some("t"), "a")));
    }
}
