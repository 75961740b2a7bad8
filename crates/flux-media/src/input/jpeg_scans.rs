//! Checks that the scans of a JPEG contain every block of its image. Decoders silently fill missing blocks with grey.
//!
//! The check walks over the Huffman codes of all scans, sequential and progressive, without decoding a pixel. Source:
//! ITU-T T.81.

use std::borrow::Cow;

use super::decoded::expect_size;
use super::jpeg_bits::{Bits, Codes, Lack};
use super::jpeg_tables::{self, STANDARD};

/// Maximum number of scans, as in the decoder.
const MAX_SCANS: usize = 100;

/// Maximum number of tables: at most eight precede each scan.
const MAX_TABLES: usize = 8 * MAX_SCANS;

const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// Returns the file as the decoder needs it: with the standard's Huffman tables if the file has none, and with the end
/// marker of an image. Kinds of JPEG that are not walked are returned unchanged: the decoder reports if it cannot read
/// them.
///
/// Errors if the data of a block are missing or damaged.
pub(super) fn completed(file: &[u8]) -> Result<Cow<'_, [u8]>, Lack> {
    let mut walk = Walk::default();
    let mut read = 2;
    let end = loop {
        let mut at = read;
        let Some(marker) = next_marker(file, &mut at) else { break Some(read) };
        match marker {
            END => break None,
            // Markers without a length.
            1 | 0xd0..=0xd8 => read = at,
            _ => {
                let before = at - 2;
                let Some(segment) = segment(file, &mut at) else { break Some(read) };
                let Some(end) = walk.read(marker, segment, file, [before, at])? else { return Ok(Cow::Borrowed(file)) };
                read = end;
            }
        }
    };
    let is_whole = !walk.components.is_empty() && walk.components.iter().all(Component::is_whole);
    match (is_whole, walk.tables_missing_at, end) {
        (false, ..) => Err(Lack::Data),
        (true, None, None) => Ok(Cow::Borrowed(file)),
        (true, tables, end) => {
            let (head, tail) = file[..end.unwrap_or(file.len())].split_at(tables.unwrap_or(2));
            let tables = if tables.is_some() { jpeg_tables::segment() } else { Vec::new() };
            let end: &[u8] = if end.is_some() { &[0xff, END] } else { &[] };
            Ok(Cow::Owned([head, &tables, tail, end].concat()))
        }
    }
}

/// Returns the next marker from `at` on, and moves `at` after it. Bytes before the marker are skipped, as decoders do.
fn next_marker(file: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        let start = *at + file.get(*at..)?.iter().position(|byte| *byte == 0xff)?;
        let length = file[start..].iter().position(|byte| *byte != 0xff)?;
        *at = start + length + 1;
        let marker = file[start + length];
        if marker != 0 {
            return Some(marker);
        }
    }
}

/// Returns the content of the segment whose length is at `at`, and moves `at` after it.
fn segment<'a>(file: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let [high, low] = *file.get(*at..)?.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let segment = file.get(*at + 2..(*at + length).max(*at + 2))?;
    *at += length.max(2);
    Some(segment)
}

/// The state from the segments read so far.
#[derive(Default)]
struct Walk {
    progressive: bool,
    size: [usize; 2],
    /// The largest sampling factors.
    max_sampling: [usize; 2],
    components: Vec<Component>,
    dc: [Option<Codes>; 4],
    ac: [Option<Codes>; 4],
    restarts: usize,
    scans: usize,
    tables: usize,
    /// The position of the scan that uses the standard's tables, because the file has none.
    tables_missing_at: Option<usize>,
}

struct Component {
    id: u8,
    sampling: [usize; 2],
    /// Blocks of a row, and rows of blocks, padded to whole MCUs.
    blocks: [usize; 2],
    /// The number of missing bits of each coefficient; `None` before its first scan.
    missing_bits: [Option<u8>; 64],
    /// In progressive files: the nonzero coefficients of each block.
    nonzero: Vec<u64>,
}

