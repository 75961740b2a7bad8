//! Structs that kernels take by value have the same layout in their launcher and in cuda/.
//!
//! Launchers check their structs at compile time, but no compiler sees both sides: this test lays out the declarations
//! in cuda/ as C++ does, and compares them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use regex::Regex;

use crate::process::project;

/// The struct of each launcher, and its mirror in cuda/.
const MIRRORS: [(&str, &str, &str, &str); 11] = [
    ("exchange.rs", "Barrier", "exchange.cu", "Meeting"),
    ("exchange.rs", "Parameters", "exchange.cu", "Exchange"),
    ("host_exchange.rs", "Parameters", "exchange.cu", "HostExchange"),
    ("ops/attention_e4m3.rs", "Arguments", "attention_e4m3_sm90a.cu", "Arguments"),
    ("ops/concat.rs", "Parts", "concat.cu", "Parts"),
    ("ops/conv2d_narrow.rs", "Arguments", "conv2d_narrow_sm90a.cuh", "Arguments"),
    ("ops/conv2d_taps.rs", "Arguments", "conv2d_taps.cu", "Arguments"),
    ("ops/low_rank.rs", "Arguments", "low_rank_sm90a.cu", "Arguments"),
    ("ops/project.rs", "Arguments", "project_tiles_sm90a.cuh", "Arguments"),
    ("ops/qk_norm_rope.rs", "Heads", "qk_norm_rope.cu", "Heads"),
    ("pieces.rs", "RowCopy", "exchange.cu", "Copy"),
];

/// A size and the offset of each field, in order.
#[derive(Debug, PartialEq)]
struct Layout {
    size: usize,
    fields: Vec<(String, usize)>,
}

/// Returns the layouts that a launcher checks, by the names of their structs.
fn launcher_layouts(source: &str) -> BTreeMap<String, Layout> {
    let check = Regex::new(r"(?s)assert_layout! \{ (\w+): (\d+),(.*?)\}").expect("a pattern");
    let field = Regex::new(r"(\w+): (\d+)").expect("a pattern");
    let number = |text: &str| text.parse().expect("a number");
    let layout = |found: regex::Captures<'_>| {
        let fields = field.captures_iter(&found[3]).map(|found| (found[1].to_string(), number(&found[2])));
        (found[1].to_string(), Layout { size: number(&found[2]), fields: fields.collect() })
    };
    check.captures_iter(source).map(layout).collect()
}

/// Returns the layout of a struct in a file of cuda/. Pointers and numbers have their own size as alignment, tensor
/// maps 64 bytes. Lengths of arrays are numbers or constants of the file.
fn kernel_layout(source: &str, name: &str) -> Option<Layout> {
    let body = source.split_once(&format!("struct {name} {{\n"))?.1.split_once("\n};")?.0;
    let code: String = body.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let constant = |name: &str| -> usize {
        let value = Regex::new(&format!(r"\b{name} = (\d+)")).expect("a pattern").captures(source);
        name.parse().ok().or_else(|| value?[1].parse().ok()).unwrap_or_else(|| panic!("{name} is no constant"))
    };
    let (mut end, mut widest, mut fields) = (0, 1, Vec::new());
    for declaration in code.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        let kind = ["unsigned long long", "long long", "unsigned", "int", "float", "TensorMap", "Meeting", "Copy"];
        let kind = kind.into_iter().find(|kind| declaration.starts_with(&format!("{kind} ")));
        let (size, align) = match kind.filter(|_| !declaration.contains('*')) {
            None | Some("unsigned long long" | "long long") => (8, 8),
            Some("TensorMap") => (128, 64),
            Some(inner @ ("Meeting" | "Copy")) => (kernel_layout(source, inner)?.size, 8),
            Some(_) => (4, 4),
        };
        let start = kind
            .filter(|_| !declaration.contains('*'))
            .map_or_else(|| declaration.rfind('*').map(|at| at + 1), |kind| Some(kind.len()));
        for declared in declaration[start?..].split(',').map(str::trim) {
            let (field, count) = declared
                .split_once('[')
                .map_or((declared, 1), |(field, length)| (field, constant(length.trim_end_matches(']'))));
            end = usize::next_multiple_of(end, align);
            fields.push((field.to_string(), end));
            (end, widest) = (end + size * count, widest.max(align));
        }
    }
    Some(Layout { size: end.next_multiple_of(widest), fields })
}

/// Returns the names of the fields of each `#[repr(C)]` struct.
fn structs(source: &str) -> BTreeMap<String, Vec<String>> {
    let found =
        Regex::new(r"(?s)#\[repr\(C\)\]\n(?:#\[[^\n]*\n)*[^\n]*?struct (\w+) \{\n(.*?)\n\}").expect("a pattern");
    let field = Regex::new(r"(?m)^    (?:pub(?:\(\w+\))? )?(\w+): ").expect("a pattern");
    let fields = |body: &str| field.captures_iter(body).map(|found| found[1].to_string()).collect();
    found.captures_iter(source).map(|found| (found[1].to_string(), fields(&found[2]))).collect()
}

fn read(folder: &str, file: &str) -> String {
    let path = project(folder).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Adds all Rust files below a folder, with their paths from `root`.
fn rust_files(folder: &Path, root: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, root, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/"));
        }
    }
}

#[test]
fn launchers_and_kernels_check_the_same_layouts() {
    for (launcher, rust, kernel, cuda) in MIRRORS {
        let own = launcher_layouts(&read("src/backend/cuda", launcher)).remove(rust);
        let source = read("cuda", kernel).replace("outboxes", "staging_buffers"); // the name in the launcher
        let other = kernel_layout(&source, cuda);
        assert!(own.is_some() && own == other, "{launcher} {rust}: {own:?}\n{kernel} {cuda}: {other:?}");
    }
}

#[test]
fn every_mirrored_struct_checks_all_of_its_fields() {
    let root = project("src/backend/cuda");
    let mut files = Vec::new();
    rust_files(&root, &root, &mut files);
    let mut found = Vec::new();
    for file in &files {
        let source = read("src/backend/cuda", file);
        let checked = launcher_layouts(&source);
        for (name, fields) in structs(&source) {
            let layout = checked.get(&name).unwrap_or_else(|| panic!("{file}: the layout of {name} is not checked"));
            assert_eq!(
                layout.fields.iter().map(|(field, _)| field).collect::<Vec<_>>(),
                fields.iter().collect::<Vec<_>>()
            );
            found.push((file.clone(), name));
        }
    }
    found.sort();
    let known = MIRRORS.map(|(file, name, ..)| (file.to_string(), name.to_string()));
    assert_eq!(found, known, "MIRRORS lists every `#[repr(C)]` struct of src/backend/cuda");
}

#[test]
fn a_field_that_moves_is_noticed() {
    let kernel =
        "const int PARTS = 3;\nstruct Parts {\n    const char* from; // of all\n    int end[PARTS], last;\n};\n";
    let layout = |text: &str| launcher_layouts(&format!("assert_layout! {{ {text} }}")).remove("Parts");
    assert_eq!(layout("Parts: 24, from: 0,\n    end: 8, last: 20"), kernel_layout(kernel, "Parts"));
    for other in
        ["Parts: 32, from: 0, end: 8, last: 20", "Parts: 24, from: 0, end: 4, last: 20", "Parts: 24, from: 0, end: 8"]
    {
        assert_ne!(layout(other), kernel_layout(kernel, "Parts"), "{other}");
    }
}
