//! Layouts of structs that kernels take by value.
//!
//! Each struct is declared twice, here in Rust and in cuda/. [`assert_layout!`] checks the size and all offsets of the
//! Rust struct at compile time. tests/layouts.rs computes the layout of the CUDA struct from its declaration, and
//! compares the two.

/// Fails to compile unless `type` has this size and its fields have these offsets, in bytes.
macro_rules! assert_layout {
    { $type:ident: $size:literal, $($field:ident: $offset:literal),+ } => {
        const _: () = {
            assert!(std::mem::size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)+
        };
    };
}

pub(super) use assert_layout;
