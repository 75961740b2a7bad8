//! Generation on a running `flux serve`: sends the recipe and receives the image files that would be written locally.
//! It knows nothing of models and devices. Start reading at [`draw`], then `server`.

mod enlarge;
mod server;

use std::io;
use std::time::Instant;

use flux::engine::Recipe;
use flux::error::{self, Field};
use flux::output::ImageFormat;
use flux::stage::CancelFlag;
use flux::{Error, Result, input, metadata};

use self::server::Server;
use super::destination::Destination;
use super::outputs::Outputs;
use super::studio::Wanted;
use super::{console, print};
use crate::cli::{DrawArgs, OutputArgs};
pub use enlarge::Enlarger;

/// Maximum number of images in one request.
const MAX_IMAGES: usize = 10;

/// Generates the images of a recipe on the server at `url`, and writes them.
///
/// Errors when the server rejects the recipe or does not answer, and when a file cannot be read or written.
pub fn draw(
    url: &str,
    wanted: &Wanted,
    (output, args): (&OutputArgs, &DrawArgs),
    (start, cancel): (Instant, &CancelFlag),
) -> Result<()> {
    let recipe = &wanted.recipe;
    recipe.request().map_err(|e| e.at(wanted.prompt_place))?;
    let files = read_files(recipe)?;
    let outputs: Outputs = wanted.outputs(output, args)?;
    let folders = outputs.make_folders()?;
    let targets = Destination::all(&outputs)?;
    let mut console = console(&args.console);
    let server = Server::new(url)?;
    server.note_exposed_key(&mut console);
    let upsamples = args.upsample.is_on();
    // Images with prompts of their own are separate requests.
    let size = if wanted.words.is_empty() { MAX_IMAGES } else { 1 };
    for (first, targets) in (0..).step_by(size).zip(targets.chunks(size)) {
        let consecutive = || Recipe { seed: recipe.seed + first as u64, ..recipe.clone() };
        let part = wanted.words.get(first).map_or_else(consecutive, |words| words.recipe(recipe));
        let encoding = targets.first().map_or((ImageFormat::Png, None), Destination::encoding);
        let job = server.submit(&Form::from_recipe(&part, targets.len(), encoding, (wanted, upsamples), &files)?)?;
        job.notes.iter().for_each(|note| console.note(note));
        let plan = format!("{}, {} steps, model {}", job.size, job.steps, job.model);
        console.info(&format!("seed {}, {plan} at {url}", part.seed));
        server.follow(&job, &mut console, cancel)?;
        // All images are checked before the first one is written.
        let images = (0..targets.len()).map(|image| server.image(&job, image, encoding.0));
        for (target, image) in targets.iter().zip(images.collect::<Result<Vec<_>>>()?) {
            // The result is the file of a request without a recipe, and servers of any version support it.
            let image = if args.no_recipe { metadata::strip(&image, false)?.file } else { image };
            target.write_bytes(&image)?;
            console.info(&format!("wrote {} in {:.1} s", target.name(), start.elapsed().as_secs_f64()));
            if let Some(path) = target.path().filter(|_| output.print_path) {
                print(path.as_os_str().as_encoded_bytes())?;
            }
        }
    }
    drop(folders);
    Ok(())
}

/// Reads the image files that a recipe names, each once, in the recipe's order.
fn read_files(recipe: &Recipe) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for (field, name) in recipe.files() {
        if [&recipe.noise, &recipe.latents, &recipe.embeddings].into_iter().flatten().any(|tensors| tensors == name) {
            return Err(Error::usage("the server does not accept tensor files")
                .for_field(field)
                .hint("leave out `--server`"));
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let read = |name: &&std::path::Path| match input::is_stdin(name) {
        true => input::read_stream(io::stdin().lock()),
        false => input::read_file(name).map_err(|e| e.at_path(name)),
    };
    names.iter().map(read).collect()
}

/// A multipart form.
struct Form {
    boundary: String,
    bytes: Vec<u8>,
}

impl Form {
    /// Creates a form without parts. It ends with [`Form::finish`].
    fn new() -> Self {
        Self { boundary: format!("flux-{:032x}", rand::random::<u128>()), bytes: Vec::new() }
    }

    fn from_recipe(
        recipe: &Recipe,
        count: usize,
        (format, quality): (ImageFormat, Option<u8>),
        (wanted, upsamples): (&Wanted, bool),
        files: &[Vec<u8>],
    ) -> Result<Self> {
        let json = serde_json::to_string(recipe).map_err(|e| Error::new(format!("cannot write the recipe: {e}")))?;
        let mut form = Self::new();
        form.part("recipe", "", json.as_bytes());
        form.part("n", "", count.to_string().as_bytes());
        form.encoding(format, quality);
        form.part("partial_images", "", b"0");
        if upsamples {
            form.part("upsample", "", b"true");
        }
        // A model from a variable or settings file is meant for this machine.
        if let Some(model) = wanted
            .model
            .paths
            .model
            .as_ref()
            .filter(|_| wanted.model.place.as_deref() == Some(crate::cli::flag(Field::Model, error::Form::Full)))
        {
            form.part("model", "", model.to_string_lossy().as_bytes());
        }
        files.iter().for_each(|file| form.part("file", "; filename=\"file\"", file));
        Ok(form.finish())
    }

    fn encoding(&mut self, format: ImageFormat, quality: Option<u8>) {
        self.part("output_format", "", format.name().as_bytes());
        if let Some(quality) = quality {
            self.part("output_compression", "", quality.to_string().as_bytes());
        }
    }

    fn finish(mut self) -> Self {
        self.bytes.extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        self
    }

    fn part(&mut self, name: &str, rest: &str, bytes: &[u8]) {
        let head = format!("--{}\r\nContent-Disposition: form-data; name=\"{name}\"{rest}\r\n\r\n", self.boundary);
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }
}
