//! The sources of cases: valid models, files and images.

use std::fs;
use std::path::{Path, PathBuf};

use flux::files::{ModelFiles, Role};
use flux::metadata::Metadata;
use flux::model::{ModelInfo, OpenModel};
use flux::output::{ImageFormat, Rgb, encode};
use flux::stage::CancelFlag;

use super::folder;
use super::formats::{self, Quantized};
use super::inputs::Shared;
use super::support::random_model::{RandomModel, TextEncoder, Transformer, Vae};
use super::tensors::{Tensor, TensorFile};

/// Tokens of the embeddings.
const TOKENS: usize = 8;

/// Paths of the sources, which must not change.
pub struct Sources {
    /// The program.
    pub program: PathBuf,
    /// Folders of small valid models, one of them with a quantized cache.
    pub models: Vec<PathBuf>,
    /// The smallest of them.
    pub small: PathBuf,
    /// Images that can be read and edited.
    pub images: Vec<PathBuf>,
    /// Images of every readable kind, most of them too small to be edited.
    pub corpus: Vec<Vec<u8>>,
    /// Components of the smallest model in every format.
    pub quantized: Vec<Quantized>,
    /// Tensors for the smallest image of the smallest model.
    pub noise: PathBuf,
    pub embeddings: PathBuf,
    files: Vec<PathBuf>,
    shared: Shared,
}

/// The smallest model whose text encoder has rows of whole blocks in every format.
fn small() -> RandomModel {
    let tiny = RandomModel::tiny();
    let transformer = Transformer { double_blocks: 1, single_blocks: 1, heads: 2, mlp_ratio: 2.0, ..tiny.transformer };
    let text_encoder = TextEncoder {
        layers: 4,
        hidden: 256,
        mlp: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        vocab: 288,
        ..tiny.text_encoder
    };
    let vae = Vae { block_out_channels: [8, 16, 16, 16], ..tiny.vae };
    RandomModel { transformer, text_encoder, vae, max_sequence_length: Some(32), ..tiny }
}

impl Sources {
    /// Writes the sources into a folder.
    pub fn write(folder: &Path, program: PathBuf) -> Self {
        let models = [
            ("small", small()),
            ("tiny", RandomModel::tiny()),
            ("sharded", RandomModel::sharded()),
            ("base", RandomModel::base()),
        ];
        let models: Vec<PathBuf> = models
            .into_iter()
            .map(|(name, model)| {
                let path = folder.join(name);
                model.write(&path).expect("a temporary folder is writable");
                attach(&path).expect("a model without fault");
                write_adapter(&path);
                path
            })
            .collect();
        let small = models[0].clone();
        let info = ModelInfo::read(&ModelFiles::open(&small).expect("written above")).expect("written above");
        let (noise, embeddings) = (folder.join("noise.safetensors"), folder.join("embeddings.safetensors"));
        write_tensor(&noise, "latents", &[1, 4 * info.vae.latent_channels, 2, 2]);
        write_tensor(&embeddings, "prompt_embeds", &[1, TOKENS, 3 * info.text_encoder.hidden_size]);
        let formats = folder.join("formats");
        fs::create_dir(&formats).expect("a temporary folder is writable");
        let quantized = formats::write_all(&formats, &small);
        let images = write_images(folder);
        let files = folder::files(folder);
        let root = &crate::program::project("");
        let shared = Shared::new(&files);
        let corpus = corpus(&root.join("tests/input/images.json"));
        Self { program, models, small, images, corpus, quantized, noise, embeddings, files, shared }
    }

    /// Returns the sources that were changed since they were written.
    pub fn changed(&self) -> Vec<PathBuf> {
        self.shared.changed(&Shared::new(&self.files))
    }

    /// Returns the weights of a component of the smallest model.
    pub fn weights(&self, role: Role) -> PathBuf {
        weights(&self.small, role)
    }
}

/// Returns the only weights file of a component of a model.
pub fn weights(model: &Path, role: Role) -> PathBuf {
    match role {
        Role::Transformer => model.join("transformer/diffusion_pytorch_model.safetensors"),
        Role::TextEncoder => model.join("text_encoder/model.safetensors"),
        Role::Vae => model.join("vae/diffusion_pytorch_model.safetensors"),
    }
}

