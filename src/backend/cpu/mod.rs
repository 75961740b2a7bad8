//! CPU
