//! The values of node outputs, up to the images of samplers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use flux::input;

use super::classes::{Choice, Given, Switch, Takes};
use super::error::{GraphError, Result};
use super::graph::{Graph, Node, Notes, check, type_name, unsupported};
use super::images::{Maker, Picture, Upscaler};
use super::kinds::{Conditioning, Content, Drawn, Image, Latent, Model, Worth};
use super::sigmas::Sigmas;
use crate::http::error::shown;
use crate::jobs::masks;

/// Max images that a graph reads.
const MAX_FILES: usize = 32;

/// Models, adapters and files outside the graph, which it refers to by name.
pub trait Surroundings {
    /// Returns the model that a file stands for, and a note if another one is used.
    ///
    /// Errors if there is none, with a message for the client.
    fn model(&self, file: &str) -> std::result::Result<(Model, Option<String>), String>;
    /// Returns the server's name of an adapter.
    ///
    /// Errors if no adapter matches, or several do.
    fn adapter(&self, file: &str) -> std::result::Result<String, String>;
    /// Returns the upscaler of a file.
    ///
    /// Errors if the server has no such upscaler, or cannot use it.
    fn upscaler(&self, file: &str) -> std::result::Result<Upscaler, String>;
    /// Returns an image that the client uploaded.
    fn upload(&self, name: &str) -> Option<Bytes>;
    /// Returns an image that Krita uploaded.
    fn cached(&self, id: &str) -> Option<Bytes>;
    /// Returns the max pixels of a generated image.
    fn max_pixels(&self) -> u64;
    /// Counts bytes that the graph keeps.
    ///
    /// Errors if there is no room for them.
    fn keep(&self, bytes: usize) -> crate::http::error::Result<()>;
}

/// The state of evaluating a graph. See the [module](self).
pub struct Evaluator<'a> {
    pub graph: &'a Graph,
    pub around: &'a dyn Surroundings,
    values: HashMap<usize, Vec<Worth>>,
    /// Uploaded images, by address and length of their bytes.
    pictures: HashMap<(usize, usize), Arc<Picture>>,
    /// Notes about nodes without effect, or with another effect.
    pub notes: RefCell<Notes>,
}

impl<'a> Evaluator<'a> {
    /// Creates an evaluator without any values.
    pub fn new(graph: &'a Graph, around: &'a dyn Surroundings) -> Self {
        let notes = RefCell::new(graph.notes.clone());
        Self { graph, around, values: HashMap::new(), pictures: HashMap::new(), notes }
    }

    /// Sets the outputs of a node.
    pub fn set(&mut self, node: usize, worth: Vec<Worth>) {
        self.values.insert(node, worth);
    }

    pub fn note(&self, node: &Node, text: &str) {
        self.notes.borrow_mut().add_of(node, text);
    }

    /// Returns the output that is linked to an input, if any.
    fn linked(&self, node: &Node, name: &str) -> Option<&Worth> {
        match node.given(name) {
            Some((_, Given::Link { node, output })) => self.values.get(node)?.get(*output),
            _ => None,
        }
    }

    /// Returns the linked output, converted to the type that the input needs.
    ///
    /// Errors if there is none, or it has another type.
    fn take<T>(&self, node: &Node, name: &str, pick: impl Fn(&Worth) -> Option<T>) -> Result<T> {
        match self.linked(node, name) {
            None | Some(Worth::Nothing) => Err(missing(node, name)),
            Some(worth) => pick(worth).ok_or_else(|| mismatch(node, name, worth)),
        }
    }

    /// Returns the value of an input: a constant, or the output of another node.
    fn value(&self, node: &Node, name: &str) -> Result<Option<Given>> {
        let Some((input, given)) = node.given(name) else { return Ok(None) };
        let given = match given {
            Given::Link { .. } => self.take(node, name, |worth| match (worth, input.takes) {
                (Worth::Whole(value), Takes::Number(..)) => Some(Given::Number(*value as f64)),
                (Worth::Whole(value), Takes::Whole(..)) => Some(Given::Whole(*value)),
                (Worth::Number(value), Takes::Number(..)) => Some(Given::Number(*value)),
                (Worth::Text(text), Takes::Text(_) | Takes::Choice(_)) => Some(Given::Text(text.to_string())),
                (Worth::Flag(flag), Takes::Flag(_)) => Some(Given::Flag(*flag)),
                _ => None,
            })?,
            constant => constant.clone(),
        };
        check(node, input, &given)?;
        match (input.takes, &given) {
            (Takes::Choice(Choice::Hint(words)), Given::Text(text)) if !words.contains(&&**text) => {
                let note = format!("`{name}` {} is not supported: it counts as {}", shown(text), words[0]);
                self.note(node, &note);
                Ok(Some(Given::Text(words[0].to_string())))
            }
            _ => Ok(Some(given)),
        }
    }

