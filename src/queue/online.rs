//! The way to the broker of whoever waits for jobs: what it sends is confirmed soon or refused, and it hears what
//! becomes of jobs.
//!
//! What is sent and what is heard have a connection each, since a broker whose disk is full stops to read the one on
//! which something is sent. Both are made anew where they end. A message that may be lost goes from time to time, so
//! that a broker which takes nothing is known before somebody waits for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flux::{Error, Result};
use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::FieldTable;
use serde::Deserialize;
use tokio::sync::Notify;

use super::broker::{Broker, Link, Outgoing};
use super::dead::{self, Dead, Fate, Which, said};
use super::message::{ControlMessage, EventMessage, VERSION};
use super::names::{self, CONTROL, DEAD, EVENTS, Lane};
use super::wait::Backoff;
use crate::progress::say;

/// How long the broker may take to say that it has a message.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);
/// How often it is asked whether it takes any.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How often a connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The last part of the routing key of what is sent to see whether it is taken. No queue is bound to it.
const PROBE: &str = "probe";

/// What is heard.
#[derive(Debug)]
pub enum Heard {
    Event(EventMessage),
    /// No worker could do the job of this name.
    Dead {
        job: String,
        reason: String,
    },
    /// From now on something is heard. What happened before was missed.
    Listening,
}

/// Why a message was not taken.
#[derive(Debug)]
pub enum Refused {
    /// The queue is full for those at these places.
    Full(Vec<usize>),
    /// The broker is away, or takes nothing: nothing was sent.
    Away,
    /// It did not say in time whether it takes them, and it may still do so.
    Unsure(Error),
}

/// See the module.
pub struct Online {
    broker: Broker,
    models: Vec<String>,
    state: Mutex<State>,
    /// Wakes what looks after the connection.
    failed: Notify,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    /// Whether the broker took what was last sent.
    takes: bool,
    /// Whether events are heard.
    hears: bool,
}

