//! Parsing of graphs: `{ID: {"class_type": .., "inputs": {NAME: value or [ID, output]}}}`. Nodes that an output needs
//! are checked against the table of classes, and sorted so that each node follows its sources. All other nodes are
//! ignored, as in ComfyUI.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::classes::{Action, Choice, Class, Given, Input, Switch, Takes, UNKNOWN};
use super::error::{GraphError, Result};
use super::kinds::Kind;
use crate::http::error::shown;
use crate::jobs::fields::brief;

/// Max nodes of a graph, max output nodes, and max bytes of a node ID.
const MAX_NODES: usize = 500;
const MAX_OUTPUTS: usize = 32;
const MAX_ID: usize = 64;
/// Max notes of a graph, and max names in a note.
const MAX_NOTES: usize = 64;
const MAX_NAMED: usize = 8;
/// Max links between a switch and the constant that selects its branch.
const MAX_HOPS: usize = 16;

/// A parsed graph. See the [module](self).
pub struct Graph {
    pub nodes: Vec<Node>,
    /// Indices of the required nodes, each after its sources.
    pub order: Vec<usize>,
    /// Indices of the nodes that save or show images.
    pub outputs: Vec<usize>,
    /// Notes about ignored nodes and inputs.
    pub notes: Notes,
}

pub struct Node {
    pub id: String,
    /// [`UNKNOWN`] for unknown classes. Required nodes always have a known class.
    pub class: &'static Class,
    /// Empty for nodes that no output needs.
    inputs: Vec<(&'static Input, Given)>,
}

/// The notes of a graph, limited in number and without duplicates.
#[derive(Debug, Clone, Default)]
pub struct Notes(BTreeSet<String>);

impl Notes {
    pub fn add(&mut self, note: String) {
        match self.0.len() {
            MAX_NOTES => self.0.insert("further notes are omitted".to_string()),
            ..MAX_NOTES => self.0.insert(note),
            _ => false,
        };
    }

    pub fn add_of(&mut self, node: &Node, note: &str) {
        self.add(format!("node {} ({}): {note}", node.id, node.class.name));
    }

