//! Dependencies point one way: this test reads the imports and paths of src/ and fails when an arrow points up.
//!
//! ```text
//! main, commands -> report, bench, progress -> cli -> engine -> pipeline -> model
//! pipeline: devices -> session -> residency -> request -> memory
//! model -> text_encoder, transformer, vae, sampler
//! text_encoder, transformer, vae, sampler -> nn, tensor, ops -> backend
//! backend <- cpu, cuda
//! files: used by whoever opens or loads tensors, and uses nothing but error, which all use
//! server, queue: used by commands, use engine; server hands jobs to queue, too
//! compare, sheet, default_model: used by commands, compare by selftest and the defaults of a sheet by cli, too
//! lettering: used by sheet only
//! live: used by commands and bench, on engine and video; video: frames as streams of bytes
//! terminal: used by commands only
//! selftest: used by commands and cli, on pipeline, nn, tensor and ops
//! download: used by commands, uses hub, progress and files; hub: what names mean, uses files alone
//! input, output: used by engine, commands and bench, input by pipeline and cli, too
//! ```

mod flags;
mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use paths::{Names, Place, SourceFile, Sources, circles};

/// A part of src/ and the parts of this crate that it may use besides itself and [`COMMON`].
const LAYERS: [(&str, &[&str]); 48] = [
    ("main.rs", ANY),
    ("allocator.rs", &[]),
    ("bus_error.rs", &["files"]),
    ("hardware_queues.rs", &[]),
    ("panics.rs", &["allocator", "progress"]),
    ("threads.rs", &["backend", "backend::cpu"]),
    (
        "commands",
        &[
            "cli",
            "download",
            "hub",
            "progress",
            "report",
            "bench",
            "engine",
            "pipeline",
            "model",
            "stage",
            "sampler",
            "input",
            "output",
            "rgb",
            "live",
            "video",
            "compare",
            "default_model",
            "files",
            "backend",
            "metadata",
            "sheet",
            "terminal",
            "selftest",
            "server",
            "queue",
            "version",
            "allocator",
        ],
    ),
    ("queue", &["engine", "pipeline", "stage", "output", "files", "progress"]),
    (
        "server",
        &[
            "queue",
            "engine",
            "pipeline",
            "model",
            "sampler",
            "stage",
            "input",
            "output",
            "metadata",
            "rgb",
            "files",
            "progress",
            "allocator",
        ],
    ),
    ("version.rs", &["engine"]),
    ("download", &["hub", "progress", "stage", "files"]),
    (
        "cli",
        &[
            "engine", "hub", "pipeline", "model", "sampler", "input", "output", "files", "sheet", "threads",
            "selftest", "video",
        ],
    ),
    ("live", &["engine", "pipeline", "stage", "input", "compare", "rgb", "files", "video"]),
    ("video", &["input", "metadata", "output", "rgb"]),
    ("progress", &["cli", "engine", "pipeline", "stage"]),
    ("report.rs", &["cli", "engine", "pipeline"]),
    ("terminal", &["input", "metadata", "output"]),
    (
        "bench",
        &[
            "engine", "metadata", "pipeline", "model", "stage", "vae", "input", "output", "files", "nn", "tensor",
            "ops", "backend", "live", "video", "rgb",
        ],
    ),
    // Which device is tested beside which, it does not know.
    ("selftest", &["pipeline", "input", "rgb", "compare", "nn", "files", "tensor", "ops", "backend"]),
    ("lib.rs", ANY),
    ("hub", &["files"]),
    ("engine/devices.rs", &["engine", "backend", "backend::cpu", "backend::cuda"]),
    ("engine", &["input", "metadata", "output", "rgb", "pipeline", "model", "stage", "sampler", "files", "backend"]),
    (
        "pipeline",
        &[
            "input",
            "rgb",
            "model",
            "stage",
            "text_encoder",
            "transformer",
            "vae",
            "sampler",
            "nn",
            "files",
            "tensor",
            "token_split",
            "ops",
            "backend",
        ],
    ),
    // Opening checks every tensor on the host, where that costs nothing.
    ("model", &["stage", "text_encoder", "transformer", "vae", "sampler", "nn", "files", "backend", "backend::cpu"]),
    ("stage.rs", &[]),
    ("text_encoder", &["guard", "nn", "files", "tensor", "ops", "backend"]),
    ("transformer", &["nn", "files", "tensor", "ops", "backend"]),
    ("vae", &["rgb", "nn", "files", "tensor", "token_split", "ops", "backend"]),
    ("sampler", &["transformer", "tensor", "ops", "backend"]),
    ("output", &["files", "metadata", "rgb"]),
    ("metadata", &["guard"]),
    ("compare", &["rgb"]),
    ("sheet.rs", &["input", "lettering", "rgb"]),
    ("lettering", &["input", "rgb"]),
    ("input", &["files", "guard", "metadata", "rgb"]),
    ("rgb.rs", &[]),
    ("default_model", &["files"]),
    ("tensor.rs", &["ops", "backend"]),
    ("ops", &["nn", "tensor", "active_tokens", "token_layout", "token_split", "backend"]),
    ("active_tokens.rs", &["token_layout"]),
    ("token_layout.rs", &[]),
    ("token_split.rs", &["token_layout"]),
    ("backend", &["files", "nn", "tensor", "ops"]),
    ("nn", &["files", "tensor", "backend"]),
    ("files", &["guard"]),
    ("error.rs", &[]),
    ("guard.rs", &[]),
];
const COMMON: [&str; 3] = ["error", "Error", "Result"];
const ANY: &[&str] = &["*"];

