//! Images by a running `flux serve`: the recipe goes there, and its files come back as they would be written here.

use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use flux::engine::Recipe;
use flux::input;
use flux::output::ImageFormat;
use flux::stage::{CancelFlag, Progress, Stage};
use flux::{Error, Result};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;
use ureq::unversioned::resolver::DefaultResolver;

use super::destination::Destination;
use super::outputs::Outputs;
use super::studio::Wanted;
use super::unix_transport::UnixConnector;
use super::{console, print};
use crate::cli::{DrawArgs, OutputArgs};
use crate::progress::Console;

/// The variable that holds a key.
const KEY_VARIABLE: &str = "FLUX_API_KEY";
/// What stands before the file of a socket.
const SOCKET: &str = "unix:";
/// Images that a server takes at once.
const AT_ONCE: usize = 10;
/// How long a server may say nothing; it says something every 10 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the images of a recipe by the server at `url`, and writes them.
///
/// Errors when the server refuses them or does not answer, and when a file cannot be read or written.
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
    let server = Server::new(url);
    let mut console = console(&args.console);
    for (first, targets) in (0..).step_by(AT_ONCE).zip(targets.chunks(AT_ONCE)) {
        let part = Recipe { seed: recipe.seed + first, ..recipe.clone() };
        let format = targets.first().map_or(ImageFormat::Png, Destination::format);
        let body = Form::new(&part, targets.len(), format, wanted, &files)?;
        let job = server.submit(&body)?;
        job["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).for_each(|note| console.note(note));
        console.info(&format!(
            "seed {}, {}, {} steps, model {} at {url}",
            part.seed,
            text(&job, "size"),
            job["steps"],
            text(&job, "model")
        ));
        let path = text(&job["urls"], "self").to_string();
        let made = server.follow(&path, &mut console, cancel);
        if made.is_err() {
            // What nobody waits for is not made.
            server.cancel(&path);
        }
        made?;
        console.finish();
        for (image, target) in targets.iter().enumerate() {
            target.write_bytes(&server.image(&path, image)?)?;
            console.info(&format!("wrote {} in {:.1} s", target.name(), start.elapsed().as_secs_f64()));
            if let Some(path) = target.path().filter(|_| output.print_path) {
                print(path.as_os_str().as_encoded_bytes())?;
            }
        }
    }
    drop(folders);
    Ok(())
}

