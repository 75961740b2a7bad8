//! A tiny decoder of TAEF2's sizes with random weights, on both devices, and its speed.

use std::time::Instant;

use flux::backend::cpu::{Cpu, Precision};
use flux::backend::{Backend, Memory};
use flux::nn::Weights;
use flux::tensor::Tensor;
use flux::vae::{TinyDecoder, TinyDecoderFile};
use safetensors::tensor::Dtype;

use crate::compare::{compare, values};
use crate::tiny_decoder::{TinyDecoder as RandomDecoder, diffusers_name};

/// Channels of the latents of klein models, and of TAEF2.
const LATENTS: usize = 32;
const CHANNELS: usize = 64;
/// Maximum distance of pixels in roundings: those of 36 layers add up.
const ROUNDINGS: f32 = 16.0;

fn open() -> TinyDecoderFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taef2.safetensors");
    RandomDecoder::random(LATENTS, CHANNELS).write(&path, Dtype::F16, diffusers_name);
    TinyDecoderFile::open(&path, &Cpu::new(Precision::F32)).unwrap()
}

fn load<B: Backend>(b: &B, file: &TinyDecoderFile) -> TinyDecoder<B> {
    TinyDecoder::load(&file.weights(Weights::new(b, file.files())), &file.sizes()).unwrap()
}

fn packed<B: Backend>(b: &B, latents: &[f32]) -> Tensor<B> {
    b.upload(latents, latents.len() / (4 * LATENTS), 4 * LATENTS).unwrap()
}

#[test]
fn previews_are_near_those_of_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    let (file, cpu) = (open(), Cpu::new(Precision::F32));
    let (here, there) = (load(&cpu, &file), load(&cuda, &file));
    let sizes = [[1, 1], [2, 3], [5, 7], [16, 16], [13, 21]];
    for size in if crate::small() { &sizes[..3] } else { &sizes[..] } {
        let latents = values(1, size[0] * size[1] * 4 * LATENTS);
        let forward_here = here.forward(packed(&cpu, &latents), *size).unwrap();
        let forward_there = there.forward(packed(&cuda, &latents), *size).unwrap();
        let expected = cpu.download(&forward_here.pixels).unwrap();
        let got = cuda.download(&forward_there.pixels).unwrap();
        compare(&format!("a preview of {size:?}"), &got, &expected, ROUNDINGS);
    }
}

#[test]
fn a_preview_of_a_large_image_takes_few_milliseconds() {
    let Some(cuda) = crate::cuda() else { return };
    if crate::small() {
        return;
    }
    let decoder = load(&cuda, &open());
    let latents = packed(&cuda, &values(1, 64 * 64 * 4 * LATENTS));
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..25 {
        let began = Instant::now();
        let pixels = decoder.forward(latents.row_view(0..64 * 64), [64, 64]).unwrap();
        cuda.take_rgb8(cuda.rgb8(&pixels.pixels).unwrap()).unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    // The first runs load kernels.
    let times = &mut times[5..];
    times.sort_by(f64::total_cmp);
    let [least, median, most] = [0, times.len() / 2, times.len() - 1].map(|place| times[place]);
    println!("a preview of 1024 x 1024: {median:.2} ms [{least:.2} .. {most:.2}], from latents to bytes on the host");
    assert!(median < 50.0, "{times:?}");
}
