//! Tests of this machine: each op of an image against its expected result, a whole image against a stored one, memory
//! against the data written to it, and speed.
//!
//! Every op runs at two sizes: a real model's with fewer rows, and a ragged one. A device's result is compared with the
//! op's definition on the CPU, within the bound of the tests in tests/parity ([`compare()`]). If plain loops also
//! compute the values (`Case::by_loops`), it is compared with them, too; the CPU itself is tested this way.
//!
//! It parses no flags and prints nothing. Start reading at [`run`].

mod case;
mod compare;
mod images;
mod inputs;
mod loops;
mod memory;
mod picture;
mod products;
mod rates;
mod rows;
mod table;

use std::time::Instant;

pub use compare::{Bound, Comparison, compare, rounding};

use case::Case;
use flux::backend::Backend;
use flux::error::{Error, Result};
use flux::files::ModelFiles;
use flux::tensor::Tensor;

/// The selection of tests.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Parts of test names; empty selects all.
    pub names: Vec<String>,
    /// Corrupt one value of each op, so that the comparison must fail.
    pub spoil: bool,
}

/// The result of one test.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The test's name, such as `ops/linear 129x96x80`.
    pub name: String,
    /// The measured values as text.
    pub figures: String,
    /// The fault, if any.
    pub wrong: Option<String>,
    /// The duration of the test.
    pub seconds: f64,
}

/// Tests `device` against `reference`, which is the CPU in float32, or the device itself if `is_reference`. `report`
/// receives each finding. An op that fails is a finding, too.
///
/// Errors when no test matches the names, or `report` fails.
pub fn run<B: Backend, R: Backend>(
    device: &B,
    reference: &R,
    is_reference: bool,
    settings: &Settings,
    model: impl FnOnce() -> Result<ModelFiles>,
    report: &mut dyn FnMut(Finding) -> Result<()>,
) -> Result<()> {
    let mut test = Test { device, reference, is_reference, settings, report, reported: 0 };
    test.one("memory", memory::check)?;
    table::each(&mut test)?;
    if test.wants(picture::NAME) || test.wants(picture::STAGES) {
        picture::test(&mut test, model)?;
    }
    rates::NAMES.iter().try_for_each(|name| test.one(name, |device| rates::measure(device, name)))?;
    if test.reported == 0 {
        return Err(Error::usage(format!("no test has `{}` in its name", settings.names.join("` or `")))
            .hint("use names such as `memory`, `ops/linear`, `image/`, `stages/` and `rates/`"));
    }
    Ok(())
}

/// A device and its reference.
struct Test<'a, B: Backend, R: Backend> {
    device: &'a B,
    reference: &'a R,
    is_reference: bool,
    settings: &'a Settings,
    report: &'a mut dyn FnMut(Finding) -> Result<()>,
    reported: usize,
}

/// The measured values as text, and the fault if any.
type Outcome = (String, Option<String>);

impl<B: Backend, R: Backend> Test<'_, B, R> {
    fn wants(&self, name: &str) -> bool {
        let names = &self.settings.names;
        names.is_empty() || names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Runs one test on the device, if it is selected.
    fn one(&mut self, name: &str, check: impl FnOnce(&B) -> Result<Outcome>) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let start = Instant::now();
        let found = check(self.device);
        self.found(name, start, found)
    }

    fn found(&mut self, name: &str, start: Instant, found: Result<Outcome>) -> Result<()> {
        let (figures, wrong) = found.unwrap_or_else(|e| (String::new(), Some(e.what().to_string())));
        self.reported += 1;
        (self.report)(Finding { name: name.to_string(), figures, wrong, seconds: start.elapsed().as_secs_f64() })
    }

    fn compare(&self, case: &impl Case) -> Result<Outcome> {
        let mut got = downloaded(self.device, &case.with(self.device, true)?)?;
        if self.settings.spoil
            && let Some(value) = got.first_mut().and_then(|values| values.first_mut())
        {
            *value += 16.0;
        }
        let (roundings, spread) = case.allowed();
        let bound = Bound { rounding: rounding(self.device.activation_dtype()), roundings, spread };
        let by_loops = case.by_loops().map(|values| vec![values]);
        // On the CPU itself, the definition is an independent check only for fused ops.
        let defined = (!self.is_reference || by_loops.is_none())
            .then(|| case.with(self.reference, false).and_then(|made| downloaded(self.reference, &made)))
            .transpose()?;
        let mut figures = Vec::new();
        for (of, expected) in [("definition", defined), ("loops", by_loops)] {
            for (got, expected) in got.iter().zip(expected.iter().flatten()) {
                let found = compare(got, expected, bound);
                if let Some(wrong) = found.complaint() {
                    return Ok((found.to_string(), Some(format!("compared with its {of}: {wrong}"))));
                }
                figures.push(found);
            }
        }
        let worst = figures.iter().max_by(|a, b| (a.worst / a.rms).total_cmp(&(b.worst / b.rms)));
        Ok((worst.map_or(String::new(), ToString::to_string), None))
    }

    /// Compares the results of a case, if it is selected.
    fn case(&mut self, case: &impl Case) -> Result<()> {
        let name = format!("ops/{}", case.name());
        if !self.wants(&name) {
            return Ok(());
        }
        let start = Instant::now();
        let found = self.compare(case);
        self.found(&name, start, found)
    }
}

fn downloaded<B: Backend>(b: &B, tensors: &[Tensor<B>]) -> Result<Vec<Vec<f32>>> {
    tensors.iter().map(|x| b.download(x)).collect()
}
