//! Checks that all pixels of a JPEG are there, because decoders make up missing ones.
//!
//! Markers and codes are read as in ITU-T T.81 (annexes B, F and G), without decoding coefficients. Faults of the
//! headers that a decoder refuses anyway are not looked for.

use std::iter;

/// The reason for which a cut JPEG is refused.
const EARLY: &str = "it ends early";
const DAMAGED: &str = "a code of its pixels is damaged";
const SCANS: &str = "it has more than 100 scans";
const TABLE: &str = "a table of its codes is missing";

/// Most scans, the same as in the decoder. They are bounded because a scan of a few bytes may go over all blocks.
const MAX_SCANS: usize = 100;

/// Reads the markers and codes of an image up to its end. `size` is its width and height by the header. A thumbnail,
/// and whatever follows the image, is not read.
pub(super) fn check(bytes: &[u8], size: [u32; 2]) -> Result<(), &'static str> {
    let mut image = Image { size: size.map(|pixels| pixels as usize), ..Image::default() };
    let (mut at, mut scans) = (2, 0);
    loop {
        let marker = next_marker(bytes, &mut at).ok_or(EARLY)?;
        match marker {
            // The end of the image. It must come after all bits of all components.
            0xd9 => return if image.is_whole() { Ok(()) } else { Err(EARLY) },
            // Markers without content.
            0x01 | 0xd0..=0xd8 => continue,
            _ => {}
        }
        let length = bytes.get(at..at + 2).ok_or(EARLY)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let segment = bytes.get(at + 2..at + length.max(2)).ok_or(EARLY)?;
        at += length.max(2);
        match marker {
            0xc0..=0xc2 => image.begin(segment, marker == 0xc2).ok_or(DAMAGED)?,
            0xc4 => image.tables(segment).ok_or(DAMAGED)?,
            0xdd => image.restart = usize::from(u16::from_be_bytes(segment.try_into().map_err(|_| DAMAGED)?)),
            0xda => {
                scans += 1;
                if scans > MAX_SCANS {
                    return Err(SCANS);
                }
                let scan = image.scan(segment).ok_or(DAMAGED)?;
                image.walk(&scan, bytes, &mut at)?;
            }
            _ => {}
        }
    }
}

/// Returns the next marker from `at` on, and moves `at` behind it. Bytes between two segments are skipped, as by
/// decoders.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    let found = bytes.get(*at..)?.windows(2).position(|pair| pair[0] == 0xff && ![0, 0xff].contains(&pair[1]))?;
    *at += found + 2;
    Some(bytes[*at - 1])
}

/// The image, as far as its headers and scans were read.
#[derive(Default)]
struct Image {
    progressive: bool,
    components: Vec<Component>,
    /// Width and height in pixels.
    size: [usize; 2],
    /// Tables of codes by class, then by number: class 0 for the first coefficient of a block, class 1 for the
    /// others.
    tables: [[Option<Codes>; 4]; 2],
    /// MCUs (minimum coded units) between two restart markers; 0 if there are no such markers.
    restart: usize,
}

struct Component {
    id: u8,
    /// Blocks of an MCU, across and down.
    sampling: [usize; 2],
    /// For each block of all MCUs, a bit for each of its coefficients that says whether the coefficient is not zero.
    /// The codes of a scan that refines depend on these bits.
    nonzero: Vec<u64>,
    /// For each coefficient, the lowest bit that was sent.
    lowest: [u8; 64],
}

/// Number of codes of each length, and the values for which the codes stand.
struct Codes {
    counts: [u8; 16],
    values: Vec<u8>,
}

/// A scan's header.
struct Scan {
    /// The scan's components by index, each with the numbers of its two tables.
    parts: Vec<(usize, [usize; 2])>,
    /// The first and the last coefficient of a block that the scan sends.
    band: [u32; 2],
    /// The lowest bit that the scan sends.
    lowest: u8,
    /// Whether the scan sends the bit `lowest` alone, of coefficients whose higher bits were sent before.
    refines: bool,
}

impl Image {
    fn is_whole(&self) -> bool {
        let mut lowest = self.components.iter().flat_map(|component| component.lowest);
        !self.components.is_empty() && lowest.all(|bit| bit == 0)
    }

