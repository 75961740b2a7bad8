//! Sixels: columns of six pixels, one colour after the other.
//!
//! The palette is fixed, with 6 levels of red, 7 of green and 6 of blue. An ordered dither hides the quantization and
//! is the same in every image, so that successive previews do not flicker.

use std::collections::BTreeMap;
use std::fmt::Write;

use flux::output::Rgb;

/// Levels of red, green and blue.
const LEVELS: [usize; 3] = [6, 7, 6];
/// Pixel rows of a sixel.
const BAND: usize = 6;
/// The thresholds of the ordered dither.
const DITHER: [[u8; 8]; 8] = [
    [0, 32, 8, 40, 2, 34, 10, 42],
    [48, 16, 56, 24, 50, 18, 58, 26],
    [12, 44, 4, 36, 14, 46, 6, 38],
    [60, 28, 52, 20, 62, 30, 54, 22],
    [3, 35, 11, 43, 1, 33, 9, 41],
    [51, 19, 59, 27, 49, 17, 57, 25],
    [15, 47, 7, 39, 13, 45, 5, 37],
    [63, 31, 55, 23, 61, 29, 53, 21],
];

/// Returns the escape sequence that shows an image at the cursor.
pub fn image(image: &Rgb) -> String {
    let colors = quantized(image);
    // Pixels are square and uncoloured pixels stay transparent, because the last band may be lower.
    let mut text = format!("\x1bP0;1;0q\"1;1;{};{}", image.width, image.height);
    for (index, [red, green, blue]) in used(&colors) {
        let _ = write!(text, "#{index};2;{red};{green};{blue}");
    }
    for (band, rows) in colors.chunks(BAND * image.width).enumerate() {
        if band > 0 {
            text.push('-');
        }
        let mut bits: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for (place, color) in rows.iter().enumerate() {
            let (row, column) = (place / image.width, place % image.width);
            bits.entry(*color).or_insert_with(|| vec![0; image.width])[column] |= 1 << row;
        }
        for (index, (color, columns)) in bits.iter().enumerate() {
            // Return to the start of the band for each colour.
            let _ = write!(text, "{}#{color}", if index > 0 { "$" } else { "" });
            push_runs(&mut text, columns);
        }
    }
    text.push_str("\x1b\\");
    text
}

/// Writes columns as characters, with repeat counts. Empty columns at the end are skipped.
fn push_runs(text: &mut String, columns: &[u8]) {
    let end = columns.iter().rposition(|bits| *bits != 0).map_or(0, |last| last + 1);
    for run in columns[..end].chunk_by(|a, b| a == b) {
        let character = char::from(b'?' + run[0]);
        if run.len() > 3 {
            let _ = write!(text, "!{}{character}", run.len());
        } else {
            text.extend(std::iter::repeat_n(character, run.len()));
        }
    }
}

/// Returns the palette colour of each pixel.
fn quantized(image: &Rgb) -> Vec<u8> {
    let color = |(place, pixel): (usize, &[u8; 3])| {
        let step = DITHER[place / image.width % 8][place % image.width % 8];
        let level = |channel: usize| {
            // In 64ths of a step. Values within 4 of a level use that level, because a few dots on a flat colour are
            // more visible than none.
            let exact = (usize::from(pixel[channel]) * (LEVELS[channel] - 1) * 64 + 127) / 255;
            (exact + 4 + usize::from(step) * 7 / 8) / 64
        };
        ((level(0) * LEVELS[1] + level(1)) * LEVELS[2] + level(2)) as u8
    };
    image.bytes.as_chunks::<3>().0.iter().enumerate().map(color).collect()
}

/// Returns the used palette colours, with their channels in percent.
fn used(colors: &[u8]) -> impl Iterator<Item = (usize, [usize; 3])> {
    let mut is_used = [false; 256];
    colors.iter().for_each(|color| is_used[usize::from(*color)] = true);
    is_used.into_iter().enumerate().filter(|(_, is_used)| *is_used).map(|(index, _)| (index, percent(index)))
}