/// The files of images that a recipe names, each once, in its order.
fn read_files(recipe: &Recipe) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for (field, name) in recipe.files() {
        if [&recipe.noise, &recipe.latents, &recipe.embeddings].into_iter().flatten().any(|tensors| tensors == name) {
            return Err(Error::usage("a server takes no files of tensors").of(field).hint("draw without `--server`"));
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

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// A form, as it is sent.
struct Form {
    boundary: String,
    bytes: Vec<u8>,
}

impl Form {
    fn new(recipe: &Recipe, count: usize, format: ImageFormat, wanted: &Wanted, files: &[Vec<u8>]) -> Result<Self> {
        let json = serde_json::to_string(recipe).map_err(|e| Error::new(format!("cannot write the recipe: {e}")))?;
        let format = match format {
            ImageFormat::Png => "png",
            ImageFormat::Jpeg => "jpeg",
            ImageFormat::Webp => "webp",
        };
        let mut form = Self { boundary: format!("flux-{:032x}", rand::random::<u128>()), bytes: Vec::new() };
        form.part("recipe", "", json.as_bytes());
        form.part("n", "", count.to_string().as_bytes());
        form.part("output_format", "", format.as_bytes());
        form.part("partial_images", "", b"0");
        // One that a variable or a file names is of this machine.
        if let Some(model) =
            wanted.model.paths.model.as_ref().filter(|_| wanted.model.place.as_deref() == Some("--dir"))
        {
            form.part("model", "", model.to_string_lossy().as_bytes());
        }
        files.iter().for_each(|file| form.part("file", "; filename=\"file\"", file));
        form.bytes.extend_from_slice(format!("--{}--\r\n", form.boundary).as_bytes());
        Ok(form)
    }

    fn part(&mut self, name: &str, rest: &str, bytes: &[u8]) {
        let head = format!("--{}\r\nContent-Disposition: form-data; name=\"{name}\"{rest}\r\n\r\n", self.boundary);
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// A server.
struct Server<'a> {
    /// What it is called in messages.
    place: &'a str,
    url: &'a str,
    agent: Agent,
    key: Option<String>,
}

impl<'a> Server<'a> {
    fn new(url: &'a str) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_per_read(Some(PATIENCE));
        let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        match url.strip_prefix(SOCKET) {
            Some(path) => {
                let (connector, resolver) = (UnixConnector(path.into()), DefaultResolver::default());
                let agent = Agent::with_parts(config.build(), connector, resolver);
                // No name is looked for, and nothing goes there.
                Self { place: url, url: "http://127.0.0.1", agent, key }
            }
            None => Self { place: url, url: url.trim_end_matches('/'), agent: config.build().into(), key },
        }
    }

    /// What it answers, where that is no error.
    fn answer(&self, answer: std::result::Result<Response<ureq::Body>, ureq::Error>) -> Result<Response<ureq::Body>> {
        let at = |e: Error| e.at(self.place);
        let mut answer = answer.map_err(|e| {
            at(Error::new(format!("the server does not answer: {e}")).hint("is `flux serve` running there?"))
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.body_mut().read_to_string().unwrap_or_default();
        let told: Value = serde_json::from_str(&body).unwrap_or_default();
        let message = told["error"]["message"]
            .as_str()
            .map_or_else(|| format!("the server answers with status {status}"), str::to_string);
        let error = if (400..500).contains(&status) { Error::usage(message) } else { Error::new(message) };
        Err(at(match status {
            401 => error.hint(format!("put the key into {KEY_VARIABLE}")),
            429 | 503 => error.hint("try again later"),
            _ => error,
        }))
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn get(&self, path: &str) -> Result<Response<ureq::Body>> {
        self.answer(self.with_key(self.agent.get(format!("{}{path}", self.url))).call())
    }

    fn submit(&self, form: &Form) -> Result<Value> {
        let kind = format!("multipart/form-data; boundary={}", form.boundary);
        let request = self.with_key(self.agent.post(format!("{}/v1/jobs", self.url))).header("Content-Type", kind);
        let mut answer = self.answer(request.send(&form.bytes[..]))?;
        let wrong = |e: ureq::Error| Error::new(format!("the server's answer is no job: {e}")).at(self.place);
        answer.body_mut().read_json().map_err(wrong)
    }

    fn cancel(&self, path: &str) {
        // One that does not hear it forgets the job by itself.
        let _ = self.with_key(self.agent.delete(format!("{}{path}", self.url))).call();
    }

    /// Waits for a job, and shows its steps.
    fn follow(&self, path: &str, console: &mut Console, cancel: &CancelFlag) -> Result<()> {
        let broken = || Error::new("the server broke off").at(self.place);
        let events = BufReader::new(self.get(&format!("{path}/events"))?.into_body().into_reader());
        for line in events.lines() {
            cancel.check()?;
            let line = line.map_err(|_| broken())?;
            let Some(event) = line.strip_prefix("data: ") else { continue };
            let event: Value = serde_json::from_str(event).map_err(|_| broken())?;
            match text(&event, "type") {
                "queued" if event["position"].as_u64().is_some_and(|position| position > 0) => {
                    console.info(&format!("{} images are in front of it", event["position"]));
                }
                "step" => {
                    let [done, total] = ["step", "steps"].map(|key| event[key].as_u64().unwrap_or_default());
                    console.progress(Progress { stage: Stage::Denoise, done, total });
                }
                "done" => return Ok(()),
                "failed" => return Err(Error::new(text(&event["error"], "message")).at(self.place)),
                "cancelled" => return Err(Error::new("somebody cancelled the job").at(self.place)),
                _ => {}
            }
        }
        Err(broken())
    }

    fn image(&self, path: &str, image: usize) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        let answer = self.get(&format!("{path}/images/{image}"))?;
        answer
            .into_body()
            .into_reader()
            .read_to_end(&mut file)
            .map_err(|e| Error::new(format!("the image did not come: {e}")).at(self.place))?;
        Ok(file)
    }
}
