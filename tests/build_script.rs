//! build.rs as a program: the kernels that it compiles, and those that it takes from its cache. A script replaces
//! nvcc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::process::{Run, names, project};

/// Copies its input to its output, reports the resources of its one kernel, and counts its calls; fails for a source
/// that requests a failure.
const NVCC: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then cat "$(dirname "$0")/version"; exit; fi
while [ "$1" != -o ]; do
    [ "$1" != --keep-dir ] || folder=$2
    shift
done
echo "$3" >>"$(dirname "$0")/calls"
if grep -q 'no C++' "$3"; then echo "line 1" >&2; echo "line 2" >&2; exit 1; fi
stem=$(basename "$3" .cu)
printf '.visible .entry %s(\n)\n.maxntid 64, 2, 1\n' "$stem" >"$folder/$stem.compute_90a.ptx"
cat >&2 <<END
ptxas info    : Compiling entry function '$stem' for 'sm_90a'
    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 12 bytes smem, 460 bytes cmem[0]
END
cp "$3" "$2"
"#;

/// build.rs, compiled once.
static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| compiled("build.rs"));

/// Compiles a build script of the project.
fn compiled(script: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("build");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Run::new(Command::new(rustc).args(["--edition", "2024", "-o"]).arg(&program).arg(project(script))).succeeds();
    (folder, program)
}

/// A project of two kernels and a header, with an nvcc.
struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Self {
        let project = Self(tempfile::tempdir().expect("a temporary folder"));
        for folder in ["cuda", "bin"] {
            fs::create_dir(project.path(folder)).expect("a temporary folder is writable");
        }
        for (name, text) in [("cuda/a.cu", "a"), ("cuda/b_sm90a.cu", "b"), ("cuda/common.cuh", "c"), ("bin/nvcc", NVCC)]
        {
            project.write(name, text);
        }
        project.write("bin/version", "13.0");
        fs::set_permissions(project.path("bin/nvcc"), fs::Permissions::from_mode(0o755)).expect("our file");
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a temporary folder is writable");
    }

    /// Returns the build script's command as cargo runs it for a profile.
    fn command(&self, profile: &str) -> Command {
        let out = self.path(&format!("target/{profile}/build/flux-1234/out"));
        fs::create_dir_all(&out).expect("a temporary folder is writable");
        let mut command = Command::new(&PROGRAM.1);
        command.env("CARGO_MANIFEST_DIR", self.0.path()).env("OUT_DIR", out).env("NVCC", self.path("bin/nvcc"));
        for name in ["FLUX_REQUIRE_NVCC", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            command.env_remove(name);
        }
        command.env("FLUX_CUDA_ARCHS", "all"); // for the GPUs of no machine
        command
    }

    /// Returns the sources that were compiled since the last call, sorted.
    fn compiled(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("bin/calls")).unwrap_or_default();
        fs::remove_file(self.path("bin/calls")).ok();
        let name = |line: &str| Path::new(line).file_name().expect("a file").to_string_lossy().into_owned();
        let mut found: Vec<_> = calls.lines().map(name).collect();
        found.sort();
        found
    }

    /// Returns the constants in the kernels' table.
    fn built_for(&self) -> Vec<String> {
        let table = fs::read_to_string(self.path("target/release/build/flux-1234/out/kernels.rs")).unwrap();
        let names = ["TOOLKIT", "ARCHS", "PTX"].map(|name| format!("pub static {name}: "));
        let value = |line: &str| line.split(" = ").nth(1).map(String::from);
        table.lines().filter(|line| names.iter().any(|name| line.starts_with(name))).filter_map(value).collect()
    }

    /// Returns the files that a profile's table includes, in order.
    fn included(&self, profile: &str) -> Vec<String> {
        let table = fs::read_to_string(self.path(&format!("target/{profile}/build/flux-1234/out/kernels.rs"))).unwrap();
        let paths = table.split("include_bytes!(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        paths.map(|path| fs::read_to_string(path).expect("the table names a file")).collect()
    }
}

#[test]
fn every_profile_finds_what_another_compiled() {
    let project = Project::new();
    for (profile, compiled) in [("release", &["a.cu", "a.cu", "b_sm90a.cu"][..]), ("debug", &[]), ("release", &[])] {
        Run::new(&mut project.command(profile)).succeeds();
        assert_eq!(project.compiled(), compiled, "{profile}");
        assert_eq!(project.included(profile), ["a", "b", "a"], "{profile}");
    }
    // Without its cache a build is the same, and the cache is written again.
    fs::remove_dir_all(project.path("target/kernels")).unwrap();
    assert_eq!(project.included("debug"), ["a", "b", "a"]);
    Run::new(&mut project.command("debug")).succeeds();
    assert_eq!(project.compiled(), ["a.cu", "a.cu", "b_sm90a.cu"]);
}

