//! `flux` without a subcommand: makes images and writes them to files.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use flux::backend::{Backend, Remark};
use flux::files::ModelFiles;
use flux::output::Rgb;
use flux::pipeline::{AdapterUse, CancelFlag, Decoded, Model, OpenModel, Plan, Request};
use flux::sampler::Rng;
use flux::{Error, Result};

use super::destination::Destination;
use super::device::{Device, choose_device};
use super::images::{self, Images};
use super::signals::Signals;
use super::tensors::Tensors;
use super::{model, print};
use crate::cli::{self, Generate, TimingsFormat};
use crate::progress::{Console, say};
use crate::report::{Report, ReportedAdapter, peak_host_bytes};

/// Makes the images. Everything that can be checked without a model is checked before one is opened. A signal ends the
/// work as cancelled once the flags are checked, and the program at once before that.
pub fn run(args: &Generate, start: Instant, signals: &Signals) -> Result<()> {
    args.check()?;
    if args.reads_stdin() && !args.quiet && io::stdin().is_terminal() {
        say("type the prompt; Ctrl-D on a line of its own ends it");
    }
    if args.images.reads_stdin() && io::stdin().is_terminal() {
        return Err(Error::usage("standard input is a terminal, which holds no image")
            .at("--input")
            .hint("send it a file, as with `-i - < image.png`, or name the file"));
    }
    let request = args.request(&mut io::stdin())?;
    let images = Images::read(&args.images, &mut io::stdin())?;
    let mut request = images.apply(request);
    request.check_count(args.count as usize)?;
    let targets = Destination::all(args, request.seed)?;
    let tensors = Tensors::new(args, request.seed)?;
    let dir = model(&args.model)?;
    let cache_folder = args.fp8_cache.then(|| cache_folder(&dir)).transpose()?;
    // Before this only standard input is waited for, and a signal ends the program there.
    signals.listen()?;
    let cancel = signals.cancel_flag();
    let mut console = Console::new(args.quiet, args.verbose);
    dir.notes().iter().for_each(|note| console.note(note));
    // Opening a GPU takes the driver long, so another thread opens the model meanwhile. The tokenizer is read on until
    // the prompt is encoded.
    let name = dir.name().to_string();
    let opening = thread::Builder::new().spawn({
        let text = !args.tensors.has_embeddings();
        let open = if text { OpenModel::open } else { OpenModel::open_without_text_encoder };
        move || timed(|| open(&dir))
    });
    let opening = opening.map_err(|e| Error::no_thread(&e))?;
    let (device, device_s) = timed(|| choose_device(&args.on, &console));
    let device = device?;
    let (model, open_s) =
        opening.join().unwrap_or_else(|_| (Err(Error::new("the thread that opens the model panicked")), 0.0));
    let mut model = model?;
    cancel.check()?;
    if args.images.kv {
        model.cache_references();
    }
    request.adapters = args.adapters.open(|path| model.adapter(path))?;
    if let Some(folder) = cache_folder {
        let cache = model.attach_quantised_cache(&folder, &cancel, &mut |progress| console.progress(progress))?;
        console.finish();
        if let Some(note) = cache.note() {
            console.note(&note);
        }
    }
    if let Some(wanted) = args.quantize.quantize {
        let done = model.quantise(&wanted, &cancel, &mut |progress| console.progress(progress))?;
        console.finish();
        done.iter().for_each(|quantised| console.detail(&quantised.to_string()));
    }
    let job = Job { args, images, targets, tensors, name, request, cancel, start, device_s, open_s };
    match device {
        Device::Cpu(backend) => job.run(&Model::new(backend, model), &mut console),
        Device::Cuda(backend) => job.run(&Model::new(backend, model), &mut console),
    }
}

/// What `work` returns, and the seconds that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

/// What someone should know about the seeds from `first` to `last`, if anything.
fn seed_note(first: u64, last: u64) -> Option<String> {
    let above = first.max(1 << 32);
    (above <= last).then(|| {
        let same = above as u32;
        format!("seed {above} gives the image of seed {same}: seeds repeat after 2^32, as in the reference")
    })
}

/// The folder in which the quantised weights are cached.
fn cache_folder(dir: &ModelFiles) -> Result<PathBuf> {
    let folder = dir.folder().map(Path::to_path_buf);
    folder.ok_or_else(|| {
        Error::usage("the built-in model and single files have no folder in which weights could be cached")
            .at("--fp8-cache")
            .hint("name a model in the diffusers layout with `-d`")
    })
}

/// The images to make. Everything is checked except what only the model knows.
struct Job<'a> {
    args: &'a Generate,
    images: Images,
    request: Request,
    /// One for each image.
    targets: Vec<Destination>,
    tensors: Tensors,
    /// The model's name.
    name: String,
    cancel: CancelFlag,
    start: Instant,
    device_s: f64,
    open_s: f64,
}

/// An image that was written, for `--timings`.
struct Saved {
    output: String,
    plan: Plan,
    save_s: f64,
    total_s: f64,
}

