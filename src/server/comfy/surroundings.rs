//! What the server has of what graphs name.

use std::sync::Arc;

use bytes::Bytes;

use super::evaluate::Surroundings;
use super::kinds::Model;
use crate::server::App;
use crate::server::uploads::Place;

/// Files of models end so.
const ENDINGS: [&str; 5] = [".safetensors", ".sft", ".gguf", ".ckpt", ".pt"];

/// The server, for one client.
pub struct OfServer {
    pub app: Arc<App>,
    pub owner: String,
}

impl Surroundings for OfServer {
    fn model(&self, file: &str) -> Result<(Model, Option<String>), String> {
        let models = &self.app.queue.models();
        let known = models.names().find(|name| *name == file || is_name_of(name, file)).map(str::to_string);
        let (place, note) = models.find(Some(known.as_deref().unwrap_or(file))).map_err(|error| error.message)?;
        let (name, is_distilled) = (models.name(place).into(), models.is_distilled(place));
        Ok((Model { name, is_distilled, adapters: Arc::default() }, note))
    }

    fn adapter(&self, file: &str) -> Option<String> {
        let stem = stem(file);
        self.app.queue.models().adapters().find(|name| *name == file || *name == stem).map(str::to_string)
    }

    fn upload(&self, name: &str) -> Option<Bytes> {
        let place = Place::of_annotated(name)?;
        let sent = self.app.store.upload(&self.owner, &place);
        sent.or_else(|| self.app.comfy.prompts.file(&self.owner, &place))
    }

    fn cached(&self, id: &str) -> Option<Bytes> {
        self.app.store.upload(&self.owner, &Place::of_krita(id)?)
    }
}

/// The name of a file without its folders and its ending.
fn stem(file: &str) -> &str {
    let name = file.rsplit(['/', '\\']).next().unwrap_or_default();
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// Whether a file is that of a model of the server: by its name, or since both say which klein they are.
fn is_name_of(model: &str, file: &str) -> bool {
    let stem = stem(file);
    let of_both = |name: &str| klein(&name.to_lowercase());
    stem.eq_ignore_ascii_case(model) || of_both(model).is_some_and(|own| Some(own) == of_both(stem))
}

/// The size of a klein model, and whether it is an undistilled one, and one that caches references.
pub fn klein(name: &str) -> Option<(&'static str, bool, bool)> {
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let size = ["4b", "9b"].into_iter().find(|size| words.contains(size))?;
    Some((size, words.contains(&"base"), words.contains(&"kv")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_models_are_known_by_what_they_say() {
        for (model, file) in [
            ("klein-4b", "flux-2-klein-4b.safetensors"),
            ("4b", "flux2/flux-2-klein-4b-fp8.safetensors"),
            ("FLUX.2-klein-base-4B", "flux-2-klein-base-4b.safetensors"),
            ("9b-kv", "flux-2-klein-9b-kv-fp8.safetensors"),
            ("tiny", "tiny.safetensors"),
            ("mine", "sub\\Mine.gguf"),
        ] {
            assert!(is_name_of(model, file), "{model} {file}");
        }
        for (model, file) in [
            ("klein-4b", "flux-2-klein-base-4b.safetensors"),
            ("klein-4b", "flux-2-klein-9b.safetensors"),
            ("9b", "flux-2-klein-9b-kv.safetensors"),
            ("tiny", "other.safetensors"),
            ("tiny", "flux-2-klein-4b.safetensors"),
        ] {
            assert!(!is_name_of(model, file), "{model} {file}");
        }
    }
}
