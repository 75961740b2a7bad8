//! The kernel table that build.rs generates: one fatbin for each file in cuda/ and each element type.

use super::element::Element;
use super::library;
use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The hint of errors about kernels that this program lacks, for a GPU or an element type.
pub const FOR_ALL_GPUS: &str = "build it with `FLUX_CUDA_ARCHS=all make build`";

fn kernels_for(element: Element) -> &'static [(&'static str, &'static [u8])] {
    match element {
        Element::Bf16 => KERNELS,
        Element::F16 => HALF_KERNELS,
    }
}

/// Returns the fatbin of `cuda/<file>.cu` for values of `element`; `None` if it was not built.
pub fn fatbin(file: &str, element: Element) -> Option<&'static [u8]> {
    kernels_for(element).iter().find(|(name, _)| *name == file).map(|(_, fatbin)| *fatbin)
}

/// Returns the files that were built for values of `element`.
pub fn files(element: Element) -> impl Iterator<Item = &'static str> {
    kernels_for(element).iter().map(|(name, _)| *name)
}

/// Errors if this program was built without kernels for values of `element`.
pub fn require(element: Element) -> Result<()> {
    if !kernels_for(element).is_empty() {
        return Ok(());
    }
    Err(Error::new(format!("this program was built without kernels for {}", element.name())).hint(FOR_ALL_GPUS))
}

/// Errors if nvcc was missing when this program was built.
pub fn require_any() -> Result<()> {
    if !KERNELS.is_empty() || !HALF_KERNELS.is_empty() {
        return Ok(());
    }
    Err(Error::new("this program was built without nvcc, so it has no GPU kernels")
        .hint(format!("run `make cuda-toolkit`, then `make build`; or {}", library::use_the_cpu())))
}

/// The toolkit and architectures that the kernels of this program were built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelsBuilt {
    /// The version of nvcc; `None` if there was none.
    pub toolkit: Option<&'static str>,
    /// Architectures as nvcc names them, such as 90a.
    pub architectures: &'static [&'static str],
    /// The architecture of the PTX that later GPUs compile; `None` if the build set its own architectures.
    pub ptx: Option<&'static str>,
}

/// Returns the [`KernelsBuilt`] of this program.
pub fn built() -> KernelsBuilt {
    KernelsBuilt { toolkit: TOOLKIT, architectures: ARCHS, ptx: PTX }
}

impl KernelsBuilt {
    /// Returns `true` if they include code for e4m3 matrix multiplications by mma.sync that runs on a GPU of this
    /// capability.
    pub(super) fn multiply_e4m3(&self, capability: (i32, i32)) -> bool {
        let name = match capability {
            (8, 9) => "89",
            (12, _) => "120",
            _ => return false,
        };
        self.architectures.contains(&name)
    }

    /// Describes the kernels for values of `element` on a GPU of this capability; `None` if there are none.
    pub(super) fn serves(&self, (major, minor): (i32, i32), element: Element) -> Option<String> {
        let half = element == Element::F16;
        let number = |name: &str| name.trim_end_matches('a').parse::<i32>().ok();
        let own = major * 10 + minor;
        // Code runs on GPUs of its own and later minor versions; code for `90a` only on 9.0.
        let fits = |name: &&&str| match number(name) {
            Some(number) if half => number == 75 && major == 7,
            Some(number) if name.ends_with('a') => number == own,
            Some(number) => number != 75 && number / 10 == major && number <= own,
            None => false,
        };
        let capability = |name: &str| name.len().checked_sub(1 + usize::from(name.ends_with('a')));
        let dotted = |name: &str| match capability(name) {
            Some(point) => format!("{}.{}", &name[..point], &name[point..]),
            None => name.to_string(),
        };
        if let Some(name) = self.architectures.iter().filter(fits).max_by_key(|name| number(name)) {
            return Some(format!("kernels for {} are built in", dotted(name)));
        }
        // PTX for fp16 is built only with the kernels of 7.5.
        let half_ptx = half.then_some("75").filter(|name| self.architectures.contains(name));
        let ptx = if half { half_ptx } else { self.ptx };
        let name = ptx.filter(|name| number(name).is_some_and(|number| number <= own))?;
        Some(format!("no kernels for {major}.{minor}: the driver compiles those for {}", dotted(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gpu_gets_the_kernels_that_run_on_it() {
        let all = KernelsBuilt {
            toolkit: Some("13.0"),
            architectures: &["75", "80", "86", "89", "90a", "100", "120"],
            ptx: Some("80"),
        };
        let of = |capability| all.serves(capability, Element::Bf16).unwrap();
        let built = |name: &str| format!("kernels for {name} are built in");
        assert_eq!(of((9, 0)), built("9.0a"));
        assert_eq!(
            [(8, 0), (8, 6), (8, 7), (10, 3), (12, 1)].map(of),
            ["8.0", "8.6", "8.6", "10.0", "12.0"].map(built)
        );
        assert_eq!(of((11, 0)), "no kernels for 11.0: the driver compiles those for 8.0");
        assert_eq!(all.serves((7, 5), Element::F16).unwrap(), built("7.5"));
        assert!(all.serves((9, 0), Element::F16).unwrap().contains("compiles those for 7.5"));
        assert_eq!(all.serves((7, 5), Element::Bf16), None);
        let e4m3 =
            |built: &KernelsBuilt| [(8, 6), (8, 9), (10, 0), (12, 1)].map(|capability| built.multiply_e4m3(capability));
        assert_eq!(e4m3(&all), [false, true, false, true]);
        assert_eq!(e4m3(&KernelsBuilt { architectures: &["86", "90a"], ..all }), [false; 4]);
        let one = KernelsBuilt { architectures: &["90a"], ptx: None, ..all };
        assert_eq!(one.serves((9, 0), Element::Bf16).unwrap(), built("9.0a"));
        assert_eq!([one.serves((8, 9), Element::Bf16), one.serves((9, 0), Element::F16)], [None, None]);
    }
}