#[test]
fn whatever_a_kernel_is_made_from_is_part_of_its_key() {
    let project = Project::new();
    // The first kernel is for bf16 and for fp16.
    let both = ["a.cu", "a.cu", "b_sm90a.cu"];
    let compiled = |environment: &[(&str, &str)]| {
        Run::new(project.command("release").envs(environment.iter().copied())).succeeds();
        project.compiled()
    };
    assert_eq!(compiled(&[]), both);
    project.write("cuda/a.cu", "A");
    assert_eq!(compiled(&[]), ["a.cu", "a.cu"]);
    assert_eq!(project.included("release"), ["A", "b", "A"]);
    project.write("cuda/common.cuh", "C");
    assert_eq!(compiled(&[]), both);
    project.write("bin/version", "13.1");
    assert_eq!(compiled(&[]), both);
    assert_eq!(compiled(&[("NVCC_APPEND_FLAGS", "-lineinfo")]), both);
    assert_eq!(compiled(&[("FLUX_CUDA_ARCHS", "80")]), ["a.cu"], "none for Hopper, none for fp16");
    assert_eq!(project.included("release"), ["A"]);
    assert_eq!(compiled(&[("FLUX_CUDA_ARCHS", "75")]), [""; 0], "as it was made before");
    assert_eq!(project.included("release"), ["A"], "for fp16 alone");
    assert_eq!(compiled(&[]), [""; 0], "all of it was made before");
    assert_eq!(project.included("release"), ["A", "b", "A"]);
}