    pub fn to_vec(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

impl Node {
    pub fn given(&self, name: &str) -> Option<(&'static Input, &Given)> {
        self.inputs.iter().find(|(input, _)| input.name == name).map(|(input, given)| (*input, given))
    }

    /// Returns the name of the first linked input.
    pub fn first_link(&self) -> Option<&'static str> {
        first_link(&self.inputs)
    }

    /// Returns the indices of the nodes that its inputs are linked to.
    fn sources(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().filter_map(|(_, given)| match given {
            Given::Link { node, .. } => Some(*node),
            _ => None,
        })
    }

    /// Returns an error of the node.
    pub fn wrong(&self, kind: &'static str, message: &str, details: impl Into<String>) -> GraphError {
        GraphError::new(kind, message, details).with_node(&self.id, self.class.name)
    }
}

impl Graph {
    /// Parses a graph. With `targets`, other output nodes are ignored.
    ///
    /// Errors if a required node is unknown or has an invalid input, or if there is no output.
    pub fn read(prompt: &Map<String, Value>, targets: Option<&[String]>) -> Result<Self> {
        if prompt.len() > MAX_NODES {
            let message = format!("the graph has {} nodes, expected at most {MAX_NODES}", prompt.len());
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        if let Some(id) = prompt.keys().find(|id| id.len() > MAX_ID) {
            let message = format!("the name of node {} has more than {MAX_ID} bytes", shown(id));
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        let nodes: Vec<Node> = prompt.iter().map(|(id, node)| read_node(id, node)).collect();
        let is_target = |node: &Node| targets.is_none_or(|targets| targets.contains(&node.id));
        let is_output = |place: &usize| nodes[*place].class.is_output && is_target(&nodes[*place]);
        let outputs: Vec<usize> = (0..nodes.len()).filter(is_output).collect();
        if outputs.is_empty() {
            let details = match unknown(prompt, &nodes, |_| true) {
                Some(unknown) => format!("expected a node such as SaveImage; unknown nodes: {unknown}"),
                None => "expected a node such as SaveImage".to_string(),
            };
            return Err(GraphError::new("prompt_no_outputs", "Prompt has no outputs", details));
        }
        if outputs.len() > MAX_OUTPUTS {
            let message = format!("the graph has {} outputs, expected at most {MAX_OUTPUTS}", outputs.len());
            return Err(GraphError::new("invalid_prompt", message, ""));
        }
        let places = nodes.iter().enumerate().map(|(place, node)| (node.id.clone(), place)).collect();
        let marks = vec![Mark::New; nodes.len()];
        let mut reading = Reading { prompt, places, nodes, order: Vec::new(), marks, notes: Notes::default() };
        for output in &outputs {
            let id = reading.nodes[*output].id.clone();
            reading.visit(*output).map_err(|error| error.needed_for(vec![id]))?;
        }
        let Reading { nodes, order, marks, mut notes, .. } = reading;
        if let Some(unknown) = unknown(prompt, &nodes, |place| marks[place] == Mark::New) {
            notes.add(format!("unknown nodes that no output needs are ignored: {unknown}"));
        }
        Ok(Self { nodes, order, outputs, notes })
    }

    /// Returns the nodes that `nodes` depend on, including themselves, in order.
    pub fn needed_by(&self, nodes: &[usize]) -> Vec<usize> {
        let mut is_needed = vec![false; self.nodes.len()];
        nodes.iter().for_each(|node| is_needed[*node] = true);
        // A node comes after its sources, so the reverse order visits it before them.
        for place in self.order.iter().rev() {
            if is_needed[*place] {
                self.nodes[*place].sources().for_each(|source| is_needed[source] = true);
            }
        }
        self.order.iter().copied().filter(|place| is_needed[*place]).collect()
    }

    /// Returns the IDs of the output nodes that depend on a node.
    pub fn outputs_of(&self, node: &str) -> Vec<String> {
        let needs = |output: &&usize| self.needed_by(&[**output]).iter().any(|place| self.nodes[*place].id == node);
        self.outputs.iter().filter(needs).map(|output| self.nodes[*output].id.clone()).collect()
    }
}

fn first_link(inputs: &[(&'static Input, Given)]) -> Option<&'static str> {
    inputs.iter().find(|(_, given)| matches!(given, Given::Link { .. })).map(|(input, _)| input.name)
}

/// Parses a node without its inputs.
fn read_node(id: &str, node: &Value) -> Node {
    let class = node.get("class_type").and_then(Value::as_str).and_then(Class::find);
    Node { id: id.to_string(), class: class.unwrap_or(&UNKNOWN), inputs: Vec::new() }
}

/// Returns a list of the nodes with unknown classes, for a message.
fn unknown(prompt: &Map<String, Value>, nodes: &[Node], is_meant: impl Fn(usize) -> bool) -> Option<String> {
    let class = |node: &Node| match prompt[&node.id].get("class_type").and_then(Value::as_str) {
        Some(class) => format!("{} ({})", shown(&node.id), shown(class)),
        None => format!("{} (without class_type)", shown(&node.id)),
    };
    let places = (0..nodes.len()).filter(|place| std::ptr::eq(nodes[*place].class, &UNKNOWN) && is_meant(*place));
    let names: Vec<_> = places.map(|place| class(&nodes[place])).collect();
    (!names.is_empty()).then(|| listed(names.iter().map(String::as_str)))
}

/// Joins the first names of a list, and appends the number of the others.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let left_out = names.len().saturating_sub(MAX_NAMED);
    let named: Vec<_> = names.take(MAX_NAMED).collect();
    let more = if left_out > 0 { format!(" and {left_out} more") } else { String::new() };
    named.join(", ") + &more
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
    notes: Notes,
}

impl Reading<'_> {
    /// Parses the inputs of a node and of all its sources. The stack is explicit, since graphs may be deep.
    fn visit(&mut self, first: usize) -> Result<()> {
        let mut stack = vec![first];
        while let Some(place) = stack.last().copied() {
            match self.marks[place] {
                Mark::New => {
                    self.marks[place] = Mark::Open;
                    self.check_class(place)?;
                    self.nodes[place].inputs = self.inputs(place)?;
                    for source in self.nodes[place].sources() {
                        match self.marks[source] {
                            Mark::New => stack.push(source),
                            Mark::Done => {}
                            Mark::Open => {
                                let details =
                                    format!("it depends on node {}, which depends on it", self.nodes[source].id);
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

    /// Errors if the class of a node is unknown.
    fn check_class(&self, place: usize) -> Result<()> {
        let node = &self.nodes[place];
        if !std::ptr::eq(node.class, &UNKNOWN) {
            return Ok(());
        }
        let class = self.prompt[&node.id].get("class_type").and_then(Value::as_str);
        let message = match class {
            Some(class) => format!("Node '{}' is not supported.", shown(class)),
            None => format!("Node '{}' has no class_type.", shown(&node.id)),
        };
        let details = format!("Node ID '#{}'", shown(&node.id));
        let class = class.map(shown).unwrap_or_default();
        Err(GraphError::new("missing_node_type", message, details).with_node(&node.id, &class))
    }

    /// Parses the inputs of a node.
    fn inputs(&mut self, place: usize) -> Result<Vec<(&'static Input, Given)>> {
        let node = &self.nodes[place];
        let prompt = self.prompt;
        let nothing = Map::new();
        let given = match prompt[&node.id].get("inputs") {
            Some(Value::Object(given)) => given,
            None | Some(Value::Null) => &nothing,
            Some(other) => {
                return Err(node.wrong("invalid_prompt", "The inputs are not an object", "").received(brief(other)));
            }
        };
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
        if let Action::Switch(switch) = node.class.action
            && let Some(chosen) = self.chosen(switch, &inputs)
        {
            // ComfyUI does not run the other branches either.
            inputs.retain(|(input, given)| !matches!(given, Given::Link { .. }) || input.name == chosen);
        }
        let ignored: Vec<_> = given.keys().filter(|name| node.class.input(name).is_none()).map(|n| shown(n)).collect();
        if !ignored.is_empty() {
            let names: Vec<_> = ignored.iter().map(|name| format!("`{name}`")).collect();
            let note = format!("ignored, since the node has no such input: {}", listed(names.iter().map(|n| &**n)));
            self.notes.add_of(&self.nodes[place], &note);
        }
        Ok(inputs)
    }

    /// Returns the branch of a switch if it is constant: the input's name, empty if there is none.
    fn chosen(&self, switch: Switch, inputs: &[(&'static Input, Given)]) -> Option<String> {
        match switch {
            Switch::First => Some(first_link(inputs).unwrap_or_default().to_string()),
            Switch::Flag { by, .. } | Switch::Number { by, .. } => {
                let decides = inputs.iter().find(|(input, _)| input.name == by).map(|(_, given)| given);
                switch.branch(&match decides {
                    None => Given::Flag(false),
                    Some(given) => self.constant(given)?,
                })
            }
        }
    }

    /// Follows links to a constant, if all nodes in between pass it on.
    fn constant(&self, given: &Given) -> Option<Given> {
        let mut given = given.clone();
        for _ in 0..MAX_HOPS {
            let Given::Link { node: source, output } = given else { return Some(given) };
            let node = &self.nodes[source];
            let Action::Pass { inputs, .. } = node.class.action else { return None };
            let input = node.class.input(inputs.get(output)?)?;
            let value = self.prompt[&node.id].get("inputs")?.get(input.name)?;
            given = self.input(node, input, value).ok()?;
        }
        None
    }

    fn input(&self, node: &Node, input: &'static Input, value: &Value) -> Result<Given> {
        match value {
            // ComfyUI's page wraps lists that are not links.
            Value::Object(wrapped) if matches!(input.takes, Takes::Boxes) && wrapped.contains_key("__value__") => {
                read_value(node, input, &wrapped["__value__"])
            }
            Value::Array(link) if !matches!(input.takes, Takes::Boxes) || is_link(link) => self.link(node, input, link),
            value => read_value(node, input, value),
        }
    }

    /// Parses a link: `[ID, output]`.
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
        if std::ptr::eq(source.class, &UNKNOWN) {
            // The source causes an error when it is visited next.
            return Ok(Given::Link { node: place, output: output.unwrap_or_default() });
        }
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

/// Returns `true` if an input accepts this type of output.
fn takes(takes: Takes, kind: Kind) -> bool {
    match takes {
        // The type becomes known when the passing node is evaluated.
        _ if kind == Kind::Any => true,
        Takes::Link(expected) => expected == kind || expected == Kind::Any,
        Takes::Whole(..) => kind == Kind::Whole,
        Takes::Number(..) => matches!(kind, Kind::Number | Kind::Whole),
        Takes::Flag(_) => kind == Kind::Flag,
        Takes::Text(_) | Takes::Choice(_) => kind == Kind::Text,
        Takes::Boxes => matches!(kind, Kind::Boxes | Kind::Text),
        Takes::Adapter => false,
    }
}

/// Returns ComfyUI's name of an input's type.
pub fn type_name(takes: Takes) -> &'static str {
    match takes {
        Takes::Link(kind) => kind.name(),
        Takes::Whole(..) => "INT",
        Takes::Number(..) => "FLOAT",
        Takes::Flag(_) => "BOOLEAN",
        Takes::Text(_) => "STRING",
        Takes::Choice(_) => "COMBO",
        Takes::Adapter => "LORA",
        Takes::Boxes => "BOUNDING_BOX",
    }
}

/// Returns `true` for `[ID, output]`.
fn is_link(link: &[Value]) -> bool {
    matches!(link, [Value::String(_) | Value::Number(_), Value::Number(_)])
}

/// Parses a constant in the graph.
fn read_value(node: &Node, input: &'static Input, value: &Value) -> Result<Given> {
    let wrong = || {
        let details = format!("{}: expected {}", input.name, type_name(input.takes));
        Err(node.wrong("invalid_input_type", "Failed to convert an input value", details))
    };
    let given = match (input.takes, value) {
        // Nodes that pass on any input accept constants, too.
        (Takes::Link(Kind::Any), Value::Bool(flag)) => Some(Given::Flag(*flag)),
        (Takes::Link(Kind::Any), Value::Number(number)) => {
            whole(value).map(Given::Whole).or_else(|| number.as_f64().map(Given::Number))
        }
        (Takes::Link(Kind::Any), Value::String(text)) => Some(Given::Text(text.clone())),
        (Takes::Adapter | Takes::Boxes, Value::Object(_)) => Some(Given::Text(value.to_string())),
        (Takes::Boxes, Value::Array(_)) => Some(Given::Text(value.to_string())),
        (Takes::Boxes, Value::String(text)) => Some(Given::Text(text.clone())),
        (Takes::Link(_), _) => {
            let details = format!("{}: expected a link", input.name);
            return Err(node.wrong("bad_linked_input", "Bad linked input", details));
        }
        (Takes::Whole(..), value) => whole(value).map(Given::Whole),
        (Takes::Number(..), Value::Number(number)) => number.as_f64().map(Given::Number),
        (Takes::Number(..), Value::String(text)) => text.trim().parse().ok().map(Given::Number),
        (Takes::Flag(_), Value::Bool(flag)) => Some(Given::Flag(*flag)),
        (Takes::Flag(_), Value::Number(number)) => number.as_f64().map(|number| Given::Flag(number != 0.0)),
        (Takes::Flag(_), Value::String(text)) => match &*text.to_ascii_lowercase() {
            "true" | "1" => Some(Given::Flag(true)),
            "false" | "0" | "" => Some(Given::Flag(false)),
            _ => None,
        },
        (Takes::Text(_) | Takes::Choice(_), Value::String(text)) => Some(Given::Text(text.clone())),
        (Takes::Text(_), Value::Number(number)) => Some(Given::Text(number.to_string())),
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

pub fn unsupported(node: &Node, details: &str) -> GraphError {
    node.wrong("unsupported_graph", "Unsupported node or input", details)
}

/// Converts an error of work for a node into an error of the node.
pub fn map_node_error<T>(node: &Node, done: std::result::Result<T, String>) -> Result<T> {
    done.map_err(|details| unsupported(node, &details))
}

pub fn no_file(node: &Node, input: &str, name: &str) -> GraphError {
    let details = format!("{input} - Invalid image file: {}", shown(name));
    node.wrong("custom_validation_failed", "Custom validation failed for node", details).at(input)
}

/// Errors if an input does not accept a value.
pub fn check(node: &Node, input: &'static Input, given: &Given) -> Result<()> {
    let out_of = |is_below: bool, limit: String| {
        let (kind, message) = match is_below {
            true => ("value_smaller_than_min", "Value is smaller than the minimum"),
            false => ("value_bigger_than_max", "Value is bigger than the maximum"),
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
