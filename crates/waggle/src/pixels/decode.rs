//! Decodes files into pixels.

use std::io::Cursor;
use std::path::Path;

use png::Transformations;
use waggle_files::at;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{ImageError, Pixels, jpeg};
use crate::Error;

/// Most bytes of a file.
const MAX_IMAGE_BYTES: u64 = 64 << 20;

/// Most pixels of an image's side.
pub(super) const MAX_SIDE: u32 = 1 << 16;

/// Most pixels of an image.
pub(super) const MAX_PIXELS: u64 = 32 << 20;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG: &[u8] = &[0xff, 0xd8, 0xff];

/// Reads the PNG or JPEG at `path`. An image that is too large is refused before its pixels are decoded.
pub(crate) fn read_image(path: &Path) -> Result<Pixels, Error> {
    let bytes = waggle_files::read(path, MAX_IMAGE_BYTES).map_err(at(path))?;
    Ok(decode(path, &bytes)?)
}

pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Pixels, ImageError> {
    if bytes.starts_with(PNG) {
        of_png(path, bytes)
    } else if bytes.starts_with(JPEG) {
        of_jpeg(path, bytes)
    } else {
        Err(ImageError::Unknown(path.into()))
    }
}

/// A function that turns a fault of the file `path` into the error for a damaged file.
fn broken(path: &Path) -> impl Fn(&dyn ToString) -> ImageError {
    move |what| ImageError::Broken { path: path.into(), what: what.to_string() }
}

/// Refuses an image that is too large, before it is decoded.
fn bounded(path: &Path, width: u32, height: u32) -> Result<(), ImageError> {
    if width.max(height) > MAX_SIDE || u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(ImageError::Large { path: path.into(), width, height });
    }
    Ok(())
}

fn of_png(path: &Path, bytes: &[u8]) -> Result<Pixels, ImageError> {
    let broken = broken(path);
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Palettes and samples of fewer than 8 bits become bytes. Of 16 bits, the higher byte is kept.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(|error| broken(&error))?;
    bounded(path, header.width, header.height)?;
    let mut reader = decoder.read_info().map_err(|error| broken(&error))?;
    let size = reader.output_buffer_size().ok_or_else(|| broken(&"its size overflows"))?;
    let mut decoded = vec![0; size];
    let frame = reader.next_frame(&mut decoded).map_err(|error| broken(&error))?;
    reader.finish().map_err(|error| broken(&error))?;
    let exif = reader.info().exif_metadata.as_deref().map(<[u8]>::to_vec);
    let samples = frame.color_type.samples();
    let grey = samples < 3;
    // Transparency is dropped.
    let pixel = |sample: &[u8]| if grey { [sample[0]; 3] } else { [sample[0], sample[1], sample[2]] };
    let pixels = decoded[..frame.buffer_size()].chunks_exact(samples).flat_map(pixel).collect();
    Ok(Pixels { width: frame.width, height: frame.height, bytes: pixels }.turned(exif.as_deref()))
}

fn of_jpeg(path: &Path, bytes: &[u8]) -> Result<Pixels, ImageError> {
    let broken = broken(path);
    let options = DecoderOptions::default()
        .set_max_width(u16::MAX.into())
        .set_max_height(u16::MAX.into())
        .set_strict_mode(false)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| broken(&error))?;
    let info = decoder.info().ok_or_else(|| broken(&"it has no header"))?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    bounded(path, width, height)?;
    jpeg::check(bytes, [width, height]).map_err(|what| broken(&what))?;
    let pixels = decoder.decode().map_err(|error| broken(&error))?;
    if pixels.len() as u64 != 3 * u64::from(width) * u64::from(height) {
        return Err(broken(&"its colours are not read"));
    }
    let exif = decoder.exif().cloned();
    Ok(Pixels { width, height, bytes: pixels }.turned(exif.as_deref()))
}

impl Pixels {
    /// The image turned as its EXIF data say. Without such data it stays as it is.
    fn turned(self, exif: Option<&[u8]>) -> Pixels {
        let read = exif.and_then(|exif| exif::Reader::new().read_raw(exif.to_vec()).ok());
        let field = read.as_ref().and_then(|exif| exif.get_field(exif::Tag::Orientation, exif::In::PRIMARY));
        let Pixels { width, height, .. } = self;
        let (right, down) = (width.saturating_sub(1), height.saturating_sub(1));
        // The source of the pixel in column x and row y, given x, y, the last column and the last row.
        type From = fn(u32, u32, u32, u32) -> (u32, u32);
        let (swapped, from): (bool, From) = match field.and_then(|field| field.value.get_uint(0)) {
            Some(2) => (false, |x, y, right, _| (right - x, y)),
            Some(3) => (false, |x, y, right, down| (right - x, down - y)),
            Some(4) => (false, |x, y, _, down| (x, down - y)),
            Some(5) => (true, |x, y, _, _| (y, x)),
            Some(6) => (true, |x, y, _, down| (y, down - x)),
            Some(7) => (true, |x, y, right, down| (right - y, down - x)),
            Some(8) => (true, |x, y, right, _| (right - y, x)),
            _ => return self,
        };
        let (width, height) = if swapped { (height, width) } else { (width, height) };
        let places = (0..height).flat_map(|y| (0..width).map(move |x| from(x, y, right, down)));
        Pixels { width, height, bytes: places.flat_map(|(x, y)| self.pixel(x, y)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ImageOps.exif_transpose` of Pillow turns them.
    #[test]
    fn an_image_is_shown_as_its_camera_was_held() {
        let image = Pixels { width: 2, height: 3, bytes: b"abcdef".iter().flat_map(|byte| [*byte; 3]).collect() };
        for (orientation, [width, height], shown) in [
            (1, [2, 3], "abcdef"),
            (2, [2, 3], "badcfe"),
            (3, [2, 3], "fedcba"),
            (4, [2, 3], "efcdab"),
            (5, [3, 2], "acebdf"),
            (6, [3, 2], "ecafdb"),
            (7, [3, 2], "fdbeca"),
            (8, [3, 2], "bdface"),
            (9, [2, 3], "abcdef"),
        ] {
            // One entry: tag 0x0112, a short.
            let exif = [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[orientation, 0, 0, 0, 0, 0, 0, 0]];
            let turned = image.clone().turned(Some(&exif.concat()));
            let bytes: Vec<u8> = turned.bytes.iter().step_by(3).copied().collect();
            assert_eq!((turned.width, turned.height), (width, height), "{orientation}");
            assert_eq!(String::from_utf8(bytes).unwrap(), shown, "{orientation}");
        }
        assert_eq!(image.clone().turned(Some(b"none")), image);
    }
}