#[test]
fn the_table_says_what_it_was_built_with_and_for() {
    let project = Project::new();
    let built = |archs: &str| {
        Run::new(project.command("release").env("FLUX_CUDA_ARCHS", archs)).succeeds();
        project.built_for()
    };
    let all = r#"&["75", "80", "86", "89", "90a", "100", "120"];"#;
    assert_eq!(built("all"), [r#"Some("13.0");"#, all, r#"Some("80");"#]);
    project.write(
        "bin/version",
        "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n",
    );
    assert_eq!(built("90a"), [r#"Some("13.0.88");"#, r#"&["90a"];"#, "None;"]);
    assert_eq!(built("75,90a"), [r#"Some("13.0.88");"#, r#"&["75", "90a"];"#, "None;"]);
}

#[test]
fn kernels_are_compiled_for_the_gpus_of_this_machine() {
    let project = Project::new();
    let all = r#"&["75", "80", "86", "89", "90a", "100", "120"];"#;
    let built = |script: &str| {
        project.write("bin/nvidia-smi", &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(project.path("bin/nvidia-smi"), fs::Permissions::from_mode(0o755)).expect("our file");
        let path = format!("{}:/usr/bin:/bin", project.path("bin").display());
        let mut command = project.command("release");
        Run::new(command.env_remove("FLUX_CUDA_ARCHS").env("PATH", path)).succeeds();
        let [_, archs, ptx] = project.built_for().try_into().unwrap();
        (archs, ptx == "None;")
    };
    let only = |archs: &str| (format!("&[{archs}];"), true);
    assert_eq!(built("echo 9.0; echo 9.0"), only(r#""75", "90a""#));
    assert_eq!(built("echo 8.9; echo 12.0"), only(r#""75", "120", "89""#));
    assert_eq!(
        built("echo 8.7; echo 10.3; echo 12.1"),
        only(r#""75", "100", "120", "86""#),
        "the next lower of the same major version"
    );
    assert_eq!(built("echo 7.5"), only(r#""75""#));
    for unknown in ["echo 7.0", "echo 13.0", "echo 9.0; echo '[N/A]'", "exit 9", "true"] {
        assert_eq!(built(unknown), (all.to_string(), false), "{unknown}");
    }
}

/// Runs the build script of the program in a package of a project, and returns the values of the lines with this start.
fn build_facts(program: &Path, package: &Path, start: &str) -> Vec<String> {
    let run = Run::new(Command::new(program).current_dir(package).env("TARGET", "x86_64-linux")).succeeds();
    run.stdout.lines().filter_map(|line| line.strip_prefix(start)).map(String::from).collect()
}

#[test]
fn the_commit_is_that_of_the_projects_own_checkout() {
    let (_compiled, program) = compiled("crates/flux-cli/build.rs");
    let facts = |package: &Path, start: &str| build_facts(&program, package, start);
    let commit = |package: &Path| facts(package, "cargo::rustc-env=BUILD_COMMIT=");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("flux");
    let package = root.join("crates/flux-cli");
    fs::create_dir_all(&package).expect("a temporary folder is writable");
    fs::write(package.join("main.rs"), "").expect("a temporary folder is writable");
    assert_eq!(commit(&package), [""; 0], "no checkout");
    assert_eq!(facts(&package, "cargo::rustc-env=BUILD_TARGET="), ["x86_64-linux"]);
    let git = |folder: &Path, arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@localhost"]).args(arguments).current_dir(folder);
        Run::new(git.env_remove("GIT_DIR")).succeeds().stdout.trim().to_string()
    };
    if Command::new("git").arg("--version").output().is_err() {
        println!("skipped: no git");
        return;
    }
    // A checkout of another project, with this project in a folder.
    git(folder.path(), &["init", "--quiet"]);
    assert_eq!(commit(&package), [""; 0], "another project's checkout");

    git(&root, &["init", "--quiet"]);
    git(&root, &["add", "."]);
    git(&root, &["commit", "--quiet", "-m", "first"]);
    let head = git(&root, &["rev-parse", "--short", "HEAD"]);
    assert_eq!(commit(&package), std::slice::from_ref(&head));
    // Cargo watches the checked-out commit, and no file that every command of git writes.
    let watched = facts(&package, "cargo::rerun-if-changed=");
    let of_git: Vec<_> = watched.iter().filter(|path| path.contains(".git/")).collect();
    assert!(of_git.len() == 2 && of_git.iter().all(|path| path.ends_with("HEAD")), "{watched:?}");
    assert!(of_git.iter().all(|path| package.join(path).exists()), "{watched:?}");
    fs::write(package.join("main.rs"), "another").expect("a temporary folder is writable");
    assert_eq!(commit(&package), [format!("{head}-dirty")]);
}

#[test]
fn a_file_is_compiled_for_the_architectures_that_can_run_it() {
    let project = Project::new();
    project.write("cuda/c_sm89.cu", "c");
    let compiled = |archs| {
        Run::new(project.command("release").env("FLUX_CUDA_ARCHS", archs)).succeeds();
        project.compiled()
    };
    assert_eq!(compiled("80,86,100"), ["a.cu"]);
    assert_eq!(compiled("89"), ["a.cu", "c_sm89.cu"]);
    assert_eq!(compiled("120"), ["a.cu", "c_sm89.cu"]);
    assert_eq!(compiled("75,90a"), ["a.cu", "a.cu", "b_sm90a.cu", "c_sm89.cu"]);
}

#[test]
fn what_the_compiler_says_of_kernels_lies_beside_their_table() {
    let project = Project::new();
    for calls in [3, 0] {
        Run::new(&mut project.command("release")).succeeds();
        let text = fs::read_to_string(project.path("target/release/build/flux-1234/out/resources.txt")).unwrap();
        let (first, kernels) = text.split_once('\n').unwrap();
        assert!(first.starts_with("# nvcc 13.0: "), "{first}");
        assert_eq!(kernels, "a a 90a=128/40/8/12\nb_sm90a b_sm90a 90a=128/40/8/12\n");
        assert_eq!(project.compiled().len(), calls, "once, and then from the cache");
    }
}

#[test]
fn builds_side_by_side_and_builds_that_were_killed_do_no_harm() {
    let project = Project::new();
    let fatbins = |project: &Project| {
        let mut names = names(&project.path("target/kernels"));
        names.retain(|name| !name.ends_with(".txt"));
        names
    };
    let children: Vec<_> = ["debug", "release", "checked"]
        .map(|profile| project.command(profile))
        .map(|mut command| command.spawn().expect("the program starts"))
        .into();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for profile in ["debug", "release", "checked"] {
        assert_eq!(project.included(profile), ["a", "b", "a"], "{profile}");
    }
    let made = fatbins(&project);
    assert!(made.len() == 3 && made.iter().all(|name| name.ends_with(".fatbin")), "{made:?}");

    // A killed build leaves half a file under a temporary name, which no other build uses.
    project.compiled();
    fs::remove_file(project.path("target/kernels").join(&made[0])).unwrap();
    project.write(&format!("target/kernels/{}", made[0].replace("fatbin", "1-1.part")), "half");
    Run::new(&mut project.command("release")).succeeds();
    assert_eq!(project.compiled(), ["a.cu"]);
    assert_eq!(project.included("release"), ["a", "b", "a"]);
}

#[test]
fn a_kernel_that_does_not_compile_fails_the_build_and_leaves_nothing() {
    let project = Project::new();
    project.write("cuda/a.cu", "this is no C++");
    let run = Run::new(&mut project.command("release"));
    assert_eq!(run.code, Some(1));
    for words in ["cargo::error=nvcc could not compile", "a.cu", "line 1 | line 2"] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    assert!(names(&project.path("target/kernels")).iter().all(|name| name.starts_with("b_sm90a-")));
}

#[test]
fn without_nvcc_the_table_is_empty_unless_nvcc_is_required() {
    // An installed toolkit would be found at its usual place.
    if ["/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc"].iter().any(|path| Path::new(path).exists()) {
        println!("skipped: a CUDA toolkit is installed");
        return;
    }
    let project = Project::new();
    let without = |required: &str| {
        let mut command = project.command("release");
        for name in ["NVCC", "CUDA_HOME", "CUDA_PATH"] {
            command.env_remove(name);
        }
        Run::new(command.env("PATH", "").env("FLUX_REQUIRE_NVCC", required))
    };
    assert!(without("0").succeeds().stdout.contains("cargo::warning=nvcc was not found"));
    assert_eq!(project.included("release"), [""; 0]);
    let run = without("1");
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("cargo::error=nvcc was not found"), "{}", run.stdout);
}