impl Component {
    fn is_whole(&self) -> bool {
        self.missing_bits.iter().all(|bits| *bits == Some(0))
    }
}

/// A scan's header.
struct Scan {
    /// The components, with their codes for DC and AC.
    parts: Vec<(usize, usize, usize)>,
    first: usize,
    last: usize,
    refines: bool,
    low: u8,
}

impl Scan {
    fn parse(segment: &[u8], walk: &Walk) -> Option<Self> {
        let count = usize::from(*segment.first()?);
        let tail = segment.get(1 + 2 * count..4 + 2 * count)?;
        let part = |pair: &[u8]| {
            let index = walk.components.iter().position(|component| component.id == pair[0])?;
            Some((index, usize::from(pair[1] >> 4), usize::from(pair[1] & 15)))
        };
        let parts = segment[1..1 + 2 * count].chunks_exact(2).map(part).collect::<Option<Vec<_>>>()?;
        let scan = Self {
            parts,
            first: usize::from(tail[0]),
            last: usize::from(tail[1]),
            refines: tail[2] >> 4 != 0,
            low: tail[2] & 15,
        };
        let in_range = if walk.progressive {
            scan.first <= scan.last && scan.last < 64 && (scan.first == 0) == (scan.last == 0)
        } else {
            (scan.first, scan.last, tail[2]) == (0, 63, 0)
        };
        let alone = scan.first == 0 || scan.parts.len() == 1;
        let tables = scan.parts.iter().all(|(_, dc, ac)| *dc < 4 && *ac < 4);
        (in_range && alone && tables && (1..=4).contains(&count)).then_some(scan)
    }
}

impl Walk {
    /// Reads a segment whose marker is at `before`, and the data of a scan, which begin at `at`. Returns the position
    /// of the next segment, or `None` if the file is of a kind that is not walked.
    fn read(
        &mut self,
        marker: u8,
        segment: &[u8],
        file: &[u8],
        [before, at]: [usize; 2],
    ) -> Result<Option<usize>, Lack> {
        let known = match marker {
            0xc0..=0xc2 => self.read_frame(segment, marker == 0xc2),
            // Lossless, hierarchical and arithmetic coding.
            0xc3 | 0xc5..=0xcb | 0xcd..=0xcf => None,
            0xc4 => self.read_codes(segment),
            0xdd => self.read_restarts(segment),
            SCAN => {
                self.scans += 1;
                let Some(scan) = Scan::parse(segment, self).filter(|_| self.scans <= MAX_SCANS) else {
                    return Ok(None);
                };
                if self.lacks_tables(&scan)? {
                    self.tables_missing_at = Some(before);
                    for (table, codes) in STANDARD {
                        self.read_codes(&[&[table], codes].concat()).ok_or(Lack::Tables)?;
                    }
                }
                return self.scan(&scan, file, at).map(Some);
            }
            _ => Some(()),
        };
        Ok(known.map(|()| at))
    }

    /// Reads a frame header; `None` for a frame that is not walked.
    fn read_frame(&mut self, segment: &[u8], progressive: bool) -> Option<()> {
        let &[precision, y0, y1, x0, x1, count] = segment.first_chunk()?;
        let [height, width] = [[y0, y1], [x0, x1]].map(|side| usize::from(u16::from_be_bytes(side)));
        let parts = segment.get(6..6 + 3 * usize::from(count))?;
        let factors = |part: &[u8]| [usize::from(part[1] >> 4), usize::from(part[1] & 15)];
        let known = parts.chunks_exact(3).all(|part| factors(part).iter().all(|factor| (1..=4).contains(factor)));
        if precision != 8 || !known || !self.components.is_empty() || count > 4 {
            return None;
        }
        expect_size(width, height).ok()?;
        let most = |axis: usize| parts.chunks_exact(3).map(|part| factors(part)[axis]).max().unwrap_or(1);
        (self.progressive, self.size, self.max_sampling) = (progressive, [width, height], [most(0), most(1)]);
        let component = |part: &[u8]| {
            let sampling = factors(part);
            let blocks = [0, 1].map(|axis| self.units(axis) * sampling[axis]);
            let nonzero = if progressive { vec![0; blocks[0] * blocks[1]] } else { Vec::new() };
            Component { id: part[0], sampling, blocks, missing_bits: [None; 64], nonzero }
        };
        self.components = parts.chunks_exact(3).map(component).collect();
        Some(())
    }

