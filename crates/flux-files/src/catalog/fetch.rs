//! Hints for a model or a file of it that is missing.

use crate::catalog::own_models::FLUX2_KLEIN;

/// Returns the hint for getting a model.
pub fn fetch_a_model() -> String {
    let (repository, size) = FLUX2_KLEIN.repository;
    format!("run `flux download {size}` to fetch `{repository}` from Hugging Face")
}

/// Returns the hint for a missing file of a model.
pub(crate) fn complete_the_download() -> String {
    "the download may be incomplete: run `flux download` to resume it".to_string()
}
