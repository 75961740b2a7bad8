//! One GPU: its context, streams, modules, memory budget and counters.
//!
//! Work runs on the compute stream in program order. Weights are uploaded on a second stream, so that loading one model
//! overlaps computing with another; streamed blocks are uploaded on a third. A side stream uses the multiprocessors
//! that the compute stream leaves idle; see [`super::fork`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use parking_lot::{Mutex, ReentrantMutex};

use super::capability;
use super::captures::outside_captures;
use super::counters::Counters;
use super::driver::{Properties, failed, start_driver};
use super::element::Element;
use super::kernels;
use super::memory::{Arena, Budget, HostBlocks};
use super::pools::Pools;
use crate::error::{Error, Result};

/// A queue of work on the device; lives as long as its [`Device`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stream(sys::CUstream);

// SAFETY: the driver's handle is a plain address that any thread may use once the context is current there.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Returns the driver's handle.
    pub fn raw(self) -> sys::CUstream {
        self.0
    }
}

/// A kernel of a loaded module; lives as long as its [`Device`].
#[derive(Clone, Copy)]
pub struct Function(sys::CUfunction);

impl Function {
    /// Returns the driver's handle.
    pub fn raw(self) -> sys::CUfunction {
        self.0
    }
}

/// A GPU and its loaded modules.
pub struct Device {
    /// The driver's handle of the context.
    pub context: sys::CUcontext,
    /// The driver's handle of the GPU, which is its number.
    pub handle: sys::CUdevice,
    /// The compute stream.
    pub stream: Stream,
    /// The stream for work beside the compute stream; see [`super::fork`].
    pub(super) side_stream: Stream,
    /// The stream for weight uploads.
    pub upload_stream: Stream,
    /// The stream for uploads of streamed blocks.
    pub block_stream: Stream,
    /// The stream for downloads, which overlap compute.
    pub download_stream: Stream,
    modules: Mutex<HashMap<&'static str, sys::CUmodule>>,
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
    /// The memory budget.
    pub budget: Budget,
    pub arena: Mutex<Arena>,
    pub host_blocks: Mutex<HostBlocks>,
    /// Memory pools; `None` if the device has none. All GPUs since Pascal have pools, except some virtual ones.
    pub pools: Option<Pools>,
    /// Held by a thread that enqueues on the compute stream; see [`capture`](super::capture).
    pub(super) submission: ReentrantMutex<()>,
    pub(super) capturing: AtomicBool,
    pub counters: Counters,
    properties: Properties,
    /// The capability that selects kernels.
    pub capability: (i32, i32),
    element: Element,
    /// The newest CUDA version that the driver supports, as the driver counts: 13000 is 13.0.
    pub driver: i32,
}

