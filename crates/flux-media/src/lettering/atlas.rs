//! The glyph atlas: an image with a cell for each character, created by `scripts/make_glyphs.py`. The font's licence is
//! next to it, in OFL.txt.

use std::sync::LazyLock;

use crate::input::read_bytes;
use crate::rgb::Rgb;

/// 16 levels of grey: black is the background, white is ink.
const FILE: &[u8] = include_bytes!("NotoSansMono.png");
static ATLAS: LazyLock<Rgb> = LazyLock::new(|| read_bytes(FILE).expect("the atlas is a valid image"));

/// The characters in the order of their glyphs, as in the script: first and last of each range.
const RANGES: [(u32, u32); 10] = [
    (0x0020, 0x007E),
    (0x00A0, 0x017F),
    (0x0384, 0x03CE),
    (0x0400, 0x045F),
    (0x0490, 0x0491),
    (0x2010, 0x2027),
    (0x2030, 0x203A),
    (0x20AC, 0x20AC),
    (0x2190, 0x2193),
    (0x2212, 0x2212),
];
/// Glyphs per row.
const COLUMNS: usize = 32;

/// The size of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// For labels: an em of 15 pixels.
    Small,
    /// For titles: an em of 20 pixels.
    Large,
}

impl Size {
    /// Returns width and height of a letter's cell in pixels.
    pub fn cell(self) -> [usize; 2] {
        match self {
            Self::Small => [9, 21],
            Self::Large => [12, 28],
        }
    }

    /// Returns the first row of this size's glyphs, in pixels.
    fn top(self) -> usize {
        match self {
            Self::Small => 0,
            Self::Large => rows() * Self::Small.cell()[1],
        }
    }

    /// Returns the rows of a glyph, with the amount of ink of each pixel.
    pub(super) fn glyph(self, character: char) -> impl Iterator<Item = impl Iterator<Item = u8>> {
        let ([width, height], place) = (self.cell(), place(character));
        let (left, top) = (place % COLUMNS * width, self.top() + place / COLUMNS * height);
        let atlas = &*ATLAS;
        (top..top + height).map(move |y| (left..left + width).map(move |x| atlas.bytes[3 * (y * atlas.width + x)]))
    }
}

/// Returns the index of a character's glyph. Index 0 is the box for unsupported characters.
fn place(character: char) -> usize {
    let (code, mut place) = (u32::from(character), 1);
    for (first, last) in RANGES {
        if (first..=last).contains(&code) {
            return place + (code - first) as usize;
        }
        place += (last - first + 1) as usize;
    }
    0
}

fn rows() -> usize {
    let glyphs: u32 = RANGES.iter().map(|(first, last)| last - first + 1).sum();
    (1 + glyphs as usize).div_ceil(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_atlas_has_the_size_that_its_glyphs_take() {
        let large = Size::Large.cell();
        assert_eq!((ATLAS.width, ATLAS.height), (COLUMNS * large[0], Size::Large.top() + rows() * large[1]));
        assert!(FILE.len() < 40_000, "{}", FILE.len());
    }

    #[test]
    fn the_script_draws_the_same_characters_in_the_same_sizes() {
        let script = include_str!("../../../../scripts/make_glyphs.py");
        let ranges: Vec<_> =
            RANGES.iter().map(|(first, last)| format!("    (0x{first:04X}, 0x{last:04X}),\n")).collect();
        assert!(script.contains(&format!("RANGES = [\n{}]\n", ranges.concat())));
        let [small, large] = [Size::Small, Size::Large].map(|size| size.cell().map(|side| side.to_string()).join(", "));
        assert!(script.contains(&format!("SIZES = [(15, ({small})), (20, ({large}))]\nCOLUMNS = {COLUMNS}\n")));
    }
}
