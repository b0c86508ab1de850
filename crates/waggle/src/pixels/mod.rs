//! Images in files. The client decodes, resizes and normalises them as the model needs them.
//!
//! `preprocessor_config.json` holds the settings, as for `ViTImageProcessor` of Hugging Face. A setting that is not
//! supported here is refused with its key and value.

mod decode;
mod jpeg;
mod resample;

use std::path::PathBuf;

use decode::{MAX_PIXELS, MAX_SIDE};
use ndarray::{Array2, Array3};
use resample::{Filter, resize};
use serde_json::{Map, Value};
use thiserror::Error;
use waggle_model::{CHANNELS, ImageShape};

pub(crate) use decode::read_image;

/// Why an image cannot be read, or cannot be used by the model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file is neither a PNG nor a JPEG.
    #[error("{}: neither a PNG nor a JPEG", .0.display())]
    Unknown(PathBuf),
    /// The header of the image says that it is too large.
    #[error(
        "{}: {width} x {height} pixels, and at most {MAX_SIDE} a side and {MAX_PIXELS} in all are read",
        path.display()
    )]
    Large {
        /// The file.
        path: PathBuf,
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// The file is damaged.
    #[error("{}: {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The model has no `preprocessor_config.json`.
    #[error("the model does not say how it reads images: its preprocessor_config.json is missing")]
    NoPreprocessor,
    /// The `preprocessor_config.json` is not a JSON object.
    #[error("preprocessor_config.json is not a JSON object: {0}")]
    NotJson(String),
    /// A setting is not supported.
    #[error("preprocessor_config.json: `{key}` = {value} is not supported ({why})")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The supported values.
        why: String,
    },
    /// The image has another size than the model's images, and the settings say not to resize it.
    #[error("the image has {width} x {height} pixels, the model reads {side} x {side}, and `do_resize` is false")]
    Size {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Pixels of a side of the model's images.
        side: usize,
    },
}

/// An image: bytes of red, green and blue, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

impl Pixels {
    /// The pixel in column `x` of row `y`.
    fn pixel(&self, x: u32, y: u32) -> [u8; CHANNELS] {
        let at = CHANNELS * (y as usize * self.width as usize + x as usize);
        std::array::from_fn(|channel| self.bytes[at + channel])
    }
}

/// Settings by which pixels become a model's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessor {
    /// Height and width to which images are resized, and the filter for it.
    resize: Option<(u32, u32, Filter)>,
    /// Factor by which a byte is multiplied.
    rescale: f32,
    /// For each channel, the mean and the standard deviation of the numbers.
    normal: [(f32, f32); CHANNELS],
}

/// Names of image processors of Hugging Face that work as this module does.
const KINDS: [&str; 4] =
    ["ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil", "ViTFeatureExtractor"];

