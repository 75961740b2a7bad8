//! One GPU: its context, its two streams, modules, events and counters.
//!
//! All work runs on the compute stream in program order. Weights go up on a second stream, so that loading one model
//! overlaps computing with another.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::pool::Pool;
use super::{kernels, library};
use crate::error::{Error, Result};

/// The driver that came with CUDA 13.0, as it counts: older ones lack functions that the bindings call, and code of our
/// nvcc.
const OLDEST_DRIVER: i32 = 13000;
/// The oldest GPUs with bf16 tensor cores.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// What was done so far.
#[derive(Default)]
pub struct Counters {
    /// Kernels, library calls and copies on the device.
    pub launches: AtomicU64,
    /// Times the host waited.
    pub waits: AtomicU64,
    /// Copies between host and device.
    pub copies: AtomicU64,
    /// Allocations.
    pub allocations: AtomicU64,
    /// Fused ops that ran as compositions.
    pub composed: AtomicU64,
    /// Launches of recorded work.
    pub graph_launches: AtomicU64,
    /// Pieces of work that could not be recorded.
    pub uncaptured: AtomicU64,
}

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
    upload_stream: Stream,
    download_stream: Stream,
    modules: Mutex<HashMap<&'static str, sys::CUmodule>>,
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
    pool: Pool,
    /// The thread whose work the compute stream records instead of doing it, and a quick answer to whether there is
    /// one.
    recorder: Mutex<Option<ThreadId>>,
    recorded: Condvar,
    recording: AtomicBool,
    counters: Counters,
    name: String,
    capability: (i32, i32),
    multiprocessors: usize,
    driver: i32,
    registers_read_only: bool,
}

// SAFETY: the driver's handles are plain addresses that any thread may use once the context is current there, which
// `bind` sees to before every call. The maps are behind mutexes, the counters are atomic, all else is read-only after
// `new`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An error of the driver, in words.
pub fn failed(what: &str, error: DriverError) -> Error {
    let name = error
        .error_name()
        .ok()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_else(|| format!("{:?}", error.0));
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    Error::new(format!("{what}: {text} ({name})"))
}

impl Device {
    /// Opens GPU `ordinal`. Without `memory_cap`, 80% of the memory that is free now may be used.
    ///
    /// Errors when the program has no kernels, the machine no driver, or the GPU is missing or too old.
    pub fn open(ordinal: usize, memory_cap: Option<u64>) -> Result<Arc<Self>> {
        if !kernels::built() {
            return Err(Error::new("this program was built without nvcc, so it has no GPU kernels").hint(
                "run `make cuda-toolkit`, then `make build`; or leave out `--device` and `--precision` to use the CPU",
            ));
        }
        library::require_driver()?;
        result::init()
            .map_err(|e| failed("cannot start CUDA", e).hint("is the NVIDIA driver loaded? `nvidia-smi` shows it"))?;
        let mut driver = 0;
        // SAFETY: the driver writes one int.
        unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(|e| failed("cannot ask the driver", e))?;
        if driver < OLDEST_DRIVER {
            let (major, minor) = (driver / 1000, driver % 1000 / 10);
            return Err(Error::new(format!("the NVIDIA driver is for CUDA {major}.{minor}, 13.0 is the least"))
                .hint("install driver 580 or later"));
        }
        let count = result::device::get_count().map_err(|e| failed("cannot count GPUs", e))?;
        let index = i32::try_from(ordinal).ok().filter(|index| *index < count);
        let index = index.ok_or_else(|| {
            Error::new(format!("no GPU {ordinal}: this machine shows {count}")).hint("`nvidia-smi -L` lists them")
        })?;
        let device = result::device::get(index).map_err(|e| failed("cannot open the GPU", e))?;
        let name = result::device::get_name(device).map_err(|e| failed("cannot open the GPU", e))?;
        let attribute = |attribute| {
            // SAFETY: `device` was returned by `device::get`.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(|e| failed("cannot ask the GPU", e))
        };
        use sys::CUdevice_attribute as Attribute;
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < OLDEST_CAPABILITY {
            let (major, minor) = capability;
            return Err(Error::new(format!(
                "GPU {ordinal} ({name}) has compute capability {major}.{minor}, 8.0 is the least"
            ))
            .hint("leave out `--device` and `--precision` to use the CPU"));
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize;
        let registers_read_only = attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)? != 0;
        let stream_ordered = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;

        // SAFETY: `device` was returned by `device::get`; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed("cannot open the GPU", e))?;
        // SAFETY: `context` was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(|e| failed("cannot open the GPU", e))?;
        if stream_ordered {
            keep_freed_memory(device).map_err(|e| failed("cannot set up GPU memory", e))?;
        }
        let (free, _) = result::mem_get_info().map_err(|e| failed("cannot ask for free GPU memory", e))?;
        let cap = memory_cap.unwrap_or(free as u64 / 10 * 8);
        let new_stream = || {
            result::stream::create(StreamKind::NonBlocking).map(Stream).map_err(|e| failed("cannot open the GPU", e))
        };
        Ok(Arc::new(Self {
            context,
            device,
            stream: new_stream()?,
            upload_stream: new_stream()?,
            download_stream: new_stream()?,
            modules: Mutex::default(),
            functions: Mutex::default(),
            pool: Pool::new(cap, stream_ordered),
            recorder: Mutex::default(),
            recorded: Condvar::new(),
            recording: AtomicBool::new(false),
            counters: Counters::default(),
            name,
            capability,
            multiprocessors,
            driver,
            registers_read_only,
        }))
    }

