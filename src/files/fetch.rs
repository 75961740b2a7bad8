//! What a user can do about a model or a file of it that is not there.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::own_models::FLUX2_KLEIN;

/// The script that fetches models, in the program's source folder.
const SCRIPT: &str = "scripts/download_model.sh";

/// The folder with the script, where the program runs from its source folder or was built in it. An installed program
/// has no scripts beside it.
static SOURCE_FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let program = std::env::current_exe().ok();
    let folder = std::env::current_dir().ok();
    let above = |path: &Path| path.ancestors().map(Path::to_path_buf).collect::<Vec<_>>();
    let all = folder.iter().chain(&program).flat_map(|path| above(path));
    all.into_iter().find(|folder| folder.join(SCRIPT).is_file() && folder.join("Cargo.toml").is_file())
});

/// How to get a model.
pub fn fetch_a_model() -> String {
    let (repository, size) = FLUX2_KLEIN.repository;
    let fetch = format!("fetch `{repository}` from Hugging Face");
    match &*SOURCE_FOLDER {
        Some(folder) => format!("{fetch}, as with `{SCRIPT} {size}` in `{}`", folder.display()),
        None => format!("{fetch}, as with `hf download`"),
    }
}

/// How to draw an image for each line of a file.
pub fn draw_each_line() -> String {
    match &*SOURCE_FOLDER {
        Some(folder) => {
            format!("`scripts/generate_batch.sh` in `{}` draws an image for each line of a file", folder.display())
        }
        None => "an image for each line of a file is a run for each".to_string(),
    }
}

/// What to do about a missing file of a model.
pub(super) fn complete_the_download() -> String {
    const REST: &str = "fetches the model's repository on Hugging Face as a whole";
    match &*SOURCE_FOLDER {
        Some(folder) => {
            format!("is the download complete? `{SCRIPT}` in `{}` resumes it; `hf download` {REST}", folder.display())
        }
        None => format!("is the download complete? `hf download` {REST}"),
    }
}
