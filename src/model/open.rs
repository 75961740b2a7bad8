//! A model that is opened and checked before any device is needed.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread::{self, Scope, ScopedJoinHandle, scope};

use crate::backend::cpu::{Cpu, Precision};
use crate::backend::{Memory, NOT_NUMBERS};
use crate::error::{Error, Result};
use crate::files::adapter::{self, Adapter};
use crate::files::quantised_cache::{self, QuantisedCache};
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

/// What a [`Model`](crate::pipeline::Model) is made of: the checked configs and mapped weights, and the tokenizer,
/// which another thread still reads.
pub struct OpenModel {
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: LazyTokenizer,
    pub(crate) files: Files,
    notes: Vec<String>,
}

/// The tokenizer that another thread reads. The first call of [`LazyTokenizer::get`] waits for it.
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

    /// None, in a model that is opened without its text encoder.
    fn absent() -> Self {
        Self(LazyLock::new(Box::new(|| Err(no_text_encoder()))))
    }

    /// Errors as [`Tokenizer::load`].
    pub(crate) fn get(&self) -> Result<&Tokenizer> {
        self.0.as_ref().map_err(Error::clone)
    }
}

pub(crate) struct Files {
    /// None where the model was opened without it.
    pub(crate) text_encoder: Option<TensorFiles>,
    pub(crate) transformer: TensorFiles,
    pub(crate) vae: TensorFiles,
    /// What shows the steps, where it was attached.
    pub(crate) preview_decoder: Option<TinyDecoderFile>,
    /// Whether it also makes the images, in place of the VAE's decoder.
    pub(crate) tiny_images: bool,
}

impl Files {
    /// What weights take that stay in the formats of these files.
    pub(crate) fn sizes(&self, info: &ModelInfo) -> [FileSizes; 2] {
        let of_text = self.text_encoder.as_ref().map(|files| FileSizes::of_text_encoder(files, info.layers_to_run()));
        [of_text.unwrap_or_default(), FileSizes::of_transformer(&self.transformer, &info.transformer)]
    }

    /// Errors when the VAE's encoder is not there, or not as the config says. Only images that are given need it, so it
    /// is not checked when the model is opened.
    pub(crate) fn check_encoder(&self, info: &ModelInfo) -> Result<()> {
        let encoder = Encoder::load(&Weights::new(&Cpu::new(Precision::F32), &self.vae), &info.vae);
        encoder
            .map(drop)
            .map_err(|e| e.hint("without its encoder the model draws from words alone: fetch the VAE as a whole"))
    }

    /// The map from latents to small images, which the VAE's encoder is asked for on the CPU.
    ///
    /// Errors when the encoder is not there, or gives no numbers.
    pub(crate) fn preview_map(&self, info: &ModelInfo) -> Result<PreviewMap> {
        let cpu = Cpu::new(Precision::F32);
        let encoder = Encoder::load(&Weights::new(&cpu, &self.vae), &info.vae)?;
        let chart = preview::chart();
        let pixels = cpu.upload_rgb8(&chart.bytes, chart.height, chart.width)?;
        let latents = encoder.forward(Grid::new(pixels, chart.height, chart.width), None, |_| Ok(()))?;
        let (values, channels) = (cpu.download(&latents)?, latents.cols());
        PreviewMap::fit(&values, channels, &chart, info.vae.patch_pixels())
            .ok_or_else(|| Error::new("the VAE's encoder gives no latents that fit its images"))
    }

    /// The error that names the damaged weights where `error` says that pixels are not numbers, or what `given`
    /// makes of it; any other as it is. This reads all weights, which takes too long to do it before.
    pub(crate) fn explain(&self, error: Error, given: impl FnOnce(&str) -> Option<Error>) -> Error {
        if error.what() != NOT_NUMBERS {
            return error;
        }
        let all = || self.text_encoder.iter().chain([&self.transformer, &self.vae]);
        let checked = all().try_for_each(TensorFiles::check_finite);
        // Finite weights may be so large that what is computed with them is not.
        let by_weights = || {
            let files = all().flat_map(TensorFiles::files).map(|file| (file.largest(), file.path()));
            let largest = files.max_by(|(a, _), (b, _)| a.total_cmp(b));
            largest.map_or(error.clone(), |(_, path)| error.clone().at_path(path))
        };
        checked.err().or_else(|| given(NOT_NUMBERS)).unwrap_or_else(by_weights)
    }
}

impl OpenModel {
    /// Opens a model folder and checks all of it but the tokenizer: configs, and the name, shape and dtype of every
    /// tensor.
    ///
    /// Errors say which file and tensor is wrong. Reading the tokenizer takes longest by far, so another thread does
    /// it. A damaged tokenizer is an error of [`Model::plan`](crate::pipeline::Model::plan), and of everything that
    /// makes an image.
    pub fn open(dir: &ModelFiles) -> Result<Self> {
        Self::open_parts(dir, true)
    }

