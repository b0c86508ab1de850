//! A prompt as token ids, perhaps with padding, or as an image; and several of them.

use ndarray::{Array2, Axis, concatenate};
use waggle_model::{Input, Padding};

use crate::Error;

/// The ids of a prompt, or an image, or several of one length that a model reads side by side. Their number and
/// length are public; how much of it is padding is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    ids: Vec<u32>,
    patches: Option<Array2<f32>>,
    /// Tokens of padding of each text.
    padding: Option<Vec<usize>>,
    /// For each text where a second one begins.
    seconds: Vec<Option<usize>>,
    /// The place of the mask of each text, for models that fill one.
    masks: Vec<usize>,
}

impl Prompt {
    /// A prompt that the server sees as one of `length` tokens, however many of them `ids` are. No token attends to
    /// the rest, which comes first.
    ///
    /// # Errors
    /// [`Error::Padding`] if it is longer.
    pub fn padded(ids: &[u32], length: usize) -> Result<Self, Error> {
        let mut prompt = Prompt::from(ids).padded_behind(length)?;
        prompt.ids.rotate_left(ids.len());
        Ok(prompt)
    }

    /// This text, padded for an encoder, which reads its first token: the rest comes last. An image stays as it is.
    ///
    /// # Errors
    /// [`Error::Padding`] if it is longer.
    pub fn padded_behind(mut self, length: usize) -> Result<Self, Error> {
        if self.patches.is_none() {
            let got = self.ids.len();
            let padding = length.checked_sub(got).ok_or(Error::Padding { got, length })?;
            // Any id will do, because no token attends to it.
            self.ids.resize(length, 0);
            let before: usize = self.padding.iter().flatten().sum();
            self.padding = Some(vec![before + padding]);
        }
        Ok(self)
    }

    /// The patches of an image, for a model that reads images
    /// ([`ImageShape::patches`](waggle_model::ImageShape::patches)).
    pub fn image(patches: Array2<f32>) -> Self {
        Prompt { ids: Vec::new(), patches: Some(patches), padding: None, seconds: vec![None], masks: Vec::new() }
    }

    /// Several prompts of one kind, which a model reads side by side: all padded to `length`, or to the longest of
    /// them if they are not of one length; those for an encoder [behind](Prompt::padded_behind) their texts.
    ///
    /// # Errors
    /// [`Error::Unlike`] if they are not of one kind, or none of them is there; [`Error::Padding`] if one is longer.
    pub fn side_by_side(prompts: &[Prompt], length: Option<usize>, encoder: bool) -> Result<Self, Error> {
        let counts = || prompts.iter().map(|prompt| prompt.input().count);
        let longest = counts().max().filter(|longest| counts().any(|count| count < *longest));
        let padded = |prompt: &Prompt| match length.or(longest) {
            Some(length) if !encoder => Prompt::padded(prompt.ids(), length),
            Some(length) => prompt.clone().padded_behind(length),
            None => Ok(prompt.clone()),
        };
        let prompts: Vec<Prompt> = prompts.iter().map(padded).collect::<Result<_, _>>()?;
        let shape = |prompt: &Prompt| {
            let Input { count, texts, .. } = prompt.input();
            (texts, count, prompt.patches.is_some(), prompt.padding.is_some(), prompt.masks.len())
        };
        let Some((first, rest)) = prompts.split_first() else { return Err(Error::Unlike { text: 0 }) };
        if let Some(at) = rest.iter().position(|prompt| shape(prompt) != shape(first)) {
            return Err(Error::Unlike { text: at + 2 });
        }
        let patches: Vec<_> = prompts.iter().filter_map(|prompt| Some(prompt.patches.as_ref()?.view())).collect();
        let patches = (!patches.is_empty()).then(|| concatenate(Axis(0), &patches)).transpose();
        Ok(Prompt {
            ids: prompts.iter().flat_map(|prompt| &prompt.ids).copied().collect(),
            patches: patches.map_err(|_| Error::Unlike { text: 1 })?,
            padding: first
                .padding
                .as_ref()
                .map(|_| prompts.iter().filter_map(|p| p.padding.clone()).flatten().collect()),
            seconds: prompts.iter().flat_map(|prompt| &prompt.seconds).copied().collect(),
            masks: prompts.iter().flat_map(|prompt| &prompt.masks).copied().collect(),
        })
    }

    /// The prompt as the model reads it.
    pub fn input(&self) -> Input<'_> {
        let texts = self.seconds.len();
        let input = match &self.patches {
            Some(patches) => Input { count: patches.nrows() / texts + 1, ..Input::image(patches) },
            None => Input { count: self.ids.len() / texts, ..Input::known(&self.ids) },
        };
        Input { texts, seconds: &self.seconds, masks: &self.masks, ..input }
    }

    /// Says where a second text begins, if there is one, see [`Input::seconds`](waggle_model::Input::seconds). The
    /// server does not learn it.
    pub fn with_second(self, second: Option<usize>) -> Self {
        Prompt { seconds: vec![second], ..self }
    }

    /// Says where the mask is whose word is wanted, if there is one, see
    /// [`Input::masks`](waggle_model::Input::masks). The server does not learn it.
    pub fn with_mask(self, mask: Option<usize>) -> Self {
        Prompt { masks: mask.into_iter().collect(), ..self }
    }

    /// All ids, with those of the padding, text by text.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The padding as this party, which knows it, tells a model.
    pub fn known_padding(&self) -> Option<Padding> {
        self.padding.clone().map(|tokens| Padding { tokens: Some(tokens) })
    }

    /// Tokens of padding of each text, if the server is told that there may be some.
    pub fn padding(&self) -> Option<&[usize]> {
        self.padding.as_deref()
    }
}

impl From<&[u32]> for Prompt {
    fn from(ids: &[u32]) -> Self {
        Prompt { ids: ids.to_vec(), patches: None, padding: None, seconds: vec![None], masks: Vec::new() }
    }
}

impl From<&Vec<u32>> for Prompt {
    fn from(ids: &Vec<u32>) -> Self {
        ids.as_slice().into()
    }
}

impl<const N: usize> From<&[u32; N]> for Prompt {
    fn from(ids: &[u32; N]) -> Self {
        ids.as_slice().into()
    }
}
