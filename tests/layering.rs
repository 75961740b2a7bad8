//! Dependencies point one way: this test reads the imports and paths of src/ and fails if an arrow points up.
//!
//! ```text
//! engine -> pipeline -> model -> text_encoder, transformer, vae, sampler -> nn, tensor, ops -> backend <- cpu, cuda
//! pipeline: devices -> session -> residency -> request -> memory
//! model -> text_encoder, transformer, vae, sampler
//! text_encoder, transformer, vae, sampler -> nn, tensor, ops -> backend
//! backend <- cpu, cuda
//! ```

mod flags;
pub mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use paths::{Place, SourceFile, Sources, circles};

use crate::process::{names, project};

/// A part of the library and the parts that it may use besides itself and [`COMMON`]. `files`, `input`, `output`,
/// `metadata`, `rgb` and `stage` are crates below the library.
const LAYERS: [(&str, &[&str]); 18] = [
    ("lib.rs", ANY),
    (
        "engine/devices",
        &["engine", "stage", "pipeline", "model", "nn", "files", "backend", "backend::cpu", "backend::cuda"],
    ),
    (
        "engine",
        &[
            "default_model", "alpha", "input", "metadata", "output", "rgb", "pipeline", "model", "stage", "sampler",
            "upscaler", "files", "backend",
        ],
    ),
    (
        "pipeline",
        &[
            "input", "rgb", "model", "stage", "text_encoder", "transformer", "vae", "sampler", "nn", "files", "tensor",
            "tiles", "token_split", "ops", "backend",
        ],
    ),
    // Opening checks every tensor on the host, at no cost.
    ("model", &["stage", "text_encoder", "transformer", "vae", "sampler", "nn", "files", "backend", "backend::cpu"]),
    ("text_encoder", &["nn", "files", "tensor", "ops", "backend"]),
    ("transformer", &["nn", "files", "tensor", "ops", "backend"]),
    ("vae", &["rgb", "nn", "files", "tensor", "token_split", "ops", "backend"]),
    ("upscaler", &["rgb", "stage", "nn", "files", "tensor", "tiles", "ops", "backend"]),
    ("sampler", &["transformer", "tensor", "tiles", "ops", "backend"]),
    ("tensor.rs", &["ops", "backend"]),
    ("ops", &["nn", "tensor", "active_tokens", "token_layout", "token_split", "backend"]),
    ("active_tokens.rs", &["token_layout"]),
    ("tiles.rs", &[]),
    ("token_layout.rs", &[]),
    ("token_split.rs", &["token_layout"]),
    ("backend", &["files", "nn", "tensor", "ops"]),
    ("nn", &["files", "tensor", "backend"]),
];
const COMMON: [&str; 4] = ["error", "memory", "Error", "Result"];
const ANY: &[&str] = &["*"];

/// A crate and the only places of the library where it may be named. (The CUDA backend has a module `gemm` of its own.)
const CRATES: [(&str, &[&str]); 10] = [
    ("base64", &["engine/image_recipe.rs"]),
    ("cudarc", &["backend/cuda/"]),
    ("gemm", &["backend/cpu/", "backend/cuda/"]),
    (
        "tokenizers",
        &[
            "text_encoder/tokenizer_file.rs",
            "text_encoder/prompt.rs",
            "text_encoder/qwen3.rs",
            "text_encoder/gguf_tokenizer.rs",
        ],
    ),
    ("flate2", &["text_encoder/qwen3.rs"]),
    ("rand_mt", &["sampler/noise.rs"]),
    ("rand", &["sampler/seed.rs", "sampler/stream.rs"]),
    ("rustdct", &["sampler/portable.rs"]),
    ("libloading", &["backend/cuda/library.rs"]),
    ("lru", &["backend/graph_cache.rs", "backend/cuda/gemm/", "pipeline/", "text_encoder/prompt.rs"]),
];

/// The submodules of the pipeline from top to bottom: each uses those below it, and names them directly, not through
/// the pipeline.
const ROOMS: [&str; 5] = ["devices", "session", "residency", "request", "memory"];

