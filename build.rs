//! Compiles every `cuda/*.cu` with nvcc to one compressed fatbin and writes the kernel table that `backend::cuda`
//! includes.
//!
//! nvcc is looked for in `NVCC`, `CUDA_HOME`, `CUDA_PATH`, `PATH`, the project's `.cuda` and `.venv` (see `make
//! cuda-toolkit`), `/usr/local/cuda` and `/opt/cuda`. Without it the table is empty: the crate still builds, and says
//! so when CUDA is asked for. `FLUX_REQUIRE_NVCC=1` makes that an error. `FLUX_CUDA_ARCHS=90a` (a comma-separated list)
//! cuts the build to the architectures of one's own machine; 75 is one of them where it is named.
//!
//! Fatbins are cached in `kernels/` of the target folder under a hash of all that they are made from, so that every
//! profile, and `cargo check` too, compiles a kernel once. The program needs no other crate: `make kernels` compiles it
//! by itself and runs it. What the compiler says of registers and shared memory is written beside the table, to
//! `resources.txt`.
//!
//! It also tells the program what `flux --version --verbose` prints of its build.

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

/// Turing, Ampere, Ada, Hopper, Blackwell; `a` unlocks wgmma on Hopper. All other GPUs compile the PTX when a module is
/// loaded.
const ARCHS: [&str; 7] = [HALF_ARCH, "80", "86", "89", "90a", "100", "120"];
const PTX_ARCH: &str = "80";
/// GPUs without bf16 tensor cores: for them kernels are compiled with `ELEMENT_F16`, into a table of their own. Its PTX
/// lets other GPUs try them.
const HALF_ARCH: &str = "75";
/// A file of this suffix is for one architecture only.
const HOPPER_SUFFIX: &str = "_sm90a";
/// And one of this suffix for those that multiply e4m3 by mma.sync, and for Hopper, where tests run it.
const ADA_SUFFIX: &str = "_sm89";
const ADA_ARCHS: [&str; 3] = ["89", "90a", "120"];
/// Files that serve products of fp8, which are beside bf16 only.
const BF16_ONLY: [&str; 3] = ["quantise", "quantise_weight", "unscale"];
/// Where nvcc is looked for, and what is asked of this build.
const ENVIRONMENT: [&str; 6] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "FLUX_CUDA_ARCHS", "FLUX_REQUIRE_NVCC"];
/// What nvcc adds to its command line by itself.
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
    // A file that is missing would be taken for changed by every build; `make cuda-toolkit` touches this file instead.
    for folder in [".cuda", ".venv"] {
        let made = root.join(folder).join("pyvenv.cfg");
        if made.exists() {
            println!("cargo::rerun-if-changed={}", made.display());
        }
    }

    let compiler = match find_nvcc(&root) {
        Some(nvcc) => Compiler::new(nvcc, &root, &out).map(Some),
        None if env::var("FLUX_REQUIRE_NVCC").is_ok_and(|value| value == "1") => {
            Err("nvcc was not found; `make cuda-toolkit` fetches it".to_string())
        }
        None => {
            println!(
                "cargo::warning=nvcc was not found, so this build cannot use a GPU; `make cuda-toolkit` fetches it"
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
    tell_build(&root);
}

/// What `backend::cuda` says of a build without nvcc.
const BUILT_FOR_NOTHING: &str = "pub static TOOLKIT: Option<&str> = None;\n\
                                 pub static ARCHS: &[&str] = &[];\n\
                                 pub static PTX: Option<&str> = None;\n";

/// Sets what the program says of its build: the commit, where it is built in a checkout of its own, the target and the
/// compiler. The commit is asked for again when another one is checked out or made; changes since then are in no name.
fn tell_build(root: &Path) {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    };
    let top = git(&["rev-parse", "--show-toplevel"]).and_then(|top| Path::new(&top).canonicalize().ok());
    if top.is_some() && top == root.canonicalize().ok() {
        for file in ["HEAD", "logs/HEAD"] {
            let path = git(&["rev-parse", "--git-path", file]).map(|path| root.join(path)).filter(|path| path.exists());
            path.iter().for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
        }
        let commit = git(&["describe", "--always", "--dirty", "--exclude", "*"]);
        commit.iter().for_each(|commit| println!("cargo::rustc-env=BUILD_COMMIT={commit}"));
    }
    env::var("TARGET").iter().for_each(|target| println!("cargo::rustc-env=BUILD_TARGET={target}"));
    let rustc = env::var_os("RUSTC").and_then(|rustc| run(Command::new(rustc).arg("--version"), "no version").ok());
    rustc.iter().for_each(|text| println!("cargo::rustc-env=BUILD_RUSTC={}", String::from_utf8_lossy(text).trim()));
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

/// The kernels of a file for one type of values; in the order of the tables and of names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fatbin {
    half: bool,
    stem: String,
    path: PathBuf,
    /// What the compiler says of its kernels.
    resources: Kernels,
}

/// What all kernel files are compiled with.
struct Compiler {
    nvcc: PathBuf,
    folder: PathBuf,
    archs: Vec<String>,
    /// Whether GPUs of later architectures are served as well.
    ptx: bool,
    /// Whether GPUs without bf16 are.
    half: bool,
    /// Of nvcc, such as 13.0.88.
    version: String,
    /// Hash of nvcc's version, of its flags from the environment, and of the headers.
    common: u64,
    cache: PathBuf,
    out: PathBuf,
}

impl Compiler {
    fn new(nvcc: PathBuf, root: &Path, out: &Path) -> Result<Self, String> {
        let asked = env::var("FLUX_CUDA_ARCHS").ok().filter(|list| !list.is_empty());
        let archs = match &asked {
            Some(list) => list.split(',').map(str::trim).filter(|arch| !arch.is_empty()).map(String::from).collect(),
            None => ARCHS.map(String::from).to_vec(),
        };
        let (half, archs): (Vec<_>, Vec<_>) = archs.into_iter().partition(|arch| arch == HALF_ARCH);
        let folder = root.join("cuda");
        let mut hasher = DefaultHasher::new();
        let version = run(Command::new(&nvcc).arg("--version"), "nvcc does not tell its version")?;
        version.hash(&mut hasher);
        let version = version_in(&String::from_utf8_lossy(&version));
        NVCC_FLAGS.map(env::var_os).hash(&mut hasher);
        // Reports are kept in its words.
        include_str!("src/backend/cuda/resources.rs").hash(&mut hasher);
        for header in files(&folder, "cuh") {
            (header.file_name(), read(&header)?).hash(&mut hasher);
        }
        // OUT_DIR is TARGET/PROFILE/build/flux-HASH/out.
        let cache = out.ancestors().nth(4).unwrap_or(out).join("kernels");
        fs::create_dir_all(&cache).map_err(|e| format!("cannot create {}: {e}", cache.display()))?;
        let (ptx, half, common, out) = (asked.is_none(), !half.is_empty(), hasher.finish(), out.to_path_buf());
        Ok(Self { nvcc, folder, archs, ptx, half, version, common, cache, out })
    }

    /// What `backend::cuda` says of the kernels: the toolkit, the architectures and the one of the PTX.
    fn built_for(&self) -> String {
        let half = self.half.then_some(HALF_ARCH).into_iter();
        let archs: Vec<&str> = half.chain(self.archs.iter().map(String::as_str)).collect();
        let ptx = self.ptx.then_some(PTX_ARCH);
        let Self { version, .. } = self;
        format!(
            "pub static TOOLKIT: Option<&str> = Some({version:?});\npub static ARCHS: &[&str] = &{archs:?};\n\
             pub static PTX: Option<&str> = {ptx:?};\n"
        )
    }

    /// All fatbins, in the order of their names.
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

    /// One fatbin, of kernels for fp16 where `half`; none when no wanted architecture can run the file. It is included
    /// from OUT_DIR, so that a cache that is removed later does no harm.
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
            .map_err(|line| format!("{} does not say what a kernel takes: `{line}`", report.display()))?;
        Ok(Some(Fatbin { half, stem, path, resources }))
    }

    /// What the kernels of a file are compiled to, for bf16.
    fn targets(&self, stem: &str) -> Vec<String> {
        let only: Option<&[&str]> = match stem {
            _ if stem.ends_with(HOPPER_SUFFIX) => Some(&["90a"]),
            _ if stem.ends_with(ADA_SUFFIX) => Some(&ADA_ARCHS),
            _ => None,
        };
        let archs = self.archs.iter().filter(|arch| only.is_none_or(|only| only.contains(&arch.as_str())));
        let ptx = (self.ptx && only.is_none()).then(|| code(PTX_ARCH, "compute"));
        archs.map(|arch| code(arch, "sm")).chain(ptx).collect()
    }

    /// The same for fp16.
    fn half_targets(&self, stem: &str) -> Vec<String> {
        let of_some = [HOPPER_SUFFIX, ADA_SUFFIX].iter().any(|suffix| stem.ends_with(suffix));
        if !self.half || of_some || BF16_ONLY.contains(&stem) {
            return Vec::new();
        }
        ["sm", "compute"].map(|kind| code(HALF_ARCH, kind)).to_vec()
    }

    /// Compiles in a folder that no other build has; a fatbin gets its own name when it is whole, and after its report.
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
        fs::remove_dir_all(&folder).ok(); // nothing reads what is left of it
        made
    }

    /// The fatbin, and what nvcc says of its kernels.
    fn make_in(&self, folder: &Path, source: &Path, arguments: &[String]) -> Result<(PathBuf, String), String> {
        let fatbin = folder.join("fatbin");
        let mut nvcc = Command::new(&self.nvcc);
        nvcc.args(arguments).arg("--keep-dir").arg(folder).arg("-o").arg(&fatbin).arg(source);
        let Output { stdout, stderr, .. } = output(&mut nvcc, &format!("nvcc could not compile {}", source.display()))?;
        let report = [stderr, stdout].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut kernels = Kernels::new();
        for ((kernel, arch), mut found) in resources::in_report(&report) {
            // Of one architecture alone its name is shorter. An nvcc that names it otherwise builds the program, too.
            let names = [format!("{stem}.compute_{arch}.ptx"), format!("{stem}.ptx")].map(|name| folder.join(name));
            let ptx = names.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
            found.threads = resources::threads_in_ptx(&ptx).get(&kernel).copied().unwrap_or(0);
            kernels.entry((stem.clone(), kernel)).or_default().insert(arch, found);
        }
        Ok((fatbin, resources::to_text(&kernels)))
    }
}