/// A crate and the only places where it may be named. (The CUDA backend has a module `gemm` of its own.)
const CRATES: [(&str, &[&str]); 52] = [
    ("base64", &["engine/image_recipe.rs", "server/", "terminal/"]),
    // One HTTP server.
    ("axum", &["server/"]),
    ("blake3", &["server/", "queue/", "commands/submit.rs"]),
    ("bytes", &["server/", "queue/"]),
    ("futures_util", &["server/", "queue/"]),
    ("http_body_util", &["server/"]),
    ("hyper", &["server/"]),
    ("hyper_util", &["server/"]),
    ("multer", &["server/"]),
    ("prometheus_client", &["server/"]),
    ("rmcp", &["server/"]),
    ("rustls", &["server/", "queue/mod.rs", "commands/serve.rs"]),
    ("listenfd", &["server/"]),
    ("sd_notify", &["server/"]),
    ("tokio", &["server/", "queue/", "commands/queue.rs", "commands/submit.rs"]),
    // One broker and one store.
    ("lapin", &["queue/"]),
    ("object_store", &["queue/store.rs"]),
    ("tokio_rustls", &["server/"]),
    ("tower", &["server/"]),
    ("csv", &["commands/batch/table.rs"]),
    ("cudarc", &["backend/cuda/"]),
    ("etcetera", &["cli/settings.rs", "commands/chat/editor.rs"]),
    ("gemm", &["backend/cpu/", "backend/cuda/"]),
    ("clap", &["cli", "main.rs"]),
    ("clap_complete", &["cli/pages.rs"]),
    ("clap_mangen", &["cli/pages.rs"]),
    ("nvml_wrapper", &["commands/devices/"]),
    ("terminal_size", &["progress/"]),
    ("textwrap", &["progress/"]),
    ("indicatif", &["progress"]),
    // One way to the network, and load on a server of ours.
    ("ureq", &["download/", "bench/serve.rs", "commands/remote.rs", "commands/unix_transport.rs"]),
    ("sha1", &["download/"]),
    ("image", &["input/", "output/"]),
    ("png", &["input/", "output/"]),
    ("image_webp", &["input/", "metadata/", "output/"]),
    ("imagesize", &["files/content.rs", "input/read.rs"]),
    ("y4m", &["video/"]),
    ("zune_jpeg", &["input/"]),
    // The program replaces files in one way; measurements write weights to a folder of their own.
    ("tempfile", &["files/atomic.rs", "files/partial.rs", "bench/weights.rs", "queue/worker/inputs.rs"]),
    (
        "tokenizers",
        &[
            "text_encoder/tokenizer_file.rs",
            "text_encoder/prompt.rs",
            "text_encoder/qwen3.rs",
            "text_encoder/gguf_tokenizer.rs",
        ],
    ),
    ("flate2", &["text_encoder/qwen3.rs", "metadata/"]),
    ("rand_mt", &["sampler/noise.rs"]),
    (
        "rand",
        &["sampler/portable.rs", "cli/values.rs", "commands/batch/items.rs", "commands/remote.rs", "queue/", "server/"],
    ),
    ("rustdct", &["sampler/portable.rs"]),
    ("rustix", &["terminal/", "download/", "commands/remove/", "commands/ask.rs", "commands/live/", "server/"]),
    ("rustyline", &["commands/chat/editor.rs"]),
    ("sha2", &["download/", "files/digest.rs"]),
    ("signal_hook", &["commands/signals.rs", "queue/worker/watchdog.rs"]),
    ("toml", &["cli/settings.rs"]),
    ("libloading", &["backend/cuda/library.rs"]),
    ("parking_lot", &["backend/cuda/"]),
    (
        "lru",
        &["backend/graph_cache.rs", "backend/cuda/gemm/", "pipeline/", "server/repeats.rs", "text_encoder/prompt.rs"],
    ),
];

