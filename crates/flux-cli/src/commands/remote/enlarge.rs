//! Images that a server enlarges.

use flux::Result;
use flux::output::Target;
use flux::stage::CancelFlag;
use serde_json::json;

use super::Form;
use super::server::Server;
use crate::cli::Upscale;
use flux_runtime::progress::Console;

/// A server that enlarges images, and how.
pub struct Enlarger<'a> {
    server: Server<'a>,
    /// The value of the field `upscale`.
    wanted: String,
    cancel: &'a CancelFlag,
}

impl<'a> Enlarger<'a> {
    /// Creates a client of the server at `url`.
    ///
    /// Errors if the timeout in the environment is not a number of seconds.
    pub fn new(url: &'a str, args: &Upscale, console: &mut Console, cancel: &'a CancelFlag) -> Result<Self> {
        let size = args.to.map(|size| format!("{}x{}", size.width, size.height));
        let upscaler = args.upscaler.file().map(|name| name.to_string_lossy());
        let wanted = json!({"by": args.by, "size": size, "upscaler": upscaler});
        let server = Server::new(url)?;
        server.note_exposed_key(console);
        Ok(Self { server, wanted: wanted.to_string(), cancel })
    }

    /// Returns the file of an enlarged image, in the format of `target`.
    ///
    /// Errors if the server refuses the image or does not answer.
    pub fn enlarge(&self, file: &[u8], target: &Target, console: &mut Console) -> Result<Vec<u8>> {
        let mut form = Form::new();
        form.part("upscale", "", self.wanted.as_bytes());
        form.encoding(target.format(), target.quality());
        form.part("image", "; filename=\"file\"", file);
        let job = self.server.submit(&form.finish())?;
        job.notes.iter().for_each(|note| console.note(note));
        self.server.follow(&job, console, self.cancel)?;
        self.server.image(&job, 0, target.format())
    }
}
