//! Errors for HEIC and AVIF, common formats of phones and of the web. Both use the container HEIF, which is not
//! supported.

use flux_base::error::Error;

/// Maximum bytes of the box that lists the brands.
const MAX: usize = 256;
/// Brands of images in HEVC and in AV1, and brands of the container alone.
const HEIC: [&[u8; 4]; 6] = [b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"];
const AVIF: [&[u8; 4]; 2] = [b"avif", b"avis"];
const CONTAINER: [&[u8; 4]; 2] = [b"mif1", b"msf1"];

/// Returns the error for such a file, with a command that converts it; `None` for any other file.
pub(super) fn refusal(file: &[u8]) -> Option<Error> {
    let brands = brands(file)?;
    let has = |known: &[&[u8; 4]]| brands.iter().any(|brand| known.contains(&brand));
    let refused = |what: &str, hint: &str| {
        Some(
            Error::new(format!("the file is {what}, which is not supported")).hint(format!("convert it first: {hint}")),
        )
    };
    if has(&AVIF) {
        refused("AVIF", "`avifdec IN OUT.png`, or `magick IN PNG24:OUT.png`")
    } else if has(&HEIC) {
        refused("HEIC", "`heif-convert IN OUT.png`, or `magick IN PNG24:OUT.png`")
    } else if has(&CONTAINER) {
        refused("a HEIF image", "`heif-convert IN OUT.png`, or `magick IN PNG24:OUT.png`")
    } else {
        None
    }
}

/// Returns the brands in the box at the beginning: the main brand, and the compatible brands.
fn brands(file: &[u8]) -> Option<Vec<[u8; 4]>> {
    let (size, rest) = file.split_first_chunk()?;
    let rest = rest.strip_prefix(b"ftyp")?;
    let end = (u32::from_be_bytes(*size) as usize).saturating_sub(8).min(MAX).min(rest.len());
    // The version is between the main brand and the compatible brands.
    let (words, _) = rest[..end].as_chunks();
    Some(words.iter().enumerate().filter(|(place, _)| *place != 1).map(|(_, brand)| *brand).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::read_bytes;

    /// The first box of a file with these brands.
    fn file(main: &[u8; 4], others: &[&[u8; 4]]) -> Vec<u8> {
        let size = (16 + 4 * others.len() as u32).to_be_bytes();
        let others: Vec<u8> = others.iter().flat_map(|brand| brand.iter().copied()).collect();
        [&size[..], b"ftyp", main, &[0; 4], &others, b"\0\0\0\x08meta"].concat()
    }

    fn error(file: &[u8]) -> String {
        read_bytes(file).unwrap_err().to_string()
    }

    #[test]
    fn every_brand_is_told_with_what_converts_it() {
        for brand in HEIC {
            let error = error(&file(brand, &[b"mif1"]));
            assert!(error.contains("HEIC") && error.contains("`heif-convert IN OUT.png`"), "{error}");
        }
        for brand in AVIF {
            let error = error(&file(brand, &[b"mif1", b"miaf"]));
            assert!(error.contains("AVIF") && error.contains("`avifdec IN OUT.png`"), "{error}");
        }
        for brand in CONTAINER {
            assert!(error(&file(brand, &[])).contains("a HEIF image"));
        }
        // The main brand may be the container's.
        assert!(error(&file(b"mif1", &[b"miaf", b"avif"])).contains("AVIF"));
        assert!(error(&file(b"msf1", &[b"hevc"])).contains("HEIC"));
    }

    #[test]
    fn videos_and_damaged_boxes_are_no_such_images() {
        let plain = "the file is not a PNG, JPEG or WebP";
        assert!(error(&file(b"isom", &[b"mp42"])).contains(plain));
        assert!(error(b"\0\0\0\x08ftypheic").contains(plain), "the box ends before its brand");
        assert!(error(b"\0\0\0\x20ftyphe").contains(plain));
        assert!(error(b"\xff\xff\xff\xffftypheic").contains("HEIC"));
        // The version is no brand.
        assert!(error(b"\0\0\0\x10ftypisomheic").contains(plain));
    }
}
