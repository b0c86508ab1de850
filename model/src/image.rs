//! Images as models read them: patches, which take the place of a text's tokens.

use ndarray::{Array2, ArrayView3};

/// The number of values of a pixel: red, green and blue.
pub const CHANNELS: usize = 3;

/// Largest magnitude of a pixel's value. Programs normalise these values to a few units.
pub const MAX_IMAGE_VALUE: f32 = 64.0;

/// The shape of the images that a model reads: squares, cut into square patches. Public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// The length of a side of the image, in pixels.
    pub side: usize,
    /// The length of a side of a patch, in pixels. It divides the length of a side of the image.
    pub patch: usize,
}

impl ImageShape {
    /// The number of values of a patch.
    pub fn values(self) -> usize {
        CHANNELS * self.patch * self.patch
    }

    /// The number of tokens that the model reads: one that stands for the whole image, and one for each patch.
    pub fn rows(self) -> usize {
        1 + (self.side / self.patch).pow(2)
    }

    /// The patches of `pixels` (color, row, column), one row of patches after another. Each patch has its red values
    /// first, then its green and its blue ones. `None` if `pixels` is no image of this shape.
    pub fn patches(self, pixels: ArrayView3<f32>) -> Option<Array2<f32>> {
        let ImageShape { side, patch } = self;
        let across = side / patch;
        (pixels.dim() == (CHANNELS, side, side)).then(|| {
            Array2::from_shape_fn((self.rows() - 1, self.values()), |(at, value)| {
                let (channel, place) = (value / (patch * patch), value % (patch * patch));
                let (y, x) = (at / across * patch + place / patch, at % across * patch + place % patch);
                pixels[(channel, y, x)]
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array3;

    #[test]
    fn patches_hold_every_pixel_once() {
        let image = ImageShape { side: 4, patch: 2 };
        assert_eq!((image.rows(), image.values()), (5, 12));
        let pixels = Array3::from_shape_fn((3, 4, 4), |(c, y, x)| (100 * c + 10 * y + x) as f32);
        let patches = image.patches(pixels.view()).unwrap();
        assert_eq!(patches.row(1).to_vec(), [2, 3, 12, 13, 102, 103, 112, 113, 202, 203, 212, 213].map(|x| x as f32));
        assert_eq!(patches.row(2)[0], 20.0);
        assert!(image.patches(Array3::zeros((3, 4, 2)).view()).is_none());
    }
}
