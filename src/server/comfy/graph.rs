//! A graph as clients write it: `{ID: {"class_type": .., "inputs": {NAME: value or [ID, output]}}}`. What output nodes
//! need is checked against the table of classes, and put in an order in which each node follows those that it takes
//! from.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::classes::{Choice, Class, Input, Takes};
use super::error::{GraphError, Result};
use super::kinds::Kind;
use crate::server::fields::shown;

/// The most nodes of a graph, the most of them that are outputs, and the longest name of one.
const MOST_NODES: usize = 500;
const MOST_OUTPUTS: usize = 32;
const MOST_ID: usize = 64;

/// See the module.
pub struct Graph {
    pub nodes: Vec<Node>,
    /// The nodes that are needed, each behind those that it takes from.
    pub order: Vec<usize>,
    /// Those for whose sake images are drawn.
    pub outputs: Vec<usize>,
}

pub struct Node {
    pub id: String,
    pub class: &'static Class,
    /// What is given; only of nodes that are needed.
    inputs: Vec<(&'static Input, Given)>,
}

/// What is given for an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Given {
    Link { node: usize, output: usize },
    Whole(u64),
    Number(f64),
    Text(String),
    Flag(bool),
}

impl Node {
    pub fn given(&self, name: &str) -> Option<(&'static Input, &Given)> {
        self.inputs.iter().find(|(input, _)| input.name == name).map(|(input, given)| (*input, given))
    }

    /// Nodes that it takes from.
    fn sources(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().filter_map(|(_, given)| match given {
            Given::Link { node, .. } => Some(*node),
            _ => None,
        })
    }

    /// An error of it.
    pub fn wrong(&self, kind: &'static str, message: &str, details: impl Into<String>) -> GraphError {
        GraphError::new(kind, message, details).of(&self.id, self.class.name)
    }
}

