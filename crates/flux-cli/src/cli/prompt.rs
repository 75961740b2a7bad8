//! Conversion of bytes from an argument or standard input to a prompt.

use std::io::Read;

use flux::pipeline::{MAX_PROMPT_BYTES, PROMPT_TOO_LONG};
use flux::{Error, Result};

/// Maximum number of bytes on standard input besides the prompt: a byte order mark and a line break.
const BESIDE: usize = 3 + 2;

/// Reads the prompt from `stdin`, up to the maximum length.
///
/// Errors when it is too long, empty, or not UTF-8.
pub fn read(stdin: &mut dyn Read) -> Result<String> {
    // One more byte, to detect an overlong prompt.
    let most = MAX_PROMPT_BYTES + BESIDE + 1;
    let mut bytes = Vec::new();
    stdin
        .take(most as u64)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::usage(format!("cannot read the prompt: {e}")).hint("pass it with `-p` instead"))?;
    if bytes.len() == most {
        return Err(Error::usage(format!(
            "the prompt is {} bytes long or more, expected at most {MAX_PROMPT_BYTES}",
            MAX_PROMPT_BYTES + 1
        ))
        .hint(PROMPT_TOO_LONG));
    }
    let prompt = text(bytes)?;
    if prompt.is_empty() {
        return Err(Error::usage("the prompt is empty").hint("use `-p \"\"` to generate without a prompt"));
    }
    Ok(prompt)
}

/// Converts bytes to a prompt. Additions of editors and shells are removed: a byte order mark, trailing line breaks,
/// and the carriage returns of line breaks.
///
/// Errors when the bytes are not UTF-8.
pub fn text(bytes: Vec<u8>) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        Error::usage(format!("the prompt is not valid UTF-8 from byte {} on", valid + 1))
            .hint("write it in UTF-8, for example in a terminal with a UTF-8 locale")
    })?;
    Ok(without_ends(&text))
}

/// Removes the additions of editors and shells from a text.
pub fn without_ends(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.strip_prefix('\u{feff}').unwrap_or(&text).trim_end_matches(['\n', '\r']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(bytes: &[u8]) -> std::result::Result<String, String> {
        read(&mut &*bytes).map_err(|e| e.to_string())
    }

    #[test]
    fn what_editors_and_shells_add_is_no_part_of_the_prompt() {
        for bytes in ["a cat", "a cat\n", "a cat\r\n", "a cat\n\n\r\n", "\u{feff}a cat\r\n"] {
            assert_eq!(read_from(bytes.as_bytes()).as_deref(), Ok("a cat"), "{bytes:?}");
        }
        assert_eq!(read_from(b"two\r\nlines \n").as_deref(), Ok("two\nlines "));
    }

    #[test]
    fn standard_input_without_a_prompt_is_an_error() {
        for bytes in ["", "\n", "\r\n\r\n", "\u{feff}\n"] {
            assert!(read_from(bytes.as_bytes()).unwrap_err().contains("empty"), "{bytes:?}");
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        assert!(read_from(b"a k\xe4se").unwrap_err().contains("byte 4"));
    }

    #[test]
    fn the_longest_prompt_may_have_a_byte_order_mark_and_a_line_end() {
        let longest = "x".repeat(MAX_PROMPT_BYTES);
        assert_eq!(read_from(format!("\u{feff}{longest}\r\n").as_bytes()), Ok(longest));
        assert!(read_from(&[b'\n'; MAX_PROMPT_BYTES + BESIDE + 1]).unwrap_err().contains("bytes long or more"));
    }
}
