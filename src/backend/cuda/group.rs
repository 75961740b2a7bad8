//! Groups of GPUs that generate one image together, each driven by its own thread.
//!
//! Before an exchange is enqueued, the hosts of all ranks meet and exchange the addresses of sources and destinations.
//! From then on the GPUs wait for each other by themselves, see cuda/exchange.cu. They write into each other's memory,
//! or, if that is out of reach, into [`host_staging_buffer`](super::host_staging_buffer)s in host memory. A failure on
//! either side ends the other: a failed host sets the first word of the mailbox, which waiting GPUs poll; a GPU that
//! times out writes the mailbox, which hosts read while they wait for each other and after they have waited for their
//! GPU.

use std::env;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::result;

use super::buffer::{Buffer, BufferKind};
use super::device::Device;
use super::driver::{Properties, can_reach, failed, start_driver};
use super::event::Event;
use super::host_staging_buffer::{HostStagingBuffer, Pinned};
use super::one_of;
use super::peers::{Reach, broken_link};
use crate::backend::member::{Alarm, LIMIT, Member};
use crate::error::{Error, Result};

/// The max number of ranks of a group, as in cuda/exchange.cu.
pub const RANKS: usize = 16;
/// Words of a rank's counters and flags, as in cuda/exchange.cu.
const FLAG_WORDS: usize = 1024;
/// Words of the mailbox: one that ends all waits, and two for each rank.
const MAILBOX_WORDS: usize = 1 + 2 * RANKS;

const VARIABLE: &str = "FLUX_PEER_ACCESS";

/// The transport between the GPUs of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// GPUs write into each other's memory.
    Peers,
    /// Through host memory.
    Host,
}

impl Link {
    /// Returns the transport that the user's environment asks for, if any.
    pub fn wished() -> Result<Option<Self>> {
        Self::from_value(env::var_os(VARIABLE).as_deref())
    }

    /// Parses the value of [`VARIABLE`]; `None` if it is unset or `1`.
    fn from_value(value: Option<&OsStr>) -> Result<Option<Self>> {
        Ok(if one_of(VARIABLE, value, ["0", "1"], true)? { None } else { Some(Self::Host) })
    }
}

/// Options of a group.
#[derive(Debug, Clone, Copy)]
pub struct GroupOptions {
    /// The timeout of a rank that waits for another one.
    pub limit: Duration,
    /// The transport; `None` for the fastest that works.
    pub link: Option<Link>,
    /// `true` if hosts also meet after each launch, so that calls that free exchanged memory come after the launches
    /// that read and write it. GPUs order this by themselves, but compute-sanitizer takes the order of calls as the
    /// order of the work.
    pub meet_behind: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { limit: LIMIT, link: None, meet_behind: false }
    }
}

/// The place of a GPU in its group.
pub struct Rank {
    /// The rendezvous of the hosts.
    pub member: Member,
    shared: Arc<Shared>,
    /// The number of common captures; see [`Rank::next_capture`].
    captures: AtomicU64,
}

struct Shared {
    mailbox: Words,
    /// Counters of each rank, in its own memory. The flags that other ranks write are next to them if the ranks reach
    /// each other's memory.
    counters: Vec<Buffer>,
    /// `None` if ranks reach each other's memory.
    host: Option<HostLink>,
    devices: Vec<Arc<Device>>,
    limit: Duration,
    meet_behind: bool,
}

/// Host memory of ranks that can't reach each other's memory.
pub struct HostLink {
    /// The flags of all ranks.
    flags: Words,
    /// The staging buffer of each rank.
    staging_buffers: Vec<HostStagingBuffer>,
    /// The reason that peer access isn't used.
    reason: String,
}

