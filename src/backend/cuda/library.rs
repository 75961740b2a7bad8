//! Finds the driver and cuBLASLt before cudarc does: cudarc panics if it can't load a library.
//!
//! cudarc loads libraries by file name only. A library that is already loaded is found by its name, so loading it here
//! by its absolute path is enough, and a toolkit in a virtual environment needs no `LD_LIBRARY_PATH`.

use std::path::{Path, PathBuf};

use cudarc::{cublaslt, driver};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Field, Result};

const CUBLASLT: &str = "libcublasLt.so.13";
/// Folders of the driver's library that the linker's cache may not know: Debian, WSL 2, containers.
const DRIVER_FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
];
/// Folders of installed toolkits.
const TOOLKIT_FOLDERS: [&str; 5] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-13/lib64",
    "/usr/local/cuda-13.0/lib64",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
];
/// The folder of NVIDIA's wheels inside site-packages.
const WHEEL_FOLDER: &str = "nvidia/cu13/lib";

/// Returns the hint for machines without a GPU.
pub fn use_the_cpu() -> String {
    format!("leave out `{}`, `{}` and `{}` to use the CPU", Field::Device, Field::Precision, Field::Attention)
}

/// Ensures that the driver can be loaded.
///
/// Errors with a hint how to install it.
pub fn require_driver() -> Result<()> {
    // SAFETY: the check opens and closes libraries by name; nothing of cudarc has been called yet that could depend on
    // it.
    if !unsafe { driver::sys::is_culib_present() }
        && !DRIVER_FOLDERS.iter().any(|folder| open(&Path::new(folder).join("libcuda.so.1")))
    {
        return Err(Error::new("no CUDA device: `libcuda.so.1` is not on this machine")
            .hint(format!("install the NVIDIA driver, or {}", use_the_cpu())));
    }
    Ok(())
}

/// Ensures that cuBLASLt is installed. It is half a gigabyte, and while the system loads it, the driver can't load its
/// own libraries, so loading is left to [`load_cublaslt`].
///
/// Errors with a hint how to install it.
pub fn find_cublaslt() -> Result<()> {
    if toolkit_folders().iter().any(|folder| folder.join(CUBLASLT).is_file()) { Ok(()) } else { load_cublaslt() }
}

/// Loads cuBLASLt.
///
/// Errors with a hint how to install it.
pub fn load_cublaslt() -> Result<()> {
    let files: Vec<_> = toolkit_folders().iter().map(|folder| folder.join(CUBLASLT)).collect();
    // SAFETY: the check opens and closes a library by name, which any thread may do.
    if files.iter().any(|file| open(file)) || unsafe { cublaslt::sys::is_culib_present() } {
        return Ok(());
    }
    let what = match files.iter().find(|file| file.is_file()) {
        Some(file) => format!("`{}` cannot be loaded", file.display()),
        None => format!("`{CUBLASLT}` is not on this machine"),
    };
    Err(Error::new(what).hint(
        "install the CUDA 13 toolkit, or run `python3 -m venv .cuda && .cuda/bin/pip install 'nvidia-cublas==13.*'` here",
    ))
}

/// Returns folders that may hold cuBLASLt, the most explicit choice first.
fn toolkit_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(std::env::var_os)
        .map(|home| PathBuf::from(home).join("lib64"))
        .collect();
    let beside_program = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    // A program in target/release/ belongs to the project three folders up.
    let roots = [
        Some(PathBuf::from(".")),
        beside_program.clone(),
        beside_program.and_then(|folder| Some(folder.parent()?.parent()?.to_path_buf())),
    ];
    let mut environments: Vec<PathBuf> = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).into_iter().collect();
    environments.extend(roots.iter().flatten().flat_map(|root| [root.join(".cuda"), root.join(".venv")]));
    for environment in environments {
        let pythons = std::fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
        folders.extend(pythons.map(|python| python.path().join("site-packages").join(WHEEL_FOLDER)));
    }
    folders.extend(TOOLKIT_FOLDERS.map(PathBuf::from));
    folders
}

/// Loads a library for the life of the process. Returns `false` if that fails.
fn open(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    // SAFETY: loading runs the library's initialisers, which for NVIDIA's libraries have no precondition.
    let Ok(library) = (unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }) else { return false };
    // Never closed, so no symbol resolved from it can dangle.
    std::mem::forget(library);
    true
}
