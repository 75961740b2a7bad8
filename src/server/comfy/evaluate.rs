//! What the nodes of a graph come to: each output is a value, until samplers are drawings.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use flux::input;

use super::error::{GraphError, Result};
use super::graph::{Given, Graph, Node, check};
use super::images::Picture;
use super::kinds::{Conditioning, Image, Latent, Model, Worth};
use super::sigmas::Sigmas;
use crate::server::fields::shown;
use crate::server::masks;

/// The most images that a graph reads.
const MOST_FILES: usize = 32;

/// The most notes of a graph.
const MOST_NOTES: usize = 64;

/// What graphs name that is not in them.
pub trait Surroundings {
    /// The model that a file is here, and what is to be said of it.
    ///
    /// Errors when there is none, in the words for the client.
    fn model(&self, file: &str) -> std::result::Result<(Model, Option<String>), String>;
    /// The name of an adapter that a file is here.
    fn adapter(&self, file: &str) -> Option<String>;
    /// An image that the client sent.
    fn upload(&self, name: &str) -> Option<Bytes>;
    /// One that Krita sent.
    fn cached(&self, id: &str) -> Option<Bytes>;
}

/// See the module.
pub struct Evaluator<'a> {
    pub graph: &'a Graph,
    pub around: &'a dyn Surroundings,
    values: HashMap<usize, Vec<Worth>>,
    /// Sizes of images, by where their bytes are.
    sizes: HashMap<(usize, usize), [usize; 2]>,
    /// What has no effect, or another one.
    pub notes: BTreeSet<String>,
}

impl<'a> Evaluator<'a> {
    /// One that has evaluated nothing.
    pub fn new(graph: &'a Graph, around: &'a dyn Surroundings) -> Self {
        Self { graph, around, values: HashMap::new(), sizes: HashMap::new(), notes: BTreeSet::new() }
    }

    /// What a node comes to.
    pub fn set(&mut self, node: usize, worth: Vec<Worth>) {
        self.values.insert(node, worth);
    }

    /// Says something of a node, unless enough is said already.
    pub fn note(&mut self, node: &Node, text: &str) {
        if self.notes.len() == MOST_NOTES {
            self.notes.insert("nothing more is said of other nodes".to_string());
        }
        if self.notes.len() > MOST_NOTES {
            return;
        }
        self.notes.insert(format!("node {} ({}): {text}", node.id, node.class.name));
    }

    /// What another node gives for an input; none where nothing is linked.
    fn linked(&self, node: &Node, name: &str) -> Option<&Worth> {
        match node.given(name) {
            Some((_, Given::Link { node, output })) => self.values.get(node)?.get(*output),
            _ => None,
        }
    }

    /// A value, wherever it stands.
    fn value(&self, node: &Node, name: &str) -> Result<Option<Given>> {
        let Some((input, given)) = node.given(name) else { return Ok(None) };
        if !matches!(given, Given::Link { .. }) {
            return Ok(Some(given.clone()));
        }
        let given = match self.linked(node, name) {
            Some(Worth::Whole(value)) => match input.takes {
                super::classes::Takes::Number(..) => Given::Number(*value as f64),
                _ => Given::Whole(*value),
            },
            Some(Worth::Number(value)) => Given::Number(*value),
            Some(Worth::Text(text)) => Given::Text(text.to_string()),
            Some(Worth::Flag(flag)) => Given::Flag(*flag),
            _ => return Err(missing(node, name)),
        };
        check(node, input, &given)?;
        Ok(Some(given))
    }

    pub fn whole(&self, node: &Node, name: &str) -> Result<u64> {
        self.value(node, name)?
            .and_then(|given| if let Given::Whole(value) = given { Some(value) } else { None })
            .ok_or_else(|| missing(node, name))
    }

    /// One that may be left out.
    pub fn whole_or(&self, node: &Node, name: &str, default: u64) -> Result<u64> {
        if node.given(name).is_some() { self.whole(node, name) } else { Ok(default) }
    }

    pub fn number(&self, node: &Node, name: &str) -> Result<f64> {
        self.value(node, name)?
            .and_then(|given| if let Given::Number(value) = given { Some(value) } else { None })
            .ok_or_else(|| missing(node, name))
    }

