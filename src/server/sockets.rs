//! Sockets at which a server listens: addresses, files, and those that a supervisor such as systemd hands over.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use flux::{Error, Result};
use listenfd::ListenFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::config::{Config, Listen};

/// Where a server listens that is told nothing.
const DEFAULT: Listen = Listen::Address(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7860));
/// The names that systemd gives to the sockets that it hands over, by colons.
const NAMES_VARIABLE: &str = "LISTEN_FDNAMES";

/// A socket that listens.
pub struct Listener {
    kind: Kind,
    /// Where it listens, for people.
    pub place: Place,
    /// Removed when this is dropped.
    _file: Option<SocketFile>,
}

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where a socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Address(SocketAddr),
    File(PathBuf),
    /// One that was handed over, by its name.
    Given(String),
}

/// A connection.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    Address(SocketAddr),
    /// A user of this machine, by number.
    User(u32),
}

/// The file of a socket, which leaves with the server, unless another one took its place.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{}", address.ip()),
            Self::User(user) => write!(f, "uid-{user}"),
        }
    }
}

/// All sockets of a server: those that it is told, and those that are handed over; its own address where there are
/// neither. This must be called where tokio runs.
///
/// Errors when one cannot be had, or one that was handed over is open to other machines and there are no keys.
pub fn open(config: &Config) -> Result<Vec<Listener>> {
    let mut listeners = inherited(config)?;
    let own = if listeners.is_empty() && config.listen.is_empty() { &[DEFAULT][..] } else { &config.listen };
    for listen in own {
        listeners.push(match listen {
            Listen::Address(address) => at_address(*address)?,
            Listen::Socket(path) => at_file(path, config.socket_mode)?,
        });
    }
    Ok(listeners)
}

fn at_address(address: SocketAddr) -> Result<Listener> {
    let wrong = |e: io::Error| {
        Error::new(format!("cannot listen at {address}: {e}"))
            .at("--listen")
            .hint("is another server running there? `--listen 127.0.0.1:0` takes a free port")
    };
    // What tokio does too: a server that is started again at once has its address.
    let socket = if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
    let listener = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(1024)
    });
    let listener = listener.map_err(wrong)?;
    let place = Place::Address(listener.local_addr().map_err(wrong)?);
    Ok(Listener { kind: Kind::Tcp(listener), place, _file: None })
}

/// Makes the file of a socket. It has its mode before anybody can find it.
fn at_file(path: &Path, mode: u32) -> Result<Listener> {
    let wrong = |e: io::Error| {
        Error::new(format!("cannot listen there: {e}")).at_path(path).hint("name a file in a folder of yours")
    };
    check_free(path)?;
    let name = path.file_name().ok_or_else(|| wrong(io::ErrorKind::InvalidInput.into()))?;
    let made = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let listener = unix::UnixListener::bind(&made).map_err(wrong)?;
    let set_up = || {
        fs::set_permissions(&made, fs::Permissions::from_mode(mode))?;
        let found = fs::symlink_metadata(&made)?;
        fs::rename(&made, path)?;
        listener.set_nonblocking(true)?;
        Ok((found.dev(), found.ino()))
    };
    let identity = set_up().inspect_err(|_| drop(fs::remove_file(&made))).map_err(wrong)?;
    let file = SocketFile { path: path.to_path_buf(), identity };
    let listener = UnixListener::from_std(listener).map_err(wrong)?;
    Ok(Listener { kind: Kind::Unix(listener), place: Place::File(path.to_path_buf()), _file: Some(file) })
}

/// Errors where there is something else than a socket at which nobody listens any more.
fn check_free(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let (why, hint) = if !found.file_type().is_socket() {
        ("there is a file which is no socket", "name another path, or remove it")
    } else {
        match unix::UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            _ => ("another server listens there", "name another path, or end that one"),
        }
    };
    Err(Error::usage(why).at_path(path).hint(hint))
}

/// What was handed over, by the rules of systemd: `LISTEN_FDS` sockets from descriptor 3 on, for this process.
fn inherited(config: &Config) -> Result<Vec<Listener>> {
    let names = std::env::var(NAMES_VARIABLE).unwrap_or_default();
    let mut given = ListenFd::from_env();
    let mut listeners = Vec::new();
    for place in 0..given.len() {
        let name = names.split(':').nth(place).filter(|name| !name.is_empty());
        let name = name.map_or_else(|| format!("descriptor {}", place + 3), str::to_string);
        let wrong = |e: io::Error| {
            Error::usage(format!("cannot listen at the socket `{name}` that was handed over: {e}"))
                .at("LISTEN_FDS")
                .hint("hand over stream sockets that listen, as `ListenStream=` of systemd does")
        };
        let kind = match given.take_unix_listener(place) {
            Ok(Some(listener)) => {
                check_listens(&listener).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                Kind::Unix(UnixListener::from_std(listener).map_err(wrong)?)
            }
            _ => {
                let listener = given.take_tcp_listener(place).map_err(wrong)?;
                let listener = listener.ok_or_else(|| wrong(io::ErrorKind::NotFound.into()))?;
                check_listens(&listener).map_err(wrong)?;
                listener.set_nonblocking(true).map_err(wrong)?;
                let address = listener.local_addr().map_err(wrong)?;
                if !address.ip().is_loopback() && !config.keys.are_needed() && !config.answers_all {
                    return Err(Error::usage(format!(
                        "the socket `{name}` that was handed over is open to other machines at {address}, and there are no keys"
                    ))
                    .at("LISTEN_FDS")
                    .hint("`--api-keys FILE` asks clients for keys; `--no-auth` does without"));
                }
                Kind::Tcp(TcpListener::from_std(listener).map_err(wrong)?)
            }
        };
        listeners.push(Listener { kind, place: Place::Given(name.clone()), _file: None });
    }
    Ok(listeners)
}

/// Errors where it is a connection, as systemd hands over with `Accept=yes`.
fn check_listens(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    if rustix::net::sockopt::socket_acceptconn(socket)? { Ok(()) } else { Err(io::Error::other("it does not listen")) }
}

impl Listener {
    /// The next connection, and who is at its other end.
    pub async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // One of IPv4 is the same client over a socket of IPv6.
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok((Stream::Tcp(stream), Peer::Address(peer)))
            }
            Kind::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::User(stream.peer_cred()?.uid());
                Ok((Stream::Unix(stream), peer))
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.identity) {
            // One that stays is replaced by the next server.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Stream {
    /// Waits until there is something to read, or its end.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, to),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, to),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_replaced_only_where_nobody_listens_and_leaves_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flux.sock");
        drop(unix::UnixListener::bind(&path).unwrap());
        let first = at_file(&path, 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = at_file(&path, 0o600).err().unwrap();
        assert_eq!(error.what(), "another server listens there");
        let client = unix::UnixStream::connect(&path).unwrap();
        let (_, peer) = first.accept().await.unwrap();
        assert_eq!(peer, Peer::User(fs::metadata(&path).unwrap().uid()));
        drop((client, first));
        assert!(!path.exists());
        fs::write(&path, "text").unwrap();
        assert_eq!(at_file(&path, 0o600).err().unwrap().what(), "there is a file which is no socket");
        assert_eq!(fs::read(&path).unwrap(), b"text");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[tokio::test]
    async fn a_socket_that_took_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flux.sock");
        let first = at_file(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = at_file(&path, 0o660).unwrap();
        drop(first);
        assert!(unix::UnixStream::connect(&path).is_ok());
    }
}