/// The rooms of the pipeline from top to bottom: each uses those below it, and names them instead of the pipeline.
const ROOMS: [&str; 5] = ["devices", "session", "residency", "request", "memory"];

/// Names that may carry unsafe code.
const UNSAFE: [&str; 8] = [
    "allocator.rs",
    "backend/cuda/",
    "backend/cpu/gemm.rs",
    "backend/cpu/amx",
    "backend/cpu/math.rs",
    "files/bytes.rs",
    "bus_error.rs",
    "hardware_queues.rs",
];

/// Modules of one folder that use each other in a circle, all that are known: `(folder, modules)`. A circle that is
/// gone, or has lost modules, leaves this list.
const CIRCLES: &[(&str, &[&str])] = &[
    // The trait names the parameters of ops and the tensors that they take, which are generic over it.
    ("", &["backend", "nn", "ops", "tensor"]),
    ("backend::cpu::amx", &["packed", "tiles", "windows"]),
];

/// What is wrong with a path in the file `file` (relative to src/), if anything.
fn complaint(file: &str, place: &Place) -> Option<String> {
    let path = match place {
        Place::Own(path) => path,
        Place::Other(path) => {
            let (name, places) = CRATES.iter().find(|(name, _)| path[0] == *name)?;
            let fine = places.iter().any(|place| file.starts_with(place));
            return (!fine).then(|| format!("`{name}` may be named in {places:?} only"));
        }
    };
    if let (Some(room), ["pipeline", used, ..]) =
        (file.strip_prefix("pipeline/"), &path.iter().map(String::as_str).collect::<Vec<_>>()[..])
    {
        let level = |name: &str| ROOMS.iter().position(|room| *room == name);
        let own = room.split_once('/').and_then(|(room, _)| level(room));
        let fine = own.is_none_or(|own| level(used).is_some_and(|used| used >= own));
        return (!fine).then(|| format!("`pipeline::{used}` is no room of the pipeline at or below it"));
    }
    let Some((own, allowed)) = LAYERS.iter().find(|(layer, _)| file.starts_with(layer)) else {
        return Some("the file is in no layer".to_string());
    };
    let used = path[..path.len().min(2)].join("::");
    let top = path.first().map_or("", String::as_str);
    let deep = used.starts_with("backend::cpu") || used.starts_with("backend::cuda");
    let inside = own.trim_end_matches(".rs") == top && !own.is_empty();
    // A backend may use itself, but not the other one; everyone else names the trait only.
    let fine = if deep {
        file.starts_with(&used.replace("::", "/")[.."backend/cpu".len()])
            || allowed.iter().any(|a| used.starts_with(a) && a.contains("::"))
    } else {
        inside || COMMON.contains(&top) || allowed.contains(&top)
    };
    (!fine && *allowed != ANY).then(|| format!("`{used}` is above it, or beside it"))
}

