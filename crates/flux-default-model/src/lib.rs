//! The default model, `models/tiny`, embedded in the program so that it works in any folder and without a download.

#[cfg(feature = "default-model")]
mod words;

#[cfg(feature = "default-model")]
pub use self::words::knows_a_word_of;
use flux_base::error::Result;
use flux_files::ModelFiles;

/// Returns the model that is used if none is named.
///
/// Errors if the program was built without the feature `default-model`.
#[cfg(feature = "default-model")]
pub fn default_model() -> Result<ModelFiles> {
    Ok(ModelFiles::embedded(files::FILES))
}

/// Returns the model that is used if none is named.
///
/// Errors if the program was built without the feature `default-model`.
#[cfg(not(feature = "default-model"))]
pub fn default_model() -> Result<ModelFiles> {
    use flux_base::error::{Error, Field};
    Err(Error::usage("no model is specified, and this program was built without the default model")
        .for_field(Field::Model)
        .hint(format!("select a model folder with `{}` or FLUX_MODEL; {}", Field::Model, flux_files::fetch_a_model())))
}

/// Returns `true`, because this program has no default model.
#[cfg(not(feature = "default-model"))]
pub fn knows_a_word_of(_text: &str, _changes: bool) -> bool {
    true
}

#[cfg(feature = "default-model")]
mod files {
    use flux_files::EmbeddedFile;

    /// A file aligned like a mapped file, so that its tensors are used in place.
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);

    macro_rules! embed {
        ($($name:literal),* $(,)?) => {
            &[$({
                static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!("../../../models/tiny/", $name)));
                ($name, &FILE.0)
            }),*]
        };
    }

    /// The files that the models read, and the licences of the data that this model was trained on.
    pub static FILES: &[EmbeddedFile] = embed![
        "LICENSES.txt",
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/tokenizer.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ];
}

#[cfg(all(test, feature = "default-model"))]
mod tests {
    use super::files::FILES;

    #[test]
    fn every_weight_file_of_the_folder_is_carried_and_aligned() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
        for (name, bytes) in FILES {
            assert_eq!(*bytes, std::fs::read(root.join(name)).unwrap(), "{name}");
            assert_eq!(bytes.as_ptr().addr() % 64, 0, "{name}");
        }
        for part in ["text_encoder", "transformer", "vae"] {
            for entry in std::fs::read_dir(root.join(part)).unwrap() {
                let name = format!("{part}/{}", entry.unwrap().file_name().to_string_lossy());
                assert!(FILES.iter().any(|(carried, _)| *carried == name), "{name} is not embedded");
            }
        }
    }
}
