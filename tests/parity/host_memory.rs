//! Encoder and decoder with large activations in host memory, against the same in device memory.

use flux::backend::cuda::{Cuda, GemmCache, Precision};
use flux::backend::{Bands, Device, GEMM_WORKSPACE_BYTES, Memory};
use flux::files::ModelFiles;
use flux::memory;
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::pipeline::{Model, Request};
use flux::vae::{self, Decoder, Encoder, Grid};
use flux::{Result, Tensor};

use crate::compare::values;
use crate::support::random_model::RandomModel;

/// Channels of klein's VAE, and a side of 4096 pixels in packed latents.
const KLEIN: [usize; 4] = [128, 256, 512, 512];
const LARGE: usize = 256;
const GIB: u64 = 1 << 30;

/// A random model whose VAE has these channels.
struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new(channels: [usize; 4], groups: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut model = RandomModel::tiny();
        (model.vae.block_out_channels, model.vae.norm_num_groups) = (channels, groups);
        model.vae.layers_per_block = 2;
        model.write(folder.path()).unwrap();
        Self { folder }
    }

    fn files(&self) -> ModelFiles {
        ModelFiles::open(self.folder.path()).unwrap()
    }

    fn info(&self) -> ModelInfo {
        ModelInfo::read(&self.files()).unwrap()
    }

    fn decoder(&self, cuda: &Cuda) -> Decoder<Cuda> {
        let files = vae::open(&self.files()).unwrap();
        Decoder::load(&Weights::new(cuda, &files), &self.info().vae).unwrap()
    }

    fn encoder(&self, cuda: &Cuda) -> Encoder<Cuda> {
        let files = vae::open(&self.files()).unwrap();
        Encoder::load(&Weights::new(cuda, &files), &self.info().vae).unwrap()
    }
}

fn decode(cuda: &Cuda, decoder: &Decoder<Cuda>, [height, width]: [usize; 2]) -> Result<Tensor<Cuda>> {
    let latents = cuda.upload(&values(1, height * width * 128), height * width, 128)?;
    let pixels = decoder.forward(decoder.unpack(&latents, height, width, None)?, |_| Ok(()))?.pixels;
    Tensor::concat_rows(&[&pixels])
}

fn encode(cuda: &Cuda, encoder: &Encoder<Cuda>, [height, width]: [usize; 2]) -> Result<Tensor<Cuda>> {
    let bytes: Vec<u8> = (0..height * width * 768).map(|i| (i * 7919 % 251) as u8).collect();
    let pixels = cuda.upload_rgb8(&bytes, 16 * height, 16 * width)?;
    encoder.forward(Grid::new(pixels, 16 * height, 16 * width), None, |_| Ok(()))
}

#[test]
fn images_in_host_memory_are_the_same_images() {
    let Some(cuda) = crate::cuda() else { return };
    let sizes = [[1, 1], [3, 2], [5, 9], [13, 4]];
    // Multiplied by im2col, by gathered taps, and by the kernels of Hopper.
    for (channels, groups) in [([24, 40, 40, 40], 8), ([32, 64, 64, 96], 32), (KLEIN, 32)] {
        let case = Case::new(channels, groups);
        let (decoder, encoder) = (case.decoder(&cuda), case.encoder(&cuda));
        for size in if crate::small() { &sizes[..2] } else { &sizes[..] } {
            let run = |max_resident: u64, band_bytes: usize| {
                cuda.limit_bands(band_bytes);
                let both = || [decode(&cuda, &decoder, *size).unwrap(), encode(&cuda, &encoder, *size).unwrap()];
                cuda.with_max_resident(max_resident, both).map(|made| cuda.download(&made).unwrap())
            };
            let whole = run(u64::MAX, usize::MAX);
            assert!(whole.iter().flatten().any(|value| *value != 0.0));
            // All images in bands of 16 rows and of more, and as a whole; and only the larger ones.
            for (max_resident, band_bytes) in [(0, 0), (0, 1 << 18), (0, usize::MAX), (1 << 18, 0)] {
                let banded = run(max_resident, band_bytes);
                for (what, banded, whole) in [("decoded", &banded[0], &whole[0]), ("encoded", &banded[1], &whole[1])] {
                    let differing = banded.iter().zip(whole).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                    assert_eq!(differing, 0, "{what} {size:?}, {channels:?}, {max_resident}, {band_bytes}");
                }
            }
        }
    }
}

/// Returns `true` if GPU and host have the memory for an image of 4096 x 4096 pixels.
fn has_room(cuda: &Cuda, gib: u64) -> bool {
    let (device, host) = (cuda.available_bytes(), memory::available_bytes());
    let has_room = !crate::small() && device >= gib * GIB && host >= 16 * GIB;
    if !has_room {
        println!("skipped: a large image, with {} and {} GiB free", device / GIB, host / GIB);
    }
    has_room
}

#[test]
fn a_large_image_takes_the_planned_memory() {
    let Some(cuda) = crate::cuda().filter(|cuda| has_room(cuda, 16)) else { return };
    let case = Case::new(KLEIN, 32);
    let decoder = case.decoder(&cuda);
    let planned = case.info().memory_sizes(&cuda.costs(), Some([16 * LARGE; 2])).unwrap().decode;
    // The library's workspace, statistics, and the pixels and their copy for the test.
    let few = GEMM_WORKSPACE_BYTES as u64 + (512 << 20);
    let before = cuda.stats().memory_bytes;
    cuda.use_bands(Bands::Host);
    let banded = cuda.with_max_resident(Bands::Host.max_resident(), || decode(&cuda, &decoder, [LARGE; 2])).unwrap();
    let banded = cuda.download(&banded).unwrap();
    let took = cuda.stats().peak_memory_bytes - before;
    println!("{} MiB on the GPU, {} planned", took >> 20, planned.host >> 20);
    assert!(took <= planned.host + few, "{took} of {}", planned.host);
    let whole = cuda.download(&decode(&cuda, &decoder, [LARGE; 2]).unwrap()).unwrap();
    assert!(banded == whole, "host memory changed the image");
    assert!(cuda.stats().peak_memory_bytes - before > 3 * planned.host, "the whole image takes more");
}

#[test]
fn a_model_within_little_memory_makes_the_same_large_image() {
    let Some(cuda) = crate::cuda().filter(|cuda| has_room(cuda, 20)) else { return };
    drop(cuda);
    let case = Case::new(KLEIN, 32);
    let side = Some(16 * LARGE);
    let request = Request { width: side, height: side, steps: Some(1), ..Request::new("a ghost", 1) };
    let image = |gib: u64| {
        let cuda = Cuda::with(0, Some(gib * GIB), Precision::Bf16, &GemmCache::Off).unwrap();
        let model = Model::load(cuda, &case.files()).unwrap();
        let plan = model.memory_plan(&model.plan(&request).unwrap()).unwrap();
        (plan.bands, plan.host, model.generate(&request).unwrap().rgb)
    };
    let (large, small) = (image(20), image(4));
    assert_eq!((large.1, small.0), (0, Bands::Host));
    assert!(small.1 > 0 && small.2 == large.2, "little memory changed the image");
}
