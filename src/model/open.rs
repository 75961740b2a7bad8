//! Opens and checks a model before a device is needed.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread::{self, Scope, ScopedJoinHandle, scope};

use crate::backend::cpu::{Cpu, Precision};
use crate::backend::{Memory, NOT_NUMBERS};
use crate::error::{Error, Result};
use crate::files::adapter::{self, Adapter};
use crate::files::quantized_cache::{self, QuantizedCache};
use crate::files::{Container, ModelFiles, TensorFiles, Variant};
use crate::model::file_sizes::FileSizes;
use crate::model::info::ModelInfo;
use crate::model::left_out;
use crate::nn::{WeightPolicy, Weights};
use crate::stage::{Caller, CancelFlag, Progress, Stage};
use crate::text_encoder::{self, TextEncoder, Tokenizer};
use crate::transformer::{self, Transformer};
use crate::vae::preview::{self, PreviewMap};
use crate::vae::{self, Decoder, Encoder, Grid, TinyDecoderFile};

/// The checked configs and mapped weights of a [`Model`](crate::pipeline::Model), and its tokenizer, which another
/// thread may still be reading.
pub struct OpenModel {
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: LazyTokenizer,
    pub(crate) files: Files,
    notes: Vec<String>,
}

/// A tokenizer that another thread reads. The first call of [`LazyTokenizer::get`] waits for it.
pub(crate) struct LazyTokenizer(Lazy<Tokenizer>);

type Lazy<T> = LazyLock<Result<T>, Box<dyn FnOnce() -> Result<T> + Send>>;

impl LazyTokenizer {
    fn read(dir: &ModelFiles, info: &ModelInfo) -> Self {
        let (file, template, length) = (dir.tokenizer().clone(), info.kind.template, info.max_sequence_length);
        let read = move || Tokenizer::load(&file, template, length);
        let Ok(thread) = thread::Builder::new().spawn(read.clone()) else {
            return Self(LazyLock::new(Box::new(read)));
        };
        let join =
            move || thread.join().unwrap_or_else(|_| Err(Error::new("the thread that reads the tokenizer panicked")));
        Self(LazyLock::new(Box::new(join)))
    }

    /// A tokenizer that always returns an error, for a model opened without its text encoder.
    fn absent() -> Self {
        Self(LazyLock::new(Box::new(|| Err(no_text_encoder()))))
    }

    /// Returns the tokenizer. Errors as [`Tokenizer::load`].
    pub(crate) fn get(&self) -> Result<&Tokenizer> {
        self.0.as_ref().map_err(Error::clone)
    }
}

pub(crate) struct Files {
    /// `None` if the model was opened without it.
    pub(crate) text_encoder: Option<TensorFiles>,
    pub(crate) transformer: TensorFiles,
    pub(crate) vae: TensorFiles,
    /// The decoder of previews, if one was attached.
    pub(crate) preview_decoder: Option<TinyDecoderFile>,
    /// `true` if the preview decoder also makes the final images, instead of the VAE's decoder.
    pub(crate) tiny_images: bool,
}

impl Files {
    /// Returns the sizes of the weights that stay in the formats of these files: text encoder, transformer.
    pub(crate) fn sizes(&self, info: &ModelInfo) -> [FileSizes; 2] {
        let of_text = self.text_encoder.as_ref().map(|files| FileSizes::for_text_encoder(files, info.layers_to_run()));
        [of_text.unwrap_or_default(), FileSizes::for_transformer(&self.transformer, &info.transformer)]
    }

    /// Errors if the VAE's encoder is missing or does not fit the config. Only input images need the encoder, so
    /// opening a model does not check it.
    pub(crate) fn check_encoder(&self, info: &ModelInfo) -> Result<()> {
        let encoder = Encoder::load(&Weights::new(&Cpu::new(Precision::F32), &self.vae), &info.vae);
        encoder
            .map(drop)
            .map_err(|e| e.hint("without its encoder, the model can only generate from prompts: fetch the whole VAE"))
    }