    /// Returns an input to be passed on.
    pub fn passed(&self, node: &Node, name: &str) -> Result<Worth> {
        if let Some(worth) = self.linked(node, name) {
            return Ok(worth.clone());
        }
        Ok(match self.value(node, name)? {
            Some(Given::Whole(value)) => Worth::Whole(value),
            Some(Given::Number(value)) => Worth::Number(value),
            Some(Given::Text(text)) => Worth::Text(text.into()),
            Some(Given::Flag(flag)) => Worth::Flag(flag),
            Some(Given::Link { .. }) | None => Worth::Nothing,
        })
    }

    /// Returns the branch that a switch selects.
    ///
    /// Errors if nothing is linked to it.
    pub fn branch(&self, node: &Node, switch: Switch) -> Result<(String, Worth)> {
        let name = match switch {
            Switch::First => node.first_link().map(str::to_string),
            Switch::Flag { by, .. } => switch.branch(&Given::Flag(self.flag_or(node, by, false)?)),
            Switch::Number { by, .. } => switch.branch(&Given::Whole(self.whole(node, by)?)),
        };
        let name = name.unwrap_or_default();
        match self.passed(node, &name)? {
            Worth::Nothing => Err(missing(node, &name)),
            worth => Ok((name, worth)),
        }
    }

    pub fn whole(&self, node: &Node, name: &str) -> Result<u64> {
        self.value(node, name)?
            .and_then(|given| if let Given::Whole(value) = given { Some(value) } else { None })
            .ok_or_else(|| missing(node, name))
    }

    /// Returns an optional integer, or its default.
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

    /// Returns a prompt, and `true` if a language model writes it from this request.
    pub fn prompt(&self, node: &Node, name: &str) -> Result<(Arc<str>, bool)> {
        match self.linked(node, name) {
            Some(Worth::Written(request)) => Ok((Arc::clone(request), true)),
            _ => Ok((self.text(node, name)?.into(), false)),
        }
    }

    /// Returns the boxes of another node, or the text of an input with boxes.
    pub fn boxes(&self, node: &Node, name: &str) -> Result<Option<Worth>> {
        match node.given(name) {
            None => Ok(None),
            Some((_, Given::Text(text))) => Ok(Some(Worth::Text(text.as_str().into()))),
            Some(_) => self.take(node, name, |worth| match worth {
                Worth::Boxes(_) | Worth::Text(_) => Some(Some(worth.clone())),
                _ => None,
            }),
        }
    }

    pub fn flag_or(&self, node: &Node, name: &str, default: bool) -> Result<bool> {
        let given = self.value(node, name)?;
        Ok(given.map_or(default, |given| given == Given::Flag(true)))
    }

    pub fn model(&self, node: &Node) -> Result<Model> {
        self.take(node, "model", |worth| if let Worth::Model(model) = worth { Some(model.clone()) } else { None })
    }

    pub fn conditioning(&self, node: &Node, name: &str) -> Result<Conditioning> {
        self.take(node, name, |worth| match worth {
            Worth::Conditioning(conditioning) => Some(conditioning.clone()),
            _ => None,
        })
    }

    pub fn latent(&self, node: &Node, name: &str) -> Result<Latent> {
        self.take(node, name, |worth| if let Worth::Latent(latent) = worth { Some(latent.clone()) } else { None })
    }

    pub fn image(&self, node: &Node, name: &str) -> Result<Image> {
        self.take(node, name, |worth| if let Worth::Image(image) = worth { Some(image.clone()) } else { None })
    }

    /// Returns an uploaded image.
    pub fn sent_picture(&self, node: &Node, name: &str) -> Result<Arc<Picture>> {
        let picture = self.picture(node, name)?;
        if picture.is_awaited() {
            let details = format!(
                "{name}: an image that the graph generates or enlarges can only go to outputs and samplers; upload it \
                 first"
            );
            return Err(unsupported(node, &details).at(name));
        }
        Ok(picture)
    }

    /// Returns an image, which may be one that the graph generates or enlarges.
    pub fn picture(&self, node: &Node, name: &str) -> Result<Arc<Picture>> {
        match self.image(node, name)? {
            Image::Sent(picture) => Ok(picture),
            Image::Drawn(drawn) => one_of_batch(node, name, drawn.drawing.latent.count).map(|()| drawn.shape),
        }
    }

    /// Returns the image of a latent. The image of a sampler is decoded and encoded again.
    pub fn encoded(&self, node: &Node, name: &str, latent: &Latent) -> Result<Arc<Picture>> {
        match &latent.content {
            Content::Encoded(picture) => Ok(Arc::clone(picture)),
            Content::Drawn(drawing) => {
                one_of_batch(node, name, drawing.latent.count)?;
                self.note(node, &format!("`{name}` is decoded and encoded again"));
                Ok(Picture::generated((drawing.node, false), drawing.size()))
            }
            Content::Empty(_) => {
                let details = format!("{name}: expected an image, through VAEEncode, or the output of a sampler");
                Err(unsupported(node, &details).at(name))
            }
        }
    }

