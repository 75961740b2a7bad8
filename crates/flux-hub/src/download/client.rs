//! Requests to the server: redirects, the token, and retries.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use flux_base::Result;
use flux_base::error::{Error, shortened};
use flux_base::stage::CancelFlag;
use ureq::http::{HeaderMap, Request};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::environment;
use super::remote::wrong_server;
use flux_runtime::address::{is_of, is_own, is_private, joined, origin};
use flux_runtime::certificates;

/// The max number of attempts in a row without progress.
pub const ATTEMPTS: u32 = 5;
/// The max wait between two attempts, and the max wait that a server may request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_ASKED: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(30);
/// The time limits for the head of a response and for a text response, in read timeouts.
const HEAD_READS: u32 = 2;
const TEXT_READS: u32 = 4;
const MAX_REDIRECTS: usize = 10;

/// The reason why a request has no usable response.
#[derive(Debug)]
pub enum Trouble {
    /// Another attempt may succeed, after the wait that the server requests.
    Passing(Error, Option<Duration>),
    /// No further attempt will succeed.
    Lasting(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

/// A response, whose body is still to be read.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Body,
}

impl Answer {
    /// Returns a header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// The redirects that a request follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// All of them.
    All,
    /// Redirects on the server itself; a redirect to another server is returned as the response.
    Own,
}

/// The length of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A text, which takes minutes at most.
    Text,
    /// A file, which may take hours.
    File,
}

/// The bytes of a transfer at the last check of its speed.
pub struct Pace {
    since: Instant,
    have: u64,
}

impl Pace {
    /// Creates the pace of a transfer that has `have` bytes now.
    pub fn new(have: u64) -> Self {
        Self { since: Instant::now(), have }
    }
}

/// A client of the server.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    wait: Duration,
    text: Duration,
    /// The max time without a byte, and the min bytes per second over that time.
    read: Duration,
    min_speed: u64,
    cancel: CancelFlag,
    report: Box<dyn Fn(&str)>,
}

impl Client {
    /// Creates a client for the server that the environment names. The first retry is after `wait` seconds; the wait
    /// doubles with each further one.
    ///
    /// Errors if the address is invalid, or the token has characters that no token has.
    pub fn from_environment(wait: f64, cancel: &CancelFlag, report: Box<dyn Fn(&str)>) -> Result<Self> {
        let endpoint = environment::endpoint()?;
        let mut token = environment::token()?;
        if token.is_some() && !is_private(&endpoint) {
            report(&format!("the token is not sent, because {endpoint} is not encrypted"));
            token = None;
        }
        let tls = TlsConfig::builder().root_certs(certificates::trusted()?).build();
        let read = environment::read_timeout();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            // This limit restarts with each read, because a body may take hours.
            .timeout_per_read(Some(read))
            // A server may send `100 Continue` again and again.
            .timeout_recv_response(Some(read * HEAD_READS))
            .tls_config(tls)
            .user_agent(concat!("flux/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            endpoint,
            token,
            wait: Duration::from_secs_f64(wait),
            text: read * TEXT_READS,
            read,
            min_speed: environment::min_speed()?,
            cancel: cancel.clone(),
            report,
        })
    }

    /// Returns the address of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns `true` if there is a token for the server.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the flag with which the user cancels the download.
    pub fn cancel(&self) -> &CancelFlag {
        &self.cancel
    }

    /// Errors if the user has cancelled the download.
    pub fn check(&self) -> Result<()> {
        self.cancel.check()
    }

    /// Reports a note.
    pub fn note(&self, text: &str) {
        (self.report)(text);
    }