    /// Returns the number of MCUs along an axis, for a scan of several components.
    fn units(&self, axis: usize) -> usize {
        self.size[axis].div_ceil(8 * self.max_sampling[axis])
    }

    fn read_codes(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&of, rest)) = segment.split_first() {
            self.tables += 1;
            if self.tables > MAX_TABLES {
                return None;
            }
            let (codes, used) = Codes::parse(rest)?;
            let tables = if of >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            *tables.get_mut(usize::from(of & 15))? = Some(codes);
            segment = &rest[used..];
        }
        Some(())
    }

    /// Returns `true` if the scan needs the standard's tables: cameras send video frames without tables.
    ///
    /// Errors if tables are missing that the standard does not have, or if the file has other tables.
    fn lacks_tables(&self, scan: &Scan) -> Result<bool, Lack> {
        let needs = |tables: &[Option<Codes>; 4], of: usize| (of, tables[of].is_some());
        let (needs_dc, needs_ac) = (scan.first == 0 && !scan.refines, scan.last > 0);
        let dc = scan.parts.iter().filter(|_| needs_dc).map(|&(_, dc, _)| needs(&self.dc, dc));
        let ac = scan.parts.iter().filter(|_| needs_ac).map(|&(.., ac)| needs(&self.ac, ac));
        let needed: Vec<_> = dc.chain(ac).collect();
        match needed.iter().filter(|(_, is_there)| *is_there).count() {
            there if there == needed.len() => Ok(false),
            0 if !self.progressive && self.tables == 0 && needed.iter().all(|(of, _)| *of < 2) => Ok(true),
            _ => Err(Lack::Tables),
        }
    }

    fn read_restarts(&mut self, segment: &[u8]) -> Option<()> {
        self.restarts = usize::from(u16::from_be_bytes(*segment.first_chunk()?));
        Some(())
    }

    /// Walks over a scan whose data begin at `at`. Returns the position of their end.
    fn scan(&mut self, scan: &Scan, file: &[u8], at: usize) -> Result<usize, Lack> {
        let [columns, rows] = match scan.parts[..] {
            [(index, ..)] => {
                let sampling = self.components[index].sampling;
                [0, 1].map(|axis| (self.size[axis] * sampling[axis]).div_ceil(8 * self.max_sampling[axis]))
            }
            _ => [self.units(0), self.units(1)],
        };
        let mut bits = Bits::new(file, at);
        let mut end_of_band = 0;
        for unit in 0..columns * rows {
            if self.restarts > 0 && unit > 0 && unit.is_multiple_of(self.restarts) {
                bits.restart()?;
                end_of_band = 0;
            }
            let (x, y) = (unit % columns, unit / columns);
            if let [(index, dc, ac)] = scan.parts[..] {
                self.block(scan, (index, dc, ac), [x, y], &mut bits, &mut end_of_band)?;
                continue;
            }
            for &(index, dc, ac) in &scan.parts {
                let [across, down] = self.components[index].sampling;
                for (i, j) in (0..down).flat_map(|j| (0..across).map(move |i| (i, j))) {
                    let place = [x * across + i, y * down + j];
                    self.block(scan, (index, dc, ac), place, &mut bits, &mut end_of_band)?;
                }
            }
        }
        for &(index, ..) in &scan.parts {
            self.components[index].missing_bits[scan.first..=scan.last].fill(Some(scan.low));
        }
        Ok(bits.end())
    }

    /// Walks over a block.
    fn block(
        &mut self,
        scan: &Scan,
        (index, dc, ac): (usize, usize, usize),
        [x, y]: [usize; 2],
        bits: &mut Bits<'_>,
        end_of_band: &mut u32,
    ) -> Result<(), Lack> {
        let component = &mut self.components[index];
        let (dc, ac) = (self.dc[dc].as_ref(), self.ac[ac].as_ref());
        let ac = || ac.ok_or(Lack::Code);
        if scan.first == 0 {
            if scan.refines {
                bits.skip(1)?;
            } else {
                let length = bits.symbol(dc.ok_or(Lack::Code)?)?;
                bits.skip(u32::from(length))?;
            }
        }
        if !self.progressive {
            return sequential(bits, ac()?);
        }
        if scan.first == 0 {
            return Ok(());
        }
        let nonzero = &mut component.nonzero[y * component.blocks[0] + x];
        let band = (scan.first, scan.last);
        if scan.refines {
            refined(bits, ac()?, band, nonzero, end_of_band)
        } else {
            first_of_band(bits, ac()?, band, nonzero, end_of_band)
        }
    }
}

