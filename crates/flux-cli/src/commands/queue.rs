//! `flux queue`: status and cancellation of batches, and dead-lettered jobs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use flux::{Error, Result};

use super::json::print_object;
use super::print;
use super::signals::Signals;
use crate::cli::{DeadChoice, Queue, QueueArgs, QueueCommand};
use flux_queue::broker::{Broker, BrokerArgs};
use flux_queue::dead::{self, Dead, Fate, Which};
use flux_queue::message::Happened;
use flux_queue::status::{self, BatchStatus, Watch};
use flux_queue::store::Store;
use flux_runtime::progress::{Console, Shown, say};

/// The interval of reading the status from the store while watching, because events can be lost.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Returns the broker that the flags name.
///
/// Errors as [`Broker::new`].
pub fn broker(args: &QueueArgs) -> Result<Broker> {
    Broker::new(&BrokerArgs {
        url: args.queue.clone(),
        password_file: args.queue_password_file.clone(),
        ca: args.queue_ca.clone(),
        identity: args.queue_cert.clone().zip(args.queue_key.clone()),
    })
}

/// Opens the store.
///
/// Errors as [`Store::open`], and when no store is named.
pub fn store(args: &QueueArgs) -> Result<Store> {
    Store::open(&args.store()?)
}

/// Runs the subcommand.
pub fn run(args: &Queue, signals: &Signals) -> Result<()> {
    match &args.command {
        QueueCommand::Status { batch: None, json, of, .. } => overview(of, *json),
        QueueCommand::Status { batch: Some(batch), watch: false, json, of } => {
            let (store, broker) = (store(of)?, broker(of)?);
            let status = flux_queue::run(async { BatchStatus::read(&store, &broker.connect().await?, batch).await })?;
            if *json { print_object(&status) } else { print(text(&status).as_bytes()) }
        }
        QueueCommand::Status { batch: Some(batch), watch: true, of, .. } => {
            signals.listen()?;
            let status = watch(of, batch, signals)?;
            print(text(&status).as_bytes())
        }
        QueueCommand::Cancel { name, of } => {
            let (store, broker) = (store(of)?, broker(of)?);
            flux_queue::run(status::cancel(&store, &broker, name))
        }
        QueueCommand::Dead { what, name, all, json, of } => {
            if *what != DeadChoice::List && name.is_none() && !all {
                return Err(Error::usage("no dead jobs were selected").hint("name a batch or a job, or pass `--all`"));
            }
            treat(of, *what, name.clone(), *json)
        }
    }
}

fn text(status: &BatchStatus) -> String {
    let BatchStatus { batch, jobs, submitted, done, failed, dead, queued, is_cancelled } = status;
    let mut text = format!("{batch}: {done} of {jobs} done, {failed} failed, {dead} dead, {queued} queued");
    if submitted < jobs {
        text += &format!("; {submitted} submitted, run `flux submit` to continue");
    }
    if *is_cancelled {
        text += "; cancelled";
    }
    text
}

fn overview(of: &QueueArgs, json: bool) -> Result<()> {
    let (store, broker) = (store(of)?, broker(of)?);
    let (queues, batches) = flux_queue::run(async {
        let link = broker.connect().await?;
        Ok((status::queues(&store, &link).await?, status::batches(&store).await?))
    })?;
    if json {
        return print_object(&serde_json::json!({"queues": queues, "batches": batches}));
    }
    let queues = queues
        .iter()
        .map(|queue| format!("{}: {} jobs waiting, {} workers", queue.queue, queue.waiting, queue.workers));
    let lines: Vec<_> = queues.chain(batches.iter().map(|batch| format!("batch {batch}"))).collect();
    print(lines.join("\n").as_bytes())
}

/// Shows a batch's progress until the batch ends, and returns its final status.
///
/// Errors as cancelled if a signal ends it.
fn watch(of: &QueueArgs, batch: &str, signals: &Signals) -> Result<BatchStatus> {
    let (store, broker) = (store(of)?, broker(of)?);
    let mut console = Console::new(false, false, Shown::Auto);
    let cancel = signals.cancel_flag();
    let watched = flux_queue::run(async {
        let link = broker.connect().await?;
        let mut events = Watch::new(&link, batch).await?;
        loop {
            let status = BatchStatus::read(&store, &link, batch).await?;
            if status.over() >= status.jobs {
                return Ok(status);
            }
            if status.failed + status.dead > 0 {
                say(&text(&status));
            }
            let (since, mut ended) = (Instant::now(), HashSet::new());
            while since.elapsed() < LOOK_EVERY && status.over() + ended.len() < status.jobs {
                cancel.check()?;
                console.images((status.over() + ended.len()) as u64, status.jobs as u64);
                match tokio::time::timeout(Duration::from_millis(200), events.next()).await {
                    Ok(Some((key, Happened::Done | Happened::Failed))) => drop(ended.insert(key.hash)),
                    Ok(Some((_, Happened::Started | Happened::Step))) | Err(_) => {}
                    Ok(None) => return Err(Error::new("the broker ended the connection").hint("run it again")),
                }
            }
        }
    });
    console.end_images();
    watched
}

fn treat(of: &QueueArgs, what: DeadChoice, name: Option<String>, json: bool) -> Result<()> {
    let broker = broker(of)?;
    let which = name.clone().map_or(Which::All, Which::Named);
    let (fate, verb) = match what {
        DeadChoice::List => (Fate::Stay, "are dead"),
        DeadChoice::Retry => (Fate::Retry, "were sent again"),
        DeadChoice::Drop => (Fate::Drop, "were dropped"),
    };
    let treated = flux_queue::run(async { dead::treat(&broker.connect().await?, &which, fate).await })?;
    for dead in &treated.jobs {
        if json { print_object(dead)? } else { print(line(dead).as_bytes())? }
    }
    say(&format!("{} jobs {verb}", treated.jobs.len()));
    if treated.are_more {
        say(&format!("note: only the first {} dead jobs were checked", dead::MAX));
    }
    match (treated.stays, name) {
        (Some(error), _) => Err(error.at("some dead jobs")),
        (None, Some(name)) if treated.jobs.is_empty() && fate != Fate::Stay => {
            Err(Error::usage(format!("no dead job matches `{}`", flux::error::shown(&name)))
                .hint("`flux queue dead list` prints the dead jobs, without those that another program is reading"))
        }
        _ => Ok(()),
    }
}

fn line(dead: &Dead) -> String {
    let or_hyphen = |text: Option<&str>| text.unwrap_or("-").to_string();
    let line = dead.line.map_or("-".to_string(), |line| line.to_string());
    let (job, batch) = (or_hyphen(dead.job.as_deref()), or_hyphen(dead.batch.as_deref()));
    flux::error::escaped(&format!("{job} {batch} line {line}: {}", dead.reason)).into_owned()
}