impl Graph {
    /// Reads a graph. Where `targets` are given, those are the output nodes.
    ///
    /// Errors when a node is not known, or takes what there is not, or there is nothing to draw.
    pub fn read(prompt: &Map<String, Value>, targets: Option<&[String]>) -> Result<Self> {
        if prompt.len() > MOST_NODES {
            let message = format!("the graph has {} nodes, expected at most {MOST_NODES}", prompt.len());
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        if let Some(id) = prompt.keys().find(|id| id.len() > MOST_ID) {
            let message = format!("the name of node {} has more than {MOST_ID} bytes", shown(id));
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        let nodes = prompt.iter().map(|(id, node)| read_node(id, node)).collect::<Result<Vec<_>>>()?;
        let is_target = |node: &Node| targets.is_none_or(|targets| targets.contains(&node.id));
        let is_output = |place: &usize| nodes[*place].class.is_output && is_target(&nodes[*place]);
        let outputs: Vec<usize> = (0..nodes.len()).filter(is_output).collect();
        if outputs.is_empty() {
            return Err(GraphError::new("prompt_no_outputs", "Prompt has no outputs", "such as a SaveImage"));
        }
        if outputs.len() > MOST_OUTPUTS {
            let message = format!("the graph has {} outputs, expected at most {MOST_OUTPUTS}", outputs.len());
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        let mut reading = Reading { prompt, places: HashMap::new(), nodes, order: Vec::new(), marks: Vec::new() };
        reading.places = reading.nodes.iter().enumerate().map(|(place, node)| (node.id.clone(), place)).collect();
        reading.marks = vec![Mark::New; reading.nodes.len()];
        for output in &outputs {
            let id = reading.nodes[*output].id.clone();
            reading.visit(*output).map_err(|error| error.needed_for(vec![id]))?;
        }
        let Reading { nodes, order, .. } = reading;
        Ok(Self { nodes, order, outputs })
    }

    /// The nodes that some need, themselves among them, in their order.
    pub fn needed_by(&self, nodes: &[usize]) -> Vec<usize> {
        let mut is_needed = vec![false; self.nodes.len()];
        nodes.iter().for_each(|node| is_needed[*node] = true);
        // Whoever takes from a node comes behind it.
        for place in self.order.iter().rev() {
            if is_needed[*place] {
                self.nodes[*place].sources().for_each(|source| is_needed[source] = true);
            }
        }
        self.order.iter().copied().filter(|place| is_needed[*place]).collect()
    }

    /// The names of the output nodes that need a node.
    pub fn outputs_of(&self, node: &str) -> Vec<String> {
        let needs = |output: &&usize| self.needed_by(&[**output]).iter().any(|place| self.nodes[*place].id == node);
        self.outputs.iter().filter(needs).map(|output| self.nodes[*output].id.clone()).collect()
    }
}

/// A node, of which the class is known and nothing else.
fn read_node(id: &str, node: &Value) -> Result<Node> {
    let class = node.get("class_type").and_then(Value::as_str);
    let Some(name) = class else {
        let message = format!("Node '{}' has no class_type.", shown(id));
        return Err(GraphError::new("missing_node_type", message, format!("Node ID '#{}'", shown(id))).of(id, ""));
    };
    let class = Class::find(name).ok_or_else(|| {
        let message = format!("Node '{}' is not known here.", shown(name));
        GraphError::new("missing_node_type", message, format!("Node ID '#{}'", shown(id))).of(id, name)
    })?;
    Ok(Node { id: id.to_string(), class, inputs: Vec::new() })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

struct Reading<'a> {
    prompt: &'a Map<String, Value>,
    places: HashMap<String, usize>,
    nodes: Vec<Node>,
    order: Vec<usize>,
    marks: Vec<Mark>,
}

impl Reading<'_> {
    /// Reads the inputs of a node and of all that it takes from. A stack of its own: graphs may be deep.
    fn visit(&mut self, first: usize) -> Result<()> {
        let mut stack = vec![first];
        while let Some(place) = stack.last().copied() {
            match self.marks[place] {
                Mark::New => {
                    self.marks[place] = Mark::Open;
                    self.nodes[place].inputs = self.inputs(place)?;
                    for source in self.nodes[place].sources() {
                        match self.marks[source] {
                            Mark::New => stack.push(source),
                            Mark::Done => {}
                            Mark::Open => {
                                let details =
                                    format!("it takes from node {}, which takes from it", self.nodes[source].id);
                                return Err(self.nodes[place].wrong("dependency_cycle", "Dependency cycle", details));
                            }
                        }
                    }
                }
                Mark::Open => {
                    self.marks[place] = Mark::Done;
                    self.order.push(place);
                    stack.pop();
                }
                Mark::Done => {
                    stack.pop();
                }
            }
        }
        Ok(())
    }

    /// The inputs of a node.
    fn inputs(&self, place: usize) -> Result<Vec<(&'static Input, Given)>> {
        let node = &self.nodes[place];
        let given = match self.prompt.get(&node.id).and_then(|node| node.get("inputs")) {
            Some(Value::Object(given)) => given,
            None => &Map::new(),
            Some(other) => {
                return Err(node.wrong("invalid_prompt", "The inputs are no object", "").received(brief(other)));
            }
        };
        if let Some(name) = given.keys().find(|name| node.class.input(name).is_none()) {
            let details = format!("`{}`: it would change nothing here", shown(name));
            return Err(node.wrong("unknown_input", "Input is not known", details).at(name));
        }
        let mut inputs = Vec::new();
        for input in node.class.inputs {
            match given.get(input.name) {
                None | Some(Value::Null) if !input.is_needed => {}
                None | Some(Value::Null) => {
                    return Err(node
                        .wrong("required_input_missing", "Required input is missing", input.name)
                        .at(input.name));
                }
                Some(value) => {
                    let read = self.input(node, input, value);
                    inputs.push((input, read.map_err(|error| error.at(input.name).received(brief(value)))?));
                }
            }
        }
        Ok(inputs)
    }

    fn input(&self, node: &Node, input: &'static Input, value: &Value) -> Result<Given> {
        match value {
            Value::Array(link) => self.link(node, input, link),
            value => read_value(node, input, value),
        }
    }

    /// `[ID, output]`
    fn link(&self, node: &Node, input: &'static Input, link: &[Value]) -> Result<Given> {
        let wrong = |details: String| node.wrong("bad_linked_input", "Bad linked input", details);
        let (id, output) = match link {
            [Value::String(id), output] => (id.clone(), output.as_u64()),
            [Value::Number(id), output] => (id.to_string(), output.as_u64()),
            _ => return Err(wrong("expected [ID of a node, number of its output]".to_string())),
        };
        let source = self.places.get(&id).map(|place| (*place, &self.nodes[*place]));
        let Some((place, source)) = source else {
            return Err(wrong(format!("there is no node {}", shown(&id))));
        };
        let output = output.and_then(|output| usize::try_from(output).ok());
        let given = output.and_then(|output| Some((output, source.class.outputs.get(output)?)));
        let Some((output, (kind, _))) = given else {
            let outputs = source.class.outputs.len();
            return Err(wrong(format!("node {} ({}) has {outputs} outputs", shown(&id), source.class.name)));
        };
        if !takes(input.takes, *kind) {
            let details = format!("received {}, expected {}", kind.name(), type_name(input.takes));
            return Err(node.wrong("return_type_mismatch", "Return type mismatch between linked nodes", details));
        }
        Ok(Given::Link { node: place, output })
    }
}

/// Whether an input takes what another node gives.
fn takes(takes: Takes, kind: Kind) -> bool {
    match takes {
        Takes::Link(expected) => expected == kind,
        Takes::Whole(..) => kind == Kind::Whole,
        Takes::Number(..) => matches!(kind, Kind::Number | Kind::Whole),
        Takes::Flag(_) => kind == Kind::Flag,
        Takes::Text(_) | Takes::Choice(_) => kind == Kind::Text,
        Takes::Nothing => false,
    }
}

/// The type of an input, as ComfyUI calls it.
pub fn type_name(takes: Takes) -> &'static str {
    match takes {
        Takes::Link(kind) => kind.name(),
        Takes::Whole(..) => "INT",
        Takes::Number(..) => "FLOAT",
        Takes::Flag(_) => "BOOLEAN",
        Takes::Text(_) | Takes::Nothing => "STRING",
        Takes::Choice(_) => "COMBO",
    }
}

/// A value that stands in the graph itself.
fn read_value(node: &Node, input: &'static Input, value: &Value) -> Result<Given> {
    let wrong = || {
        let details = format!("{}: expected {}", input.name, type_name(input.takes));
        Err(node.wrong("invalid_input_type", "Failed to convert an input value", details))
    };
    let given = match (input.takes, value) {
        (Takes::Link(_), _) => {
            let details = format!("{}: expected a link", input.name);
            return Err(node.wrong("bad_linked_input", "Bad linked input", details));
        }
        (Takes::Whole(..), value) => whole(value).map(Given::Whole),
        (Takes::Number(..), Value::Number(number)) => number.as_f64().map(Given::Number),
        (Takes::Number(..), Value::String(text)) => text.trim().parse().ok().map(Given::Number),
        (Takes::Flag(_), Value::Bool(flag)) => Some(Given::Flag(*flag)),
        (Takes::Text(_) | Takes::Choice(_), Value::String(text)) => Some(Given::Text(text.clone())),
        (Takes::Nothing, _) => Some(Given::Flag(false)),
        _ => None,
    };
    let Some(given) = given else { return wrong() };
    check(node, input, &given)?;
    Ok(given)
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let number = number.as_f64()?;
            (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Errors when a value is none that the input takes.
pub fn check(node: &Node, input: &'static Input, given: &Given) -> Result<()> {
    let out_of = |is_below: bool, limit: String| {
        let (kind, message) = match is_below {
            true => ("value_smaller_than_min", "Value is smaller than the least"),
            false => ("value_bigger_than_max", "Value is bigger than the most"),
        };
        Err(node.wrong(kind, message, format!("{}: expected {limit}", input.name)).at(input.name))
    };
    match (input.takes, given) {
        (Takes::Whole(_, least, _), Given::Whole(value)) if *value < least => out_of(true, format!("at least {least}")),
        (Takes::Whole(_, _, most), Given::Whole(value)) if *value > most => out_of(false, format!("at most {most}")),
        (Takes::Number(_, least, _), Given::Number(value)) if value.is_nan() || *value < least => {
            out_of(true, format!("at least {least}"))
        }
        (Takes::Number(_, _, most), Given::Number(value)) if *value > most => out_of(false, format!("at most {most}")),
        (Takes::Choice(Choice::Words(words)), Given::Text(text)) if !words.contains(&&**text) => {
            let details = format!("{}: '{}' not in {words:?}", input.name, shown(text));
            Err(node.wrong("value_not_in_list", "Value not in list", details).at(input.name))
        }
        _ => Ok(()),
    }
}

/// What stands somewhere, as it may be sent back.
fn brief(value: &Value) -> Value {
    match value {
        Value::Number(_) | Value::Bool(_) | Value::Null => value.clone(),
        Value::String(text) => shown(text).into(),
        other => shown(&other.to_string()).into(),
    }
}
