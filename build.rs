//! Compiles every `cuda/*.cu` with nvcc to one compressed fatbin and writes the kernel table that `backend::cuda`
//! includes.
//!
//! nvcc is looked for in `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH`, the project's `.cuda` and `.venv` (see `make
//! cuda-toolkit`), `/usr/local/cuda` and `/opt/cuda`. Without it the table is empty: the crate still builds, and says
//! so when CUDA is asked for. `FLUX_CUDA_ARCHS=90a` (a comma-separated list) cuts the build to the architectures of
//! one's own machine.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Ampere, Ada, Hopper, Blackwell; `a` unlocks wgmma on Hopper. All other GPUs compile the PTX when a module is loaded.
const ARCHS: [&str; 6] = ["80", "86", "89", "90a", "100", "120"];
const PTX_ARCH: &str = "80";
/// A file of this suffix is for one architecture only.
const HOPPER_SUFFIX: &str = "_sm90a";
const ENVIRONMENT: [&str; 5] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "FLUX_CUDA_ARCHS"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cuda");
    for name in ENVIRONMENT {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for folder in [".cuda", ".venv"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).join("pyvenv.cfg").display());
    }

    let fatbins = match find_nvcc(&root) {
        Some(nvcc) => compile_all(&nvcc, &root.join("cuda"), &out).unwrap_or_else(|message| {
            println!("cargo::error={message}");
            std::process::exit(1);
        }),
        None => {
            println!(
                "cargo::warning=nvcc was not found, so this build cannot use a GPU; `make cuda-toolkit` fetches it"
            );
            Vec::new()
        }
    };
    fs::write(out.join("kernels.rs"), table(&fatbins)).expect("OUT_DIR is writable");
}

/// nvcc by its real path: it finds its headers from its own place, which a link would hide.
fn find_nvcc(root: &Path) -> Option<PathBuf> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(env::var_os("NVCC").map(PathBuf::from));
    candidates.extend(
        ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(|home| PathBuf::from(home).join("bin/nvcc")),
    );
    candidates.extend(env::var_os("PATH").iter().flat_map(env::split_paths).map(|folder| folder.join("nvcc")));
    for venv in [".cuda", ".venv"] {
        let libraries = fs::read_dir(root.join(venv).join("lib")).into_iter().flatten().flatten();
        let pythons = libraries
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
        candidates.extend(pythons.map(|python| python.join("site-packages/nvidia/cu13/bin/nvcc")));
    }
    candidates.extend(["/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc"].map(PathBuf::from));
    candidates.into_iter().filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file())
}

/// The names of the kernel files and their fatbins, in the order of their names.
fn compile_all(nvcc: &Path, folder: &Path, out: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let asked = env::var("FLUX_CUDA_ARCHS").ok().filter(|list| !list.is_empty());
    let archs: Vec<&str> = match &asked {
        Some(list) => list.split(',').map(str::trim).filter(|arch| !arch.is_empty()).collect(),
        None => ARCHS.to_vec(),
    };
    let mut sources = Vec::new();
    let mut headers = DefaultHasher::new();
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("cu") => sources.push(path),
            Some("cuh") => {
                fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?.hash(&mut headers)
            }
            _ => {}
        }
    }
    let headers = headers.finish();
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2).clamp(1, 16);
    let queue = Mutex::new(sources.into_iter());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics while it holds the queue").next();
                    let Some(source) = next else { break };
                    let result = compile(nvcc, &source, &archs, asked.is_none(), headers, out);
                    done.lock().expect("no thread panics while it holds the results").push(result);
                }
            });
        }
    });
    let results = done.into_inner().expect("all threads have ended");
    let mut fatbins: Vec<_> = results.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
    fatbins.sort();
    Ok(fatbins)
}

/// One fatbin; none when no wanted architecture can run the file. Reuses what an earlier run made from the same text
/// and arguments.
fn compile(
    nvcc: &Path,
    source: &Path,
    archs: &[&str],
    ptx: bool,
    headers: u64,
    out: &Path,
) -> Result<Option<(String, PathBuf)>, String> {
    let stem = source.file_stem().expect("a .cu file has a name").to_string_lossy().into_owned();
    let hopper_only = stem.ends_with(HOPPER_SUFFIX);
    let archs: Vec<&str> = archs.iter().copied().filter(|arch| !hopper_only || *arch == "90a").collect();
    if archs.is_empty() {
        return Ok(None);
    }
    let mut arguments: Vec<String> =
        ["-std=c++17", "-O3", "-fatbin", "-Xfatbin", "-compress-all"].map(String::from).to_vec();
    arguments.extend(archs.iter().map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}")));
    if ptx && !hopper_only {
        arguments.push(format!("-gencode=arch=compute_{PTX_ARCH},code=compute_{PTX_ARCH}"));
    }
    let text = fs::read(source).map_err(|e| format!("cannot read {}: {e}", source.display()))?;
    let mut hasher = DefaultHasher::new();
    (nvcc, &arguments, &text, headers).hash(&mut hasher);
    let fatbin = out.join(format!("{stem}-{:016x}.fatbin", hasher.finish()));
    if !fatbin.is_file() {
        let partial = fatbin.with_extension("part");
        let output = Command::new(nvcc)
            .args(&arguments)
            .arg("-o")
            .arg(&partial)
            .arg(source)
            .output()
            .map_err(|e| format!("cannot run {}: {e}", nvcc.display()))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
            return Err(format!("nvcc could not compile {}: {log}", source.display()));
        }
        fs::rename(&partial, &fatbin).map_err(|e| format!("cannot write {}: {e}", fatbin.display()))?;
    }
    Ok(Some((stem, fatbin)))
}

/// The text of `kernels.rs`. A fatbin must be aligned, which `include_bytes!` alone does not promise.
fn table(fatbins: &[(String, PathBuf)]) -> String {
    let mut text = String::new();
    if !fatbins.is_empty() {
        text.push_str("#[repr(C, align(64))]\nstruct Aligned<T: ?Sized>(T);\n");
    }
    text.push_str("pub static KERNELS: &[(&str, &[u8])] = &[\n");
    for (stem, path) in fatbins {
        let path = path.display().to_string();
        writeln!(
            text,
            "    ({stem:?}, {{ static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!({path:?})); &FATBIN.0 }}),"
        )
        .expect("a String takes all text");
    }
    text.push_str("];\n");
    text
}