    /// [`OpenModel::open`] for requests with [`Embeddings`](crate::pipeline::Embeddings) only: neither the tokenizer
    /// nor the weights of the text encoder are opened, nor need they be there.
    ///
    /// Errors as it does.
    pub fn open_without_text_encoder(dir: &ModelFiles) -> Result<Self> {
        Self::open_parts(dir, false)
    }

    fn open_parts(dir: &ModelFiles, text: bool) -> Result<Self> {
        let info = &ModelInfo::read(dir)?;
        let tokenizer = if text { LazyTokenizer::read(dir, info) } else { LazyTokenizer::absent() };
        // On the CPU weights stay in the mapped files, so loading them there checks every tensor and costs nothing.
        let host = &Cpu::new(Precision::F32);
        let (text_encoder, transformer, vae) = scope(|scope| {
            let text_encoder = spawn(scope, move || {
                if !text {
                    return Ok(None);
                }
                let files = text_encoder::open(dir)?;
                TextEncoder::load(&Weights::new(host, &files), info.text_encoder, &info.out_layers)
                    .map_err(|e| info.explain(e))?;
                let note = left_out::of_text_encoder(&files, info.layers_to_run())?;
                Ok(Some((files, note)))
            });
            let transformer = spawn(scope, || {
                let files = transformer::open(dir)?;
                Transformer::load(&Weights::new(host, &files), &info.transformer).map_err(|e| info.explain(e))?;
                let note = left_out::of_transformer(&files)?;
                Ok((files, note))
            });
            let vae = spawn(scope, || {
                let files = vae::open(dir)?;
                Decoder::load(&Weights::new(host, &files), &info.vae).map_err(|e| info.explain(e))?;
                let has_encoder = Encoder::load(&Weights::new(host, &files), &info.vae).is_ok();
                let note = left_out::of_vae(&files, has_encoder)?;
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

    /// What someone should know about its weights.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Says that the transformer was trained so that keys and values of reference images are made once, for all steps;
    /// such models are distilled. A folder of such a model says so itself.
    ///
    /// Errors when no model of its kind was trained so.
    pub fn cache_references(&mut self) -> Result<()> {
        let own = self.info.kind.files;
        if own.variant(Variant::Kv).is_none() {
            let what = format!("no {} was trained so that keys and values of references are made once", own.name);
            return Err(Error::usage(what).hint("leave out `kv`: references are read with the image"));
        }
        self.info.caches_references = true;
        self.info.mark_distilled();
        Ok(())
    }

    /// Opens a file of a tiny decoder, TAEF2.
    ///
    /// Errors as [`TinyDecoderFile::open`].
    pub fn preview_decoder(&self, path: &Path) -> Result<TinyDecoderFile> {
        TinyDecoderFile::open(path, &Cpu::new(Precision::F32))
    }

    /// Shows steps by a tiny decoder in place of a linear map.
    ///
    /// Errors when it is one of another model.
    pub fn attach_preview_decoder(&mut self, file: TinyDecoderFile) -> Result<()> {
        file.expect_latents(self.info.vae.latent_channels)?;
        self.info.preview_decoder = Some(file.sizes());
        self.files.preview_decoder = Some(file);
        Ok(())
    }

    /// Has the tiny decoder that was attached make the images too: sooner than the VAE's decoder, and others.
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

    /// Loads the transformer's quantised weights from the quantised cache: a file in `folder`, the model's, which holds
    /// them in e4m3. That is half the bytes of bf16, and nothing is left to quantise. The file is written when it is
    /// missing or was made from other weights. An image in fp8 is the same with and without it; other precisions do not
    /// read it.
    ///
    /// Errors when the file is damaged, the weights cannot be read, or `cancel` is set while the file is written, which
    /// leaves no file. A file that cannot be written is no error.
    pub fn attach_quantised_cache(
        &mut self,
        folder: &Path,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<QuantisedCache> {
        let caller = Caller::new(report, cancel);
        quantised_cache::attach(folder, &mut self.files.transformer, WeightPolicy::may_quantise, &mut |done, total| {
            caller.report(Stage::Quantise, done, total);
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

    /// The same, for a model whose transformer is the file `weights`.
    pub(crate) fn adapter_near(&self, path: &Path, weights: Option<&Path>) -> Result<Arc<Adapter>> {
        let others = weights.map(adapter::folders_near).unwrap_or_default();
        Adapter::open_near(path, &self.transformer.adapter_modules(), &others).map(Arc::new)
    }
}

/// The error of a prompt for a model that was opened without its text encoder.
pub(crate) fn no_text_encoder() -> Error {
    Error::new("the model was opened without its text encoder, which a prompt needs")
        .hint("open it with the text encoder, or give text features")
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