impl Rank {
    /// Returns the ranks of a new group of these GPUs, in order.
    ///
    /// Errors if memory runs out.
    pub fn group(devices: &[&Arc<Device>], options: GroupOptions) -> Result<Vec<Self>> {
        let world = devices.len();
        if world > RANKS {
            return Err(Error::usage(format!("{world} GPUs cannot share one image, the maximum is {RANKS}")));
        }
        if let Some(other) = devices.iter().find(|device| device.element() != devices[0].element()) {
            let names = format!("{} and {}", devices[0].name(), other.name());
            return Err(Error::usage(format!(
                "{names} cannot share one image: one computes in bf16, the other in fp16"
            ))
            .hint("use GPUs of the same kind"));
        }
        let wish = options.link.map_or_else(Link::wished, |link| Ok(Some(link)))?;
        let out_of_reach = match wish {
            Some(Link::Host) => Some(format!("GPUs do not access each other's memory ({VARIABLE}=0)")),
            _ => out_of_reach(devices)?,
        };
        let link = |reason| {
            let flags = Words::new(devices[0], world * FLAG_WORDS)?;
            Ok(HostLink {
                flags,
                staging_buffers: devices.iter().map(|_| HostStagingBuffer::default()).collect(),
                reason,
            })
        };
        let host = out_of_reach.map(link).transpose()?;
        let counters = devices.iter().map(|device| Buffer::new(device, BufferKind::F32, FLAG_WORDS));
        let counters = counters.collect::<Result<_>>()?;
        let mailbox = Words::new(devices[0], MAILBOX_WORDS)?;
        let devices: Vec<_> = devices.iter().map(|device| Arc::clone(device)).collect();
        let GroupOptions { limit, meet_behind, .. } = options;
        let shared = Arc::new(Shared { devices, counters, host, mailbox, limit, meet_behind });
        shared.clear()?;
        // The driver may wait for a GPU when it loads a kernel, so load before any GPU waits for another.
        shared.devices.iter().try_for_each(|device| device.load_kernels("exchange"))?;
        let members = Member::group(world, limit, Some(Arc::clone(&shared) as _));
        Ok(members.map(|member| Self { member, shared: Arc::clone(&shared), captures: AtomicU64::new(0) }).collect())
    }

    /// Returns the addresses of the flags of all ranks.
    pub fn flags(&self) -> impl Iterator<Item = u64> {
        let flags = |(rank, counters): (usize, &Buffer)| match &self.shared.host {
            Some(host) => host.flags.address(rank * FLAG_WORDS),
            None => counters.address(),
        };
        self.shared.counters.iter().enumerate().map(flags)
    }

    /// Returns the address of this rank's counters.
    pub fn counters(&self) -> u64 {
        self.shared.counters[self.member.rank()].address()
    }

    /// Returns the address of the mailbox, equal on all devices.
    pub fn mailbox(&self) -> u64 {
        self.shared.mailbox.address(0)
    }

    /// Returns the host memory for exchanges; `None` if ranks reach each other's memory.
    pub fn host_link(&self) -> Option<&HostLink> {
        self.shared.host.as_ref()
    }

    /// Returns a note for the user about the transport between GPUs.
    pub fn note(&self) -> Option<String> {
        let reason = &self.shared.host.as_ref()?.reason;
        Some(format!("{reason}: they exchange data through host memory, which is slower"))
    }

    /// Returns the timeout of a GPU that waits for another one.
    pub fn limit(&self) -> Duration {
        self.shared.limit
    }

    /// Waits until all ranks have launched their work, if [`GroupOptions`] asks for it.
    ///
    /// Errors as [`Member::exchange`].
    pub fn meet_behind(&self, op: &'static str) -> Result<()> {
        if self.shared.meet_behind {
            self.member.exchange(op, vec![(); self.member.world()])?;
        }
        Ok(())
    }

    /// Returns `true` if several ranks share a GPU.
    fn shares_gpus(&self) -> bool {
        let devices = &self.shared.devices;
        devices.iter().enumerate().any(|(i, device)| devices[..i].iter().any(|other| other.is_same_gpu(device)))
    }

