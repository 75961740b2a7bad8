//! Compiles every `cuda/*.cu` with nvcc to one compressed fatbin and writes the kernel table that `backend::cuda`
//! includes.
//!
//! nvcc is searched in `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH`, the project's `.cuda` and `.venv` (see `make
//! cuda-toolkit`), `/usr/local/cuda` and `/opt/cuda`. Without nvcc the table is empty: the crate still builds, and
//! reports the missing kernels when CUDA is requested. `FLUX_REQUIRE_NVCC=1` makes a missing nvcc an error.
//!
//! On a machine with NVIDIA GPUs, kernels are compiled only for the architectures that `nvidia-smi` finds, and for
//! fp16; elsewhere for all architectures. `FLUX_CUDA_ARCHS` overrides this: `all`, or a comma-separated list such as
//! `75,90a`, where 75 stands for the kernels for fp16.
//!
//! Fatbins are cached in `kernels/` of the target folder under a hash of all of their inputs, so that every profile,
//! and `cargo check` too, compiles a kernel once. The program needs no other crate: `make kernels` compiles it by
//! itself and runs it. The compiler's report on registers and shared memory is written next to the table, to
//! `resources.txt`.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

#[path = "src/backend/cuda/resources.rs"]
mod resources;

use resources::Kernels;

/// Turing, Ampere, Ada, Hopper, Blackwell: the compute capability, and the architecture in nvcc; `a` unlocks wgmma on
/// Hopper. GPUs of the same major version and a higher minor version run the same machine code. All other GPUs compile
/// the PTX when a module is loaded.
const ARCHS: [((u32, u32), &str); 7] = [
    ((7, 5), HALF_ARCH),
    ((8, 0), "80"),
    ((8, 6), "86"),
    ((8, 9), "89"),
    ((9, 0), "90a"),
    ((10, 0), "100"),
    ((12, 0), "120"),
];
const PTX_ARCH: &str = "80";
/// GPUs without bf16 tensor cores. For them kernels are compiled with `ELEMENT_F16`, into a separate table. Its PTX
/// lets other GPUs try them.
const HALF_ARCH: &str = "75";
/// Files with this suffix are for one architecture only.
const HOPPER_SUFFIX: &str = "_sm90a";
/// Files with this suffix are for architectures that multiply e4m3 by mma.sync, and for Hopper, where tests run them.
const ADA_SUFFIX: &str = "_sm89";
const ADA_ARCHS: [&str; 3] = ["89", "90a", "120"];
/// Files for fp8 matrix multiplications, which exist only with bf16.
const BF16_ONLY: [&str; 3] = ["quantize", "quantize_weight", "unscale"];
/// Places to search for nvcc, and options of this build.
const ENVIRONMENT: [&str; 6] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "FLUX_CUDA_ARCHS", "FLUX_REQUIRE_NVCC"];
/// Flags that nvcc adds to its command line by itself.
const NVCC_FLAGS: [&str; 2] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cuda");
    println!("cargo::rerun-if-changed=src/backend/cuda/resources.rs");
    for name in ENVIRONMENT.iter().chain(&NVCC_FLAGS) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Cargo rebuilds every time if a file in this list is missing; `make cuda-toolkit` touches this file instead.
    for folder in [".cuda", ".venv"] {
        let made = root.join(folder).join("pyvenv.cfg");
        if made.exists() {
            println!("cargo::rerun-if-changed={}", made.display());
        }
    }

    let compiler = match find_nvcc(&root) {
        Some(nvcc) => Compiler::new(nvcc, &root, &out).map(Some),
        None if env::var("FLUX_REQUIRE_NVCC").is_ok_and(|value| value == "1") => {
            Err("nvcc was not found; install it with `make cuda-toolkit`".to_string())
        }
        None => {
            println!(
                "cargo::warning=nvcc was not found, so this build cannot use a GPU; install it with `make cuda-toolkit`"
            );
            Ok(None)
        }
    };
    let made = compiler.and_then(|compiler| {
        let fatbins = compiler.as_ref().map_or(Ok(Vec::new()), Compiler::compile_all)?;
        Ok((compiler, fatbins))
    });
    let (compiler, fatbins) = made.unwrap_or_else(|message| {
        println!("cargo::error={message}");
        std::process::exit(1);
    });
    let built_for = compiler.as_ref().map(Compiler::built_for).unwrap_or_else(|| BUILT_FOR_NOTHING.to_string());
    fs::write(out.join("kernels.rs"), tables(&fatbins) + &built_for).expect("OUT_DIR is writable");
    let version = compiler.as_ref().map_or("none", |compiler| &compiler.version);
    fs::write(out.join("resources.txt"), resources_of(&fatbins, version)).expect("OUT_DIR is writable");
}

