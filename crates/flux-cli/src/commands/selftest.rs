//! `flux selftest`: tests this machine and prints a report.

use flux::default_model::default_model;
use flux::engine::EngineArgs;
use flux::engine::choice::Device;
use flux::engine::devices::{self as engine_devices, Devices, Needs};
use flux::error::shown;
use flux::{Error, Result};
use flux_bench::selftest::{Finding, Settings, run as test};
use serde::Serialize;

use super::json::json_lines;
use super::{devices, print};
use crate::cli::Selftest;
use crate::version;
use flux_runtime::progress::{Console, Shown};

/// The JSON object of a finding.
#[derive(Serialize)]
struct Row {
    name: String,
    ok: bool,
    figures: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<String>,
    seconds: f64,
}

/// The JSON report.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    commit: Option<&'static str>,
    machine: Vec<String>,
    device: String,
    ok: bool,
    findings: Vec<Row>,
}

/// Runs the tests and prints each line as soon as it is known.
///
/// Errors when a test fails.
pub fn run(args: &Selftest) -> Result<()> {
    args.check()?;
    let mut console = Console::new(args.json, false, Shown::Nothing);
    let mut open =
        |device| engine_devices::open(&EngineArgs { device, ..EngineArgs::default() }, &Needs::UNKNOWN, &mut console);
    let (tested, reference) = (open(args.device.clone())?.0, open(Device::Cpu)?.0);
    let Devices::Cpu(reference) = reference else { return Err(Error::new("cannot open the CPU")) };
    let [(_, reference)] = &reference[..] else { return Err(Error::new("expected exactly one CPU device")) };
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
        commit: version::BUILD.commit,
        machine: devices::lines(),
        device: device.describe(),
        ok: true,
        findings: Vec::new(),
    };
    if !args.json {
        print(report.head().as_bytes())?;
    }
    test(device, reference, is_reference, settings, default_model, &mut |finding| {
        let row = Row::from_finding(finding);
        if !args.json {
            print(row.line().as_bytes())?;
        }
        report.findings.push(row);
        Ok(())
    })?;
    let (count, bad) = (report.findings.len(), report.findings.iter().filter(|row| !row.ok).count());
    report.ok = bad == 0;
    let text = match (args.json, bad) {
        (true, _) => json_lines(&report)?,
        (false, 0) => format!("all {count} passed"),
        (false, _) => format!("{bad} of {count} FAILED"),
    };
    print(text.as_bytes())?;
    if report.ok {
        return Ok(());
    }
    Err(Error::new(format!("{bad} of {count} tests of this machine failed"))
        .hint("run it again; if it fails again, report the output, or test the device's memory"))
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
    fn from_finding(finding: Finding) -> Self {
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
        assert!(Row::from_finding(finding(None)).line().starts_with("ok     ops/add 37x77 "));
        let line = Row::from_finding(finding(Some("too far"))).line();
        assert!(line.starts_with("FAILED ops/add 37x77") && line.ends_with("max 1e-2; too far"), "{line}");
    }
}
