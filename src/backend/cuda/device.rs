//! One GPU: its context, its streams, modules, memory budget and counters.
//!
//! Work runs on the compute stream in program order. Weights go up on a second stream, so that loading one model
//! overlaps computing with another, and blocks that take turns in memory on a third. A side stream takes what the
//! compute stream leaves idle, as [`super::fork`] says.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use parking_lot::ReentrantMutex;

use super::capability;
use super::captures::outside_captures;
use super::counters::Counters;
use super::driver::{Properties, failed, start_driver};
use super::element::Element;
use super::kernels;
use super::memory::{Arena, Budget};
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
    /// The driver's handle.
    pub fn raw(self) -> sys::CUstream {
        self.0
    }
}

/// A kernel of a loaded module; lives as long as its [`Device`].
#[derive(Clone, Copy)]
pub struct Function(sys::CUfunction);

impl Function {
    /// The driver's handle.
    pub fn raw(self) -> sys::CUfunction {
        self.0
    }
}

/// A GPU and what is loaded on it.
pub struct Device {
    context: sys::CUcontext,
    device: sys::CUdevice,
    stream: Stream,
    side_stream: Stream,
    upload_stream: Stream,
    block_stream: Stream,
    download_stream: Stream,
    modules: Mutex<HashMap<&'static str, sys::CUmodule>>,
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
    budget: Budget,
    arena: Mutex<Arena>,
    /// Where memory comes from; none where the device has no memory pools. All since Pascal have, some virtual GPUs do
    /// not.
    pools: Option<Pools>,
    /// Held by a thread that enqueues on the compute stream; see [`capture`](super::capture).
    pub(super) submission: ReentrantMutex<()>,
    pub(super) capturing: AtomicBool,
    counters: Counters,
    properties: Properties,
    /// What it is taken for.
    capability: (i32, i32),
    element: Element,
    driver: i32,
}

