//! The variants of an architecture, which transformer shapes do not tell.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of training of a transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// Distilled: few steps without guidance.
    Distilled,
    /// Undistilled: many steps with guidance.
    Base,
    /// Distilled, with keys and values of reference images that are computed once for all steps.
    Kv,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Distilled => "distilled",
            Self::Base => "base",
            Self::Kv => "kv",
        })
    }
}
