//! The options for opening a model, one method each.

use std::path::Path;

use super::choice::{Device, PrecisionChoice};
use super::{Engine, EngineArgs};
use crate::default_model::default_model;
use crate::error::{Field, Result};
use crate::files::ModelPaths;
use crate::model::Quantization;
use crate::stage::{CancelFlag, Observer, Unobserved};

/// A model to open, and the options for opening it. See [`Engine::builder`].
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is opened until `open` is called"]
pub struct EngineBuilder {
    paths: ModelPaths,
    args: EngineArgs,
    cancel: CancelFlag,
}

impl Engine {
    /// Starts opening the model at a path: a folder in the diffusers layout, a folder in ComfyUI's layout, or the file
    /// of a transformer with the other parts around it.
    ///
    /// A path is no name: `flux_hub::resolve` turns a name such as `4b` into the path of a downloaded model.
    ///
    /// ```no_run
    /// use flux::{Device, Engine};
    ///
    /// let flux = Engine::builder("models/klein-4b").device(Device::Auto).open()?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn builder(model: impl AsRef<Path>) -> EngineBuilder {
        let model = Some(model.as_ref().to_path_buf());
        EngineBuilder { paths: ModelPaths { model, ..ModelPaths::default() }, ..EngineBuilder::default() }
    }

    /// Starts opening the built-in model, which generates small images of a few kinds of things. It needs the feature
    /// `default-model`.
    pub fn built_in() -> EngineBuilder {
        EngineBuilder::default()
    }
}

impl EngineBuilder {
    /// Sets the devices to open. By default, this is the first GPU, or the CPU of a machine without one.
    pub fn device(mut self, device: Device) -> Self {
        self.args.device = device;
        self
    }

    /// Sets the type of the arithmetic.
    pub fn precision(mut self, precision: PrecisionChoice) -> Self {
        self.args.precision = precision;
        self
    }

    /// Quantizes weights when they are loaded.
    ///
    /// ```no_run
    /// use flux::engine::Quantization;
    ///
    /// let formats: Quantization = "transformer=q4_k,text=q8_0".parse().map_err(flux::Error::usage)?;
    /// let flux = flux::Engine::builder("models/klein-4b").quantize(formats).open()?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn quantize(mut self, formats: Quantization) -> Self {
        self.args.quantize = Some(formats);
        self
    }

    /// Limits the memory to use on each GPU, in bytes.
    pub fn gpu_memory(mut self, bytes: u64) -> Self {
        self.args.gpu_memory = Some(bytes);
        self
    }

    /// Sets another text encoder than the model's own: a file, or a folder.
    pub fn text_encoder(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.text_encoder = Some(path.as_ref().to_path_buf());
        self
    }

    /// Sets another VAE than the model's own: a file, or a folder.
    pub fn vae(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.vae = Some(path.as_ref().to_path_buf());
        self
    }

    /// Sets another tokenizer than the model's own: a file, or a folder.
    pub fn tokenizer(mut self, path: impl AsRef<Path>) -> Self {
        self.paths.tokenizer = Some(path.as_ref().to_path_buf());
        self
    }

    /// Sets the flag that ends the opening, when it is set on another thread.
    pub fn cancel_flag(mut self, flag: &CancelFlag) -> Self {
        self.cancel = flag.clone();
        self
    }

    /// Changes any other option.
    pub fn configure(mut self, change: impl FnOnce(&mut EngineArgs)) -> Self {
        change(&mut self.args);
        self
    }

    /// Opens the model on its devices. The engine has one thread for each device; the CPU computes on the global
    /// thread pool of rayon. Weights are loaded for the first image.
    ///
    /// Errors if a file of the model is missing or damaged, or if a device cannot be opened. [`Error::field`] is the
    /// option to change.
    ///
    /// [`Error::field`]: crate::Error::field
    pub fn open(self) -> Result<Engine> {
        self.open_observed(&mut Unobserved)
    }

    /// Opens the model as [`EngineBuilder::open`] does. The observer receives notes, such as the reason for using the
    /// CPU, and the progress of quantization.
    ///
    /// Errors as [`EngineBuilder::open`].
    pub fn open_observed(self, observer: &mut dyn Observer) -> Result<Engine> {
        let files = self.paths.open(default_model).map_err(|e| e.for_field(Field::Model))?;
        files.notes().iter().for_each(|note| observer.note(note));
        Engine::open(files, &self.args, None, observer, &self.cancel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_cannot_be_is_named_by_its_field() {
        let tiny = || Engine::builder("models/tiny").device(Device::Cpu);
        for (builder, field) in [
            (Engine::builder("models/there-is-none"), Field::Model),
            (tiny().text_encoder("models/there-is-none"), Field::TextEncoder),
            (tiny().vae("models/there-is-none"), Field::Vae),
            (tiny().tokenizer("models/there-is-none"), Field::Tokenizer),
            (tiny().precision(PrecisionChoice::Fp8), Field::Precision),
        ] {
            let error = builder.clone().open().map(drop).unwrap_err();
            assert_eq!(error.field(), Some(field), "{builder:?}: {error}");
        }
    }

    #[test]
    fn every_option_is_one_of_the_arguments() {
        let builder = Engine::builder("a")
            .device(Device::Cpu)
            .precision(PrecisionChoice::Bf16)
            .gpu_memory(7)
            .configure(|args| args.images = Some(3));
        let EngineArgs { device, precision, gpu_memory, images, .. } = builder.args;
        assert_eq!((device, precision, gpu_memory, images), (Device::Cpu, PrecisionChoice::Bf16, Some(7), Some(3)));
        assert_eq!(builder.paths.model.as_deref(), Some(Path::new("a")));
    }

    #[test]
    fn a_cancelled_opening_ends() {
        let flag = CancelFlag::default();
        flag.cancel();
        let error = Engine::builder("models/tiny").device(Device::Cpu).cancel_flag(&flag).open().map(drop).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Cancelled);
    }
}
