//! Metrics for Prometheus.

use std::time::Duration;

use flux::engine::DeviceMemory;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::jobs::record::JobRecord;
use flux_runtime::build;

/// The state of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub waiting: usize,
    pub running: usize,
    /// Bytes of input images of waiting requests.
    pub bytes: usize,
    pub is_ready: bool,
    pub is_closed: bool,
    pub is_full: bool,
    /// The unreachable part of the remote queue, if any.
    pub away: Option<&'static str>,
}

/// The memory use of the server.
#[derive(Debug, Default)]
pub struct Kept {
    /// The device memory of each model. `None` if the model is not loaded.
    pub models: Vec<(String, Option<Vec<DeviceMemory>>)>,
    /// Bytes of stored results by kind, and the max for all together.
    pub stored: [(&'static str, usize); 3],
    pub limit: usize,
}

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics registry.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    times: Histogram,
    pub images: Counter,
    pub batch_sizes: Histogram,
    queue_times: Histogram,
    job_times: Histogram,
    jobs: Family<Ended, Counter>,
    refused: Family<Refused, Counter>,
    pub disconnects: Counter,
    waiting: Gauge,
    running: Gauge,
    bytes: Gauge,
    ready: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    status: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: String,
    commit: String,
    target: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDevice {
    model: String,
    device: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 16));
        let metrics = Self {
            registry: Registry::with_prefix("flux"),
            requests: Family::default(),
            times: seconds(),
            images: Counter::default(),
            batch_sizes: Histogram::new((1..=8).map(f64::from)),
            queue_times: seconds(),
            job_times: seconds(),
            jobs: Family::default(),
            refused: Family::default(),
            disconnects: Counter::default(),
            waiting: Gauge::default(),
            running: Gauge::default(),
            bytes: Gauge::default(),
            ready: Gauge::default(),
        };
        metrics.registered()
    }
}

impl Metrics {
    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("http_requests", "Completed HTTP requests", self.requests.clone());
        registry.register_with_unit("http_request", "Time until the response began", Unit::Seconds, self.times.clone());
        registry.register("images", "Generated images", self.images.clone());
        registry.register("batch_images", "Images per batch", self.batch_sizes.clone());
        registry.register_with_unit("job_queued", "Waiting time of jobs", Unit::Seconds, self.queue_times.clone());
        registry.register_with_unit(
            "job",
            "Time from the submission of a job to its end",
            Unit::Seconds,
            self.job_times.clone(),
        );
        registry.register("jobs", "Ended jobs", self.jobs.clone());
        registry.register("refused", "Rejected requests for images", self.refused.clone());
        registry.register("disconnects", "Clients that disconnected before the response", self.disconnects.clone());
        registry.register("images_waiting", "Waiting images", self.waiting.clone());
        registry.register("images_running", "Images in progress", self.running.clone());
        registry.register_with_unit("waiting", "Size of the waiting requests", Unit::Bytes, self.bytes.clone());
        registry.register("ready", "1 if requests are accepted, otherwise 0", self.ready.clone());
        self
    }

    /// Records the response to a request.
    pub fn answered(&self, route: &str, status: u16, took: Duration) {
        self.requests.get_or_create(&Answered { route: route.to_string(), status }).inc();
        self.times.observe(took.as_secs_f64());
    }

    /// Records the end of a job.
    pub fn ended(&self, job: &JobRecord) {
        let snapshot = job.snapshot();
        let status = format!("{:?}", snapshot.status).to_lowercase();
        self.jobs.get_or_create(&Ended { status }).inc();
        self.queue_times.observe(snapshot.queued_for.as_secs_f64());
        self.job_times.observe((snapshot.queued_for + snapshot.ran_for.unwrap_or_default()).as_secs_f64());
    }

    /// Records a refused request.
    pub fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&Refused { code: code.to_string() }).inc();
    }

    /// Returns all metrics as text.
    pub fn text(&self, stats: &QueueStats, kept: &Kept) -> String {
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.waiting.set(whole(stats.waiting));
        self.running.set(whole(stats.running));
        self.bytes.set(whole(stats.bytes));
        self.ready.set(i64::from(stats.is_ready && !stats.is_closed && stats.away.is_none()));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text.truncate(text.trim_end_matches("# EOF\n").len());
        let _ = encode(&mut text, &kept.registry());
        text
    }
}

