//! kitty's graphics protocol: a base64 PNG in chunks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::place::Cells;

/// Maximum size of a chunk in base64, in bytes.
const PIECE: usize = 4096;
/// A character that the terminal replaces with a part of an image.
const PLACEHOLDER: char = '\u{10eeee}';
/// Diacritics on placeholders that encode the row, in order: first and last of each range.
#[rustfmt::skip]
const ROW_MARKS: [(u32, u32); 27] = [
    (0x305, 0x305), (0x30d, 0x30e), (0x310, 0x310), (0x312, 0x312), (0x33d, 0x33f), (0x346, 0x346), (0x34a, 0x34c),
    (0x350, 0x352), (0x357, 0x357), (0x35b, 0x35b), (0x363, 0x36f), (0x483, 0x487), (0x592, 0x595), (0x597, 0x599),
    (0x59c, 0x5a1), (0x5a8, 0x5a9), (0x5ab, 0x5ac), (0x5af, 0x5af), (0x5c4, 0x5c4), (0x610, 0x617), (0x657, 0x65b),
    (0x65d, 0x65e), (0x6d6, 0x6dc), (0x6df, 0x6e2), (0x6e4, 0x6e4), (0x6e7, 0x6e8), (0x6eb, 0x6ec),
];

/// Maximum number of rows that placeholders can encode.
pub const MAX_ROWS: usize = 85;

/// Shows a PNG at the cursor, which does not move. Replaces an earlier image with this number.
pub fn image(png: &[u8], cells: Cells, number: u32) -> Vec<String> {
    pieces(png, &format!("a=T,f=100,i={number},c={},r={},C=1,q=2", cells.columns, cells.rows))
}

/// Transmits a PNG for display by [`placeholders`] with the same number.
pub fn hidden_image(png: &[u8], cells: Cells, number: u32) -> Vec<String> {
    pieces(png, &format!("a=T,U=1,f=100,i={number},c={},r={},q=2", cells.columns, cells.rows))
}

/// Returns lines of placeholder characters that the terminal replaces with the image, even after the text moves.
pub fn placeholders(cells: Cells, number: u32) -> String {
    let [_, red, green, blue] = number.to_be_bytes();
    let marks = ROW_MARKS.iter().flat_map(|(first, last)| *first..=*last).filter_map(char::from_u32);
    let line = |mark: char| {
        // Only the first character of a row has a position. Its column is 0, encoded by the first diacritic.
        let others: String = std::iter::repeat_n(PLACEHOLDER, cells.columns.saturating_sub(1)).collect();
        format!("\x1b[38;2;{red};{green};{blue}m{PLACEHOLDER}{mark}\u{305}{others}\x1b[39m\r\n")
    };
    marks.take(cells.rows).map(line).collect()
}

/// Returns the escape sequences; the first one has the keys. Each one has `q`, because some versions would send a reply
/// otherwise.
fn pieces(png: &[u8], keys: &str) -> Vec<String> {
    let text = STANDARD.encode(png);
    let count = text.len().div_ceil(PIECE).max(1);
    (0..count)
        .map(|index| {
            let piece = &text[index * PIECE..text.len().min((index + 1) * PIECE)];
            let keys = if index == 0 { keys } else { "q=2" };
            let more = u8::from(index + 1 < count);
            format!("\x1b_G{keys},m={more};{piece}\x1b\\")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: Cells = Cells { columns: 3, rows: 2 };

    #[test]
    fn a_small_image_is_one_piece() {
        assert_eq!(image(b"abc", CELLS, 7), ["\x1b_Ga=T,f=100,i=7,c=3,r=2,C=1,q=2,m=0;YWJj\x1b\\"]);
    }

    #[test]
    fn a_large_image_is_pieces_of_4096_bytes_and_the_last_says_so() {
        // 3072 bytes are 4096 in base64.
        for (bytes, last) in [(3072, 4096), (3073, 4), (9000, 12000 - 2 * 4096)] {
            let pieces = image(&vec![b'x'; bytes], CELLS, 1);
            let (end, rest) = pieces.split_last().unwrap();
            let data = |piece: &str| {
                let (keys, data) = piece.strip_prefix("\x1b_G").unwrap().split_once(';').unwrap();
                (keys.to_string(), data.strip_suffix("\x1b\\").unwrap().to_string())
            };
            for (index, piece) in rest.iter().enumerate() {
                let (keys, text) = data(piece);
                let first = "a=T,f=100,i=1,c=3,r=2,C=1,q=2,m=1";
                assert_eq!((keys.as_str(), text.len()), (if index == 0 { first } else { "q=2,m=1" }, 4096));
            }
            let (keys, text) = data(end);
            assert!(keys.ends_with("m=0"), "{keys}");
            assert_eq!(text.len(), last, "{bytes}");
            let all: String = pieces.iter().map(|piece| data(piece).1).collect();
            assert_eq!(STANDARD.decode(all).unwrap(), vec![b'x'; bytes]);
        }
    }

    #[test]
    fn placeholders_tell_the_row_and_the_number_by_their_colour() {
        assert_eq!(
            placeholders(CELLS, 0x01_02_03),
            "\x1b[38;2;1;2;3m\u{10eeee}\u{305}\u{305}\u{10eeee}\u{10eeee}\x1b[39m\r\n\
             \x1b[38;2;1;2;3m\u{10eeee}\u{30d}\u{305}\u{10eeee}\u{10eeee}\x1b[39m\r\n"
        );
        let marks: u32 = ROW_MARKS.iter().map(|(first, last)| last - first + 1).sum();
        assert_eq!(marks as usize, MAX_ROWS);
        assert_eq!(hidden_image(b"abc", CELLS, 7), ["\x1b_Ga=T,U=1,f=100,i=7,c=3,r=2,q=2,m=0;YWJj\x1b\\"]);
    }
}
