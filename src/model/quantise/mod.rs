//! Weights that are brought to fewer bits when a model is opened.

pub(crate) mod plan;

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use crate::error::{Field, Result};
use crate::files::quantise::{bits_per_value, format_of_name};
use crate::files::{Format, Role, TensorFiles};
use crate::model::file_sizes::FileSizes;
use crate::model::info::ModelInfo;
use crate::model::open::OpenModel;
use crate::model::quantise::plan::{Planned, plan};
use crate::nn::WeightPolicy;
use crate::stage::{Caller, CancelFlag, Progress, Stage};

/// What users call the components whose weights are quantised.
pub(crate) const COMPONENTS: [(&str, Role); 2] = [("transformer", Role::Transformer), ("text", Role::TextEncoder)];

/// The formats that weights are brought to; none leaves those of a component as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantisation {
    /// Of the matrices of the transformer's blocks.
    pub transformer: Option<Format>,
    /// Of the matrices of the text encoder's layers.
    pub text_encoder: Option<Format>,
}

/// What happened to the weights of a component.
#[derive(Debug, Clone)]
pub struct Quantised {
    role: Role,
    format: Format,
    bytes: [u64; 2],
    seconds: f64,
}

impl FromStr for Quantisation {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::read(text).map(|(wanted, _)| wanted)
    }
}

impl Quantisation {
    /// Reads `FORMAT` for all components, or `transformer=FORMAT`, `text=FORMAT` or both with a comma in between. With
    /// them comes what to tell whoever gave the names of formats.
    ///
    /// Errors with the reason.
    pub fn read(text: &str) -> std::result::Result<(Self, Vec<String>), String> {
        if !text.contains('=') {
            let (format, note) = format_of_name(text)?;
            return Ok((Self { transformer: Some(format), text_encoder: Some(format) }, Vec::from_iter(note)));
        }
        let (mut wanted, mut notes) = (Self::default(), Vec::new());
        for item in text.split(',') {
            let (component, format) = item.split_once('=').ok_or_else(|| format!("`{item}` names no component"))?;
            let place = match COMPONENTS.iter().find(|(name, _)| *name == component) {
                Some((_, Role::TextEncoder)) => &mut wanted.text_encoder,
                Some(_) => &mut wanted.transformer,
                None => return Err(format!("`{component}` is no component, expected transformer or text")),
            };
            let (format, note) = format_of_name(format)?;
            notes.extend(note.filter(|note| !notes.contains(note)));
            if place.replace(format).is_some() {
                return Err(format!("`{component}` is there twice"));
            }
        }
        Ok((wanted, notes))
    }
}

impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |role| if role == Role::TextEncoder { self.text_encoder } else { self.transformer };
        let item = |(name, role): &(&str, Role)| Some(format!("{name}={}", of(*role)?.name()?));
        f.write_str(&COMPONENTS.iter().filter_map(item).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for Quantised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.bytes.map(|bytes| bytes as f64 / 1e6);
        let (title, format) = (self.role.title(), self.format.name().unwrap_or_default());
        write!(f, "quantised the {title} to {format}: {before:.1} MB became {after:.1} MB in {:.1} s", self.seconds)
    }
}

impl OpenModel {
    /// Brings weights to fewer bits, in memory that this model holds. Whoever loads them sees a model whose files have
    /// them in that format. A text encoder that was not opened is passed over.
    ///
    /// Errors when the weights of a component would become no smaller, hold values that the format does not, or
    /// `cancel` is set meanwhile.
    pub fn quantise(
        &mut self,
        wanted: &Quantisation,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Quantised>> {
        let caller = Caller::new(report, cancel);
        let last = self.info.layers_to_run();
        let mut done = Vec::new();
        if let Some(format) = wanted.transformer {
            done.push(quantise(&mut self.files.transformer, Role::Transformer, format, |_| true, &caller)?);
        }
        if let (Some(format), Some(files)) = (wanted.text_encoder, &mut self.files.text_encoder) {
            done.push(quantise(files, Role::TextEncoder, format, |name| runs(name, last), &caller)?);
        }
        self.info.file_sizes = self.files.sizes(&self.info);
        self.info.quantised = Some(wanted.to_string());
        Ok(done)
    }
}

/// Whether a tensor of a text encoder is part of what runs, which is `layers` layers.
fn runs(name: &str, layers: usize) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_none_or(|layer: usize| layer < layers)
}

/// The matrices whose names `wanted` accepts, and the formats to which they are brought.
///
/// Errors when they would become no smaller.
fn planned(files: &TensorFiles, role: Role, format: Format, wanted: impl Fn(&str) -> bool) -> Result<Vec<Planned>> {
    let mut planned = plan(files, role, format, |name| WeightPolicy::is_quantised_in_files(name) && wanted(name))?;
    planned.retain(|tensor| tensor.quantised.is_some());
    plan::check_narrower(&planned, role, format).map_err(|e| e.of(Field::Quantize))?;
    Ok(planned)
}