    /// Fits the linear map from latents to previews, by running the VAE's encoder on a chart on the CPU.
    ///
    /// Errors if the encoder is missing, or returns no numbers.
    pub(crate) fn preview_map(&self, info: &ModelInfo) -> Result<PreviewMap> {
        let cpu = Cpu::new(Precision::F32);
        let encoder = Encoder::load(&Weights::new(&cpu, &self.vae), &info.vae)?;
        let chart = preview::chart();
        let pixels = cpu.upload_rgb8(&chart.bytes, chart.height, chart.width)?;
        let latents = encoder.forward(Grid::new(pixels, chart.height, chart.width), None, |_| Ok(()))?;
        let (values, channels) = (cpu.download(&latents)?, latents.cols());
        PreviewMap::fit(&values, channels, &chart, info.vae.patch_pixels())
            .ok_or_else(|| Error::new("the latents of the VAE's encoder do not fit its images"))
    }

    /// If `error` says that pixels are not numbers, returns an error that names the damaged weights, or the error that
    /// `given` returns. Other errors are returned unchanged. This reads all weights, which takes too long to do in
    /// advance.
    pub(crate) fn explain(&self, error: Error, given: impl FnOnce(&str) -> Option<Error>) -> Error {
        if error.what() != NOT_NUMBERS {
            return error;
        }
        let all = || self.text_encoder.iter().chain([&self.transformer, &self.vae]);
        let checked = all().try_for_each(TensorFiles::check_finite);
        // Weights can be finite, yet so large that the results are not.
        let by_weights = || {
            let files = all().flat_map(TensorFiles::files).map(|file| (file.largest(), file.path()));
            let largest = files.max_by(|(a, _), (b, _)| a.total_cmp(b));
            largest.map_or(error.clone(), |(_, path)| error.clone().at_path(path))
        };
        checked.err().or_else(|| given(NOT_NUMBERS)).unwrap_or_else(by_weights)
    }
}

impl OpenModel {
    /// Opens a model folder and checks everything except the tokenizer: configs, and the name, shape and dtype of
    /// every tensor.
    ///
    /// Errors name the file and the tensor that are wrong. Reading the tokenizer takes longest by far, so another
    /// thread does it. A damaged tokenizer is an error of [`Model::plan`](crate::pipeline::Model::plan), and of every
    /// call that makes an image.
    pub fn open(dir: &ModelFiles) -> Result<Self> {
        Self::open_parts(dir, true)
    }

    /// [`OpenModel::open`] for requests with [`Embeddings`](crate::pipeline::Embeddings) only: the tokenizer and the
    /// weights of the text encoder are not opened and may be missing.
    ///
    /// Errors as [`OpenModel::open`].
    pub fn open_without_text_encoder(dir: &ModelFiles) -> Result<Self> {
        Self::open_parts(dir, false)
    }

    fn open_parts(dir: &ModelFiles, text: bool) -> Result<Self> {
        let info = &ModelInfo::read(dir)?;
        let tokenizer = if text { LazyTokenizer::read(dir, info) } else { LazyTokenizer::absent() };
        // Loading on the CPU leaves weights in the mapped files, so it checks every tensor and costs nothing.
        let host = &Cpu::new(Precision::F32);
        let (text_encoder, transformer, vae) = scope(|scope| {
            let text_encoder = spawn(scope, move || {
                if !text {
                    return Ok(None);
                }
                let files = text_encoder::open(dir)?;
                TextEncoder::load(&Weights::new(host, &files), info.text_encoder, &info.out_layers)
                    .map_err(|e| info.explain(e))?;
                let note = left_out::text_encoder_note(&files, info.layers_to_run())?;
                Ok(Some((files, note)))
            });
            let transformer = spawn(scope, || {
                let files = transformer::open(dir)?;
                Transformer::load(&Weights::new(host, &files), &info.transformer).map_err(|e| info.explain(e))?;
                let note = left_out::transformer_note(&files)?;
                Ok((files, note))
            });
            let vae = spawn(scope, || {
                let files = vae::open(dir)?;
                Decoder::load(&Weights::new(host, &files), &info.vae).map_err(|e| info.explain(e))?;
                let has_encoder = Encoder::load(&Weights::new(host, &files), &info.vae).is_ok();
                let note = left_out::vae_note(&files, has_encoder)?;
                Ok((files, note))
            });
            (join(text_encoder), join(transformer), join(vae))
        });
        let ((transformer, of_transformer), (vae, of_vae)) = (transformer?, vae?);
        let (text_encoder, of_text_encoder) = text_encoder?.unzip();
        let notes = [of_text_encoder.flatten(), of_transformer, of_vae].into_iter().flatten().collect();
        let files = Files { text_encoder, transformer, vae, preview_decoder: None, tiny_images: false };
        let info = ModelInfo { file_sizes: files.sizes(info), ..info.clone() };
        Ok(Self { info, tokenizer, files, notes })
    }