/// The constants of `backend::cuda` in a build without nvcc.
const BUILT_FOR_NOTHING: &str = "pub static TOOLKIT: Option<&str> = None;\n\
                                 pub static ARCHS: &[&str] = &[];\n\
                                 pub static PTX: Option<&str> = None;\n";

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

/// The architectures to compile for.
struct Targets {
    /// As nvcc names them, without [`HALF_ARCH`].
    archs: Vec<String>,
    /// `true` if GPUs of all other architectures are supported too, by PTX.
    ptx: bool,
    /// `true` if there are kernels for fp16.
    half: bool,
}

impl Targets {
    /// Returns the targets in `FLUX_CUDA_ARCHS`; without it those of the GPUs in this machine; without a GPU all.
    fn new() -> Self {
        let asked = env::var("FLUX_CUDA_ARCHS").unwrap_or_default();
        let found =
            || found_archs().filter(|archs| !archs.is_empty()).map(|archs| [archs, vec![HALF_ARCH.into()]].concat());
        let some = match asked.trim() {
            "all" => None,
            "" => found(),
            list => Some(list.split(',').map(str::trim).filter(|arch| !arch.is_empty()).map(String::from).collect()),
        };
        let ptx = some.is_none();
        let (half, archs): (Vec<_>, Vec<_>) = some
            .unwrap_or_else(|| ARCHS.map(|(_, arch)| arch.to_string()).to_vec())
            .into_iter()
            .partition(|arch| arch == HALF_ARCH);
        Self { archs, ptx, half: !half.is_empty() }
    }
}

/// Returns the architectures of the GPUs in this machine; `None` if one of them has no architecture here, or if
/// `nvidia-smi` fails.
fn found_archs() -> Option<Vec<String>> {
    let mut program = Command::new("nvidia-smi");
    let output = program.args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    let arch = |line: &str| {
        let (major, minor) = line.trim().split_once('.')?;
        let capability: (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let mut known = ARCHS.iter().rev().filter(|((major, _), _)| *major == capability.0);
        known.find(|(known, _)| *known <= capability).map(|(_, arch)| arch.to_string())
    };
    let mut archs = text.lines().filter(|line| !line.trim().is_empty()).map(arch).collect::<Option<Vec<_>>>()?;
    archs.sort();
    archs.dedup();
    Some(archs)
}

/// The kernels of a file for one type of values, ordered as in the tables and by name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fatbin {
    half: bool,
    stem: String,
    path: PathBuf,
    /// The compiler's report on its kernels.
    resources: Kernels,
}

/// The common settings of all kernel files.
struct Compiler {
    nvcc: PathBuf,
    folder: PathBuf,
    targets: Targets,
    /// The version of nvcc, such as 13.0.88.
    version: String,
    /// Hash of nvcc's version, of its flags from the environment, and of the headers.
    common: u64,
    cache: PathBuf,
    out: PathBuf,
}

impl Compiler {
    fn new(nvcc: PathBuf, root: &Path, out: &Path) -> Result<Self, String> {
        let folder = root.join("cuda");
        let mut hasher = DefaultHasher::new();
        let version = run(Command::new(&nvcc).arg("--version"), "cannot read the version of nvcc")?;
        version.hash(&mut hasher);
        let version = version_in(&String::from_utf8_lossy(&version));
        NVCC_FLAGS.map(env::var_os).hash(&mut hasher);
        // Cached reports have the format of this file.
        include_str!("src/backend/cuda/resources.rs").hash(&mut hasher);
        for header in files(&folder, "cuh") {
            (header.file_name(), read(&header)?).hash(&mut hasher);
        }
        // OUT_DIR is TARGET/PROFILE/build/flux-HASH/out.
        let cache = out.ancestors().nth(4).unwrap_or(out).join("kernels");
        fs::create_dir_all(&cache).map_err(|e| format!("cannot create {}: {e}", cache.display()))?;
        let (targets, common, out) = (Targets::new(), hasher.finish(), out.to_path_buf());
        Ok(Self { nvcc, folder, targets, version, common, cache, out })
    }

