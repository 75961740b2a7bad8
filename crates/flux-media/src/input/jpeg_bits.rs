//! The bits of a JPEG's scans, and its Huffman codes.

/// Length of the longest code, in bits.
const LONGEST: u32 = 16;

/// The missing part of a JPEG's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// Blocks, or scans.
    Data,
    /// A code that the file's tables contain.
    Code,
    /// Huffman tables.
    Tables,
}

/// A table of Huffman codes.
pub(super) struct Codes {
    /// For each value of the next 16 bits, the length of the code at their beginning, 0 for none, and its symbol.
    of: Vec<(u8, u8)>,
}

impl Codes {
    /// Reads a table, and returns its length in the file too. `None` if the table is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let counts: &[u8; LONGEST as usize] = bytes.first_chunk()?;
        let symbols: usize = counts.iter().map(|count| usize::from(*count)).sum();
        let mut symbols = bytes.get(counts.len()..counts.len() + symbols)?.iter();
        let mut of = Vec::with_capacity(1 << LONGEST);
        for (length, count) in (1..).zip(counts) {
            for symbol in symbols.by_ref().take(usize::from(*count)) {
                of.resize(of.len() + (1 << (LONGEST - length)), (length as u8, *symbol));
            }
        }
        if of.len() > 1 << LONGEST {
            return None;
        }
        of.resize(1 << LONGEST, (0, 0));
        let used = counts.iter().map(|count| usize::from(*count)).sum::<usize>() + counts.len();
        Some((Self { of }, used))
    }
}

/// Reads the bits of a scan.
pub(super) struct Bits<'a> {
    file: &'a [u8],
    /// The next byte that is not in `held`.
    at: usize,
    /// The last `count` bits are the next bits of the scan.
    held: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(file: &'a [u8], at: usize) -> Self {
        Self { file, at, held: 0, count: 0 }
    }

    /// Fills `held` to 32 bits or more; to fewer before a marker or the end of the file.
    fn fill(&mut self) {
        while self.count <= 56 {
            let next = match self.file.get(self.at..) {
                Some([0xff, 0, ..]) => 2,
                Some([0xff, ..] | []) | None => return,
                Some(_) => 1,
            };
            self.held = self.held << 8 | u64::from(self.file[self.at]);
            self.count += 8;
            self.at += next;
        }
    }

    /// Reads the symbol of the next code.
    pub(super) fn symbol(&mut self, codes: &Codes) -> Result<u8, Lack> {
        if self.count < LONGEST {
            self.fill();
        }
        let next = match self.count.checked_sub(LONGEST) {
            Some(more) => self.held >> more,
            None => self.held << (LONGEST - self.count),
        };
        let (length, symbol) = codes.of[next as usize & 0xffff];
        match u32::from(length) {
            0 if self.count >= LONGEST => Err(Lack::Code),
            0 => Err(Lack::Data),
            length if length > self.count => Err(Lack::Data),
            length => {
                self.count -= length;
                Ok(symbol)
            }
        }
    }

    /// Reads the next bits, at most 32, as a number.
    pub(super) fn take(&mut self, bits: u32) -> Result<u32, Lack> {
        if self.count < bits {
            self.fill();
        }
        self.count = self.count.checked_sub(bits).ok_or(Lack::Data)?;
        Ok((self.held >> self.count & ((1_u64 << bits) - 1)) as u32)
    }

    /// Skips bits, at most 64.
    pub(super) fn skip(&mut self, bits: u32) -> Result<(), Lack> {
        let half = bits / 2;
        self.take(half)?;
        self.take(bits - half).map(|_| ())
    }

    /// Skips the marker between two restart intervals, and the bits before it.
    pub(super) fn restart(&mut self) -> Result<(), Lack> {
        let at = self.end();
        let marker = self.file[at..].iter().position(|byte| *byte != 0xff).map(|length| at + length);
        match marker {
            Some(marker) if matches!(self.file[marker], 0xd0..=0xd7) => {
                *self = Self::new(self.file, marker + 1);
                Ok(())
            }
            _ => Err(Lack::Data),
        }
    }

    /// Returns the position of the next marker, or the end of the file.
    pub(super) fn end(&self) -> usize {
        let mut at = self.at;
        while let Some(found) = self.file[at..].iter().position(|byte| *byte == 0xff) {
            at += found;
            if self.file.get(at + 1) != Some(&0) {
                return at;
            }
            at += 2;
        }
        self.file.len()
    }
}
