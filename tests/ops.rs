//! One op has one name in four places: this reads the names of files, the trait and the op index, and fails where a
//! name is missing or belongs to no op.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const OPS: &str = "src/ops";
const LAUNCHERS: &str = "src/backend/cuda/ops";
const KERNELS: &str = "cuda";
const PARITY: &str = "tests/parity";

/// The end of the name of a kernel file for Hopper only.
const HOPPER_SUFFIX: &str = "_sm90a";

/// The ops that have no file of their own in a place, and why.
const MISSING: [(&str, &str, &str); 15] = [
    (KERNELS, "norm_conv2d", "it is made of the kernels of group_norm and conv2d"),
    (KERNELS, "project_attention", "it is made of the kernels of project and attention"),
    (KERNELS, "all_gather", EXCHANGE),
    (PARITY, "all_gather", COLLECTIVES),
    (KERNELS, "all_reduce", EXCHANGE),
    (PARITY, "all_reduce", COLLECTIVES),
    (KERNELS, "all_to_all", EXCHANGE),
    (PARITY, "all_to_all", COLLECTIVES),
    (KERNELS, "broadcast", EXCHANGE),
    (PARITY, "broadcast", COLLECTIVES),
    (KERNELS, "halo", EXCHANGE),
    (PARITY, "halo", COLLECTIVES),
    (LAUNCHERS, "swap", "it is called once a step, and is an exchange already"),
    (KERNELS, "swap", EXCHANGE),
    (PARITY, "swap", COLLECTIVES),
];
const EXCHANGE: &str = "all collectives are one exchange";
const COLLECTIVES: &str = "parallel has all collectives";

/// Files that belong to no op, and why.
const NO_OPS: [(&str, &str, &str); 40] = [
    (LAUNCHERS, "ceiling", "what mma.sync does where it does nothing else"),
    (LAUNCHERS, "dequantise", "products dequantise weights in the formats of files: no op of the trait"),
    (LAUNCHERS, "elementwise", "what the launchers of add and mul share"),
    (LAUNCHERS, "factors", "what is beside a weight of low rank"),
    (LAUNCHERS, "occupancy", "what the compiler says of all kernels"),
    (LAUNCHERS, "quantise", "products quantise what they take: no op of the trait"),
    (KERNELS, "ceiling", "what mma.sync does where it does nothing else"),
    (KERNELS, "collapse_taps", "weights of convolutions of upsampled images"),
    (KERNELS, "dequantise", "products dequantise weights in the formats of files: no op of the trait"),
    (KERNELS, "exchange", "what all collectives are made of"),
    (KERNELS, "quantise", "products quantise what they take: no op of the trait"),
    (KERNELS, "quantise_int8", "the same, and weights while they are loaded"),
    (KERNELS, "quantise_w4a8", "weights are quantised while they are loaded"),
    (KERNELS, "quantise_weight", "weights are quantised while they are loaded"),
    (KERNELS, "unscale", "factors of low rank beside a weight in e4m3"),
    (KERNELS, "transfer", "values between host and device"),
    (PARITY, "adapters", "products with layers that have factors of low rank"),
    (PARITY, "attention_e4m3", "attention in another way, which has a definition of its own"),
    (PARITY, "capability", "forms of kernels for other GPUs"),
    (PARITY, "compare", "what all parity tests share"),
    (PARITY, "dequantise", "weights in the formats of files"),
    (PARITY, "doors", "what all ops refuse"),
    (PARITY, "editing", "whole images from images"),
    (PARITY, "flux3", "whole images of FLUX.3"),
    (PARITY, "fp8", "all products of quantised values"),
    (PARITY, "fp8_weights", "weights that are quantised while they are loaded"),
    (PARITY, "full_size", "whole images of full-size models"),
    (PARITY, "graph", "captured work"),
    (PARITY, "half", "what is special to fp16"),
    (PARITY, "int8", "all products of integers"),
    (PARITY, "meaning", "what images show"),
    (PARITY, "memory", "allocations, waits and events"),
    (PARITY, "copies", "weights that come from another GPU"),
    (PARITY, "parallel", "collectives, and whole images by several ranks"),
    (PARITY, "pipeline", "whole images"),
    (PARITY, "selftest", "every op of an image, as users test their device"),
    (PARITY, "streaming", "whole images with blocks that take turns in memory"),
    (PARITY, "tiny_decoder", "previews by a tiny decoder"),
    (PARITY, "transfer", "values between host and device"),
    (PARITY, "vae_encoder", "an image on its way through all of the encoder"),
];