    /// Returns the constants of `backend::cuda`: the toolkit, the architectures and the architecture of the PTX.
    fn built_for(&self) -> String {
        let Self { version, targets, .. } = self;
        let half = targets.half.then_some(HALF_ARCH).into_iter();
        let archs: Vec<&str> = half.chain(targets.archs.iter().map(String::as_str)).collect();
        let ptx = targets.ptx.then_some(PTX_ARCH);
        format!(
            "pub static TOOLKIT: Option<&str> = Some({version:?});\npub static ARCHS: &[&str] = &{archs:?};\n\
             pub static PTX: Option<&str> = {ptx:?};\n"
        )
    }

    /// Compiles all fatbins, in the order of their names.
    fn compile_all(&self) -> Result<Vec<Fatbin>, String> {
        let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2).clamp(1, 16);
        let sources =
            files(&self.folder, "cu").into_iter().flat_map(|source| [(source.clone(), false), (source, true)]);
        let queue = Mutex::new(sources);
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().expect("no thread panics while it holds the queue").next();
                        let Some((source, half)) = next else { break };
                        let result = self.compile(&source, half);
                        done.lock().expect("no thread panics while it holds the results").push(result);
                    }
                });
            }
        });
        let results = done.into_inner().expect("all threads have ended");
        let mut fatbins: Vec<_> =
            results.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
        fatbins.sort();
        Ok(fatbins)
    }

    /// Compiles one fatbin, for fp16 if `half`; `None` if no wanted architecture can run the file. It is included from
    /// OUT_DIR, so that removing the cache later does no harm.
    fn compile(&self, source: &Path, half: bool) -> Result<Option<Fatbin>, String> {
        let stem = source.file_stem().expect("a .cu file has a name").to_string_lossy().into_owned();
        let targets = if half { self.half_targets(&stem) } else { self.targets(&stem) };
        if targets.is_empty() {
            return Ok(None);
        }
        let mut arguments: Vec<String> =
            ["-std=c++17", "-O3", "-fatbin", "-Xfatbin", "-compress-all", "--resource-usage", "--keep"]
                .map(String::from)
                .to_vec();
        arguments.extend(targets);
        if half {
            arguments.push("-DELEMENT_F16".to_string());
        }
        let name = if half { format!("{stem}_half") } else { stem.clone() };
        let mut hasher = DefaultHasher::new();
        (self.common, &arguments, read(source)?).hash(&mut hasher);
        let cached = self.cache.join(format!("{name}-{:016x}.fatbin", hasher.finish()));
        let report = cached.with_extension("txt");
        if !cached.is_file() || !report.is_file() {
            self.make(source, &arguments, &cached, &report)?;
        }
        let path = self.out.join(format!("{name}.fatbin"));
        fs::copy(&cached, &path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let resources = resources::from_text(&String::from_utf8_lossy(&read(&report)?))
            .map_err(|line| format!("{} has an invalid line of kernel resources: `{line}`", report.display()))?;
        Ok(Some(Fatbin { half, stem, path, resources }))
    }

    /// Returns the targets of a file for bf16.
    fn targets(&self, stem: &str) -> Vec<String> {
        let only: Option<&[&str]> = match stem {
            _ if stem.ends_with(HOPPER_SUFFIX) => Some(&["90a"]),
            _ if stem.ends_with(ADA_SUFFIX) => Some(&ADA_ARCHS),
            _ => None,
        };
        let archs = self.targets.archs.iter().filter(|arch| only.is_none_or(|only| only.contains(&arch.as_str())));
        let ptx = (self.targets.ptx && only.is_none()).then(|| code(PTX_ARCH, "compute"));
        archs.map(|arch| code(arch, "sm")).chain(ptx).collect()
    }

    /// Returns the targets of a file for fp16.
    fn half_targets(&self, stem: &str) -> Vec<String> {
        let of_some = [HOPPER_SUFFIX, ADA_SUFFIX].iter().any(|suffix| stem.ends_with(suffix));
        if !self.targets.half || of_some || BF16_ONLY.contains(&stem) {
            return Vec::new();
        }
        ["sm", "compute"].map(|kind| code(HALF_ARCH, kind)).to_vec()
    }

    /// Compiles in a separate folder. A fatbin gets its name when it is complete, and after its report.
    fn make(&self, source: &Path, arguments: &[String], fatbin: &Path, report: &Path) -> Result<(), String> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let folder = fatbin.with_extension(format!("{}-{}.part", std::process::id(), since_1970.as_nanos()));
        fs::create_dir(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        let made = self.make_in(&folder, source, arguments).and_then(|(made, resources)| {
            let kept = |from: &Path, to: &Path| {
                fs::rename(from, to).map_err(|e| format!("cannot write {}: {e}", to.display()))
            };
            let told = folder.join("resources.txt");
            fs::write(&told, resources).map_err(|e| format!("cannot write {}: {e}", told.display()))?;
            kept(&told, report)?;
            kept(&made, fatbin)
        });
        fs::remove_dir_all(&folder).ok(); // nothing reads what remains
        made
    }

    /// Returns the fatbin, and nvcc's report on its kernels.
    fn make_in(&self, folder: &Path, source: &Path, arguments: &[String]) -> Result<(PathBuf, String), String> {
        let fatbin = folder.join("fatbin");
        let mut nvcc = Command::new(&self.nvcc);
        nvcc.args(arguments).arg("--keep-dir").arg(folder).arg("-o").arg(&fatbin).arg(source);
        let Output { stdout, stderr, .. } = output(&mut nvcc, &format!("nvcc could not compile {}", source.display()))?;
        let report = [stderr, stdout].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut kernels = Kernels::new();
        for ((kernel, arch), mut found) in resources::in_report(&report) {
            // With a single architecture the name is shorter. Other names of other versions of nvcc must not break the
            // build.
            let names = [format!("{stem}.compute_{arch}.ptx"), format!("{stem}.ptx")].map(|name| folder.join(name));
            let ptx = names.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
            found.threads = resources::threads_in_ptx(&ptx).get(&kernel).copied().unwrap_or(0);
            kernels.entry((stem.clone(), kernel)).or_default().insert(arch, found);
        }
        Ok((fatbin, resources::to_text(&kernels)))
    }
}