    /// Sends a request to an address, or to a path on the server, and follows redirects.
    pub fn request(
        &self,
        method: &str,
        address: &str,
        headers: &[(&str, String)],
        (follow, length): (Follow, Length),
    ) -> std::result::Result<Answer, Trouble> {
        let mut address = match address.starts_with('/') {
            true => format!("{}{address}", self.endpoint),
            false => address.to_string(),
        };
        let mut with_token = is_of(&address, &self.endpoint);
        for _ in 0..MAX_REDIRECTS {
            self.check()?;
            let answer = self.once(method, &address, headers, (with_token, length))?;
            let target = answer.header("location").map(str::to_string);
            let Some(target) = target.filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308)) else {
                return Ok(answer);
            };
            let next = joined(&address, &target).map_err(|e| e.hint(wrong_server()))?;
            if !is_of(&next, &self.endpoint) {
                if follow == Follow::Own {
                    return Ok(answer);
                }
                // The token is for the server only, and is not sent again if another server redirects back.
                with_token = false;
            }
            address = next;
        }
        let what = format!("{} redirects more than {MAX_REDIRECTS} times", self.endpoint);
        Err(Error::new(what).hint(wrong_server()).into())
    }

    fn once(
        &self,
        method: &str,
        address: &str,
        headers: &[(&str, String)],
        (with_token, length): (bool, Length),
    ) -> std::result::Result<Answer, Trouble> {
        let mut request = Request::builder().method(method).uri(address).header("accept-encoding", "identity");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(token) = self.token.as_ref().filter(|_| with_token) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|e| Error::new(format!("cannot request `{address}`: {e}")))?;
        let mut config = self.agent.configure_request(request);
        if length == Length::Text {
            config = config.timeout_global(Some(self.text));
        }
        if is_own(address) {
            // A proxy elsewhere would read private traffic, including the token.
            config = config.proxy(None);
        }
        let answer = self.agent.run(config.build()).map_err(|e| self.unreachable(&e, address))?;
        let (parts, body) = answer.into_parts();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    fn unreachable(&self, error: &ureq::Error, address: &str) -> Trouble {
        if let Err(cancelled) = self.check() {
            return cancelled.into();
        }
        let server = origin(address).unwrap_or_else(|| self.endpoint.clone());
        let error = Error::new(format!("cannot reach {server}: {error}")).hint(
            "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT; run the same command again to resume, or set \
             HF_HUB_OFFLINE=1 to use the cache only",
        );
        Trouble::Passing(error, None)
    }

    /// Repeats `work` until it succeeds, or fails too often without progress. `work` reports progress through its
    /// argument.
    ///
    /// Errors with the last error.
    pub fn persist<T>(&self, mut work: impl FnMut(&mut bool) -> std::result::Result<T, Trouble>) -> Result<T> {
        let mut failed = 0;
        loop {
            let mut got_further = false;
            let (error, asked) = match work(&mut got_further) {
                Ok(done) => return Ok(done),
                Err(Trouble::Lasting(error)) => return Err(error),
                Err(Trouble::Passing(error, asked)) => (error, asked),
            };
            self.check()?;
            failed = if got_further { 1 } else { failed + 1 };
            if failed >= ATTEMPTS {
                return Err(error);
            }
            if let Some(asked) = asked.filter(|asked| *asked > LONGEST_ASKED) {
                let again = format!("try again in {} seconds, as the server requests", asked.as_secs());
                return Err(error.hint_instead(again));
            }
            let wait = asked.unwrap_or_else(|| (self.wait * (1 << (failed - 1).min(10))).min(LONGEST_WAIT));
            self.note(&format!("{}; retrying in {:.0} s", error.what(), wait.as_secs_f64().ceil()));
            self.sleep(wait)?;
        }
    }

    /// Waits, and errors as soon as the user cancels.
    pub fn sleep(&self, wait: Duration) -> Result<()> {
        let end = Instant::now() + wait;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    /// Errors if a transfer has been slower than the min speed since its last check.
    pub fn check_speed(&self, pace: &mut Pace, have: u64) -> std::result::Result<(), Trouble> {
        let passed = pace.since.elapsed();
        if passed < self.read {
            return Ok(());
        }
        let speed = (have.saturating_sub(pace.have) as f64 / passed.as_secs_f64()) as u64;
        *pace = Pace::new(have);
        if speed >= self.min_speed {
            return Ok(());
        }
        let what = format!("the server sends {speed} bytes per second, expected at least {}", self.min_speed);
        let error = Error::new(what)
            .hint("try again later, set HF_ENDPOINT to another server, or set FLUX_DOWNLOAD_MIN_SPEED to 0");
        Err(Trouble::Passing(error, None))
    }

    /// Returns the trouble of a body that breaks off.
    pub fn broken(&self, error: &io::Error, path: &str) -> Trouble {
        match self.check() {
            Err(cancelled) => cancelled.into(),
            Ok(()) => {
                let what = format!("the transfer of `{}` was interrupted: {error}", shortened(path, 200));
                let hint = "run the same command again to resume";
                Trouble::Passing(Error::new(what).hint(hint), None)
            }
        }
    }
}
