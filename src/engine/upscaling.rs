//! Enlarging images on a device, by a network or by a Lanczos filter.

use std::borrow::Cow;
use std::path::Path;

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
            Self::To(size) => size,
        };
        check([width, height])?;
        check(size)?;
        Ok(size)
    }
}

/// A network on a device, or the Lanczos filter, which needs no device.
pub struct Upscaling {
    network: Option<Box<dyn Network>>,
}

/// A network on some device.
trait Network: Send + Sync {
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
        Self { network: None }
    }

    /// Opens the network of a file on one device.
    ///
    /// Errors as [`UpscalerFile::open`], and if the device cannot be opened or memory runs out.
    pub fn open(file: &Path, args: &EngineArgs, observer: &mut dyn Observer) -> Result<Self> {
        let file = UpscalerFile::open(file)?;
        let args = EngineArgs { images: Some(1), ..args.clone() };
        let upscaling = match devices::open(&args, &Needs::UNKNOWN, observer)?.0 {
            Devices::Cpu(cpus) => cpus.first().map(|(_, cpu)| Self::on(cpu, Some(&file))).transpose()?,
            Devices::Cuda(gpus) => gpus.first.first().map(|(_, gpu)| Self::on(gpu, Some(&file))).transpose()?,
        };
        let upscaling = upscaling.ok_or_else(|| Error::new("no device is open"))?;
        let device = upscaling.network.as_deref().map_or(String::new(), Network::device);
        observer.detail(&format!("{}: {}, x{}, on {device}", file.path().display(), file.architecture(), file.scale()));
        Ok(upscaling)
    }

    /// Loads the network of a file to a device; without a file this is the Lanczos filter.
    ///
    /// Errors if memory runs out.
    pub(super) fn on<B: Backend>(backend: &B, file: Option<&UpscalerFile>) -> Result<Self> {
        let load = |file| Ok(Box::new(Upscaler::load(backend, file)?) as Box<dyn Network>);
        Ok(Self { network: file.map(load).transpose()? })
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
        check(to)?;
        let (mut image, caller) = (Cow::Borrowed(image), Caller::new(report, cancel));
        if let Some(network) = &self.network {
            let is_small = |image: &Rgb| image.width < to[0] || image.height < to[1];
            let mut again = network.scale() == 1 || is_small(&image);
            while again {
                check([image.width, image.height].map(|side| side.saturating_mul(network.scale())))?;
                image = Cow::Owned(network.enlarge(&image, tiles, &caller)?);
                again = network.scale() > 1 && is_small(&image);
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
}

/// Errors if an image of this size is empty or too large.
fn check([width, height]: [usize; 2]) -> Result<()> {
    match width.checked_mul(height) {
        Some(1..=MAX_PIXELS) => Ok(()),
        _ => Err(Error::usage(format!("the image would be {width}x{height}, expected at most {MAX_PIXELS} pixels"))
            .hint("choose a smaller factor or size")),
    }
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
