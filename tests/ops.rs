//! The files of an op. Every op has a file in `src/ops`, a method in the trait and a line in the op index. An op with a
//! kernel of its own has the kernel, the launcher and the parity test under the op's name; [`COLLECTIVES`] and
//! [`COMBINED`] have no kernel of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const OPS: &str = "src/ops";
const LAUNCHERS: &str = "src/backend/cuda/ops";
const KERNELS: &str = "cuda";
const PARITY: &str = "tests/parity";
const PARITY_PROGRAM: &str = "tests/parity/main.rs";

/// The suffix of kernel files for Hopper only.
const HOPPER_SUFFIX: &str = "_sm90a";

/// Ops between devices. All are made of the kernel `exchange`, and `parallel` tests them.
const COLLECTIVES: [&str; 6] = ["all_gather", "all_reduce", "all_to_all", "broadcast", "halo", "swap"];
/// Ops that are made of other ops' kernels.
const COMBINED: [&str; 3] = ["dense_block", "norm_conv2d", "project_attention"];

/// The names of all files and methods of ops.
#[derive(Clone)]
struct Sources {
    /// Names of the files of each place, without extensions.
    ops: BTreeSet<String>,
    launchers: BTreeSet<String>,
    kernels: BTreeSet<String>,
    parity: BTreeSet<String>,
    /// Parity files that [`PARITY_PROGRAM`] compiles.
    compiled: BTreeSet<String>,
    /// Ops in `trait Ops`. One method may stand for several, its variants.
    of_trait: BTreeSet<String>,
    /// Op files, and the methods of `Tensor` in them.
    methods: BTreeSet<(String, String)>,
    /// The names in the op index, in order.
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

/// Names of the files in `folder` with this extension, except `mod.rs` and `main.rs`.
fn names(folder: &str, extension: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(project().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let files = files.iter().filter(|path| path.extension().is_some_and(|found| found == extension));
    files.filter_map(|path| stem(path)).filter(|name| name != "mod" && name != "main").collect()
}

/// Returns the identifier at the start of `text`.
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
            compiled: identifiers_after(&read(PARITY_PROGRAM), "\nmod ").into_iter().collect(),
            of_trait: identifiers_after(&read("src/backend/ops.rs"), "[`Tensor::").into_iter().collect(),
            index: identifiers_after(&index, "](Tensor::"),
        }
    }

    /// Returns the op of a method or a file of this name: the longest op name that it equals or begins with.
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

    /// Returns the faults in the files of the ops.
    fn wrong_files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for op in &self.ops {
            let is_collective = COLLECTIVES.contains(&op.as_str());
            let has_kernel = !is_collective && !COMBINED.contains(&op.as_str());
            for (place, is_needed) in [(LAUNCHERS, !is_collective), (PARITY, !is_collective), (KERNELS, has_kernel)] {
                if is_needed && !self.has_file(place, op) {
                    found.push(format!("{place} has no file of the op {op}"));
                }
            }
            if !has_kernel && self.has_file(KERNELS, op) {
                found.push(format!("the op {op} has a kernel of its own, so it is not in COLLECTIVES or COMBINED"));
            }
        }
        let gone = COLLECTIVES.iter().chain(&COMBINED).filter(|op| !self.ops.contains(**op));
        found.extend(gone.map(|op| format!("{OPS} has no {op}, which COLLECTIVES or COMBINED names")));
        let uncompiled = self.parity.difference(&self.compiled);
        found.extend(uncompiled.map(|file| format!("{PARITY_PROGRAM} does not compile {file}")));
        found
    }

    /// Returns the faults in the ops of the trait, the methods of `Tensor`, and the op index.
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
fn every_op_has_its_files() {
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
    let changes: [(&str, Change); 11] = [
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
        ("a kernel of a combined op", |s| {
            s.kernels.insert("norm_conv2d".to_string());
        }),
        ("a collective that is gone", |s| {
            s.ops.remove("swap");
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
