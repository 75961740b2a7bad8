//! Errors of graphs, in ComfyUI's format.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use flux::error::shortened;
use serde_json::{Map, Value, json};

use crate::http::answer;
use crate::http::error::{ApiError, Failure, shown};
use crate::jobs::fields::brief;

/// Max characters of a text in an error.
const MAX_TEXT: usize = 2000;

/// An error of a graph.
#[derive(Debug, Clone)]
pub struct GraphError {
    /// ComfyUI's type of the error.
    pub kind: &'static str,
    pub message: String,
    pub details: String,
    /// The invalid node. `None` if the graph as a whole is invalid. Boxed to keep results small.
    pub node: Option<Box<WrongNode>>,
}

/// The node that an error is about.
#[derive(Debug, Clone)]
pub struct WrongNode {
    pub id: String,
    pub class: String,
    pub input: Option<String>,
    /// The invalid value.
    pub received: Option<Value>,
    /// The output nodes that depend on the node.
    pub outputs: Vec<String>,
}

pub type Result<T> = std::result::Result<T, GraphError>;

impl GraphError {
    /// Creates an error of the graph as a whole.
    pub fn new(kind: &'static str, message: impl Into<String>, details: impl Into<String>) -> Self {
        let bounded = |text: String| shortened(&text, MAX_TEXT).into_owned();
        Self { kind, message: bounded(message.into()), details: bounded(details.into()), node: None }
    }

    /// Sets the node.
    pub fn with_node(self, id: &str, class: &str) -> Self {
        let wrong = WrongNode { id: shown(id), class: shown(class), input: None, received: None, outputs: Vec::new() };
        Self { node: Some(Box::new(wrong)), ..self }
    }

    /// Sets the input of the node.
    pub fn at(mut self, input: &str) -> Self {
        if let Some(node) = &mut self.node {
            node.input = Some(shown(input));
        }
        self
    }

    /// Sets the invalid value.
    pub fn received(mut self, value: Value) -> Self {
        if let Some(node) = &mut self.node {
            node.received = Some(brief(&value));
        }
        self
    }

    /// Sets the output nodes that depend on the node.
    pub fn needed_for(mut self, outputs: Vec<String>) -> Self {
        if let Some(node) = &mut self.node {
            node.outputs = outputs;
        }
        self
    }

    /// Returns the JSON body of the response.
    pub fn json(&self) -> Value {
        let Self { kind, message, details, node } = self;
        let told = |extra: Value| json!({"type": kind, "message": message, "details": details, "extra_info": extra});
        let Some(node) = node else { return json!({"error": told(json!({})), "node_errors": {}}) };
        let WrongNode { id, class, input, received, outputs } = &**node;
        let mut extra = Map::from_iter([("node_id".to_string(), json!(id)), ("class_type".to_string(), json!(class))]);
        if let Some(input) = input {
            extra.insert("input_name".to_string(), json!(input));
        }
        if let Some(received) = received {
            extra.insert("received_value".to_string(), received.clone());
        }
        let of_node =
            json!({"errors": [told(extra.clone().into())], "dependent_outputs": outputs, "class_type": class});
        let error = match *kind {
            // ComfyUI reports these before it validates outputs.
            "missing_node_type" => told(extra.into()),
            _ => json!({"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation",
                "details": format!("node {id} ({class}): {message}: {details}"), "extra_info": {}}),
        };
        json!({"error": error, "node_errors": {id: of_node}})
    }
}

/// The error of a request from these clients.
#[derive(Debug)]
pub enum ComfyError {
    Graph(GraphError),
    /// An error that is not about a graph.
    Other(ApiError),
}

impl From<ApiError> for ComfyError {
    fn from(error: ApiError) -> Self {
        Self::Other(error)
    }
}

impl From<GraphError> for ComfyError {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

impl IntoResponse for ComfyError {
    fn into_response(self) -> Response {
        match self {
            Self::Graph(error) => {
                let place = |node: &WrongNode| [Some(&node.id), node.input.as_ref()].map(|name| Some(shown(name?)));
                let params = error.node.iter().flat_map(|node| place(node)).flatten().collect();
                let mut response = answer::json_with(axum::http::StatusCode::BAD_REQUEST, &error.json());
                response.extensions_mut().insert(Failure { code: error.kind, params });
                response
            }
            Self::Other(error) => {
                let told = GraphError::new(error.code, error.message.clone(), "").json();
                let mut response = error.into_response();
                *response.body_mut() = serde_json::to_vec(&told).unwrap_or_default().into();
                response.headers_mut().remove(header::CONTENT_LENGTH);
                response
            }
        }
    }
}

pub type ComfyResult = std::result::Result<Response, ComfyError>;
