//! Adapters of every kind and layout: each gives the image of a folder whose weights were merged here, in float64, by
//! the rules of the programs that write such adapters.

mod refused;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flux::backend::cpu::Cpu;
use flux::files::adapter::AdapterUse;
use flux::files::{ModelFiles, Safetensors};
use flux::pipeline::{Model, Request};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

use crate::support::{load, preset};

/// Rows, columns and values.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn from_fn(rows: usize, cols: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * cols).map(|cell| value(cell / cols, cell % cols)).collect();
        Self { rows, cols, values }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.values[row * self.cols + col]
    }

    fn times(&self, other: &Self) -> Self {
        Self::from_fn(self.rows, other.cols, |row, col| {
            (0..self.cols).map(|k| self.at(row, k) * other.at(k, col)).sum()
        })
    }

    fn kron(&self, other: &Self) -> Self {
        Self::from_fn(self.rows * other.rows, self.cols * other.cols, |row, col| {
            self.at(row / other.rows, col / other.cols) * other.at(row % other.rows, col % other.cols)
        })
    }

    fn map(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self::from_fn(self.rows, self.cols, |row, col| f(self.at(row, col), other.at(row, col)))
    }

    fn scaled(&self, factor: f64) -> Self {
        self.map(self, |value, _| factor * value)
    }

    fn row_range(&self, first: usize, rows: usize) -> Self {
        Self::from_fn(rows, self.cols, |row, col| self.at(first + row, col))
    }
}

/// Float32 numbers without a pattern.
struct Random(u64);

impl Random {
    fn matrix(&mut self, rows: usize, cols: usize, reach: f64) -> Matrix {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from((reach * ((self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0)) as f32)
        };
        let values = (0..rows * cols).map(|_| next()).collect();
        Matrix { rows, cols, values }
    }
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    LoRa,
    LoKr,
    LoKrOfProducts,
    LoHa,
    DoRa,
    Difference,
    Replacement,
}

/// The names of tensors in a file.
#[derive(Clone, Copy, Debug)]
struct Layout {
    kind: Kind,
    prefix: &'static str,
    /// Fused layers, as in the single file.
    bfl: bool,
    underscores: bool,
    /// The suffixes of down and up.
    halves: [&'static str; 2],
    alpha: Option<f32>,
    metadata: Option<&'static str>,
    /// The content of `adapter_config.json` in the adapter's folder.
    config: Option<&'static str>,
    /// The suffix of a magnitude.
    magnitude: &'static str,
    /// Axes of factors: axes after the second have length 1.
    axes: usize,
}

const PEFT: Layout = Layout {
    kind: Kind::LoRa,
    prefix: "transformer.",
    bfl: false,
    underscores: false,
    halves: [".lora_A.weight", ".lora_B.weight"],
    alpha: None,
    metadata: None,
    config: None,
    magnitude: ".dora_scale",
    axes: 2,
};
const KOHYA: Layout = Layout {
    prefix: "lora_unet_",
    bfl: true,
    underscores: true,
    halves: [".lora_down.weight", ".lora_up.weight"],
    alpha: Some(2.0),
    ..PEFT
};
const LYCORIS: Layout = Layout { prefix: "lycoris_", underscores: true, alpha: Some(2.0), ..PEFT };
const RANK: usize = 4;
const ALPHA_1: &str = r#"{"transformer.r": 4, "transformer.lora_alpha": 1, "transformer.use_rslora": true,
    "transformer.alpha_pattern": {"to_out.0": 6}, "transformer.rank_pattern": {}}"#;

const CONFIG: &str = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 1, "use_rslora": true, "bias": "none",
    "alpha_pattern": {".*\\.to_out\\.0": 6}, "rank_pattern": {"attn.to_q": 4}, "target_modules": ["to_q", "to_out.0"]}"#;

