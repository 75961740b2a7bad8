//! Decoding of batch files: UTF-8, or UTF-16 as spreadsheets write it.

use flux::{Error, Result};

/// Decodes a file and removes the byte order mark.
///
/// Errors if it is neither UTF-8 nor UTF-16 with a byte order mark.
pub fn decode(bytes: &[u8]) -> Result<String> {
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => {
            let line = |end: usize| bytes[..end].iter().filter(|byte| **byte == b'\n').count() + 1;
            let hint = "save the file as UTF-8, which spreadsheets call `CSV UTF-8`";
            let text = str::from_utf8(bytes)
                .map_err(|e| Error::usage(format!("line {} is not valid UTF-8", line(e.valid_up_to()))).hint(hint))?;
            if let Some(at) = text.find('\0') {
                return Err(
                    Error::usage(format!("line {} has a NUL byte: the file is not UTF-8 text", line(at))).hint(hint)
                );
            }
            Ok(text.strip_prefix('\u{feff}').unwrap_or(text).to_string())
        }
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String> {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
    let text = String::from_utf16(&units).ok().filter(|_| bytes.len().is_multiple_of(2));
    text.ok_or_else(|| Error::usage("the file starts as UTF-16, but is not valid UTF-16").hint("save it as UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_8_and_utf_16_are_read_and_anything_else_is_an_error() {
        let utf16 = |unit: fn(u16) -> [u8; 2]| "\u{feff}käse 🧀\r\n".encode_utf16().flat_map(unit).collect::<Vec<_>>();
        for bytes in [utf16(u16::to_le_bytes), utf16(u16::to_be_bytes), "\u{feff}käse 🧀\r\n".as_bytes().to_vec()] {
            assert_eq!(decode(&bytes).unwrap(), "käse 🧀\r\n");
        }
        for (bytes, words) in [
            (&b"a\nb\xff"[..], "line 2 is not valid UTF-8"),
            (b"a\nk\xe4se", "line 2"),
            (b"a\0b\0", "line 1 has a NUL byte"),
            (b"\xff\xfea", "not valid UTF-16"),
            (b"\xff\xfe\x00\xd8", "not valid UTF-16"),
        ] {
            let error = decode(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