impl Kept {
    /// Returns gauges of the current state. Each scrape uses a new registry, so that unloaded models disappear.
    fn registry(&self) -> Registry {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut registry = Registry::with_prefix("flux");
        let build = Build {
            version: build::VERSION.to_string(),
            commit: build::get().commit.unwrap_or("unknown").to_string(),
            target: build::get().target.to_string(),
        };
        registry.register("build", "Version of the program", Info::new(build));

        let (resident, used, available) = (Family::default(), Family::default(), Family::default());
        let (bytes, limits) = (Family::default(), Family::default());
        let (hits, misses) = (Family::<OfDevice, Counter>::default(), Family::<OfDevice, Counter>::default());
        for (model, memory) in &self.models {
            let of_model: &Family<OfModel, Gauge> = &resident;
            of_model.get_or_create(&OfModel { model: model.clone() }).set(memory.is_some().into());
            for DeviceMemory { device, used: in_use, available: free, prompts } in memory.iter().flatten() {
                let of = OfDevice { model: model.clone(), device: device.clone() };
                let set = |family: &Family<OfDevice, Gauge>, value| {
                    family.get_or_create(&of).set(whole(value));
                };
                set(&used, *in_use);
                free.iter().for_each(|free| set(&available, *free));
                set(&bytes, prompts.bytes);
                set(&limits, prompts.limit);
                hits.get_or_create(&of).inc_by(prompts.hits);
                misses.get_or_create(&of).inc_by(prompts.misses);
            }
        }
        registry.register("model_resident", "1 if the model is in memory, otherwise 0", resident);
        let in_bytes = [
            ("device_memory_used", "Device memory used by a model and its images", used),
            ("device_memory_available", "Device memory that a model can still allocate", available),
            ("prompt_cache", "Size of the cached text features", bytes),
            ("prompt_cache_limit", "Max size of the cached text features", limits),
        ];
        for (name, help, family) in in_bytes {
            registry.register_with_unit(name, help, Unit::Bytes, family);
        }
        registry.register("prompt_cache_hits", "Prompts whose text features were cached", hits);
        registry.register("prompt_cache_misses", "Prompts whose text features were not cached", misses);

        let (host, stored) = (Family::<OfKind, Gauge>::default(), Family::<OfKind, Gauge>::default());
        let of_store = self.stored.iter().map(|(kind, bytes)| (&stored, *kind, *bytes as u64));
        let of_host = host_memory().into_iter().map(|(kind, bytes)| (&host, kind, bytes));
        for (family, kind, bytes) in of_store.chain(of_host) {
            family.get_or_create(&OfKind { kind: kind.to_string() }).set(whole(bytes));
        }
        registry.register_with_unit("host_memory", "Memory of the process on the host", Unit::Bytes, host);
        registry.register_with_unit("store", "Size of the stored results and images", Unit::Bytes, stored);
        let limit: Gauge = Gauge::default();
        limit.set(whole(self.limit as u64));
        registry.register_with_unit("store_limit", "Max size of the stored results and images", Unit::Bytes, limit);
        registry
    }
}

/// Returns the resident and the anonymous memory of the process, as reported by Linux.
fn host_memory() -> Vec<(&'static str, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
    };
    let kinds = [("resident", "VmRSS:"), ("anonymous", "RssAnon:")];
    kinds.into_iter().filter_map(|(kind, name)| Some((kind, of(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use flux::pipeline::CacheStats;

    use super::*;

    #[test]
    fn figures_are_text_of_open_metrics() {
        let metrics = Metrics::default();
        metrics.answered("/v1/models", 200, Duration::from_millis(3));
        metrics.images.inc();
        let prompts = CacheStats { bytes: 5, limit: 9, hits: 3, misses: 2 };
        let memory = DeviceMemory { device: "CPU".to_string(), used: 7, available: None, prompts };
        let kept = Kept {
            models: vec![("a".to_string(), Some(vec![memory])), ("b".to_string(), None)],
            stored: [("files", 4), ("jobs", 5), ("uploads", 6)],
            limit: 100,
        };
        let text = metrics.text(&QueueStats { waiting: 3, ..QueueStats::default() }, &kept);
        for line in [
            "flux_http_requests_total{route=\"/v1/models\",status=\"200\"} 1",
            "flux_images_total 1",
            "flux_images_waiting 3",
            "flux_ready 0",
            "flux_model_resident{model=\"a\"} 1",
            "flux_model_resident{model=\"b\"} 0",
            "flux_device_memory_used_bytes{model=\"a\",device=\"CPU\"} 7",
            "flux_prompt_cache_bytes{model=\"a\",device=\"CPU\"} 5",
            "flux_prompt_cache_limit_bytes{model=\"a\",device=\"CPU\"} 9",
            "flux_prompt_cache_hits_total{model=\"a\",device=\"CPU\"} 3",
            "flux_prompt_cache_misses_total{model=\"a\",device=\"CPU\"} 2",
            "flux_store_bytes{kind=\"files\"} 4",
            "flux_store_limit_bytes 100",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1, "{text}");
        for start in ["flux_build_info{version=", "flux_host_memory_bytes{kind=\"resident\"} "] {
            assert!(text.lines().any(|line| line.starts_with(start)), "{start}:\n{text}");
        }
    }
}
