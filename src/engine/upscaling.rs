//! Enlarging images on a device, by a network or by a Lanczos filter.

use std::borrow::Cow;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use super::EngineArgs;
use super::devices::{self, Devices, Needs};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::input::lanczos;
use crate::rgb::Rgb;
use crate::stage::{Caller, CancelFlag, Observer, Progress};
use crate::upscaler::{Tiles, Upscaler, UpscalerFile};

/// Maximum pixels of an enlarged image, as in 32768 x 16384.
const MAX_PIXELS: usize = 1 << 29;

/// The size of an enlarged image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EnlargedSize {
    /// The factor of the network.
    Own,
    /// A factor of width and height.
    By(f64),
    /// Width and height.
    To([usize; 2]),
    /// Width and height. The middle of the image with their aspect ratio is enlarged.
    Cover([usize; 2]),
}

impl EnlargedSize {
    /// Returns width and height of the result, for an image and a network that enlarges by `scale`.
    ///
    /// Errors if a side would be 0, or the image too large.
    pub fn resolve(self, [width, height]: [usize; 2], scale: usize) -> Result<[usize; 2]> {
        let by = |factor: f64| [width, height].map(|side| (side as f64 * factor).round() as usize);
        let size = match self {
            Self::Own => by(scale as f64),
            Self::By(factor) => by(factor),
            Self::To(size) | Self::Cover(size) => size,
        };
        check([width, height])?;
        check(size)?;
        Ok(size)
    }
}

/// A network on a device, or the Lanczos filter, which needs no device.
pub struct Upscaling {
    network: Option<Box<dyn Network>>,
    file: Option<Arc<UpscalerFile>>,
}

/// A network on some device.
pub(super) trait Network: Send + Sync {
    fn scale(&self) -> usize;
    fn device(&self) -> String;
    fn enlarge(&self, image: &Rgb, tiles: Tiles, caller: &Caller<'_>) -> Result<Rgb>;
}

impl<B: Backend> Network for Upscaler<B> {
    fn scale(&self) -> usize {
        Upscaler::scale(self)
    }

    fn device(&self) -> String {
        self.backend().describe()
    }

    fn enlarge(&self, image: &Rgb, tiles: Tiles, caller: &Caller<'_>) -> Result<Rgb> {
        Upscaler::enlarge(self, image, tiles, caller)
    }
}

impl Upscaling {
    /// The Lanczos filter.
    pub fn lanczos() -> Self {
        Self { network: None, file: None }
    }

    /// Opens the network of a file on one device.
    ///
    /// Errors as [`UpscalerFile::open`], and if the device cannot be opened or memory runs out.
    pub fn open(file: &Path, args: &EngineArgs, observer: &mut dyn Observer) -> Result<Self> {
        let file = UpscalerFile::open(file)?;
        let args = EngineArgs { images: Some(1), ..args.clone() };
        let network: Option<Box<dyn Network>> = match devices::open(&args, &Needs::UNKNOWN, observer)?.0 {
            Devices::Cpu(cpus) => cpus.first().map(|(_, cpu)| boxed(cpu, &file)).transpose()?,
            Devices::Cuda(gpus) => gpus.first.first().map(|(_, gpu)| boxed(gpu, &file)).transpose()?,
        };
        let network = network.ok_or_else(|| Error::new("no device is open"))?;
        observer.detail(&format!(
            "{}: {}, x{}, on {}",
            file.path().display(),
            file.architecture(),
            file.scale(),
            network.device()
        ));
        Ok(Self { network: Some(network), file: Some(Arc::new(file)) })
    }

    /// Returns the file of the network.
    pub fn file(&self) -> Option<&Arc<UpscalerFile>> {
        self.file.as_ref()
    }

    /// Returns the factor of the network; 1 without a network.
    pub fn scale(&self) -> usize {
        self.network.as_deref().map_or(1, Network::scale)
    }

