//! The flags for fields in the library's messages.

use flux::error::{Field, Form};

use super::command_line::arguments;
use super::explain::is_given;

/// Returns the flag of a field as it is on the command line, otherwise in the requested form.
pub fn flag(field: Field, form: Form) -> &'static str {
    as_given(field, form, |flag| is_given(arguments(), flag))
}

/// [`flag`] for a command line with the flags for which `is_given` returns `true`.
fn as_given(field: Field, form: Form, is_given: impl Fn(&str) -> bool) -> &'static str {
    let [full, short] = flags(field);
    let [size, _] = flags(Field::Size);
    match form {
        _ if is_given(full) => full,
        _ if is_given(short) => short,
        _ if matches!(field, Field::Width | Field::Height) && is_given(size) => size,
        Form::Full => full,
        Form::Short => short,
    }
}

/// Returns the full flag of a field, and its short form or the full flag again.
fn flags(field: Field) -> [&'static str; 2] {
    match field {
        Field::Prompt => ["--prompt", "-p"],
        Field::Wildcards => ["--wildcards"; 2],
        Field::Boxes => ["--boxes"; 2],
        Field::Regions => ["--region"; 2],
        Field::Controls => ["--control"; 2],
        Field::Upsample => ["--upsample"; 2],
        Field::NegativePrompt => ["--negative"; 2],
        Field::Width => ["--width", "-W"],
        Field::Height => ["--height", "-H"],
        Field::Size => ["--size"; 2],
        Field::Steps => ["--steps", "-s"],
        Field::Seed => ["--seed", "-S"],
        Field::Variation => ["--variation"; 2],
        Field::Variety => ["--variety"; 2],
        Field::Count => ["--count", "-n"],
        Field::Guidance => ["--guidance", "-g"],
        Field::Schedule => ["--schedule"; 2],
        Field::Rng => ["--rng"; 2],
        Field::MaxSequenceLength => ["--max-sequence-length"; 2],
        Field::Embeddings => ["--embeddings"; 2],
        Field::Noise => ["--noise"; 2],
        Field::Latents => ["--latents"; 2],
        Field::Inputs => ["--input", "-i"],
        Field::InputWeights => ["--input-weight"; 2],
        Field::Mask => ["--mask"; 2],
        Field::Strength => ["--strength"; 2],
        Field::Extend => ["--extend"; 2],
        Field::MaskPadding => ["--mask-padding"; 2],
        Field::Feather => ["--feather"; 2],
        Field::NoComposite => ["--no-composite"; 2],
        Field::FullSize => ["--full-size"; 2],
        Field::NoSelfReference => ["--no-self-reference"; 2],
        Field::Sparse => ["--sparse"; 2],
        Field::Tile => ["--tile"; 2],
        Field::TileOverlap => ["--tile-overlap"; 2],
        Field::Hires => ["--hires"; 2],
        Field::Transparent => ["--transparent"; 2],
        Field::Reuse => ["--reuse"; 2],
        Field::Adapters => ["--lora"; 2],
        Field::Quality => ["--quality"; 2],
        Field::Output => ["--output", "-o"],
        Field::EmbedInputs => ["--embed-inputs"; 2],
        Field::SignCert => ["--sign-cert"; 2],
        Field::SignKey => ["--sign-key"; 2],
        Field::Trust => ["--trust"; 2],
        Field::NoClobber => ["--no-clobber"; 2],
        Field::Model => ["--dir", "-d"],
        Field::TextEncoder => ["--text-encoder"; 2],
        Field::Vae => ["--vae"; 2],
        Field::Tokenizer => ["--tokenizer"; 2],
        Field::PreviewDecoder => ["--preview-decoder"; 2],
        Field::Variant => ["--variant"; 2],
        Field::Device => ["--device"; 2],
        Field::Precision => ["--precision"; 2],
        Field::Attention => ["--attention"; 2],
        Field::GpuMemory => ["--gpu-memory"; 2],
        Field::Threads => ["--threads"; 2],
        Field::Parallel => ["--parallel"; 2],
        Field::Quantize => ["--quantize"; 2],
        Field::Fp8Cache => ["--fp8-cache"; 2],
        Field::Format => ["--format", "-f"],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_field_has_a_flag_of_its_own_that_the_program_takes() {
        let program = Cli::command();
        let commands: Vec<_> = std::iter::once(&program).chain(program.get_subcommands()).collect();
        for field in Field::ALL {
            let [full, short] = flags(*field);
            let flags = commands.iter().flat_map(|command| command.get_arguments());
            // A command may have the flag without its short form.
            let known = flags
                .filter(|known| known.get_long().is_some_and(|long| format!("--{long}") == full))
                .max_by_key(|known| known.get_short().is_some());
            let known = known.unwrap_or_else(|| panic!("{full}"));
            assert_eq!(short, known.get_short().map_or(full.to_string(), |letter| format!("-{letter}")));
        }
        let different: BTreeSet<_> = Field::ALL.iter().map(|field| flags(*field)[0]).collect();
        assert_eq!(different.len(), Field::ALL.len());
    }

    #[test]
    fn a_flag_is_named_as_it_was_given() {
        let named = |field, given: &[&str]| as_given(field, Form::Full, |flag| given.contains(&flag));
        assert_eq!(named(Field::Width, &[]), "--width");
        assert_eq!(named(Field::Width, &["-W"]), "-W");
        assert_eq!(named(Field::Height, &["--size"]), "--size");
        assert_eq!(named(Field::Height, &["--size", "--height"]), "--height");
        assert_eq!(named(Field::Steps, &["--size"]), "--steps");
    }
}
