//! HTTP on localhost, for the stubs of servers.

use std::io::{BufRead, BufReader, Read, Result};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A request. The names of headers are in lower case.
#[derive(Default)]
pub struct Request {
    pub line: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the method and the path.
    pub fn target(&self) -> [String; 2] {
        let mut words = self.line.split(' ').map(str::to_string);
        [(); 2].map(|()| words.next().unwrap_or_default())
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Returns a listener on a free port, and the port.
pub fn bind() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// Answers requests until the test process ends. `answer` returns `true` if the connection stays open.
pub fn serve(listener: TcpListener, answer: impl Fn(Request, &mut TcpStream) -> Result<bool> + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client that does not wait for its answer is no error of the test.
            thread::spawn(move || -> Result<()> {
                let mut reader = BufReader::new(stream.try_clone()?);
                while let Some(request) = read(&mut reader)?
                    && answer(request, &mut stream)?
                {}
                Ok(())
            });
        }
    });
}

fn read(reader: &mut BufReader<TcpStream>) -> Result<Option<Request>> {
    let mut request = Request::default();
    if reader.read_line(&mut request.line)? == 0 {
        return Ok(None);
    }
    request.line.truncate(request.line.trim_end().len());
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
    let length = request.header("content-length").map_or(0, |length| length.parse().expect("a length"));
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}
