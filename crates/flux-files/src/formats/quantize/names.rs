//! Format names that users pass: the names of this program, and of other programs.

use crate::formats::format::Format;

/// Parses a format name in any case and with any separators, including llama.cpp's mixtures. Also returns a note for
/// the user if the name means a mixture elsewhere.
///
/// Errors with the reason and the nearest format.
pub fn format_of_name(name: &str) -> Result<(Format, Option<String>), String> {
    let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-' | '.' | ' ')).collect::<String>().to_lowercase();
    let exact = |plain: &str| {
        Format::made()
            .find(|(known, format)| known.replace('_', "") == plain || format.row().spellings.contains(&plain))
    };
    if let Some((_, format)) = exact(&plain) {
        return Ok((format, None));
    }
    if let Some((known, format)) = mixture(&plain).and_then(exact) {
        let note = format!(
            "{name} is treated as {known} for all matrices; llama.cpp's format of that name stores some in more bits"
        );
        return Ok((format, Some(note)));
    }
    let known = || Format::made().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
    let name: String = name.chars().take(MAX_SHOWN).collect();
    match nearest(&plain) {
        Some(near) => Err(format!(
            "`{name}` is not a supported weight format, the nearest is {near}; expected one of {}",
            known()
        )),
        None => Err(format!("`{name}` is not a supported weight format, expected one of {}", known())),
    }
}

/// The max characters of a name in messages.
const MAX_SHOWN: usize = 40;

/// Returns the main format of a llama.cpp mixture such as q4km.
fn mixture(plain: &str) -> Option<&str> {
    let plain = plain.strip_prefix("ud").unwrap_or(plain);
    let format = plain.trim_end_matches(['x', 's', 'm', 'l']);
    let suffix = &plain[format.len()..];
    (format.ends_with('k') && (suffix.is_empty() || ["s", "m", "l", "xl"].contains(&suffix))).then_some(format)
}

/// Returns the name of the format that is nearest to a format of another program.
fn nearest(plain: &str) -> Option<&'static str> {
    let format = match plain.trim_end_matches("bits").trim_end_matches("bit").parse::<u32>() {
        Ok(bits) => Format::find(|row| row.nearest_of_bits.contains(&bits)),
        Err(_) => Format::find(|row| row.nearest_of.iter().any(|start| plain.starts_with(start))),
    };
    format?.name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_with_any_separators() {
        for (name, format) in Format::made() {
            for text in [name.to_string(), name.to_uppercase(), name.replace('_', "-"), name.replace('_', "")] {
                assert_eq!(format_of_name(&text), Ok((format, None)), "{text}");
            }
        }
        for (text, format) in [
            ("bfloat16", Format::Bf16),
            ("BF16", Format::Bf16),
            ("fp8_e4m3fn", Format::E4m3),
            ("float8_e4m3fn", Format::E4m3),
            ("FP8-E4M3", Format::E4m3),
            ("Q8_0", Format::Q8_0),
            ("q8", Format::Q8_0),
            ("I8", Format::Int8),
        ] {
            assert_eq!(format_of_name(text), Ok((format, None)), "{text}");
        }
    }

    #[test]
    fn mixtures_of_llama_cpp_are_their_main_format_with_a_note() {
        for (text, name, format) in [
            ("Q4_K_M", "q4_k", Format::Q4K),
            ("q4_k_s", "q4_k", Format::Q4K),
            ("q4km", "q4_k", Format::Q4K),
            ("Q4-K-M", "q4_k", Format::Q4K),
            ("UD-Q4_K_XL", "q4_k", Format::Q4K),
            ("Q5_K_M", "q5_k", Format::Q5K),
            ("Q5_K_S", "q5_k", Format::Q5K),
            ("Q6_K_L", "q6_k", Format::Q6K),
        ] {
            let (found, note) = format_of_name(text).unwrap();
            let note = note.expect("a note");
            assert!(found == format && note.starts_with(&format!("{text} is treated as {name} ")), "{note}");
        }
    }

    #[test]
    fn formats_that_are_not_made_are_named_with_the_nearest() {
        for (text, near) in [
            ("IQ4_NL", "q4_k"),
            ("IQ4_XS", "q4_k"),
            ("IQ3_XXS", "q4_k"),
            ("Q3_K_M", "q4_k"),
            ("q2_k", "q4_k"),
            ("q4", "q4_k"),
            ("8", "q8_0"),
            ("4-bit", "q4_k"),
            ("nf4", "nvfp4"),
            ("MXFP4", "nvfp4"),
            ("fp8_e5m2", "fp8"),
            ("f16", "bf16"),
        ] {
            let why = format_of_name(text).unwrap_err();
            assert!(
                why.contains(&format!("`{text}` is not")) && why.contains(&format!("the nearest is {near};")),
                "{why}"
            );
        }
        for text in ["", "xyz", "9", "ks", "k", "vae", "q"] {
            let why = format_of_name(text).unwrap_err();
            assert!(why.contains(&format!("`{text}` is not a supported weight format, expected one of")), "{why}");
        }
        assert!(format_of_name(&"x".repeat(100_000)).unwrap_err().len() < 300);
    }
}