const LAYOUTS: [Layout; 26] = [
    PEFT,
    Layout { halves: [".lora_A.default.weight", ".lora_B.default.weight"], ..PEFT },
    Layout { halves: [".lora.down.weight", ".lora.up.weight"], ..PEFT },
    Layout { metadata: Some(ALPHA_1), ..PEFT },
    Layout { prefix: "diffusion_model.", bfl: true, ..PEFT },
    Layout { prefix: "diffusion_model.", ..PEFT },
    Layout { prefix: "base_model.model.", bfl: true, ..PEFT },
    Layout { prefix: "diffusion_model.", bfl: true, underscores: false, ..KOHYA },
    Layout { prefix: "model.diffusion_model.", bfl: true, alpha: Some(8.0), ..PEFT },
    Layout { prefix: "", bfl: true, ..PEFT },
    KOHYA,
    Layout { prefix: "lora_transformer_", bfl: false, ..KOHYA },
    Layout { kind: Kind::LoKr, bfl: true, underscores: false, prefix: "diffusion_model.", ..LYCORIS },
    Layout { kind: Kind::LoKrOfProducts, ..LYCORIS },
    Layout { kind: Kind::LoHa, ..KOHYA },
    Layout { kind: Kind::DoRa, prefix: "diffusion_model.", bfl: true, ..PEFT },
    Layout { kind: Kind::Difference, prefix: "diffusion_model.", bfl: true, ..PEFT },
    Layout { kind: Kind::Replacement, ..PEFT },
    Layout { prefix: "base_model.model.", config: Some(CONFIG), ..PEFT },
    Layout {
        prefix: "lora_unet_diffusion_model_",
        halves: ["_.lora_down.weight", "_.lora_up.weight"],
        alpha: None,
        ..KOHYA
    },
    Layout { prefix: "lora_unet_model_diffusion_model_", axes: 4, ..KOHYA },
    Layout { prefix: "diffusion_model.model.", halves: ["_lora.down.weight", "_lora.up.weight"], ..PEFT },
    Layout { prefix: "base_model.model.transformer.", halves: [".lora_A.one.weight", ".lora_B.one.weight"], ..PEFT },
    Layout { prefix: "pipe.dit.", axes: 3, ..PEFT },
    Layout { kind: Kind::DoRa, magnitude: ".lora_magnitude_vector.default.weight", ..PEFT },
    Layout { kind: Kind::DoRa, magnitude: ".magnitude", metadata: None, ..KOHYA },
];

type Tensors = BTreeMap<String, Matrix>;

/// Reads the tensors of a model's transformer; vectors have one column.
fn weights(dir: &Path) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in fs::read_dir(dir.join("transformer")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let file = Safetensors::open(&path, "").unwrap();
            for name in file.names() {
                let view = file.tensor(name).unwrap();
                let values = view.to_f32().into_iter().map(f64::from).collect();
                tensors.insert(name.to_string(), Matrix { rows: view.rows(), cols: view.cols(), values });
            }
        }
    }
    tensors
}

/// Returns the modules of a file by name, and the layers whose rows each has.
fn modules(weights: &Tensors, layout: &Layout) -> Vec<(String, Vec<String>)> {
    let layers: Vec<String> =
        weights.iter().filter(|(_, w)| w.cols > 1).map(|(n, _)| n.replace(".weight", "")).collect();
    if !layout.bfl {
        return layers.into_iter().map(|name| (name.clone(), vec![name])).collect();
    }
    let mut modules = Vec::new();
    for layer in layers {
        let name = match layer.split_once("blocks.") {
            Some(("transformer_", rest)) => format!("double_blocks.{rest}"),
            Some(("single_transformer_", rest)) => format!("single_blocks.{rest}"),
            _ => layer.clone(),
        };
        if let Some((block, _)) = name.split_once(".attn.to_q").filter(|(_, rest)| rest.is_empty()) {
            let parts = ["to_q", "to_k", "to_v"].map(|part| layer.replace("to_q", part));
            modules.push((format!("{block}.img_attn.qkv"), parts.into()));
        } else if let Some(block) = name.strip_suffix(".attn.add_q_proj") {
            let parts = ["add_q_proj", "add_k_proj", "add_v_proj"].map(|part| layer.replace("add_q_proj", part));
            modules.push((format!("{block}.txt_attn.qkv"), parts.into()));
        } else if !["to_k", "to_v", "add_k_proj", "add_v_proj"].iter().any(|part| name.ends_with(part)) {
            let names = [
                ("ff_context.linear_in", "txt_mlp.0"),
                ("ff_context.linear_out", "txt_mlp.2"),
                ("ff.linear_in", "img_mlp.0"),
                ("ff.linear_out", "img_mlp.2"),
                ("attn.to_out.0", "img_attn.proj"),
                ("attn.to_add_out", "txt_attn.proj"),
                ("attn.to_qkv_mlp_proj", "linear1"),
                ("attn.to_out", "linear2"),
                ("x_embedder", "img_in"),
                ("context_embedder", "txt_in"),
                ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
                ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"),
                ("proj_out", "final_layer.linear"),
                ("norm_out.linear", "final_layer.adaLN_modulation.1"),
                ("_modulation_img.linear", "_modulation_img.lin"),
                ("_modulation_txt.linear", "_modulation_txt.lin"),
                ("stream_modulation.linear", "stream_modulation.lin"),
            ];
            let (end, bfl) = names.iter().find(|(end, _)| name.ends_with(end)).expect(&name);
            modules.push((name.replace(end, bfl), vec![layer]));
        }
    }
    modules
}

