//! Metadata of the model as a whole: `model_index.json`, or the metadata of the transformer's file.

use serde::{Deserialize, Serialize};

use super::registry::{KINDS, ModelKind};
use crate::error::{Error, Result};
use crate::files::{Component, ConfigPlace, ModelFiles, Role, Values, Variant, fetch_a_model};
use crate::transformer::TransformerConfig;

/// The keys that are read.
#[derive(Default, Serialize, Deserialize)]
pub struct Index {
    #[serde(rename = "_class_name", skip_serializing_if = "Option::is_none")]
    class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_distilled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_encoder_out_layers: Option<Vec<usize>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sequence_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_image_size: Option<[usize; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_sides: Option<[usize; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_aspect_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_steps: Option<usize>,
}

impl Index {
    /// Reads the metadata, and returns its source too. The transformer's file takes precedence over the folder.
    ///
    /// Errors if the metadata cannot be read, or is malformed.
    pub fn read(dir: &ModelFiles) -> Result<(Self, ConfigPlace)> {
        let of_folder: Self = dir.index()?.unwrap_or_default();
        let said = dir.component(Role::Transformer).said_of_the_model()?.filter(|said| !said.is_empty());
        Ok(match said {
            Some(said) => (Self::from_values(&said)?.or(of_folder), said.place()),
            None => (of_folder, dir.index_place()),
        })
    }

    /// Returns the metadata to write into a file that holds the transformer alone. The variant may come from the name
    /// of the transformer's file or folder.
    ///
    /// Errors as [`Index::read`] and [`Index::kind`].
    pub fn for_transformer(transformer: &Component) -> Result<Self> {
        let beside: Option<Self> = transformer.adjacent_index()?;
        let is_in_its_folder = beside.is_some() && transformer.path().ends_with(Role::Transformer.folder());
        let by_name = Variant::from_name(&transformer.path()).filter(|_| !is_in_its_folder);
        let variant = by_name.or(beside.as_ref().map(Self::variant));
        let said = transformer.said_of_the_model()?;
        let own = said.as_ref().map(Self::from_values).transpose()?.unwrap_or_default();
        let index = own.or(beside.unwrap_or_default());
        let config = TransformerConfig::from_component(transformer)?;
        let kind = index.kind(&config, &transformer.place())?;
        let said = said.map(|said| said.variant()).transpose()?.flatten();
        let variant = config.variant().or(said).or(variant);
        let names = variant.and_then(|variant| kind.files.variant(variant));
        Ok(Self {
            class_name: names.map(|names| names.class.to_string()),
            is_distilled: names.map(|names| names.is_distilled),
            ..index
        })
    }

    fn from_values(said: &Values) -> Result<Self> {
        Ok(Self {
            class_name: said.get("_class_name", "a class")?,
            is_distilled: said.get("is_distilled", "true or false")?,
            text_encoder_out_layers: said.get("text_encoder_out_layers", "numbers of layers")?,
            max_sequence_length: said.get("max_sequence_length", "a whole number")?,
            default_image_size: said.get("default_image_size", "a height and a width")?,
            image_sides: said.get("image_sides", "the shortest and the longest side")?,
            image_aspect_ratio: said.get("image_aspect_ratio", "a number")?,
            default_steps: said.get("default_steps", "a whole number")?,
        })
    }

    /// Fills values that are missing here from `other`.
    fn or(self, other: Self) -> Self {
        // The class and `is_distilled` are meant together, so both come from one source.
        let [class_name, is_distilled] = [self.class_name.is_some(), self.is_distilled.is_some()];
        let (class_name, is_distilled) = if class_name || is_distilled {
            (self.class_name, self.is_distilled)
        } else {
            (other.class_name, other.is_distilled)
        };
        Self {
            class_name,
            is_distilled,
            text_encoder_out_layers: self.text_encoder_out_layers.or(other.text_encoder_out_layers),
            max_sequence_length: self.max_sequence_length.or(other.max_sequence_length),
            default_image_size: self.default_image_size.or(other.default_image_size),
            image_sides: self.image_sides.or(other.image_sides),
            image_aspect_ratio: self.image_aspect_ratio.or(other.image_aspect_ratio),
            default_steps: self.default_steps.or(other.default_steps),
        }
    }

    /// The variant: how the model was trained.
    pub fn variant(&self) -> Variant {
        Variant::from_index(self.class_name.as_deref(), self.is_distilled)
    }

    /// Errors if the class belongs to no known kind of models.
    pub fn check_class(&self, place: &ConfigPlace) -> Result<()> {
        let Some(class) = &self.class_name else { return Ok(()) };
        let all = || KINDS.iter().flat_map(|kind| kind.files.variants);
        if all().any(|names| names.class == class) {
            return Ok(());
        }
        let mut known: Vec<String> = all().map(|names| format!("`{}`", names.class)).collect();
        known.dedup();
        let what = format!("this is a `{class}` model, expected {}", known.join(" or "));
        Err(Error::new(what).at(place.path()).hint(fetch_a_model()))
    }

    /// Returns the kind of the model, by the architecture of its transformer.
    ///
    /// Errors if the class belongs to no known kind, or to a different one.
    pub fn kind(&self, transformer: &TransformerConfig, place: &ConfigPlace) -> Result<&'static ModelKind> {
        self.check_class(place)?;
        let own = ModelKind::for_architecture(transformer.architecture());
        let Some(class) = &self.class_name else { return Ok(own) };
        if own.files.variants.iter().any(|names| names.class == class) {
            return Ok(own);
        }
        let what = format!("this is a `{class}` model, but its transformer is one of {}", own.files.name);
        Err(Error::new(what)
            .at(place.path())
            .hint("choose a transformer of this model, or the folder of the other model"))
    }
}
