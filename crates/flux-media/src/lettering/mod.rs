//! Text in images: one line in one of two sizes, in Noto Sans Mono. It knows nothing of layout, which `crate::sheet`
//! does. Start reading at [`draw`].
//!
//! Every character takes one cell, so the width of a text is its number of characters. Unsupported characters become a
//! box. Combining and zero-width characters are left out.

mod atlas;

use std::borrow::Cow;

pub use atlas::Size;

use crate::rgb::Rgb;

/// The end of a truncated text.
const ELLIPSIS: char = '…';

/// Returns the number of cells of the text.
pub fn columns(text: &str) -> usize {
    shown(text).count()
}

/// Returns the text, truncated with an ellipsis if it exceeds `columns` cells.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if self::columns(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(kept) = columns.checked_sub(1) else { return Cow::Borrowed("") };
    let kept: String = shown(text).take(kept).collect();
    Cow::Owned(format!("{}{ELLIPSIS}", kept.trim_end()))
}

/// Wraps the text to lines of `columns` cells, at spaces if possible. If there are more than `most` lines, the last one
/// ends with an ellipsis.
pub fn wrapped(text: &str, columns: usize, most: usize) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), shown(text).collect::<Vec<_>>());
    while rest.len() > columns && lines.len() + 1 < most {
        // A space may follow directly after the line.
        let space = rest.iter().take(columns + 1).rposition(|c| *c == ' ').filter(|at| *at > 0);
        let behind = rest.split_off(space.unwrap_or(columns.max(1)));
        lines.push(std::mem::replace(&mut rest, behind.into_iter().skip_while(|c| *c == ' ').collect()));
    }
    let line = |line: Vec<char>| line.into_iter().collect::<String>().trim_end().to_string();
    let last = cut(&line(rest), columns).into_owned();
    lines.into_iter().map(line).chain([last]).collect()
}

/// Draws the text over the image, with the corner of its first cell at `[x, y]`. Text outside the image is clipped.
pub fn draw(image: &mut Rgb, [x, y]: [usize; 2], text: &str, size: Size, ink: [u8; 3]) {
    let [width, _] = size.cell();
    for (place, character) in shown(text).enumerate() {
        let left = x + place * width;
        if left >= image.width {
            return;
        }
        let glyph = size.glyph(character);
        for (row, shades) in glyph.enumerate().take_while(|(row, _)| y + row < image.height) {
            let start = 3 * ((y + row) * image.width + left);
            let end = start + 3 * width.min(image.width - left);
            let (pixels, _) = image.bytes[start..end].as_chunks_mut::<3>();
            pixels.iter_mut().zip(shades).for_each(|(pixel, shade)| *pixel = blended(*pixel, ink, shade));
        }
    }
}

/// Blends ink over paper, with `shade` of 255.
fn blended(paper: [u8; 3], ink: [u8; 3], shade: u8) -> [u8; 3] {
    let mixed = |paper: u8, ink: u8| {
        let sum = u32::from(paper) * u32::from(255 - shade) + u32::from(ink) * u32::from(shade);
        ((sum + 127) / 255) as u8
    };
    std::array::from_fn(|channel| mixed(paper[channel], ink[channel]))
}

/// Returns the characters that take a cell. Line breaks and other white space become spaces.
fn shown(text: &str) -> impl Iterator<Item = char> {
    let has_no_width = |c: char| {
        matches!(c, '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
    };
    text.chars().filter(move |c| !has_no_width(*c)).map(|c| if c.is_whitespace() || c.is_control() { ' ' } else { c })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn white(width: usize, height: usize) -> Rgb {
        Rgb { width, height, bytes: vec![255; width * height * 3] }
    }

    fn drawn(text: &str, size: Size) -> Rgb {
        let [width, height] = size.cell();
        let mut image = white(width * columns(text).max(1), height);
        draw(&mut image, [0, 0], text, size, [0; 3]);
        image
    }

    #[test]
    fn a_text_that_is_too_long_ends_with_an_ellipsis() {
        for (columns, cut_to) in
            [(10, "a red fox"), (9, "a red fox"), (8, "a red f…"), (7, "a red…"), (1, "…"), (0, "")]
        {
            assert_eq!(cut("a red fox", columns), cut_to);
        }
        assert_eq!(cut("ÄÖÜäöü", 4), "ÄÖÜ…");
    }

    #[test]
    fn a_text_is_broken_at_spaces_and_within_long_words() {
        for (text, columns, most, lines) in [
            ("a red fox", 9, 8, &["a red fox"][..]),
            ("a red fox", 5, 8, &["a red", "fox"]),
            ("a red fox", 4, 8, &["a", "red", "fox"]),
            ("extraordinary fox", 6, 8, &["extrao", "rdinar", "y fox"]),
            ("one two three four", 5, 2, &["one", "two…"]),
            ("abc", 0, 3, &["a", "b", ""]),
            ("", 4, 8, &[""]),
        ] {
            assert_eq!(wrapped(text, columns, most), lines, "{text} {columns}");
        }
    }

    #[test]
    fn every_script_of_the_atlas_has_letters_and_the_rest_is_a_box() {
        for size in [Size::Small, Size::Large] {
            let missing = drawn("漢", size);
            let letters: Vec<_> = "AaÄßžŁΩπЖяґ“–…€→0#~".chars().map(|c| drawn(&c.to_string(), size)).collect();
            for (place, letter) in letters.iter().enumerate() {
                assert!(letter.bytes.iter().any(|level| *level < 100), "{place} has ink");
                assert!(*letter != missing && !letters[..place].contains(letter), "{place} differs from the others");
            }
            assert_eq!(drawn(" ", size), white(size.cell()[0], size.cell()[1]));
            assert_eq!(drawn("🙂", size), missing);
        }
    }

    #[test]
    fn what_has_no_width_takes_no_cell() {
        assert_eq!((columns("e\u{301}"), columns("a\u{200d}b\u{fe0f}"), columns("a\nb\tc")), (1, 2, 5));
        assert_eq!(drawn("a\nb", Size::Small), drawn("a b", Size::Small));
    }

    #[test]
    fn text_at_the_edge_of_an_image_is_cut_off() {
        let mut image = white(20, 20);
        draw(&mut image, [15, 5], "WW", Size::Large, [255, 0, 0]);
        assert!(image.bytes.as_chunks::<3>().0.iter().any(|[_, green, _]| *green < 255));
        let mut same = white(20, 10);
        draw(&mut same, [20, 0], "W", Size::Large, [0; 3]);
        draw(&mut same, [0, 10], "W", Size::Large, [0; 3]);
        assert_eq!(same, white(20, 10));
    }

    #[test]
    fn ink_covers_paper_as_far_as_it_goes() {
        assert_eq!(blended([255, 0, 10], [0, 100, 10], 255), [0, 100, 10]);
        assert_eq!(blended([255, 0, 10], [0, 100, 10], 0), [255, 0, 10]);
        assert_eq!(blended([255, 0, 10], [0, 100, 10], 51), [204, 20, 10]);
    }
}
