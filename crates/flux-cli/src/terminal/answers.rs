//! Terminal queries and their replies.

/// Queries the name and version of the terminal.
const VERSION: &str = "\x1b[>0q";
/// Queries kitty's graphics protocol, with an image of one pixel.
const KITTY: &str = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\";
/// Queries the size of a character in pixels.
const CELL: &str = "\x1b[16t";
/// Queries the terminal's attributes. Sent last: every terminal replies to it, and replies arrive in order.
const ATTRIBUTES: &str = "\x1b[c";
/// The attribute for sixels.
const SIXEL: &str = "4";

/// Returns the queries to send. kitty's query is left out if a multiplexer would display it.
pub fn questions(asks_kitty: bool) -> String {
    [VERSION, if asks_kitty { KITTY } else { "" }, CELL, ATTRIBUTES].concat()
}

/// The replies of a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// The name and usually the version.
    pub version: Option<String>,
    /// True if kitty's protocol is supported.
    pub kitty: bool,
    /// Width and height of a character in pixels.
    pub cell: Option<[usize; 2]>,
    /// True if sixels are supported.
    pub sixel: bool,
    /// True if the last query was answered.
    pub is_complete: bool,
}

impl Answers {
    /// Parses bytes from a terminal. Typed text in between is skipped, and so is an incomplete reply.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut answers = Self::default();
        let mut rest = bytes;
        while let Some(start) = rest.iter().position(|byte| *byte == 0x1b) {
            rest = &rest[start + 1..];
            match rest {
                [b'[', body @ ..] => answers.read_control(body),
                [b'P', body @ ..] => answers.read_version(body),
                [b'_', body @ ..] => answers.read_kitty(body),
                _ => {}
            }
        }
        answers
    }

    /// Parses `CSI ... c` and `CSI 6 ; height ; width t`.
    fn read_control(&mut self, body: &[u8]) {
        let Some(end) = body.iter().position(|byte| (0x40..=0x7e).contains(byte)) else { return };
        let Ok(parameters) = str::from_utf8(&body[..end]) else { return };
        match (body[end], parameters.strip_prefix('?')) {
            (b'c', Some(attributes)) => {
                self.is_complete = true;
                // The first number is the terminal model.
                self.sixel = attributes.split(';').skip(1).any(|attribute| attribute == SIXEL);
            }
            (b't', None) => {
                let numbers: Vec<usize> = parameters.split(';').filter_map(|number| number.parse().ok()).collect();
                if let [6, height @ 1..=512, width @ 1..=512] = numbers[..] {
                    self.cell = Some([width, height]);
                }
            }
            _ => {}
        }
    }

    /// Parses `DCS > | text ST`.
    fn read_version(&mut self, body: &[u8]) {
        if let Some(text) = body.strip_prefix(b">|").and_then(before_end) {
            self.version = Some(String::from_utf8_lossy(text).into_owned());
        }
    }

    /// Parses `APC G i = 31 ; OK ST`.
    fn read_kitty(&mut self, body: &[u8]) {
        if let Some(text) = body.strip_prefix(b"G").and_then(before_end) {
            self.kitty |= text.starts_with(b"i=31") && text.ends_with(b";OK");
        }
    }
}

/// Returns the text before a string terminator, which is `ESC \` or BEL.
fn before_end(body: &[u8]) -> Option<&[u8]> {
    let end = body.iter().position(|byte| matches!(byte, 0x1b | 0x07))?;
    (body[end] == 0x07 || body.get(end + 1) == Some(&b'\\')).then(|| &body[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_known_terminals_are_read() {
        let kitty = Answers::parse(b"\x1bP>|kitty(0.40.0)\x1b\\\x1b_Gi=31;OK\x1b\\\x1b[6;20;10t\x1b[?62;52;c");
        let version = Some("kitty(0.40.0)".to_string());
        assert_eq!(kitty, Answers { version, kitty: true, cell: Some([10, 20]), sixel: false, is_complete: true });
        let xterm = Answers::parse(b"\x1bP>|XTerm(390)\x1b\\\x1b[6;13;6t\x1b[?64;1;2;4;6;9;15;22c");
        assert!(xterm.sixel && xterm.is_complete && !xterm.kitty && xterm.cell == Some([6, 13]));
        let code = Answers::parse(b"\x1b[6;17;8t\x1b[?1;2c");
        assert_eq!(code, Answers { cell: Some([8, 17]), is_complete: true, ..Answers::default() });
        let refused = Answers::parse(b"\x1b_Gi=31;ENOTSUPPORTED:x\x1b\\\x1b[?4c");
        assert!(!refused.kitty && !refused.sixel, "4 is the model here");
    }

    #[test]
    fn keys_in_between_parts_and_damage_are_no_answers() {
        let typed = Answers::parse(b"ab\x1b[A\x1bOP\x1b[6;20;10tq\x1b[200~x\x1b[?1;4c\r");
        assert!(typed.sixel && typed.cell == Some([10, 20]) && typed.is_complete);
        let whole = b"\x1bP>|foot(1.2)\x1b\\\x1b[6;20;10t\x1b[?62;4c";
        for end in 0..whole.len() {
            assert!(!Answers::parse(&whole[..end]).is_complete, "{end}");
        }
        for cell in ["6;0;10", "6;9999999999999999999999;1", "6;20", "4;20;10", "6;513;8"] {
            assert_eq!(Answers::parse(format!("\x1b[{cell}t").as_bytes()).cell, None, "{cell}");
        }
        assert_eq!(Answers::parse(b"\x1bP>|\xff\xfe"), Answers::default());
    }

    #[test]
    fn what_every_terminal_answers_is_asked_last() {
        for asks_kitty in [true, false] {
            let asked = questions(asks_kitty);
            assert!(asked.ends_with("\x1b[16t\x1b[c") && asked.contains("\x1b_G") == asks_kitty);
        }
    }
}
