//! Half blocks: a character shows two pixels, one above the other, in its foreground and background colours.

use std::fmt::Write;

use flux::output::Rgb;

/// The upper half block.
const UPPER: char = '▀';
/// The levels of the 6 x 6 x 6 colour cube that nearly every terminal has.
const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];

/// The colours of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colors {
    All,
    /// The 256-colour palette.
    Numbered,
}

/// Returns the image as lines of text. Each line shows two rows of pixels; an odd last row has no background.
pub fn image(image: &Rgb, colors: Colors) -> String {
    let mut text = String::new();
    let (pixels, _) = image.bytes.as_chunks::<3>();
    for pair in pixels.chunks(2 * image.width) {
        let (upper, lower) = pair.split_at(image.width);
        let mut before = [None, None];
        for (column, above) in upper.iter().enumerate() {
            let parts = [Some(*above), lower.get(column).copied()];
            for ((part, before), ground) in parts.into_iter().zip(&mut before).zip([38, 48]) {
                // A colour stays set until the next one.
                if let Some(color) = part.filter(|color| *before != Some(*color)) {
                    push_color(&mut text, ground, color, colors);
                    *before = part;
                }
            }
            text.push(UPPER);
        }
        text.push_str("\x1b[0m\r\n");
    }
    text
}

/// Sets a colour: `ground` is 38 for the foreground, 48 for the background.
fn push_color(text: &mut String, ground: u8, color: [u8; 3], colors: Colors) {
    let [red, green, blue] = color;
    let _ = match colors {
        Colors::All => write!(text, "\x1b[{ground};2;{red};{green};{blue}m"),
        Colors::Numbered => write!(text, "\x1b[{ground};5;{}m", number(color)),
    };
}

/// Returns the nearest palette colour, out of the cube of 216 and 24 greys.
fn number(color: [u8; 3]) -> u8 {
    let nearest = |value: u8| {
        let place = (0..LEVELS.len()).min_by_key(|place| LEVELS[*place].abs_diff(value));
        place.unwrap_or_default()
    };
    let places = color.map(nearest);
    let mean = color.iter().map(|value| u32::from(*value)).sum::<u32>() / 3;
    let gray = (mean.saturating_sub(3) / 10).min(23);
    let apart = |other: [u8; 3]| -> u32 {
        color.iter().zip(other).map(|(value, other)| u32::from(value.abs_diff(other)).pow(2)).sum()
    };
    let [cube, grays] = [places.map(|place| LEVELS[place]), [(8 + 10 * gray) as u8; 3]].map(apart);
    if grays < cube { 232 + gray as u8 } else { (16 + 36 * places[0] + 6 * places[1] + places[2]) as u8 }
}

#[cfg(test)]
mod tests {
    use vt100::{Color, Parser};

    use super::*;

    fn drawn(width: usize, height: usize) -> Rgb {
        let bytes = (0..height).flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, (x * y) as u8])).collect();
        Rgb { width, height, bytes }
    }

    #[test]
    fn a_terminal_of_any_width_shows_two_pixels_a_character() {
        for (columns, rows) in [(40, 10), (80, 24), (200, 50)] {
            let made = drawn(columns, 2 * rows);
            let mut terminal = Parser::new(rows as u16 + 1, columns as u16, 0);
            terminal.process(image(&made, Colors::All).as_bytes());
            let screen = terminal.screen();
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let cell = screen.cell(row as u16, column as u16).unwrap();
                let pixel = |y: usize| {
                    let at = 3 * (y * columns + column);
                    Color::Rgb(made.bytes[at], made.bytes[at + 1], made.bytes[at + 2])
                };
                assert_eq!(cell.contents(), "▀");
                assert_eq!((cell.fgcolor(), cell.bgcolor()), (pixel(2 * row), pixel(2 * row + 1)), "{row} {column}");
            }
            assert_eq!(screen.cursor_position(), (rows as u16, 0), "no line is wrapped");
            assert_eq!((screen.fgcolor(), screen.bgcolor()), (Color::Default, Color::Default));
        }
    }

    #[test]
    fn a_colour_is_set_where_it_changes() {
        let row = [[9, 8, 7], [9, 8, 7], [1, 2, 3]].concat();
        let flat = Rgb { width: 3, height: 2, bytes: [row, [5; 9].to_vec()].concat() };
        let expected = "\x1b[38;2;9;8;7m\x1b[48;2;5;5;5m▀▀\x1b[38;2;1;2;3m▀\x1b[0m\r\n";
        assert_eq!(image(&flat, Colors::All), expected);
        let one = Rgb { width: 1, height: 1, bytes: vec![255, 0, 0] };
        assert_eq!(image(&one, Colors::Numbered), "\x1b[38;5;196m▀\x1b[0m\r\n");
    }

    #[test]
    fn numbered_colours_are_the_nearest() {
        for (color, expected) in [
            ([0; 3], 16),
            ([255; 3], 231),
            ([255, 0, 0], 196),
            ([0, 95, 135], 24),
            ([128; 3], 244),
            ([8; 3], 232),
            ([238; 3], 255),
            ([100, 140, 170], 67),
        ] {
            assert_eq!(number(color), expected, "{color:?}");
        }
    }
}