/// Returns red, green and blue of a palette colour, in percent.
fn percent(index: usize) -> [usize; 3] {
    let levels = [index / LEVELS[2] / LEVELS[1], index / LEVELS[2] % LEVELS[1], index % LEVELS[2]];
    std::array::from_fn(|channel| {
        let most = LEVELS[channel] - 1;
        (levels[channel] * 100 + most / 2) / most
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sixel image as a terminal decodes it.
    struct Decoded {
        size: [usize; 2],
        /// The palette index of each pixel.
        pixels: Vec<Option<u8>>,
        palette: BTreeMap<u8, [usize; 3]>,
    }

    fn decoded(text: &str) -> Decoded {
        let body = text.strip_prefix("\x1bP0;1;0q\"1;1;").unwrap().strip_suffix("\x1b\\").unwrap();
        let mut rest = body.chars().peekable();
        let number = |rest: &mut std::iter::Peekable<std::str::Chars>| {
            let mut value = 0;
            while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                value = value * 10 + digit.to_digit(10).unwrap() as usize;
            }
            value
        };
        let width = number(&mut rest);
        assert_eq!(rest.next(), Some(';'));
        let height = number(&mut rest);
        let (mut pixels, mut palette) = (vec![None; width * height], BTreeMap::new());
        let (mut x, mut band, mut color) = (0, 0, 0u8);
        while let Some(c) = rest.next() {
            let (count, character) = match c {
                '#' => {
                    color = number(&mut rest) as u8;
                    if rest.next_if_eq(&';').is_some() {
                        assert_eq!((number(&mut rest), rest.next()), (2, Some(';')));
                        let parts = [(); 3].map(|()| {
                            let part = number(&mut rest);
                            rest.next_if_eq(&';');
                            part
                        });
                        palette.insert(color, parts);
                    }
                    continue;
                }
                '$' => {
                    x = 0;
                    continue;
                }
                '-' => {
                    (x, band) = (0, band + 1);
                    continue;
                }
                '!' => (number(&mut rest), rest.next().unwrap()),
                c => (1, c),
            };
            let bits = character as u8 - b'?';
            for x in x..x + count {
                for row in (0..6).filter(|row| bits >> row & 1 == 1) {
                    let place = &mut pixels[(band * 6 + row) * width + x];
                    assert_eq!(*place, None, "a pixel has one colour");
                    *place = Some(color);
                }
            }
            x += count;
        }
        Decoded { size: [width, height], pixels, palette }
    }

    #[test]
    fn sixels_of_a_few_pixels_are_as_by_hand() {
        let row = |[r, g, b]: [u8; 3], count: usize| [r, g, b].repeat(count);
        // Five white pixels and a black one: 251 is the last colour, 0 the first.
        let pixels = Rgb { width: 6, height: 1, bytes: [row([255; 3], 5), row([0; 3], 1)].concat() };
        assert_eq!(image(&pixels), "\x1bP0;1;0q\"1;1;6;1#0;2;0;0;0#251;2;100;100;100#0!5?@$#251!5@\x1b\\");
        // Seven rows of red: a full band and one row.
        let column = Rgb { width: 1, height: 7, bytes: row([255, 0, 0], 7) };
        assert_eq!(image(&column), "\x1bP0;1;0q\"1;1;1;7#210;2;100;0;0#210~-#210@\x1b\\");
    }

    #[test]
    fn what_a_terminal_reads_are_the_quantized_colours() {
        let (width, height) = (37, 20);
        let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x * 7, y * 12, x * y])).map(|v| v as u8);
        let drawn = Rgb { width, height, bytes: bytes.collect() };
        let Decoded { size, pixels, palette } = decoded(&image(&drawn));
        assert_eq!(size, [width, height]);
        assert_eq!(pixels, quantized(&drawn).into_iter().map(Some).collect::<Vec<_>>());
        for (place, color) in pixels.iter().enumerate() {
            let parts = palette[&color.unwrap()];
            for channel in 0..3 {
                let apart = f64::from(drawn.bytes[3 * place + channel]) / 2.55 - parts[channel] as f64;
                // One step of the palette.
                assert!(apart.abs() <= 100.0 / (LEVELS[channel] - 1) as f64 + 0.5, "{place}: {apart}");
            }
        }
    }

    #[test]
    fn nearly_white_and_nearly_black_have_no_dots() {
        for (levels, color) in [(253..=255, 251), (0..=2, 0)] {
            for level in levels {
                let flat = Rgb { width: 8, height: 8, bytes: vec![level; 8 * 8 * 3] };
                assert_eq!(quantized(&flat), [color; 64], "{level}");
            }
        }
    }

    #[test]
    fn a_flat_colour_keeps_its_mean() {
        for level in [0u8, 1, 77, 128, 200, 255] {
            let flat = Rgb { width: 64, height: 64, bytes: vec![level; 64 * 64 * 3] };
            let sum: usize = quantized(&flat).iter().map(|color| percent(usize::from(*color))[1]).sum();
            let mean = sum as f64 / 4096.0;
            assert!((mean - f64::from(level) / 2.55).abs() < 1.5, "{level}: {mean}");
        }
    }
}
