//! Tests of the machine that the program runs on: each op of an image against what it should give, an image against the
//! one that it should be, memory against what was written to it; and how fast it is.
//!
//! Every op runs at two sizes, those of a real model with fewer rows and ragged ones. What a device makes of it is
//! compared with the op's definition on the CPU, within the bound of the tests in tests/parity ([`compare()`]); where
//! plain loops give the values too ([`Case::by_loops`]), also with those, which is what the CPU itself is compared
//! with.

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

pub use case::{Case, Visitor};
pub use compare::{Bound, Comparison, compare, rounding};
pub use table::each;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::tensor::Tensor;

/// What to test.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Parts of the names of what to test; none is all.
    pub names: Vec<String>,
    /// Whether one value of each op is spoiled, so that the comparison has to find it.
    pub spoil: bool,
}

/// What was found of one thing that was tested.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What was tested, such as `ops/linear 129x96x80`.
    pub name: String,
    /// What was measured, in words.
    pub figures: String,
    /// What is wrong, if anything.
    pub wrong: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

/// Tests `device` beside `reference`, which is the CPU in float32, or the device itself where `is_reference`. `tell`
/// gets each finding. An op that fails is a finding, too.
///
/// Errors when nothing has one of the names, or `tell` does.
pub fn run<B: Backend, R: Backend>(
    device: &B,
    reference: &R,
    is_reference: bool,
    settings: &Settings,
    model: impl FnOnce() -> Result<ModelFiles>,
    tell: &mut dyn FnMut(Finding) -> Result<()>,
) -> Result<()> {
    let mut test = Test { device, reference, is_reference, settings, tell, told: 0 };
    test.one("memory", memory::check)?;
    each(&mut test)?;
    if test.wants(picture::NAME) || test.wants(picture::STAGES) {
        picture::test(&mut test, model)?;
    }
    rates::NAMES.iter().try_for_each(|name| test.one(name, |device| rates::measure(device, name)))?;
    if test.told == 0 {
        return Err(Error::usage(format!("nothing to test has `{}` in its name", settings.names.join("` or `")))
            .hint("names are such as `memory`, `ops/linear`, `image/`, `stages/` and `rates/`"));
    }
    Ok(())
}

/// A device, beside the reference.
struct Test<'a, B: Backend, R: Backend> {
    device: &'a B,
    reference: &'a R,
    is_reference: bool,
    settings: &'a Settings,
    tell: &'a mut dyn FnMut(Finding) -> Result<()>,
    told: usize,
}

/// What was measured, and what is wrong with it, if anything.
type Outcome = (String, Option<String>);

impl<B: Backend, R: Backend> Test<'_, B, R> {
    fn wants(&self, name: &str) -> bool {
        let names = &self.settings.names;
        names.is_empty() || names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Tests one thing of the device, if it is wanted.
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
        self.told += 1;
        (self.tell)(Finding { name: name.to_string(), figures, wrong, seconds: start.elapsed().as_secs_f64() })
    }

    fn compare(&self, case: &impl Case) -> Result<Outcome> {
        let mut got = downloaded(self.device, &case.run(self.device)?)?;
        if self.settings.spoil
            && let Some(value) = got.first_mut().and_then(|values| values.first_mut())
        {
            *value += 16.0;
        }
        let (roundings, spread) = case.allowed();
        let bound = Bound { rounding: rounding(self.device.activation_dtype()), roundings, spread };
        let by_loops = case.by_loops().map(|values| vec![values]);
        // The definition on the CPU itself is another way to the same values for fused ops alone.
        let defined = (!self.is_reference || by_loops.is_none())
            .then(|| case.compose(self.reference).and_then(|made| downloaded(self.reference, &made)))
            .transpose()?;
        let mut figures = Vec::new();
        for (of, expected) in [("definition", defined), ("loops", by_loops)] {
            for (got, expected) in got.iter().zip(expected.iter().flatten()) {
                let found = compare(got, expected, bound);
                if let Some(wrong) = found.complaint() {
                    return Ok((found.to_string(), Some(format!("beside its {of}: {wrong}"))));
                }
                figures.push(found);
            }
        }
        let worst = figures.iter().max_by(|a, b| (a.worst / a.rms).total_cmp(&(b.worst / b.rms)));
        Ok((worst.map_or(String::new(), ToString::to_string), None))
    }
}

impl<B: Backend, R: Backend> Visitor for Test<'_, B, R> {
    fn visit(&mut self, case: &impl Case) -> Result<()> {
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