/// Returns the tensors of a module's change, and the changed weight.
fn change(name: &str, base: &Matrix, layout: &Layout, random: &mut Random) -> (Vec<(String, Matrix)>, Matrix) {
    let (rows, cols) = (base.rows, base.cols);
    let reach = 0.6 / (cols as f64).sqrt();
    let mut pair = |rows, cols| (random.matrix(rows, RANK, 1.0), random.matrix(RANK, cols, reach));
    let add = |delta: &Matrix| base.map(delta, |w, d| w + d);
    let rank_scale = layout.alpha.map_or(1.0, |alpha| f64::from(alpha) / RANK as f64);
    let scale = match layout.metadata.or(layout.config) {
        Some(_) if name.ends_with("to_out.0") => 3.0,
        Some(_) => 0.5,
        None => rank_scale,
    };
    let factor = |size: usize| (1..=8).rev().find(|n| size.is_multiple_of(*n)).unwrap();
    match layout.kind {
        Kind::LoRa | Kind::DoRa => {
            let (up, down) = pair(rows, cols);
            let sum = add(&up.times(&down).scaled(scale));
            let mut tensors = vec![(layout.halves[0].to_string(), down), (layout.halves[1].to_string(), up)];
            if layout.kind == Kind::LoRa {
                return (tensors, sum);
            }
            let magnitude = random.matrix(rows, 1, 0.5);
            let magnitude = magnitude.map(&magnitude, |_, m| f64::from((1.0 + m) as f32));
            let length = |row| (0..cols).map(|col| sum.at(row, col).powi(2)).sum::<f64>().sqrt();
            let lengths: Vec<f64> = (0..rows).map(length).collect();
            let merged = Matrix::from_fn(rows, cols, |row, col| magnitude.at(row, 0) * sum.at(row, col) / lengths[row]);
            tensors.push((layout.magnitude.to_string(), magnitude));
            (tensors, merged)
        }
        Kind::LoKr => {
            let (left, right) = (
                random.matrix(factor(rows), factor(cols), 1.0),
                random.matrix(rows / factor(rows), cols / factor(cols), reach),
            );
            let merged = add(&left.kron(&right));
            (vec![(".lokr_w1".to_string(), left), (".lokr_w2".to_string(), right)], merged)
        }
        Kind::LoKrOfProducts => {
            let left = random.matrix(factor(rows), factor(cols), 1.0);
            let a = random.matrix(rows / factor(rows), RANK, 1.0);
            let b = random.matrix(RANK, cols / factor(cols), reach);
            let merged = add(&left.kron(&a.times(&b)).scaled(rank_scale));
            let named = [(".lokr_w1", left), (".lokr_w2_a", a), (".lokr_w2_b", b)];
            (named.map(|(end, matrix)| (end.to_string(), matrix)).into(), merged)
        }
        Kind::LoHa => {
            let ((a, b), (c, d)) = (pair(rows, cols), pair(rows, cols));
            let d = d.map(&d, |_, value| f64::from((value / reach) as f32));
            let merged = add(&a.times(&b).map(&c.times(&d), |x, y| rank_scale * x * y));
            let named = [(".hada_w1_a", a), (".hada_w1_b", b), (".hada_w2_a", c), (".hada_w2_b", d)];
            (named.map(|(end, matrix)| (end.to_string(), matrix)).into(), merged)
        }
        Kind::Difference => {
            let delta = random.matrix(rows, cols, reach);
            let merged = add(&delta);
            (vec![(".diff".to_string(), delta)], merged)
        }
        Kind::Replacement => {
            let new = random.matrix(rows, cols, 2.0 * reach);
            (vec![(".set_weight".to_string(), new.clone())], new)
        }
    }
}