    pub fn text(&self, node: &Node, name: &str) -> Result<String> {
        self.value(node, name)?
            .and_then(|given| if let Given::Text(text) = given { Some(text) } else { None })
            .ok_or_else(|| missing(node, name))
    }

    pub fn flag_or(&self, node: &Node, name: &str, default: bool) -> Result<bool> {
        let given = self.value(node, name)?;
        Ok(given.map_or(default, |given| given == Given::Flag(true)))
    }

    pub fn model(&self, node: &Node) -> Result<Model> {
        match self.linked(node, "model") {
            Some(Worth::Model(model)) => Ok(model.clone()),
            _ => Err(missing(node, "model")),
        }
    }

    pub fn conditioning(&self, node: &Node, name: &str) -> Result<Conditioning> {
        match self.linked(node, name) {
            Some(Worth::Conditioning(conditioning)) => Ok(conditioning.clone()),
            _ => Err(missing(node, name)),
        }
    }

    pub fn latent(&self, node: &Node, name: &str) -> Result<Latent> {
        match self.linked(node, name) {
            Some(Worth::Latent(latent)) => Ok(latent.clone()),
            _ => Err(missing(node, name)),
        }
    }

    pub fn image(&self, node: &Node, name: &str) -> Result<Image> {
        match self.linked(node, name) {
            Some(Worth::Image(image)) => Ok(image.clone()),
            _ => Err(missing(node, name)),
        }
    }

    /// An image that was sent.
    pub fn picture(&self, node: &Node, name: &str) -> Result<Arc<Picture>> {
        match self.image(node, name)? {
            Image::Sent(picture) => Ok(picture),
            Image::Drawn(..) => {
                let details =
                    format!("{name}: an image that the graph draws goes to outputs alone; send it as an upload");
                Err(node.wrong("unsupported_graph", "The node cannot be honoured", details).at(name))
            }
        }
    }

    pub fn mask(&self, node: &Node, name: &str) -> Result<Arc<super::images::MaskPicture>> {
        match self.linked(node, name) {
            Some(Worth::Mask(mask)) => Ok(Arc::clone(mask)),
            _ => Err(missing(node, name)),
        }
    }

    pub fn noise(&self, node: &Node) -> Result<u64> {
        match self.linked(node, "noise") {
            Some(Worth::Noise(seed)) => Ok(*seed),
            _ => Err(missing(node, "noise")),
        }
    }

    pub fn guider(&self, node: &Node) -> Result<Arc<super::kinds::Guider>> {
        match self.linked(node, "guider") {
            Some(Worth::Guider(guider)) => Ok(Arc::clone(guider)),
            _ => Err(missing(node, "guider")),
        }
    }

    pub fn sigmas(&self, node: &Node) -> Result<Arc<Sigmas>> {
        match self.linked(node, "sigmas") {
            Some(Worth::Sigmas(sigmas)) => Ok(Arc::clone(sigmas)),
            Some(Worth::HighSigmas) => {
                let details = "sigmas: the first part of levels leaves noise, of which nothing here can be made";
                Err(node.wrong("unsupported_graph", "The node cannot be honoured", details).at("sigmas"))
            }
            _ => Err(missing(node, "sigmas")),
        }
    }

    /// The image of a file.
    ///
    /// Errors when it is too large, or none, or there are too many.
    pub fn picture_of(&mut self, node: &Node, name: &str, file: Bytes) -> Result<Arc<Picture>> {
        let place = (file.as_ptr() as usize, file.len());
        if let Some(size) = self.sizes.get(&place) {
            return Ok(Arc::new(Picture::new(file, *size)));
        }
        let wrong = |details: &str| node.wrong("invalid_image", "Invalid image file", details).at(name);
        if self.sizes.len() >= MOST_FILES {
            return Err(wrong(&format!("the graph reads more than {MOST_FILES} images")));
        }
        masks::check(&file, "image").map_err(|error| wrong(&error.message))?;
        // The size that the file says may be that of a photograph that lies on its side.
        let image = input::read_bytes(&file).map_err(|error| wrong(error.what()))?;
        let size = [image.width, image.height];
        self.sizes.insert(place, size);
        Ok(Arc::new(Picture::new(file, size)))
    }
}

/// An input that is needed and is not there.
fn missing(node: &Node, name: &str) -> GraphError {
    node.wrong("required_input_missing", "Required input is missing", shown(name)).at(name)
}