/// Walks over the coefficients of a block after its first.
fn sequential(bits: &mut Bits<'_>, codes: &Codes) -> Result<(), Lack> {
    let mut at = 1;
    while at < 64 {
        let symbol = bits.symbol(codes)?;
        let (zeros, length) = (usize::from(symbol >> 4), symbol & 15);
        match (zeros, length) {
            (15, 0) => at += 16,
            (_, 0) => return Ok(()),
            _ => {
                bits.skip(u32::from(length))?;
                at += zeros + 1;
            }
        }
    }
    // A run that ends outside the block is invalid.
    if at == 64 { Ok(()) } else { Err(Lack::Code) }
}

/// Returns the number of blocks, this one included, whose rest of the band is zero.
fn run_of_ends(bits: &mut Bits<'_>, length: usize) -> Result<u32, Lack> {
    Ok((1 << length) + bits.take(length as u32)?)
}

/// Walks over a block in the first scan of a band of coefficients.
fn first_of_band(
    bits: &mut Bits<'_>,
    codes: &Codes,
    (first, last): (usize, usize),
    nonzero: &mut u64,
    end_of_band: &mut u32,
) -> Result<(), Lack> {
    if *end_of_band > 0 {
        *end_of_band -= 1;
        return Ok(());
    }
    let mut at = first;
    while at <= last {
        let symbol = bits.symbol(codes)?;
        let (zeros, length) = (usize::from(symbol >> 4), symbol & 15);
        match (zeros, length) {
            (15, 0) => at += 16,
            (_, 0) => {
                *end_of_band = run_of_ends(bits, zeros)? - 1;
                return Ok(());
            }
            _ => {
                at += zeros;
                bits.skip(u32::from(length))?;
                *nonzero |= 1_u64.checked_shl(at as u32).unwrap_or(0);
                at += 1;
            }
        }
    }
    Ok(())
}

/// Walks over a block in a later scan of a band, with one more bit of each coefficient.
fn refined(
    bits: &mut Bits<'_>,
    codes: &Codes,
    (first, last): (usize, usize),
    nonzero: &mut u64,
    end_of_band: &mut u32,
) -> Result<(), Lack> {
    let mut at = first;
    while *end_of_band == 0 && at <= last {
        let symbol = bits.symbol(codes)?;
        let (mut zeros, length) = (usize::from(symbol >> 4), symbol & 15);
        if length == 0 && zeros < 15 {
            *end_of_band = run_of_ends(bits, zeros)?;
            break;
        }
        bits.skip(u32::from(length.min(1)))?;
        while at <= last {
            if *nonzero >> at & 1 == 1 {
                bits.skip(1)?;
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            at += 1;
        }
        if length > 0 && at <= last {
            *nonzero |= 1 << at;
        }
        at += 1;
    }
    if *end_of_band > 0 {
        let rest = (at..=last).filter(|at| *nonzero >> at & 1 == 1).count();
        bits.skip(rest as u32)?;
        *end_of_band -= 1;
    }
    Ok(())
}