    /// Returns the number of blocks of an exchange that run concurrently on every GPU, equal on all ranks. On a shared
    /// GPU it is small enough for the blocks of all ranks to run at the same time.
    pub fn blocks_at_once(&self) -> usize {
        const ON_A_SHARED_GPU: usize = 4;
        let least = self.shared.devices.iter().map(|device| device.multiprocessors()).min();
        if self.shares_gpus() { ON_A_SHARED_GPU } else { least.unwrap_or(1) }
    }

    /// Returns a new number that all ranks use for their next capture. From here until the ranks have captured it, no
    /// rank runs calls that would have to wait for captures to end.
    ///
    /// Errors as [`Member::exchange`].
    pub fn next_capture(&self) -> Result<u64> {
        let own = self.captures.load(Ordering::Relaxed);
        let all = self.member.exchange("a capture", vec![own; self.member.world()])?;
        let next = 1 + all.into_iter().max().unwrap_or(own);
        self.captures.store(next, Ordering::Relaxed);
        Ok(next)
    }

    /// See [`crate::backend::Group::restore_collectives`].
    pub fn restore(&self) -> Result<()> {
        if self.member.has_ended() || self.shared.mailbox.word(0).load(Ordering::Acquire) != 0 {
            self.shared.wait_until_idle()?;
            self.shared.clear()?;
        }
        self.member.restore()
    }
}

impl HostLink {
    /// Returns the staging buffer of a rank.
    pub fn staging_buffer(&self, rank: usize) -> &HostStagingBuffer {
        &self.staging_buffers[rank]
    }
}

