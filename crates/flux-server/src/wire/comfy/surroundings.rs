//! The server's models, adapters and uploads, as named by graphs.

use std::sync::Arc;

use bytes::Bytes;

use super::evaluate::Surroundings;
use super::images::Upscaler;
use super::kinds::Model;
use super::sigmas::Sampling;
use crate::App;
use crate::jobs::admission::Permit;
use crate::jobs::models::stem;
use crate::jobs::uploads::Place;

/// The server from the point of view of a client.
pub struct OfServer {
    pub app: Arc<App>,
    pub owner: String,
    pub permit: Arc<Permit>,
}

impl Surroundings for OfServer {
    fn model(&self, file: &str) -> Result<(Model, Option<String>), String> {
        let models = &self.app.queue.models();
        let known = models.names().find(|name| *name == file || is_name_of(name, file)).map(str::to_string);
        let (place, note) = models.find(Some(known.as_deref().unwrap_or(file))).map_err(|error| error.message)?;
        let (name, is_distilled) = (models.name(place).into(), models.is_distilled(place));
        let (sampling, adapters, weights) = (Sampling::default(), Arc::default(), Arc::default());
        Ok((Model { name, is_distilled, sampling, adapters, weights }, note))
    }

    fn adapter(&self, file: &str) -> Result<String, String> {
        self.app.queue.models().adapter_name(file).map(str::to_string).map_err(|error| error.message)
    }

    fn upscaler(&self, file: &str) -> Result<Upscaler, String> {
        let opened = self.app.queue.models().upscalers().open(file).map_err(|error| error.message)?;
        let name = opened.path().file_name().unwrap_or_default().to_string_lossy().into();
        let max_pixels = self.app.config.limits.upscale_max_pixels as u64;
        Ok(Upscaler { name, scale: opened.scale() as u64, max_pixels })
    }

    fn upload(&self, name: &str) -> Option<Bytes> {
        let place = Place::parse_annotated(name)?;
        let sent = self.app.store.upload(&self.owner, &place);
        sent.or_else(|| self.app.comfy.prompts.file(&self.owner, &place))
    }

    fn cached(&self, id: &str) -> Option<Bytes> {
        self.app.store.upload(&self.owner, &Place::from_krita_id(id)?)
    }

    fn max_pixels(&self) -> u64 {
        self.app.config.limits.max_pixels as u64
    }

    fn keep(&self, bytes: usize) -> crate::http::error::Result<()> {
        self.permit.keep(bytes)
    }
}

/// Returns `true` if a file names a model of the server: by name, or because both are the same klein variant.
fn is_name_of(model: &str, file: &str) -> bool {
    let stem = stem(file);
    let of_both = |name: &str| klein(&name.to_lowercase());
    stem.eq_ignore_ascii_case(model) || of_both(model).is_some_and(|own| Some(own) == of_both(stem))
}

/// Returns the size of a klein model, `true` if it is a base model, and `true` if it caches references.
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