/// Names that may contain unsafe code.
const UNSAFE: [&str; 9] = [
    "src/backend/cuda/",
    "src/backend/cpu/gemm.rs",
    "src/backend/cpu/tiles",
    "src/backend/cpu/math.rs",
    "crates/flux-files/src/io/bytes.rs",
    "crates/flux-files/src/io/page_cache.rs",
    "crates/flux-runtime/src/allocator.rs",
    "crates/flux-runtime/src/bus_error.rs",
    "crates/flux-runtime/src/hardware_queues.rs",
];

/// Known modules of one folder that use each other in a cycle: `(folder, modules)`. A cycle that is gone, or has lost
/// modules, must leave this list.
const CIRCLES: &[(&str, &[&str])] = &[
    // The trait names the parameters of ops and the tensors that they take, which are generic over it.
    ("", &["backend", "nn", "ops", "tensor"]),
    ("backend::cpu::tiles", &["packed", "tile", "windows"]),
];

/// Returns the complaint about a path in the file `file` (relative to src/), if any.
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
    // A backend may use itself, but not the other one; all other code names only the trait.
    let fine = if deep {
        file.starts_with(&used.replace("::", "/")[.."backend/cpu".len()])
            || allowed.iter().any(|a| used.starts_with(a) && a.contains("::"))
    } else {
        inside || COMMON.contains(&top) || allowed.contains(&top)
    };
    (!fine && *allowed != ANY).then(|| format!("`{used}` is above it, or beside it"))
}

/// Returns the complaints about a file.
fn complaints(sources: &Sources, file: &SourceFile) -> Vec<String> {
    let mut found: BTreeSet<(usize, String)> = BTreeSet::new();
    for (line, place) in sources.used(file) {
        found.extend(complaint(&file.name, &place).map(|why| (line, why)));
    }
    let found = found.into_iter().map(|(line, why)| format!("src/{}:{line}: {why}", file.name));
    found.chain(unsafe_lines("src", file)).collect()
}

/// The lines of a file with unsafe code, if it may have none.
fn unsafe_lines(folder: &str, file: &SourceFile) -> Vec<String> {
    let name = format!("{folder}/{}", file.name);
    let lines = if UNSAFE.iter().any(|place| name.starts_with(place)) { &[] } else { &file.unsafe_lines[..] };
    lines.iter().map(|line| format!("{name}:{line}: unsafe code may be in {UNSAFE:?} only")).collect()
}

fn src() -> PathBuf {
    project("src")
}

/// The sources of each crate but the library, by their folder from the project's root.
fn crates() -> Vec<(String, Sources)> {
    let folders = names(&project("crates")).into_iter().map(|name| format!("crates/{name}/src"));
    folders.map(|folder| (folder.clone(), Sources::read(&project(&folder)))).collect()
}

#[test]
fn no_arrow_points_up() {
    let sources = Sources::read(&src());
    let found: Vec<_> = sources.files.iter().flat_map(|file| complaints(&sources, file)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// The crates of the workspace that a crate depends on, sorted.
fn own_dependencies(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[").filter_map(|section| section.strip_prefix("dependencies]\n"));
    let names = sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ']).next());
    let mut own: Vec<_> = names.filter(|name| *name == "flux" || name.starts_with("flux-")).map(String::from).collect();
    own.sort();
    own
}

#[test]
fn the_drawing_of_the_crates_is_that_of_their_manifests() {
    let page = fs::read_to_string(project("docs/architecture.md")).expect("the page");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a drawing");
    let drawn: BTreeSet<_> = block.lines().filter(|line| line.contains(" -> ")).map(String::from).collect();
    let folders = names(&project("crates")).into_iter().map(|name| (name.clone(), format!("crates/{name}")));
    let arrow = |(name, folder): (String, String)| {
        let manifest = fs::read_to_string(project(&folder).join("Cargo.toml")).expect("a manifest");
        let uses = own_dependencies(&manifest);
        format!("{name} -> {}", if uses.is_empty() { "(none)".to_string() } else { uses.join(", ") })
    };
    let known: BTreeSet<_> = folders.chain([("flux".to_string(), String::new())]).map(arrow).collect();
    assert_eq!(drawn, known);
}

#[test]
fn unsafe_code_is_in_few_places() {
    let found: Vec<_> = crates()
        .iter()
        .flat_map(|(folder, sources)| sources.files.iter().flat_map(|file| unsafe_lines(folder, file)))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(UNSAFE.iter().all(|place| project(place).exists() || project(&format!("{place}.rs")).exists()));
}

#[test]
fn every_file_has_a_layer_and_every_layer_a_file() {
    for (layer, _) in LAYERS {
        assert!(src().join(layer).exists(), "{layer}");
    }
}

#[test]
fn siblings_use_each_other_in_no_circle_but_those_that_are_known() {
    let found = circles(&Sources::read(&src()).module_graph());
    let known: Vec<_> = CIRCLES
        .iter()
        .map(|(folder, names)| (folder.to_string(), names.iter().map(ToString::to_string).collect::<BTreeSet<_>>()))
        .collect();
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), known.into_iter().collect());
    for (folder, sources) in crates() {
        assert_eq!(circles(&sources.module_graph()), [], "{folder}");
    }
}

