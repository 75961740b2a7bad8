//! What is wrong with a graph, in the words of ComfyUI's clients.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::server::answer;
use crate::server::error::ApiError;

/// An error of a graph.
#[derive(Debug, Clone)]
pub struct GraphError {
    /// ComfyUI's name for what is wrong.
    pub kind: &'static str,
    pub message: String,
    pub details: String,
    /// None where the graph as a whole is wrong. Boxed, since results carry it.
    pub node: Option<Box<WrongNode>>,
}

/// The node that is wrong.
#[derive(Debug, Clone)]
pub struct WrongNode {
    pub id: String,
    pub class: String,
    pub input: Option<String>,
    /// What stands there.
    pub received: Option<Value>,
    /// The output nodes for which it is needed.
    pub outputs: Vec<String>,
}

pub type Result<T> = std::result::Result<T, GraphError>;

impl GraphError {
    /// Of the graph as a whole.
    pub fn new(kind: &'static str, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: details.into(), node: None }
    }

    /// Of a node.
    pub fn of(self, id: &str, class: &str) -> Self {
        let wrong = WrongNode {
            id: id.to_string(),
            class: class.to_string(),
            input: None,
            received: None,
            outputs: Vec::new(),
        };
        Self { node: Some(Box::new(wrong)), ..self }
    }

    /// Of an input of the node.
    pub fn at(mut self, input: &str) -> Self {
        if let Some(node) = &mut self.node {
            node.input = Some(input.to_string());
        }
        self
    }

    /// What stood there.
    pub fn received(mut self, value: Value) -> Self {
        if let Some(node) = &mut self.node {
            node.received = Some(value);
        }
        self
    }

    /// Which output nodes need the node.
    pub fn needed_for(mut self, outputs: Vec<String>) -> Self {
        if let Some(node) = &mut self.node {
            node.outputs = outputs;
        }
        self
    }

    /// The body of the answer.
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
            // Of these, ComfyUI tells before it looks at outputs.
            "missing_node_type" => told(extra.into()),
            _ => json!({"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation",
                "details": format!("node {id} ({class}): {message}: {details}"), "extra_info": {}}),
        };
        json!({"error": error, "node_errors": {id: of_node}})
    }
}

/// Why a request of these clients fails.
#[derive(Debug)]
pub enum ComfyError {
    Graph(GraphError),
    /// What routes of every kind fail with.
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
            Self::Graph(error) => answer::json_with(axum::http::StatusCode::BAD_REQUEST, &error.json()),
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
