//! The flags of the fields that messages of the library speak of.

use flux::error::{Field, Form};

/// The flag of a field; the short one where there is one and it is asked for.
pub fn flag(field: Field, form: Form) -> &'static str {
    let [full, short] = match field {
        Field::Prompt => ["--prompt", "-p"],
        Field::NegativePrompt => ["--negative"; 2],
        Field::Width => ["--width", "-W"],
        Field::Height => ["--height", "-H"],
        Field::Size => ["--size"; 2],
        Field::Steps => ["--steps", "-s"],
        Field::Seed => ["--seed", "-S"],
        Field::Count => ["--count", "-n"],
        Field::Guidance => ["--guidance", "-g"],
        Field::Schedule => ["--schedule"; 2],
        Field::Rng => ["--rng"; 2],
        Field::MaxSequenceLength => ["--max-sequence-length"; 2],
        Field::Embeddings => ["--embeddings"; 2],
        Field::Noise => ["--noise"; 2],
        Field::Latents => ["--latents"; 2],
        Field::Inputs => ["--input", "-i"],
        Field::Mask => ["--mask"; 2],
        Field::Strength => ["--strength"; 2],
        Field::Extend => ["--extend"; 2],
        Field::MaskPadding => ["--mask-padding"; 2],
        Field::Feather => ["--feather"; 2],
        Field::NoComposite => ["--no-composite"; 2],
        Field::NoSelfReference => ["--no-self-reference"; 2],
        Field::Sparse => ["--sparse"; 2],
        Field::Reuse => ["--reuse"; 2],
        Field::Adapters => ["--lora"; 2],
        Field::Output => ["--output", "-o"],
        Field::EmbedInputs => ["--embed-inputs"; 2],
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
    };
    match form {
        Form::Full => full,
        Form::Short => short,
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
            let [full, short] = [Form::Full, Form::Short].map(|form| flag(*field, form));
            let flags = commands.iter().flat_map(|command| command.get_arguments());
            // One command may have it without a letter.
            let known = flags
                .filter(|known| known.get_long().is_some_and(|long| format!("--{long}") == full))
                .max_by_key(|known| known.get_short().is_some());
            let known = known.unwrap_or_else(|| panic!("{full}"));
            assert_eq!(short, known.get_short().map_or(full.to_string(), |letter| format!("-{letter}")));
        }
        let different: BTreeSet<_> = Field::ALL.iter().map(|field| flag(*field, Form::Full)).collect();
        assert_eq!(different.len(), Field::ALL.len());
    }
}
