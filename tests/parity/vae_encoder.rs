//! The VAE encoder of the default model, on both devices.

use std::sync::Arc;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::cuda::{Cuda, Graph};
use flux::backend::{Backend, Device, Memory, Participants};
use flux::model::ModelInfo;
use flux::nn::Weights;
use flux::vae::{self, Encoder, Grid};

use crate::compare::compare;
use crate::pipeline::default_model;

/// Maximum distance of latents in roundings: those of some thirty layers add up. For the same images the reference in
/// bf16 is up to 5.3 from itself in float32.
const ROUNDINGS: f32 = 8.0;

fn encoder<B: Backend>(b: &B) -> Encoder<B> {
    let dir = default_model();
    let files = vae::open(&dir).unwrap();
    Encoder::load(&Weights::new(b, &files), &ModelInfo::read(&dir).unwrap().vae).unwrap()
}

/// An image with edges and slopes.
fn rgb(height: usize, width: usize) -> Vec<u8> {
    let pixel = |y: usize, x: usize| {
        let inside = (y / 20 + x / 30).is_multiple_of(2);
        if inside { [200, (y % 256) as u8, 40] } else { [30, 90, (2 * x % 256) as u8] }
    };
    (0..height * width).flat_map(|i| pixel(i / width, i % width)).collect()
}

fn encode<B: Backend>(b: &B, [height, width]: [usize; 2]) -> Vec<f32> {
    let pixels = b.upload_rgb8(&rgb(height, width), height, width).unwrap();
    b.download(&encoder(b).forward(Grid::new(pixels, height, width), None, |_| Ok(())).unwrap()).unwrap()
}

#[test]
fn latents_are_near_those_of_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let sizes = [[16, 16], [80, 48], [256, 256], [208, 336]];
    for size in if crate::small() { &sizes[..2] } else { &sizes[..] } {
        let expected = encode(&Cpu::new(Precision::F32), *size);
        compare(&format!("latents of {size:?}"), &encode(&cuda, *size), &expected, ROUNDINGS);
    }
}

/// An image of several bands; a limit that no image reaches is the same as none.
#[test]
fn bands_change_no_latent() {
    let Some(cuda) = crate::cuda() else { return };
    let run = |limit: usize| {
        cuda.limit_bands(limit);
        encode(&cuda, [112, 80])
    };
    assert!(run(0) == run(usize::MAX));
}

#[test]
fn a_captured_encoder_makes_the_same_latents() {
    let Some(cuda) = crate::cuda() else { return };
    let (height, width) = (64, 96);
    let reads = Arc::new(encoder(&cuda));
    let pixels = cuda.upload_rgb8(&rgb(height, width), height, width).unwrap();
    let forward = |encoder: &Encoder<Cuda>, [x]: [&flux::Tensor<Cuda>; 1]| {
        encoder.forward(Grid::new(x.row_view(0..x.rows()), height, width), None, |_| Ok(()))
    };
    let direct = cuda.download(&forward(&reads, [&pixels]).unwrap()).unwrap();
    let mut graph = Graph::default();
    for run in 0..3 {
        let latents = cuda.run_graph(&mut graph, Participants::One, &reads, [&pixels], forward).unwrap();
        assert!(cuda.download(&latents).unwrap() == direct, "run {run}");
    }
    assert_eq!(cuda.stats().uncaptured, 0);
    assert!(cuda.stats().graph_launches > 0);
}
