//! Quantization of weights when a model is opened.

pub(crate) mod plan;

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use crate::error::{Field, Result};
use crate::files::quantize::{bits_per_value, format_of_name};
use crate::files::{Format, Role, TensorFiles};
use crate::model::file_sizes::FileSizes;
use crate::model::info::ModelInfo;
use crate::model::open::OpenModel;
use crate::model::quantize::plan::{Planned, plan};
use crate::nn::WeightPolicy;
use crate::stage::{Caller, CancelFlag, Progress, Stage};

/// Names of the components that can be quantized, as users write them.
pub(crate) const COMPONENTS: [(&str, Role); 2] = [("transformer", Role::Transformer), ("text", Role::TextEncoder)];

/// The formats that weights are quantized to; `None` leaves the weights of a component unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantization {
    /// Format of the matrices of the transformer's blocks.
    pub transformer: Option<Format>,
    /// Format of the matrices of the text encoder's layers.
    pub text_encoder: Option<Format>,
}

/// A report on the quantized weights of a component.
#[derive(Debug, Clone)]
pub struct Quantized {
    role: Role,
    format: Format,
    bytes: [u64; 2],
    seconds: f64,
}

impl FromStr for Quantization {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::read(text).map(|(wanted, _)| wanted)
    }
}

impl Quantization {
    /// Reads `FORMAT` for all components, or `transformer=FORMAT`, `text=FORMAT` or both separated by a comma. Also
    /// returns notes about the names of formats, for the user.
    ///
    /// Errors with the reason.
    pub fn read(text: &str) -> std::result::Result<(Self, Vec<String>), String> {
        if !text.contains('=') {
            let (format, note) = format_of_name(text)?;
            return Ok((Self { transformer: Some(format), text_encoder: Some(format) }, Vec::from_iter(note)));
        }
        let (mut wanted, mut notes) = (Self::default(), Vec::new());
        for item in text.split(',') {
            let (component, format) =
                item.split_once('=').ok_or_else(|| format!("`{item}` does not name a component"))?;
            let place = match COMPONENTS.iter().find(|(name, _)| *name == component) {
                Some((_, Role::TextEncoder)) => &mut wanted.text_encoder,
                Some(_) => &mut wanted.transformer,
                None => return Err(format!("`{component}` is not a component, expected transformer or text")),
            };
            let (format, note) = format_of_name(format)?;
            notes.extend(note.filter(|note| !notes.contains(note)));
            if place.replace(format).is_some() {
                return Err(format!("`{component}` is listed twice"));
            }
        }
        Ok((wanted, notes))
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |role| if role == Role::TextEncoder { self.text_encoder } else { self.transformer };
        let item = |(name, role): &(&str, Role)| Some(format!("{name}={}", of(*role)?.name()?));
        f.write_str(&COMPONENTS.iter().filter_map(item).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.bytes.map(|bytes| bytes as f64 / 1e6);
        let (title, format) = (self.role.title(), self.format.name().unwrap_or_default());
        write!(f, "quantized the {title} to {format}: from {before:.1} MB to {after:.1} MB in {:.1} s", self.seconds)
    }
}

impl OpenModel {
    /// Quantizes weights, in memory that this model holds. Loading sees a model whose files have the weights in that
    /// format. A text encoder that was not opened is skipped.
    ///
    /// Errors if the weights of a component would become no smaller, they hold values that the format cannot hold, or
    /// `cancel` is set meanwhile.
    pub fn quantize(
        &mut self,
        wanted: &Quantization,
        cancel: &CancelFlag,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Quantized>> {
        let caller = Caller::new(report, cancel);
        let last = self.info.layers_to_run();
        let mut done = Vec::new();
        if let Some(format) = wanted.transformer {
            done.push(quantize(&mut self.files.transformer, Role::Transformer, format, |_| true, &caller)?);
        }
        if let (Some(format), Some(files)) = (wanted.text_encoder, &mut self.files.text_encoder) {
            done.push(quantize(files, Role::TextEncoder, format, |name| runs(name, last), &caller)?);
        }
        self.info.file_sizes = self.files.sizes(&self.info);
        self.info.quantized = Some(wanted.to_string());
        Ok(done)
    }
}

/// Returns `true` if a tensor of a text encoder belongs to its first `layers` layers, or to no layer.
fn runs(name: &str, layers: usize) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_none_or(|layer: usize| layer < layers)
}

/// Returns the matrices whose names `wanted` accepts, with their new formats.
///
/// Errors if they would become no smaller.
fn planned(files: &TensorFiles, role: Role, format: Format, wanted: impl Fn(&str) -> bool) -> Result<Vec<Planned>> {
    let mut planned = plan(files, role, format, |name| WeightPolicy::is_quantized_in_files(name) && wanted(name))?;
    planned.retain(|tensor| tensor.quantized.is_some());
    plan::check_narrower(&planned, role, format).map_err(|e| e.for_field(Field::Quantize))?;
    Ok(planned)
}

/// Returns the values of each matrix whose name begins with `prefix`, and its bytes in the new format.
fn matrices(planned: &[Planned], prefix: &str) -> Vec<[u64; 2]> {
    let sizes = |tensor: &Planned| {
        let (format, values) = (tensor.quantized?, tensor.elements());
        (!format.is_float()).then(|| [values, (values as f64 * bits_per_value(format) / 8.0) as u64])
    };
    planned.iter().filter(|tensor| tensor.parts[0].name.starts_with(prefix)).filter_map(sizes).collect()
}

impl Quantization {
    /// Returns the sizes of quantized weights in the blocks of the text encoder and the transformer: as in these
    /// files, or as quantization would make them.
    ///
    /// Errors if the weights of a component would become no smaller.
    pub(crate) fn sizes(
        &self,
        info: &ModelInfo,
        text_encoder: &TensorFiles,
        transformer: &TensorFiles,
    ) -> Result<[FileSizes; 2]> {
        let layers = info.layers_to_run();
        let text = match self.text_encoder {
            None => FileSizes::for_text_encoder(text_encoder, layers),
            Some(format) => {
                let planned = planned(text_encoder, Role::TextEncoder, format, |name| runs(name, layers))?;
                FileSizes::for_layers(layers, |prefix| matrices(&planned, prefix))
            }
        };
        let transformer = match self.transformer {
            None => FileSizes::for_transformer(transformer, &info.transformer),
            Some(format) => {
                let planned = planned(transformer, Role::Transformer, format, |_| true)?;
                FileSizes::for_blocks(&info.transformer, |prefix| matrices(&planned, prefix))
            }
        };
        Ok([text, transformer])
    }
}

/// Quantizes the matrices whose names `wanted` accepts.
fn quantize(
    files: &mut TensorFiles,
    role: Role,
    format: Format,
    wanted: impl Fn(&str) -> bool,
    caller: &Caller<'_>,
) -> Result<Quantized> {
    let start = Instant::now();
    let planned = planned(files, role, format, wanted)?;
    let total: u64 = planned.iter().map(Planned::elements).sum();
    let (mut elements, mut bytes) = (0, [0; 2]);
    caller.report(Stage::Quantize, 0, total);
    for tensor in planned {
        caller.check()?;
        let made = tensor.make(tensor.quantized.unwrap_or(format))?;
        bytes[0] += tensor.bytes();
        bytes[1] += plan::bytes_of(&made);
        let mut first = 0;
        for (part, views) in tensor.parts.iter().zip(&tensor.views) {
            let rows: usize = views.iter().map(|view| view.rows()).sum();
            files.replace(part.name.clone(), made.row_range(first..first + rows));
            first += rows;
        }
        elements += tensor.elements();
        caller.report(Stage::Quantize, elements, total);
    }
    Ok(Quantized { role, format, bytes, seconds: start.elapsed().as_secs_f64() })
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
        let wanted = Quantization { transformer: Some(Format::Q8_0), text_encoder: None };
        let text = model.files.text_encoder.as_ref().unwrap();
        let foreseen = wanted.sizes(&model.info, text, &model.files.transformer).unwrap();
        let [done] = &model.quantize(&wanted, &CancelFlag::default(), &mut |_| {}).unwrap()[..] else {
            panic!("one component")
        };
        assert!(done.bytes[1] < done.bytes[0]);
        assert_eq!(model.info.file_sizes, foreseen);
        assert_eq!(before - all(&model), done.bytes[0] - done.bytes[1], "the memory that the blocks save");
    }