// SAFETY: the driver's handles are plain addresses that any thread may use once the context is current there, which
// `bind` sees to before every call. The maps are behind mutexes, the counters are atomic, all else is read-only after
// `new`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens GPU `ordinal`. Without `memory_cap`, 80% of the memory that is free now may be used.
    ///
    /// Errors when the program has no kernels for the GPU, the machine no driver, or the GPU is missing or too old.
    pub fn open(ordinal: usize, memory_cap: Option<u64>) -> Result<Arc<Self>> {
        let driver = start_driver()?;
        let (device, properties) = Properties::of(ordinal)?;
        let capability = capability::taken_for(properties.capability)?;
        let element = Element::of_gpu(capability)?;
        kernels::require(element)?;
        let cannot = |e| failed("cannot open the GPU", e);
        // SAFETY: `device` is one that the driver named; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(cannot)?;
        // SAFETY: `context` was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(cannot)?;
        let pools = if properties.has_memory_pools { Some(Pools::new(device)?) } else { None };
        let (free, _) = result::mem_get_info().map_err(|e| failed("cannot ask for free GPU memory", e))?;
        // All but the side stream are as one.
        let (least, greatest) = result::stream::get_priority_range().map_err(cannot)?;
        let stream_of = |priority| {
            result::stream::create_with_priority(StreamKind::NonBlocking, priority).map(Stream).map_err(cannot)
        };
        let new_stream = || stream_of((least - 1).max(greatest));
        Ok(Arc::new(Self {
            context,
            device,
            stream: new_stream()?,
            side_stream: stream_of(least)?,
            upload_stream: new_stream()?,
            block_stream: new_stream()?,
            download_stream: new_stream()?,
            modules: Mutex::default(),
            functions: Mutex::default(),
            budget: Budget::new(memory_cap.unwrap_or(free as u64 / 10 * 8)),
            arena: Mutex::default(),
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

    /// Makes the context current on this thread, for calls that enqueue nothing on the compute stream; for those that
    /// do there is [`Device::submit`].
    pub fn make_current(&self) -> Result<()> {
        let current = result::ctx::get_current().map_err(|e| failed("the GPU does not answer", e))?;
        if current != Some(self.context) {
            // SAFETY: `context` is retained until `drop`.
            unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("the GPU does not answer", e))?;
        }
        Ok(())
    }

    /// The driver's handle of the context.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The driver's handle of the GPU, which is its number.
    pub fn handle(&self) -> sys::CUdevice {
        self.device
    }

    /// Where all computing goes.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// What runs beside the compute stream; see [`super::fork`].
    pub(super) fn side_stream(&self) -> Stream {
        self.side_stream
    }

    /// Where weights go up.
    pub fn upload_stream(&self) -> Stream {
        self.upload_stream
    }

    /// Where blocks go up that take turns in memory.
    pub fn block_stream(&self) -> Stream {
        self.block_stream
    }

    /// Where pixels go to the host, beside what is computed then.
    pub fn download_stream(&self) -> Stream {
        self.download_stream
    }

    /// Which GPU of the machine it is.
    pub fn ordinal(&self) -> usize {
        self.device.unsigned_abs() as usize
    }

    /// Bytes of the GPU's memory that are free, whoever may use them; `None` where the driver does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        self.make_current().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    /// What may be used of the GPU's memory, and what is.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn arena(&self) -> MutexGuard<'_, Arena> {
        // Its methods leave it whole.
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver's pools of this device's memory.
    pub fn pools(&self) -> Option<&Pools> {
        self.pools.as_ref()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn name(&self) -> &str {
        &self.properties.name
    }

    /// Compute capability, (9, 0) for Hopper, or the one that the GPU is taken for, as [`super::capability`] says.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// The same in words.
    pub fn capability_name(&self) -> String {
        let ((major, minor), own) = (self.capability, self.properties.capability);
        let taken_for = if self.capability == own { "" } else { ", which it is taken for" };
        format!("compute capability {major}.{minor}{taken_for}")
    }

    /// What activations and weights are in.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.properties.multiprocessors
    }

    /// The newest CUDA that the driver knows, as it counts: 13000 is 13.0.
    pub fn driver(&self) -> i32 {
        self.driver
    }

    /// Whether it can copy from memory of the host that this program may only read, as files are mapped.
    pub fn registers_read_only(&self) -> bool {
        self.properties.registers_read_only
    }

    /// Whether all work on `stream` is done; does not wait.
    pub fn is_idle(&self, stream: Stream) -> Result<bool> {
        self.make_current()?;
        // SAFETY: the stream lives as long as the device.
        match unsafe { sys::cuStreamQuery(stream.0) }.result() {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("GPU work failed", e)),
        }
    }

    /// Kernel `name` of `cuda/<file>.cu`, loaded on first use.
    ///
    /// Errors when the file was not built or the driver has no code for this GPU.
    pub fn function(&self, file: &'static str, name: &'static str) -> Result<Function> {
        self.make_current()?;
        // A thread that panicked here left whole entries only.
        let functions = || self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = functions().get(&(file, name)).copied();
        if let Some(function) = known {
            return Ok(function);
        }
        // Not under the lock, which a thread that records may need: this one may wait for it.
        let module = self.module(file)?;
        let symbol = CString::new(name).map_err(|_| Error::new(format!("`{name}` is no kernel name")))?;
        // SAFETY: `module` was loaded above and is unloaded with the device only.
        let function = unsafe { result::module::get_function(module, symbol) };
        let function = Function(function.map_err(|e| failed(&format!("no kernel `{name}` in `cuda/{file}.cu`"), e))?);
        functions().insert((file, name), function);
        Ok(function)
    }

    /// The kernels of `cuda/<file>.cu`, loaded on first use.
    pub fn module(&self, file: &'static str) -> Result<sys::CUmodule> {
        self.make_current()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(file) {
            return Ok(*module);
        }
        let fatbin = kernels::fatbin(file, self.element)
            .ok_or_else(|| Error::new(format!("this program has no kernels of `cuda/{file}.cu`")))?;
        // SAFETY: `fatbin` is whole made by nvcc, aligned to 64 bytes, and static.
        let module = unsafe { result::module::load_data(fatbin.as_ptr().cast()) };
        let module = module
            .map_err(|e| failed(&format!("cannot load the kernels of `cuda/{file}.cu` on {}", self.name()), e))?;
        modules.insert(file, module);
        Ok(module)
    }

    /// The files of kernels that were loaded, in the order of their names.
    pub fn loaded_modules(&self) -> Vec<(&'static str, sys::CUmodule)> {
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loaded: Vec<_> = modules.iter().map(|(file, module)| (*file, *module)).collect();
        loaded.sort_unstable_by_key(|(file, _)| *file);
        loaded
    }

    /// Loads all kernels of `cuda/<file>.cu`. The driver leaves a kernel until its first launch, and may wait for the
    /// device then.
    pub fn load_kernels(&self, file: &'static str) -> Result<()> {
        let module = self.module(file)?;
        let cannot = |e| failed(&format!("cannot load the kernels of `cuda/{file}.cu`"), e);
        let mut count = 0;
        // SAFETY: the module is loaded until the device is dropped; the driver writes one number.
        unsafe { sys::cuModuleGetFunctionCount(&mut count, module) }.result().map_err(cannot)?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: as above; the driver writes `count` handles.
        unsafe { sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module) }.result().map_err(cannot)?;
        // SAFETY: the handles are those of the module.
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
        // Unloading and giving memory back wait for all work of the context.
        let _outside = outside_captures();
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing else holds the device any more, so all handles are used here for the last time; the driver
        // finishes the work on a destroyed stream by itself. Errors are those that callers have seen.
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
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
