//! Figures for Prometheus.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::record::JobRecord;

/// What the queue is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub waiting: usize,
    pub running: usize,
    /// Of images that clients sent, while these wait.
    pub bytes: usize,
    pub is_ready: bool,
    pub is_closed: bool,
    pub is_full: bool,
    /// What is away of the queue and the store of workers.
    pub away: Option<&'static str>,
}

/// The type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// See the module.
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
        registry.register("http_requests", "Requests that were answered", self.requests.clone());
        registry.register_with_unit("http_request", "Time until the answer began", Unit::Seconds, self.times.clone());
        registry.register("images", "Images that were made", self.images.clone());
        registry.register("batch_images", "Images that were made at once", self.batch_sizes.clone());
        registry.register_with_unit("job_queued", "Time that jobs waited", Unit::Seconds, self.queue_times.clone());
        registry.register_with_unit(
            "job",
            "Time from a job's arrival to its end",
            Unit::Seconds,
            self.job_times.clone(),
        );
        registry.register("jobs", "Jobs that ended", self.jobs.clone());
        registry.register("refused", "Requests for images that were not taken", self.refused.clone());
        registry.register(
            "disconnects",
            "Clients that closed their connection before the answer",
            self.disconnects.clone(),
        );
        registry.register("images_waiting", "Images that wait", self.waiting.clone());
        registry.register("images_running", "Images that engines have", self.running.clone());
        registry.register_with_unit("waiting", "What waiting requests sent", Unit::Bytes, self.bytes.clone());
        registry.register("ready", "Whether requests are taken", self.ready.clone());
        self
    }

    /// A request was answered.
    pub fn answered(&self, route: &str, status: u16, took: Duration) {
        self.requests.get_or_create(&Answered { route: route.to_string(), status }).inc();
        self.times.observe(took.as_secs_f64());
    }

    /// A job ended.
    pub fn ended(&self, job: &JobRecord) {
        let snapshot = job.snapshot();
        let status = format!("{:?}", snapshot.status).to_lowercase();
        self.jobs.get_or_create(&Ended { status }).inc();
        self.queue_times.observe(snapshot.queued_for.as_secs_f64());
        self.job_times.observe((snapshot.queued_for + snapshot.ran_for.unwrap_or_default()).as_secs_f64());
    }

    /// A request was not taken.
    pub fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&Refused { code: code.to_string() }).inc();
    }

    /// All of them as text.
    pub fn text(&self, stats: &QueueStats) -> String {
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.waiting.set(whole(stats.waiting));
        self.running.set(whole(stats.running));
        self.bytes.set(whole(stats.bytes));
        self.ready.set(i64::from(stats.is_ready && !stats.is_closed && stats.away.is_none()));
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_text_of_open_metrics() {
        let metrics = Metrics::default();
        metrics.answered("/v1/models", 200, Duration::from_millis(3));
        metrics.images.inc();
        let text = metrics.text(&QueueStats { waiting: 3, ..QueueStats::default() });
        for line in [
            "flux_http_requests_total{route=\"/v1/models\",status=\"200\"} 1",
            "flux_images_total 1",
            "flux_images_waiting 3",
            "flux_ready 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
