//! Requests to the server: redirections, the token, and what is asked for again.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use flux::Result;
use flux::error::{Error, shortened};
use flux::stage::CancelFlag;
use ureq::http::{HeaderMap, Request};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::address::{is_of, is_own, is_private, joined, origin};
use super::environment;

/// How often a request is made that gets no further.
pub const ATTEMPTS: u32 = 5;
/// The longest wait between two of them, and the longest that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_ASKED: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(30);
/// How long the head of an answer, and an answer that is a text, may take in all: so many times as long as one read.
const HEAD_READS: u32 = 2;
const TEXT_READS: u32 = 4;
const MOST_REDIRECTIONS: usize = 10;

/// Why a request has no answer that is of use.
#[derive(Debug)]
pub enum Trouble {
    /// Another attempt may help, after the wait that the server asks for.
    Passing(Error, Option<Duration>),
    /// None will.
    Lasting(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

/// An answer, whose body is still to be read.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Body,
}

impl Answer {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// How far redirections are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// To the end.
    All,
    /// On the server itself; where it sends us to another one, its own answer counts.
    Own,
}

/// How long an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A text, which takes minutes at most.
    Text,
    /// A file, which may take hours.
    File,
}

/// The server.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    wait: Duration,
    text: Duration,
    cancel: CancelFlag,
    tell: Box<dyn Fn(&str)>,
}

impl Client {
    /// The server that the environment names. Between two attempts it waits so many seconds, and longer each time.
    ///
    /// Errors when its address is none, or the token has characters that no token has.
    pub fn of_environment(wait: f64, cancel: &CancelFlag, tell: Box<dyn Fn(&str)>) -> Result<Self> {
        let endpoint = environment::endpoint()?;
        let mut token = environment::token()?;
        if token.is_some() && !is_private(&endpoint) {
            tell(&format!("the token is not sent, because {endpoint} is not encrypted"));
            token = None;
        }
        let tls = TlsConfig::builder().root_certs(environment::certificates()?).build();
        let read = environment::read_timeout();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            // Restarts with each read: a body as a whole may take hours.
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
            cancel: cancel.clone(),
            tell,
        })
    }

    /// The address of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether the server gets a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// What the user cancels it by.
    pub fn cancel(&self) -> &CancelFlag {
        &self.cancel
    }

    /// Errors when the user has cancelled the download.
    pub fn check(&self) -> Result<()> {
        self.cancel.check()
    }

    /// Tells a note.
    pub fn tell(&self, text: &str) {
        (self.tell)(text);
    }

    /// One request for an address, or for a path on the server.
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
        for _ in 0..MOST_REDIRECTIONS {
            self.check()?;
            let answer = self.once(method, &address, headers, (with_token, length))?;
            let target = answer.header("location").map(str::to_string);
            let Some(target) = target.filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308)) else {
                return Ok(answer);
            };
            let next = joined(&address, &target)?;
            if !is_of(&next, &self.endpoint) {
                if follow == Follow::Own {
                    return Ok(answer);
                }
                // The token is for the server alone, and is not sent again should another one lead back.
                with_token = false;
            }
            address = next;
        }
        let what = format!("{} sends us on more than {MOST_REDIRECTIONS} times", self.endpoint);
        Err(Error::new(what).hint(super::remote::wrong_server()).into())
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
        let request = request.body(()).map_err(|e| Error::new(format!("cannot ask for `{address}`: {e}")))?;
        let mut config = self.agent.configure_request(request);
        if length == Length::Text {
            config = config.timeout_global(Some(self.text));
        }
        if is_own(address) {
            // A proxy elsewhere would read what counts as private, the token with it.
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
            "check the network, a proxy (HTTPS_PROXY), HF_ENDPOINT; the same command goes on where this one ended, and \
             HF_HUB_OFFLINE=1 takes what is in the cache",
        );
        Trouble::Passing(error, None)
    }

    /// Does something until it succeeds, or has failed too often without getting further. `work` returns how far it got
    /// through its argument.
    ///
    /// Errors with what came last.
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
                let again = format!("the server asks to come back in {} seconds", asked.as_secs());
                return Err(error.hint_instead(again));
            }
            let wait = asked.unwrap_or_else(|| (self.wait * (1 << (failed - 1).min(10))).min(LONGEST_WAIT));
            self.tell(&format!("{}; again in {:.0} s", error.what(), wait.as_secs_f64().ceil()));
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

    /// The trouble of a body that breaks off.
    pub fn broken(&self, error: &io::Error, path: &str) -> Trouble {
        match self.check() {
            Err(cancelled) => cancelled.into(),
            Ok(()) => {
                let what = format!("the transfer of `{}` broke off: {error}", shortened(path, 200));
                let hint = "the same command goes on where this one ended";
                Trouble::Passing(Error::new(what).hint(hint), None)
            }
        }
    }
}
