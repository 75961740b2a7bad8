//! Commands to paste into a shell. Words are in the single quotes of POSIX, which sh, dash, bash and zsh read alike.

use std::fmt::Write;
use std::path::Path;

use super::escaped;

/// Returns a word of a shell command, quoted if necessary. It may have several lines.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    // zsh expands `=name` to the path of a program.
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('=') {
        return text.to_string();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a word of a shell command in one line that a terminal shows as it is: `printf` writes control characters and
/// bytes that are not UTF-8. Line ends at the end of a word stay line ends, because a shell removes them from the
/// output of a command.
pub fn visible_word(bytes: &[u8]) -> String {
    let ends = bytes.iter().rev().take_while(|byte| **byte == b'\n').count();
    let (bytes, ends) = bytes.split_at(bytes.len() - ends);
    let ends = if ends.is_empty() { String::new() } else { word(&"\n".repeat(ends.len())) };
    match str::from_utf8(bytes) {
        Ok(text) if matches!(escaped(text), std::borrow::Cow::Borrowed(_)) => {
            return if text.is_empty() && !ends.is_empty() { ends } else { word(text) + &ends };
        }
        _ => {}
    }
    let mut format = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let is_shown = c.is_ascii_alphanumeric() || " ,._/:=+@".contains(c) || !c.is_ascii();
            if is_shown && matches!(escaped(c.encode_utf8(&mut [0; 4])), std::borrow::Cow::Borrowed(_)) {
                format.push(c);
            } else {
                octal(&mut format, c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        octal(&mut format, chunk.invalid());
    }
    // `%` goes through `octal`, which writes `%%`, because a single `%` begins a directive of printf.
    format!("\"$(printf '{format}')\"{ends}")
}

fn octal(format: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Octal digits are the same in all shells and locales.
        match byte {
            b'%' => format.push_str("%%"),
            byte => write!(format, "\\{byte:03o}").expect("writing to a String cannot fail"),
        }
    }
}

/// Returns a path as one word of a shell command.
pub fn shell_word(path: &Path) -> String {
    // A command would take such a path for a flag.
    if path.as_os_str().as_encoded_bytes().starts_with(b"-") {
        return visible_word(Path::new(".").join(path).as_os_str().as_encoded_bytes());
    }
    visible_word(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_a_path_as_one_word() {
        for (path, word) in [
            ("models/a.png", "models/a.png"),
            ("my models", "'my models'"),
            ("a$(b)`c`", "'a$(b)`c`'"),
            ("it's", r"'it'\''s'"),
            ("-o", "./-o"),
            ("", "''"),
            ("=x", "'=x'"),
            ("~", "'~'"),
            ("a\nb", r#""$(printf 'a\012b')""#),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn every_shell_reads_a_word_as_it_is() {
        use std::os::unix::ffi::OsStrExt;
        use std::process::Command;
        let texts: [&[u8]; 16] = [
            b"",
            b"a b",
            b"it's",
            b"'",
            b"''\\''",
            b"a\nb",
            b"\n",
            b"a\n\n",
            b"\x1b[31m'; echo $HOME `ls` \\ % %s %%",
            b"-x\x1b",
            b"!x \"$(touch pwned)\" #\x07",
            "k\u{e4}se \u{202e}\u{9b}".as_bytes(),
            b"\xff\xfe'%\n.\n",
            b"\\033",
            b"=ls",
            b"{a,b}*?~\x7f",
        ];
        for shell in ["sh", "dash", "bash", "zsh"] {
            for text in texts {
                let words = [Some(visible_word(text)), str::from_utf8(text).ok().map(word)];
                for word in words.into_iter().flatten() {
                    let Ok(run) = Command::new(shell).args(["-c", &format!("printf %s {word}")]).output() else {
                        continue; // the shell is not installed
                    };
                    assert_eq!(run.stdout, text, "{shell}: {word}");
                    assert!(run.stderr.is_empty(), "{shell}: {word}");
                }
                let visible = visible_word(text);
                let shown = visible.trim_end_matches(['\n', '\'']);
                assert!(matches!(escaped(shown), std::borrow::Cow::Borrowed(_)), "{visible:?}");
            }
        }
        // A path of bytes that are not UTF-8 stays the same.
        let path = Path::new(std::ffi::OsStr::from_bytes(b"a\xff"));
        assert_eq!(shell_word(path), r#""$(printf 'a\377')""#);
    }
}