impl Job<'_> {
    fn run<B: Backend>(mut self, model: &Arc<Model<B>>, console: &mut Console) -> Result<()> {
        let device = model.backend().describe();
        console.detail(&format!("device: {device}"));
        model.prefetch(&self.request)?;
        let plan = model.plan(&self.request)?;
        self.announce(&plan, console);
        let memory = model.memory_plan(&plan)?;
        memory.lines().iter().for_each(|line| console.detail(line));
        memory.notes().iter().for_each(|note| console.note(note));

        let mut done = 0;
        while done < self.targets.len() {
            let made = self.batch(model, done, &device, console)?;
            self.request = self.request.after(made);
            done += made;
        }
        for remark in model.backend().remarks() {
            match remark {
                Remark::Detail(text) => console.detail(&text),
                Remark::Warning(text) => console.note(&text),
            }
        }
        // The program ends here, and the system takes back all memory at once, faster than it would be freed.
        std::mem::forget(Arc::clone(model));
        Ok(())
    }

    /// Prints what is going to be made.
    fn announce(&self, plan: &Plan, console: &Console) {
        for note in &plan.notes {
            console.note(note);
        }
        let &Plan { width, height, steps, seed, .. } = plan;
        let last = seed + (self.targets.len() as u64 - 1);
        if let Some(note) = seed_note(seed, last).filter(|_| plan.rng == Rng::Torch) {
            console.note(&note);
        }
        let seeds = if last == seed { format!("seed {seed}") } else { format!("seeds {seed} to {last}") };
        if self.args.quiet && self.args.seed_is_random() {
            say(&seeds); // without it nobody could make the image again
        }
        let steps = format!("{steps} {}", if steps == 1 { "step" } else { "steps" });
        console.info(&format!("{seeds}, {width}x{height}, {steps}, model {}", self.name));
    }

    /// Makes one batch, which is the first images behind those that are `done`, and writes them. Returns how many they
    /// are.
    fn batch<B: Backend>(
        &self,
        model: &Arc<Model<B>>,
        done: usize,
        device: &str,
        console: &mut Console,
    ) -> Result<usize> {
        let targets = &self.targets[done..];
        let mut session = model.session(&self.request, targets.len(), &self.cancel)?;
        if done == 0 && self.tensors.wants_embeddings() {
            self.tensors.write_embeddings(&session.embeddings()?, &self.request, &self.name)?;
        }
        let count = session.prepare(&mut |progress| console.progress(progress))?;
        if let Some(remark) = session.adapter_remark() {
            console.detail(remark);
        }
        if self.targets.len() > 1 {
            console.finish();
            let one = "one image by itself".to_string();
            console.info(&if count == 1 { one } else { format!("{count} images as one batch") });
        }
        let wanted = self.tensors.wants_latents();
        let latents =
            if wanted { session.final_latents(&mut |progress| console.progress(progress))? } else { Vec::new() };
        let mut saved = Vec::new();
        for target in targets {
            let Some(image) = session.decode(&mut |progress| console.progress(progress))? else { break };
            if saved.len() + 1 == count {
                console.finish();
            }
            let (index, seed) = (saved.len(), image.plan.seed);
            saved.push(self.save(image, target, console)?);
            if let Some(latents) = latents.get(index) {
                self.tensors.write_latents(done + index, latents, seed, &self.request.prompt, &self.name)?;
            }
        }
        let timings = session.finish()?;
        for Saved { output, plan, save_s, total_s } in &saved {
            let report = Report {
                output,
                model: &self.name,
                device,
                adapters: adapters(&self.request),
                plan,
                tensors: &self.args.tensors,
                timings: &timings,
                device_s: self.device_s,
                open_s: self.open_s,
                save_s: *save_s,
                total_s: *total_s,
                peak_host_bytes: peak_host_bytes(),
            };
            match self.args.timings {
                Some(TimingsFormat::Text) => say(&report.text()),
                Some(TimingsFormat::Json) => print(json(&report)?.as_bytes())?,
                None => {}
            }
        }
        Ok(saved.len())
    }

    /// Writes an image and prints where.
    fn save(&self, Decoded { rgb, plan }: Decoded, target: &Destination, console: &Console) -> Result<Saved> {
        #[cfg(debug_assertions)]
        if self.args.panic_for_test {
            rayon::scope(|scope| scope.spawn(|_| panic!("`--panic-for-test`\nwas given")));
        }
        let &Plan { width, height, steps, guidance, seed, .. } = &plan;
        let mut facts = vec![
            ("prompt", self.request.prompt.clone()),
            ("seed", seed.to_string()),
            ("steps", steps.to_string()),
            ("guidance", guidance.to_string()),
            ("size", format!("{width}x{height}")),
            ("model", self.name.clone()),
            ("Software", concat!("flux ", env!("CARGO_PKG_VERSION")).to_string()),
        ];
        facts.extend(cli::facts(&self.request, &plan));
        facts.extend(self.args.tensors.facts());
        facts.extend(images::facts(&self.args.images));
        let used: Vec<_> = adapters(&self.request).iter().map(ReportedAdapter::to_string).collect();
        facts.extend(self.args.quantize.quantize.map(|quantize| ("quantize", quantize.to_string())));
        if !used.is_empty() {
            facts.push(("lora", used.join(", ")));
        }
        let saving = Instant::now();
        target.write(&self.images.finish(Rgb { width, height, bytes: rgb })?, &facts)?;
        let save_s = saving.elapsed().as_secs_f64();

        let output = target.name();
        let total_s = self.start.elapsed().as_secs_f64();
        console.info(&format!("wrote {output} in {total_s:.1} s"));
        if let Some(path) = target.path().filter(|_| self.args.print_path) {
            print(path.as_os_str().as_encoded_bytes())?;
        }
        Ok(Saved { output, plan, save_s, total_s })
    }
}

/// The adapters of a request, for reports.
fn adapters(request: &Request) -> Vec<ReportedAdapter> {
    let reported = |AdapterUse { adapter, strength }: &AdapterUse| ReportedAdapter {
        file: adapter.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        strength: *strength,
    };
    request.adapters.iter().map(reported).collect()
}

fn json(report: &Report<'_>) -> Result<String> {
    serde_json::to_string(report).map_err(|e| Error::new(format!("cannot write the timings as JSON: {e}")))
}