/// Writes an adapter, and returns the weights of the model with it.
fn write_adapter(path: &Path, base: &Tensors, layout: &Layout, seed: u64) -> Tensors {
    let (mut merged, mut file) = (base.clone(), Vec::new());
    let mut random = Random(seed);
    for (name, layers) in modules(base, layout) {
        let of_layers: Vec<&Matrix> = layers.iter().map(|layer| &base[&format!("{layer}.weight")]).collect();
        let (rows, cols) = (of_layers.iter().map(|w| w.rows).sum(), of_layers[0].cols);
        let stacked = of_layers.iter().flat_map(|w| w.values.clone()).collect();
        // The single file has the halves of the final modulation in the other order.
        let half = if name.contains("adaLN") { rows / 2 } else { 0 };
        let swap = |w: &Matrix| Matrix::from_fn(rows, cols, |row, col| w.at((row + half) % rows, col));
        let (tensors, changed) = change(&name, &swap(&Matrix { rows, cols, values: stacked }), layout, &mut random);
        let changed = swap(&changed);
        let spelled = if layout.underscores { name.replace('.', "_") } else { name };
        file.extend(tensors.into_iter().map(|(end, matrix)| (format!("{}{spelled}{end}", layout.prefix), matrix)));
        if let Some(alpha) = layout.alpha {
            file.push((format!("{}{spelled}.alpha", layout.prefix), Matrix::from_fn(1, 1, |_, _| f64::from(alpha))));
        }
        let mut first = 0;
        for (layer, w) in layers.iter().zip(of_layers) {
            merged.insert(format!("{layer}.weight"), changed.row_range(first, w.rows));
            first += w.rows;
        }
    }
    let metadata = layout.metadata.map(|text| ("lora_adapter_metadata".to_string(), text.to_string()));
    write_axes(path, &file, metadata.into_iter().collect(), layout.axes);
    if let Some(config) = layout.config {
        fs::write(path.with_file_name("adapter_config.json"), config).unwrap();
    }
    merged
}

fn write(path: &Path, tensors: &[(String, Matrix)], metadata: HashMap<String, String>) {
    write_axes(path, tensors, metadata, 2);
}

/// Writes matrices with `axes` axes.
fn write_axes(path: &Path, tensors: &[(String, Matrix)], metadata: HashMap<String, String>, axes: usize) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, matrix)| matrix.values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, matrix), bytes)| {
        let shape = match (name.ends_with(".alpha"), matrix.cols) {
            (true, _) => vec![],
            (_, 1) if name.contains("norm") || name.contains("magnitude") => vec![matrix.rows],
            (_, cols) => [&[matrix.rows, cols][..], &[1; 2][..axes - 2]].concat(),
        };
        (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
    });
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

