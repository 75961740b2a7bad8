//! The Y4M header. Errors name unsupported features.

use flux_base::{Error, Result};

use super::colors::Shared;

/// The magic bytes of Y4M.
pub const Y4M_BEGINS: &[u8] = b"YUV4MPEG2 ";
/// Maximum length of the header in bytes, as in the decoder.
pub const MAX_LINE: usize = 1024;
/// Maximum side of frames, in pixels.
const MAX_SIDE: usize = 16384;

/// Returns the chroma subsampling of a Y4M header line, including its line break.
///
/// Errors when the header is damaged or its format unsupported.
pub fn shared_colors(line: &[u8]) -> Result<Shared> {
    let Some(words) = line.strip_prefix(Y4M_BEGINS) else {
        return Err(damaged("it does not begin with `YUV4MPEG2 `"));
    };
    let Some(words) = words.strip_suffix(b"\n") else { return Err(damaged("its first line does not end")) };
    let words = String::from_utf8_lossy(words);
    let of = |name: char| words.split(' ').filter_map(|word| word.strip_prefix(name)).next_back();
    for (side, name) in [("width", 'W'), ("height", 'H')] {
        check_side(side, of(name))?;
    }
    if let Some(order) = of('I').filter(|order| matches!(*order, "t" | "b" | "m")) {
        return Err(unread(format!("the frames are interlaced (`I{order}`), expected progressive frames"))
            .hint("deinterlace them with ffmpeg: `-vf yadif`"));
    }
    match of('C').unwrap_or("420") {
        "mono" => Ok(Shared::Grey),
        "420" | "420jpeg" | "420paldv" | "420mpeg2" => Ok(Shared::Pixels([2, 2])),
        "422" => Ok(Shared::Pixels([2, 1])),
        "444" => Ok(Shared::Pixels([1, 1])),
        name => {
            // As in 420p10 and mono12.
            let bits = name.strip_prefix("mono").or_else(|| name.split_once('p').map(|(_, bits)| bits));
            let what = if bits.is_some_and(|bits| bits.parse::<u8>().is_ok()) {
                format!("the frames have more than 8 bits per value (`C{name}`)")
            } else {
                format!("the colour format `C{name}` of the frames is not supported, expected mono, 420, 422 or 444")
            };
            Err(unread(what).hint("convert them to 8 bits in 4:4:4 with ffmpeg: `-pix_fmt yuv444p`"))
        }
    }
}

fn check_side(side: &str, text: Option<&str>) -> Result<()> {
    let Some(text) = text else { return Err(damaged(&format!("its first line has no {side}"))) };
    if text.is_empty() || !text.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(damaged(&format!("its first line is damaged: the {side} is `{text}`")));
    }
    match text.parse::<usize>() {
        Ok(pixels) if (1..=MAX_SIDE).contains(&pixels) => Ok(()),
        _ => Err(unread(format!("the frames have a {side} of {text} pixels, expected 1 to {MAX_SIDE}"))
            .hint("scale them with ffmpeg: `-vf scale=512:512`")),
    }
}

fn unread(what: String) -> Error {
    Error::usage(what).at("standard input")
}

/// Returns the error for a stream that cannot be read further.
pub fn damaged(what: &str) -> Error {
    Error::new(format!("cannot read the Y4M: {what}"))
        .at("standard input")
        .hint("send the stream again from its beginning: the next frame cannot be found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_named() {
        for (words, told) in [
            ("W4294967296 H4294967296 Cmono", "width of 4294967296 pixels, expected 1 to 16384"),
            ("W16 H99999999999999999999", "height of 99999999999999999999 pixels"),
            ("W0 H16", "width of 0 pixels"),
            ("W16 H16385", "height of 16385 pixels"),
            ("W16", "has no height"),
            ("W16 H-16", "the height is `-16`"),
            ("W16 H16 C411", "`C411`"),
            ("W16 H16 C444alpha", "`C444alpha`"),
            ("W16 H16 C420p14", "more than 8 bits per value (`C420p14`)"),
            ("W16 H16 Cmono16", "more than 8 bits per value (`Cmono16`)"),
            ("W16 H16 It C444", "interlaced (`It`)"),
            ("W16 H16 Im", "interlaced (`Im`)"),
        ] {
            let error = shared_colors(format!("YUV4MPEG2 {words}\n").as_bytes()).err().map(|e| e.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(told)), "{words}: {error:?}");
        }
        let cut = shared_colors(b"YUV4MPEG2 W16 H16").err().map(|e| e.to_string());
        assert!(cut.is_some_and(|cut| cut.contains("does not end")));
        for words in ["W16 H16", "H16 F30:1 Ip W16384 C420mpeg2 XCOLORRANGE=FULL", "W1 H1 I? Cmono", "W16 H16 C422"] {
            assert!(shared_colors(format!("YUV4MPEG2 {words}\n").as_bytes()).is_ok(), "{words}");
        }
    }
}