    /// Enlarges an image to a size: the network runs until the image is as large, or once if it keeps the size, and a
    /// Lanczos filter does the rest.
    ///
    /// Errors if the image is too large, memory runs out, or the caller cancels.
    pub fn enlarge(
        &self,
        image: &Rgb,
        to: [usize; 2],
        tiles: Tiles,
        report: &mut dyn FnMut(Progress),
        cancel: &CancelFlag,
    ) -> Result<Rgb> {
        enlarge(self.network.as_deref().map(|network| network as &dyn Network), image, to, tiles, report, cancel)
    }
}

/// Enlarges an image as [`Upscaling::enlarge`] does.
pub(super) fn enlarge(
    network: Option<&dyn Network>,
    image: &Rgb,
    to: [usize; 2],
    tiles: Tiles,
    report: &mut dyn FnMut(Progress),
    cancel: &CancelFlag,
) -> Result<Rgb> {
    check(to)?;
    let (mut image, caller) = (Cow::Borrowed(image), Caller::new(report, cancel));
    if let Some(network) = network {
        for size in passes([image.width, image.height], to, network.scale()) {
            check(size.map(|side| side.saturating_mul(network.scale())))?;
            image = Cow::Owned(network.enlarge(&image, tiles, &caller)?);
        }
    }
    let from = [image.width, image.height];
    if from == to {
        return Ok(image.into_owned());
    }
    let bytes = lanczos::resize_unless::<3>(&image.bytes, from, to, cancel);
    caller.check()?;
    Ok(Rgb { width: to[0], height: to[1], bytes })
}

/// Returns the sizes of the images that a network reads until an image is as large as `to`, or once if the network
/// keeps the size.
pub(super) fn passes(from: [usize; 2], to: [usize; 2], scale: usize) -> Vec<[usize; 2]> {
    if scale == 1 {
        return vec![from];
    }
    let is_small = |size: &[usize; 2]| size[0] < to[0] || size[1] < to[1];
    let larger = |size: &[usize; 2]| Some(size.map(|side| side.saturating_mul(scale)));
    iter::successors(Some(from), larger).take_while(is_small).collect()
}

fn boxed<B: Backend>(backend: &B, file: &UpscalerFile) -> Result<Box<dyn Network>> {
    Ok(Box::new(Upscaler::load(backend, file)?))
}

/// Errors if an image of this size is empty or too large.
fn check([width, height]: [usize; 2]) -> Result<()> {
    let (expected, other) = match width.checked_mul(height) {
        Some(0) => ("at least one pixel".to_string(), "larger"),
        Some(1..=MAX_PIXELS) => return Ok(()),
        _ => (format!("at most {MAX_PIXELS} pixels"), "smaller"),
    };
    Err(Error::usage(format!("the image would be {width}x{height}, expected {expected}"))
        .hint(format!("choose a {other} factor or size")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn sizes_are_rounded_and_bounded() {
        assert_eq!(EnlargedSize::Own.resolve([3, 5], 4).unwrap(), [12, 20]);
        assert_eq!(EnlargedSize::By(1.5).resolve([3, 5], 4).unwrap(), [5, 8]);
        assert_eq!(EnlargedSize::To([7, 1]).resolve([3, 5], 4).unwrap(), [7, 1]);
        for size in
            [EnlargedSize::By(0.01), EnlargedSize::By(f64::NAN), EnlargedSize::By(1e9), EnlargedSize::To([0, 8])]
        {
            assert!(size.resolve([16, 16], 4).is_err_and(|e| e.kind() == ErrorKind::Usage), "{size:?}");
        }
    }

    #[test]
    fn lanczos_has_the_size_and_ends_when_cancelled() {
        let image = Rgb { width: 4, height: 2, bytes: vec![9; 24] };
        let lanczos = Upscaling::lanczos();
        let made = lanczos.enlarge(&image, [8, 6], Tiles::Auto, &mut |_| {}, &CancelFlag::default()).unwrap();
        assert_eq!(made, Rgb { width: 8, height: 6, bytes: vec![9; 144] });
        let cancel = CancelFlag::default();
        cancel.cancel();
        assert!(lanczos.enlarge(&image, [8, 6], Tiles::Auto, &mut |_| {}, &cancel).is_err());
    }
}