/// What is wrong with a file.
fn complaints(sources: &Sources, file: &SourceFile) -> Vec<String> {
    let name = &file.name;
    let mut found: BTreeSet<(usize, String)> = BTreeSet::new();
    for (line, place) in sources.used(file) {
        found.extend(complaint(name, &place).map(|why| (line, why)));
    }
    if !UNSAFE.iter().any(|place| name.starts_with(place)) {
        let why = format!("unsafe code may be in {UNSAFE:?} only");
        found.extend(file.unsafe_lines.iter().map(|line| (*line, why.clone())));
    }
    found.into_iter().map(|(line, why)| format!("src/{name}:{line}: {why}")).collect()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Whether a file of src/ is of the program; all others are of the library.
fn is_of_program(name: &str) -> bool {
    static MODULES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let main = fs::read_to_string(src().join("main.rs")).expect("UTF-8");
        let modules = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        let modules: Vec<_> = modules.chain(["main"]).map(String::from).collect();
        assert!(["cli", "commands"].iter().all(|module| modules.iter().any(|known| known == module)), "{modules:?}");
        modules
    });
    MODULES.iter().any(|module| name.split(['/', '.']).next() == Some(module))
}

/// For every module of src/ the modules of which it uses something.
fn module_graph() -> BTreeMap<Names, BTreeSet<Names>> {
    Sources::read(&src()).module_graph()
}

