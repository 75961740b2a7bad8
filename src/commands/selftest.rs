//! `flux selftest`: tests this machine and prints a report.

use flux::default_model::default_model;
use flux::engine::EngineArgs;
use flux::engine::choice::DeviceChoice;
use flux::engine::devices::{self as engine_devices, Devices};
use flux::error::shown;
use flux::selftest::{Finding, Settings, run as test};
use flux::{Error, Result};
use serde::Serialize;

use super::{devices, print};
use crate::cli::Selftest;
use crate::progress::{Console, Shown};
use crate::version;

/// A finding, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    name: String,
    ok: bool,
    figures: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<String>,
    seconds: f64,
}

/// All of it, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    commit: Option<&'static str>,
    machine: Vec<String>,
    device: String,
    ok: bool,
    findings: Vec<Row>,
}

/// Tests, and prints each line as soon as it is known.
///
/// Errors when anything is not as it should be.
pub fn run(args: &Selftest) -> Result<()> {
    args.check()?;
    let mut console = Console::new(args.json, false, Shown::Nothing);
    let mut open =
        |device| engine_devices::open(&EngineArgs { device, ..EngineArgs::default() }, &|| false, &mut console);
    let (tested, reference) = (open(args.device.clone())?, open(DeviceChoice::Cpu)?);
    let Devices::Cpu(reference) = reference else { return Err(Error::new("the CPU did not open")) };
    let [(_, reference)] = &reference[..] else { return Err(Error::new("the CPU is one device")) };
    let settings = args.settings();
    match tested {
        Devices::Cpu(group) => group.iter().try_for_each(|(_, cpu)| report(args, cpu, reference, true, &settings)),
        Devices::Cuda(gpus) => {
            gpus.first.iter().try_for_each(|(_, gpu)| report(args, gpu, reference, false, &settings))
        }
    }
}

fn report<B: flux::backend::Backend, R: flux::backend::Backend>(
    args: &Selftest,
    device: &B,
    reference: &R,
    is_reference: bool,
    settings: &Settings,
) -> Result<()> {
    let mut report = Report {
        version: version::VERSION,
        commit: version::commit(),
        machine: devices::lines(),
        device: device.describe(),
        ok: true,
        findings: Vec::new(),
    };
    if !args.json {
        print(report.head().as_bytes())?;
    }
    test(device, reference, is_reference, settings, default_model, &mut |finding| {
        let row = Row::of(finding);
        if !args.json {
            print(row.line().as_bytes())?;
        }
        report.findings.push(row);
        Ok(())
    })?;
    let (count, bad) = (report.findings.len(), report.findings.iter().filter(|row| !row.ok).count());
    report.ok = bad == 0;
    let json = |e| Error::new(format!("cannot write the report as JSON: {e}"));
    let text = match (args.json, bad) {
        (true, _) => serde_json::to_string_pretty(&report).map_err(json)?,
        (false, 0) => format!("all {count} hold"),
        (false, _) => format!("{bad} of {count} FAILED"),
    };
    print(text.as_bytes())?;
    if report.ok {
        return Ok(());
    }
    Err(Error::new(format!("{bad} of {count} tests of this machine failed"))
        .hint("run it once more; if it fails again, report what it printed, or test the device's memory"))
}

impl Report {
    fn head(&self) -> String {
        let commit = self.commit.map_or(String::new(), |commit| format!(" (commit {commit})"));
        let device = format!("tested: {}", self.device);
        let first = format!("flux {}{commit}", self.version);
        [first].iter().chain(&self.machine).chain([&device]).cloned().collect::<Vec<_>>().join("\n")
    }
}

impl Row {
    fn of(finding: Finding) -> Self {
        let Finding { name, figures, wrong, seconds } = finding;
        Self { name, ok: wrong.is_none(), figures, wrong, seconds: (seconds * 1e3).round() / 1e3 }
    }

    fn line(&self) -> String {
        let Self { name, figures, seconds, .. } = self;
        let word = if self.ok { "ok    " } else { "FAILED" };
        let wrong = self.wrong.as_ref().map_or(String::new(), |wrong| format!("; {}", shown(wrong)));
        format!("{word} {name:<48} {seconds:6.2} s  {figures}{wrong}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_it_holds_and_why_not() {
        let finding = |wrong: Option<&str>| Finding {
            name: "ops/add 37x77".to_string(),
            figures: "max 1e-2".to_string(),
            wrong: wrong.map(String::from),
            seconds: 0.01234,
        };
        assert!(Row::of(finding(None)).line().starts_with("ok     ops/add 37x77 "));
        let line = Row::of(finding(Some("too far"))).line();
        assert!(line.starts_with("FAILED ops/add 37x77") && line.ends_with("max 1e-2; too far"), "{line}");
    }
}
