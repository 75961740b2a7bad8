//! Conversion of a component to a single file in another format, in the layout that other programs read.
//!
//! Transformers get the tensor names of Black Forest Labs, with q, k and v as one matrix. Text encoders get those of
//! llama.cpp in GGUF and of Hugging Face in safetensors. Tensors are converted and written one by one. Start with
//! [`Conversion`].

mod gguf;
mod safetensors;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::backend::cpu::{Cpu, Precision};
use crate::error::{Error, ErrorKind, Field, Result};
use crate::files::names::llama_cpp_name;
use crate::files::own_models::OwnModel;
use crate::files::writer::TensorTarget;
use crate::files::{Component, FileId, Format, Role, TensorFiles, TensorView, TokenizerFile, check_replaceable};
use crate::model::index::Index;
use crate::model::info::default_out_layers;
use crate::model::left_out;
use crate::model::quantize::plan::{Planned, check_narrower, plan};
use crate::model::registry::ModelKind;
use crate::nn::Weights;
use crate::stage::{Caller, CancelFlag, Progress, Stage};
use crate::text_encoder::{TextEncoder, TextEncoderConfig};
use crate::transformer::TransformerConfig;

/// The hint if nothing better is known.
const NAME_ANOTHER: &str = "fetch it again, or choose another transformer or text encoder of a klein model";

/// The kind of output file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputKind {
    Gguf,
    Safetensors,
}

/// A checked conversion.
pub struct Conversion {
    component: Component,
    /// For a text encoder that is written to a GGUF file.
    tokenizer: Option<TokenizerFile>,
    files: TensorFiles,
    kind: OutputKind,
    format: Format,
    target: TensorTarget,
}

/// The result of a conversion.
#[derive(Debug, Clone)]
pub struct Converted {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Number of tensors, scales not counted.
    pub tensors: usize,
    /// Notes about the file for the user.
    pub notes: Vec<String>,
}

impl Conversion {
    /// Prepares the conversion of the component at `from` to the file `to` in `format`. `role` picks a component if
    /// there are several. `tokenizer` is written to the GGUF file of a text encoder, instead of its own. With `keeps`,
    /// an existing file stays.
    ///
    /// Errors if there is no such component, files of the kind of `to` have no such format, or `to` cannot be written,
    /// is a file of the component, or holds weights of another kind.
    pub fn new(
        from: &Path,
        role: Option<Role>,
        tokenizer: Option<&Path>,
        format: Format,
        to: &Path,
        keeps: bool,
    ) -> Result<Self> {
        let checked = Self::checked(from, role, tokenizer, format, to, keeps);
        checked.map_err(|e| e.at_path(from).hint(NAME_ANOTHER))
    }

    fn checked(
        from: &Path,
        role: Option<Role>,
        tokenizer: Option<&Path>,
        format: Format,
        to: &Path,
        keeps: bool,
    ) -> Result<Self> {
        let kind = OutputKind::from_path(to)?;
        kind.check(format).map_err(|e| e.for_field(Field::Format))?;
        let component = Component::at(from, role)?;
        if component.role() == Role::Vae {
            return Err(Error::usage("the file is a VAE, which stays in 16 or 32 bits")
                .at_path(from)
                .hint("name a transformer or a text encoder"));
        }
        let needs_tokenizer = component.role() == Role::TextEncoder && kind == OutputKind::Gguf;
        if tokenizer.is_some() && !needs_tokenizer {
            return Err(Error::usage("only the GGUF file of a text encoder stores a tokenizer")
                .for_field(Field::Tokenizer)
                .hint("leave it out"));
        }
        let tokenizer = needs_tokenizer.then(|| component.own_tokenizer(tokenizer)).transpose()?;
        let files = component.tensors()?;
        let target = TensorTarget::new(to, keeps)?;
        let written = FileId::from_path(target.path());
        if files.files().iter().any(|file| FileId::from_path(file.path()) == written) {
            return Err(Error::usage(format!("`{}` is also an input file", to.display()))
                .at_path(to)
                .hint("name another file to write"));
        }
        check_replaceable(to, Some(component.role())).map_err(|e| e.at_path(to))?;
        Ok(Self { component, tokenizer, files, kind, format, target })
    }

