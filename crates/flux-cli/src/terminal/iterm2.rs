//! iTerm2's inline images: one escape sequence with a base64 PNG.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::place::Cells;

/// Returns the escape sequence that shows a PNG at the cursor.
pub fn image(png: &[u8], cells: Cells) -> String {
    let Cells { columns, rows } = cells;
    let (size, data) = (png.len(), STANDARD.encode(png));
    format!("\x1b]1337;File=inline=1;size={size};width={columns};height={rows};preserveAspectRatio=0:{data}\x07")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_one_escape_with_its_size() {
        let expected = "\x1b]1337;File=inline=1;size=3;width=40;height=20;preserveAspectRatio=0:YWJj\x07";
        assert_eq!(image(b"abc", Cells { columns: 40, rows: 20 }), expected);
    }
}