    /// Reads a frame's header.
    fn begin(&mut self, segment: &[u8], progressive: bool) -> Option<()> {
        let [_, h1, h0, w1, w0, count, ref components @ ..] = *segment else { return None };
        let size = [[w1, w0], [h1, h0]].map(|bytes| usize::from(u16::from_be_bytes(bytes)));
        let component = |bytes: &[u8]| {
            let sampling = [bytes[1] >> 4, bytes[1] & 15].map(usize::from);
            let fits = sampling.iter().all(|blocks| (1..=4).contains(blocks));
            fits.then(|| Component { id: bytes[0], sampling, nonzero: Vec::new(), lowest: [u8::MAX; 64] })
        };
        self.components = components.chunks_exact(3).take(count.into()).map(component).collect::<Option<_>>()?;
        let whole = self.components.len() == usize::from(count) && (1..=4).contains(&count);
        if !whole || size != self.size {
            return None;
        }
        self.progressive = progressive;
        let [across, down] = [0, 1].map(|axis| self.mcus(axis));
        if progressive {
            for component in &mut self.components {
                let [h, v] = component.sampling;
                component.nonzero = vec![0; across * h * down * v];
            }
        }
        Some(())
    }

    /// Number of MCUs of all components along `axis`.
    fn mcus(&self, axis: usize) -> usize {
        self.size[axis].div_ceil(8 * self.most(axis))
    }

    fn most(&self, axis: usize) -> usize {
        self.components.iter().map(|component| component.sampling[axis]).max().unwrap_or(1)
    }

    /// Reads tables of codes.
    fn tables(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let values = counts.iter().map(|count| usize::from(*count)).sum();
            let place = self.tables.get_mut(usize::from(kind >> 4))?.get_mut(usize::from(kind & 15))?;
            *place = Some(Codes { counts: *counts, values: rest.get(..values)?.to_vec() });
            segment = &rest[values..];
        }
        Some(())
    }

    /// Reads the header of a scan.
    fn scan(&self, segment: &[u8]) -> Option<Scan> {
        let (&count, rest) = segment.split_first()?;
        let (parts, rest) = rest.split_at_checked(2 * usize::from(count))?;
        let part = |part: &[u8]| {
            let place = self.components.iter().position(|component| component.id == part[0])?;
            Some((place, [part[1] >> 4, part[1] & 15].map(usize::from)))
        };
        let parts: Vec<_> = parts.chunks_exact(2).map(part).collect::<Option<_>>()?;
        let [first, last, bits] = *rest else { return None };
        // In a frame that is not progressive a scan has all coefficients, whatever its header says.
        let (band, bits) = if self.progressive { ([first, last].map(u32::from), bits) } else { ([0, 63], 0) };
        let whole = !self.progressive || (band[0] == 0) == (band[1] == 0) && (band[0] == 0 || count == 1);
        (whole && (1..=4).contains(&count) && band[0] <= band[1] && band[1] < 64).then_some(Scan {
            parts,
            band,
            lowest: bits & 15,
            refines: bits >> 4 > 0,
        })
    }

    /// Reads the codes of all blocks of `scan`.
    fn walk(&mut self, scan: &Scan, bytes: &[u8], at: &mut usize) -> Result<(), &'static str> {
        let [across, down] = [0, 1].map(|axis| match scan.parts[..] {
            // A scan of one component has no blocks beyond the image.
            [(place, _)] => (self.size[axis] * self.components[place].sampling[axis]).div_ceil(8 * self.most(axis)),
            _ => self.mcus(axis),
        });
        let strides = self.components.iter().map(|component| self.mcus(0) * component.sampling[0]);
        let strides: Vec<usize> = strides.collect();
        let mut bits = Bits { bytes, at: *at, byte: 0, left: 0 };
        let mut run = 0;
        for mcu in 0..across * down {
            if self.restart > 0 && mcu > 0 && mcu % self.restart == 0 {
                bits.left = 0;
                run = 0;
                if !next_marker(bytes, &mut bits.at).is_some_and(|marker| (0xd0..=0xd7).contains(&marker)) {
                    return Err(EARLY);
                }
            }
            for (place, numbers) in &scan.parts {
                let [first, others] =
                    [0, 1].map(|kind| self.tables[kind].get(numbers[kind]).and_then(Option::as_ref));
                let component = &mut self.components[*place];
                let [h, v] = if scan.parts.len() == 1 { [1, 1] } else { component.sampling };
                for (y, x) in (0..v).flat_map(|y| iter::repeat_n(y, h).zip(0..h)) {
                    let block = (mcu / across * v + y) * strides[*place] + mcu % across * h + x;
                    match component.nonzero.get_mut(block) {
                        None => bits.block(first, others)?,
                        Some(_) if scan.band[0] == 0 && scan.refines => drop(bits.bits(1)?),
                        Some(_) if scan.band[0] == 0 => bits.first(first)?,
                        Some(nonzero) if scan.refines => bits.refine(others, scan.band, nonzero, &mut run)?,
                        Some(nonzero) => bits.band(others, scan.band, nonzero, &mut run)?,
                    }
                }
            }
        }
        let [from, to] = scan.band.map(|k| k as usize);
        scan.parts.iter().for_each(|(place, _)| self.components[*place].lowest[from..=to].fill(scan.lowest));
        *at = bits.at;
        Ok(())
    }
}

