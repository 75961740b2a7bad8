//! Recognition of files that hold no weights, by their first bytes or else by their names.

use std::path::Path;

use flux_base::error::{Error, Field};
use flux_base::guard::guarded;

/// The number of bytes at the start of a file that tell its kind.
const FIRST: usize = 512;
const NAME_A_MODEL: &str = "name a model: a folder, or a weights file (safetensors or GGUF)";
const FETCH_WEIGHTS: &str = "fetch the same weights as a safetensors or GGUF file, or convert them";
const UNPACK: &str = "unpack it, and name a weights file (safetensors or GGUF) in it";
const PICKLE: &str = "a PyTorch pickle, which may run any program when it is loaded";

/// Kinds of files by their first bytes: position, bytes, kind and hint.
const MAGIC: [(usize, &[u8], &str, &str); 21] = [
    (0, b"GGUF", "a GGUF file", "name a safetensors file"),
    (0, b"\x80\x02", PICKLE, FETCH_WEIGHTS),
    (0, b"\x80\x03", PICKLE, FETCH_WEIGHTS),
    (0, b"\x80\x04", PICKLE, FETCH_WEIGHTS),
    (0, b"\x80\x05", PICKLE, FETCH_WEIGHTS),
    (0, b"\x89HDF\r\n", "an HDF5 file, as written by Keras", FETCH_WEIGHTS),
    (0, b"\x93NUMPY", "a NumPy array", FETCH_WEIGHTS),
    (0, b"ggml", "a GGML file, the predecessor of GGUF", "fetch the same weights as a GGUF file"),
    (0, b"ggjt", "a GGML file, the predecessor of GGUF", "fetch the same weights as a GGUF file"),
    (4, b"TFL3", "a TensorFlow Lite model", FETCH_WEIGHTS),
    (4, b"ftyp", "a video", NAME_A_MODEL),
    (0, b"\x1f\x8b", "a gzip archive", UNPACK),
    (0, b"\xfd7zXZ", "an xz archive", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!", "a RAR archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"%PDF", "a PDF", NAME_A_MODEL),
    (0, b"\x7fELF", "a program", NAME_A_MODEL),
    (0, b"MZ", "a program", NAME_A_MODEL),
    (0, b"SQLite format 3", "a database", NAME_A_MODEL),
];
/// Kinds of files by their extensions, if the first bytes tell nothing.
const ENDINGS: [(&[&str], &str); 4] = [
    (&["pt", "pth", "bin", "ckpt", "pkl"], PICKLE),
    (&["onnx"], "an ONNX model"),
    (&["msgpack"], "a file of Flax weights (msgpack)"),
    (&["engine", "plan", "trt"], "a TensorRT engine"),
];

/// Returns the error of a file that is no file of weights, if its kind is known.
pub fn explain(path: &Path, bytes: &[u8]) -> Option<Error> {
    if let Some(damage) = damage(bytes) {
        return Some(damage);
    }
    let first = &bytes[..bytes.len().min(FIRST)];
    if first.starts_with(b"PK\x03\x04") {
        let is_pickle = has(first, b"data.pkl") || ending(path).is_some_and(|ending| ENDINGS[0].0.contains(&&*ending));
        return Some(if is_pickle { error(PICKLE, FETCH_WEIGHTS) } else { error("a zip archive", UNPACK) });
    }
    if let Some(image) = image(bytes) {
        let hint = format!("{NAME_A_MODEL}; pass an image to edit with `{}`", Field::Inputs);
        return Some(error(&image, &hint));
    }
    let magic = MAGIC.iter().find(|(start, magic, ..)| bytes.get(*start..).is_some_and(|rest| rest.starts_with(magic)));
    if let Some((_, _, what, hint)) = magic {
        return Some(error(what, hint));
    }
    if let Some((_, what)) = ending(path).and_then(|ending| ENDINGS.iter().find(|(known, _)| known.contains(&&*ending)))
    {
        return Some(error(what, FETCH_WEIGHTS));
    }
    let text = text(first)?.trim_start();
    let is_json = text.starts_with(['{', '[']);
    let hint = if is_json { "name the weights file, or the folder that this file describes" } else { NAME_A_MODEL };
    Some(error(if is_json { "JSON text" } else { "text" }, hint))
}

/// Returns `true` if an error reports a pickle.
pub fn is_pickle(error: &Error) -> bool {
    error.what().contains(PICKLE)
}

