//! The precision of the times that the model reads.

use std::env;
use std::ffi::OsStr;

use crate::error::{Error, Result};

/// `bf16` rounds times as the reference does in bf16, for comparisons with it; `f32`, the default, rounds nothing.
const VARIABLE: &str = "FLUX_TIMES";

/// Returns `true` if [`Schedule::with_times`](super::Schedule::with_times) should round the times.
///
/// Errors if `FLUX_TIMES` has another value.
pub fn are_rounded() -> Result<bool> {
    from_value(env::var_os(VARIABLE).as_deref())
}

fn from_value(value: Option<&OsStr>) -> Result<bool> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "f32") => Ok(false),
        Some("bf16") => Ok(true),
        Some(other) => Err(Error::usage(format!("`{other}` is neither f32 nor bf16"))
            .at(VARIABLE)
            .hint("leave it out, except to compare images with those of the bf16 reference")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_where_the_variable_says_so() {
        let of = |value: Option<&str>| from_value(value.map(OsStr::new));
        assert_eq!(
            [None, Some(""), Some("f32"), Some("bf16")].map(|value| of(value).unwrap()),
            [false, false, false, true]
        );
        let error = of(Some("fp16")).unwrap_err().to_string();
        assert!(error.contains("`fp16`") && error.contains("FLUX_TIMES") && error.contains("hint: "), "{error}");
    }
}