/// Returns the complaints about a file with the text `code`, alone or in a function, among the files of src/.
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
        ("ops/linear.rs", "use crate::files::TensorView;"),
        ("pipeline/mod.rs", "use cudarc::driver::CudaContext;"),
        ("sampler/mod.rs", "use rand::Rng;"),
        ("vae/mod.rs", "unsafe { x() }"),
        // Several lines, with nested braces.
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
        // Re-exported.
        ("vae/mod.rs", "pub use crate::pipeline::Plan;"),
        ("vae/mod.rs", "pub(crate) use crate::{\n    pipeline::Plan as P,\n};"),
        ("tensor.rs", "pub use crate::output::*;"),
        // Unsafe code, and its permission.
        ("vae/mod.rs", "unsafe fn f() {}"),
        ("vae/mod.rs", "unsafe impl Send for X {}"),
        ("vae/mod.rs", "m! { unsafe { x() } }"),
        ("vae/mod.rs", "#![allow(unsafe_code)]"),
        ("vae/mod.rs", "#[expect(dead_code, unsafe_code)] fn f() {}"),
        ("vae/mod.rs", "unsafe extern \"C\" { fn f(); }"),
        // Code continues after tests.
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
        ("vae/mod.rs", "use crate::error as rand; fn f() -> rand::Result<()> {}"),
        // Tests may use everything, in any position.
        ("vae/mod.rs", "#[cfg(test)] mod tests { use crate::pipeline::Plan; unsafe fn f() {} }"),
        ("vae/mod.rs", "#[cfg(all(test, unix))] use crate::pipeline::Plan;"),
        ("vae/mod.rs", "impl X { #[cfg(test)] fn f() { crate::pipeline::f() } }"),
        ("vae/mod.rs", "#[deny(unsafe_code)] fn f() {}"),
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
    // By the content of a folder, from one part of it to another.
    assert_eq!(
        found(&[("a/b.rs", "use crate::e::E;"), ("e/mod.rs", ""), ("e/f.rs", "use crate::a::b::B;")]),
        [": a e"]
    );
    // Through a name that the parent re-exports, or only imports.
    for passed_on in ["pub use c::C; pub use b::B;", "use self::{c::C, b::B};"] {
        let parent = ("a/mod.rs", passed_on);
        assert_eq!(found(&[parent, ("a/b.rs", "use super::C;"), ("a/c.rs", "use super::B;")]), ["a: b c"]);
    }
    // Parents and children use each other, and a chain is no cycle.
    let row = [("a/mod.rs", "use b::B; struct A;"), ("a/b.rs", "use super::A; use super::c::C;"), ("a/c.rs", "")];
    assert_eq!(found(&row), [""; 0]);
    assert_eq!(found(&[parent, b_c, ("a/c.rs", "#[cfg(test)] mod tests { use super::super::b::B; }")]), [""; 0]);
}