/// Adds the quantized cache to a model's folder.
pub fn attach(model: &Path) -> flux::Result<()> {
    let files = ModelFiles::open(model)?;
    let mut open = OpenModel::open(&files)?;
    open.attach_quantized_cache(model, &CancelFlag::default(), &mut |_| {}).map(drop)
}

/// Returns the adapter that belongs to the folder of a model.
pub fn adapter_of(model: &Path) -> PathBuf {
    model.with_extension("adapter.safetensors")
}

fn write_tensor(path: &Path, name: &str, shape: &[usize]) {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i * 7919 % 1013) as f32 / 506.0 - 1.0).collect();
    TensorFile { tensors: vec![Tensor::f32(name, shape, &values)], ..TensorFile::default() }.write(path);
}

/// Writes an image in every format, as small as a reference image may be.
fn write_images(folder: &Path) -> Vec<PathBuf> {
    let image = Rgb { width: 70, height: 64, bytes: (0..70 * 64 * 3).map(|i| (i * 7 % 251) as u8).collect() };
    let metadata = Metadata { texts: vec![("prompt", "a red circle".to_string())], ..Metadata::default() };
    let images = [(ImageFormat::Png, "png"), (ImageFormat::Jpeg, "jpg"), (ImageFormat::Webp, "webp")];
    let images = images.map(|(format, extension)| {
        let path = folder.join(format!("image.{extension}"));
        fs::write(&path, encode(&image, format, &metadata).expect("a small image")).expect("a temporary folder");
        path
    });
    images.into()
}

/// Reads the files of the images that are compared with the reference.
fn corpus(list: &Path) -> Vec<Vec<u8>> {
    let list: serde_json::Value = serde_json::from_slice(&fs::read(list).expect("a golden file")).expect("JSON");
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal")).collect()
    };
    let images = list.as_array().expect("a list").iter();
    images.map(|image| hex(image["file"].as_str().expect("a file in hexadecimal"))).collect()
}

/// Writes an adapter with tensors of every kind.
fn write_adapter(model: &Path) {
    let dir = ModelFiles::open(model).expect("written above");
    let dim = ModelInfo::read(&dir).expect("written above").transformer.dim();
    let block = "transformer_blocks.0.attn";
    let shapes: [(String, Vec<usize>); 12] = [
        (format!("{block}.to_q.lora_A.weight"), vec![2, dim]),
        (format!("{block}.to_q.lora_B.weight"), vec![dim, 2]),
        (format!("{block}.to_q.alpha"), vec![]),
        (format!("{block}.to_q.dora_scale"), vec![dim, 1]),
        (format!("{block}.to_k.lokr_w1"), vec![2, 2]),
        (format!("{block}.to_k.lokr_w2_a"), vec![dim / 2, 2]),
        (format!("{block}.to_k.lokr_w2_b"), vec![2, dim / 2]),
        (format!("{block}.to_v.hada_w1_a"), vec![dim, 2]),
        (format!("{block}.to_v.hada_w1_b"), vec![2, dim]),
        (format!("{block}.to_v.hada_w2_a"), vec![dim, 2]),
        (format!("{block}.to_v.hada_w2_b"), vec![2, dim]),
        (format!("{block}.to_out.0.set_weight"), vec![dim, dim]),
    ];
    let values: Vec<f32> = (0..dim * dim).map(|i| (i % 251) as f32 / 2510.0).collect();
    let tensor = |(name, shape): (String, Vec<usize>)| Tensor::f32(name, &shape, &values[..shape.iter().product()]);
    let metadata = r#"{"transformer.r": 2, "transformer.lora_alpha": 1}"#;
    let metadata = [("lora_adapter_metadata".to_string(), metadata.into())].into_iter().collect();
    let path = adapter_of(model);
    TensorFile { metadata, tensors: shapes.into_iter().map(tensor).collect() }.write(&path);
    let opened = ModelInfo::read(&dir).and_then(|info| info.adapter(&path));
    opened.expect("an adapter without fault");
}