    /// Makes the context current on this thread. Waits while another thread records: this one's work would be recorded
    /// too.
    pub fn bind(&self) -> Result<()> {
        if self.is_capturing() {
            let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let another =
                |recorder: &mut Option<ThreadId>| recorder.is_some_and(|thread| thread != thread::current().id());
            drop(self.recorded.wait_while(recorder, another).unwrap_or_else(PoisonError::into_inner));
        }
        let current = result::ctx::get_current().map_err(|e| failed("the GPU does not answer", e))?;
        if current != Some(self.context) {
            // SAFETY: `context` is retained until `drop`.
            unsafe { result::ctx::set_current(self.context) }.map_err(|e| failed("the GPU does not answer", e))?;
        }
        Ok(())
    }

    /// From here on the compute stream records the work of this thread instead of doing it.
    pub fn begin_capture(&self) -> Result<Capture<'_>> {
        self.bind()?;
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        self.recording.store(true, Ordering::Release);
        // SAFETY: the stream lives as long as the device. Calls of other threads that could disturb the recording wait
        // in `bind`.
        let begun = unsafe {
            result::stream::begin_capture(self.stream.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        };
        match begun {
            Ok(()) => Ok(Capture(Some(self))),
            Err(e) => {
                self.stop_recording();
                Err(failed("cannot capture GPU work", e))
            }
        }
    }

