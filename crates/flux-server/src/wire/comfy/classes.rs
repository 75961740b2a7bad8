//! Node classes with their inputs and outputs. Graphs are checked against the tables of classes, and `/object_info`
//! lists them.

use super::kinds::Kind;

/// A node class.
pub struct Class {
    pub name: &'static str,
    pub category: &'static str,
    pub inputs: &'static [Input],
    pub outputs: &'static [(Kind, &'static str)],
    /// `true` for nodes that save or show images, which are the reason to run a graph.
    pub is_output: bool,
    pub action: Action,
}

/// The action of a node.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// Implemented by code.
    Own,
    /// Passes inputs to the outputs, in this order.
    Pass {
        inputs: &'static [&'static str],
        /// The reason why the node has no effect, for a note.
        note: Option<&'static str>,
    },
    /// Passes one of the inputs to the first output.
    Switch(Switch),
}

/// The rule by which a node selects an input.
#[derive(Debug, Clone, Copy)]
pub enum Switch {
    /// The first linked input.
    First,
    /// Selected by the boolean input `by`.
    Flag { by: &'static str, on_true: &'static str, on_false: &'static str },
    /// Selected by the integer input `by`, which is appended to `prefix`.
    Number { by: &'static str, prefix: &'static str },
}

/// The value of an input in a graph.
#[derive(Debug, Clone, PartialEq)]
pub enum Given {
    Link { node: usize, output: usize },
    Whole(u64),
    Number(f64),
    Text(String),
    Flag(bool),
}

impl Switch {
    /// Returns the name of the input that a value selects.
    pub fn branch(self, by: &Given) -> Option<String> {
        match (self, by) {
            (Self::Flag { on_true, .. }, Given::Flag(true)) => Some(on_true.to_string()),
            (Self::Flag { on_false, .. }, Given::Flag(false)) => Some(on_false.to_string()),
            (Self::Number { prefix, .. }, Given::Whole(number)) => Some(format!("{prefix}{number}")),
            _ => None,
        }
    }
}

/// The class of nodes with an unknown class.
pub static UNKNOWN: Class = class("", "", &[], &[]);

pub const MODEL: (Kind, &str) = (Kind::Model, "MODEL");
pub const CLIP: (Kind, &str) = (Kind::Clip, "CLIP");
pub const VAE: (Kind, &str) = (Kind::Vae, "VAE");
pub const CONDITIONING: (Kind, &str) = (Kind::Conditioning, "CONDITIONING");
pub const LATENT: (Kind, &str) = (Kind::Latent, "LATENT");
pub const IMAGE: (Kind, &str) = (Kind::Image, "IMAGE");

/// An input of a node.
#[derive(Clone, Copy)]
pub struct Input {
    pub name: &'static str,
    pub takes: Takes,
    pub is_needed: bool,
}

/// The type of an input.
#[derive(Debug, Clone, Copy)]
pub enum Takes {
    /// The output of another node.
    Link(Kind),
    /// An integer: default, min and max.
    Whole(u64, u64, u64),
    /// A number: default, min and max.
    Number(f64, f64, f64),
    Flag(bool),
    Text(&'static str),
    Choice(Choice),
    /// The boxes of another node, or JSON with boxes.
    Boxes,
    /// An adapter as written by rgthree's nodes: `{"on": .., "lora": .., "strength": ..}`.
    Adapter,
}

/// One of several texts.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    Words(&'static [&'static str]),
    /// As [`Choice::Words`], but any other text counts as the first one, with a note.
    Hint(&'static [&'static str]),
    /// Model files, matched with the server's names.
    Models,
    /// Files of text encoders and VAEs, which are ignored, since models include their own.
    PartsOfModels,
    Adapters,
    Upscalers,
    /// Uploaded images of the client.
    Uploads,
}

impl Class {
    pub fn input(&self, name: &str) -> Option<&'static Input> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

pub const fn input(name: &'static str, takes: Takes) -> Input {
    Input { name, takes, is_needed: true }
}

pub const fn optional(name: &'static str, takes: Takes) -> Input {
    Input { name, takes, is_needed: false }
}

pub const fn link(name: &'static str, kind: Kind) -> Input {
    input(name, Takes::Link(kind))
}

pub const fn whole(name: &'static str, [default, least, most]: [u64; 3]) -> Input {
    input(name, Takes::Whole(default, least, most))
}

pub const fn number(name: &'static str, [default, least, most]: [f64; 3]) -> Input {
    input(name, Takes::Number(default, least, most))
}

pub const fn text(name: &'static str, default: &'static str) -> Input {
    input(name, Takes::Text(default))
}

pub const fn word(name: &'static str, words: &'static [&'static str]) -> Input {
    input(name, Takes::Choice(Choice::Words(words)))
}

pub const fn hint(name: &'static str, words: &'static [&'static str]) -> Input {
    input(name, Takes::Choice(Choice::Hint(words)))
}

pub const fn choice(name: &'static str, of: Choice) -> Input {
    input(name, Takes::Choice(of))
}

pub const fn class(
    name: &'static str,
    category: &'static str,
    inputs: &'static [Input],
    outputs: &'static [(Kind, &'static str)],
) -> Class {
    Class { name, category, inputs, outputs, is_output: false, action: Action::Own }
}

pub const fn output(name: &'static str, inputs: &'static [Input]) -> Class {
    Class { name, category: "image", inputs, outputs: &[], is_output: true, action: Action::Own }
}
