//! What a user can do about a model or a file of it that is not there.

use super::own_models::FLUX2_KLEIN;

/// How to get a model.
pub fn fetch_a_model() -> String {
    let (repository, size) = FLUX2_KLEIN.repository;
    format!("`flux download {size}` fetches `{repository}` from Hugging Face")
}

/// What to do about a missing file of a model.
pub(super) fn complete_the_download() -> String {
    "is the download complete? `flux download` resumes it".to_string()
}
