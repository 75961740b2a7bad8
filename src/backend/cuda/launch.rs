//! Kernel launches: arguments in the order of the kernel's signature, then grid and block.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::device::{Device, Function, Stream};
use super::driver::failed;
use super::{Cuda, Tensor};
use crate::error::{Error, Result};

/// Threads of a block in kernels that iterate over rows and columns.
const THREADS: usize = 256;
const MAX_ARGUMENTS: usize = 40;

/// A kernel and its arguments so far; each argument takes 8 bytes here, whatever its size in the kernel.
pub struct Launch<'a> {
    device: &'a Device,
    function: Function,
    name: &'static str,
    stream: Stream,
    shared_bytes: u32,
    all_at_once: bool,
    arguments: [u64; MAX_ARGUMENTS],
    count: usize,
    too_large: Option<usize>,
    takes_quantized: bool,
}

impl Device {
    /// Prepares a launch of kernel `name` of `cuda/<file>.cu` on the compute stream.
    pub fn launch(&self, file: &'static str, name: &'static str) -> Result<Launch<'_>> {
        let function = self.function(file, name)?;
        Ok(Launch {
            device: self,
            function,
            name,
            stream: self.stream,
            shared_bytes: 0,
            all_at_once: false,
            arguments: [0; MAX_ARGUMENTS],
            count: 0,
            too_large: None,
            takes_quantized: false,
        })
    }
}

/// Converts `value` to an `int` argument of the kernel at `place`.
///
/// Errors if it is too large.
pub fn int(value: usize, place: impl FnOnce() -> String) -> Result<i32> {
    i32::try_from(value).map_err(|_| too_large(&format!("`{value}`"), place()))
}

fn too_large(what: &str, place: String) -> Error {
    Error::new(format!("{what} is too large for a kernel")).at(place).hint("request a smaller image or batch")
}

impl Launch<'_> {
    fn push(mut self, bits: u64) -> Self {
        self.arguments[self.count] = bits;
        self.count += 1;
        self
    }

    /// Sets another stream.
    pub fn on(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    /// Sets the dynamic shared memory.
    ///
    /// Errors if the GPU doesn't have that much.
    pub fn shared(mut self, bytes: u32) -> Result<Self> {
        const WITHOUT_ASKING: u32 = 48 << 10;
        if bytes > WITHOUT_ASKING {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function lives as long as the device.
            unsafe { result::function::set_function_attribute(self.function.raw(), attribute, bytes as i32) }
                .map_err(|e| failed(&format!("kernel `{}` needs {bytes} bytes of shared memory", self.name), e))?;
        }
        self.shared_bytes = bytes;
        Ok(self)
    }

    /// Makes the launch cooperative: no block starts before there is room for all of them. Kernels with blocks that
    /// wait for each other need this; otherwise two such kernels on two streams, each with some of its blocks running,
    /// would wait forever.
    ///
    /// The launch fails if the GPU can't run all blocks at the same time.
    pub fn all_at_once(mut self) -> Self {
        self.all_at_once = true;
        self
    }

    /// Returns the number of blocks of `threads` threads that the GPU can run at the same time.
    pub fn blocks_at_once(&self, threads: u32) -> Result<usize> {
        // SAFETY: the function lives as long as the device.
        let blocks = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                self.function.raw(),
                threads as i32,
                self.shared_bytes as usize,
            )
        }
        .map_err(|e| failed(&format!("cannot query how many blocks of kernel `{}` fit", self.name), e))?;
        Ok(blocks.max(1) as usize * self.device.multiprocessors())
    }

    /// Returns the number of clusters of two blocks of `threads` threads that the GPU can run at the same time.
    pub fn pairs_at_once(&self, threads: usize) -> Result<usize> {
        let mut config = self.config([2, 1, 1], [threads, 1, 1]);
        let mut pair = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 2, y: 1, z: 1 },
            },
        };
        (config.attrs, config.numAttrs) = (&mut pair, 1);
        let mut clusters = 0;
        // SAFETY: the function lives as long as the device; the driver reads `config` and writes one number.
        unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.function.raw(), &config) }
            .result()
            .map_err(|e| failed(&format!("cannot query how many clusters of kernel `{}` fit", self.name), e))?;
        Ok(clusters.max(1) as usize)
    }

    /// Returns a launch configuration without attributes.
    fn config(&self, grid: [usize; 3], block: [usize; 3]) -> sys::CUlaunchConfig {
        let [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]] = [grid, block].map(|size| size.map(|n| n as u32));
        sys::CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: self.shared_bytes,
            hStream: self.stream.raw(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        }
    }

    /// Adds a pointer; 0 is null.
    pub fn address(self, address: u64) -> Self {
        self.push(address)
    }

    /// Adds a pointer to the tensor's first cell.
    pub fn vector(mut self, x: &Tensor<Cuda>) -> Self {
        self.takes_quantized |= x.quantized_kind().is_some();
        self.address(x.address())
    }

    /// Adds a pointer to the tensor's first cell and its row stride as `long long`.
    pub fn matrix(self, x: &Tensor<Cuda>) -> Self {
        self.vector(x).long(x.stride())
    }

    /// Adds a pointer and a row stride of 0, so that one row serves all.
    pub fn repeated(self, x: &Tensor<Cuda>) -> Self {
        self.vector(x).long(0)
    }

    /// Adds the pointer and row stride of quantized rows, and a pointer to their scales.
    pub fn quantized(self, x: &Tensor<Cuda>) -> Self {
        self.address(x.address()).long(x.stride()).address(x.scales())
    }

    /// Adds a `long long`.
    pub fn long(self, value: usize) -> Self {
        self.push(value as u64)
    }

    /// Adds an `int`; [`Launch::run`] returns an error if it is too large.
    pub fn int(mut self, value: usize) -> Self {
        if i32::try_from(value).is_err() {
            self.too_large.get_or_insert(value);
        }
        self.push(value as u64)
    }

    /// Adds a `float`.
    pub fn float(self, value: f32) -> Self {
        self.push(u64::from(value.to_bits()))
    }

    /// Enqueues the kernel; does nothing if the grid is empty.
    ///
    /// # Safety
    /// The arguments match the kernel's signature in number, order and type, and all memory that the kernel accesses
    /// through them is in live buffers, which work on this stream may use.
    pub unsafe fn run(self, grid: [usize; 3], block: [usize; 3]) -> Result<()> {
        let mut arguments = self.arguments;
        let mut pointers: [*mut c_void; MAX_ARGUMENTS] = [std::ptr::null_mut(); MAX_ARGUMENTS];
        for (pointer, argument) in pointers.iter_mut().zip(&mut arguments) {
            // The machine is little-endian (NVIDIA supports no other), so a 4-byte argument is the first half of its 8
            // bytes.
            *pointer = std::ptr::from_mut(argument).cast();
        }
        // SAFETY: as the caller promises; every pointer is to an argument of at least the size in the signature.
        unsafe { self.run_raw(grid, block, &mut pointers[..self.count]) }
    }

    /// Enqueues the kernel with arguments of any size, instead of those added before.
    ///
    /// # Safety
    /// As for [`Launch::run`]; each pointer points to an argument of the size in the signature.
    pub unsafe fn run_raw(&self, grid: [usize; 3], block: [usize; 3], arguments: &mut [*mut c_void]) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        if self.takes_quantized {
            return Err(Error::new(format!("kernel `{}` does not accept quantized rows", self.name)));
        }
        let place = || format!("kernel `{}`", self.name);
        if let Some(value) = self.too_large {
            return Err(too_large(&format!("`{value}`"), place()));
        }
        if grid[0] > i32::MAX as usize || grid[1] > 65535 || grid[2] > 65535 {
            return Err(too_large(&format!("a grid of {grid:?}"), place()));
        }
        let _submission = self.device.submit(self.stream)?;
        let mut cooperative = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        let mut config = self.config(grid, block);
        if self.all_at_once {
            (config.attrs, config.numAttrs) = (&mut cooperative, 1);
        }
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the function lives as long as the device, `config` and its attribute until the call returns; the rest
        // is as the caller promises.
        unsafe { sys::cuLaunchKernelEx(&config, self.function.raw(), arguments, std::ptr::null_mut()) }
            .result()
            .map_err(|e| failed(&format!("cannot launch kernel `{}`", self.name), e))?;
        self.device.counters.launches.add(1);
        Ok(())
    }
}