    /// Returns the image of a sampler.
    pub fn drawn(&self, maker @ (node, is_composite): Maker) -> Option<Drawn> {
        match self.values.get(&node)?.first()? {
            Worth::Latent(Latent { content: Content::Drawn(drawing), .. }) => {
                let shape = Picture::generated(maker, drawing.size());
                Some(Drawn { drawing: Arc::clone(drawing), is_composite, shape })
            }
            _ => None,
        }
    }

    pub fn mask(&self, node: &Node, name: &str) -> Result<Arc<super::images::MaskPicture>> {
        self.take(node, name, |worth| if let Worth::Mask(mask) = worth { Some(Arc::clone(mask)) } else { None })
    }

    pub fn upscaler(&self, node: &Node) -> Result<Upscaler> {
        self.take(node, "upscale_model", |worth| match worth {
            Worth::Upscaler(upscaler) => Some(upscaler.clone()),
            _ => None,
        })
    }

    pub fn noise(&self, node: &Node) -> Result<u64> {
        self.take(node, "noise", |worth| if let Worth::Noise(seed) = worth { Some(*seed) } else { None })
    }

    pub fn guider(&self, node: &Node) -> Result<Arc<super::kinds::Guider>> {
        self.take(
            node,
            "guider",
            |worth| if let Worth::Guider(guider) = worth { Some(Arc::clone(guider)) } else { None },
        )
    }

    pub fn sampler(&self, node: &Node) -> Result<()> {
        self.take(node, "sampler", |worth| matches!(worth, Worth::Sampler).then_some(()))
    }

    pub fn sigmas(&self, node: &Node) -> Result<Arc<Sigmas>> {
        if let Some(Worth::HighSigmas) = self.linked(node, "sigmas") {
            let details = "sigmas: the first part of the levels leaves noise, which no node can use";
            return Err(node.wrong("unsupported_graph", "Unsupported node or input", details).at("sigmas"));
        }
        self.take(
            node,
            "sigmas",
            |worth| if let Worth::Sigmas(sigmas) = worth { Some(Arc::clone(sigmas)) } else { None },
        )
    }

    /// Returns the index of a node.
    pub fn place(&self, node: &Node) -> usize {
        self.graph.nodes.iter().position(|known| std::ptr::eq(known, node)).unwrap_or_default()
    }

    /// Returns the image of a file.
    ///
    /// Errors if it is too large or not an image, or the graph reads too many.
    pub fn picture_of(&mut self, node: &Node, name: &str, file: Bytes) -> Result<Arc<Picture>> {
        let place = (file.as_ptr() as usize, file.len());
        if let Some(picture) = self.pictures.get(&place) {
            return Ok(Arc::clone(picture));
        }
        let wrong = |details: &str| node.wrong("invalid_image", "Invalid image file", details).at(name);
        if self.pictures.len() >= MAX_FILES {
            return Err(wrong(&format!("the graph reads more than {MAX_FILES} images")));
        }
        masks::check(&file, "image").map_err(|error| wrong(&error.message))?;
        // Photos may be rotated by their metadata.
        let size = input::upright_size(&file).map_err(|error| wrong(error.what()))?;
        let picture = Picture::sent(file, size, (self.place(node), name.to_string()));
        self.pictures.insert(place, Arc::clone(&picture));
        Ok(picture)
    }
}

/// Errors if a sampler generates several images, since an image is read from one file.
fn one_of_batch(node: &Node, name: &str, count: u64) -> Result<()> {
    if count == 1 {
        return Ok(());
    }
    let details = format!("{name}: a batch of {count} generated images, expected one: set `batch_size` to 1");
    Err(unsupported(node, &details).at(name))
}

/// Returns the error of a missing required input.
fn missing(node: &Node, name: &str) -> GraphError {
    node.wrong("required_input_missing", "Required input is missing", shown(name)).at(name)
}

/// Returns the error of a link with the wrong type, found during evaluation.
fn mismatch(node: &Node, name: &str, worth: &Worth) -> GraphError {
    if let Worth::Written(_) = worth {
        let details = format!("{name}: a prompt that a language model writes can only go to CLIPTextEncode");
        return node.wrong("unsupported_graph", "Unsupported node or input", details).at(name);
    }
    let expected = node.given(name).map_or("", |(input, _)| type_name(input.takes));
    let details = format!("{name}: received {}, expected {expected}", worth.kind().name());
    node.wrong("return_type_mismatch", "Return type mismatch between linked nodes", details).at(name)
}
