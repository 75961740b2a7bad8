//! The 4-bit formats of bitsandbytes, nf4 and fp4: codes that index a table from the file.

use crate::formats::scales::Codebook;

/// Decodes `table[code] * largest magnitude of the block`. The first value of a byte is in its upper half.
#[inline(always)]
pub fn codebook4(bytes: &[u8], book: &Codebook, out: &mut [f32]) {
    let code = |index: usize| {
        let byte = bytes[index / 2];
        usize::from(if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 })
    };
    let mut start = 0;
    while start < out.len() {
        // Blocks run along the flattened tensor, so a row may start and end inside a block.
        let end = (start + book.block() - (book.first_value + start) % book.block()).min(out.len());
        let maximum = book.maximum_of(start);
        for (index, out) in (start..).zip(&mut out[start..end]) {
            *out = book.table()[code(index)] * maximum;
        }
        start = end;
    }
}
