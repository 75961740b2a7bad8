//! Errors of the library as `flux.FluxError`.

use flux::error::{Field, Form, named};
use flux::{Error, ErrorKind};
use pyo3::prelude::*;

/// Returns the keyword of a field in Python.
pub fn keyword(field: Field, _form: Form) -> &'static str {
    match field {
        Field::Inputs => "images",
        Field::Count => "count",
        _ => field.key(),
    }
}

/// Returns the exception of an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let kind = match error.kind() {
        ErrorKind::Usage => "usage",
        ErrorKind::Cancelled => "cancelled",
        _ => "failure",
    };
    let json = error.json(keyword);
    let text = |key: &str| json.get(key).and_then(|value| value.as_str()).map(str::to_string);
    let field = error.field().map(|field| keyword(field, Form::Full));
    let made = || {
        let class = py.import("flux._errors")?.getattr("FluxError")?;
        class.call1((named(error.what(), keyword), kind, field, text("where"), text("hint")))
    };
    made().map_or_else(|failure| failure, PyErr::from_value)
}

/// Results of the library as results of Python.
pub trait OrRaise<T> {
    /// Returns the value, or raises `flux.FluxError`.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for flux::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}
