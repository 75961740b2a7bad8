//! FLUX.3 in all uses of models. golden/flux3.rs compares its results with the reference.

mod adapters;
mod batches;
mod early;
mod files;
mod guidance;
mod program;
mod refused;

use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::files::ModelFiles;
use flux::input;
use flux::pipeline::{Model, Request};
use flux::rgb::Rgb;

use crate::golden::flux3::{model_folder, picture};
use crate::support::{assert_near, load};

const TRANSFORMER: &str = "transformer/diffusion_pytorch_model.safetensors";

fn distilled() -> Arc<Model<Cpu>> {
    load(&ModelFiles::open(&model_folder()).unwrap())
}

fn small(prompt: &str, seed: u64) -> Request {
    Request { width: Some(64), height: Some(48), steps: Some(2), ..Request::new(prompt, seed) }
}

fn pixels(model: &Arc<Model<Cpu>>, request: &Request) -> Vec<u8> {
    model.generate(request).unwrap().rgb
}

fn reference(width: usize, height: usize) -> Arc<Rgb> {
    Arc::new(input::reference(&picture(width, height)).unwrap())
}

/// Returns a prompt with more tokens than one window.
fn long() -> String {
    "a very long caption of a picture ".repeat(6)
}
