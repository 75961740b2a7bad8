//! Flags of the commands that help to use the program: `devices`, `selftest`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use flux::engine::choice::DeviceChoice;
use flux::selftest::Settings;
use flux::{Error, Result};

use super::values::path;

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
    /// Parts of the names of what to test, such as memory, ops/, linear, image/, stages/ or rates/ [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Device: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_hint = ValueHint::Other)]
    pub device: DeviceChoice,
    /// Threads on the CPU, 1 to 1024 [default: $RAYON_NUM_THREADS, else one per core]
    #[arg(long, value_name = "N", value_parser = super::whole(1..=super::MAX_THREADS))]
    pub threads: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Spoil a value of each op
    #[cfg(debug_assertions)]
    #[arg(long, hide = true)]
    pub fail_for_test: bool,
}

impl Selftest {
    /// What to test.
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
            _ => Err(Error::usage("one device is tested at a time")
                .at("--device")
                .hint("name one GPU, as in `--device cuda:1`")),
        }
    }
}

/// A shell that completes words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
}

/// `flux completions`
#[derive(Args)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// `flux man`
#[derive(Args)]
pub struct Man {
    /// The folder; it must be there
    #[arg(value_name = "DIR", value_parser = path(), value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}
