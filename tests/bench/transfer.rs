//! Weights: files to bench with, and how fast they go up.

use std::time::Instant;

use flux::backend::Backend;
use flux::backend::cuda::Cuda;
use flux::model_dir::ModelDir;
use flux::tensor::Tensor;
use flux::weights::WeightFiles;
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::Bench;
use crate::ops::values;

/// A weight of `rows * cols` values in a file, in the shapes of a matrix and of a convolution.
pub struct WeightFile {
    folder: tempfile::TempDir,
    rows: usize,
    cols: usize,
}

pub fn weight_file(rows: usize, cols: usize) -> WeightFile {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    std::fs::create_dir(folder.path().join("w")).expect("the temporary folder is writable");
    WeightFile { folder, rows, cols }
}

impl WeightFile {
    fn open(&self, shape: &[usize]) -> WeightFiles {
        // A small factor, so that products of thousands of terms stay in range.
        let bytes: Vec<u8> = values(self.rows * self.cols).iter().flat_map(|v| bf16::from_f32(v / 32.0).to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::BF16, shape.to_vec(), &bytes).expect("the shape fits");
        safetensors::serialize_to_file([("w", tensor)], None, &self.folder.path().join("w/w.safetensors")).expect("there is room for the file");
        WeightFiles::open(&ModelDir::Folder(self.folder.path().to_path_buf()), "w", "w").expect("written above")
    }

    pub fn matrix(&self, cuda: &Cuda) -> Tensor<Cuda> {
        let shape = [self.rows, self.cols];
        cuda.weight(&[self.open(&shape).get("w", &shape).expect("written above")]).expect("there is room")
    }

    pub fn narrow(&self, cuda: &Cuda) -> Tensor<Cuda> {
        let shape = [self.rows, self.cols];
        cuda.narrow_weight(&[self.open(&shape).get("w", &shape).expect("written above")]).expect("there is room")
    }

    pub fn conv(&self, cuda: &Cuda, kernel: usize) -> Tensor<Cuda> {
        let shape = [self.rows, self.cols / (kernel * kernel), kernel, kernel];
        cuda.conv_weight(&self.open(&shape).get("w", &shape).expect("written above")).expect("there is room")
    }
}

/// A warm file of 680 MB, four times over.
pub fn weights(bench: &mut Bench) {
    if !bench.wants("upload") {
        return;
    }
    let shape = [4 * 27648, 3072];
    let view = weight_file(shape[0], shape[1]).open(&shape).get("w", &shape).expect("written above");
    for run in 0..4 {
        let start = Instant::now();
        let weight = bench.cuda.weight(std::slice::from_ref(&view)).expect("there is room");
        let mark = bench.cuda.mark().expect("the device works");
        bench.cuda.wait(&mark).expect("the device works");
        let seconds = start.elapsed().as_secs_f64();
        drop(weight);
        println!("upload of a mapped weight, run {run}: {:.1} ms, {:.1} GB/s", seconds * 1e3, view.bytes().len() as f64 / seconds / 1e9);
    }
}
