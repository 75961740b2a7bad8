//! Layers with low-rank factors: merged on the device and unmerged, against the CPU in float32.

use std::sync::Arc;

use flux::backend::cuda::Cuda;
use flux::backend::{Backend, Device, Storage, WeightStore};
use flux::files::adapter::{Adapter, AdapterUse};
use flux::nn::{Linear, LowRank};
use flux::pipeline::{Model, Placement, Request};
use flux::tensor::Tensor;
use safetensors::tensor::{Dtype, TensorView};

use crate::compare::{Case, Shape, Weight, check_against, compare};
use crate::pipeline::{default_model, psnr};

/// Rows, columns and rank: multiples of tiles, and sizes with no common divisor.
const SIZES: [[usize; 3]; 7] =
    [[64, 128, 8], [7, 24, 5], [33, 27, 3], [96, 40, 13], [3, 5, 1], [129, 9, 2], [384, 256, 96]];

/// A weight [rows, cols] and the factors of its change.
struct Adapted {
    base: Weight,
    down: Weight,
    up: Weight,
}

impl Adapted {
    fn seeded([rows, cols, rank]: [usize; 3]) -> Self {
        let [base, down, up] = [(1, rows, cols), (2, rank, cols), (3, rows, rank)]
            .map(|(seed, rows, cols)| Weight::seeded(seed, rows, cols));
        Self { base, down, up }
    }

    fn low_rank<B: Backend>(&self, b: &B) -> LowRank<B> {
        LowRank { down: self.down.linear(b), up: self.up.linear(b) }
    }

    fn beside<B: Backend>(&self, b: &B) -> Linear<B> {
        self.base.linear(b).with_low_rank(self.low_rank(b)).unwrap()
    }

    fn merged(&self, cuda: &Cuda, base: &Linear<Cuda>, storage: Storage) -> Vec<f32> {
        let merged = cuda.merge_weight(base, &self.low_rank(cuda), storage).unwrap();
        cuda.matrix_values(&merged.expect("the GPU merges")).unwrap()
    }

    /// Returns the sum in float32.
    fn sum(&self) -> Vec<f32> {
        let (base, down, up) = (self.base.view(), self.down.view().to_f32(), self.up.view().to_f32());
        let (cols, rank) = (base.cols(), self.up.view().cols());
        let add = |(cell, value): (usize, f32)| {
            let (row, col) = (cell / cols, cell % cols);
            value + (0..rank).map(|k| up[row * rank + k] * down[k * cols + col]).sum::<f32>()
        };
        base.to_f32().into_iter().enumerate().map(add).collect()
    }
}

#[test]
fn a_merged_weight_is_the_sum_rounded_once_and_its_base_stays() {
    let Some(cuda) = crate::cuda() else { return };
    for sizes in SIZES {
        let adapted = Adapted::seeded(sizes);
        let base = adapted.base.linear(&cuda);
        compare(&format!("merged {sizes:?}"), &adapted.merged(&cuda, &base, Storage::Native), &adapted.sum(), 1.0);
        assert!(cuda.weight_values(&base).unwrap() == adapted.base.view().to_f32(), "{sizes:?}: the base stays");
    }
}

/// Two layers whose weights are adjacent on a GPU. The first has unmerged factors in sums.
struct SideBySide<'a>([&'a Adapted; 2]);

impl SideBySide<'_> {
    fn layers<B: Backend>(&self, b: &B) -> Vec<Linear<B>> {
        let views = self.0.map(|adapted| vec![adapted.base.view()]);
        let names = vec!["first".to_string(), "second".to_string()];
        Linear::load_summed((b, None), names, &views, Storage::Native).unwrap()
    }
}

impl Case for SideBySide<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let layers = self.layers(b);
        let widths = [layers[0].cols(), layers[1].cols()];
        let [x, y] = Shape::dense(33, widths.iter().sum()).tensor(b, 4).split_cols(widths);
        let beside = layers[0].with_low_rank(self.0[0].low_rank(b)).unwrap();
        vec![Tensor::linear_sum(&[(&x, &beside), (&y, &layers[1])]).unwrap()]
    }
}

#[test]
fn weights_side_by_side_are_merged_and_adapted_one_by_one() {
    let Some(cuda) = crate::cuda() else { return };
    let [one, other] = [[384, 256, 96], [384, 128, 8]].map(Adapted::seeded);
    for order in [[&one, &other], [&other, &one]] {
        let case = SideBySide(order);
        for (base, adapted) in case.layers(&cuda).iter().zip(order) {
            compare("merged", &adapted.merged(&cuda, base, Storage::Native), &adapted.sum(), 1.0);
            assert!(cuda.weight_values(base).unwrap() == adapted.base.view().to_f32(), "the base stays");
        }
        check_against(&cuda, "linear_sum with factors", &case, 5.0, 0.0);
    }
}

/// The sum is rounded to bf16 and then to e4m3, whose roundings are sixteen of bf16.
#[test]
fn a_weight_is_merged_before_it_is_quantized() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    for sizes in SIZES {
        let adapted = Adapted::seeded(sizes);
        let base = adapted.base.linear(&cuda);
        compare(&format!("merged e4m3 {sizes:?}"), &adapted.merged(&cuda, &base, Storage::Fp8), &adapted.sum(), 17.0);
        assert!(cuda.weight_values(&base).unwrap() == adapted.base.view().to_f32(), "{sizes:?}: the base stays");
        let (quantized, low_rank) = (adapted.base.fp8(&cuda), adapted.low_rank(&cuda));
        let merged = cuda.merge_weight(&quantized, &low_rank, Storage::Fp8).unwrap();
        assert!(merged.is_none(), "{sizes:?}: it would round twice, so the factors stay beside it");
    }
}