/// What the four places hold.
#[derive(Clone)]
struct Sources {
    /// Names of the files of each place, without their endings.
    ops: BTreeSet<String>,
    launchers: BTreeSet<String>,
    kernels: BTreeSet<String>,
    parity: BTreeSet<String>,
    /// Parity files that tests/gpu.rs compiles.
    compiled: BTreeSet<String>,
    /// Ops that `trait Ops` names. One method may stand for several, which are its variants.
    of_trait: BTreeSet<String>,
    /// Op files, and the methods of `Tensor` in them.
    methods: BTreeSet<(String, String)>,
    /// The names in the op index, in its order.
    index: Vec<String>,
}

/// A change to the names that makes a fault.
type Change = fn(&mut Sources);

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(project().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Names of the files in `folder` with this extension, except `mod.rs`.
fn names(folder: &str, extension: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(project().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let files = files.iter().filter(|path| path.extension().is_some_and(|found| found == extension));
    files.filter_map(|path| stem(path)).filter(|name| name != "mod").collect()
}

/// The identifier that `text` begins with.
fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The identifiers after each `prefix` in `text`.
fn identifiers_after(text: &str, prefix: &str) -> Vec<String> {
    text.split(prefix).skip(1).map(identifier).collect()
}

/// Methods of `Tensor` in the text of an op file.
fn tensor_methods(text: &str) -> Vec<String> {
    let blocks = text.split("\nimpl<B: Backend> Tensor<B> {\n").skip(1);
    let lines = blocks.flat_map(|block| block.lines().take_while(|line| *line != "}"));
    lines.filter_map(|line| line.strip_prefix("    pub fn ")).map(identifier).collect()
}

impl Sources {
    fn read() -> Self {
        let ops = names(OPS, "rs");
        let methods = ops.iter().flat_map(|op| {
            let methods = tensor_methods(&read(&format!("{OPS}/{op}.rs")));
            methods.into_iter().map(|method| (op.clone(), method))
        });
        let index = read(&format!("{OPS}/mod.rs"));
        let index = index.lines().filter(|line| line.starts_with("//! | ")).collect::<Vec<_>>().join("\n");
        Self {
            methods: methods.collect(),
            ops,
            launchers: names(LAUNCHERS, "rs"),
            kernels: names(KERNELS, "cu"),
            parity: names(PARITY, "rs"),
            compiled: identifiers_after(&read("tests/gpu.rs"), "#[path = \"parity/").into_iter().collect(),
            of_trait: identifiers_after(&read("src/backend/ops.rs"), "[`Tensor::").into_iter().collect(),
            index: identifiers_after(&index, "](Tensor::"),
        }
    }

    /// The op to which a method or a file of this name belongs: the longest op name that it equals or begins with.
    fn op_of(&self, name: &str) -> Option<&String> {
        let begins = |op: &str| name.strip_prefix(op).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        self.ops.iter().filter(|op| begins(op)).max_by_key(|op| op.len())
    }

    fn has_file(&self, place: &str, op: &str) -> bool {
        match place {
            LAUNCHERS => self.launchers.contains(op),
            KERNELS => self.kernels.contains(op) || self.kernels.contains(&format!("{op}{HOPPER_SUFFIX}")),
            _ => self.parity.contains(op),
        }
    }

    /// What is wrong with the files of the ops.
    fn wrong_files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let listed = |list: &[(&str, &str, &str)], place: &str, name: &str| {
            list.iter().any(|(in_place, of, _)| *in_place == place && *of == name)
        };
        for op in &self.ops {
            for place in [LAUNCHERS, KERNELS, PARITY] {
                if self.has_file(place, op) == listed(&MISSING, place, op) {
                    found.push(format!("{place} and MISSING do not agree about a file of the op {op}"));
                }
            }
        }
        for (place, files) in [(LAUNCHERS, &self.launchers), (KERNELS, &self.kernels), (PARITY, &self.parity)] {
            for file in files {
                let op = self.op_of(file.strip_suffix(HOPPER_SUFFIX).unwrap_or(file));
                // A parity test is in the one file of its op.
                let has_op = op.is_some_and(|op| place != PARITY || op == file);
                if has_op == listed(&NO_OPS, place, file) {
                    found.push(format!("{place} and NO_OPS do not agree about the op of {file}"));
                }
            }
            for (_, gone, _) in NO_OPS.iter().filter(|(of, name, _)| *of == place && !files.contains(*name)) {
                found.push(format!("{place} has no {gone}, which NO_OPS names"));
            }
        }
        for (place, gone, _) in MISSING.iter().filter(|(_, op, _)| !self.ops.contains(*op)) {
            found.push(format!("{gone} is no op, of which MISSING says that it has no file in {place}"));
        }
        let differing = self.parity.symmetric_difference(&self.compiled);
        found.extend(differing.map(|file| format!("{PARITY} and tests/gpu.rs do not agree about {file}")));
        found
    }

    /// What is wrong with the ops of the trait, the methods of `Tensor`, and the op index.
    fn wrong_names(&self) -> Vec<String> {
        let mut found = Vec::new();
        for op in &self.ops {
            if !self.of_trait.iter().any(|method| self.op_of(method) == Some(op)) {
                found.push(format!("{OPS}/{op}.rs is of no op of the trait"));
            }
        }
        for method in &self.of_trait {
            let files: Vec<_> = self.methods.iter().filter(|(_, name)| name == method).map(|(file, _)| file).collect();
            if files != Vec::from_iter(self.op_of(method)) || files.is_empty() {
                found.push(format!("Tensor::{method}, to which the trait refers, is in {files:?} of {OPS}"));
            }
        }
        for (file, method) in &self.methods {
            if self.index.iter().filter(|name| *name == method).count() != 1 {
                found.push(format!("{method} of {OPS}/{file}.rs is not in the op index once"));
            }
        }
        let is_op = |name: &String| self.methods.iter().any(|(_, method)| method == name);
        found.extend(self.index.iter().filter(|name| !is_op(name)).map(|name| format!("{name} of the index is no op")));
        found
    }
}

#[test]
fn every_op_has_its_name_in_four_places() {
    let sources = Sources::read();
    let found = [sources.wrong_files(), sources.wrong_names()].concat();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_name_that_is_missing_or_stands_for_nothing_is_found() {
    let sources = Sources::read();
    let wrong = |change: Change| {
        let mut changed = sources.clone();
        change(&mut changed);
        [changed.wrong_files(), changed.wrong_names()].concat()
    };
    assert!(wrong(|_| {}).is_empty());
    let changes: [(&str, Change); 14] = [
        ("an op without a launcher", |s| {
            s.launchers.remove("silu");
        }),
        ("an op without a kernel", |s| {
            s.kernels.remove("rope");
        }),
        ("an op without its one kernel", |s| {
            s.kernels.remove("project_sm90a");
        }),
        ("an op without a parity test", |s| {
            s.parity.remove("guide");
        }),
        ("a parity test that is not compiled", |s| {
            s.compiled.remove("guide");
        }),
        ("a launcher without an op", |s| {
            s.launchers.insert("sampler".to_string());
        }),
        ("a kernel without an op", |s| {
            s.kernels.insert("softmax_sm90a".to_string());
        }),
        ("a second parity file", |s| {
            s.parity.insert("linear_rows".to_string());
        }),
        ("a kernel that was said to be missing", |s| {
            s.kernels.insert("norm_conv2d".to_string());
        }),
        ("a file that is no longer there", |s| {
            s.parity.remove("fp8");
        }),
        ("a file of no op", |s| {
            s.ops.insert("elementwise".to_string());
        }),
        ("an op of the trait without a file", |s| {
            s.of_trait.insert("softmax".to_string());
        }),
        ("an op in the file of another", |s| {
            s.methods.insert(("add".to_string(), "mul".to_string()));
        }),
        ("an op that the index leaves out", |s| {
            s.index.pop();
        }),
    ];
    for (what, change) in changes {
        assert!(!wrong(change).is_empty(), "{what}");
    }
}

#[test]
fn names_belong_to_the_longest_op() {
    let sources = Sources::read();
    let op_of = |name: &str| sources.op_of(name).map(String::as_str);
    assert_eq!(op_of("swiglu_linear_rows"), Some("swiglu"));
    assert_eq!(op_of("gated_add_adaln"), Some("gated_add_adaln"));
    assert_eq!(op_of("gated_add"), Some("gated_add"));
    assert_eq!(op_of("upsample_conv2d"), Some("upsample_conv2d"));
    assert_eq!(op_of("attention_softmax"), Some("attention"));
    assert_eq!((op_of("additive"), op_of("softmax")), (None, None));
}
