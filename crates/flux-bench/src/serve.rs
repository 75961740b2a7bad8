//! A server under load: images per second and latency.
//!
//! Clients send one request after another, or requests are sent at a fixed rate regardless of the answers. With a fixed
//! rate, latency starts at a request's scheduled time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flux::{Error, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};

use flux_runtime::address::is_own;

/// The load for a server.
#[derive(Debug, Clone)]
pub struct Load {
    pub url: String,
    pub key: Option<String>,
    pub seconds: f64,
    pub size: usize,
    pub steps: Option<usize>,
    /// The number of different prompts. The server caches encoded prompts.
    pub prompts: u64,
    pub asks: Asks,
}

/// The timing of requests.
#[derive(Debug, Clone, Copy)]
pub enum Asks {
    /// A number of clients, each sending its next request after an answer.
    Clients(usize),
    /// Requests per second.
    Rate(f64),
}

/// The results.
#[derive(Debug, Default)]
struct Answers {
    /// Latencies in seconds.
    times: Vec<f64>,
    /// The count of each unsuccessful status; 0 is a failed connection.
    failed: Vec<(u16, usize)>,
    /// Seconds from the start to the last answer.
    last: f64,
}

/// Sends requests for a while, and returns a line with the results.
///
/// Errors when the server does not answer at all.
pub fn run(load: &Load, as_json: bool) -> Result<String> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections_per_host(1024);
    // A proxy would see the key, and would be measured instead of a server on this machine.
    let agent = if is_own(&load.url) { agent.proxy(None) } else { agent };
    let agent: ureq::Agent = agent.build().into();
    // Warm-up: the first image of a size takes longer.
    let (status, _) = ask(&agent, load, 0);
    if status != 200 {
        let what = if status == 0 { "does not answer".to_string() } else { format!("answers with status {status}") };
        return Err(Error::new(format!("{} {what}", load.url)).at("--url").hint("`flux serve` starts a server"));
    }
    let answers = Mutex::new(Answers::default());
    let number = AtomicU64::new(1);
    let start = Instant::now();
    let window = Duration::from_secs_f64(load.seconds);
    let one = |due: Instant| {
        let (status, _) = ask(&agent, load, number.fetch_add(1, Ordering::Relaxed));
        let mut answers = answers.lock();
        answers.add(status, due.elapsed().as_secs_f64(), start.elapsed().as_secs_f64());
    };
    match load.asks {
        Asks::Clients(clients) => thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while start.elapsed() < window {
                        one(Instant::now());
                    }
                });
            }
        }),
        Asks::Rate(rate) => thread::scope(|scope| {
            for place in 0..(load.seconds * rate) as u64 {
                let due = start + Duration::from_secs_f64(place as f64 / rate);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                scope.spawn(move || one(due));
            }
        }),
    }
    let answers = answers.into_inner();
    let line = answers.report(load);
    Ok(if as_json { line.to_string() } else { in_words(&line) })
}

/// Sends a request, and returns the status and the size of the answer in bytes.
fn ask(agent: &ureq::Agent, load: &Load, number: u64) -> (u16, usize) {
    let url = format!("{}/v1/images/generations", load.url.trim_end_matches('/'));
    let prompt = format!("a red circle, number {}", number % load.prompts.max(1));
    let size = format!("{0}x{0}", load.size);
    let body = json!({"prompt": prompt, "size": size, "steps": load.steps, "seed": number});
    let mut request = agent.post(&url).header("Content-Type", "application/json");
    if let Some(key) = &load.key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    match request.send(body.to_string().as_bytes()) {
        Ok(mut answer) => {
            let read = answer.body_mut().with_config().limit(1 << 30).read_to_vec();
            read.map_or((0, 0), |bytes| (answer.status().as_u16(), bytes.len()))
        }
        Err(_) => (0, 0),
    }
}

impl Answers {
    fn add(&mut self, status: u16, took: f64, now: f64) {
        if status == 200 {
            self.times.push(took);
            self.last = self.last.max(now);
            return;
        }
        match self.failed.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => self.failed.push((status, 1)),
        }
    }

    fn report(mut self, load: &Load) -> Value {
        self.times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = self.times.len().saturating_sub(1);
            self.times.get((share * last as f64).round() as usize).copied()
        };
        let (asks, value) = match load.asks {
            Asks::Clients(clients) => ("clients", clients as f64),
            Asks::Rate(rate) => ("rate", rate),
        };
        let failed: serde_json::Map<String, Value> =
            self.failed.iter().map(|(status, count)| (status.to_string(), (*count).into())).collect();
        json!({
            "name": format!("serve/{0}x{0}", load.size), asks: value, "prompts": load.prompts, "steps": load.steps,
            "images": self.times.len(), "images_per_s": self.times.len() as f64 / self.last.max(1e-9),
            "p50_s": at(0.5), "p90_s": at(0.9), "p99_s": at(0.99), "max_s": at(1.0), "failed": failed,
        })
    }
}

fn in_words(line: &Value) -> String {
    let number = |key: &str| line[key].as_f64().unwrap_or(f64::NAN);
    let asks = match line["rate"].as_f64() {
        Some(rate) => format!("{rate} requests per second"),
        None => format!("{} clients", line["clients"]),
    };
    let failed = line["failed"].as_object().map_or(0, serde_json::Map::len);
    let failed = if failed > 0 { format!(", failed {}", line["failed"]) } else { String::new() };
    format!(
        "{}, {asks}: {:.2} images/s, p50 {:.3} s, p90 {:.3} s, p99 {:.3} s of {} images{failed}",
        line["name"].as_str().unwrap_or_default(),
        number("images_per_s"),
        number("p50_s"),
        number("p90_s"),
        number("p99_s"),
        line["images"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_failures_are_told() {
        let mut answers = Answers::default();
        (1..=100).for_each(|number| answers.add(200, f64::from(number) / 100.0, f64::from(number) / 10.0));
        [429, 429, 0].into_iter().for_each(|status| answers.add(status, 1.0, 99.0));
        let load = Load {
            url: String::new(),
            key: None,
            seconds: 10.0,
            size: 512,
            steps: Some(4),
            prompts: 1,
            asks: Asks::Clients(4),
        };
        let line = answers.report(&load);
        assert_eq!((&line["images"], &line["images_per_s"], &line["max_s"]), (&json!(100), &json!(10.0), &json!(1.0)));
        assert!((line["p50_s"].as_f64().unwrap() - 0.5).abs() < 0.011 && line["p99_s"].as_f64().unwrap() > 0.98);
        assert_eq!(line["failed"], json!({"0": 1, "429": 2}));
        let words = in_words(&line);
        assert!(words.starts_with("serve/512x512, 4.0 clients: 10.00 images/s") && words.contains("429"), "{words}");
    }
}
