//! A prompt as token ids, perhaps with padding, or as an image.

use model::Input;
use ndarray::Array2;

use crate::Error;

/// The ids of a prompt, or an image. The length is public; how much of it is padding is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    ids: Vec<u32>,
    patches: Option<Array2<f32>>,
    padding: Option<usize>,
    second: Option<usize>,
    mask: Option<usize>,
}

impl Prompt {
    /// A prompt that the server sees as one of `length` tokens, however many of them `ids` are. No token attends to
    /// the rest, which comes first.
    ///
    /// # Errors
    /// [`Error::Padding`] if it is longer.
    pub fn padded(ids: &[u32], length: usize) -> Result<Self, Error> {
        let mut prompt = Prompt::padded_behind(ids, length)?;
        prompt.ids.rotate_left(ids.len());
        Ok(prompt)
    }

    /// [`Prompt::padded`] for an encoder, which reads its text's first token: the rest comes last.
    ///
    /// # Errors
    /// As there.
    pub fn padded_behind(ids: &[u32], length: usize) -> Result<Self, Error> {
        let got = ids.len();
        let padding = length.checked_sub(got).ok_or(Error::Padding { got, length })?;
        // Any id will do, because no token attends to it.
        let ids = ids.iter().copied().chain(std::iter::repeat_n(0, padding)).collect();
        Ok(Prompt { ids, patches: None, padding: Some(padding), second: None, mask: None })
    }

    /// The patches of an image, for a model that reads images ([`ImageShape::patches`](model::ImageShape::patches)).
    pub fn image(patches: Array2<f32>) -> Self {
        Prompt { ids: Vec::new(), patches: Some(patches), padding: None, second: None, mask: None }
    }

    /// The prompt as the model reads it.
    pub fn input(&self) -> Input<'_> {
        match &self.patches {
            Some(patches) => Input::image(patches),
            None => Input { second: self.second, mask: self.mask, ..Input::known(&self.ids) },
        }
    }

    /// Says where a second text begins, if there is one, see [`Input::second`](model::Input::second). The server does
    /// not learn it.
    pub fn with_second(self, second: Option<usize>) -> Self {
        Prompt { second, ..self }
    }

    /// Says where the mask is whose word is wanted, if there is one, see [`Input::mask`](model::Input::mask). The
    /// server does not learn it.
    pub fn with_mask(self, mask: Option<usize>) -> Self {
        Prompt { mask, ..self }
    }

    /// All ids, with those of the padding.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tokens of padding, if the server is told that there may be some.
    pub fn padding(&self) -> Option<usize> {
        self.padding
    }
}

impl From<&[u32]> for Prompt {
    fn from(ids: &[u32]) -> Self {
        Prompt { ids: ids.to_vec(), patches: None, padding: None, second: None, mask: None }
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
