//! HTTP by the file of a Unix socket, for ureq.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

/// Connects to one file, whatever the address of a request is.
#[derive(Debug)]
pub struct UnixConnector(pub PathBuf);

#[derive(Debug)]
pub struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Connector<()> for UnixConnector {
    type Out = UnixTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<UnixTransport>, Error> {
        let stream = UnixStream::connect(&self.0)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(UnixTransport { stream, buffers }))
    }
}

/// A read or a write that ends in time, as ureq tells it.
fn told(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(timeout.not_zero().map(|time| *time))?;
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output).map_err(|e| told(e, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        self.stream.set_read_timeout(timeout.not_zero().map(|time| *time))?;
        let read = loop {
            match self.stream.read(self.buffers.input_append_buf()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|e| told(e, timeout))?,
            }
        };
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        // What the server closed while nobody asked has something to read: its end.
        let is_silent = |stream: &mut UnixStream| {
            stream.set_nonblocking(true)?;
            let read = stream.read(&mut [0]);
            stream.set_nonblocking(false)?;
            io::Result::Ok(read.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock))
        };
        is_silent(&mut self.stream).unwrap_or(false)
    }
}