    /// Writes the file.
    ///
    /// Errors if weights would become no smaller, a tensor is missing or has values that the format cannot hold, the
    /// file cannot be written, or `cancel` is set. No new file is left then.
    pub fn write(&self, cancel: &CancelFlag, report: &mut dyn FnMut(Progress)) -> Result<Converted> {
        let written = self.write_tensors(&Caller::new(report, cancel));
        written.map_err(|e| match e.kind() {
            ErrorKind::Cancelled => e,
            _ => e.at_path(&self.component.path()).hint(NAME_ANOTHER),
        })
    }

    fn write_tensors(&self, caller: &Caller<'_>) -> Result<Converted> {
        let role = self.component.role();
        let (planned, left_out) = self.planned()?;
        if self.format != Format::Bf16 {
            check_narrower(&planned, role, self.format).map_err(|e| e.for_field(Field::Format))?;
        }
        let tensors = self.kind.formats(planned);
        let mut writer = match self.kind {
            OutputKind::Gguf => gguf::begin(self, &tensors)?,
            OutputKind::Safetensors => safetensors::begin(self, &tensors)?,
        };
        let total: u64 = tensors.iter().map(|(tensor, _)| tensor.elements()).sum();
        let mut done = 0;
        caller.report(Stage::Quantize, 0, total);
        for (tensor, format) in &tensors {
            caller.check()?;
            self.files.check_lengths()?;
            let made = tensor.make(*format)?;
            match self.kind {
                OutputKind::Gguf => writer.put(&self.name_in_gguf(tensor)?, made.bytes())?,
                OutputKind::Safetensors => safetensors::put(self, &mut writer, tensor, &made)?,
            }
            done += tensor.elements();
            caller.report(Stage::Quantize, done, total);
        }
        caller.check()?;
        let path = self.target.path().to_path_buf();
        Ok(Converted { path, bytes: writer.commit()?, tensors: tensors.len(), notes: self.notes(&tensors, left_out) })
    }

    /// Returns the tensors to write, and a note on those left out.
    ///
    /// Errors if a tensor that models read is missing or has another shape, or an unknown tensor belongs to a layer.
    fn planned(&self) -> Result<(Vec<Planned>, Option<String>)> {
        let role = self.component.role();
        if role == Role::TextEncoder {
            // Writing reads all tensors, so those that no layer reads must be found before it.
            let config = TextEncoderConfig::from_component(&self.component)?;
            let kind = ModelKind::for_architecture(self.own().architecture);
            let out_layers = default_out_layers(kind, config.num_hidden_layers, &self.component.place())?;
            TextEncoder::load(&Weights::new(&Cpu::new(Precision::F32), &self.files), config, &out_layers)?;
            left_out::text_encoder_note(&self.files, out_layers[out_layers.len() - 1])?;
        }
        let planned = plan(&self.files, role, self.format, |_| true)?;
        let is_transformer = role == Role::Transformer;
        let left_out = if is_transformer { left_out::transformer_note(&self.files)? } else { None };
        Ok((planned, left_out))
    }

    /// Returns the values that no tensor determines, as JSON: the component's config. For a transformer, the metadata
    /// of the model precedes it.
    fn config(&self) -> Result<String> {
        let role = self.component.role();
        let (mut config, class) = match role {
            Role::Transformer => (as_json(&TransformerConfig::from_component(&self.component)?)?, "_class_name"),
            _ => (as_json(&TextEncoderConfig::from_component(&self.component)?)?, "model_type"),
        };
        config[class] = json!(self.own().part(role).classes[0]);
        let mut all = match role {
            Role::Transformer => as_json(&Index::for_transformer(&self.component)?)?,
            _ => json!({}),
        };
        all[role.folder()] = config;
        Ok(all.to_string())
    }