#[test]
fn no_arrow_points_up() {
    let sources = Sources::read(&src());
    let found: Vec<_> = sources.files.iter().flat_map(|file| complaints(&sources, file)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_library_names_no_crate_of_the_feature_cli() {
    let manifest = fs::read_to_string(src().with_file_name("Cargo.toml")).expect("UTF-8");
    let list = manifest.split("\ncli = [").nth(1).and_then(|rest| rest.split(']').next()).expect("a feature");
    let crates: Vec<_> = list.split("\"dep:").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(crates.contains(&"clap"), "{crates:?}");
    for name in crates {
        let known = CRATES.iter().find(|(known, _)| *known == name.replace('-', "_"));
        let (_, places) = known.unwrap_or_else(|| panic!("`{name}` is not in CRATES"));
        assert!(places.iter().all(|place| is_of_program(place)), "`{name}` may be named in {places:?}");
    }
}

#[test]
fn every_file_has_a_layer_and_every_layer_a_file() {
    for (layer, _) in LAYERS {
        assert!(src().join(layer).exists(), "{layer}");
    }
}

#[test]
fn siblings_use_each_other_in_no_circle_but_those_that_are_known() {
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let found = circles(&module_graph());
    let known = |(folder, modules): &&(String, BTreeSet<String>)| {
        CIRCLES.iter().any(|(of, names)| of == folder && modules.is_subset(&set(names)))
    };
    let unknown: Vec<_> = found.iter().filter(|circle| !known(circle)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    for (folder, names) in CIRCLES {
        let left: BTreeSet<_> =
            found.iter().filter(|(of, modules)| of == folder && modules.is_subset(&set(names))).collect();
        let left: BTreeSet<String> = left.into_iter().flat_map(|(_, modules)| modules.clone()).collect();
        assert_eq!(left, set(names), "the circle {names:?} in `{folder}` is smaller now: CIRCLES may be shorter");
    }
}

/// A file whose text is `code`, or has it in a function, among the files of src/.
fn complaints_about(file: &str, code: &str) -> Vec<String> {
    static FILES: LazyLock<Vec<SourceFile>> = LazyLock::new(|| Sources::read(&src()).files);
    let parsed = SourceFile::parse(file, code)
        .or_else(|_| SourceFile::parse(file, &format!("fn f() {{ {code} }}")))
        .unwrap_or_else(|error| panic!("{code}: {error}"));
    let others = FILES.iter().filter(|other| other.name != file).cloned();
    let sources = Sources::new(others.chain([parsed]).collect());
    complaints(&sources, sources.files.last().expect("it was pushed"))
}

#[test]
fn arrows_that_point_up_are_found() {
    let bad = [
        ("transformer/mod.rs", "use crate::pipeline::Model;"),
        ("transformer/mod.rs", "use crate::{error::Result, pipeline::Request};"),
        ("vae/mod.rs", "use crate::backend::cuda::Cuda;"),
        ("ops/linear.rs", "let x = crate::vae::Decoder::new();"),
        ("ops/linear.rs", "use crate::backend::cpu::Cpu;"),
        ("backend/cuda/linear.rs", "use crate::transformer::Transformer;"),
        ("backend/cuda/linear.rs", "use crate::backend::cpu::Cpu;"),
        ("pipeline/mod.rs", "use crate::backend::cuda::Cuda;"),
        ("pipeline/mod.rs", "use crate::output::Rgb;"),
        ("pipeline/residency/mod.rs", "use crate::pipeline::session::model::Model;"),
        ("pipeline/session/mod.rs", "use crate::pipeline::Plan;"),
        ("pipeline/memory/plan.rs", "use super::super::request::plan::Plan;"),
        ("model/open.rs", "use crate::pipeline::request::given::Given;"),
        ("nn.rs", "use crate::stage::Stage;"),
        ("files/tensor_files.rs", "use crate::backend::Backend;"),
        ("files/tensor_files.rs", "use crate::{Error, Tensor};"),
        ("files/quantised_cache.rs", "use crate::transformer;"),
        ("error.rs", "use crate::files::Bytes;"),
        ("ops/linear.rs", "use crate::files::TensorView;"),
        ("progress.rs", "use flux::backend::cpu::Cpu;"),
        ("commands/generate.rs", "use flux::backend::cpu::Cpu;"),
        ("commands/generate.rs", "use flux::transformer::Transformer;"),
        ("pipeline/mod.rs", "use cudarc::driver::CudaContext;"),
        ("pipeline/mod.rs", "fn f() { clap::Command::new(\"x\"); }"),
        ("main.rs", "image::open(path)"),
        ("output/mod.rs", "use tempfile::NamedTempFile;"),
        ("sampler/mod.rs", "use rand::Rng;"),
        ("vae/mod.rs", "unsafe { x() }"),
        // Of many lines, with braces in braces.
        (
            "vae/mod.rs",
            "use crate::{\n    error::Result,\n    backend::{\n        Backend,\n        cuda::{Cuda, graph},\n    },\n};",
        ),
        ("ops/linear.rs", "use crate::{tensor::{Tensor, self}, pipeline::{self, Plan}};"),
        // From a module upwards.
        ("vae/mid_block.rs", "use super::super::pipeline::Plan;"),
        ("ops/linear.rs", "use super::super::{error::Result, vae};"),
        ("backend/cuda/ops/linear.rs", "use super::super::super::cpu::Cpu;"),
        ("backend/mod.rs", "pub use self::cuda::Cuda;"),
        ("backend/mod.rs", "pub use cpu::Cpu;"),
        ("vae/mod.rs", "mod inner { use super::super::pipeline::Plan; }"),
        // In the middle of code.
        ("vae/mod.rs", "fn f(x: &[Option<crate::pipeline::Plan>]) {}"),
        ("vae/mod.rs", "impl<B> From<crate::pipeline::Plan> for X<B> {}"),
        ("vae/mod.rs", "println!(\"{}\", crate::pipeline::VERSION);"),
        ("vae/mod.rs", "macro_rules! m { ($x:expr) => { $crate::pipeline::draw($x) } }"),
        ("vae/mod.rs", "#[serde(with = \"x\")] #[given(crate::pipeline::Plan)] struct X;"),
        ("vae/mod.rs", "match x { crate::stage::Stage::Text => 1, _ => 2 };"),
        // By another name.
        ("vae/mod.rs", "use crate::backend as place; fn f(x: place::cuda::Cuda) {}"),
        ("vae/mod.rs", "use crate as all; fn f(x: all::pipeline::Plan) {}"),
        ("vae/mod.rs", "use crate::backend; use backend::cuda as gpu; fn f(x: gpu::Cuda) {}"),
        ("vae/mod.rs", "use crate::backend::*; fn f(x: cuda::Cuda) {}"),
        ("vae/mod.rs", "use crate::backend::{self as place}; fn f() { place::cpu::f() }"),
        ("vae/mod.rs", "use cudarc as driver;"),
        ("vae/mod.rs", "use ::rand::Rng as _;"),
        ("vae/mod.rs", "extern crate rand as noise;"),
        // Passed on.
        ("vae/mod.rs", "pub use crate::pipeline::Plan;"),
        ("vae/mod.rs", "pub(crate) use crate::{\n    pipeline::Plan as P,\n};"),
        ("tensor.rs", "pub use crate::output::*;"),
        // Unsafe code, and what allows it.
        ("vae/mod.rs", "unsafe fn f() {}"),
        ("vae/mod.rs", "unsafe impl Send for X {}"),
        ("vae/mod.rs", "m! { unsafe { x() } }"),
        ("vae/mod.rs", "#![allow(unsafe_code)]"),
        ("vae/mod.rs", "#[expect(dead_code, unsafe_code)] fn f() {}"),
        ("vae/mod.rs", "unsafe extern \"C\" { fn f(); }"),
        // Behind tests there is code again.
        ("vae/mod.rs", "#[cfg(test)] mod tests {} use crate::pipeline::Plan;"),
        ("vae/mod.rs", "#[cfg(any(test, unix))] use crate::pipeline::Plan;"),
        ("vae/mod.rs", "#[cfg(not(test))] use crate::pipeline::Plan;"),
    ];
    for (file, code) in bad {
        assert!(!complaints_about(file, code).is_empty(), "{file}: {code}");
    }
}

#[test]
fn arrows_that_point_down_are_fine() {
    let good = [
        ("transformer/mod.rs", "use crate::tensor::Tensor;"),
        ("transformer/mod.rs", "use crate::transformer::config::TransformerConfig;"),
        ("model/open.rs", "use crate::backend::cpu::{Cpu, Precision};"),
        ("backend/cuda/linear.rs", "use crate::backend::cuda::pool::Buffer;"),
        ("backend/cuda/mod.rs", "use cudarc::driver::sys;"),
        ("ops/mod.rs", "//! the kernels use crate::backend::cuda::Cuda"),
        ("ops/mod.rs", "let x = \"crate::backend::cuda::Cuda\"; // crate::vae::Decoder\n"),
        ("main.rs", "use flux::backend::cuda::Cuda;"),
        ("engine/devices.rs", "use crate::backend::cuda::{self, Cuda};"),
        ("tensor.rs", "let x = operand::f();"),
        ("vae/resnet_block.rs", "use super::mid_block::MidBlock;"),
        ("transformer/mod.rs", "use crate::{\n    backend::{self, Backend},\n    tensor::Tensor,\n};"),
        ("vae/mid_block.rs", "use super::super::tensor::Tensor;"),
        ("backend/cuda/ops/linear.rs", "use super::super::device::Device;"),
        ("backend/cuda/mod.rs", "pub use device::Cuda;"),
        ("ops/linear.rs", "use crate::backend as place; fn f<B: place::Backend>() {}"),
        // A variable of a crate's name, a module of that name, and a method.
        ("vae/mod.rs", "let image = f(); image.pixels; x.image::<u8>();"),
        ("backend/cuda/ops/linear.rs", "use super::super::gemm; gemm::multiply();"),
        ("vae/mod.rs", "mod rand { pub fn f() {} } fn g() { rand::f() }"),
        ("vae/mod.rs", "use crate::error as clap; fn f() -> clap::Result<()> {}"),
        // Tests may use what they like, wherever they stand.
        ("vae/mod.rs", "#[cfg(test)] mod tests { use crate::pipeline::Plan; unsafe fn f() {} }"),
        ("vae/mod.rs", "#[cfg(all(test, unix))] use crate::pipeline::Plan;"),
        ("vae/mod.rs", "impl X { #[cfg(test)] fn f() { crate::pipeline::f() } }"),
        ("vae/mod.rs", "#[deny(unsafe_code)] fn f() {}"),
        ("files/model_files.rs", "use crate::error::{Error, Result};"),
    ];
    for (file, code) in good {
        assert_eq!(complaints_about(file, code), [""; 0], "{file}: {code}");
    }
}

#[test]
fn files_that_only_tests_have_are_left_out() {
    let file = |name: &str, code: &str| SourceFile::parse(name, code).expect("this is Rust");
    let sources = Sources::new(vec![
        file("vae/mod.rs", "#[cfg(test)] mod tests; mod block;"),
        file("vae/tests.rs", "use crate::pipeline::Plan;"),
        file("vae/tests/more.rs", "use crate::pipeline::Plan;"),
        file("vae/block.rs", ""),
    ]);
    let names: Vec<_> = sources.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["vae/mod.rs", "vae/block.rs"]);
}

#[test]
fn circles_are_found_and_what_only_looks_like_one_is_not() {
    let found = |files: &[(&str, &str)]| {
        let parse = |(name, code): &(&str, &str)| SourceFile::parse(name, code).expect("this is Rust");
        let of = |(folder, modules): (String, BTreeSet<String>)| {
            format!("{folder}: {}", modules.into_iter().collect::<Vec<_>>().join(" "))
        };
        let found = circles(&Sources::new(files.iter().map(parse).collect()).module_graph());
        found.into_iter().map(of).collect::<Vec<_>>()
    };
    let parent = ("a/mod.rs", "mod b; mod c; mod d;");
    let b_c = ("a/b.rs", "use super::c::C;");
    assert_eq!(found(&[parent, b_c, ("a/c.rs", "use super::b::B;"), ("a/d.rs", "use super::{b, c};")]), ["a: b c"]);
    assert_eq!(
        found(&[parent, b_c, ("a/c.rs", "use crate::a::d;"), ("a/d.rs", "fn f() { super::b::f() }")]),
        ["a: b c d"]
    );
    // By what is in a folder, from one part of it to another.
    assert_eq!(
        found(&[("a/b.rs", "use crate::e::E;"), ("e/mod.rs", ""), ("e/f.rs", "use crate::a::b::B;")]),
        [": a e"]
    );
    // Behind a name that the parent passes on, or only imports.
    for passed_on in ["pub use c::C; pub use b::B;", "use self::{c::C, b::B};"] {
        let parent = ("a/mod.rs", passed_on);
        assert_eq!(found(&[parent, ("a/b.rs", "use super::C;"), ("a/c.rs", "use super::B;")]), ["a: b c"]);
    }
    // Parents and children use each other, and a row is no circle.
    let row = [("a/mod.rs", "use b::B; struct A;"), ("a/b.rs", "use super::A; use super::c::C;"), ("a/c.rs", "")];
    assert_eq!(found(&row), [""; 0]);
    assert_eq!(found(&[parent, b_c, ("a/c.rs", "#[cfg(test)] mod tests { use super::super::b::B; }")]), [""; 0]);
}