impl Shared {
    /// Errors if a GPU still computes after the timeout.
    fn wait_until_idle(&self) -> Result<()> {
        self.mailbox.word(0).store(1, Ordering::Release);
        let start = Instant::now();
        for (rank, device) in self.devices.iter().enumerate() {
            while !device.is_idle(device.stream)? {
                if start.elapsed() > self.limit {
                    let what = format!("the GPU of rank {rank} is still busy with an image that failed");
                    return Err(Error::new(what).hint("start again, or leave this GPU out"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Resets the state to that before the first exchange. The group must have no work enqueued on any GPU.
    fn clear(&self) -> Result<()> {
        for (device, counters) in self.devices.iter().zip(&self.counters) {
            {
                let _submission = device.submit(device.stream)?;
                // SAFETY: the buffer has the bytes.
                unsafe { result::memset_d8_async(counters.address(), 0, counters.bytes(), device.stream.raw()) }
                    .map_err(|e| failed("cannot clear GPU memory", e))?;
            }
            // Other ranks write there as soon as they know that it is cleared.
            Event::new(device, device.stream)?.wait()?;
        }
        self.host.iter().for_each(|host| host.flags.clear());
        self.mailbox.clear();
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Other ranks write to the flags of a rank, and read the mailbox and staging buffers. If a GPU hangs, none of
        // these is used any more.
        let _ = self.wait_until_idle();
        let _ = self.devices[0].make_current();
    }
}

impl Alarm for Shared {
    fn error(&self) -> Option<(usize, Error)> {
        if self.mailbox.word(0).load(Ordering::Acquire) == 0 {
            return None;
        }
        let (blamed, waiting, meeting) = blamed(|word| self.mailbox.word(word).load(Ordering::Acquire))?;
        let what = format!(
            "the GPU of rank {blamed} did not reach exchange {meeting} within {:?}, rank {waiting} waits for it",
            self.limit
        );
        Some((
            blamed,
            Error::new(what).hint(
                "check with `nvidia-smi` that the GPU works and is not busy, and unset `CUDA_DEVICE_MAX_CONNECTIONS`",
            ),
        ))
    }

    fn sound(&self) {
        self.mailbox.word(0).store(1, Ordering::Release);
    }
}

/// Returns the rank that the mailbox blames, the rank that waited for it, and the exchange. In a chain of waiting
/// ranks, the blamed rank is the one that waits for no other.
fn blamed(word: impl Fn(usize) -> u32) -> Option<(usize, usize, u32)> {
    let waited_for = |rank: usize| (word(1 + 2 * rank) as usize).checked_sub(1);
    let late = |rank: usize| Some((waited_for(rank)?, rank, word(2 + 2 * rank)));
    let all: Vec<_> = (0..RANKS).filter_map(late).collect();
    all.iter().find(|(blamed, ..)| waited_for(*blamed).is_none()).or(all.first()).copied()
}

/// Returns `true` if these GPUs are of one model, and a group of them can use peer access according to the driver. A
/// group checks itself that the links carry data.
///
/// Errors if one of them is missing, or the driver doesn't report it.
pub fn are_linked(ordinals: &[usize]) -> Result<bool> {
    if Link::wished()?.is_some() {
        return Ok(false);
    }
    start_driver()?;
    let gpus = ordinals.iter().map(|ordinal| Properties::read(*ordinal)).collect::<Result<Vec<_>>>()?;
    for (from, of_from) in &gpus {
        for (to, of_to) in gpus.iter().filter(|(to, _)| to != from) {
            if of_from.name != of_to.name || !can_reach(*from, *to)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Enables peer access between these GPUs. Returns the reason if it isn't possible, else `None`.
fn out_of_reach(devices: &[&Arc<Device>]) -> Result<Option<String>> {
    for (device, peer) in devices.iter().flat_map(|device| devices.iter().map(move |peer| (device, peer))) {
        match device.reach(peer)? {
            Reach::Open => {}
            Reach::Closed => {
                let names = [device.numbered_name(), peer.numbered_name()];
                return Ok(Some(format!("{} cannot access the memory of {}", names[0], names[1])));
            }
            Reach::Refused(why) => return Ok(Some(why)),
            Reach::Broken => return Ok(Some(broken_link(device, peer))),
        }
    }
    Ok(None)
}

/// Words in host memory that all GPUs read and write.
struct Words(Pinned);

impl Words {
    fn new(device: &Device, count: usize) -> Result<Self> {
        Pinned::new(device, count * size_of::<AtomicU32>()).map(Self)
    }

    fn count(&self) -> usize {
        self.0.bytes() / size_of::<AtomicU32>()
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count(), "word {index} of {}", self.count());
        // SAFETY: the words live as long as this, and the driver zeroes new pages.
        unsafe { &*self.0.host().cast::<AtomicU32>().add(index) }
    }

    /// Returns the address of a word, equal on the host and on all GPUs.
    fn address(&self, index: usize) -> u64 {
        self.0.address() + (index * size_of::<AtomicU32>()) as u64
    }

    fn clear(&self) {
        (0..self.count()).for_each(|word| self.word(word).store(0, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_keeps_gpus_out_of_each_others_memory() {
        let link = |value: Option<&str>| Link::from_value(value.map(OsStr::new));
        assert_eq!([None, Some(""), Some("1")].map(|value| link(value).unwrap()), [None; 3]);
        assert_eq!(link(Some("0")).unwrap(), Some(Link::Host));
        assert!(link(Some("no")).unwrap_err().to_string().contains("FLUX_PEER_ACCESS"));
    }

    #[test]
    fn the_rank_that_waits_for_nobody_is_to_blame() {
        let told = |words: &[(usize, u32)]| {
            blamed(|word| words.iter().find(|(at, _)| *at == word).map_or(0, |(_, value)| *value))
        };
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[(1, 2), (2, 17)]), Some((1, 0, 17)));
        // Rank 0 waits for rank 1 in exchange 5, and rank 1 for rank 2 in exchange 4.
        assert_eq!(told(&[(1, 2), (2, 5), (3, 3), (4, 4)]), Some((2, 1, 4)));
        assert_eq!(told(&[(1, 2), (2, 5), (3, 1), (4, 5)]), Some((1, 0, 5)));
    }
}