/// The bits of a scan.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    byte: u8,
    /// Bits of `byte` that are not read yet.
    left: u32,
}

type Table<'a> = Option<&'a Codes>;

impl Bits<'_> {
    fn bits(&mut self, count: u8) -> Result<u32, &'static str> {
        let mut bits = 0;
        for _ in 0..count {
            if self.left == 0 {
                self.byte = *self.bytes.get(self.at).ok_or(EARLY)?;
                // A marker ends the bits before the last code.
                if self.byte == 0xff && self.bytes.get(self.at + 1) != Some(&0) {
                    return Err(EARLY);
                }
                self.at += if self.byte == 0xff { 2 } else { 1 };
                self.left = 8;
            }
            self.left -= 1;
            bits = bits << 1 | u32::from(self.byte >> self.left & 1);
        }
        Ok(bits)
    }

    fn code(&mut self, table: Table) -> Result<u8, &'static str> {
        let Codes { counts, values } = table.ok_or(TABLE)?;
        // Codes of one length are consecutive. The first is twice the successor of the last shorter code.
        let (mut code, mut first, mut before) = (0, 0, 0);
        for count in counts.iter().map(|count| u32::from(*count)) {
            code |= self.bits(1)?;
            if code < first + count {
                let place = (before + code).checked_sub(first).ok_or(DAMAGED)?;
                return values.get(place as usize).copied().ok_or(DAMAGED);
            }
            before += count;
            (code, first) = (code << 1, (first + count) << 1);
        }
        Err(DAMAGED)
    }

    /// Reads the first coefficient of a block.
    fn first(&mut self, table: Table) -> Result<(), &'static str> {
        match self.code(table)? {
            size @ 0..=16 => self.bits(size).map(drop),
            _ => Err(DAMAGED),
        }
    }

    /// Reads a whole block.
    fn block(&mut self, first: Table, others: Table) -> Result<(), &'static str> {
        self.first(first)?;
        let mut k = 1;
        while k < 64 {
            let code = self.code(others)?;
            k += match (code >> 4, code & 15) {
                (15, 0) => 16,
                (_, 0) => break,
                (zeros, size) => {
                    self.bits(size)?;
                    u32::from(zeros) + 1
                }
            };
        }
        if k > 64 { Err(DAMAGED) } else { Ok(()) }
    }

    /// Reads the band of a block that no earlier scan sent, and notes its nonzero coefficients in `nonzero`. `run`
    /// becomes the number of following blocks that have no codes.
    fn band(&mut self, table: Table, band: [u32; 2], nonzero: &mut u64, run: &mut u32) -> Result<(), &'static str> {
        if *run > 0 {
            *run -= 1;
            return Ok(());
        }
        let mut k = band[0];
        while k <= band[1] {
            let code = self.code(table)?;
            match (code >> 4, code & 15) {
                (15, 0) => k += 16,
                (size, 0) => {
                    *run = (1 << size) - 1 + self.bits(size)?;
                    break;
                }
                (zeros, size) => {
                    k += u32::from(zeros);
                    *nonzero |= 1u64.checked_shl(k).ok_or(DAMAGED)?;
                    self.bits(size)?;
                    k += 1;
                }
            }
        }
        Ok(())
    }

    /// Reads the band of a block that an earlier scan sent: one more bit of each nonzero coefficient, and
    /// coefficients that become nonzero. `run` becomes the number of following blocks without new coefficients.
    fn refine(&mut self, table: Table, band: [u32; 2], nonzero: &mut u64, run: &mut u32) -> Result<(), &'static str> {
        let mut k = band[0];
        while *run == 0 && k <= band[1] {
            let code = self.code(table)?;
            let (mut zeros, size) = (code >> 4, code & 15);
            if size == 0 && zeros < 15 {
                *run = (1 << zeros) + self.bits(zeros)?;
                break;
            }
            self.bits(size.min(1))?;
            while k <= band[1] {
                match *nonzero >> k & 1 {
                    1 => drop(self.bits(1)?),
                    _ if zeros == 0 => break,
                    _ => zeros -= 1,
                }
                k += 1;
            }
            if size > 0 {
                *nonzero |= 1u64.checked_shl(k).ok_or(DAMAGED)?;
            }
            k += 1;
        }
        if *run > 0 {
            let rest = (k..=band[1]).filter(|k| *nonzero >> k & 1 == 1).count();
            (0..rest).try_for_each(|_| self.bits(1).map(drop))?;
            *run -= 1;
        }
        Ok(())
    }
}
