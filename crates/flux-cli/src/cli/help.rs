//! Flags of the utility commands: `devices`, `selftest`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::Shell;
use flux::engine::choice::Device;
use flux::{Error, Result};
use flux_bench::selftest::Settings;

use super::values::{one_of, path};

/// `flux devices`
#[derive(Args)]
pub struct Devices {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `flux selftest`
#[derive(Args)]
pub struct Selftest {
    /// Parts of test names, as in ops/ or linear [default: all]
    ///
    /// Examples are memory, ops/, linear, image/, stages/ and rates/.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_hint = ValueHint::Other)]
    pub device: Device,
    /// CPU threads, 1 to 1024 [default: $RAYON_NUM_THREADS, else one per core]
    #[arg(long, value_name = "N", value_parser = super::whole(1..=super::MAX_THREADS))]
    pub threads: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Corrupt one value of each op
    #[cfg(debug_assertions)]
    #[arg(long, hide = true)]
    pub fail_for_test: bool,
}

impl Selftest {
    /// Returns the selection of tests.
    pub fn settings(&self) -> Settings {
        #[cfg(debug_assertions)]
        let spoil = self.fail_for_test;
        #[cfg(not(debug_assertions))]
        let spoil = false;
        Settings { names: self.names.clone(), spoil }
    }

    /// Errors when several devices are named.
    pub fn check(&self) -> Result<()> {
        match self.device.count() {
            Some(1) => Ok(()),
            _ => Err(Error::usage("only one device can be tested at a time")
                .at("--device")
                .hint("name one GPU, as in `--device cuda:1`")),
        }
    }
}

/// The shells with completions.
const SHELLS: &[(&str, Shell)] = &[
    ("bash", Shell::Bash),
    ("zsh", Shell::Zsh),
    ("fish", Shell::Fish),
    ("elvish", Shell::Elvish),
    ("powershell", Shell::PowerShell),
];

/// `flux completions`
#[derive(Args)]
pub struct Completions {
    /// Shell
    #[arg(value_name = "SHELL", value_parser = one_of(SHELLS))]
    pub shell: Shell,
}

/// `flux man`
#[derive(Args)]
pub struct Man {
    /// Output folder, which must exist
    #[arg(value_name = "DIR", value_parser = path(), value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}