// SAFETY: the driver's handles are plain addresses that any thread may use once the context is current there, which
// `make_current` ensures before every call. The maps are behind mutexes, the counters are atomic, and all else is
// read-only after `new`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens GPU `ordinal`. Without `memory_cap`, 80% of the memory that is free now may be used.
    ///
    /// Errors if the program has no kernels for the GPU, the machine has no driver, or the GPU is missing or too old.
    pub fn open(ordinal: usize, memory_cap: Option<u64>) -> Result<Arc<Self>> {
        let driver = start_driver()?;
        let (device, properties) = Properties::read(ordinal)?;
        let capability = capability::taken_for(properties.capability)?;
        let element = Element::for_gpu(capability)?;
        kernels::require(element)?;
        let cannot = |e| failed("cannot open the GPU", e);
        // SAFETY: `device` is one that the driver named; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(cannot)?;
        // SAFETY: `context` was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(cannot)?;
        let pools = if properties.has_memory_pools { Some(Pools::new(device)?) } else { None };
        let (free, _) = result::mem_get_info().map_err(|e| failed("cannot query free GPU memory", e))?;
        // All streams except the side stream have one priority.
        let (least, greatest) = result::stream::get_priority_range().map_err(cannot)?;
        let stream_of = |priority| {
            result::stream::create_with_priority(StreamKind::NonBlocking, priority).map(Stream).map_err(cannot)
        };
        let new_stream = || stream_of((least - 1).max(greatest));
        Ok(Arc::new(Self {
            context,
            handle: device,
            stream: new_stream()?,
            side_stream: stream_of(least)?,
            upload_stream: new_stream()?,
            block_stream: new_stream()?,
            download_stream: new_stream()?,
            modules: Mutex::default(),
            functions: Mutex::default(),
            budget: Budget::new(memory_cap.unwrap_or(free as u64 / 10 * 8)),
            arena: Mutex::default(),
            host_blocks: Mutex::default(),
            pools,
            submission: ReentrantMutex::new(()),
            capturing: AtomicBool::new(false),
            counters: Counters::default(),
            properties,
            capability,
            element,
            driver,
        }))
    }

    /// Makes the context current on this thread, for calls that enqueue nothing on the compute stream; other calls use
    /// [`Device::submit`].
    pub fn make_current(&self) -> Result<()> {
        let current = result::ctx::get_current().map_err(|e| failed("the GPU does not respond", e))?;
        if current != Some(self.context) {
            // SAFETY: `context` is retained until `drop`.
            unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("the GPU does not respond", e))?;
        }
        Ok(())
    }

    /// Returns the number of the GPU on this machine.
    pub fn ordinal(&self) -> usize {
        self.handle.unsigned_abs() as usize
    }

    /// Returns the free bytes of the GPU's memory, for all processes; `None` if the driver doesn't report them.
    pub fn free_bytes(&self) -> Option<u64> {
        self.make_current().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    pub fn name(&self) -> &str {
        &self.properties.name
    }

    /// Returns the capability for messages.
    pub fn capability_name(&self) -> String {
        let ((major, minor), own) = (self.capability, self.properties.capability);
        let taken_for = if self.capability == own { "" } else { ", overridden" };
        format!("compute capability {major}.{minor}{taken_for}")
    }

    /// Returns the type of activations and weights.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Returns the number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.properties.multiprocessors
    }

    /// Returns `true` if it can copy from read-only host memory, such as mapped files.
    pub fn registers_read_only(&self) -> bool {
        self.properties.registers_read_only
    }

    /// Returns `true` if all work on `stream` is done; does not wait.
    pub fn is_idle(&self, stream: Stream) -> Result<bool> {
        self.make_current()?;
        // SAFETY: the stream lives as long as the device.
        match unsafe { sys::cuStreamQuery(stream.0) }.result() {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("GPU work failed", e)),
        }
    }

    /// Returns kernel `name` of `cuda/<file>.cu`, loaded on first use.
    ///
    /// Errors if the file was not built or the driver has no code for this GPU.
    pub fn function(&self, file: &'static str, name: &'static str) -> Result<Function> {
        self.make_current()?;
        // A panic leaves only complete entries.
        let functions = || self.functions.lock();
        let known = functions().get(&(file, name)).copied();
        if let Some(function) = known {
            return Ok(function);
        }
        // Load without the lock: a capturing thread may need it while this one waits for that capture.
        let module = self.module(file)?;
        let symbol = CString::new(name).map_err(|_| Error::new(format!("`{name}` is not a kernel name")))?;
        // SAFETY: `module` was loaded above and is unloaded with the device only.
        let function = unsafe { result::module::get_function(module, symbol) };
        let function = Function(function.map_err(|e| failed(&format!("no kernel `{name}` in `cuda/{file}.cu`"), e))?);
        functions().insert((file, name), function);
        Ok(function)
    }

    /// Returns the module of `cuda/<file>.cu`, loaded on first use.
    pub fn module(&self, file: &'static str) -> Result<sys::CUmodule> {
        self.make_current()?;
        let mut modules = self.modules.lock();
        if let Some(module) = modules.get(file) {
            return Ok(*module);
        }
        let fatbin = kernels::fatbin(file, self.element)
            .ok_or_else(|| Error::new(format!("this program was built without the kernels of `cuda/{file}.cu`")))?;
        // SAFETY: `fatbin` is a complete fatbin of nvcc, aligned to 64 bytes, and static.
        let module = unsafe { result::module::load_data(fatbin.as_ptr().cast()) };
        let module = module.map_err(|e| {
            let error = failed(&format!("cannot load the kernels of `cuda/{file}.cu` on {}", self.name()), e);
            match e.0 {
                sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => error.hint(kernels::FOR_ALL_GPUS),
                _ => error,
            }
        })?;
        modules.insert(file, module);
        Ok(module)
    }

    /// Returns the loaded kernel files, sorted by name.
    pub fn loaded_modules(&self) -> Vec<(&'static str, sys::CUmodule)> {
        let modules = self.modules.lock();
        let mut loaded: Vec<_> = modules.iter().map(|(file, module)| (*file, *module)).collect();
        loaded.sort_unstable_by_key(|(file, _)| *file);
        loaded
    }

    /// Loads all kernels of `cuda/<file>.cu`. Otherwise the driver defers loading to a kernel's first launch, and may
    /// wait for the device then.
    pub fn load_kernels(&self, file: &'static str) -> Result<()> {
        let module = self.module(file)?;
        let cannot = |e| failed(&format!("cannot load the kernels of `cuda/{file}.cu`"), e);
        let mut count = 0;
        // SAFETY: the module is loaded until the device is dropped; the driver writes one number.
        unsafe { sys::cuModuleGetFunctionCount(&mut count, module) }.result().map_err(cannot)?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: as above; the driver writes `count` handles.
        unsafe { sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module) }.result().map_err(cannot)?;
        // SAFETY: the handles belong to the module.
        functions.into_iter().try_for_each(|function| unsafe { sys::cuFuncLoad(function) }.result().map_err(cannot))
    }

    /// Counts a fused op that runs as its composition.
    pub fn count_composed(&self) {
        self.counters.composed.add(1);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.make_current().is_err() {
            return;
        }
        // Unloading and returning memory wait for all work of the context.
        let _outside = outside_captures();
        let modules = self.modules.get_mut();
        // SAFETY: nothing else holds the device, so all handles are used here for the last time; the driver finishes
        // the work on a destroyed stream by itself. Errors have been reported to callers before.
        unsafe {
            let _ = result::stream::synchronize(self.stream.0);
            let _ = result::stream::synchronize(self.side_stream.0);
            let _ = result::stream::synchronize(self.upload_stream.0);
            let _ = result::stream::synchronize(self.block_stream.0);
            let _ = result::stream::synchronize(self.download_stream.0);
            for module in modules.values() {
                let _ = result::module::unload(*module);
            }
            let _ = result::stream::destroy(self.stream.0);
            let _ = result::stream::destroy(self.side_stream.0);
            let _ = result::stream::destroy(self.upload_stream.0);
            let _ = result::stream::destroy(self.block_stream.0);
            let _ = result::stream::destroy(self.download_stream.0);
            if let Some(pools) = &self.pools {
                pools.destroy();
            }
            let _ = result::primary_ctx::release(self.handle);
        }
    }
}