impl Online {
    /// Connects, and stays connected. Queues of these models are declared. Must be called within a runtime.
    pub fn start(broker: Broker, models: Vec<String>, hear: impl Fn(Heard) + Send + Sync + 'static) -> Arc<Self> {
        let online = Arc::new(Self { broker, models, state: Mutex::default(), failed: Notify::new() });
        tokio::spawn(Arc::clone(&online).keep_sending());
        tokio::spawn(Arc::clone(&online).keep_hearing(hear));
        online
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the broker takes messages, and what becomes of them is heard.
    pub fn is_there(&self) -> bool {
        self.change(|state| state.takes && state.hears && state.link.as_ref().is_some_and(|link| link.is_open()))
    }

    /// Sends jobs, each by the name of its model, until the broker has all of them.
    ///
    /// Errors when it has not taken all of them within a few seconds.
    pub async fn send(&self, jobs: Vec<(&str, Vec<u8>)>) -> std::result::Result<(), Refused> {
        let link = self.change(|state| state.link.clone().filter(|link| state.takes && link.is_open()));
        let link = link.ok_or(Refused::Away)?;
        let messages: Vec<_> =
            jobs.into_iter().map(|(model, bytes)| Outgoing::job(Lane::Online, model, bytes)).collect();
        match link.send_within(&messages, CONFIRM_WITHIN).await {
            Ok(refused) if refused.is_empty() => Ok(()),
            Ok(refused) => Err(Refused::Full(refused)),
            Err(error) => {
                self.change(|state| state.takes = false);
                self.failed.notify_one();
                Err(Refused::Unsure(error))
            }
        }
    }

    /// The jobs that no worker could do; none where the broker is away.
    pub async fn dead(&self) -> Option<Vec<Dead>> {
        let link = self.change(|state| state.link.clone())?;
        dead::treat(&link, &Which::All, Fate::Stay).await.ok().map(|treated| treated.jobs)
    }

    /// Has workers not draw a job, where they hear of it.
    pub async fn cancel(&self, job: &str) {
        let Some(link) = self.change(|state| state.link.clone()) else { return };
        let order = ControlMessage { v: VERSION, cancel: job.to_string() };
        if let Ok(bytes) = serde_json::to_vec(&order) {
            let properties = BasicProperties::default();
            link.tell(Outgoing { exchange: CONTROL, key: String::new(), bytes, properties }).await;
        }
    }

    async fn keep_sending(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                Ok(link) => {
                    let link = Arc::new(link);
                    self.change(|state| state.link = Some(Arc::clone(&link)));
                    if self.use_while_open(&link).await {
                        backoff = Backoff::default();
                    }
                    self.change(|state| (state.link, state.takes) = (None, false));
                    say("note: the broker is away, or takes nothing; trying again");
                }
                Err(error) => say(&format!("note: {error}; trying again")),
            }
            backoff.wait().await;
        }
    }

    async fn connect(&self) -> Result<Link> {
        let link = self.broker.connect().await?;
        for model in &self.models {
            link.declare_model(model).await?;
        }
        Ok(link)
    }

    /// Sees from time to time whether the broker takes messages, until the connection ends, or the broker says neither
    /// that it has one nor why. Returns whether it ever took one.
    async fn use_while_open(&self, link: &Link) -> bool {
        let mut took = false;
        loop {
            let takes = link.send_within(&[probe()], CONFIRM_WITHIN).await.is_ok_and(|refused| refused.is_empty());
            self.change(|state| state.takes = takes);
            took |= takes;
            let was_open = link.is_open();
            // Another connection would be blocked, too; this one hears when the broker has room again.
            while link.connection.status().blocked() && link.connection.status().connected() {
                self.change(|state| state.takes = false);
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if !link.connection.status().connected() || (was_open && !takes) {
                return took;
            }
            if was_open {
                let next = tokio::time::timeout(PROBE_EVERY, self.failed.notified());
                tokio::select! {
                    _ = next => {}
                    () = closed(link) => return took,
                }
            }
        }
    }

    async fn keep_hearing(self: Arc<Self>, hear: impl Fn(Heard) + Send + Sync + 'static) {
        let mut backoff = Backoff::default();
        loop {
            if self.hear(&hear).await.is_ok() {
                backoff = Backoff::default();
            }
            self.change(|state| state.hears = false);
            backoff.wait().await;
        }
    }

    /// Hears until the connection ends.
    ///
    /// Errors when there is none.
    async fn hear(&self, hear: &(impl Fn(Heard) + Send + Sync)) -> Result<()> {
        let link = self.broker.connect().await?;
        let mut events = link.hear(EVENTS, &["*.started", "*.step", "*.done", "*.failed"]).await?;
        let mut deaths = link.hear(DEAD, &[""]).await?;
        self.change(|state| state.hears = true);
        hear(Heard::Listening);
        loop {
            let (delivery, is_event) = tokio::select! {
                delivery = events.next() => (delivery, true),
                delivery = deaths.next() => (delivery, false),
            };
            let Some(Ok(delivery)) = delivery else { return Ok(()) };
            let heard = if is_event { event(&delivery) } else { death(&delivery) };
            if let Some(heard) = heard {
                hear(heard);
            }
        }
    }
}

/// Ends when the connection does.
async fn closed(link: &Link) {
    while link.connection.status().connected() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn probe() -> Outgoing {
    Outgoing { exchange: EVENTS, key: PROBE.to_string(), bytes: Vec::new(), properties: BasicProperties::default() }
}

/// What a worker tells; whatever else comes is passed over.
fn event(delivery: &Delivery) -> Option<Heard> {
    let event: EventMessage = serde_json::from_slice(&delivery.data).ok()?;
    event.batch.is_none().then_some(Heard::Event(event))
}

/// A job that somebody waited for, and why it is dead.
fn death(delivery: &Delivery) -> Option<Heard> {
    /// What is wrong with a message may leave its name readable.
    #[derive(Deserialize)]
    struct Named {
        job: String,
    }
    let Named { job } = serde_json::from_slice(&delivery.data).ok()?;
    let nothing = FieldTable::default();
    let (reason, _) = said(delivery.properties.headers().as_ref().unwrap_or(&nothing));
    names::is_job(&job).then_some(Heard::Dead { job, reason })
}