impl Preprocessor {
    /// Reads the text of a `preprocessor_config.json`.
    pub(crate) fn from_bytes(text: &[u8]) -> Result<Self, ImageError> {
        let map: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| ImageError::NotJson(error.to_string()))?;
        let map: Map<String, Value> = map.into_iter().filter(|(_, value)| !value.is_null()).collect();
        let unsupported = |key: &str, why: &str| {
            let value = map.get(key).map(Value::to_string).unwrap_or_default();
            ImageError::Unsupported { key: key.into(), value, why: why.into() }
        };
        let flag = |key: &str, default: bool| match map.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| unsupported(key, "true or false")),
        };
        for key in ["image_processor_type", "feature_extractor_type"] {
            if map.get(key).is_some_and(|kind| !kind.as_str().is_some_and(|kind| KINDS.contains(&kind))) {
                return Err(unsupported(key, &KINDS.join(", ")));
            }
        }
        // Other steps of processors have names like these.
        let known = ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"];
        for key in map.keys().filter(|key| key.starts_with("do_") && !known.contains(&key.as_str())) {
            if flag(key, false)? {
                return Err(unsupported(key, "only false"));
            }
        }
        let resize = if flag("do_resize", true)? {
            let pixels = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            let (height, width) = match map.get("size") {
                None => (224, 224),
                Some(Value::Object(size)) if size.len() == 2 => {
                    let side = |name| size.get(name).and_then(pixels);
                    side("height").zip(side("width")).ok_or_else(|| unsupported("size", "height and width"))?
                }
                Some(side) => {
                    let side = pixels(side).ok_or_else(|| unsupported("size", "height and width"))?;
                    (side, side)
                }
            };
            let filter = match map.get("resample").map_or(Some(2), Value::as_u64) {
                Some(1) => Filter::Lanczos,
                Some(2) => Filter::Bilinear,
                Some(3) => Filter::Bicubic,
                _ => return Err(unsupported("resample", "1 (Lanczos), 2 (bilinear) or 3 (bicubic)")),
            };
            Some((height, width, filter))
        } else {
            None
        };
        let finite = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let rescale = match map.get("rescale_factor") {
            _ if !flag("do_rescale", true)? => 1.0,
            None => 1.0 / 255.0,
            Some(factor) => finite(factor).ok_or_else(|| unsupported("rescale_factor", "a number"))?,
        };
        let by_channel = |key: &str, default: f32, allowed: fn(f32) -> bool| match map.get(key) {
            None => Ok([default; CHANNELS]),
            Some(value) => {
                let numbers = value.as_array().map(|list| list.iter().filter_map(finite).collect::<Vec<_>>());
                let numbers = numbers.and_then(|numbers| <[f32; CHANNELS]>::try_from(numbers).ok());
                numbers
                    .filter(|numbers| numbers.iter().all(|x| allowed(*x)))
                    .ok_or_else(|| unsupported(key, "a number for each of three channels"))
            }
        };
        let normal = if flag("do_normalize", true)? {
            let (mean, deviation) =
                (by_channel("image_mean", 0.5, |_| true)?, by_channel("image_std", 0.5, |x| x > 0.0)?);
            std::array::from_fn(|channel| (mean[channel], deviation[channel]))
        } else {
            [(0.0, 1.0); CHANNELS]
        };
        Ok(Preprocessor { resize, rescale, normal })
    }

    /// `image` in the size that a model of the shape `shape` reads.
    fn resized(&self, image: &Pixels, shape: ImageShape) -> Result<Pixels, ImageError> {
        let ((width, height), side) = ((image.width, image.height), shape.side);
        let fits = |height: u32, width: u32| (height as usize, width as usize) == (side, side);
        match self.resize {
            Some((height, width, _)) if !fits(height, width) => Err(ImageError::Unsupported {
                key: "size".into(),
                value: format!("{height} x {width}"),
                why: format!("the model reads {side} x {side}"),
            }),
            // Resampling an image to its own size changes nothing.
            _ if fits(height, width) => Ok(image.clone()),
            Some((height, width, filter)) => Ok(resize(image, width, height, filter)),
            None => Err(ImageError::Size { width, height, side }),
        }
    }

    /// The patches of `image` for a model that reads images of the shape `shape`.
    pub(crate) fn patches(&self, image: &Pixels, shape: ImageShape) -> Result<Array2<f32>, ImageError> {
        let pixels = self.resized(image, shape)?;
        let numbers = Array3::from_shape_fn((CHANNELS, shape.side, shape.side), |(channel, y, x)| {
            let (mean, deviation) = self.normal[channel];
            (f32::from(pixels.pixel(x as u32, y as u32)[channel]) * self.rescale - mean) / deviation
        });
        let (width, height) = (pixels.width, pixels.height);
        shape.patches(numbers.view()).ok_or(ImageError::Size { width, height, side: shape.side })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::decode::decode;
    use super::*;

    fn vit(name: &str) -> Vec<u8> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model/tests/data/encoders/vit");
        std::fs::read(dir.join(name)).unwrap()
    }

    #[test]
    fn pixels_are_those_of_the_authors_program() {
        let image = decode(Path::new("image.png"), &vit("image.png")).unwrap();
        let reference: Value = serde_json::from_slice(&vit("reference.json")).unwrap();
        for (sequence, filter) in reference["sequences"].as_array().unwrap().iter().zip(["2", "3"]) {
            let config = String::from_utf8(vit("preprocessor_config.json")).unwrap();
            let config = config.replace("\"resample\": 2", &format!("\"resample\": {filter}"));
            let preprocessor = Preprocessor::from_bytes(config.as_bytes()).unwrap();
            let got = preprocessor.resized(&image, ImageShape { side: 32, patch: 8 }).unwrap();
            let text = sequence["pixels"].as_str().unwrap();
            let want = (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap());
            assert_eq!(got.bytes, want.collect::<Vec<u8>>(), "{}", sequence["resample"]);
        }
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (text, why) in [
            ("[]", "not a JSON object"),
            (r#"{"do_center_crop": true}"#, "`do_center_crop` = true"),
            (r#"{"resample": 0}"#, "`resample` = 0"),
            (r#"{"size": {"shortest_edge": 224}}"#, "`size`"),
            (r#"{"size": 0}"#, "`size` = 0"),
            (r#"{"image_std": [0.5, 0.5, 0]}"#, "`image_std`"),
            (r#"{"image_mean": [0.5]}"#, "`image_mean`"),
            (r#"{"image_processor_type": "CLIPImageProcessor"}"#, "CLIPImageProcessor"),
            (r#"{"do_resize": 1}"#, "`do_resize` = 1"),
        ] {
            let refused = Preprocessor::from_bytes(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let image = Pixels { width: 5, height: 7, bytes: vec![0; 3 * 5 * 7] };
        let shape = ImageShape { side: 32, patch: 8 };
        let of = |text: &str| Preprocessor::from_bytes(text.as_bytes()).unwrap().patches(&image, shape);
        assert!(matches!(of(r#"{"do_resize": false}"#), Err(ImageError::Size { width: 5, height: 7, side: 32 })));
        assert!(matches!(of("{}"), Err(ImageError::Unsupported { .. })));
        assert_eq!(of(r#"{"size": 32, "do_center_crop": false}"#).unwrap()[(0, 0)], -1.0);
    }

    /// A PNG whose header states a huge size, a cut PNG, and a file that is not an image.
    #[test]
    fn damaged_and_huge_images_are_refused() {
        let path = Path::new("image");
        let mut wide = vit("image.png");
        wide[16..20].copy_from_slice(&(MAX_SIDE + 1).to_be_bytes());
        // The checksum of the header, over its type and its content.
        let sum = !wide[12..29].iter().fold(!0u32, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
        });
        wide[29..33].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(decode(path, &wide), Err(ImageError::Large { width: 65_537, .. })));
        let png = vit("image.png");
        assert!(matches!(decode(path, &png[..png.len() / 2]), Err(ImageError::Broken { .. })));
        assert!(matches!(decode(path, b"no image"), Err(ImageError::Unknown(_))));
    }

    /// Whole JPEGs are decoded, also with a thumbnail and with other bytes after them. A part of a JPEG is refused,
    /// whatever follows it: the codes of all blocks must be there.
    #[test]
    fn a_part_of_a_jpeg_is_refused() {
        let path = Path::new("image.jpg");
        let data = |name: &str| {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/images");
            std::fs::read(dir.join(name)).unwrap()
        };
        for jpeg in ["progressive.jpg", "restarts.jpg", "grey.jpg", "baseline.jpg"].map(data) {
            // A thumbnail is a JPEG in an application segment.
            let length = u16::try_from(jpeg.len() + 2).unwrap().to_be_bytes();
            let shown = [&jpeg[..2], &[0xff, 0xe1], &length, &jpeg, &jpeg[2..]].concat();
            let whole = decode(path, &jpeg).unwrap();
            for more in [&[][..], &jpeg, &[0xff, 0xd9, 7]] {
                assert_eq!(decode(path, &[&shown, more].concat()).unwrap(), whole);
            }
            let from = shown.len() - jpeg.len();
            for part in (3..98).map(|percent| from + jpeg.len() * percent / 100) {
                for more in [&[][..], &[0xff, 0xd9], &[0xff, 0xd9, 7, 0xff, 0xd9]] {
                    let cut = decode(path, &[&shown[..part], more].concat());
                    assert!(matches!(cut, Err(ImageError::Broken { .. })), "{part} of {}", shown.len());
                }
            }
        }
    }
}