    /// Whether the compute stream records work instead of doing it; of a thread that went through [`Device::bind`], its
    /// own.
    pub fn is_capturing(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    fn stop_recording(&self) {
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.recording.store(false, Ordering::Release);
        self.recorded.notify_all();
    }

    /// Where all computing goes.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Where weights go up.
    pub fn upload_stream(&self) -> Stream {
        self.upload_stream
    }

    /// Where pixels go to the host, beside what is computed then.
    pub fn download_stream(&self) -> Stream {
        self.download_stream
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability, (9, 0) for Hopper.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// The newest CUDA that the driver knows, as it counts: 13000 is 13.0.
    pub fn driver(&self) -> i32 {
        self.driver
    }

    /// Whether it can copy from memory of the host that this program may only read, as files are mapped.
    pub fn registers_read_only(&self) -> bool {
        self.registers_read_only
    }

    /// Whether all work on `stream` is done; does not wait.
    pub fn is_idle(&self, stream: Stream) -> Result<bool> {
        self.bind()?;
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
        self.bind()?;
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
        self.bind()?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(file) {
            return Ok(*module);
        }
        let fatbin = kernels::fatbin(file)
            .ok_or_else(|| Error::new(format!("this program has no kernels of `cuda/{file}.cu`")))?;
        // SAFETY: `fatbin` is whole made by nvcc, aligned to 64 bytes, and static.
        let module = unsafe { result::module::load_data(fatbin.as_ptr().cast()) };
        let module =
            module.map_err(|e| failed(&format!("cannot load the kernels of `cuda/{file}.cu` on {}", self.name), e))?;
        modules.insert(file, module);
        Ok(module)
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
        self.counters.composed.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets the compute stream wait for all work on the upload stream so far; the host does not wait.
    pub fn join_uploads(self: &Arc<Self>) -> Result<()> {
        let event = Event::new(self, self.upload_stream)?;
        event.hold(self.stream)
    }
}

/// The compute stream records. It stops when this is dropped, also by a panic: otherwise other threads would wait for
/// ever.
pub struct Capture<'a>(Option<&'a Device>);

impl Capture<'_> {
    /// What was captured.
    pub fn end(mut self) -> Result<Captured> {
        self.stop().unwrap_or_else(|| Err(Error::new("nothing was captured")))
    }

    fn stop(&mut self) -> Option<Result<Captured>> {
        let device = self.0.take()?;
        // SAFETY: the stream lives as long as the device; it leaves recording also where that was disturbed.
        let graph = unsafe { result::stream::end_capture(device.stream.0) };
        device.stop_recording();
        Some(graph.map(Captured).map_err(|e| failed("cannot capture GPU work", e)))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// What the driver captured, until it is made executable.
pub struct Captured(sys::CUgraph);

impl Captured {
    /// The driver's handle.
    pub fn raw(&self) -> sys::CUgraph {
        self.0
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing else holds the device any more, so all handles are used here for the last time; the driver
        // finishes the work on a destroyed stream by itself. Errors are those that callers have seen.
        unsafe {
            let _ = result::stream::synchronize(self.stream.0);
            let _ = result::stream::synchronize(self.upload_stream.0);
            let _ = result::stream::synchronize(self.download_stream.0);
            for module in modules.values() {
                let _ = result::module::unload(*module);
            }
            let _ = result::stream::destroy(self.stream.0);
            let _ = result::stream::destroy(self.upload_stream.0);
            let _ = result::stream::destroy(self.download_stream.0);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Lets the driver keep freed memory for the next allocation; by default every wait gives it back to the system.
fn keep_freed_memory(device: sys::CUdevice) -> std::result::Result<(), DriverError> {
    let mut threshold = u64::MAX;
    // SAFETY: `device` was returned by `device::get`, and the attribute's value is a u64.
    unsafe {
        let pool = result::device::get_default_mem_pool(device)?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut threshold).cast())
    }
}

/// A point in the order of work on a stream.
pub struct Event {
    event: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: events may be used from any thread of the context, which `bind` makes current.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks an event itself.
unsafe impl Sync for Event {}

impl Event {
    /// An event behind all work on `stream` so far.
    pub fn new(device: &Arc<Device>, stream: Stream) -> Result<Self> {
        device.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|e| failed("cannot record an event", e))?;
        let event = Self { event, device: Arc::clone(device) };
        event.record(stream)?;
        Ok(event)
    }

    /// Moves the event behind all work on `stream` so far.
    pub fn record(&self, stream: Stream) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the event lives until `drop`, the stream as long as the device.
        unsafe { result::event::record(self.event, stream.0) }.map_err(|e| failed("cannot record an event", e))
    }

    /// Whether the work is done; does not wait.
    pub fn is_done(&self) -> Result<bool> {
        self.device.bind()?;
        // SAFETY: the event lives until `drop`.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(failed("GPU work failed", e)),
        }
    }

    /// Blocks the host until the work is done. Counted by callers that wait on behalf of a user.
    pub fn wait(&self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the event lives until `drop`.
        unsafe { result::event::synchronize(self.event) }.map_err(|e| failed("GPU work failed", e))
    }

    /// Lets `stream` wait for the event; the host does not.
    pub fn hold(&self, stream: Stream) -> Result<()> {
        self.device.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives until `drop`, after which the driver keeps what a wait needs; the stream lives as
        // long as the device.
        unsafe { result::stream::wait_event(stream.0, self.event, flags) }
            .map_err(|e| failed("cannot order GPU work", e))
    }

    /// Time from `self` to `later`; both are done.
    pub fn elapsed(&self, later: &Event) -> Result<Duration> {
        self.device.bind()?;
        // SAFETY: both events were made with timing and recorded.
        let time_ms = unsafe { result::event::elapsed(self.event, later.event) }
            .map_err(|e| failed("cannot time GPU work", e))?;
        Ok(Duration::from_secs_f64(f64::from(time_ms.max(0.0)) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the event is destroyed once; the driver keeps it until work that refers to it is done.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