/// A multiplication with unmerged factors, of x or of its columns in two tensors.
struct Beside<'a>(&'a Adapted, usize);

impl Case for Beside<'_> {
    fn run<B: Backend>(&self, b: &B) -> Vec<Tensor<B>> {
        let weight = self.0.beside(b);
        let x = Shape::dense(self.1, weight.cols()).tensor(b, 4);
        let other = self.0.base.linear(b);
        let half = weight.cols() / 2;
        let [left, right] = Shape::dense(self.1, weight.cols()).tensor(b, 4).split_cols([half, weight.cols() - half]);
        vec![
            x.linear(&weight, None).unwrap(),
            Tensor::linear_rows(&[(&x, &other), (&x, &weight), (&x, &other)]).unwrap(),
            Tensor::linear_concat(&[&left, &right], &weight).unwrap(),
        ]
    }
}

/// Three roundings of bf16: of the multiplication with down, of the multiplication with the weight, and of the sum.
/// The first is an error of each term of the last multiplication, and these add up at random.
#[test]
fn factors_beside_a_weight_match_the_cpu() {
    let Some(cuda) = crate::cuda() else { return };
    for sizes in SIZES {
        for rows in [1, 7, 64] {
            let adapted = Adapted::seeded(sizes);
            check_against(&cuda, &format!("beside {sizes:?} of {rows} rows"), &Beside(&adapted, rows), 4.0, 0.0);
        }
    }
}

/// A LoRA of rank 1 of one layer of a model. On the CPU its image is 36 dB from that of the model itself.
fn adapter(model: &Arc<Model<Cuda>>) -> Arc<Adapter> {
    adapter_in(model, Dtype::F32, &0.35f32.to_le_bytes())
}

/// As `adapter`, with all values equal to `value`.
fn adapter_in(model: &Arc<Model<Cuda>>, dtype: Dtype, value: &[u8]) -> Arc<Adapter> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let dim = model.info().transformer.dim();
    let bytes = value.repeat(dim);
    let tensor = |shape| TensorView::new(dtype, shape, &bytes).unwrap();
    let name = |half: &str| format!("transformer_blocks.0.attn.to_out.0.lora_{half}.weight");
    let pair = [(name("A"), tensor(vec![1, dim])), (name("B"), tensor(vec![dim, 1]))];
    safetensors::serialize_to_file(pair, None, &path).unwrap();
    model.adapter(&path).unwrap()
}

/// Returns an image by a model with an adapter, and the number of copies between host and device.
fn image(model: &Arc<Model<Cuda>>, adapter: &Arc<Adapter>, strength: f32) -> (Vec<u8>, u64) {
    let adapters = vec![AdapterUse::new(Arc::clone(adapter), strength)];
    let size = Some(64);
    let request = Request { width: size, height: size, steps: Some(1), adapters, ..Request::new("a cat", 1) };
    let before = model.backend().stats().copies;
    let rgb = model.generate(&request).unwrap().rgb;
    (rgb, model.backend().stats().copies - before)
}

#[test]
fn what_quantized_weights_are_merged_from_stays_for_the_next_set() {
    let Some(cuda) = crate::cuda_fp8() else { return };
    let model = Model::load(cuda, &default_model()).unwrap();
    let adapter = adapter(&model);
    let (base, _) = image(&model, &adapter, 0.0);
    let (first, copies) = image(&model, &adapter, 1.0);
    let (second, fewer) = image(&model, &adapter, 2.0);
    assert!(fewer < copies, "{fewer} copies for the second set, {copies} for the first");
    assert!(first != base && second != first);
    // All sets are freed, and the originals stay.
    model.place_adapters(None);
    let (again, copies) = image(&model, &adapter, 1.0);
    assert!(again == first, "another image");
    assert!(copies <= fewer, "its weights went up again: {copies} copies, {fewer} for the second set");
}

/// 0.375 in 32 bits and in 8.
#[test]
fn factors_in_few_bits_are_those_values() {
    let files: [(Dtype, &[u8]); 3] =
        [(Dtype::F32, &0.375f32.to_le_bytes()), (Dtype::F8_E4M3, &[0x2c]), (Dtype::F8_E5M2, &[0x36])];
    for cuda in [crate::cuda(), crate::cuda_fp8()].into_iter().flatten() {
        let model = Model::load(cuda, &default_model()).unwrap();
        for placement in [Placement::Merged, Placement::Unmerged] {
            model.place_adapters(Some(placement));
            let images = files.map(|(dtype, value)| image(&model, &adapter_in(&model, dtype, value), 1.0).0);
            assert!(images[1..].iter().all(|image| *image == images[0]), "{placement:?}");
            assert!(images[0] != image(&model, &adapter(&model), 0.0).0, "{placement:?}");
        }
    }
}

#[test]
fn merged_and_beside_are_near_each_other() {
    let Some(cuda) = crate::cuda() else { return };
    expect_merged_and_beside_within(cuda, 40.0);
    let Some(cuda) = crate::cuda_fp8() else { return };
    expect_merged_and_beside_within(cuda, 25.0);
}

fn expect_merged_and_beside_within(cuda: Cuda, least_db: f64) {
    let model = Model::load(cuda, &default_model()).unwrap();
    let adapter = adapter(&model);
    let of = |placement, strength| {
        model.place_adapters(Some(placement));
        image(&model, &adapter, strength).0
    };
    let [base, merged, beside] = [of(Placement::Merged, 0.0), of(Placement::Merged, 1.0), of(Placement::Unmerged, 1.0)];
    let (near, far) = (psnr(&merged, &beside), psnr(&merged, &base));
    println!("merged and beside are {near:.1} dB from each other, and {far:.1} from the model itself");
    assert!(near >= least_db && near > far, "{near:.1} dB, {far:.1} dB");
}