/// Returns grid and block of a kernel that uses `for_each_run` over `rows` rows of `runs` runs: blocks of (runs, rows),
/// with each row's runs spread evenly over its threads.
pub fn row_tiles(rows: usize, runs: usize) -> ([usize; 3], [usize; 3]) {
    let width = runs.div_ceil(runs.div_ceil(THREADS).max(1)).max(1);
    // A long row gets whole warps; short rows share a warp.
    let width = if width > 32 { width.next_multiple_of(32).min(THREADS) } else { width };
    let height = (THREADS / width).max(1);
    ([rows.div_ceil(height), 1, 1], [width, height, 1])
}

/// Returns the threads of a block that holds one row of `chunks` chunks, at most four per thread; `None` if the row
/// doesn't fit.
pub fn row_block(chunks: usize) -> Option<usize> {
    let each = chunks.div_ceil(128).clamp(1, 4);
    let threads = chunks.div_ceil(each).next_multiple_of(32).max(32);
    (threads <= 1024).then_some(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_tiles_cover_every_row_with_a_legal_block() {
        for rows in [1, 2, 255, 4608] {
            for runs in [1, 3, 16, 33, 48, 384, 1152, 3457] {
                let (grid, block) = row_tiles(rows, runs);
                assert!(
                    grid[0] * block[1] >= rows && block[0] * block[1] <= 256 && block[0] > 0,
                    "{rows} x {runs}: {grid:?} {block:?}"
                );
            }
        }
        assert_eq!(row_tiles(4608, 384), ([4608, 1, 1], [192, 1, 1]));
        assert_eq!(row_tiles(1 << 20, 16), ([65536, 1, 1], [16, 16, 1]));
    }

    #[test]
    fn row_block_holds_the_row() {
        for chunks in [1, 16, 320, 384, 512, 1000, 4096] {
            let threads = row_block(chunks).unwrap();
            assert!(threads * 4 >= chunks && threads.is_multiple_of(32), "{chunks}: {threads}");
        }
        assert_eq!(row_block(384), Some(128));
        assert_eq!(row_block(4097), None);
    }
}