/// The version in what nvcc says of itself: `Cuda compilation tools, release 13.0, V13.0.88`, else the last line.
fn version_in(text: &str) -> String {
    let word = text.split_whitespace().filter_map(|word| word.strip_prefix('V')).find(|word| word.contains('.'));
    word.or(text.lines().last()).unwrap_or_default().trim().to_string()
}

/// nvcc's argument for machine code (`sm`) or PTX (`compute`) of an architecture.
fn code(arch: &str, kind: &str) -> String {
    format!("-gencode=arch=compute_{arch},code={kind}_{arch}")
}

/// The files of a folder with an extension, in the order of their names.
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

/// What a command prints; an error of one line, which begins with `what`, when it fails.
fn run(command: &mut Command, what: &str) -> Result<Vec<u8>, String> {
    Ok(output(command, what)?.stdout)
}

/// What a command prints on both of its outputs; errors as [`run`].
fn output(command: &mut Command, what: &str) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot run {program}: {e}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
        return Err(format!("{what}: {log}"));
    }
    Ok(output)
}

/// What the compiler says of all kernels, behind a line with the compiler.
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

/// The text of `kernels.rs`. A fatbin must be aligned, which `include_bytes!` alone does not promise.
fn tables(fatbins: &[Fatbin]) -> String {
    let mut text = String::new();
    if !fatbins.is_empty() {
        text.push_str("#[repr(C, align(64))]\nstruct Aligned<T: ?Sized>(T);\n");
    }
    for (name, half) in [("KERNELS", false), ("HALF_KERNELS", true)] {
        writeln!(text, "pub static {name}: &[(&str, &[u8])] = &[").expect("a String takes all text");
        for Fatbin { stem, path, .. } in fatbins.iter().filter(|fatbin| fatbin.half == half) {
            let path = path.display().to_string();
            writeln!(
                text,
                "    ({stem:?}, {{ static FATBIN: &Aligned<[u8]> = &Aligned(*include_bytes!({path:?})); &FATBIN.0 }}),"
            )
            .expect("a String takes all text");
        }
        text.push_str("];\n");
    }
    text
}
