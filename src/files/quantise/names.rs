//! What users call the formats that weights are brought to: the names of this program, and those of others.

use super::super::format::Format;

/// The formats that weights are brought to, by their names.
pub const FORMATS: [(&str, Format); 13] = [
    ("bf16", Format::Bf16),
    ("fp8", Format::E4m3),
    ("int8", Format::Int8),
    ("mxfp8", Format::Mxfp8),
    ("nvfp4", Format::Nvfp4),
    ("q8_0", Format::Q8_0),
    ("q6_k", Format::Q6K),
    ("q5_k", Format::Q5K),
    ("q5_1", Format::Q5_1),
    ("q5_0", Format::Q5_0),
    ("q4_k", Format::Q4K),
    ("q4_1", Format::Q4_1),
    ("q4_0", Format::Q4_0),
];

/// Other spellings of the same formats, in lower case and without what separates words.
const SPELLINGS: [(&str, &str); 15] = [
    ("bfloat16", "bf16"),
    ("f8", "fp8"),
    ("float8", "fp8"),
    ("f8e4m3", "fp8"),
    ("f8e4m3fn", "fp8"),
    ("fp8e4m3", "fp8"),
    ("fp8e4m3fn", "fp8"),
    ("float8e4m3", "fp8"),
    ("float8e4m3fn", "fp8"),
    ("e4m3", "fp8"),
    ("e4m3fn", "fp8"),
    ("fp8scaled", "fp8"),
    ("i8", "int8"),
    ("int8tensorwise", "int8"),
    ("q8", "q8_0"),
];

/// Formats that other programs make: how their names begin, and what comes nearest here.
const OTHERS: [(&str, &str); 19] = [
    ("iq4", "q4_k"),
    ("iq", "q4_k"),
    ("tq", "q4_k"),
    ("q2", "q4_k"),
    ("q3", "q4_k"),
    ("q8k", "q8_0"),
    ("q81", "q8_0"),
    ("q4", "q4_k"),
    ("q5", "q5_k"),
    ("q6", "q6_k"),
    ("mxfp4", "nvfp4"),
    ("fp4", "nvfp4"),
    ("nf4", "nvfp4"),
    ("int4", "q4_k"),
    ("fp8e5m2", "fp8"),
    ("float8e5m2", "fp8"),
    ("fp16", "bf16"),
    ("float16", "bf16"),
    ("f16", "bf16"),
];

/// The format of a name in any case, with any separators, also as llama.cpp calls its mixtures, and what to tell
/// whoever gave it where more is meant by it elsewhere.
///
/// Errors with the reason, and what comes nearest.
pub fn format_of_name(name: &str) -> Result<(Format, Option<String>), String> {
    let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-' | '.' | ' ')).collect::<String>().to_lowercase();
    let exact = |plain: &str| {
        FORMATS.iter().find(|(known, _)| known.replace('_', "") == plain).map(|(known, format)| (*known, *format))
    };
    let spelled = SPELLINGS.iter().find(|(spelling, _)| *spelling == plain).map_or(plain.as_str(), |(_, known)| known);
    if let Some((_, format)) = exact(&spelled.replace('_', "")) {
        return Ok((format, None));
    }
    if let Some((known, format)) = mixture(&plain).and_then(exact) {
        let note = format!(
            "{name} is taken as {known} for all matrices; of llama.cpp's format of that name some are in more bits"
        );
        return Ok((format, Some(note)));
    }
    let known = || FORMATS.map(|(name, _)| name).join(", ");
    let name: String = name.chars().take(MOST_SHOWN).collect();
    match nearest(&plain) {
        Some(near) => Err(format!(
            "`{name}` is no format of weights that are made, the nearest is {near}; expected one of {}",
            known()
        )),
        None => Err(format!("`{name}` is no format of weights, expected one of {}", known())),
    }
}

/// Characters of a name that are shown.
const MOST_SHOWN: usize = 40;

/// The format that is most of a mixture of llama.cpp, such as q4km.
fn mixture(plain: &str) -> Option<&str> {
    let plain = plain.strip_prefix("ud").unwrap_or(plain);
    let format = plain.trim_end_matches(['x', 's', 'm', 'l']);
    let suffix = &plain[format.len()..];
    (format.ends_with('k') && (suffix.is_empty() || ["s", "m", "l", "xl"].contains(&suffix))).then_some(format)
}

/// The name of the format that comes nearest to one of another program.
fn nearest(plain: &str) -> Option<&'static str> {
    if let Ok(bits) = plain.trim_end_matches("bits").trim_end_matches("bit").parse::<u32>() {
        return match bits {
            2..=4 => Some("q4_k"),
            5 => Some("q5_k"),
            6 => Some("q6_k"),
            8 => Some("q8_0"),
            16 => Some("bf16"),
            _ => None,
        };
    }
    OTHERS.iter().find(|(start, _)| plain.starts_with(start)).map(|(_, near)| *near)
}

/// The name of a format that weights are brought to.
pub fn name_of_format(format: Format) -> Option<&'static str> {
    FORMATS.iter().find(|(_, known)| *known == format).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_with_any_separators() {
        for (name, format) in FORMATS {
            for text in [name.to_string(), name.to_uppercase(), name.replace('_', "-"), name.replace('_', "")] {
                assert_eq!(format_of_name(&text), Ok((format, None)), "{text}");
            }
            assert_eq!(name_of_format(format), Some(name));
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
            assert!(found == format && note.starts_with(&format!("{text} is taken as {name} ")), "{note}");
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
                why.contains(&format!("`{text}` is no format")) && why.contains(&format!("the nearest is {near};")),
                "{why}"
            );
        }
        for text in ["", "xyz", "9", "ks", "k", "vae", "q"] {
            let why = format_of_name(text).unwrap_err();
            assert!(why.contains(&format!("`{text}` is no format of weights, expected one of bf16, ")), "{why}");
        }
        assert!(format_of_name(&"x".repeat(100_000)).unwrap_err().len() < 300);
    }
}