/// Returns the error of a file that a failed download left in place of the right one, whatever that was.
pub fn damage(bytes: &[u8]) -> Option<Error> {
    const LFS: &str = "version https://git-lfs.github.com/spec/";
    let error = |what: &str, hint: &str| Some(error(what, hint));
    let first = &bytes[..bytes.len().min(FIRST)];
    if first.is_empty() {
        return error("empty", "its download or copy did not start: fetch it again");
    }
    if first.len() >= 16 && first.iter().all(|byte| *byte == 0) {
        return error("filled with zeros at the start", "its download is incomplete: continue it, or fetch it again");
    }
    let text = text(first)?.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    if text.starts_with(LFS) {
        let size = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse::<u64>().ok());
        let size = size.map_or(String::new(), |size| format!(" of {size} bytes"));
        let what = format!("a Git LFS pointer: three lines of text instead of the file{size}");
        return error(&what, "fetch the file itself, for example with `git lfs pull` in its folder");
    }
    let start = text.get(..15).unwrap_or(text).to_ascii_lowercase();
    let is_page = ["<!doctype html", "<html", "<head", "<?xml", "<!--"].iter().any(|tag| start.starts_with(tag));
    let hint = "a server sent it instead of the file: check that the address ends with `/resolve/main/...`, and that \
                the repository does not require a login";
    if is_page { error("a web page (HTML)", hint) } else { None }
}

fn error(what: &str, hint: &str) -> Error {
    Error::new(format!("the file is {what}")).hint(hint)
}

/// Returns the kind and the size of an image.
fn image(bytes: &[u8]) -> Option<String> {
    let format = match bytes {
        [0x89, b'P', b'N', b'G', ..] => "PNG",
        [0xff, 0xd8, 0xff, ..] => "JPEG",
        [b'G', b'I', b'F', b'8', ..] => "GIF",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "WebP",
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => "BMP",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "TIFF",
        [b'8', b'B', b'P', b'S', ..] => "Photoshop",
        [b'q', b'o', b'i', b'f', ..] => "QOI",
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', ..] => "JPEG XL",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', b'e' | b'i', ..] => "HEIF",
        _ => return None,
    };
    let size = guarded(|| imagesize::blob_size(bytes).ok()).ok().flatten();
    let size = size.map_or(String::new(), |size| format!(" of {}x{} pixels", size.width, size.height));
    let article = if format == "AVIF" { "an" } else { "a" };
    Some(format!("{article} {format} image{size}"))
}

/// Returns the extension of a file's name, in lower case.
fn ending(path: &Path) -> Option<String> {
    path.extension()?.to_str().map(str::to_lowercase)
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Returns the first bytes of a file as text, if they are text. The last character may be cut off.
fn text(first: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(first) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&first[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let is_control = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{c}' | '\u{1b}');
    (!text.is_empty() && !text.contains(is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn explained(name: &str, bytes: &[u8], words: &[&str]) {
        let error = explain(name.as_ref(), bytes).unwrap_or_else(|| panic!("{name} is known")).to_string();
        assert!(words.iter().chain(&["hint: "]).all(|word| error.contains(word)), "{words:?}: {error}");
        assert!(!error.contains("resume"), "{error}");
    }

    #[test]
    fn every_kind_of_file_is_named_with_what_to_do() {
        for (start, magic, what, hint) in MAGIC {
            let bytes = [vec![1; start], magic.to_vec(), vec![0xff; 300]].concat();
            explained("file", &bytes, &[what, hint]);
        }
        for (endings, what) in ENDINGS {
            endings
                .iter()
                .for_each(|ending| explained(&format!("a.{}", ending.to_uppercase()), &[8, 0xff, 3], &[what]));
        }
        explained("x.zip", b"PK\x03\x04\x14\x00\xff", &["a zip archive", "unpack it"]);
        explained("x", b"PK\x03\x04\x00\x00archive/data.pkl\xff", &["a PyTorch pickle"]);
        explained("x.pth", b"PK\x03\x04\x00", &["a PyTorch pickle"]);
        explained("config.json", b"{\"a\": 1}", &["JSON text", "the folder that this file describes"]);
        explained("x", "# Modèle".as_bytes(), &["the file is text"]);
        explained("x", b"", &["the file is empty"]);
        explained("x", &[0; 600], &["filled with zeros at the start"]);
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 7751105712\n";
        explained("x", pointer.as_bytes(), &["Git LFS", " 7751105712 bytes", "git lfs pull"]);
        for page in ["<!DOCTYPE html><html>", "\u{feff}\n <HTML lang=en>", "<?xml version=\"1.0\"?><Error>"] {
            explained("x.safetensors", page.as_bytes(), &["HTML", "login"]);
        }
        assert!(explain("x".as_ref(), &[0x1c, 0xff, 0xfe, 0, 1]).is_none(), "it may be anything");
    }

    #[test]
    fn images_are_told_with_their_sizes_and_damaged_ones_without() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x40\0\0\0\x30\x08\x02\0\0\0";
        explained("x", png, &["a PNG image of 64x48 pixels", "`inputs`"]);
        explained("x", b"GIF89a\x05\0\x07\0\xf7\0\0", &["a GIF image of 5x7 pixels"]);
        for (bytes, name) in [
            (&b"\x89PNG"[..], "a PNG image"),
            (b"\xff\xd8\xff\xe0", "a JPEG image"),
            (b"RIFF\0\0\0\0WEBPVP8 ", "a WebP image"),
            (b"\0\0\0\x20ftypavif", "an AVIF image"),
            (b"\0\0\0\x20ftypheic", "a HEIF image"),
        ] {
            explained("x", bytes, &[name]);
        }
    }
}