/// Returns the version in nvcc's output: `Cuda compilation tools, release 13.0, V13.0.88`, else the last line.
fn version_in(text: &str) -> String {
    let word = text.split_whitespace().filter_map(|word| word.strip_prefix('V')).find(|word| word.contains('.'));
    word.or(text.lines().last()).unwrap_or_default().trim().to_string()
}

/// Returns nvcc's argument for machine code (`sm`) or PTX (`compute`) of an architecture.
fn code(arch: &str, kind: &str) -> String {
    format!("-gencode=arch=compute_{arch},code={kind}_{arch}")
}

/// Returns the files of a folder with an extension, in the order of their names.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    paths
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Runs a command and returns its output. Errors in one line, which begins with `what`.
fn run(command: &mut Command, what: &str) -> Result<Vec<u8>, String> {
    Ok(output(command, what)?.stdout)
}

/// Runs a command and returns both of its outputs; errors as [`run`].
fn output(command: &mut Command, what: &str) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot run {program}: {e}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
        return Err(format!("{what}: {log}"));
    }
    Ok(output)
}

/// Returns the compiler's reports on all kernels, after a line with the compiler.
fn resources_of(fatbins: &[Fatbin], version: &str) -> String {
    let mut kernels = Kernels::new();
    for (kernel, by_arch) in fatbins.iter().flat_map(|fatbin| &fatbin.resources) {
        kernels.entry(kernel.clone()).or_default().extend(by_arch.clone());
    }
    format!(
        "# nvcc {version}: file kernel arch=threads/registers/bytes spilled/bytes of shared memory\n{}",
        resources::to_text(&kernels)
    )
}

/// Returns the text of `kernels.rs`. A fatbin must be aligned, which `include_bytes!` alone does not guarantee.
fn tables(fatbins: &[Fatbin]) -> String {
    let mut text = String::new();
    if !fatbins.is_empty() {
        text.push_str("#[repr(C, align(64))]\nstruct Aligned<T: ?Sized>(T);\n");
    }
    for (name, half) in [("KERNELS", false), ("HALF_KERNELS", true)] {
        writeln!(text, "pub static {name}: &[(&str, &[u8])] = &[").expect("writing to a String does not fail");
        for Fatbin { stem, path, .. } in fatbins.iter().filter(|fatbin| fatbin.half == half) {
            let path = path.display().to_string();
            writeln!(
                text,
                "    ({stem:?}, {{ static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!({path:?})); &FATBIN.0 }}),"
            )
            .expect("writing to a String does not fail");
        }
        text.push_str("];\n");
    }
    text
}
