//! The compute capability that selects kernels and kernel variants: the GPU's own, or an older one for tests and
//! measurements. The driver always loads the code compiled for the GPU itself.

use std::env;
use std::ffi::OsStr;

use crate::error::{Error, Result};

/// wgmma is in 9.0 only: later GPUs dropped it.
pub const HOPPER: (i32, i32) = (9, 0);
/// Environment variable with a capability, such as `8.6`.
const VARIABLE: &str = "FLUX_CAPABILITY";
/// Capabilities with their own kernels or kernel variants.
const KNOWN: [(i32, i32); 7] = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

/// Returns the capability that selects kernels on a GPU of capability `own`.
///
/// Errors if the variable names no known capability, or a newer one.
pub fn taken_for(own: (i32, i32)) -> Result<(i32, i32)> {
    choose(own, env::var_os(VARIABLE).as_deref())
}

fn choose(own: (i32, i32), wish: Option<&OsStr>) -> Result<(i32, i32)> {
    let Some(wish) = wish.filter(|wish| !wish.is_empty()) else { return Ok(own) };
    let runs = |known: &(i32, i32)| match *known {
        HOPPER => own == HOPPER,
        // e4m3 kernels with mma.sync are compiled for these, and for Hopper.
        (8, 9) => matches!(own, (8, 9) | HOPPER | (12, _)),
        _ => *known <= own,
    };
    let fitting = KNOWN.iter().copied().filter(runs);
    let names: Vec<_> = fitting.map(|known| (format!("{}.{}", known.0, known.1), known)).collect();
    match names.iter().find(|(name, _)| wish == name.as_str()) {
        Some((_, known)) => Ok(*known),
        None => {
            let names: Vec<_> = names.iter().map(|(name, _)| format!("`{name}`")).collect();
            let what = format!("this GPU cannot be treated as compute capability `{}`", wish.to_string_lossy());
            Err(Error::usage(what).at(VARIABLE).hint(format!("use one of {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_taken_for_an_older_one_but_not_for_a_newer_one() {
        let choose = |own, wish: &str| choose(own, Some(OsStr::new(wish)));
        assert_eq!(super::choose((12, 1), None).unwrap(), (12, 1));
        assert_eq!(choose((9, 0), "").unwrap(), (9, 0));
        assert_eq!(choose((9, 0), "8.6").unwrap(), (8, 6));
        assert_eq!(choose((9, 0), "9.0").unwrap(), (9, 0));
        for (own, wish) in [
            ((9, 0), "12.0"),
            ((9, 0), "8.7"),
            ((9, 0), "8"),
            ((9, 0), "8.6 "),
            ((9, 0), "Ada"),
            ((10, 0), "9.0"),
            ((10, 0), "8.9"),
        ] {
            let error = choose(own, wish).unwrap_err().to_string();
            assert!(error.contains(wish) && error.contains("FLUX_CAPABILITY"), "{error}");
        }
    }
}