    /// Returns notes about the weights for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Marks the transformer as trained with cached keys and values of reference images. Such models are distilled. A
    /// model folder that was trained so says it in its index.
    ///
    /// Errors if no model of this kind was trained so.
    pub fn cache_references(&mut self) -> Result<()> {
        let own = self.info.kind.files;
        if own.variant(Variant::Kv).is_none() {
            let what = format!("no {} was trained to compute keys and values of references once", own.name);
            return Err(Error::usage(what).hint("leave out `kv`: references are read with the image"));
        }
        self.info.caches_references = true;
        self.info.mark_distilled();
        Ok(())
    }

    /// Opens a TAEF2 tiny decoder.
    ///
    /// Errors as [`TinyDecoderFile::open`].
    pub fn preview_decoder(&self, path: &Path) -> Result<TinyDecoderFile> {
        TinyDecoderFile::open(path, &Cpu::new(Precision::F32))
    }

    /// Makes previews with a tiny decoder instead of the linear map.
    ///
    /// Errors if the decoder belongs to another model.
    pub fn attach_preview_decoder(&mut self, file: TinyDecoderFile) -> Result<()> {
        file.expect_latents(self.info.vae.latent_channels)?;
        self.info.preview_decoder = Some(file.sizes());
        self.files.preview_decoder = Some(file);
        Ok(())
    }

    /// Makes the attached tiny decoder decode the final images too. They are ready sooner than with the VAE's decoder,
    /// and differ from its images.
    pub fn decode_by_preview_decoder(&mut self) {
        self.files.tiny_images = true;
    }

    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        let weights = self.files.transformer.files().first().map(Container::path);
        self.info.adapter_near(path, weights)
    }

    /// Loads the transformer's quantized weights from the quantized cache: a file in the model's `folder` that holds
    /// them in e4m3. The file has half the bytes of bf16, and nothing is left to quantize. It is written if it is
    /// missing or was made from other weights. Images in fp8 are the same with and without it; other precisions do not
    /// read it.
    ///
    /// Errors if the file is damaged, the weights cannot be read, or `cancel` is set while the file is written, which
    /// leaves no file. Failing to write the file is no error.
    pub fn attach_quantized_cache(
        &mut self,
        folder: &Path,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<QuantizedCache> {
        let caller = Caller::new(report, cancel);
        quantized_cache::attach(folder, &mut self.files.transformer, WeightPolicy::may_quantize, &mut |done, total| {
            caller.report(Stage::Quantize, done, total);
            caller.check()
        })
    }
}

impl ModelInfo {
    /// Opens an adapter for this model.
    ///
    /// Errors as [`Adapter::open`].
    pub fn adapter(&self, path: &Path) -> Result<Arc<Adapter>> {
        self.adapter_near(path, None)
    }

    /// [`ModelInfo::adapter`] for a model whose transformer is the file `weights`.
    pub(crate) fn adapter_near(&self, path: &Path, weights: Option<&Path>) -> Result<Arc<Adapter>> {
        let others = weights.map(adapter::folders_near).unwrap_or_default();
        Adapter::open_near(path, &self.transformer.adapter_modules()?, &others).map(Arc::new)
    }
}

/// The error for a prompt if the model was opened without its text encoder.
pub(crate) fn no_text_encoder() -> Error {
    Error::new("the model was opened without its text encoder, so it cannot read prompts")
        .hint("open it with the text encoder, or pass text features")
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T>>> {
    thread::Builder::new().spawn_scoped(scope, work).map_err(|e| Error::no_thread(&e))
}

fn join<T>(thread: Result<ScopedJoinHandle<'_, Result<T>>>) -> Result<T> {
    thread?.join().unwrap_or_else(|_| Err(Error::new("a thread that reads the model panicked")))
}