    /// The kind of models that the component belongs to.
    fn own(&self) -> &'static OwnModel {
        match self.component.role() {
            Role::TextEncoder => self.component.text_encoder_of(),
            Role::Transformer | Role::Vae => self.files.layers().architecture.model(),
        }
    }

    /// Returns the name of a tensor in a GGUF file.
    fn name_in_gguf(&self, tensor: &Planned) -> Result<String> {
        if self.component.role() == Role::Transformer {
            return Ok(tensor.name.clone());
        }
        llama_cpp_name(&tensor.name).ok_or_else(|| {
            Error::new(format!("tensor `{}` has no name in GGUF", tensor.name)).at(tensor.path.as_str()).hint(format!(
                "this is not a {} text encoder: write a safetensors file, or choose another text encoder",
                self.own().text_encoder
            ))
        })
    }

    fn notes(&self, tensors: &[(Planned, Format)], left_out: Option<String>) -> Vec<String> {
        let mut notes = Vec::new();
        let others = tensors.iter().filter(|(tensor, format)| tensor.quantized.is_some() && *format != self.format);
        if let Some((_, format)) = others.clone().next() {
            let name = self.format.name().unwrap_or_default();
            notes.push(format!(
                "{} matrices are stored in {format}, because their rows are not whole blocks of {name}",
                others.count()
            ));
        }
        notes.extend(left_out);
        notes
    }
}

impl OutputKind {
    fn from_path(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase).as_deref() {
            Some("gguf") => Ok(Self::Gguf),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => Err(Error::usage(format!("cannot tell the output format from the name `{}`", path.display()))
                .at_path(path)
                .hint("name a file that ends with .gguf or .safetensors")),
        }
    }

    fn other(self) -> &'static str {
        match self {
            Self::Gguf => ".safetensors",
            Self::Safetensors => ".gguf",
        }
    }

    /// Errors if no file of this kind has the format.
    fn check(self, format: Format) -> Result<()> {
        let (kind, has) = match self {
            Self::Gguf => ("GGUF", format.is_in_gguf()),
            Self::Safetensors => ("safetensors", format.is_in_safetensors()),
        };
        if has {
            return Ok(());
        }
        let name = format.name().unwrap_or_default();
        Err(Error::usage(format!("{kind} files cannot store weights in {name}"))
            .hint(format!("name a file that ends with {}, or choose another format", self.other())))
    }

    /// Returns the format of each tensor in the file. Unquantized tensors stay floats of 16 bits, and vectors in GGUF
    /// files are float32, as llama.cpp's tools write them.
    fn formats(self, planned: Vec<Planned>) -> Vec<(Planned, Format)> {
        let format = |tensor: &Planned| match tensor.quantized {
            Some(format) => format,
            None if self == Self::Gguf && tensor.axes() < 2 => Format::F32,
            None if tensor.all_views().iter().all(|view| view.format() == Format::F16) => Format::F16,
            None => Format::Bf16,
        };
        let pair = |tensor: Planned| {
            let format = format(&tensor);
            (tensor, format)
        };
        planned.into_iter().map(pair).collect()
    }
}

/// Converts by JSON text, because it has the short digits of 32-bit floats.
fn as_json(config: &impl Serialize) -> Result<Value> {
    let text = serde_json::to_string(config);
    text.and_then(|text| serde_json::from_str(&text))
        .map_err(|e| Error::new(format!("the config cannot be written as JSON: {e}")))
}

/// The shape of a tensor.
fn shape(tensor: &Planned) -> Vec<usize> {
    let views: Vec<TensorView> = tensor.all_views();
    let mut shape = views.first().map(|view| view.shape().to_vec()).unwrap_or_default();
    shape.iter_mut().take(1).for_each(|rows| *rows = views.iter().map(TensorView::rows).sum());
    shape
}