/// Copies a model with other weights in its transformer.
fn merged_folder(model: &Path, weights: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "transformer" {
            std::os::unix::fs::symlink(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    let transformer = folder.path().join("transformer");
    fs::create_dir(&transformer).unwrap();
    fs::copy(model.join("transformer/config.json"), transformer.join("config.json")).unwrap();
    let tensors: Vec<_> = weights.iter().map(|(name, matrix)| (name.clone(), matrix.clone())).collect();
    write(&transformer.join("diffusion_pytorch_model.safetensors"), &tensors, Default::default());
    folder
}

fn model(dir: &Path) -> Arc<Model<Cpu>> {
    load(&ModelFiles::open(dir).unwrap())
}

fn image(model: &Arc<Model<Cpu>>, adapters: Vec<AdapterUse>) -> Vec<u8> {
    let request = Request { width: Some(48), height: Some(32), steps: Some(2), adapters, ..Request::new("a cat", 3) };
    model.generate(&request).unwrap().rgb
}

fn worst(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

fn folder_of(name: &str) -> PathBuf {
    preset(name).folder().unwrap().to_path_buf()
}

/// Observed: 0 in most, 1 in some.
#[test]
fn every_layout_and_kind_gives_the_image_of_the_merged_folder() {
    for (index, layout) in LAYOUTS.iter().enumerate() {
        let dir = folder_of(if index % 3 == 0 { "tiny" } else { "sharded" });
        let (own, base) = (tempfile::tempdir().unwrap(), model(&dir));
        let path = own.path().join("adapter_model.safetensors");
        let merged = write_adapter(&path, &weights(&dir), layout, index as u64);
        let adapter = base.adapter(if layout.config.is_some() { own.path() } else { &path }).unwrap();
        assert!(adapter.notes().is_empty(), "{layout:?}: {:?}", adapter.notes());
        let adapted = image(&base, vec![AdapterUse::new(adapter, 1.0)]);
        let expected = image(&model(merged_folder(&dir, &merged).path()), Vec::new());
        let (off, changed) = (worst(&adapted, &expected), worst(&image(&base, Vec::new()), &expected));
        println!("{off} of 255, changed by {changed}: {layout:?}");
        assert!(off <= 1 && changed > 16, "{layout:?}: {off} of 255, changed by {changed}");
    }
}

/// With strength a, a weight becomes W + a (W' - W), for any W'; changes of several adapters are added.
#[test]
fn strengths_multiply_and_several_adapters_add() {
    let dir = folder_of("sharded");
    let (own, base, weights) = (tempfile::tempdir().unwrap(), model(&dir), weights(&dir));
    let open = |name: &str, layout: &Layout, seed| {
        let path = own.path().join(name);
        let merged = write_adapter(&path, &weights, layout, seed);
        (base.adapter(&path).unwrap(), merged)
    };
    let lora = open("lora", &KOHYA, 1);
    let peft = open("peft", &PEFT, 2);
    let dora = open("dora", &LAYOUTS[15], 3);
    for uses in [
        vec![(&lora, 0.5)],
        vec![(&lora, -0.75)],
        vec![(&lora, 0.5), (&lora, 0.25)],
        vec![(&lora, 0.5), (&peft, 0.5)],
        vec![(&lora, 0.25), (&peft, -0.5), (&dora, 0.5)],
    ] {
        let mut sum = weights.clone();
        for ((_, merged), strength) in &uses {
            for (name, weight) in &mut sum {
                let delta = merged[name].map(&weights[name], |new, old| f64::from(*strength) * (new - old));
                *weight = weight.map(&delta, |w, d| w + d);
            }
        }
        let adapted: Vec<_> =
            uses.iter().map(|((adapter, _), strength)| AdapterUse::new(Arc::clone(adapter), *strength)).collect();
        let off = worst(&image(&base, adapted.clone()), &image(&model(merged_folder(&dir, &sum).path()), Vec::new()));
        println!("{off} of 255: {adapted:?}");
        assert!(off <= 1, "{adapted:?}: {off} of 255");
    }
    let without = image(&base, Vec::new());
    let zero = [&lora, &dora].map(|(adapter, _)| AdapterUse::new(Arc::clone(adapter), 0.0));
    assert!(image(&base, zero.into()) == without, "strength 0 is the model itself, to the bit");
}

/// A file of some blocks alone gives the image of the whole file with all other blocks at 0, to the bit.
#[test]
fn a_block_of_factor_0_is_as_if_the_file_lacked_it() {
    let dir = folder_of("sharded");
    let (own, base, weights) = (tempfile::tempdir().unwrap(), model(&dir), weights(&dir));
    let single = |key: &str| key.starts_with("single_transformer_blocks.0.");
    let double = |key: &str| key.starts_with("transformer_blocks.");
    for layout in [&PEFT, &KOHYA, &LAYOUTS[16]] {
        let path = own.path().join("whole");
        write_adapter(&path, &weights, layout, 1);
        let whole = base.adapter(&path).unwrap();
        let cut = |name: &str, is_in: &dyn Fn(&str) -> bool| {
            let file = Safetensors::open(&path, "").unwrap();
            let groups = modules(&weights, layout);
            let spelled = |name: &str| if layout.underscores { name.replace('.', "_") } else { name.to_string() };
            let kept = groups.iter().filter(|(_, layers)| layers.iter().all(|layer| is_in(layer)));
            let kept: Vec<String> = kept.map(|(name, _)| format!("{}{}.", layout.prefix, spelled(name))).collect();
            let tensors = file.names().filter(|key| kept.iter().any(|kept| key.starts_with(kept)));
            let tensors = tensors.map(|key| {
                let view = file.tensor(key).unwrap();
                let values = view.to_f32().into_iter().map(f64::from).collect();
                let cols = view.shape().get(1).copied().unwrap_or(1);
                (key.to_string(), Matrix { rows: view.shape().first().copied().unwrap_or(1), cols, values })
            });
            let part = own.path().join(name);
            write(&part, &tensors.collect::<Vec<_>>(), HashMap::new());
            base.adapter(&part).unwrap()
        };
        let of_blocks = |blocks: &str| {
            let blocks = blocks.parse().unwrap();
            image(&base, vec![AdapterUse { blocks, ..AdapterUse::new(Arc::clone(&whole), 0.5) }])
        };
        let alone = |part| image(&base, vec![AdapterUse::new(part, 0.5)]);
        let all = alone(Arc::clone(&whole));
        assert!(of_blocks("double=1,single=1,other=1") == all, "{layout:?}");
        let of_single = of_blocks("double=0,other=0,single=0,single0=1");
        assert!(of_single == alone(cut("single", &single)) && of_single != all, "{layout:?}");
        assert!(of_blocks("single=0,other=0") == alone(cut("double", &double)), "{layout:?}");
        assert!(of_blocks("single=0,double=0,other=0") == image(&base, Vec::new()), "{layout:?}");
        let half = AdapterUse { blocks: "double=2,single=2,other=2".parse().unwrap(), ..AdapterUse::new(whole, 0.25) };
        assert!(image(&base, vec![half]) == all, "{layout:?}");
    }
}

#[test]
fn info_prints_the_norm_of_each_block() {
    use crate::program::{Run, SMALL, flux};

    let dir = folder_of("sharded");
    let (own, weights) = (tempfile::tempdir().unwrap(), weights(&dir));
    for (index, layout) in LAYOUTS.iter().enumerate().filter(|(_, layout)| layout.config.is_none()) {
        let path = own.path().join(format!("{index}.safetensors"));
        let merged = write_adapter(&path, &weights, layout, 1);
        let run = Run::new(flux().arg("info").arg(&path).arg("--json")).succeeds();
        let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        let square = |is_in: &dyn Fn(&str) -> bool| {
            let changed = weights.iter().filter(|(key, _)| is_in(key));
            let squares = changed.flat_map(|(key, weight)| weight.map(&merged[key], |a, b| (a - b).powi(2)).values);
            squares.sum::<f64>()
        };
        for (group, block, is_in) in [
            ("double", Some(0), &(|key: &str| key.starts_with("transformer_blocks.0.")) as &dyn Fn(&str) -> bool),
            ("single", Some(0), &|key| key.starts_with("single_transformer_blocks.0.")),
            ("other", None, &|key| !key.contains("transformer_blocks.")),
        ] {
            let blocks = found["blocks"].as_array().unwrap();
            let of_block = |it: &&serde_json::Value| it["group"] == group && it["block"].as_u64() == block;
            let norm = blocks.iter().find(of_block).expect(group)["norm"].as_f64().unwrap();
            let expected = square(is_in).sqrt();
            let is_whole = !matches!(layout.kind, Kind::DoRa | Kind::Replacement);
            assert!(!is_whole || (norm - expected).abs() < 1e-4 * expected, "{layout:?} {group}: {norm}, {expected}");
            assert_eq!(found["notes"].as_array().unwrap().is_empty(), is_whole, "{}", found["notes"]);
        }
    }
    let text = Run::new(flux().current_dir(own.path()).args(["info", "0.safetensors"])).succeeds().stdout;
    assert!(text.contains("rank 4") && text.contains("  double0 ") && text.contains("####"), "{text}");

    let draw = |lora: &str| {
        let flags = ["-p", "a cat", "-S", "3", "-o", "x.png", "--lora", lora];
        Run::new(flux().current_dir(own.path()).arg("-d").arg(&dir).args(SMALL).args(flags))
    };
    draw("0.safetensors:1:single=0.5,other=0").succeeds();
    let recipe = Run::new(flux().current_dir(own.path()).args(["info", "x.png"])).succeeds().stdout;
    assert!(recipe.contains("--lora 0.safetensors:1:single=0.5,other=0"), "{recipe}");
    draw("0.safetensors:1:single99=0").fails(2, &["`single99`", "double (0 to", "--lora"]);
    draw("0.safetensors:1:joint=0").fails(2, &["no blocks `joint`", "--lora"]);
    draw("0.safetensors:1:in05=0").fails(2, &["`in` is not a group of blocks", "--lora"]);
}

#[test]
fn the_program_takes_adapters_and_says_which_it_used() {
    use crate::program::{Run, SMALL, flux, names};

    let dir = folder_of("sharded");
    let own = tempfile::tempdir().unwrap();
    write_adapter(&own.path().join("a:b.safetensors"), &weights(&dir), &KOHYA, 1);
    let draw = |flags: &[&str]| {
        Run::new(
            flux().current_dir(own.path()).arg("-d").arg(&dir).args(["-p", "a cat", "-S", "3"]).args(SMALL).args(flags),
        )
    };
    draw(&["-o", "base.png"]).succeeds();
    draw(&["-o", "zero.png", "--lora", "a:b.safetensors:0"]).succeeds();
    let run =
        draw(&["-o", "used.png", "--timings=json", "-v", "--lora", "a:b.safetensors:0.5", "--lora", "a:b.safetensors"]);
    let run = run.succeeds();
    assert!(run.stderr.contains("adapters: not merged into"), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["adapters"][0]["file"], "a:b.safetensors");
    assert_eq!(
        (report["adapters"][0]["strength"].as_f64(), report["adapters"][1]["strength"].as_f64()),
        (Some(0.5), Some(1.0))
    );
    let bytes = |name: &str| fs::read(own.path().join(name)).unwrap();
    let text = String::from_utf8_lossy(&bytes("used.png")).into_owned();
    assert!(text.contains("a:b.safetensors:0.5, a:b.safetensors:1"), "the image says which");
    let pixels = |name: &str| flux::input::read(&own.path().join(name)).unwrap().bytes;
    assert!(pixels("zero.png") == pixels("base.png") && pixels("used.png") != pixels("base.png"));

    let before = names(own.path());
    draw(&["--lora", "none.safetensors"]).fails(1, &["none.safetensors", "hint: "]);
    draw(&["--lora", "a:b.safetensors:1e9"]).fails(2, &["1000000000", "--lora", "hint: "]);
    draw(&["--lora", dir.join("model_index.json").to_str().unwrap()]).fails(1, &["JSON text"]);
    let other = folder_of("uneven");
    write_adapter(&own.path().join("other.safetensors"), &weights(&other), &PEFT, 1);
    draw(&["--lora", "other.safetensors"])
        .fails(1, &["the adapter was trained for a model with", "other.safetensors", "hint: "]);
    fs::remove_file(own.path().join("other.safetensors")).unwrap();
    assert_eq!(names(own.path()), before, "no image is written");
}