    #[test]
    fn formats_are_of_all_components_or_of_those_that_are_named() {
        let parse = |text: &str| text.parse::<Quantization>();
        let both = Quantization { transformer: Some(Format::Q4K), text_encoder: Some(Format::Q4K) };
        assert_eq!(parse("q4_k"), Ok(both));
        assert_eq!(parse("transformer=Q4_K,text=q4_k"), Ok(both));
        let (found, notes) = Quantization::read("transformer=Q4_K_M,text=Q4_K_M").unwrap();
        assert!(
            found == both && notes.len() == 1 && notes[0].contains("Q4_K_M ") && notes[0].contains(" q4_k "),
            "{notes:?}"
        );
        let text = Quantization { transformer: None, text_encoder: Some(Format::Q8_0) };
        assert_eq!((parse("text=q8_0"), text.to_string()), (Ok(text), "text=q8_0".to_string()));
        assert_eq!(both.to_string().parse(), Ok(both));
        for (bad, words) in [
            ("q9", "`q9` is not a supported weight format, expected one of bf16, fp8, int8, "),
            ("text=q4", "`q4` is not a supported weight format, the nearest is q4_k; expected one of bf16, "),
            ("vae=q8_0", "`vae` is not a component, expected transformer or text"),
            ("text=q8_0,text=q4_0", "`text` is listed twice"),
            ("text=q8_0,q4_0", "`q4_0` does not name a component"),
            ("text=", "`` is not a supported weight format"),
        ] {
            assert!(parse(bad).is_err_and(|why| why.contains(words)), "{bad}");
        }
    }
}
