//! A machine with a bundle, with shell scripts as programs, as Python with torch and as nvidia-smi.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Folder, Run, names, project};
use crate::scripts::gpu_bundle::folders;
use crate::scripts::{folder, program_that, write};

/// A bench of images: the times of each requested row contain the size of its image and of its references.
const BENCH: &str = r#"echo "$*" >>"$RAN"
for name in "stages/1024x1024 0" "stages/edit-512x512+1 1" "stages/edit-1024x1024+1 1" \
    "stages/edit-1024x1024+2 2" "stages/edit-1024x1024+4 4" "vae_encode/1024x1024 0" "vae_encode/2048x2048 0"; do
    n=${name#* }
    times="\"ms\":8,\"step_ms\":1$n,\"total_ms\":2$n,\"second_ms\":3$n,\"references_ms\":4$n,\"read_ms\":5$n"
    echo "{\"name\":\"${name% *}\",\"size\":1024,\"min_ms\":7,$times}"
done"#;

pub struct Machine {
    folder: Folder,
}

/// The result of sections.
pub struct Checked {
    pub run: Run,
    /// The last `result` line of the log.
    pub result: String,
    pub log: String,
    /// The commands of the programs that write it.
    pub ran: Vec<String>,
}

impl Machine {
    /// nvidia-smi always prints `gpus`, and the 4B model exists.
    pub fn new(gpus: &str) -> Self {
        let machine = Self { folder: folder() };
        for name in ["bin", "tools", "models/klein-4b", "memory", "bundle/scripts"] {
            fs::create_dir_all(machine.path(name)).expect("a temporary folder is writable");
        }
        for name in folders() {
            fs::create_dir_all(machine.path("bundle").join(name)).expect("a temporary folder is writable");
        }
        write(machine.path("models/klein-4b/model_index.json"), "{}");
        let copied =
            Command::new("cp").arg("-r").arg(project("scripts/gpu_check")).arg(machine.path("bundle/scripts")).status();
        assert!(copied.expect("cp").success());
        machine.gpus(gpus);
        machine.program("tools/python", r#"mkdir -p "$3" && echo {} >"$3/model_index.json" && echo "wrote $2""#);
        machine.program("bin/flux", BENCH);
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn program(&self, name: &str, does: &str) {
        fs::rename(program_that(&self.folder, does), self.path(name)).expect("a temporary folder is writable");
    }

    /// Makes nvidia-smi print this.
    pub fn gpus(&self, lines: &str) {
        self.program("tools/nvidia-smi", &format!("printf '{lines}\\n'"));
    }

    /// Runs sections, and reads the log of the first one.
    pub fn check(&self, sections: &[&str], environment: &[(&str, &str)]) -> Checked {
        let out = self.path("out");
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_file(self.path("ran"));
        self.pack();
        let mut command = gpu_check(&self.path("bundle/scripts/gpu_check"));
        let tools = format!("{}:{}", self.path("tools").display(), std::env::var("PATH").unwrap_or_default());
        command.arg(&out).args(sections).env("PATH", tools).env("RAN", self.path("ran"));
        command.env("PYTHON", self.path("tools/python"));
        command.env("MODEL_DIR", self.path("models")).env("MEMORY_DIR", self.path("memory"));
        let run = Run::new(command.envs(environment.iter().copied()));
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let log = text(out.join(format!("{}.log", sections[0])));
        let result = log.lines().filter_map(|line| line.strip_prefix("result: ")).next_back().unwrap_or_default();
        let ran = text(self.path("ran")).lines().map(str::to_string).collect();
        Checked { result: result.to_string(), run, log, ran }
    }

    fn pack(&self) {
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(self.path("bin"))
            .arg("-cJf")
            .arg(self.path("bundle/bin.tar.xz"))
            .args(names(&self.path("bin")));
        assert!(tar.status().expect("tar").success());
    }
}

impl Checked {
    #[track_caller]
    pub fn passes(self) -> Self {
        assert_eq!(self.run.code, Some(0), "{}\n{}\n{}", self.run.stdout, self.run.stderr, self.log);
        self
    }

    #[track_caller]
    pub fn fails(self) -> Self {
        assert_eq!(self.run.code, Some(1), "{}\n{}\n{}", self.run.stdout, self.run.stderr, self.log);
        self
    }
}

/// Returns the package's command, without the user's environment.
pub fn gpu_check(package: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(package);
    for name in ["MODEL_DIR", "MEMORY_DIR", "KEEP", "TOTAL_S", "LIMIT_S", "TESTS", "BENCH", "BASE", "PYTHON"] {
        command.env_remove(name);
    }
    command
}
