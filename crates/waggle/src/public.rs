//! Public tokens before the texts of a session, as a user states them.

use serde_json::Value;
use waggle_mpcache::PolicySpec;
use waggle_session::PublicPrefix;
use waggle_session::party::{Event, PublicModel, Watch};
use waggle_tokenizer::Tokenizer;

use crate::Error;
use crate::options::options;
use crate::prompt::Prompt;
use crate::reader::harmless;

options! {
    /// Public tokens before every text: `Public::of("Answer briefly.")`. The server reads them in the clear, so they
    /// cost little.
    Public {
        /// The tokens, as a text or as ids.
        text: Prompt as impl Into<Prompt> = Prompt::Text(String::new()),
        /// The policy by which the server prunes what its model keeps of them.
        policy: PolicySpec = PolicySpec::default(),
    }
}

impl Public {
    /// The tokens of `text`.
    pub fn of(text: impl Into<Prompt>) -> Self {
        Public::default().text(text)
    }

    /// The tokens, encoded by `tokenizer` if they are a text.
    ///
    /// # Errors
    /// If a file cannot be read, or a text has no tokenizer.
    pub fn encoded(&self, tokenizer: Option<&Tokenizer>) -> Result<PublicPrefix, Error> {
        Ok(PublicPrefix::new(self.text.clone().ids(tokenizer)?, self.policy.clone()))
    }

    /// The public tokens before the texts of a session with `model`: the client's `own`, otherwise those that the
    /// server offers, which `watch` is shown first.
    ///
    /// # Errors
    /// As [`Public::encoded`]. If the server offers ids that its model does not have.
    pub fn before(
        own: Option<&Public>,
        model: &PublicModel,
        tokenizer: Option<&Tokenizer>,
        watch: &mut Watch,
    ) -> Result<Option<PublicPrefix>, Error> {
        if let Some(own) = own {
            return own.encoded(tokenizer).map(Some);
        }
        if let Some(offer) = &model.offer {
            model.spec.check_ids(offer.ids())?;
            let text = tokenizer.map(|tokenizer| tokenizer.decode(offer.ids())).transpose()?;
            watch(Event::Offer(offer, &harmless(&text.unwrap_or_default())));
        }
        Ok(model.offer.clone())
    }
}

/// A line about the public tokens that a server offers: how many, their digest, their policy, and how their `text`
/// begins.
pub fn offer_note(offer: &PublicPrefix, text: &str) -> String {
    /// Characters of the text that are shown.
    const SHOWN: usize = 60;
    let start: String = text.chars().take(SHOWN).collect();
    let words = match text.chars().count() {
        0 => String::new(),
        all => format!(": {start:?}{}", if all > SHOWN { " ..." } else { "" }),
    };
    format!("the server puts public text before yours ({offer}){words}")
}

/// What a report says of `prefix`.
pub fn named(prefix: &PublicPrefix) -> [(&'static str, Value); 3] {
    let policy = prefix.policy().to_string();
    [
        ("public_tokens", prefix.ids().len().into()),
        ("public_digest", prefix.digest().into()),
        ("public_policy", policy.into()),
    ]
}

#[cfg(test)]
mod tests {
    use waggle_model::Disclosed;
    use waggle_session::party::Flow;

    use super::*;

    /// Ids that a hostile server makes up are refused before they are shown, and what is shown is a line.
    #[test]
    fn an_offer_is_a_line_of_ids_that_the_model_has() {
        let files = waggle_model::bundled("shakespeare-gpt2").unwrap();
        let tokenizer = Tokenizer::from_bytes(files.tokenizer.as_deref().unwrap()).unwrap();
        let mut model = PublicModel::of_shape(String::new(), files.spec, Disclosed::default()).unwrap();
        let ids = tokenizer.encode(&"O\n".repeat(40)).unwrap();
        let mut shown = Vec::new();
        for (ids, good) in [(ids, true), (vec![1, 1 << 20], false)] {
            let offer = PublicPrefix::new(ids, PolicySpec::default());
            model.offer = Some(offer.clone());
            let taken = Public::before(None, &model, Some(&tokenizer), &mut |event| {
                if let Event::Offer(offer, text) = event {
                    shown.push(offer_note(offer, text));
                }
                Flow::GoOn
            });
            assert_eq!(taken.ok(), good.then_some(Some(offer)));
        }
        let [line] = &shown[..] else { panic!("{shown:?}") };
        assert!(line.contains(r#": "O\nO\n"#) && line.ends_with("\" ...") && !line.contains('\n'), "{line}");
    }
}
