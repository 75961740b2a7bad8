//! The connection to the broker: address and credentials, declaration of queues, and confirmed publishing.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flux::error::shown;
use flux::files::read_bounded;
use flux::{Error, Result};
use futures_util::future::try_join_all;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, DefaultConnectionBuilder,
    ErrorKind, ExchangeKind,
};

use super::message::{ControlMessage, VERSION};
use super::names::{CONTROL, DEAD, EVENTS, JOBS, Lane};

/// The URL of the broker. Here, unlike on the command line, it may contain a password.
const URL_VARIABLE: &str = "FLUX_QUEUE";
const PASSWORD_VARIABLE: &str = "FLUX_QUEUE_PASSWORD";
/// The max size of a password, certificate or private key file, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Max unacknowledged deliveries of a job, for any reason, before the broker dead-letters it.
pub const DELIVERY_LIMIT: i64 = 20;
/// The timeout for publisher confirms. A broker whose disk is full does not answer at all.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// The AMQP heartbeat in seconds. A connection without heartbeats counts as dead.
const HEARTBEAT: u16 = 10;
const CONNECT_WITHIN_MS: u64 = 10_000;
/// The timeout for closing a connection, and for messages that may be lost.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// Options that describe how to reach the broker.
#[derive(Debug, Clone, Default)]
pub struct BrokerArgs {
    /// The URL, without a password.
    pub url: Option<String>,
    pub password_file: Option<PathBuf>,
    /// CA certificates, in addition to the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate and its private key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The address of the broker, with credentials.
pub struct Broker {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
}

impl Broker {
    /// Reads the address, the password and the certificates.
    ///
    /// Errors if no address is given, a URL on the command line contains a password, or a file cannot be read.
    pub fn new(args: &BrokerArgs) -> Result<Self> {
        let (url, place) = match (&args.url, env::var(URL_VARIABLE)) {
            (Some(url), _) => {
                refuse_password(url)?;
                (url.clone(), "--queue")
            }
            (None, Ok(url)) => (url, URL_VARIABLE),
            (None, Err(_)) => {
                return Err(Error::usage("no queue address is set")
                    .at("--queue")
                    .hint(format!("set it as in `--queue amqps://flux@broker.example`, or in {URL_VARIABLE}")));
            }
        };
        // A malformed URL may hold a password anywhere, so the message must not quote it.
        if !url.contains("://") {
            return Err(Error::usage("the queue address does not begin with amqp:// or amqps://")
                .at(place)
                .hint("write it as amqps://USER@HOST:5671/VHOST"));
        }
        let mut uri: AMQPUri = url.parse().map_err(|e: String| {
            Error::usage(format!("the queue address is invalid: {}", shown(&without_password(&e, &url))))
                .at(place)
                .hint("write it as amqps://USER@HOST:5671/VHOST")
        })?;
        if let Some(password) = password(args)? {
            uri.authority.userinfo.password = password;
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        uri.query.connection_timeout.get_or_insert(CONNECT_WITHIN_MS);
        let is_plain = uri.scheme == AMQPScheme::AMQP;
        if let Some(file) = args.ca.as_ref().or(args.identity.as_ref().map(|(cert, _)| cert)).filter(|_| is_plain) {
            return Err(Error::usage("certificates require amqps://, but the queue address is amqp://").at_path(file));
        }
        let identity = args.identity.as_ref().map(|(cert, key)| {
            Ok(OwnedIdentity::PKCS8 { pem: read(cert, "certificate")?, key: read(key, "private key")? })
        });
        let ca = args.ca.as_deref().map(|file| {
            let pem = read(file, "certificates")?;
            String::from_utf8(pem).map_err(|_| Error::usage("the certificates are not in PEM format").at_path(file))
        });
        Ok(Self { uri, tls: OwnedTLSConfig { identity: identity.transpose()?, cert_chain: ca.transpose()? } })
    }

    /// Returns the address without credentials.
    pub fn address(&self) -> String {
        format!("{}://{}:{}/{}", self.uri.scheme, self.uri.authority.host, self.uri.authority.port, self.uri.vhost)
    }

    /// Connects, and declares the exchanges and the dead-letter queue.
    ///
    /// Errors if the broker is unreachable or refuses the connection.
    pub async fn connect(&self) -> Result<Link> {
        let failed = |e: lapin::Error| self.error(&e);
        let properties =
            ConnectionProperties::default().with_connection_name(concat!("flux ", env!("CARGO_PKG_VERSION")).into());
        let builder = DefaultConnectionBuilder::new().map_err(failed)?;
        let builder = builder.with_uri(self.uri.clone()).with_properties(properties).with_tls_config(self.tls.clone());
        let connection = builder.connect().await.map_err(failed)?;
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
        declare(&channel).await.map_err(|e| declared_otherwise(e, &self.address()))?;
        Ok(Link { connection, channel, address: self.address() })
    }

    fn error(&self, e: &lapin::Error) -> Error {
        broker_error(&self.address(), e)
    }
}

/// Converts an error of the connection. Refusals become usage errors, since a retry would not help.
fn broker_error(address: &str, e: &lapin::Error) -> Error {
    if is_refusal(e) {
        return Error::usage(format!("the broker or flux refused the connection: {}", shown(&e.to_string())))
            .at(address)
            .hint("check the user, password, virtual host and certificates");
    }
    Error::new(format!("the request to the broker failed: {}", shown(&e.to_string())))
        .at(address)
        .hint("check that the broker is running, and check the user, password and certificates")
}

/// Converts an error of a declaration. An existing queue or exchange may have other arguments.
fn declared_otherwise(e: lapin::Error, address: &str) -> Error {
    match e.kind() {
        ErrorKind::ProtocolError(told) if *told.kind() == AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => {
            Error::usage(format!("a queue or an exchange of this name has other settings: {}", shown(&e.to_string())))
                .at(address)
                .hint("delete it once it is empty (`rabbitmqctl delete_queue NAME`), or use another `--name`")
        }
        _ => broker_error(address, &e),
    }
}

/// Returns `true` if credentials or certificates are wrong.
fn is_refusal(e: &lapin::Error) -> bool {
    match e.kind() {
        ErrorKind::ProtocolError(e) => matches!(
            e.kind(),
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) | AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
        ),
        // TLS reports an invalid certificate, or one for another host, in this way.
        ErrorKind::IOError(e) => e.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Errors if a URL from the command line contains a password.
fn refuse_password(url: &str) -> Result<()> {
    if userinfo(url).is_some_and(|user| user.contains(':')) {
        return Err(Error::usage("other users of the machine can see a password on the command line")
            .at("--queue")
            .hint(format!(
                "remove it from the address, and put it into {PASSWORD_VARIABLE} or into a file for \
                 `--queue-password-file`"
            )));
    }
    Ok(())
}

/// Returns the part of a URL before the `@`.
fn userinfo(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit_once('@').map(|(user, _)| user)
}

/// Removes credentials from a parser's error, which may quote the URL.
fn without_password(error: &str, url: &str) -> String {
    userinfo(url).map_or_else(|| error.to_string(), |user| error.replace(user, "..."))
}

fn password(args: &BrokerArgs) -> Result<Option<String>> {
    match &args.password_file {
        Some(file) => {
            let bytes = read(file, "password")?;
            let text = String::from_utf8(bytes).map_err(|_| Error::usage("the password is not UTF-8").at_path(file))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
        }
        None => Ok(env::var(PASSWORD_VARIABLE).ok()),
    }
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>> {
    read_bounded(file, MAX_FILE_BYTES, "name an existing file")
        .map_err(|e| Error::usage(format!("cannot read the {what}: {}", e.what())).at_path(file))
}

/// A connection, with a channel in confirm mode.
pub struct Link {
    pub connection: Connection,
    channel: Channel,
    address: String,
}

/// A message to send.
pub struct Outgoing {
    pub exchange: &'static str,
    pub key: String,
    pub bytes: Vec<u8>,
    pub properties: BasicProperties,
}

impl Outgoing {
    /// Creates a persistent message for a job, to a queue.
    pub fn job(queue: String, bytes: Vec<u8>) -> Self {
        let properties = BasicProperties::default().with_delivery_mode(2).with_content_type("application/json".into());
        Self { exchange: JOBS, key: queue, bytes, properties }
    }

    /// Creates the order to all workers to cancel a batch or a job.
    pub fn cancel(name: &str) -> Result<Self> {
        let order = ControlMessage { v: VERSION, cancel: name.to_string() };
        let bytes = serde_json::to_vec(&order).map_err(|e| Error::new(e.to_string()))?;
        Ok(Self { exchange: CONTROL, key: String::new(), bytes, properties: BasicProperties::default() })
    }
}

impl Link {
    pub fn error(&self, e: &lapin::Error) -> Error {
        broker_error(&self.address, e)
    }

    /// Declares the queues of a model.
    pub async fn declare_model(&self, model: &str) -> Result<()> {
        for lane in Lane::ALL {
            declare_lane(&self.channel, model, lane).await.map_err(|e| declared_otherwise(e, &self.address))?;
        }
        Ok(())
    }

    /// Returns the numbers of waiting jobs and of consumers of a queue, or `None` if the queue does not exist. Uses a
    /// channel of its own, since the broker closes the channel if the queue does not exist.
    pub async fn waiting(&self, queue: &str) -> Result<Option<[u32; 2]>> {
        let channel = self.connection.create_channel().await.map_err(|e| self.error(&e))?;
        let options = QueueDeclareOptions::durable().passive();
        match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
            Ok(queue) => Ok(Some([queue.message_count(), queue.consumer_count()])),
            Err(e) if e.is_amqp_soft_error() => Ok(None),
            Err(e) => Err(self.error(&e)),
        }
    }

    /// As [`Link::send_within`], with a timeout of 30 s.
    pub async fn send(&self, messages: &[Outgoing]) -> Result<Vec<usize>> {
        self.send_within(messages, CONFIRM_WITHIN).await
    }

    /// Returns `true` if the connection is open and not blocked by the broker.
    pub fn is_open(&self) -> bool {
        let status = self.connection.status();
        status.connected() && !status.blocked()
    }

    /// Publishes messages, and waits until the broker has confirmed all of them. Returns the indices of the messages
    /// that the broker refused because a queue is full.
    ///
    /// Errors if the broker does not confirm in time, has no queue for a message, or the connection ends.
    pub async fn send_within(&self, messages: &[Outgoing], time: Duration) -> Result<Vec<usize>> {
        // All at once, so that only the slowest confirm has to be awaited.
        let sending = try_join_all(messages.iter().map(|message| self.publish(message)));
        let confirmed = tokio::time::timeout(time, sending).await.map_err(|_| {
            Error::new(format!("the broker did not confirm the messages within {} s", time.as_secs()))
                .at(self.address.clone())
                .hint("check the free disk space and memory of the broker")
        })?;
        let mut refused = Vec::new();
        for (place, confirmation) in confirmed.map_err(|e| self.error(&e))?.into_iter().enumerate() {
            match confirmation {
                Confirmation::Ack(None) => {}
                Confirmation::Nack(_) => refused.push(place),
                Confirmation::Ack(Some(_)) | Confirmation::NotRequested => {
                    return Err(Error::new(format!("the broker has no queue `{}`", messages[place].key))
                        .at(self.address.clone())
                        .hint("restart the workers and servers, which declare their queues when they start"));
                }
            }
        }
        Ok(refused)
    }

    /// Errors if the connection has ended.
    pub fn check(&self) -> Result<()> {
        if self.connection.status().connected() {
            return Ok(());
        }
        Err(Error::new("the broker ended the connection").at(self.address.clone()))
    }

    /// Closes the connection, waiting at most a second. The broker requeues unacknowledged messages.
    pub async fn close(&self) {
        let closing = self.connection.close(200, "the program has finished".into());
        let _ = tokio::time::timeout(TELL_WITHIN, closing).await;
    }

    async fn publish(&self, message: &Outgoing) -> lapin::Result<Confirmation> {
        let Outgoing { exchange, key, bytes, properties } = message;
        let options = BasicPublishOptions { mandatory: *exchange == JOBS, ..BasicPublishOptions::default() };
        let exchange = (*exchange).into();
        let sent = self.channel.basic_publish(exchange, key.as_str().into(), options, bytes, properties.clone());
        sent.await?.await
    }

    /// Publishes a message that may be lost, without waiting for a confirm. Drops the message if the broker blocks the
    /// connection.
    pub async fn publish_unconfirmed(&self, message: Outgoing) {
        if self.connection.status().blocked() {
            return;
        }
        let Outgoing { exchange, key, bytes, properties } = message;
        let sent =
            self.channel.basic_publish(exchange.into(), key.into(), BasicPublishOptions::default(), &bytes, properties);
        // A lost event does no harm: the store has the result.
        let _ = tokio::time::timeout(TELL_WITHIN, sent).await;
    }

    /// Subscribes to these routing keys of an exchange, through an exclusive queue of this connection.
    pub async fn subscribe(&self, exchange: &str, keys: &[&str]) -> Result<Consumer> {
        let channel = self.connection.create_channel().await.map_err(|e| self.error(&e))?;
        let queue = self.own_queue(&channel, exchange, keys).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
        consumer.map_err(|e| self.error(&e))
    }

    async fn own_queue(&self, channel: &Channel, exchange: &str, keys: &[&str]) -> Result<String> {
        let failed = |e: lapin::Error| self.error(&e);
        let queue = channel.queue_declare("".into(), QueueDeclareOptions::exclusive(), FieldTable::default()).await;
        let name = queue.map_err(failed)?.name().as_str().to_string();
        for key in keys {
            let bound = channel.queue_bind(
                name.as_str().into(),
                exchange.into(),
                (*key).into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            );
            bound.await.map_err(failed)?;
        }
        Ok(name)
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// Declares the exchanges and the dead-letter queue.
async fn declare(channel: &Channel) -> lapin::Result<()> {
    let exchanges = [
        (JOBS, ExchangeKind::Direct),
        (DEAD, ExchangeKind::Fanout),
        (CONTROL, ExchangeKind::Fanout),
        (EVENTS, ExchangeKind::Topic),
    ];
    for (exchange, kind) in exchanges {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await?;
    }
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    // Listing dead letters takes and requeues each of them, and each time counts as a delivery.
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(1_000_000_000));
    channel.queue_declare(DEAD.into(), QueueDeclareOptions::durable(), arguments).await?;
    channel.queue_bind(DEAD.into(), DEAD.into(), "".into(), QueueBindOptions::default(), FieldTable::default()).await
}

async fn declare_lane(channel: &Channel, model: &str, lane: Lane) -> lapin::Result<()> {
    let queue = lane.queue(model);
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(DELIVERY_LIMIT));
    arguments.insert("x-dead-letter-exchange".into(), text(DEAD));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(lane.max_jobs()));
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), arguments).await?;
    let key = queue.as_str().into();
    channel
        .queue_bind(queue.as_str().into(), JOBS.into(), key, QueueBindOptions::default(), FieldTable::default())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_told_apart_from_what_is_away() {
        let of = |kind| lapin::Error::from(io::Error::from(kind));
        assert!(is_refusal(&of(io::ErrorKind::InvalidData)));
        for away in [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset, io::ErrorKind::TimedOut] {
            assert!(!is_refusal(&of(away)), "{away}");
        }
    }

    #[test]
    fn a_password_is_taken_from_a_file_and_refused_on_the_command_line() {
        let of = |url: &str| BrokerArgs { url: Some(url.to_string()), ..BrokerArgs::default() };
        let error = |args: &BrokerArgs| Broker::new(args).map(drop).unwrap_err().to_string();
        for url in ["amqps://flux:secret@host", "amqp://:secret@host/v", "amqp://a:b:c@host?x=1"] {
            let told = error(&of(url));
            assert!(told.contains("FLUX_QUEUE_PASSWORD") && !told.contains("secret"), "{told}");
        }
        for url in ["http://host", "amqp", "", "amqp://host:port"] {
            assert!(error(&of(url)).contains("amqps://USER@HOST"), "{url}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "se cret\n").unwrap();
        let broker = Broker::new(&BrokerArgs { password_file: Some(file), ..of("amqp://flux@host/v") }).unwrap();
        assert_eq!(broker.uri.authority.userinfo.username, "flux");
        assert_eq!(broker.uri.authority.userinfo.password, "se cret");
        assert_eq!(broker.address(), "amqp://host:5672/v");
        assert!(error(&BrokerArgs { ca: Some("ca.pem".into()), ..of("amqp://host") }).contains("amqps://"));
    }
}