/// Values of each matrix whose name begins with `prefix`, and its bytes in its new format.
fn matrices(planned: &[Planned], prefix: &str) -> Vec<[u64; 2]> {
    let sizes = |tensor: &Planned| {
        let (format, values) = (tensor.quantised?, tensor.elements());
        (!format.is_float()).then(|| [values, (values as f64 * bits_per_value(format) / 8.0) as u64])
    };
    planned.iter().filter(|tensor| tensor.parts[0].name.starts_with(prefix)).filter_map(sizes).collect()
}

impl Quantisation {
    /// What blocks take of which weights are in few bits: of the text encoder and the transformer, in these files or as
    /// they would be brought to formats.
    ///
    /// Errors when the weights of a component would become no smaller.
    pub(crate) fn sizes(
        &self,
        info: &ModelInfo,
        text_encoder: &TensorFiles,
        transformer: &TensorFiles,
    ) -> Result<[FileSizes; 2]> {
        let layers = info.layers_to_run();
        let text = match self.text_encoder {
            None => FileSizes::of_text_encoder(text_encoder, layers),
            Some(format) => {
                let planned = planned(text_encoder, Role::TextEncoder, format, |name| runs(name, layers))?;
                FileSizes::of_layers(layers, |prefix| matrices(&planned, prefix))
            }
        };
        let transformer = match self.transformer {
            None => FileSizes::of_transformer(transformer, &info.transformer),
            Some(format) => {
                let planned = planned(transformer, Role::Transformer, format, |_| true)?;
                FileSizes::of_blocks(&info.transformer, |prefix| matrices(&planned, prefix))
            }
        };
        Ok([text, transformer])
    }
}

/// Brings the matrices whose names `wanted` accepts to a format.
fn quantise(
    files: &mut TensorFiles,
    role: Role,
    format: Format,
    wanted: impl Fn(&str) -> bool,
    caller: &Caller<'_>,
) -> Result<Quantised> {
    let start = Instant::now();
    let planned = planned(files, role, format, wanted)?;
    let total: u64 = planned.iter().map(Planned::elements).sum();
    let (mut elements, mut bytes) = (0, [0; 2]);
    caller.report(Stage::Quantise, 0, total);
    for tensor in planned {
        caller.check()?;
        let made = tensor.make(tensor.quantised.unwrap_or(format))?;
        bytes[0] += tensor.bytes();
        bytes[1] += plan::bytes_of(&made);
        let mut first = 0;
        for (part, views) in tensor.parts.iter().zip(&tensor.views) {
            let rows: usize = views.iter().map(|view| view.rows()).sum();
            files.replace(part.name.clone(), made.row_range(first..first + rows));
            first += rows;
        }
        elements += tensor.elements();
        caller.report(Stage::Quantise, elements, total);
    }
    Ok(Quantised { role, format, bytes, seconds: start.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_plan_counts_the_bytes_of_the_format() {
        let dir = crate::files::ModelFiles::open("models/tiny".as_ref()).unwrap();
        let mut model = OpenModel::open(&dir).unwrap();
        let costs = crate::backend::Costs::hopper();
        let all = |model: &OpenModel| model.info.memory_sizes(&costs, None).unwrap().transformer.all();
        let before = all(&model);
        let wanted = Quantisation { transformer: Some(Format::Q8_0), text_encoder: None };
        let text = model.files.text_encoder.as_ref().unwrap();
        let foreseen = wanted.sizes(&model.info, text, &model.files.transformer).unwrap();
        let [done] = &model.quantise(&wanted, &CancelFlag::default(), &mut |_| {}).unwrap()[..] else {
            panic!("one component")
        };
        assert!(done.bytes[1] < done.bytes[0]);
        assert_eq!(model.info.file_sizes, foreseen);
        assert_eq!(before - all(&model), done.bytes[0] - done.bytes[1], "what the blocks take less");
    }

    #[test]
    fn formats_are_of_all_components_or_of_those_that_are_named() {
        let parse = |text: &str| text.parse::<Quantisation>();
        let both = Quantisation { transformer: Some(Format::Q4K), text_encoder: Some(Format::Q4K) };
        assert_eq!(parse("q4_k"), Ok(both));
        assert_eq!(parse("transformer=Q4_K,text=q4_k"), Ok(both));
        let (found, notes) = Quantisation::read("transformer=Q4_K_M,text=Q4_K_M").unwrap();
        assert!(found == both && notes.len() == 1 && notes[0].contains("Q4_K_M is taken as q4_k"), "{notes:?}");
        let text = Quantisation { transformer: None, text_encoder: Some(Format::Q8_0) };
        assert_eq!((parse("text=q8_0"), text.to_string()), (Ok(text), "text=q8_0".to_string()));
        assert_eq!(both.to_string().parse(), Ok(both));
        for (bad, words) in [
            ("q9", "`q9` is no format of weights, expected one of bf16, fp8, int8, "),
            ("text=q4", "`q4` is no format of weights that are made, the nearest is q4_k; expected one of bf16, "),
            ("vae=q8_0", "`vae` is no component, expected transformer or text"),
            ("text=q8_0,text=q4_0", "`text` is there twice"),
            ("text=q8_0,q4_0", "`q4_0` names no component"),
            ("text=", "`` is no format"),
        ] {
            assert!(parse(bad).is_err_and(|why| why.contains(words)), "{bad}");
        }
    }
}
